"""Run the command `flywheel`: dispatch its commands, and turn their errors into a line and an exit code."""

from __future__ import annotations

import contextlib
import errno
import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NoReturn

import click

from flywheel.utils.errors import BadInput, FlywheelError
from flywheel.utils.processes import Terminated


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


# No more is imported here: `--help`, and a command's own start, wait for it.

# Each group's commands in the order of its `--help`: (where the command is, the first sentence of its help).

_ITERATION = LazyGroup(
    help="Show, compare, report on, roll back and drop iterations.",
    epilog="Example: flywheel iteration diff 2 3",
    table={
        "history": ("iteration:history_command", "Show what ran, how long it took and what failed."),
        "diff": ("iteration:diff_command", "Compare two iterations."),
        "report": ("iteration:report_command", "Write the report: one HTML page without other files."),
        "rollback": ("iteration:rollback_command", "Make an earlier iteration the newest again."),
        "drop": ("iteration:drop_command", "Drop an iteration that is not complete."),
    },
)
_REVIEW = LazyGroup(
    help="Label trajectories and decide on promotions that wait for a person.",
    epilog="Example: flywheel review routes",
    table={
        "routes": (
            "review:routes_command",
            "Label trajectories as solved or not, before the iteration trains on them (`routing.review`).",
        ),
        "promotion": (
            "review:promotion_command",
            "Promote the new model or keep the old one, where promotion.rule is `review`.",
        ),
    },
)
_IMPORT = LazyGroup(
    help="Import demonstrations of another data set. They wait in the recordings folder for the next iteration.",
    epilog="Example: flywheel data import mind2web data/train-*.parquet",
    table={
        "agentnet": ("data:agentnet_command", "Import AgentNet (OpenCUA): JSON lines, and screens in a zip."),
        "mind2web": ("data:mind2web_command", "Import Multimodal-Mind2Web: Parquet files of one split."),
    },
)
_DATA = LazyGroup(
    help="View, import, export, reroute and repair data.",
    epilog="Example: flywheel data reroute 3 --threshold 0.8",
    table={
        "catalog": ("data:catalog_command", "List the views and macros for SQL, or write them to a DuckDB FILE."),
        "view": ("data:view_command", "Write a page that replays one trajectory."),
        "import": _IMPORT,
        "export": ("data:export_command", "Export a training store to WebDataset or Hugging Face's datasets."),
        "reroute": ("data:reroute_command", "Show which store each trajectory would go to now; --write moves it."),
        "quarantine": (
            "data:quarantine_command",
            "Show quarantined trajectories, repair their rows, and route them again.",
        ),
    },
)
_MODEL = LazyGroup(
    help="Pretrain, evaluate and serve models.",
    epilog="Example: flywheel model serve models/base",
    table={
        "eval": ("model:eval_command", "Evaluate the newest model on fresh tasks (a checkup)."),
        "pretrain": ("model:pretrain_command", "Train the small base model on rendered pages."),
        "serve": ("model:serve_command", "Serve a checkpoint as an OpenAI-compatible server."),
    },
)
_PAGE = LazyGroup(
    help="List, fetch and try third-party web pages, which become tasks by a manifest alone.",
    epilog="Example: flywheel env page try my-page/manifest.yaml --seed 3 --screenshot screen.png",
    table={
        "list": ("env:list_pages", "List the manifests that ship, and those that the settings name."),
        "fetch": ("env:fetch_page", "Fetch the packages that a MANIFEST takes its page or server from."),
        "try": ("env:try_page_command", "Open the page of a MANIFEST, play it at random, and check it."),
    },
)
_SERVER = LazyGroup(
    help="Serve environments from many machines: a manager leases them, nodes have them. FLYWHEEL_SANDBOX_TOKEN holds "
    "the token that all of them share.",
    short_help="Serve environments from many machines: a manager leases them, nodes have them.",
    epilog="Example: FLYWHEEL_SANDBOX_TOKEN=... flywheel env server manager --state sandbox.db",
    table={
        "manager": ("env:manager_command", "Run the manager, where nodes register and runs lease."),
        "node": ("env:node_command", "Offer this machine's environments at a manager."),
        "status": ("env:server_status_command", "Show nodes, free places, and sessions by user."),
        "drain": ("env:drain_command", "Lease nothing more at the node NAME."),
    },
)
_ENV = LazyGroup(
    help="Try and play environments, and serve them to other machines.",
    epilog="Example: flywheel env play snake --level 3",
    table={
        "page": _PAGE,
        "play": ("env:play_command", "Play a task of a WORLD by hand, in an ordinary browser."),
        "osworld": ("env:osworld_command", "List which of OSWorld's TASKS can be played on this machine."),
        "server": _SERVER,
        "computer-server": ("env:computer_server_command", "Control the machine it runs on, as a small HTTP server."),
    },
)
_WORKSPACE = LazyGroup(
    help="Run a workspace unattended; verify, clean up, migrate it.",
    epilog="Example: flywheel workspace up",
    table={
        "up": ("workspace:up_command", "Run iterations unattended: on schedules, or when new data arrive."),
        "down": ("workspace:down_command", "Stop what `workspace up` started, and the iteration that is running."),
        "verify": ("workspace:verify_command", "Check every file against its recorded hash."),
        "gc": ("workspace:gc_command", "List files of past iterations that nothing needs; --write removes them."),
        "reset": ("workspace:reset_command", "Remove all that runs have made: data, models, history, report."),
        "migrate": ("workspace:migrate_command", "Bring a workspace of an earlier version up to date."),
    },
)
_COMMANDS = {
    "init": ("workspace:init_command", "Create a workspace in a new folder, with git."),
    "run": ("run:run_command", "Run iterations; resume one that was stopped."),
    "stage": ("run:stage_command", "Run one stage of one iteration, without Prefect."),
    "status": ("run:status_command", "Show the iterations, and what is unfinished or damaged."),
    "query": ("run:query_command", "Query the catalog in DuckDB's SQL."),
    "ui": ("run:ui_command", "Serve Prefect's pages, the report and the explorer until Ctrl-C."),
    "settings": ("workspace:settings_command", "List the parameters, or explain one."),
    "doctor": ("workspace:doctor_command", "Check the installation; print how to get what is missing."),
    "bench": ("bench:bench_command", "Run a benchmark; without a NAME, list them."),
    "iteration": _ITERATION,
    "review": _REVIEW,
    "data": _DATA,
    "model": _MODEL,
    "env": _ENV,
    "workspace": _WORKSPACE,
}
_UNUSABLE_ERRNOS = {errno.EROFS, errno.EACCES, errno.EPERM}  # of files and folders: no fault of the program


class _ErrorReportingGroup(LazyGroup):
    """Errors become one line and an exit code: 1 failed, 2 bad input, 130 Ctrl-C, 143 SIGTERM."""

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

    _print_error(f"[red]flywheel:[/red] {escape(line)}", highlight=False)
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
    """A data flywheel for GUI agents: act, score, route, train, merge, evaluate, promote."""
