"""Record what people decide: `review routes`, `review recordings`, `review owners`, `review promotion`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from flywheel.cli.command_names import echo_with_commands
from flywheel.cli.options import WORKSPACE_OPTION
from flywheel.config.workspace import Workspace, iteration_label
from flywheel.utils.errors import BadInput

if TYPE_CHECKING:
    from flywheel.config import Settings

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
    if waiting := route_review.read_waiting(ws, iteration):
        first = f"`flywheel review routes {waiting[0]['trajectory_id']} solved --reviewer NAME`"
        then = f"then `flywheel score --scorer person --iteration {iteration} --write`"
        echo_with_commands(f"{len(waiting)} wait for a person's verdict, the first: {first}; {then}")
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
    epilog="Example: flywheel review recordings 000-shop-anna --no safe --reviewer Ada --comment 'a name in step 3'"
)
@click.argument("name", required=False)
@click.option("--accept", is_flag=True, help="Yes to every question: it is correct, complete and safe.")
@click.option("--no", "no", multiple=True, type=click.Choice(["correct", "complete", "safe"]), help="A question that you answer with no; yes to the others.")  # fmt: skip # noqa: E501
@click.option("--ask", is_flag=True, help="Ask others to review this trajectory in the same way.")
@click.option("--reviewer", default="", show_default=False, help="Your name; stored with the verdict.")
@click.option("--comment", default="", show_default=False, help="The reason; stored with the verdict.")
@WORKSPACE_OPTION
def recordings_command(
    name: str | None, accept: bool, no: tuple[str, ...], ask: bool, reviewer: str, comment: str, ws: Workspace
) -> None:
    """Review recordings before they are taken in: two people, blind, and a third where they disagree.

    NAME is a recording's folder, or a trajectory. Without it, list what is reviewed, and how far reviewers agree.
    `flywheel ui` shows the recordings. With curation.reviewers an iteration takes in the accepted ones alone.
    """
    from flywheel.config import load_settings
    from flywheel.recordings import reviewing
    from flywheel.store.recording_verdicts import QUESTIONS

    settings = load_settings(ws.params)
    if not name:
        _list_recordings(ws, settings)
        return
    if accept + bool(no) + ask != 1:
        what = "--accept, --no and --ask contradict each other" if accept or no or ask else "no verdict"
        raise BadInput(what, where="flywheel review recordings", fix="one of --accept, --no with a question, and --ask")
    answers = None if ask else {question: question not in no for question in QUESTIONS}
    one = reviewing.give_recording_verdict(ws, settings, name, answers, reviewer=reviewer, comment=comment)
    click.echo(f"{name}: {'to be reviewed' if ask else one.state}")


def _list_recordings(ws: Workspace, settings: Settings) -> None:
    from flywheel.recordings import reviewing

    found = reviewing.list_reviewed(ws, settings)
    for one in found:
        click.echo(f"{one.name}  {one.state}, reviewed by {len(one.verdicts)}\n  {one.instruction[:120]}")
    wanted = settings.curation.reviewers
    rule = f"{wanted} each" if wanted else "nobody has to (`flywheel settings curation.reviewers`)"
    echo_with_commands(f"{len(found)} to look at; reviewers: {rule}")
    for question, figures in reviewing.measure_review_agreement(ws).items():
        if figures.n:
            click.echo(f"agreement on {question}: {figures.words}")


@click.command(
    epilog="Example: flywheel review owners --assign bo --next 20 --reviewer Ada    (without options: list them)"
)
@click.argument("trajectories", nargs=-1)
@click.option(
    "--assign", metavar="NAME", help="Give the samples to this person, who alone labels them until it is done."
)
@click.option("--release", is_flag=True, help="Give the samples back: anybody may label them.")
@click.option("--next", "count", type=click.IntRange(1, 500), help="Take N samples of nobody, of the newest iteration.")
@click.option("--take-over", is_flag=True, help="Also samples that another person is to label.")
@click.option("--reviewer", default="", show_default=False, help="Your name; stored with it.")
@WORKSPACE_OPTION
def owners_command(
    trajectories: tuple[str, ...],
    assign: str | None,
    release: bool,
    count: int | None,
    take_over: bool,
    reviewer: str,
    ws: Workspace,
) -> None:
    """Say who labels which samples in the explorer, or show how many each person has."""
    from flywheel.pipeline.iterations import newest_iteration
    from flywheel.store import labels
    from flywheel.ui.explorer import review
    from flywheel.ui.explorer.catalog_reader import CatalogReader

    if assign is None and not release:
        owners = labels.read_sample_owners(ws)
        for name in trajectories:
            click.echo(f"{name}: {owners[name].owner if name in owners else 'nobody'}")
        if not trajectories:
            for owner in sorted({one.owner for one in owners.values()}):
                click.echo(f"{owner}: {sum(one.owner == owner for one in owners.values())} to label")
            click.echo("nobody is given samples" if not owners else f"{len(owners)} in all")
        return
    if (assign is not None) == release or bool(trajectories) == bool(count):
        raise BadInput(
            "--assign NAME or --release, and trajectories or --next N",
            where="flywheel review owners",
            fix="`flywheel review owners --help`",
        )
    asking, names = CatalogReader(ws), list(trajectories)
    if count:
        draw = review.SampleDraw(
            reviewer=assign or reviewer, size=count, iteration=newest_iteration(ws) or None, whose="nobody"
        )
        drawn = review.draw_review_queue(asking, draw)["rows"]
        names = [row["trajectory_id"] for row in drawn if row["state"] == "open"]
        if not names:
            raise BadInput("no sample is left that nobody is to label", where="--next", fix="see the explorer")
    request = review.OwnerRequest.model_construct(  # as many as are named
        trajectory_ids=names, owner=assign or "", reviewer=reviewer or assign or "", take_over=take_over
    )
    review.assign_review_samples(asking, request)
    click.echo(f"{len(names)} samples: {labels.normalise_reviewer(assign) if assign else 'nobody'}")


@click.command(
    epilog='Example: flywheel review promotion --iteration 3 --promote --reviewer Ada --comment "sites are better"'
)
@click.option("--iteration", "-k", type=int, help="Number of the iteration; default, to show one: the newest.")
@click.option("--promote/--keep", "promote", default=None, help="Promote the new model, or keep the old one.")
@click.option("--reviewer", default="", show_default=False, help="Your name; stored with the decision.")
@click.option("--comment", default="", show_default=False, help="The reason; stored with the decision.")
@click.option("--override", is_flag=True, help="Reverse a decision that is carried out, with --comment as the reason.")
@WORKSPACE_OPTION
def promotion_command(
    iteration: int | None, promote: bool | None, reviewer: str, comment: str, override: bool, ws: Workspace
) -> None:
    """Promote the new model or keep the old one, where promotion.rule is `review`.

    Without --promote or --keep, show what was decided of an iteration, by a reviewer or by the rule, and on what it
    rests. With --override a decision is reversed afterwards, the rule's too, until the next iteration begins.
    """
    from flywheel.config import run_lock
    from flywheel.evaluation import promotion_review as reviews

    if promote is None:
        if reviewer or comment or override:
            raise BadInput("no decision", where="flywheel review promotion", fix="add --promote or --keep")
        _show_promotion(ws, iteration)
        return
    if iteration is None:
        raise BadInput("of which iteration?", where="flywheel review promotion", fix="add --iteration N")
    if override:
        _override_promotion(ws, iteration, promote, reviewer, comment)
        return
    decided = reviews.decide_promotion(ws, iteration, promote=promote, reviewer=reviewer, comment=comment)
    if decided.earlier:
        click.echo(f"this replaces the decision: {decided.history[-2].words}")
    then = "the run that waits for it goes on" if run_lock.is_workspace_busy(ws) else "type `flywheel run` to go on"
    echo_with_commands(f"kept in {ws.relative(reviews.review_path(ws, iteration))}; {then}")


def _override_promotion(ws: Workspace, iteration: int, promote: bool, reviewer: str, comment: str) -> None:
    from flywheel.config import run_lock
    from flywheel.maintenance import promotion_override, rollback
    from flywheel.store import manifest
    from flywheel.ui.report import pages

    with run_lock.hold_workspace(ws):
        rollback.recover_workspace(ws)
        decided = promotion_override.override_promotion(
            ws, iteration, promote=promote, reviewer=reviewer, comment=comment
        )
        pages.write_report(ws)
    model = manifest.read_promotion(ws, iteration)["model"]
    click.echo(f"this overrides the decision of {decided.overrides}; the next iteration begins with {model}")


def _show_promotion(ws: Workspace, iteration: int | None) -> None:
    from flywheel.evaluation import promotion_review as reviews
    from flywheel.pipeline.iterations import newest_iteration
    from flywheel.store.versioning import stage_records

    iteration = iteration or newest_iteration(ws)
    rule = stage_records.load_iteration_params(ws, iteration).promotion
    head = reviews.describe_promotion(ws, iteration, rule)
    echo_with_commands(reviews.build_promotion_report(ws, iteration, rule).markdown(head))
