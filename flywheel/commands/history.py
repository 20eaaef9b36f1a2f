"""`flywheel history`: what ran, what failed and why, how long it took, what was read and written."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from flywheel.commands.options import WORKSPACE
from flywheel.errors import BadInput, first_line, known
from flywheel.workspace import Workspace, label

_SHOWN = 10
_PREFACE = re.compile(r"^(Flow|Task) run encountered an exception:? ")  # of Prefect, before what was raised
_TONES = {"complete": "green", "Completed": "green", "recorded": "green", "unfinished": "yellow", "begun": "yellow"}
_FAILED = ("Failed", "Crashed", "TimedOut", "Cancelled")

Row = dict[str, Any]


@click.command(epilog="Example: flywheel history -k 3 --stage rollout")
@WORKSPACE
@click.option("--iteration", "-k", type=click.IntRange(1), help="This one alone: a row a stage.")
@click.option("--stage", "-s", default="", help="This one alone; with an iteration all that is known of it.")
@click.option("--failed", is_flag=True, help="What failed, and why.")
@click.option("--all", "everything", is_flag=True, help="Show all iterations, not the newest ten alone.")
@click.option(
    "--format", "form", type=click.Choice(["table", "json", "csv"]), default="table", show_default=True, help="Of rows."
)
def history(
    workspace: Path | None, iteration: int | None, stage: str, failed: bool, everything: bool, form: str
) -> None:
    """Tell what ran. Iterations, stages and their tries, how long they took, what failed and why."""
    from flywheel.store import catalog, formats
    from flywheel.store import history as past

    ws = Workspace.find(workspace)
    which = _which(ws, iteration, stage, everything)
    if iteration and stage and not failed:
        if form == "csv":
            raise BadInput("all of a stage is no one table", where="--format csv", fix="ask for json")
        found = _all_of(ws, iteration, stage)
        if form == "json":
            click.echo(json.dumps({name: formats.rows_of(formats.table_of(rows)) for name, rows in found.items()}))
        else:
            _show_all_of(Console(), found)
        return
    if failed:
        rows, show = past.failures(ws, which, stage) if which else [], _show_failures
    elif iteration or stage:
        rows, show = past.stages(ws, which, stage), _show_stages
    else:
        rows, show = past.iterations(ws, which) if which else [], _show_iterations
    if form == "table":
        show(Console(), rows)
    else:
        click.echo(catalog.render(formats.table_of(rows), form), nl=False)


def _which(ws: Workspace, iteration: int | None, stage: str, everything: bool) -> list[int]:
    """The iterations that are asked about, oldest first; those that have the stage, where one is named."""
    from flywheel.store import versioning

    begun = versioning.iterations(ws)
    if iteration is not None and iteration not in begun:
        newest = f"the newest is {begun[-1]}" if begun else "there is none yet: type `flywheel run`"
        raise BadInput(f"iteration {iteration} has not been begun", where="--iteration", fix=newest)
    shown = [iteration] if iteration else begun if everything else begun[-_SHOWN:]
    if not stage:
        return shown
    stages = {k: versioning.stages(ws, k) for k in shown}
    having = [k for k in shown if stage in stages[k]]
    if not having:
        names = dict.fromkeys(name for of in stages.values() for name in of)
        raise BadInput(f"there is no stage {stage}", where="--stage", fix=known(stage, names))
    return having


def _all_of(ws: Workspace, iteration: int, stage: str) -> dict[str, list[Row]]:
    from flywheel.store import history as past

    tries, tasks = past.tries(ws, iteration, stage)
    artifacts = past.artifacts(ws, iteration, stage)
    return {"stage": past.stages(ws, [iteration], stage), "tries": tries, "tasks": tasks, "artifacts": artifacts}


def _show_iterations(console: Console, rows: Sequence[Row]) -> None:
    table = _table("iter", "state", "stages", "began (UTC)", "took", "tries", "failed", "longest", left=(1, 3, 7))
    for row in rows:
        longest = f"{row['longest']} {_took(row['longest_seconds'])}" if row["longest"] else "-"
        table.add_row(
            label(row["iteration"]),
            _state(row["state"]),
            f"{row['recorded']}/{row['stages']}",
            _at(row["first_started"]),
            _took(row["seconds"]),
            _count(row["tries"]),
            _count(row["failed"]),
            longest,
        )
    if not rows:
        console.print("no iteration yet: type [bold]flywheel run[/bold]")
        return
    console.print(table)
    for row in rows:
        if row["state"] != "complete" and row["reason"]:
            head = f"{label(row['iteration'])} {row['at_stage']} failed: "
            console.print(Text(head + _reason(row["reason"]), style="red"), soft_wrap=True)
        if row["state"] == "unfinished":
            console.print("`flywheel run` goes on", style="yellow", highlight=False)


def _show_stages(console: Console, rows: Sequence[Row]) -> None:
    names = ("iter", "stage", "state", "began (UTC)", "took", "usual", "ratio", "tries", "shards", "retries")
    table = _table(*names, left=(1, 2, 3))
    for row in rows:
        table.add_row(
            label(row["iteration"]),
            row["stage"],
            _state(row["state"]),
            _at(row["first_started"]),
            _took(row["seconds"]),
            _took(row["median_before"]),
            _ratio(row["ratio"]),
            _count(row["tries"]),
            _count(row["shards"]),
            _count(row["retries"]),
        )
    console.print(table)
    for row in rows:
        if row["reason"]:
            mended = row["state"] in ("Completed", "recorded")
            head = f"{label(row['iteration'])} {row['stage']} failed{' before' * mended}: "
            style = "" if mended else "red"
            console.print(Text(head + _reason(row["reason"]), style=style), soft_wrap=True)
        if row["staged"]:
            said = (
                f"{label(row['iteration'])} {row['stage']}: {row['staged']} finished shards are kept for the next run"
            )
            console.print(said, highlight=False, soft_wrap=True)


def _show_failures(console: Console, rows: Sequence[Row]) -> None:
    for row in rows:
        where = f"{row['stage']}, {row['kind']} {row['run']}" if row["stage"] else f"{row['kind']} {row['run']}"
        attempts = f" at attempt {row['attempts']}" if (row["attempts"] or 0) > 1 else ""
        head = f"{label(row['iteration'])}  {_at(row['ended_at'])}  {where}: {row['state']}{attempts}"
        console.print(Text(head, style="bold"), soft_wrap=True)
        console.print(Padding(Text(_reason(row["message"]) or "no reason is kept"), (0, 0, 0, 5)))
    if not rows:
        console.print("nothing failed")


def _show_all_of(console: Console, found: dict[str, list[Row]]) -> None:
    _show_stages(console, found["stage"])
    (row,) = found["stage"]
    if row["ratio"] is not None:
        many = row["iterations_before"]
        of = "the iteration before" if many == 1 else f"the median of the {many} iterations before"
        console.print(f"{_ratio(row['ratio'])} times {of}", highlight=False)
    runs = _table("try", "run", "state", "began (UTC)", "took", "attempts", left=(1, 2, 3))
    for one in found["tries"]:
        own = [task for task in found["tasks"] if task["try"] == one["try"]]
        runs.add_row(str(one["try"]), "", _state(one["state"]), _at(one["started_at"]), _took(one["seconds"]), "")
        for task in own:
            times = _at(task["started_at"]), _took(task["seconds"])
            runs.add_row("", Text(task["task"]), _state(task["state"]), *times, _count(task["attempts"]))
    console.print("\nTries and their tasks" if found["tries"] else "\nno run of it is told by Prefect", highlight=False)
    if found["tries"]:
        console.print(runs)
    for title, role in (("Read", "input"), ("Written", "output")):
        of_role = [one for one in found["artifacts"] if one["role"] == role]
        if of_role:
            console.print(f"\n{title}")
            console.print(_artifacts(of_role))
    if not found["artifacts"]:
        console.print("what it reads and writes is recorded when it ends", highlight=False)


def _artifacts(rows: Sequence[Row]) -> Table:
    table = _table("path", "rows", "bytes", "sha256", left=(0, 3))
    for row in rows:
        first, *others = row["sha256"] or ["-"]
        more = f" +{len(others)}" if others else ""
        table.add_row(Text(row["path"]), _count(row["rows"]), _count(row["bytes"]), first[:8] + more)
    table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"
    return table


def _table(*names: str, left: Sequence[int]) -> Table:
    """It must be read in a terminal of 80 columns: no frame, one space between columns. left: which are of words."""
    table = Table(header_style="bold", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for place, name in enumerate(names):
        table.add_column(name, justify="left" if place in left else "right", no_wrap=True)
    return table


def _state(state: str) -> Text:
    return Text(state, style=_TONES.get(state, "red" if state in _FAILED else ""))


def _at(moment: datetime | None) -> str:
    return f"{moment:%m-%d %H:%M}" if moment else "-"


def _took(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    size, unit = (3600, "h") if seconds >= 7200 else (60, "m") if seconds >= 120 else (1, "s")
    return f"{seconds / size:.1f} {unit}"


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def _count(number: int | None) -> str:
    return "-" if number is None else str(number)


def _reason(message: str) -> str:
    return first_line(_PREFACE.sub("", message))
