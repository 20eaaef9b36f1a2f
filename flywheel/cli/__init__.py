"""Run the command `flywheel`: dispatch its commands, and turn their errors into a line and an exit code."""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Iterator
from typing import NoReturn

import click

from flywheel.cli.lazy_group import LazyGroup
from flywheel.utils.errors import BadInput, FlywheelError
from flywheel.utils.processes import Terminated

# No more is imported here: `--help`, and a command's own start, wait for it.

# name: (where its command is, the first sentence of its help)
_COMMANDS = {
    "init": ("flywheel.cli.workspace:init_command", "Make a workspace of its own, in git."),
    "doctor": ("flywheel.cli.workspace:doctor_command", "What is installed, what is missing, what to type."),
    "clean": ("flywheel.cli.workspace:clean_command", "Remove what runs have made: data, models, history, report."),
    "settings": ("flywheel.cli.workspace:settings_command", "Show parameters: what they are and what they mean."),
    "migrate": ("flywheel.cli.workspace:migrate_command", "Bring a workspace of an earlier version up to date."),
    "run": ("flywheel.cli.run:run_command", "Turn the flywheel."),
    "stage": ("flywheel.cli.run:stage_command", "Run one stage of one iteration, without Prefect."),
    "review": ("flywheel.cli.run:review_command", "Approve or refuse a promotion, where promotion.rule is `review`."),
    "label": (
        "flywheel.cli.review:label_command",
        "Say of trajectories whether they solved their task, before the iteration trains (`routing.review`).",
    ),
    "checkup": (
        "flywheel.cli.run:checkup_command",
        "Let the newest model play fresh tasks, which had no part in making or choosing it.",
    ),
    "discard": ("flywheel.cli.run:discard_command", "Give up an iteration that is not complete."),
    "up": (
        "flywheel.cli.run:up_command",
        "Run the flywheel without a person: on schedules, or when new data are there.",
    ),
    "down": (
        "flywheel.cli.run:down_command",
        "End what `flywheel up` started, and the run at work: what it had finished is kept.",
    ),
    "reroute": ("flywheel.cli.data:reroute_command", "Decide again where trajectories go."),
    "quarantine": (
        "flywheel.cli.data:quarantine_command",
        "Look at what was set aside, mend it, and let it be routed again.",
    ),
    "rollback": ("flywheel.cli.iteration:rollback_command", "Make an iteration the newest again."),
    "prune": ("flywheel.cli.iteration:prune_command", "Remove what past iterations do not need."),
    "verify": ("flywheel.cli.iteration:verify_command", "Hold every file against its hash."),
    "status": ("flywheel.cli.show:status_command", "Where the flywheel stands."),
    "history": ("flywheel.cli.iteration:history_command", "Tell what ran."),
    "query": ("flywheel.cli.show:query_command", "Ask the catalog, in DuckDB's SQL."),
    "catalog": (
        "flywheel.cli.show:catalog_command",
        "Tell what views and macros there are, or write them to a DuckDB FILE.",
    ),
    "diff": ("flywheel.cli.iteration:diff_command", "Compare two iterations."),
    "report": ("flywheel.cli.show:report_command", "Write the report: one HTML page that needs nothing beside it."),
    "view": ("flywheel.cli.show:view_command", "Write a page that replays one trajectory."),
    "ui": (
        "flywheel.cli.show:ui_command",
        "Serve Prefect's pages, the report and the explorer on 127.0.0.1 until Ctrl-C.",
    ),
    "import": ("flywheel.cli.data:import_group", "Take in demonstrations of another data set."),
    "export": (
        "flywheel.cli.data:export_command",
        "Write a training store, a step a sample, for WebDataset or Hugging Face's datasets.",
    ),
    "pretrain": ("flywheel.cli.model:pretrain_command", "Train the small base model on rendered pages."),
    "serve": ("flywheel.cli.model:serve_command", "Serve a checkpoint as an OpenAI-compatible server."),
    "bench": ("flywheel.cli.model:bench_command", "Run a benchmark of the source folder."),
    "guest": ("flywheel.cli.env:guest_command", "Act inside of this machine, as a small HTTP server."),
    "page": ("flywheel.cli.env:page_group", "Third-party web pages as tasks, by a manifest alone."),
    "osworld": (
        "flywheel.cli.env:osworld_command",
        "Tell which of OSWorld's TASKS can be played on this machine, and why the others cannot.",
    ),
    "sandbox": (
        "flywheel.cli.env:sandbox_group",
        "Environments on many machines: a manager that leases them, and nodes that have them.",
    ),
}
_UNUSABLE_ERRNOS = {errno.EROFS, errno.EACCES, errno.EPERM}  # of files and folders: no fault of the program


class _ErrorReportingGroup(LazyGroup):
    """Errors become one line and an exit code: 1 failed, 2 bad input, 130 Ctrl-C, 143 SIGTERM."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _usage_in_one_line():
            return super().parse_args(ctx, args)

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
        asked = f"; see {error.ctx.command_path} --help" if error.ctx else ""
        _fail(f"{error.format_message().rstrip('.')}{asked}", error.exit_code)


@click.group(
    cls=_ErrorReportingGroup,
    table=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(package_name="flywheel")
def main() -> None:
    """A data flywheel for GUI agents: act, score, route, train, merge, evaluate, promote."""
