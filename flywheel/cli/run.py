"""Run iterations, and single stages of them: `run`, `stage`."""

from __future__ import annotations

import os
from pathlib import Path

import click
from rich.console import Console

from flywheel.cli.options import WORKSPACE_OPTION, parse_overrides
from flywheel.config.workspace import Workspace, iteration_label
from flywheel.utils.processes import raise_on_sigterm


@click.command(epilog="Example: flywheel run --iterations 2 --set rollout.n_rollouts=8")
@WORKSPACE_OPTION
@click.option(
    "--iterations", "-n", type=click.IntRange(1), help="Number of new iterations; default: `iterations` of params.yaml."
)
@click.option("--iteration", "-k", type=int, help="Run this one alone.")
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a parameter for the new iterations (`flywheel settings` lists them).",
)
def run_command(ws: Workspace, iterations: int | None, iteration: int | None, assignments: tuple[str, ...]) -> None:
    """Run iterations; resume one that was stopped.

    Finished shards are kept: type the same command again after Ctrl-C or a crash.
    """
    from flows.iteration_loop import run_iterations
    from flywheel.cli import console as cli_console
    from flywheel.cli.console import RunConsole
    from flywheel.utils.progress import replace_listener

    console = Console()
    with raise_on_sigterm(), RunConsole(console) as screen, replace_listener(screen):
        outcome = run_iterations(ws, parse_overrides(assignments), iterations=iterations, iteration=iteration)
    for k in outcome.done_before:
        console.print(f"iteration {iteration_label(k)} is complete: nothing to do")
    if outcome.ran:
        console.print(cli_console.build_summary_table(ws))
        console.print(_next_steps(ws, ws.report_page), highlight=False, soft_wrap=True)


def _next_steps(ws: Workspace, report: Path) -> str:
    where = "" if ws.root == Path.cwd() else f" -w {ws.root}"
    return (
        f'Next: [bold]flywheel query{where} "select * from iterations"[/bold]  (the figures, in SQL)\n'
        f"      [bold]flywheel ui{where}[/bold]   (Prefect's pages and the report)\n"
        f"      [bold]flywheel run{where}[/bold]  (go on with the next iteration)\n"
        f"Report: {report}"
    )


@click.command(epilog="Example: flywheel stage rollout --iteration 1    (this is what `dvc repro` types)")
@click.argument("name")
@click.option("--iteration", "-k", type=int, required=True, help="Number of the iteration.")
@WORKSPACE_OPTION
def stage_command(name: str, iteration: int, ws: Workspace) -> None:
    """Run one stage of one iteration, without Prefect. DVC records what it read and wrote."""
    from flywheel.cli.console import RunConsole
    from flywheel.maintenance import route_review
    from flywheel.pipeline import dag
    from flywheel.pipeline.stage import StageContext, clear_staging, run_stage
    from flywheel.store import partitions
    from flywheel.store.versioning import iteration_params, stage_records
    from flywheel.utils.progress import replace_listener

    partitions.leave_pandas_out()
    chosen = dag.find_stage(name)
    ctx = StageContext.open(ws, iteration, name)
    stage_records.stage_address(ws, name, iteration)  # refuses one that the iteration was begun without
    route_review.require_route_review(ws, iteration, name)
    console = Console()
    with (
        raise_on_sigterm(),
        iteration_params.name_params_file_in_errors(ws, iteration),
        RunConsole(console) as screen,
        replace_listener(screen),
    ):
        ctx.report("begins")
        outcome = run_stage(chosen, ctx)
        if "DVC_STAGE" not in os.environ:  # under `dvc repro` DVC records by itself
            stage_records.record_stage(ws, name, iteration)
        clear_staging(ctx)
        ctx.report("ended: " + ", ".join(f"{key} {value}" for key, value in outcome.summary.items()))
