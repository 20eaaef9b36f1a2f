"""Run the command `flywheel`: dispatch its commands, and turn their errors into a line and an exit code."""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Iterator
from typing import NoReturn

import click
from rich.console import Console
from rich.markup import escape

from flywheel.cli import data, env, iteration, model, review, run, show, workspace
from flywheel.utils.errors import BadInput, FlywheelError
from flywheel.utils.processes import Terminated

_COMMANDS = (
    workspace.init_command,
    workspace.doctor_command,
    workspace.clean_command,
    workspace.settings_command,
    workspace.migrate_command,
    run.run_command,
    run.stage_command,
    run.review_command,
    review.label_command,
    run.checkup_command,
    run.discard_command,
    run.up_command,
    run.down_command,
    data.reroute_command,
    data.quarantine_command,
    iteration.rollback_command,
    iteration.prune_command,
    iteration.verify_command,
    show.status_command,
    iteration.history_command,
    show.query_command,
    show.catalog_command,
    iteration.diff_command,
    show.report_command,
    show.view_command,
    show.ui_command,
    data.import_group,
    data.export_command,
    model.pretrain_command,
    model.serve_command,
    model.bench_command,
    env.guest_command,
    env.page_group,
    env.osworld_command,
    env.sandbox_group,
)
_UNUSABLE_ERRNOS = {errno.EROFS, errno.EACCES, errno.EPERM}  # of files and folders: no fault of the program


class _ErrorReportingGroup(click.Group):
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
            _stderr().print(
                f"[yellow]stopped{by}[/yellow]; what was finished is kept: type the same command to go on",
                soft_wrap=True,
            )
            sys.exit(code)


def _stderr() -> Console:
    return Console(stderr=True)


def _fail(line: str, code: int) -> NoReturn:
    _stderr().print(f"[red]flywheel:[/red] {escape(line)}", soft_wrap=True, highlight=False)
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
    commands=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(package_name="flywheel")
def main() -> None:
    """A data flywheel for GUI agents: act, score, route, train, merge, evaluate, promote."""
