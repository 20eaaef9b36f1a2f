"""Run iterations and stages, show their state, query data, serve pages: `run`, `stage`, `status`, `query`, `ui`."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape

from flywheel.cli.command_names import name_command, name_commands
from flywheel.cli.options import JSON_OPTION, WORKSPACE_OPTION, parse_overrides, set_option
from flywheel.config.workspace import Workspace, iteration_label
from flywheel.utils.processes import raise_on_sigterm


@click.command(epilog="Example: flywheel run --iterations 2 --set rollout.n_rollouts=8")
@WORKSPACE_OPTION
@click.option(
    "--iterations", "-n", type=click.IntRange(1), help="Number of new iterations; default: `iterations` of params.yaml."
)
@click.option("--iteration", "-k", type=int, help="Run this one alone.")
@click.option("--until", metavar="STAGE", help="End after this stage of one iteration; the next run goes on with it.")
@set_option("Set a parameter for the new iterations (`flywheel settings` lists them).")
def run_command(
    ws: Workspace, iterations: int | None, iteration: int | None, until: str | None, assignments: tuple[str, ...]
) -> None:
    """Run iterations; resume one that was stopped.

    Finished shards are kept: type the same command again after Ctrl-C or a crash.
    """
    from flows.iteration_loop import run_iterations
    from flywheel.cli import console as cli_console
    from flywheel.cli.console import RunConsole
    from flywheel.utils.progress import replace_listener

    console = Console()
    with raise_on_sigterm(), RunConsole(console) as screen, replace_listener(screen):
        overrides = parse_overrides(assignments)
        outcome = run_iterations(ws, overrides, iterations=iterations, iteration=iteration, until=until)
    for k in outcome.done_before:
        console.print(f"iteration {iteration_label(k)} is complete: nothing to do")
    if outcome.ran:
        console.print(*cli_console.build_summary_tables(ws, console.width), sep="\n")
        console.print(_next_steps(ws, outcome.ran[-1], until), highlight=False, soft_wrap=True)


def _next_steps(ws: Workspace, iteration: int, until: str | None) -> str:
    where, typed = "" if ws.root == Path.cwd() else f" -w {ws.root}", escape(name_command("flywheel"))
    if until is not None:
        waits = f"Iteration {iteration_label(iteration)} waits after {until}"
        return f"{waits}: [bold]{typed} run{where}[/bold] goes on with it"
    return (
        f'Next: [bold]{typed} query{where} "select * from iterations"[/bold]  (the figures, in SQL)\n'
        f"      [bold]{typed} ui{where}[/bold]   (Prefect's pages and the report)\n"
        f"      [bold]{typed} run{where}[/bold]  (go on with the next iteration)\n"
        f"Report: {ws.report_page}"
    )


def _check_stage_name(context: click.Context, parameter: click.Parameter, name: str) -> str:
    if not context.resilient_parsing:
        from flywheel.pipeline import dag

        dag.find_stage(name)
    return name


@click.command(epilog="Example: flywheel stage rollout --iteration 1    (this is what `dvc repro` types)")
@click.argument("name", is_eager=True, callback=_check_stage_name)  # before a missing --iteration is reported
@click.option("--iteration", "-k", type=int, required=True, help="Number of the iteration.")
@WORKSPACE_OPTION
def stage_command(name: str, iteration: int, ws: Workspace) -> None:
    """Run one stage of one iteration, without Prefect. DVC records what it read and wrote."""
    from flywheel.cli.console import RunConsole
    from flywheel.maintenance import route_review
    from flywheel.pipeline import dag
    from flywheel.pipeline.stage import StageContext, clear_staging, run_stage
    from flywheel.store import partitions
    from flywheel.store.versioning import stage_records
    from flywheel.utils.progress import replace_listener

    partitions.hide_pandas_from_pyarrow()
    chosen = dag.find_stage(name)
    ctx = StageContext.open(ws, iteration, name)
    stage_records.stage_address(ws, name, iteration)  # raises for a stage that the iteration does not have
    route_review.require_route_review(ws, iteration, name)
    console = Console()
    with (
        raise_on_sigterm(),
        stage_records.name_params_file_in_errors(ws, iteration),
        RunConsole(console) as screen,
        replace_listener(screen),
    ):
        ctx.report("begins")
        outcome = run_stage(chosen, ctx)
        if "DVC_STAGE" not in os.environ:  # under `dvc repro` DVC itself records the stage
            stage_records.record_stage(ws, name, iteration)
        clear_staging(ctx)
        ctx.report("ended: " + ", ".join(f"{key} {value}" for key, value in outcome.summary.items()))


@click.command(epilog="Example: flywheel status --json")
@WORKSPACE_OPTION
@click.option("--all", "everything", is_flag=True, help="Check the files of all iterations, not of the newest alone.")
@click.option("--watch", is_flag=True, help="Show what is at work, anew each two seconds, until nothing is.")
@JSON_OPTION
def status_command(ws: Workspace, everything: bool, watch: bool, as_json: bool) -> None:
    """Show the iterations, and what is at work, unfinished or damaged. Each fault comes with its repair."""
    from flywheel.cli import console as cli_console
    from flywheel.maintenance import status

    if watch:
        _watch_work(ws, as_json)
        return
    found = status.read_workspace_status(ws, everything=everything)
    if as_json:
        told = {
            "workspace": str(ws.root),
            "at_work": found.work and found.work.facts(),
            "looked_at": found.looked_at,
            "changed": found.changed,
            "iterations": found.rows,
            "fault": found.fault,
            "damage": [{**vars(one), "mend": one.repair_command} for one in found.damage],
        }
        click.echo(json.dumps(told, default=str, allow_nan=False))
        return
    console = Console()
    if not found.begun and not found.holder:
        console.print(f"no iteration yet: type [bold]{escape(name_command('flywheel'))} run[/bold]")
        return
    if found.fault:
        console.print(f"[red]the figures cannot be shown:[/red] {escape(found.fault)}", highlight=False, soft_wrap=True)
    else:
        console.print(*cli_console.build_summary_tables(ws, console.width, everything=everything), sep="\n")
    for style, line in status.status_lines(found):
        console.print(escape(name_commands(line)), style=style, highlight=False, soft_wrap=True)


_WATCH_S = 2.0


def _watch_work(ws: Workspace, as_json: bool) -> None:
    """Print what is at work until nothing is. In a terminal new lines replace the old; else they are added."""
    from rich.live import Live
    from rich.text import Text

    from flywheel.maintenance import status
    from flywheel.utils.errors import FlywheelError

    console, work = Console(), status.read_work_status(ws)
    live = Live(console=console, auto_refresh=False) if console.is_terminal and not as_json else None
    with live or contextlib.nullcontext(), contextlib.suppress(KeyboardInterrupt):
        while work is not None:
            if as_json:
                click.echo(json.dumps(work.facts(), allow_nan=False))
            elif live:
                live.update(Text("\n".join(map(name_commands, work.lines()))), refresh=True)
            else:
                click.echo("\n".join(map(name_commands, work.lines())))
            time.sleep(_WATCH_S)
            with contextlib.suppress(FlywheelError):  # the run is replacing a table: the next look succeeds
                work = status.read_work_status(ws)
    if work is None:
        click.echo("nothing is at work", err=as_json)


@click.command(epilog='Example: flywheel query "select domain, count(*) from trajectories group by all" --format csv')
@click.argument("sql", required=False)
@WORKSPACE_OPTION
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json", "parquet"]),
    default="table",
    help="Format of the answer.",
)
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Write to this file; needed for parquet.")
@click.option("--saved", is_flag=False, flag_value="", help="Ask the saved query of this NAME; without one, list them.")
@click.option("--save", metavar="NAME", help="Save the query once it is answered; the explorer has it too.")
@click.option("--description", default="", show_default=False, help="What it asks, in a line; saved with it.")
@click.option("--author", default="", show_default=False, help="Your name; saved with it.")
@click.option("--replace", is_flag=True, help="Save it in place of the query of that name.")
@click.option("--delete", metavar="NAME", help="Delete the saved query of this name.")
def query_command(
    sql: str | None,
    ws: Workspace,
    form: str,
    output: Path | None,
    saved: str | None,
    save: str | None,
    description: str,
    author: str,
    replace: bool,
    delete: str | None,
) -> None:
    """Query the catalog in DuckDB's SQL. `flywheel data catalog` lists its views and macros."""
    from flywheel.store.catalog import database

    if sum(asked is not None for asked in (sql, saved, delete)) != 1:
        raise click.UsageError("Missing argument 'SQL', or --saved, or --delete: give one of them.")
    if saved is not None or delete is not None:
        from flywheel.store import saved_queries

        if delete is not None:
            saved_queries.delete_saved_query(ws, delete)
            return
        if not saved:
            table = database.table_from_mappings([vars(one) for one in saved_queries.list_saved_queries(ws)])
            click.echo(database.render_result(table, form, output))
            return
        sql = saved_queries.read_saved_query(ws, saved).sql
    if save is not None:
        import duckdb

        from flywheel.ui.explorer.sql_worker import parse_sql_query

        parse_sql_query(duckdb.connect(), sql)  # one that reads: the explorer refuses any other
    table = database.query_catalog(ws, sql)
    if save is not None:
        _save_query(ws, save, sql, description, author, replace)
    text = database.render_result(table, form, output)
    click.echo(text, nl=not text.endswith("\n"))


def _save_query(ws: Workspace, name: str, sql: str, description: str, author: str, replace: bool) -> None:
    from datetime import UTC, datetime

    from flywheel.store import saved_queries

    at = datetime.now(UTC).isoformat(timespec="seconds")
    saved_queries.save_query(ws, saved_queries.SavedQuery(name, sql, description, author, at), replace=replace)


@click.command(epilog="Example: flywheel ui --port 4200")
@WORKSPACE_OPTION
@click.option("--port", default=4200, type=click.IntRange(1, 65533))
@click.option("--compare-with", type=Path, help="Another workspace, whose iterations the explorer plots over these.")
@click.option("--allow-runs", is_flag=True, help="Let the explorer's pages begin counterfactual runs here.")
def ui_command(ws: Workspace, port: int, compare_with: Path | None, allow_runs: bool) -> None:
    """Serve Prefect's pages, the report and the explorer until Ctrl-C. They listen on 127.0.0.1 and ask for a login."""
    from flows.ops.ui import serve_ui

    other = Workspace.find(compare_with) if compare_with else None
    serve_ui(ws, port, click.echo, other, allow_runs=allow_runs)
