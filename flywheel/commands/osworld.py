"""`flywheel osworld`: which of OSWorld's tasks can be played here."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from flywheel.commands.options import JSON

_FOLDER = click.Path(exists=True, path_type=Path)


@click.command(epilog="Example: flywheel osworld OSWorld/evaluation_examples/examples --files cache")
@click.argument("tasks", nargs=-1, required=True, type=_FOLDER)
@click.option("--files", type=_FOLDER, help="A folder with copies of what the tasks download.")
@click.option(
    "--kind", type=click.Choice(["computer", "terminal"]), default="computer", show_default=True,
    help="What they would be played in.",
)  # fmt: skip
@JSON
def osworld(tasks: tuple[Path, ...], files: Path | None, kind: str, as_json: bool) -> None:
    """Which of OSWorld's TASKS, files and folders of them, can be played on this machine, and why the others cannot."""
    from flywheel.computer.osworld import world

    paths = [one for path in tasks for one in world.found(path)]
    played, left_out, reasons = world.read(paths, files, kind == "computer", world.OsworldFiles(tasks=["."]))
    if as_json:
        click.echo(json.dumps({"played": sorted(played), "left_out": left_out, "reasons": reasons}))
        return
    table = Table(Column("task", no_wrap=True), "needs", box=None)
    for name in sorted({**played, **left_out}):
        table.add_row(name, escape(left_out.get(name, "")) or "[green]is played[/green]")
    by_reason = Table("tasks", "need", box=None)
    for reason, count in reasons.items():
        by_reason.add_row(str(count), escape(reason))
    console = Console()
    console.print(table, "", by_reason)
    console.print(f"{len(played)} of {len(paths)} tasks are played")
