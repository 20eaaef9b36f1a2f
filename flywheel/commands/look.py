"""Commands that show what is there: status, query, report, view, ui."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape

from flywheel.commands.options import JSON, WORKSPACE
from flywheel.workspace import Workspace


@click.command(epilog="Example: flywheel status --json")
@WORKSPACE
@click.option("--all", "everything", is_flag=True, help="Look at the files of all iterations, not of the newest alone.")
@JSON
def status(workspace: Path | None, everything: bool, as_json: bool) -> None:
    """Where the flywheel stands. Iterations, what is unfinished, what changed since it was recorded."""
    from flywheel import standing
    from flywheel.report import summary

    ws = Workspace.find(workspace)
    found = standing.look(ws, everything=everything)
    if as_json:
        told = {
            "workspace": str(ws.root),
            "looked_at": found.looked_at,
            "changed": found.changed,
            "iterations": found.rows,
            "fault": found.fault,
            "damage": [{**vars(one), "mend": one.mend} for one in found.damage],
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
        console.print(summary.summary_table(ws, everything=everything))
    for style, line in standing.lines(found):
        console.print(escape(line), style=style, highlight=False, soft_wrap=True)


@click.command(epilog='Example: flywheel query "select domain, count(*) from trajectories group by all" --format csv')
@click.argument("sql")
@WORKSPACE
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json", "parquet"]),
    default="table",
    show_default=True,
    help="Of the answer.",
)
@click.option("--output", "-o", type=click.Path(path_type=Path), help="A file; needed for parquet.")
def query(sql: str, workspace: Path | None, form: str, output: Path | None) -> None:
    """Ask the catalog, in DuckDB's SQL."""
    from flywheel.store import catalog

    text = catalog.render(catalog.query(Workspace.find(workspace), sql), form, output)
    click.echo(text, nl=not text.endswith("\n"))


@click.command(epilog="Example: flywheel catalog catalog.duckdb && duckdb -readonly catalog.duckdb 'from iterations'")
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@WORKSPACE
def catalog(file: Path | None, workspace: Path | None) -> None:
    """Tell what views and macros there are, or write them to a DuckDB FILE. It holds no rows, but reads the workspace's
    Parquet files: open it with DuckDB, from any language, without flywheel. Write it anew after an iteration."""
    from flywheel.store import catalog, catalog_reference

    if file is None:
        click.echo(catalog_reference.text(), nl=False)
        return
    catalog.write(Workspace.find(workspace), file)
    click.echo(file)


@click.command(epilog="Example: flywheel report --picture report.png")
@WORKSPACE
@click.option("--picture", type=click.Path(path_type=Path), help="Also a PNG of the top of the page.")
@click.option("--all", "everything", is_flag=True, help="Show all iterations, not the newest ten alone.")
def report(workspace: Path | None, picture: Path | None, everything: bool) -> None:
    """Write the report: one HTML page that needs nothing beside it."""
    from flywheel.report import page

    ws = Workspace.find(workspace)
    click.echo(page.build(ws, everything=everything))
    if picture:
        from flywheel.report.picture import report_picture

        click.echo(report_picture(ws, picture))


@click.command(epilog="Example: flywheel view t0123456789abcdef012")
@click.argument("trajectory")
@WORKSPACE
def view(trajectory: str, workspace: Path | None) -> None:
    """Write a page that replays one trajectory. Screens, actions, thoughts, score, route, lineage."""
    from flywheel.report import trajectory as pages

    click.echo(pages.view(Workspace.find(workspace), trajectory))


@click.command(epilog="Example: flywheel ui --port 4200")
@WORKSPACE
@click.option("--port", default=4200, show_default=True, type=click.IntRange(1, 65533))
@click.option("--beside", type=Path, help="Another workspace, whose iterations the explorer lays over these.")
def ui(workspace: Path | None, port: int, beside: Path | None) -> None:
    """Serve Prefect's pages, the report and the explorer on 127.0.0.1 until Ctrl-C."""
    from flows.ui import serve

    serve(Workspace.find(workspace), port, click.echo, Workspace.find(beside) if beside else None)
