"""Define the command `flywheel`: find its subcommands, and turn their errors into a line and an exit code."""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from flywheel.utils.errors import BadInput, FlywheelError
from flywheel.utils.local_ports import bypass_proxies_on_loopback
from flywheel.utils.processes import Terminated


class LazyGroup(click.Group):
    """Hold a group of commands whose modules are imported when first used.

    table: name -> ("module:attribute" in this package, first sentence of its help) of a command, or a group; `--help`
    lists them in this order.
    """

    def __init__(self, *args, table: Mapping[str, tuple[str, str] | LazyGroup], **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the table, in its order."""
        return list(self.table)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import and return the command or group called `name`; None where the table has none."""
        entry = self.table.get(name)
        if entry is None or isinstance(entry, LazyGroup):
            return entry
        module, _, attribute = entry[0].partition(":")
        return getattr(importlib.import_module(f"{__package__}.{module}"), attribute)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command's name, the command and the arguments after it, as click does.

        args: the words after this group's name. Raises click.UsageError, with the nearest command, for a name that the
        table does not have.
        """
        name = str(args[0])
        if name not in self.table and not name.startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(f"No such command {name!r}{_describe_nearest(ctx, name)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, then the groups of commands, each with its first sentence, to the help."""
        groups = {n: one.get_short_help_str(200) for n, one in self.table.items() if isinstance(one, LazyGroup)}
        commands = {name: entry[1] for name, entry in self.table.items() if name not in groups}
        for title, rows in (("Commands", commands), ("Groups of commands", groups)):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(list(rows.items()))

    def iterate_commands(self, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        """Yield the words of each command and each group below this group, such as ("data", "import").

        path: the words before them.
        """
        for name, entry in self.table.items():
            yield (*path, name)
            if isinstance(entry, LazyGroup):
                yield from entry.iterate_commands((*path, name))


def _describe_nearest(ctx: click.Context, name: str) -> str:
    """Suggest the command that was probably meant: of this group if one is near, else of any; "" where none is."""
    import difflib  # not at the start of every command

    here = ctx.command_path.split()[1:]
    of_group = {command: (*here, command) for command in ctx.command.table}
    of_any = {words[-1]: words for words in ctx.find_root().command.iterate_commands()}
    for known in (of_group, of_any):
        if near := difflib.get_close_matches(name, known, 1):
            return f" (did you mean `flywheel {' '.join(known[near[0]])}`?)"
    return ""


_RENAMED = json.loads(Path(__file__).with_name("renamed.json").read_text(encoding="utf-8"))
# Words of earlier versions, after `flywheel` -> those of today. The longer one counts where two fit.
RENAMED_COMMANDS: dict[str, str] = _RENAMED["commands"]
# Command of today -> option of earlier versions -> what it is today.
RENAMED_OPTIONS: dict[str, dict[str, str]] = _RENAMED["options"]


def describe_renamed_command(words: Sequence[str]) -> str:
    """Describe what a command of an earlier version is called today; "" for others. words: typed after `flywheel`."""
    for count in (2, 1):
        old = " ".join(words[:count])
        if old in RENAMED_COMMANDS:
            return f"`flywheel {old}` is `flywheel {RENAMED_COMMANDS[old]}` now"
    return ""


def describe_renamed_option(command: str, typed: Iterable[str]) -> str:
    """Describe what the first typed option of an earlier version is called today; "" where there is none.

    command: its words after `flywheel`. typed: words of the command line, such as `--each=40`.
    """
    known = RENAMED_OPTIONS.get(command, {})
    for word in typed:
        if (option := word.partition("=")[0]) in known:
            return f"{option} is `{known[option]}` now"
    return ""


# Nothing else is imported here: `--help` and the start of each command would wait for it.


def _read_table(entries: Mapping[str, Any]) -> dict[str, tuple[str, str] | LazyGroup]:
    """Build the table of a group from `commands.json`; an entry with a table of its own is a group."""
    return {
        name: LazyGroup(**{**entry, "table": _read_table(entry["table"])}) if "table" in entry else tuple(entry)
        for name, entry in entries.items()
    }


_COMMANDS = _read_table(json.loads(Path(__file__).with_name("commands.json").read_text(encoding="utf-8")))
_UNUSABLE_ERRNOS = {errno.EROFS, errno.EACCES, errno.EPERM}  # unusable files and folders: no fault of the program


class _ErrorReportingGroup(LazyGroup):
    """Turn errors into one line and an exit code: 1 failed, 2 bad input, 130 Ctrl-C, 143 SIGTERM."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _usage_in_one_line():
            return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if renamed := describe_renamed_command(args):
            raise BadInput(renamed)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context):
        try:
            with _usage_in_one_line():
                return super().invoke(ctx)
        except FlywheelError as error:
            _fail(str(error), error.exit_code)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                _fail(f"{error.strerror} ({error.filename}); name another place", BadInput.exit_code)
            if error.errno not in _UNUSABLE_ERRNOS:
                raise
            where = f" ({error.filename})" if error.filename else ""
            _fail(f"{error.strerror}{where}; make it writable, or work in a copy of the workspace", 1)
        except (KeyboardInterrupt, Terminated) as stopped:
            by, code = (" by SIGTERM", 143) if isinstance(stopped, Terminated) else ("", 130)
            _print_error(f"[yellow]stopped{by}[/yellow]; what was finished is kept: type the same command to go on")
            sys.exit(code)


def _print_error(markup: str, **options: bool) -> None:
    from rich.console import Console

    Console(stderr=True).print(markup, soft_wrap=True, **options)


def _fail(line: str, code: int) -> NoReturn:
    from rich.markup import escape

    from flywheel.cli.command_names import name_commands

    _print_error(f"[red]flywheel:[/red] {escape(name_commands(line))}", highlight=False)
    sys.exit(code)


@contextlib.contextmanager
def _usage_in_one_line() -> Iterator[None]:
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:  # a group without a command: its help is the answer
        raise
    except click.UsageError as error:
        command = error.ctx.command_path.partition(" ")[2] if error.ctx else ""
        asked = f"; see {error.ctx.command_path} --help" if error.ctx else ""
        renamed = describe_renamed_option(command, [getattr(error, "option_name", "")])
        _fail(f"{renamed or error.format_message().rstrip('.')}{asked}", error.exit_code)


@click.group(
    "flywheel",
    cls=_ErrorReportingGroup,
    table=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True},
)
@click.version_option(package_name="flywheel")
def main() -> None:
    """A data flywheel for GUI agents: act, score, route, train, merge, evaluate, promote.

    \f
    Raises SystemExit with the exit code: 1 for an error, said in one line, 2 for bad input, 130 after Ctrl-C, 143 after
    SIGTERM.
    """
    bypass_proxies_on_loopback()
