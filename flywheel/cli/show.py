"""Show what there is: `status`, `query`, `catalog`, `report`, `view`, `ui`."""

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
@click.option("--all", "everything", is_flag=True, help="Look at the files of all iterations, not of the newest alone.")
@JSON_OPTION
def status_command(workspace: Path | None, everything: bool, as_json: bool) -> None:
    """Where the flywheel stands. Iterations, what is unfinished, what changed since it was recorded."""
    from flywheel.cli import console as cli_console
    from flywheel.maintenance import status

    ws = Workspace.find(workspace)
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
    show_default=True,
    help="Of the answer.",
)
@click.option("--output", "-o", type=click.Path(path_type=Path), help="A file; needed for parquet.")
def query_command(sql: str, workspace: Path | None, form: str, output: Path | None) -> None:
    """Ask the catalog, in DuckDB's SQL."""
    from flywheel.store.catalog import database

    text = database.render_result(database.query_catalog(Workspace.find(workspace), sql), form, output)
    click.echo(text, nl=not text.endswith("\n"))


@click.command(epilog="Example: flywheel catalog catalog.duckdb && duckdb -readonly catalog.duckdb 'from iterations'")
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@WORKSPACE_OPTION
def catalog_command(file: Path | None, workspace: Path | None) -> None:
    """Tell what views and macros there are, or write them to a DuckDB FILE. It holds no rows, but reads the workspace's
    Parquet files: open it with DuckDB, from any language, without flywheel. Write it anew after an iteration."""
    from flywheel.store.catalog import database, reference

    if file is None:
        click.echo(reference.render_catalog_reference(), nl=False)
        return
    database.write_catalog_file(Workspace.find(workspace), file)
    click.echo(file)


@click.command(epilog="Example: flywheel report --picture report.png")
@WORKSPACE_OPTION
@click.option("--picture", type=click.Path(path_type=Path), help="Also a PNG of the top of the page.")
@click.option("--all", "everything", is_flag=True, help="Show all iterations, not the newest ten alone.")
def report_command(workspace: Path | None, picture: Path | None, everything: bool) -> None:
    """Write the report: one HTML page that needs nothing beside it."""
    from flywheel.ui.report import pages

    ws = Workspace.find(workspace)
    click.echo(pages.write_report(ws, everything=everything))
    if picture:
        from flywheel.ui.report.pages import screenshot_report

        click.echo(screenshot_report(ws, picture))


@click.command(epilog="Example: flywheel view t0123456789abcdef012")
@click.argument("trajectory")
@WORKSPACE_OPTION
def view_command(trajectory: str, workspace: Path | None) -> None:
    """Write a page that replays one trajectory. Screens, actions, thoughts, score, route, lineage."""
    from flywheel.ui.report import pages

    click.echo(pages.write_trajectory_page(Workspace.find(workspace), trajectory))


@click.command(epilog="Example: flywheel ui --port 4200")
@WORKSPACE_OPTION
@click.option("--port", default=4200, show_default=True, type=click.IntRange(1, 65533))
@click.option("--beside", type=Path, help="Another workspace, whose iterations the explorer lays over these.")
def ui_command(workspace: Path | None, port: int, beside: Path | None) -> None:
    """Serve Prefect's pages, the report and the explorer on 127.0.0.1 until Ctrl-C."""
    from flows.ops.ui import serve_ui

    serve_ui(Workspace.find(workspace), port, click.echo, Workspace.find(beside) if beside else None)
