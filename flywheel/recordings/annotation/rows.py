"""Turn a finished annotation session into rows of the tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from flywheel.config import Settings
from flywheel.envs.tasks.held_out import is_held_out
from flywheel.recordings.annotation.journal import AnnotationState, read_annotation
from flywheel.recordings.annotation.session import MODEL
from flywheel.recordings.curate import Curation
from flywheel.recordings.rows import HUMAN, IngestedSession, check_rows, check_screens, make_invalid_session, review_row
from flywheel.store.images import image_rows
from flywheel.store.schema import TABLES, Trajectory, session_trajectory_id

SOURCE = "annotation"  # of the trajectories


def annotation_rows(folder: Path, settings: Settings, iteration: int) -> IngestedSession:
    """Make the rows of the finished annotation session in `folder`.

    settings, iteration: of the iteration that ingests it. A session that cannot be read gives a trajectory of status
    invalid with the reason. Raises as `make_invalid_session`.
    """
    try:
        return check_rows(_annotation_rows(folder, settings, iteration), folder)
    except Exception as error:
        made = make_invalid_session(folder, error, iteration)
        return replace(made, trajectory=replace(made.trajectory, source=SOURCE))


def _annotation_rows(folder: Path, settings: Settings, iteration: int) -> IngestedSession:
    state, screens = read_annotation(folder)
    task, images = state.task, tuple(image_rows(screens))
    check_screens(images, settings, folder)
    identity = session_trajectory_id(iteration, task.task_id, folder.name)
    steps = [state.step(number, identity) for number in range(len(state.steps))]
    faults = () if steps else ("no step",)
    if steps and all(step.parse_error for step in steps):
        faults = ("no step held an action",)
    if is_held_out(settings, task):
        faults = (f"{task.world}/{task.template} is held out for evaluation (synthesis.held_out)",)
    if steps and not steps[-1].terminated:
        steps[-1] = replace(steps[-1], truncated=True)
    by_person = sum(step.author == HUMAN for step in steps)
    # Of a session that was taken over, what the model did before is context: nobody accepted it.
    first = next((n for n, step in enumerate(steps) if step.author == HUMAN), 0) if state.begun.get("taken_over") else 0
    trajectory = Trajectory(
        identity,
        task.task_id,
        task.domain,
        world=task.world,
        level=task.level,
        instruction=task.instruction,
        source=SOURCE,
        author=HUMAN if by_person else MODEL,
        sample=0,
        policy_version=state.begun["weights"],
        status="invalid" if faults else state.ended["status"],
        error="; ".join(faults) or None,
        steps=len(steps),
        reward=sum(step.reward or 0.0 for step in steps),
        final_state=state.ended["final_state"],
        final_image_sha256=state.seen[len(steps)]["screen"],
        started_at=datetime.fromisoformat(state.begun["at"]),
        ended_at=datetime.fromisoformat(state.ended["at"]),
        annotator=state.begun["annotator"],
        start_step=first or None,
    )
    who = state.begun["model"] or state.begun["weights"][:12] or "a player"
    others = f"{who} played" if state.begun.get("taken_over") else f"{who} proposed"
    remark = f"{by_person} of {len(steps)} steps by {trajectory.annotator}, the others as {others}"
    return IngestedSession(
        folder.name,
        trajectory,
        {name: state.begun["task"].get(name) for name in TABLES["tasks"].names},
        tuple(steps),
        image_rows=images,
        review_rows=(review_row(identity, Curation(faults, (remark,))),),
        fingerprint=f"{SOURCE} {folder.name}",  # a second session of the same task is no duplicate
        candidate_rows=tuple(_candidate_rows(state, identity)),
    )


def _candidate_rows(state: AnnotationState, identity: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of `candidates` for the steps that stand.

    Of a step that the model took by itself only what it took is one: nobody refused the others. Candidates for screens
    that an undo has left are not among them, as no step was chosen beside them.
    """
    for step in range(len(state.steps)):
        alone = not state.steps[step]["by"]
        for one in state.candidates_of(step):
            if alone and not one["accepted"]:
                continue
            left_out = "undone" if one.get("undone") else "rejected"
            chosen = {name: value for name, value in one["chosen"].items() if name in TABLES["candidates"].names}
            yield {
                "trajectory_id": identity,
                "step": step,
                "candidate": one["number"],
                **chosen,
                "votes": one["votes"],
                "samples": one["samples"],
                "decision": "accepted" if one["accepted"] else left_out,
                "annotator": one["annotator"] or None,
                "decided_at": datetime.fromisoformat(one["decided_at"]),
            }
