"""Load a workspace's trajectories with labels (task done or not), and draw what an outcome reward model trains on."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from flywheel.config.workspace import Workspace
from flywheel.store import images as store_images
from flywheel.store import partitions
from flywheel.store.catalog import database
from flywheel.store.schema import Step, record_from_row

# The verifier's word, or where people agreed, theirs: never that of a model, which would learn from itself. A person's
# or a solver's trajectory is left out: its style alone would tell that it succeeded.
_LABELS = """
SELECT o.trajectory_id, any_value(o.task_id) AS task_id, any_value(o.domain) AS domain,
    any_value(o.template) AS template, any_value(o.world) AS world,
    any_value(o.instruction) AS instruction, any_value(o.iteration) AS iteration,
    any_value(t.final_image_sha256) AS final_image_sha256,
    coalesce(any_value(h.label) = 'solved', bool_and(s.success)) AS truth
FROM trajectory_outcomes o
    JOIN trajectories t ON (t.iteration, t.trajectory_id) = (o.iteration, o.trajectory_id)
    JOIN scores s ON s.trajectory_id = o.trajectory_id AND (s.scorer = 'verifier' OR s.scorer LIKE 'verifier:%')
    LEFT JOIN human_labels h ON h.trajectory_id = o.trajectory_id AND h.label IN ('solved', 'not solved')
WHERE o.source = 'rollout' AND o.iteration BETWEEN $first AND $last AND coalesce(o.start_step, 0) = 0
GROUP BY o.trajectory_id
HAVING truth IS NOT NULL ORDER BY o.trajectory_id
"""
_STEP_COLUMNS = {"step", "author", "thought", "action_type", "action", "parse_error", "tool_result", "image_sha256"}
_STEP_COLUMNS |= {"terminated"}


@dataclass(frozen=True)
class LabelledTrajectory:
    """Hold a trajectory of the model, and `truth`, whether it did its task.

    template: with its world. steps: in order. final_image_sha256: of the screen after the last action; None where it is
    not known.
    """

    trajectory_id: str
    task_id: str
    domain: str
    template: str
    instruction: str
    iteration: int
    steps: tuple[Step, ...]
    truth: bool
    final_image_sha256: str | None = None

    @property
    def screens(self) -> set[str]:
        """Return the sha256 of each of the trajectory's screens."""
        return {self.final_image_sha256, *(step.image_sha256 for step in self.steps)} - {None}

    @property
    def claims_success(self) -> bool:
        """Tell whether the agent's last action says that it has finished."""
        return self.steps[-1].action_type == "finished"


def load_labelled(
    ws: Workspace, iterations: tuple[int, int], folder: Path
) -> tuple[list[LabelledTrajectory], Mapping[str, bytes]]:
    """Load the labelled trajectories of some iterations whose screens are all stored, sorted by id.

    A label is the verifier's verdict, or where people agreed, theirs. iterations: first and last. folder: gets a file
    with the screens. Returns the trajectories, and a mapping from sha256 to PNG that reads that file. Of RL's episodes,
    one of a group has its screens. Raises DataError for a damaged or missing file, DiskFull.
    """
    with database.connect_catalog(ws, reads=_LABELS) as connection:
        rows = database.query_rows(connection, _LABELS, dict(zip(("first", "last"), iterations, strict=True)))
    steps: dict[str, list[Step]] = defaultdict(list)
    files = partitions.table_files(ws, "steps")
    names = {row["trajectory_id"] for row in rows}
    for part in partitions.iter_matching_rows(ws, "steps", files, "trajectory_id", names, _STEP_COLUMNS):
        for row in part.to_pylist():
            steps[row["trajectory_id"]].append(record_from_row("steps", Step, row))
    stored: set[str] = set()
    image_files = partitions.table_files(ws, "images")
    for part in partitions.scan_columns(ws, "images", image_files, ("sha256",)):
        stored.update(part["sha256"].to_pylist())
    found = []
    for row in rows:
        mine = tuple(sorted(steps[row["trajectory_id"]], key=lambda step: step.step))
        about = {name: value for name, value in row.items() if name not in ("template", "world")}
        one = LabelledTrajectory(**about, template=f"{row['world']}/{row['template']}", steps=mine)
        if mine and one.screens <= stored:
            found.append(one)
    wanted = {name for one in found for name in one.screens}
    return found, store_images.copy_images_to_file(ws, image_files, wanted, folder / "screens")


def cut_short(labelled: Sequence[LabelledTrajectory]) -> list[LabelledTrajectory]:
    """Make failed trajectories of solved ones, by leaving out the last step, with which the task was done.

    They are made of each of `labelled` that has two steps or more, did its task and was ended there by its environment.
    Where only success ends an episode early, they alone show that an end without a claim is no proof.
    """
    return [
        replace(
            one,
            trajectory_id=f"{one.trajectory_id}-cut",
            steps=one.steps[:-1],
            truth=False,
            final_image_sha256=one.final_image_sha256 and one.steps[-1].image_sha256,
        )
        for one in labelled
        if one.truth and len(one.steps) > 1 and one.steps[-1].terminated and not one.claims_success
    ]


def share_of(name: str, seed: int = 0) -> float:
    """Return a pseudo-random number in [0, 1) that depends on `name` and `seed` alone.

    Tasks and templates are divided by it.
    """
    return int.from_bytes(hashlib.sha256(f"{seed}|{name}".encode()).digest()[:6]) / 2**48


CLAIMED = 2.0  # weight of a failed trajectory that claims success, beside one that does not


def draw_balanced(labelled: Sequence[LabelledTrajectory], count: int, seed: int) -> list[LabelledTrajectory]:
    """Draw `count` of `labelled`, with repetition: equally many successes and failures of each domain.

    Of a domain that has only successes or only failures these alone are drawn. So a habit of saying yes wins nothing. A
    template has the same share among successes as among failures, so that which template it is tells nothing; but
    failures that claim success weigh double. seed: of the draw.
    """
    kinds: dict[tuple[str, bool], list[LabelledTrajectory]] = defaultdict(list)
    for one in labelled:
        kinds[one.domain, one.truth].append(one)
    of_template = Counter(one.template for one in labelled)
    of_kind = Counter((one.template, one.truth) for one in labelled)
    rng, drawn = np.random.default_rng(seed), []
    for place, kind in enumerate(sorted(kinds)):
        mine = kinds[kind]
        weights = np.array([CLAIMED if one.claims_success and not one.truth else 1.0 for one in mine])
        weights *= [of_template[one.template] / of_kind[one.template, one.truth] for one in mine]
        share = len(range(place, count, len(kinds)))
        drawn += [mine[i] for i in rng.choice(len(mine), share, p=weights / weights.sum())]
    return [drawn[i] for i in rng.permutation(len(drawn))]
