"""Run the flywheel: `run`, `stage`, `up`, `down`."""

from __future__ import annotations

import os
from pathlib import Path

import click
from rich.console import Console

from flywheel.cli.options import WORKSPACE_OPTION, parse_overrides
from flywheel.config.workspace import Workspace, iteration_label
from flywheel.utils.errors import BadInput
from flywheel.utils.processes import raise_on_sigterm

# Commands that turn the flywheel, or look at what it made: run, stage, review, checkup, discard.


@click.command(epilog="Example: flywheel run --iterations 2 --set rollout.n_rollouts=8")
@WORKSPACE_OPTION
@click.option("--iterations", "-n", type=click.IntRange(1), help="How many more; default: as params.yaml says.")
@click.option("--iteration", "-k", type=int, help="This one alone.")
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="NAME=VALUE",
    help="A parameter for new iterations (`flywheel settings`).",
)
def run_command(
    workspace: Path | None, iterations: int | None, iteration: int | None, assignments: tuple[str, ...]
) -> None:
    """Turn the flywheel. Makes iterations; typed again, it goes on with a run that was stopped."""
    from flows.iteration_loop import run_iterations as turn_flywheel
    from flywheel.cli import console as cli_console
    from flywheel.cli.console import RunConsole
    from flywheel.utils.progress import replace_listener

    ws = Workspace.find(workspace)
    console = Console()
    with raise_on_sigterm(), RunConsole(console) as screen, replace_listener(screen):
        outcome = turn_flywheel(ws, parse_overrides(assignments), iterations=iterations, iteration=iteration)
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
@click.option("--iteration", "-k", type=int, required=True, help="Its number.")
@WORKSPACE_OPTION
def stage_command(name: str, iteration: int, workspace: Path | None) -> None:
    """Run one stage of one iteration, without Prefect. It is recorded in DVC."""
    from flywheel.cli.console import RunConsole
    from flywheel.maintenance import route_review
    from flywheel.pipeline import dag
    from flywheel.pipeline.stage import StageContext, clear_staging, run_stage
    from flywheel.store.versioning import iteration_params, stage_records
    from flywheel.utils.progress import replace_listener

    ws = Workspace.find(workspace)
    chosen = dag.find_stage(name)
    ctx = StageContext.open(ws, iteration, name)
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


@click.command(epilog='Example: flywheel review --iteration 3 --promote --reviewer Ada --comment "sites are better"')
@click.option("--iteration", "-k", type=int, required=True, help="Its number.")
@click.option(
    "--promote/--keep", "promote", default=None, help="The decision: take the new model, or keep the old one."
)
@click.option("--reviewer", required=True, help="Your name, which is kept with the decision.")
@click.option("--comment", default="", help="Why; kept with the decision.")
@WORKSPACE_OPTION
def review_command(iteration: int, promote: bool | None, reviewer: str, comment: str, workspace: Path | None) -> None:
    """Approve or refuse a promotion, where promotion.rule is `review`."""
    from flywheel.config import run_lock
    from flywheel.evaluation import promotion_review as reviews

    ws = Workspace.find(workspace)
    if promote is None:
        raise BadInput("no decision", where="flywheel review", fix="add --promote or --keep")
    decided = reviews.decide_promotion(ws, iteration, promote=promote, reviewer=reviewer, comment=comment)
    if decided.earlier:
        click.echo(f"this replaces the decision: {decided.history[-2].words}")
    then = "the run that waits for it goes on" if run_lock.is_workspace_busy(ws) else "type `flywheel run` to go on"
    click.echo(f"kept in {ws.relative(reviews.review_path(ws, iteration))}; {then}")


@click.command(epilog="Example: flywheel checkup --tasks 300      (how many by default: operations.checkup_tasks)")
@WORKSPACE_OPTION
@click.option("--tasks", type=click.IntRange(1), help="How many fresh tasks, at most.")
def checkup_command(workspace: Path | None, tasks: int | None) -> None:
    """Let the newest model play fresh tasks, which had no part in making or choosing it. Makes no iteration."""
    from flywheel import config
    from flywheel.cli.console import RunConsole
    from flywheel.config import run_lock
    from flywheel.maintenance import checkup as looking
    from flywheel.utils.progress import replace_listener

    ws = Workspace.find(workspace)
    chosen = config.load_settings(ws.params, {"operations.checkup_tasks": tasks} if tasks else {})
    console = Console()
    with RunConsole(console) as screen, replace_listener(screen), run_lock.hold_workspace(ws):
        found = looking.run_checkup(ws, chosen)
    click.echo(f"{found}{', as was known before' if found.before else ''}")
    click.echo('`flywheel query "from checkups"` shows each episode')


@click.command(epilog="Example: flywheel discard --iteration 3")
@click.option("--iteration", "-k", type=int, help="Default: the newest.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@WORKSPACE_OPTION
def discard_command(iteration: int | None, yes: bool, workspace: Path | None) -> None:
    """Give up an iteration that is not complete. `flywheel run` begins it anew, with params.yaml."""
    from flywheel.config import run_lock
    from flywheel.maintenance import discard as giving_up

    ws = Workspace.find(workspace)
    with run_lock.hold_workspace(ws):
        chosen = giving_up.plan_discard(ws, iteration)
        click.echo("\n".join(giving_up.discard_lines(ws, chosen)))
        if yes or click.confirm(f"Remove these of iteration {iteration_label(chosen.iteration)}?"):
            giving_up.discard_iteration(ws, chosen)
            click.echo(f"iteration {iteration_label(chosen.iteration)} is given up; `flywheel run` begins it anew")


# Commands for a flywheel that nobody watches: up, down.


@click.command(epilog="Example: flywheel up      (schedules and limits: `flywheel settings operations`)")
@WORKSPACE_OPTION
@click.option("--port", default=4200, show_default=True, type=click.IntRange(1, 65533))
@click.option("--foreground", is_flag=True, help="Stay in this terminal, as a service manager wants it.")
def up_command(workspace: Path | None, port: int, foreground: bool) -> None:
    """Run the flywheel without a person: on schedules, or when new data are there. Server, worker and deployments."""
    from flows.ops import supervisor
    from flywheel import config
    from flywheel.utils import credentials
    from flywheel.utils.progress import replace_listener

    ws = Workspace.find(workspace)
    config.load_settings(ws.params)
    if foreground:
        with replace_listener(lambda stage, line: click.echo(f"{stage}: {line}")):
            supervisor.supervise(ws, port)
        return
    found = supervisor.start_supervisor(ws, port)
    click.echo(f"Prefect:  {found['prefect']}")
    click.echo(f"Report:   {found['report']}")
    click.echo(f"Explorer: {found['explorer']}")
    click.echo(
        f"Log in:   `cat {credentials.credentials_path(ws.state)}` prints USER:PASSWORD; "
        "Prefect's page and the explorer's want the"
    )
    click.echo("          whole line")
    click.echo(f"Log:      {ws.state / 'up.log'}")
    click.echo("`flywheel down` ends it; `flywheel settings operations` says what it does and when.")


@click.command(epilog="Example: flywheel down")
@WORKSPACE_OPTION
def down_command(workspace: Path | None) -> None:
    """End what `flywheel up` started, and the run at work: what it had finished is kept."""
    from flows.ops import supervisor

    ws = Workspace.find(workspace)
    if not supervisor.stop_supervisor(ws):
        raise BadInput("nothing is up here", where=ws.root, fix="`flywheel up` starts it")
    click.echo("it is down; `flywheel up` goes on where it was")
