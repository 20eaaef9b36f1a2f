"""Commands for a workspace and the machine under it: init, clean, doctor."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flywheel.commands.options import JSON, WORKSPACE
from flywheel.errors import BadInput
from flywheel.workspace import Workspace


@click.command(epilog="Example: flywheel init my-flywheel && cd my-flywheel && flywheel run")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--profile",
    default="laptop",
    show_default=True,
    help="small: one iteration in two minutes. laptop: two in ten. evening: six in an hour. overnight: of all worlds. "
    "computer: chores in a shell.",
)
def init(folder: Path, profile: str) -> None:
    """Make a workspace of its own, in git. Each iteration is committed and tagged there."""
    from flywheel import init as workspace

    ws = workspace.create(folder, profile)
    click.echo(f"made {ws.root}; next: cd {folder} && flywheel run")
    for one in workspace.to_make(ws):
        click.echo(one)


@click.command(epilog="Example: flywheel clean --yes")
@WORKSPACE
@click.option("--yes", is_flag=True, help="Do not ask.")
def clean(workspace: Path | None, yes: bool) -> None:
    """Remove what runs have made: data, models, history, report. The base model, recordings and settings stay."""
    from flywheel import init as workspaces

    ws = Workspace.find(workspace)
    found = workspaces.made_by_runs(ws)
    if not found:
        click.echo("nothing to remove")
        return
    click.echo("\n".join(ws.relative(path) for path in found))
    if yes or click.confirm("Remove these?"):
        workspaces.remove(found)


@click.command(epilog="Example: flywheel doctor --json")
@WORKSPACE
@JSON
def doctor(workspace: Path | None, as_json: bool) -> None:
    """What is installed, what is missing, what to type."""
    from flywheel import doctor as examination

    if workspace and not workspace.is_dir():
        raise BadInput("no such folder", where=workspace, fix="name a workspace")
    findings = examination.examine(workspace or Path.cwd())
    if as_json:
        click.echo(json.dumps([vars(finding) for finding in findings]))
    else:
        table = Table("", "what", "found", "to mend it", box=None)
        mark = {"ok": "[green]ok[/green]", "missing": "[red]missing[/red]", "optional": "[dim]optional[/dim]"}
        for finding in findings:
            table.add_row(mark[finding.state], finding.name, escape(finding.detail), escape(finding.fix))
        for column in table.columns:
            column.overflow = "fold"  # a path that is cut cannot be typed
        Console().print(table)
    sys.exit(any(finding.state == "missing" for finding in findings))
