"""Run the command `flywheel`: dispatch its commands, and turn their errors into a line and an exit code."""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Iterator
from typing import NoReturn

import click

from flywheel.cli.lazy_group import LazyGroup, describe_renamed_command, describe_renamed_option
from flywheel.utils.errors import BadInput, FlywheelError
from flywheel.utils.processes import Terminated

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
