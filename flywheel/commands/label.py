"""The command `label`: what people say of routes before an iteration trains on them."""

from __future__ import annotations

from pathlib import Path

import click

from flywheel.commands.options import WORKSPACE
from flywheel.errors import BadInput
from flywheel.workspace import Workspace
from flywheel.workspace import label as number

_LABEL = click.Choice(["solved", "not solved", "cannot tell"])


@click.command(
    epilog='Example: flywheel label 003-k12-s0 "not solved" --reviewer Ada    (without arguments: what is asked)'
)
@click.argument("trajectory", required=False)
@click.argument("said", metavar="[LABEL]", type=_LABEL, required=False)
@click.option("--rest", type=_LABEL, help="Of all that have no label yet; with `cannot tell` they stay where they are.")
@click.option("--reviewer", default="", help="Your name, which is kept with the label.")
@click.option("--comment", default="", help="Why; kept with the label.")
@WORKSPACE
def label(
    trajectory: str | None, said: str | None, rest: str | None, reviewer: str, comment: str, workspace: Path | None
) -> None:
    """Say of trajectories whether they solved their task, before the iteration trains (`routing.review`).

    LABEL is solved, "not solved" or "cannot tell". Without arguments it lists what is asked.
    """
    from flywheel.store import earlier_layout
    from flywheel.upkeep import route_review

    ws = Workspace.find(workspace)
    earlier_layout.leave(ws)
    if not trajectory and not rest:
        _list(ws)
        return
    if (trajectory and rest) or bool(trajectory) != bool(said):
        raise BadInput("a trajectory and its label, or --rest", where="flywheel label", fix="`flywheel label --help`")
    if not reviewer:
        raise BadInput("the reviewer has no name", where="--reviewer", fix="give yours")
    iteration = route_review.newest(ws)
    if rest:
        count = route_review.label_rest(ws, iteration, rest, reviewer=reviewer, comment=comment)
        click.echo(f"{count} trajectories: {rest}")
    else:
        route_review.label_one(ws, iteration, trajectory, said, reviewer=reviewer, comment=comment)
        click.echo(f"{trajectory}: {said}")
    _go_on(ws, iteration)


def _list(ws: Workspace) -> None:
    from flywheel.upkeep import route_review

    iteration = route_review.newest(ws)
    found = route_review.asked(ws, iteration) if iteration else []
    if not found:
        click.echo("nobody is asked to look at routes (`flywheel settings routing.review`)")
        return
    lacking = sum(one.label is None for one in found)
    click.echo(f"iteration {number(iteration)}: {len(found)} trajectories, {lacking} without a label")
    for one in found:
        said = f"{one.label}, says {one.reviewer}" if one.label else "no label yet"
        click.echo(f"{one.trajectory_id}  {said}\n  {one.line}\n  flywheel view {one.trajectory_id}")
    click.echo(f'then: flywheel label {found[0].trajectory_id} solved --reviewer NAME (or "not solved", "cannot tell")')


def _go_on(ws: Workspace, iteration: int) -> None:
    """Where nothing is left, the run that waits goes on; where none does, what was said is carried out here."""
    from flywheel import run_lock
    from flywheel.upkeep import route_review

    lacking = sum(one.label is None for one in route_review.asked(ws, iteration))
    if lacking:
        click.echo(f"{lacking} to go")
    elif run_lock.held(ws):
        click.echo("all have a label: the run that waits goes on")
    else:
        with run_lock.hold(ws):
            moved = route_review.end(ws, iteration, route_review.ALL)
        count = moved.count if moved else 0
        click.echo(f"all have a label: {count} go to the other store; type `flywheel run` to go on")
