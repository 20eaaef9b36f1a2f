"""Commands that turn the flywheel, or look at what it made: run, stage, review, checkup, discard."""

from __future__ import annotations

import os
from pathlib import Path

import click
from rich.console import Console

from flywheel.commands.options import WORKSPACE, overrides
from flywheel.errors import BadInput
from flywheel.termination import sigterm_raises
from flywheel.workspace import Workspace, label


@click.command(epilog="Example: flywheel run --iterations 2 --set rollout.samples=8")
@WORKSPACE
@click.option("--iterations", "-n", type=click.IntRange(1), help="How many more; default: as params.yaml says.")
@click.option("--iteration", "-k", type=int, help="This one alone.")
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="NAME=VALUE",
    help="A parameter for new iterations (`flywheel settings`).",
)
def run(workspace: Path | None, iterations: int | None, iteration: int | None, assignments: tuple[str, ...]) -> None:
    """Turn the flywheel. Makes iterations; typed again, it goes on with a run that was stopped."""
    from flows.run import run as turn_flywheel
    from flywheel.console import RunConsole
    from flywheel.progress import listening
    from flywheel.report import summary

    ws = Workspace.find(workspace)
    console = Console()
    with sigterm_raises(), RunConsole(console) as screen, listening(screen):
        outcome = turn_flywheel(ws, overrides(assignments), iterations=iterations, iteration=iteration)
    for k in outcome.done_before:
        console.print(f"iteration {label(k)} is complete: nothing to do")
    if outcome.ran:
        console.print(summary.summary_table(ws))
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
@WORKSPACE
def stage(name: str, iteration: int, workspace: Path | None) -> None:
    """Run one stage of one iteration, without Prefect. It is recorded in DVC."""
    from flywheel.console import RunConsole
    from flywheel.progress import listening
    from flywheel.stages.base import Context, clear_staging, run_stage
    from flywheel.store import frozen, pipeline, versioning
    from flywheel.upkeep import route_review

    ws = Workspace.find(workspace)
    chosen = pipeline.get(name)
    ctx = Context.open(ws, iteration, name)
    route_review.require(ws, iteration, name)
    console = Console()
    with sigterm_raises(), frozen.named(ws, iteration), RunConsole(console) as screen, listening(screen):
        ctx.report("begins")
        outcome = run_stage(chosen, ctx)
        if "DVC_STAGE" not in os.environ:  # under `dvc repro` DVC records by itself
            versioning.commit(ws, name, iteration)
        clear_staging(ctx)
        ctx.report("ended: " + ", ".join(f"{key} {value}" for key, value in outcome.summary.items()))


@click.command(epilog='Example: flywheel review --iteration 3 --promote --reviewer Ada --comment "sites are better"')
@click.option("--iteration", "-k", type=int, required=True, help="Its number.")
@click.option(
    "--promote/--keep", "promote", default=None, help="The decision: take the new model, or keep the old one."
)
@click.option("--reviewer", required=True, help="Your name, which is kept with the decision.")
@click.option("--comment", default="", help="Why; kept with the decision.")
@WORKSPACE
def review(iteration: int, promote: bool | None, reviewer: str, comment: str, workspace: Path | None) -> None:
    """Approve or refuse a promotion, where promotion.rule is `review`."""
    from flywheel import run_lock
    from flywheel.evaluation import review as reviews
    from flywheel.store import earlier_layout

    ws = Workspace.find(workspace)
    earlier_layout.leave(ws)
    if promote is None:
        raise BadInput("no decision", where="flywheel review", fix="add --promote or --keep")
    decided = reviews.decide(ws, iteration, promote=promote, reviewer=reviewer, comment=comment)
    if decided.earlier:
        click.echo(f"this replaces the decision: {decided.all[-2].words}")
    then = "the run that waits for it goes on" if run_lock.held(ws) else "type `flywheel run` to go on"
    click.echo(f"kept in {ws.relative(reviews.path(ws, iteration))}; {then}")


@click.command(epilog="Example: flywheel checkup --tasks 300      (how many by default: operations.checkup_tasks)")
@WORKSPACE
@click.option("--tasks", type=click.IntRange(1), help="How many fresh tasks, at most.")
def checkup(workspace: Path | None, tasks: int | None) -> None:
    """Let the newest model play fresh tasks, which had no part in making or choosing it. Makes no iteration."""
    from flywheel import checkup as looking
    from flywheel import run_lock, settings
    from flywheel.console import RunConsole
    from flywheel.progress import listening

    ws = Workspace.find(workspace)
    chosen = settings.load(ws.params, {"operations.checkup_tasks": tasks} if tasks else {})
    console = Console()
    with RunConsole(console) as screen, listening(screen), run_lock.hold(ws):
        found = looking.look(ws, chosen)
    click.echo(f"{found}{', as was known before' if found.before else ''}")
    click.echo('`flywheel query "from checkups"` shows each episode')


@click.command(epilog="Example: flywheel discard --iteration 3")
@click.option("--iteration", "-k", type=int, help="Default: the newest.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@WORKSPACE
def discard(iteration: int | None, yes: bool, workspace: Path | None) -> None:
    """Give up an iteration that is not complete. `flywheel run` begins it anew, with params.yaml."""
    from flywheel import discard as giving_up
    from flywheel import run_lock

    ws = Workspace.find(workspace)
    with run_lock.hold(ws):
        chosen = giving_up.plan(ws, iteration)
        click.echo("\n".join(giving_up.lines(ws, chosen)))
        if yes or click.confirm(f"Remove these of iteration {label(chosen.iteration)}?"):
            giving_up.carry_out(ws, chosen)
            click.echo(f"iteration {label(chosen.iteration)} is given up; `flywheel run` begins it anew")
