"""From the training stores to samples: what an iteration's manifest names is counted, and what is drawn of it is read.

Memory and time go with what is drawn. Of all the rest a few narrow columns are looked at, a row group at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flywheel.agent.history_summary import open_summarizer
from flywheel.errors import DataError
from flywheel.policy.encoding import Encoded, Encoder
from flywheel.rollout.history import History
from flywheel.schema import TABLES, from_row
from flywheel.settings import Settings
from flywheel.store import lookup, screens
from flywheel.store.manifest import Cumulative
from flywheel.store.partition_writer import is_sorted
from flywheel.store.screens import ScreenFile
from flywheel.training.samples import Sample, general_samples, imitated, step_prompt, step_sample
from flywheel.training.supervised.draw import Drawn, Pool
from flywheel.trajectory import Step, Trajectory
from flywheel.workspace import Workspace

_JUDGED = ("trajectory_id", "parse_error", "slip")  # what `samples.imitated` looks at
# What neither a prompt shows nor a sample has. What is not named here is read, so that a new column needs no thought.
_UNSHOWN = {
    "raw_text",  # a person's alone
    *("author", "x", "y", "x2", "y2", "prompt_tokens", "logprobs", "weight_version"),
    *("reward", "terminated", "truncated", "started_at", "ended_at"),
}
_OF_STEP = set(TABLES["steps"].names) - _UNSHOWN
_Said = dict[tuple[str, int], dict[str, Any]]  # by trajectory_id and number of the step: its fields
_OF_TRAJECTORY = ("trajectory_id", "task_id", "domain", "instruction")


def pool(ws: Workspace, manifest: Cumulative, store: str, weights: Mapping[str, float], other: float = 1.0) -> Pool:
    """The steps to learn from of the store `ct` or `sft`, as the manifest has it, sorted by trajectory_id.

    weights: of a step, by its trajectory's source; `other` where that is not named. Those of no weight are left out.
    """
    kept = []
    for rows in lookup.scan(ws, store, manifest.paths(ws, store), ("trajectory_id", "source", "weight")):
        said = rows["source"].to_pylist()
        near = pc.fill_null(rows["weight"], 1.0).to_numpy()  # near-duplicates share the weight of one
        own = np.array([weights.get(source, other) for source in said]) * near
        kept.append(rows.select(["trajectory_id"]).append_column("weight", pa.array(own)).filter(pa.array(own > 0)))
    if not kept:
        return Pool([], np.zeros(0, int), np.zeros(0))
    counted = pa.concat_tables(_counted(ws, manifest)).group_by("trajectory_id").aggregate([("steps", "sum")])
    found = pa.concat_tables(kept)
    place = pc.index_in(found["trajectory_id"], counted["trajectory_id"])  # a join takes three times as long
    found = found.append_column("steps", counted["steps_sum"].take(place)).filter(pc.is_valid(place))
    if not is_sorted(found, ("trajectory_id",)):
        found = found.sort_by("trajectory_id")
    return Pool(found["trajectory_id"].to_pylist(), found["steps"].to_numpy(), found["weight"].to_numpy())


def _counted(ws: Workspace, manifest: Cumulative) -> list[pa.Table]:
    """How many steps there are to learn from, by trajectory, a table each row group."""
    kind = pa.schema([("trajectory_id", pa.string()), ("steps", pa.int64())])
    found = [kind.empty_table()]
    for rows in lookup.scan(ws, "steps", manifest.paths(ws, "steps"), _JUDGED):
        # As `samples.imitated`, of columns.
        broken = pc.not_equal(pc.fill_null(rows["parse_error"], ""), "")
        sound = pc.invert(pc.or_(broken, pc.fill_null(rows["slip"], False)))
        counts = rows["trajectory_id"].filter(sound).value_counts()
        found.append(pa.table([counts.field("values"), counts.field("counts")], schema=kind))
    return found


def general_pool(ws: Workspace, manifest: Cumulative) -> Pool:
    """The newest iteration's general data, sorted by sample_id."""
    names = [
        name
        for rows in lookup.scan(ws, "general", _newest(ws, manifest, "general"), ("sample_id",))
        for name in rows["sample_id"].to_pylist()
    ]
    return Pool(sorted(names), np.ones(len(names), int), np.ones(len(names)))


def _newest(ws: Workspace, manifest: Cumulative, table: str) -> list[Path]:
    """What the newest iteration's synthesis wrote of a table."""
    own = (manifest.iteration, "synthesize")
    return [ws.resolve(shard.path) for shard in manifest.shards(table) if (shard.iteration, shard.stage) == own]


def samples(
    ws: Workspace, manifest: Cumulative, drawn: Sequence[Drawn], encoder: Encoder, settings: Settings, folder: Path
) -> list[Sample]:
    """The samples that were drawn, in that order. Their rows are held; their screens lie in `folder`, and are read and
    encoded each time that a prompt is asked for, by whichever process asks.

    Raises DataError for a damaged file, and for a trajectory, a screen or a text that is missing.
    """
    general = {one for one in drawn if one.general}
    found = _general(ws, manifest, general, encoder, settings, folder / "general-screens")
    found |= _agent(ws, manifest, set(drawn) - general, encoder, settings, folder / "screens")
    return [found[one] for one in drawn]


