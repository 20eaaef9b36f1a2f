"""Show, compare, report on, roll back and drop iterations: `iteration ...`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from flywheel.cli.command_names import echo_with_commands, name_command, name_commands
from flywheel.cli.console import plain_table
from flywheel.cli.options import JSON_OPTION, WORKSPACE_OPTION
from flywheel.config.workspace import Workspace, iteration_label
from flywheel.utils.errors import BadInput, did_you_mean, first_line

_SHOWN = 10
_PREFACE = re.compile(r"^(Flow|Task) run encountered an exception:? ")  # what Prefect puts before the error's message
_STATE_STYLES = {
    **dict.fromkeys(("complete", "Completed", "recorded"), "green"),
    **dict.fromkeys(("unfinished", "begun"), "yellow"),
    **dict.fromkeys(("Failed", "Crashed", "TimedOut", "Cancelled"), "red"),
}

Row = dict[str, Any]


@click.command(epilog="Example: flywheel iteration history -k 3 --stage rollout")
@WORKSPACE_OPTION
@click.option("--iteration", "-k", type=click.IntRange(1), help="Show this one alone: a row a stage.")
@click.option("--stage", "-s", help="Show this stage alone; with --iteration, all that is known of it.")
@click.option("--failed", is_flag=True, help="Show what failed, and why.")
@click.option("--all", "everything", is_flag=True, help="Show all iterations, not the newest ten alone.")
@click.option(
    "--format", "form", type=click.Choice(["table", "json", "csv"]), default="table", help="Format of the rows."
)
def history_command(
    ws: Workspace, iteration: int | None, stage: str | None, failed: bool, everything: bool, form: str
) -> None:
    """Show what ran, how long it took and what failed. Iterations, or stages with their attempts."""
    from flywheel.store.catalog import database
    from flywheel.store.catalog import run_history as past

    stage = stage or ""
    which = _select_iterations(ws, iteration, stage, everything)
    if iteration and stage and not failed:
        if form == "csv":
            raise BadInput("all of a stage is no one table", where="--format csv", fix="ask for json")
        tries, tasks = past.query_stage_attempts(ws, iteration, stage)
        found = {"stage": past.query_stage_history(ws, [iteration], stage), "tries": tries, "tasks": tasks}
        found["artifacts"] = past.query_stage_artifacts(ws, iteration, stage)
        if form == "json":
            tables = {name: database.table_from_mappings(rows) for name, rows in found.items()}
            click.echo(json.dumps({name: database.result_as_json_rows(table) for name, table in tables.items()}))
        else:
            _show_stage(Console(), found)
        return
    if failed:
        rows, show = past.query_failures(ws, which, stage) if which else [], _show_failures
    elif iteration or stage:
        rows, show = past.query_stage_history(ws, which, stage), _show_stages
    else:
        rows, show = past.query_iteration_history(ws, which) if which else [], _show_iterations
    if form == "table":
        show(Console(), rows)
    else:
        click.echo(database.render_result(database.table_from_mappings(rows), form), nl=False)


def _select_iterations(ws: Workspace, iteration: int | None, stage: str, everything: bool) -> list[int]:
    """Return the numbers of the iterations to show, oldest first; where a stage is named, of those that have it."""
    from flywheel.store.versioning import stage_records

    begun = stage_records.list_iterations(ws)
    if iteration is not None and iteration not in begun:
        newest = f"the newest is {begun[-1]}" if begun else "there is none yet: type `flywheel run`"
        raise BadInput(f"iteration {iteration} has not been begun", where="--iteration", fix=newest)
    shown = [iteration] if iteration else begun if everything else begun[-_SHOWN:]
    if not stage:
        return shown
    stages = {k: stage_records.stage_names(ws, k) for k in shown}
    having = [k for k in shown if stage in stages[k]]
    if not having:
        names = dict.fromkeys(name for of in stages.values() for name in of)
        raise BadInput(f"there is no stage {stage}", where="--stage", fix=did_you_mean(stage, names))
    return having


def _show_iterations(console: Console, rows: Sequence[Row]) -> None:
    table = plain_table("iter", "state", "stages", "began (UTC)", "took", "tries", "failed", "longest", left=(1, 3, 7))
    for row in rows:
        longest = f"{row['longest']} {_format_duration(row['longest_seconds'])}" if row["longest"] else "-"
        table.add_row(
            iteration_label(row["iteration"]),
            _format_state(row["state"]),
            f"{row['recorded']}/{row['stages']}",
            _format_time(row["first_started"]),
            _format_duration(row["seconds"]),
            _format_number(row["tries"]),
            _format_number(row["failed"]),
            longest,
        )
    if not rows:
        console.print(f"no iteration yet: type [bold]{escape(name_command('flywheel'))} run[/bold]")
        return
    console.print(table)
    for row in rows:
        if row["state"] != "complete" and row["reason"]:
            head = f"{iteration_label(row['iteration'])} {row['at_stage']} failed: "
            console.print(Text(head + _format_reason(row["reason"]), style="red"), soft_wrap=True)
        if row["state"] == "unfinished":
            console.print(escape(name_commands("`flywheel run` goes on")), style="yellow", highlight=False)


def _show_stages(console: Console, rows: Sequence[Row]) -> None:
    names = ("iter", "stage", "state", "began (UTC)", "took", "usual", "ratio", "tries", "shards", "retries")
    table = plain_table(*names, left=(1, 2, 3))
    for row in rows:
        table.add_row(
            iteration_label(row["iteration"]),
            row["stage"],
            _format_state(row["state"]),
            _format_time(row["first_started"]),
            _format_duration(row["seconds"]),
            _format_duration(row["median_before"]),
            _format_number(row["ratio"], ".2f"),
            _format_number(row["tries"]),
            _format_number(row["shards"]),
            _format_number(row["retries"]),
        )
    console.print(table)
    for row in rows:
        name = f"{iteration_label(row['iteration'])} {row['stage']}"
        if row["reason"]:
            mended = row["state"] in ("Completed", "recorded")
            said = f"{name} failed{' before' * mended}: {_format_reason(row['reason'])}"
            console.print(Text(said, style="" if mended else "red"), soft_wrap=True)
        if row["staged"]:
            said = f"{name}: {row['staged']} finished shards are kept for the next run"
            console.print(said, highlight=False, soft_wrap=True)


def _show_failures(console: Console, rows: Sequence[Row]) -> None:
    for row in rows:
        where = f"{row['stage']}, {row['kind']} {row['run']}" if row["stage"] else f"{row['kind']} {row['run']}"
        attempts = f" at attempt {row['attempts']}" if (row["attempts"] or 0) > 1 else ""
        k, ended = iteration_label(row["iteration"]), _format_time(row["ended_at"])
        console.print(Text(f"{k}  {ended}  {where}: {row['state']}{attempts}", style="bold"), soft_wrap=True)
        console.print(Padding(Text(_format_reason(row["message"]) or "no reason is kept"), (0, 0, 0, 5)))
    if not rows:
        console.print("nothing failed")


def _show_stage(console: Console, found: dict[str, list[Row]]) -> None:
    _show_stages(console, found["stage"])
    (row,) = found["stage"]
    if row["ratio"] is not None:
        many = row["iterations_before"]
        of = "the iteration before" if many == 1 else f"the median of the {many} iterations before"
        console.print(f"{_format_number(row['ratio'], '.2f')} times {of}", highlight=False)
    runs = plain_table("try", "run", "state", "began (UTC)", "took", "attempts", left=(1, 2, 3))
    for one in found["tries"]:
        times = _format_time(one["started_at"]), _format_duration(one["seconds"])
        runs.add_row(str(one["try"]), "", _format_state(one["state"]), *times, "")
        for task in (task for task in found["tasks"] if task["try"] == one["try"]):
            times = _format_time(task["started_at"]), _format_duration(task["seconds"])
            runs.add_row("", Text(task["task"]), _format_state(task["state"]), *times, _format_number(task["attempts"]))
    console.print("\nTries and their tasks" if found["tries"] else "\nno run of it is told by Prefect", highlight=False)
    if found["tries"]:
        console.print(runs)
    for title, role in (("Read", "input"), ("Written", "output")):
        of_role = [one for one in found["artifacts"] if one["role"] == role]
        if of_role:
            console.print(f"\n{title}")
            console.print(_artifact_table(of_role))
    if not found["artifacts"]:
        console.print("what it reads and writes is recorded when it ends", highlight=False)


def _artifact_table(rows: Sequence[Row]) -> Table:
    table = plain_table("path", "rows", "bytes", "sha256", left=(0, 3))
    for row in rows:
        first, *others = row["sha256"] or ["-"]
        more = f" +{len(others)}" if others else ""
        table.add_row(Text(row["path"]), _format_number(row["rows"]), _format_number(row["bytes"]), first[:8] + more)
    table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"
    return table


def _format_state(state: str) -> Text:
    return Text(state, style=_STATE_STYLES.get(state, ""))


def _format_time(moment: datetime | None) -> str:
    return f"{moment:%m-%d %H:%M}" if moment else "-"


def _format_duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    size, unit = (3600, "h") if seconds >= 7200 else (60, "m") if seconds >= 120 else (1, "s")
    return f"{seconds / size:.1f} {unit}"


def _format_number(number: float | None, form: str = "") -> str:
    return "-" if number is None else f"{number:{form}}"


def _format_reason(message: str) -> str:
    return first_line(_PREFACE.sub("", message))


@click.command(epilog="Example: flywheel iteration rollback 3    (and back: flywheel iteration rollback --undo)")
@click.argument("iteration", type=click.IntRange(0), required=False)
@click.option("--undo", is_flag=True, help="Restore the iterations that the last rollback set aside.")
@WORKSPACE_OPTION
def rollback_command(iteration: int | None, undo: bool, ws: Workspace) -> None:
    """Make an earlier iteration the newest again. Later ones are set aside whole, and can be restored."""
    from flywheel.config import run_lock
    from flywheel.maintenance import reroute
    from flywheel.maintenance import rollback as going_back

    if undo == (iteration is not None):
        raise BadInput("to which iteration?", where="flywheel iteration rollback", fix="give its number, or --undo")
    with run_lock.hold_workspace(ws):
        reroute.resume_pending_decisions(ws)
        going_back.resume_rollback(ws)
        if undo:
            k = going_back.undo_rollback(ws)
            click.echo(f"what came after iteration {iteration_label(k)} is back")
            return
        later = going_back.plan_rollback(ws, iteration)
        if not later:
            click.echo(f"iteration {iteration_label(iteration)} is the newest")
            return
        folder = going_back.roll_back(ws, iteration)
    which = " to ".join(dict.fromkeys(map(iteration_label, (later[0], later[-1]))))
    click.echo(f"iteration {iteration_label(iteration)} is the newest; {which} lies in {ws.relative(folder)}")
    echo_with_commands("`flywheel iteration rollback --undo` brings it back, as long as this is the newest")


@click.command(epilog="Example: flywheel iteration diff 2 3 --json")
@click.argument("before", type=click.IntRange(1))
@click.argument("after", type=click.IntRange(1))
@JSON_OPTION
@WORKSPACE_OPTION
def diff_command(before: int, after: int, as_json: bool, ws: Workspace) -> None:
    """Compare two iterations. Rows, distributions, metrics, tasks gained and lost."""
    from flywheel.maintenance import iteration_diff

    found = iteration_diff.compare_iterations(ws, before, after)
    if as_json:
        click.echo(json.dumps(found, default=str))
        return
    _print_difference(found)


def _print_difference(found: dict[str, Any]) -> None:
    from flywheel.store.catalog import database

    one, other = iteration_label(found["before"]), iteration_label(found["after"])
    for title, rows in (
        ("rows", found["rows"]),
        ("trajectories that were routed, by what they are", found["kinds"]),
        ("their figures", found["numbers"]),
        ("metrics that differ", [row for row in found["metrics"] if row["difference"] != 0]),
    ):
        click.echo(f"{title} ({one} and {other})")
        click.echo(database.render_result(database.table_from_mappings(rows)) if rows else "none\n")
    held_out = found["held_out"]
    if held_out["known"]:
        gained, lost = held_out["gained"], held_out["lost"]
        click.echo(f"held-out tasks: {held_out['tasks']} alike, {held_out['both']} solved by both")
        click.echo(f"  gained {len(gained)}: {', '.join(gained[:10]) or '-'}")
        click.echo(f"  lost {len(lost)}: {', '.join(lost[:10]) or '-'}")
    else:
        click.echo("held-out tasks: not known of both")
    for name in ("gained", "lost"):
        rows = [f"{row['world']}/{row['template']} {row['level']}" for row in found["templates"][name]]
        click.echo(f"training templates {name}: {len(rows)}{': ' * bool(rows)}{', '.join(rows[:10])}")
    if found["adapters"]:
        click.echo(f"adapters\n{database.render_result(database.table_from_mappings(found['adapters']))}", nl=False)
    if found["adapter_distance"] is not None:
        click.echo(f"they differ by {found['adapter_distance']:.2%} of what the first one adds to the base")


@click.command(epilog="Example: flywheel iteration drop --iteration 3")
@click.option("--iteration", "-k", type=int, help="Number of the iteration; default: the newest.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@WORKSPACE_OPTION
def drop_command(iteration: int | None, yes: bool, ws: Workspace) -> None:
    """Drop an iteration that is not complete. `flywheel run` starts it anew, with params.yaml."""
    from flywheel.config import run_lock
    from flywheel.maintenance import rollback

    with run_lock.hold_workspace(ws):
        chosen = rollback.plan_discard(ws, iteration)
        click.echo("\n".join(map(ws.relative, chosen.paths)))
        if yes or click.confirm(f"Remove these of iteration {iteration_label(chosen.iteration)}?"):
            rollback.discard_iteration(ws, chosen)
            echo_with_commands(
                f"iteration {iteration_label(chosen.iteration)} is dropped; `flywheel run` starts it anew"
            )


@click.command(epilog="Example: flywheel iteration report --screenshot report.png")
@WORKSPACE_OPTION
@click.option("--screenshot", type=click.Path(path_type=Path), help="Write a PNG of the top of the page too.")
@click.option("--all", "everything", is_flag=True, help="Show all iterations, not the newest ten alone.")
def report_command(ws: Workspace, screenshot: Path | None, everything: bool) -> None:
    """Write the report: one HTML page without other files."""
    from flywheel.ui.report import pages

    click.echo(pages.write_report(ws, everything=everything))
    if screenshot:
        click.echo(pages.screenshot_report(ws, screenshot))
