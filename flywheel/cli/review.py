"""Record what people decide: labels of routes, and promotions."""

from __future__ import annotations

from pathlib import Path

import click

from flywheel.cli.options import WORKSPACE_OPTION
from flywheel.config.workspace import Workspace
from flywheel.config.workspace import iteration_label as number
from flywheel.utils.errors import BadInput

_LABEL_TYPE = click.Choice(["solved", "not solved", "cannot tell"])


@click.command(
    epilog='Example: flywheel label 003-k12-s0 "not solved" --reviewer Ada    (without arguments: what is asked)'
)
@click.argument("trajectory", required=False)
@click.argument("said", metavar="[LABEL]", type=_LABEL_TYPE, required=False)
@click.option(
    "--rest", type=_LABEL_TYPE, help="Of all that have no label yet; with `cannot tell` they stay where they are."
)
@click.option("--reviewer", default="", help="Your name, which is kept with the label.")
@click.option("--comment", default="", help="Why; kept with the label.")
@WORKSPACE_OPTION
def label_command(
    trajectory: str | None, said: str | None, rest: str | None, reviewer: str, comment: str, workspace: Path | None
) -> None:
    """Say of trajectories whether they solved their task, before the iteration trains (`routing.review`).

    LABEL is solved, "not solved" or "cannot tell". Without arguments it lists what is asked.
    """
    from flywheel.maintenance import route_review
    from flywheel.pipeline.iterations import newest_iteration

    ws = Workspace.find(workspace)
    if not trajectory and not rest:
        _list_asked(ws)
        return
    if (trajectory and rest) or bool(trajectory) != bool(said):
        raise BadInput("a trajectory and its label, or --rest", where="flywheel label", fix="`flywheel label --help`")
    if not reviewer:
        raise BadInput("the reviewer has no name", where="--reviewer", fix="give yours")
    iteration = newest_iteration(ws)
    if rest:
        count = route_review.label_remaining(ws, iteration, rest, reviewer=reviewer, comment=comment)
        click.echo(f"{count} trajectories: {rest}")
    else:
        route_review.label_trajectory(ws, iteration, trajectory, said, reviewer=reviewer, comment=comment)
        click.echo(f"{trajectory}: {said}")
    _apply_when_complete(ws, iteration)


def _list_asked(ws: Workspace) -> None:
    from flywheel.maintenance import route_review
    from flywheel.pipeline.iterations import newest_iteration

    iteration = newest_iteration(ws)
    found = route_review.open_questions(ws, iteration) if iteration else []
    if not found:
        click.echo("nobody is asked to look at routes (`flywheel settings routing.review`)")
        return
    lacking = sum(one.label is None for one in found)
    click.echo(f"iteration {number(iteration)}: {len(found)} trajectories, {lacking} without a label")
    for one in found:
        said = f"{one.label}, says {one.reviewer}" if one.label else "no label yet"
        click.echo(f"{one.trajectory_id}  {said}\n  {one.line}\n  flywheel view {one.trajectory_id}")
    click.echo(f'then: flywheel label {found[0].trajectory_id} solved --reviewer NAME (or "not solved", "cannot tell")')


def _apply_when_complete(ws: Workspace, iteration: int) -> None:
    """Where nothing is left, the run that waits goes on; where none does, what was said is carried out here."""
    from flywheel.config import run_lock
    from flywheel.maintenance import route_review

    lacking = sum(one.label is None for one in route_review.open_questions(ws, iteration))
    if lacking:
        click.echo(f"{lacking} to go")
    elif run_lock.is_workspace_busy(ws):
        click.echo("all have a label: the run that waits goes on")
    else:
        with run_lock.hold_workspace(ws):
            moved = route_review.end_route_review(ws, iteration, route_review.ALL_LABELLED)
        count = moved.count if moved else 0
        click.echo(f"all have a label: {count} go to the other store; type `flywheel run` to go on")