def _general(
    ws: Workspace, manifest: Cumulative, drawn: Collection[Drawn], encoder: Encoder, settings: Settings, path: Path
) -> dict[Drawn, Sample]:
    names, columns = {one.name for one in drawn}, TABLES["general"].names
    rows = lookup.rows(ws, "general", _newest(ws, manifest, "general"), "sample_id", names, columns).to_pylist()
    images = screens.copied(ws, _newest(ws, manifest, "images"), {row["image_sha256"] for row in rows}, path)
    made = general_samples(rows, images, encoder, settings.policy)
    return {Drawn(sample.trajectory_id, 0, True): sample for sample in made}


def _agent(
    ws: Workspace, manifest: Cumulative, drawn: Collection[Drawn], encoder: Encoder, settings: Settings, path: Path
) -> dict[Drawn, Sample]:
    numbers = defaultdict(list)
    for one in drawn:
        numbers[one.name].append(one)
    trajectories = _trajectories(ws, manifest, numbers.keys())
    begun: dict[Drawn, list[Step]] = {}  # of each the steps of its trajectory up to it
    histories, tokens = _histories(ws, manifest, numbers.keys())
    for name, steps in histories.items():
        to_learn = [place for place, step in enumerate(steps) if imitated(step)]
        ends = {one: to_learn[one.number] + 1 for one in numbers[name]}
        told = _with_digests(trajectories[name], steps[: max(ends.values())], settings)
        begun |= {one: told[:end] for one, end in ends.items()}
    said = _said(ws, manifest, {(steps[-1].trajectory_id, steps[-1].step) for steps in begun.values()}, tokens)
    wanted = {step.image_sha256 for steps in begun.values() for step in steps[-settings.policy.working_steps :]}
    images = screens.copied(ws, manifest.paths(ws, "images"), wanted - {None}, path)
    prompt = _Prompt(encoder, images, settings)
    made = {}
    for one, steps in begun.items():
        trajectory, step = trajectories[one.name], steps[-1]
        step = replace(step, **said[step.trajectory_id, step.step])
        made[one] = step_sample(trajectory, step, partial(prompt, trajectory, steps), encoder)
    return made


@dataclass(frozen=True)
class _Prompt:
    """Encodes the prompt of the last of some steps. It can be handed to another process."""

    encoder: Encoder
    images: ScreenFile
    settings: Settings

    def __call__(self, trajectory: Trajectory, steps: Sequence[Step]) -> Encoded:
        summarizer = open_summarizer(self.settings)
        return step_prompt(trajectory, steps, self.images, self.encoder, self.settings.policy, summarizer)


def _trajectories(ws: Workspace, manifest: Cumulative, names: Collection[str]) -> dict[str, Trajectory]:
    files = manifest.paths(ws, "trajectories")
    rows = lookup.rows(ws, "trajectories", files, "trajectory_id", names, _OF_TRAJECTORY).to_pylist()
    found = {row["trajectory_id"]: from_row("trajectories", Trajectory, row) for row in rows}
    if lost := names - found.keys():
        raise DataError(
            f"{len(lost)} trajectories of the stores are missing, the first is {min(lost)}",
            where="table trajectories",
            fix="fetch them with `dvc checkout`",
        )
    return found


def _histories(ws: Workspace, manifest: Cumulative, names: Collection[str]) -> tuple[dict[str, list[Step]], _Said]:
    """The steps of trajectories, in order, and apart from them, where there are any, the tokens of each."""
    found, tokens = defaultdict(list), {}
    files = manifest.paths(ws, "steps")
    for part in lookup.found(ws, "steps", files, "trajectory_id", names, _OF_STEP):
        for row in part.to_pylist():
            if said := row.pop("token_ids"):
                tokens[row["trajectory_id"], row["step"]] = {"token_ids": tuple(said)}
            found[row["trajectory_id"]].append(from_row("steps", Step, row))
    return {name: sorted(steps, key=lambda one: one.step) for name, steps in found.items()}, tokens


def _with_digests(trajectory: Trajectory, steps: Sequence[Step], settings: Settings) -> list[Step]:
    """The steps, each with the digest of older ones that its prompt shows, as rollouts store it: a language model that
    writes digests for people's steps is asked here and nowhere else."""
    if not settings.policy.digest_characters:
        return list(steps)
    history = History(trajectory.instruction, {}, settings.policy, summarizer=open_summarizer(settings))
    told = []
    for step in steps:
        if imitated(step):
            history.memory(step.memory)
        told.append(step if step.memory or not imitated(step) else replace(step, memory=history.stored))
        history.add(step)
    return told


def _said(ws: Workspace, manifest: Cumulative, wanted: set[tuple[str, int]], tokens: _Said) -> _Said:
    """What was said at steps: their tokens, or where they have none (a person's) their text."""
    found = {place: tokens[place] for place in wanted & tokens.keys()}
    names = {name for name, _ in wanted - found.keys()}
    files, columns = manifest.paths(ws, "steps") if names else (), ("step", "raw_text")
    for row in lookup.rows(ws, "steps", files, "trajectory_id", names, columns).to_pylist():
        place = (row["trajectory_id"], row["step"])
        if place in wanted and place not in found and row["raw_text"]:
            found[place] = {"raw_text": row["raw_text"]}
    if lost := wanted - found.keys():
        name, number = min(lost)
        where = f"trajectory {name}, step {number}"
        raise DataError("it has neither tokens nor a text to learn from", where=where, fix="put it into quarantine")
    return found
