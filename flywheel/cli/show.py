"""Show what there is: `status`, `query`, `ui`."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape

from flywheel.cli.options import JSON_OPTION, WORKSPACE_OPTION
from flywheel.config.workspace import Workspace


@click.command(epilog="Example: flywheel status --json")
@WORKSPACE_OPTION
@click.option("--all", "everything", is_flag=True, help="Check the files of all iterations, not of the newest alone.")
@JSON_OPTION
def status_command(ws: Workspace, everything: bool, as_json: bool) -> None:
    """Show the iterations, and what is unfinished or damaged. Each fault comes with the command that repairs it."""
    from flywheel.cli import console as cli_console
    from flywheel.maintenance import status

    found = status.read_workspace_status(ws, everything=everything)
    if as_json:
        told = {
            "workspace": str(ws.root),
            "looked_at": found.looked_at,
            "changed": found.changed,
            "iterations": found.rows,
            "fault": found.fault,
            "damage": [{**vars(one), "mend": one.repair_command} for one in found.damage],
        }
        click.echo(json.dumps(told, default=str, allow_nan=False))
        return
    console = Console()
    if not found.begun:
        console.print("no iteration yet: type [bold]flywheel run[/bold]")
        return
    if found.fault:
        console.print(f"[red]the figures cannot be shown:[/red] {escape(found.fault)}", highlight=False, soft_wrap=True)
    else:
        console.print(cli_console.build_summary_table(ws, everything=everything))
    for style, line in status.status_lines(found):
        console.print(escape(line), style=style, highlight=False, soft_wrap=True)


@click.command(epilog='Example: flywheel query "select domain, count(*) from trajectories group by all" --format csv')
@click.argument("sql")
@WORKSPACE_OPTION
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json", "parquet"]),
    default="table",
    help="Format of the answer.",
)
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Write to this file; needed for parquet.")
def query_command(sql: str, ws: Workspace, form: str, output: Path | None) -> None:
    """Query the catalog in DuckDB's SQL. `flywheel data catalog` lists its views and macros."""
    from flywheel.store.catalog import database

    text = database.render_result(database.query_catalog(ws, sql), form, output)
    click.echo(text, nl=not text.endswith("\n"))


@click.command(epilog="Example: flywheel ui --port 4200")
@WORKSPACE_OPTION
@click.option("--port", default=4200, type=click.IntRange(1, 65533))
@click.option("--compare-with", type=Path, help="Another workspace, whose iterations the explorer plots over these.")
def ui_command(ws: Workspace, port: int, compare_with: Path | None) -> None:
    """Serve Prefect's pages, the report and the explorer until Ctrl-C. They listen on 127.0.0.1 and ask for a login."""
    from flows.ops.ui import serve_ui

    serve_ui(ws, port, click.echo, Workspace.find(compare_with) if compare_with else None)
