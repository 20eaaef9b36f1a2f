"""Stores with every kind of candidate, and a solver's correction of a failed episode, in two iterations."""

from __future__ import annotations

from dataclasses import replace

from lamp_env import LEFT, RIGHT, screen

from flywheel.config.workspace import Workspace
from flywheel.store import manifest, partitions
from flywheel.store.images import image_digest, image_rows
from flywheel.store.manifest import TrainingManifest
from flywheel.store.schema import Step, Trajectory, record_to_row

SCREENS = {image_digest(png): png for png in (screen(side, n) for side in ("left", "right") for n in range(2))}
NAMES = sorted(SCREENS)
OTHER = "Thought: up.\nAction: click(point='<point>50 5</point>')"
DATA = (("trajectories", "ingest"), ("steps", "ingest"), ("trajectories", "rollout"), ("steps", "rollout"))
DATA += (("images", "rollout"), ("candidates", "ingest"))


def step(name: str, number: int, text: str, author: str = "human", **more) -> Step:
    action = text.partition("Action: ")[2]
    facts = {"thought": "x", "action_type": "click", "action": action, "raw_text": text} | more
    return Step(name, number, author, image_sha256=NAMES[number], **facts)


def candidate(name: str, number: int, place: int, text: str, decision: str, **more) -> dict:
    action = text.partition("Action: ")[2]
    facts = {"trajectory_id": name, "step": number, "candidate": place, "action": action, "raw_text": text}
    return facts | {"decision": decision, "annotator": "ada", "token_ids": list(map(ord, text))} | more


def one(name: str, **more) -> Trajectory:
    return Trajectory(name, "task", "games", instruction="Click the lamp.", source="annotation", author="human", **more)


def write(ws: Workspace) -> TrainingManifest:
    """Two iterations of the same kind; SFT's window is the second alone, whose manifest is returned."""
    manifest.init_first_checkpoint(ws, digest="base")
    for k in (1, 2):
        session, lost, failed, mended = (f"{name}{k}" for name in ("session", "lost", "failed", "mended"))
        trajectories = [record_to_row("trajectories", one(name)) for name in (session, lost)]
        steps = [
            step(session, 0, LEFT),
            step(session, 1, RIGHT),
            step(session, 2, LEFT, misclick=True),
            step(lost, 0, LEFT),
        ]
        candidates = [
            candidate(session, 0, 0, RIGHT, "rejected", token_ids=[7, 8, 9]),
            candidate(session, 0, 1, LEFT, "accepted"),
            candidate(session, 0, 2, OTHER, "undone", token_ids=None),
            candidate(session, 1, 0, RIGHT, "rejected"),  # the same action as the kept one
            candidate(session, 2, 0, RIGHT, "rejected"),  # of a slip
            candidate(session, 5, 0, RIGHT, "rejected"),  # of a step that was taken back
            candidate(lost, 0, 0, RIGHT, "rejected"),  # not solved
        ]
        model = {"source": "rollout", "author": "model"}
        rollouts = [
            replace(one(failed), **model),
            replace(one(mended), source="correction", author="solver", parent_id=failed, start_step=1),
        ]
        played = [step(failed, n, RIGHT, "model", token_ids=(5, 6, n)) for n in range(3)]
        played += [step(mended, 0, RIGHT, "model"), step(mended, 1, LEFT, "solver"), step(mended, 2, LEFT, "solver")]
        for stage, rows, own in (
            ("ingest", trajectories, steps),
            ("rollout", [record_to_row("trajectories", r) for r in rollouts], played),
        ):
            partitions.write_partition(ws, "trajectories", k, stage, rows)
            partitions.write_partition(ws, "steps", k, stage, [record_to_row("steps", row) for row in own])
        partitions.write_partition(ws, "candidates", k, "ingest", candidates)
        partitions.write_partition(ws, "images", k, "rollout", image_rows(SCREENS))
        about = {"task_id": "task", "domain": "games", "weight": 1.0}
        unsolved = {failed: "rollout", mended: "correction", lost: "annotation"}
        for store, sources in (("sft", {session: "annotation"}), ("ct", unsolved)):
            rows = [{"trajectory_id": name, "source": source, **about} for name, source in sources.items()]
            partitions.write_partition(ws, store, k, "route", rows)
        read = manifest.write_manifest(ws, k, window=1, data=DATA)
    return read
