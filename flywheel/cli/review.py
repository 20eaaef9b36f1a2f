"""Record what people decide: `review routes`, `review promotion`."""

from __future__ import annotations

import click

from flywheel.cli.command_names import echo_with_commands
from flywheel.cli.options import WORKSPACE_OPTION
from flywheel.config.workspace import Workspace, iteration_label
from flywheel.utils.errors import BadInput

_LABEL_TYPE = click.Choice(["solved", "not solved", "cannot tell"])


@click.command(
    epilog='Example: flywheel review routes 003-k12-s0 "not solved" --reviewer Ada    (without arguments: list them)'
)
@click.argument("trajectory", required=False)
@click.argument("said", metavar="[LABEL]", type=_LABEL_TYPE, required=False)
@click.option(
    "--remaining", type=_LABEL_TYPE, help="Label all that have none yet; with `cannot tell` they stay where they are."
)
@click.option("--reviewer", default="", show_default=False, help="Your name; stored with the label.")
@click.option("--comment", default="", show_default=False, help="The reason; stored with the label.")
@WORKSPACE_OPTION
def routes_command(
    trajectory: str | None, said: str | None, remaining: str | None, reviewer: str, comment: str, ws: Workspace
) -> None:
    """Label trajectories as solved or not, before the iteration trains on them (`routing.review`).

    LABEL is solved, "not solved" or "cannot tell". Without arguments, list the trajectories that wait for one.
    """
    from flywheel.maintenance import route_review
    from flywheel.pipeline.iterations import newest_iteration

    if not trajectory and not remaining:
        _list_asked(ws)
        return
    if (trajectory and remaining) or bool(trajectory) != bool(said):
        raise BadInput(
            "a trajectory and its label, or --remaining",
            where="flywheel review routes",
            fix="`flywheel review routes --help`",
        )
    if not reviewer:
        raise BadInput("the reviewer has no name", where="--reviewer", fix="give yours")
    iteration = newest_iteration(ws)
    if remaining:
        count = route_review.label_remaining(ws, iteration, remaining, reviewer=reviewer, comment=comment)
        click.echo(f"{count} trajectories: {remaining}")
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
        echo_with_commands("nobody is asked to look at routes (`flywheel settings routing.review`)")
        return
    lacking = sum(one.label is None for one in found)
    click.echo(f"iteration {iteration_label(iteration)}: {len(found)} trajectories, {lacking} without a label")
    for one in found:
        said = f"{one.label}, says {one.reviewer}" if one.label else "no label yet"
        echo_with_commands(f"{one.trajectory_id}  {said}\n  {one.line}\n  `flywheel data view {one.trajectory_id}`")
    first = f"`flywheel review routes {found[0].trajectory_id} solved --reviewer NAME`"
    echo_with_commands(f'then: {first} (or "not solved", "cannot tell")')


def _apply_when_complete(ws: Workspace, iteration: int) -> None:
    """Apply the labels once none is missing, unless a run waits for them and does so itself; print what happens."""
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
        echo_with_commands(f"all have a label: {count} go to the other store; type `flywheel run` to go on")


@click.command(
    epilog='Example: flywheel review promotion --iteration 3 --promote --reviewer Ada --comment "sites are better"'
)
@click.option("--iteration", "-k", type=int, help="Number of the iteration; default, to show one: the newest.")
@click.option("--promote/--keep", "promote", default=None, help="Promote the new model, or keep the old one.")
@click.option("--reviewer", default="", show_default=False, help="Your name; stored with the decision.")
@click.option("--comment", default="", show_default=False, help="The reason; stored with the decision.")
@WORKSPACE_OPTION
def promotion_command(iteration: int | None, promote: bool | None, reviewer: str, comment: str, ws: Workspace) -> None:
    """Promote the new model or keep the old one, where promotion.rule is `review`.

    Without --promote or --keep, show what was decided of an iteration, by a reviewer or by the rule, and on what it
    rests.
    """
    from flywheel.config import run_lock
    from flywheel.evaluation import promotion_review as reviews

    if promote is None:
        if reviewer or comment:
            raise BadInput("no decision", where="flywheel review promotion", fix="add --promote or --keep")
        _show_promotion(ws, iteration)
        return
    if iteration is None:
        raise BadInput("of which iteration?", where="flywheel review promotion", fix="add --iteration N")
    decided = reviews.decide_promotion(ws, iteration, promote=promote, reviewer=reviewer, comment=comment)
    if decided.earlier:
        click.echo(f"this replaces the decision: {decided.history[-2].words}")
    then = "the run that waits for it goes on" if run_lock.is_workspace_busy(ws) else "type `flywheel run` to go on"
    echo_with_commands(f"kept in {ws.relative(reviews.review_path(ws, iteration))}; {then}")


def _show_promotion(ws: Workspace, iteration: int | None) -> None:
    from flywheel.evaluation import promotion_review as reviews
    from flywheel.pipeline.iterations import newest_iteration
    from flywheel.store.versioning import stage_records

    iteration = iteration or newest_iteration(ws)
    rule = stage_records.load_iteration_params(ws, iteration).promotion
    head = reviews.describe_promotion(ws, iteration, rule)
    echo_with_commands(reviews.build_promotion_report(ws, iteration, rule).markdown(head))
