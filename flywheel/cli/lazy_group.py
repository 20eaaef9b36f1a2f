"""Group commands, import one only when it is called, and name the commands and options of earlier versions.

`--help` and every other command start without a command's module.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import click


class LazyGroup(click.Group):
    """A group whose commands are named in a table, in the order in which `--help` lists them. table: name ->
    ("module:attribute" in this package, first sentence of its help) of a command, or a group."""

    def __init__(self, *args, table: Mapping[str, tuple[str, str] | LazyGroup], **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        entry = self.table.get(name)
        if entry is None or isinstance(entry, LazyGroup):
            return entry
        module, _, attribute = entry[0].partition(":")
        return getattr(importlib.import_module(f"{__package__}.{module}"), attribute)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = str(args[0])
        if name not in self.table and not name.startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(f"No such command {name!r}{_describe_nearest(ctx, name)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups = {n: one.get_short_help_str(200) for n, one in self.table.items() if isinstance(one, LazyGroup)}
        commands = {name: entry[1] for name, entry in self.table.items() if name not in groups}
        for title, rows in (("Commands", commands), ("Groups of commands", groups)):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(list(rows.items()))

    def iterate_commands(self, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        """Yield the words of each command below this group, groups among them. path: the words before them."""
        for name, entry in self.table.items():
            yield (*path, name)
            if isinstance(entry, LazyGroup):
                yield from entry.iterate_commands((*path, name))


def _describe_nearest(ctx: click.Context, name: str) -> str:
    """Which command was probably meant: of this group if one is near, else of any; empty where none is."""
    import difflib  # not at the start of every command

    here = ctx.command_path.split()[1:]
    of_group = {command: (*here, command) for command in ctx.command.table}
    of_any = {words[-1]: words for words in ctx.find_root().command.iterate_commands()}
    for known in (of_group, of_any):
        if near := difflib.get_close_matches(name, known, 1):
            return f" (did you mean `flywheel {' '.join(known[near[0]])}`?)"
    return ""


# Words of earlier versions, after `flywheel` -> those of today. The longer one counts where two fit.
RENAMED_COMMANDS = {
    "catalog": "data catalog",
    "checkup": "model eval",
    "clean": "workspace reset",
    "diff": "iteration diff",
    "discard": "iteration drop",
    "down": "workspace down",
    "export": "data export",
    "guest": "env computer-server",
    "history": "iteration history",
    "import": "data import",
    "label": "review routes",
    "migrate": "workspace migrate",
    "osworld": "env osworld",
    "page": "env page",
    "pretrain": "model pretrain",
    "prune": "workspace gc",
    "quarantine": "data quarantine",
    "report": "iteration report",
    "reroute": "data reroute",
    "rollback": "iteration rollback",
    "sandbox": "env server",
    "sandbox serve": "env server manager",
    "serve": "model serve",
    "up": "workspace up",
    "verify": "workspace verify",
    "view": "data view",
}
# Command of today -> option of earlier versions -> what it is today.
_OF_PROMOTION = ("--iteration", "-k", "--promote", "--keep", "--reviewer", "--comment", "--workspace", "-w")
RENAMED_OPTIONS = {
    "review": {option: f"flywheel review promotion {option}" for option in _OF_PROMOTION},
    "review routes": {"--rest": "--remaining"},
    "iteration report": {"--picture": "--screenshot"},
    "model pretrain": {"--seeing": "--vision-steps", "--start": "--init-from"},
    "env page try": {"--screen": "--screenshot"},
    "env server manager": {"--silent": "--heartbeat-timeout"},
    "env server node": {"--film-mb": "--recording-mb"},
    "ui": {"--beside": "--compare-with"},
    "bench base": {"--n": "--pages"},
    "bench corrections": {"--measured": "--eval-tasks"},
    "bench explorer": {"--look": "--think-time"},
    "bench hybrid": {"--each": "--held-out"},
    "bench learner": {"--working-steps": "--history-n-images"},
    "bench rl": {"--each": "--held-out", "--at-once": "--parallel"},
    "bench rl_agreement": {"--each": "--tasks"},
    "bench streaming": {"--right": "--initial-success"},
}


def describe_renamed_command(words: Sequence[str]) -> str:
    """What a command of an earlier version is today, in words; empty for others. words: as typed after `flywheel`."""
    for count in (2, 1):
        old = " ".join(words[:count])
        if old in RENAMED_COMMANDS:
            return f"`flywheel {old}` is `flywheel {RENAMED_COMMANDS[old]}` now"
    return ""


def describe_renamed_option(command: str, typed: Iterable[str]) -> str:
    """What the first option of an earlier version among those typed is today, in words; empty where there is none.
    command: its words after `flywheel`. typed: words of the command line, such as `--each=40`."""
    known = RENAMED_OPTIONS.get(command, {})
    for word in typed:
        if (option := word.partition("=")[0]) in known:
            return f"{option} is `{known[option]}` now"
    return ""
