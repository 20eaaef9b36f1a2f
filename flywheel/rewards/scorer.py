"""Define the interface of a scorer, which judges finished trajectories, and its input.

The verifier is the first; a judge that reads the text, a reward model that looks at the screens are others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from flywheel.envs.base import Task
from flywheel.store.trajectory import Step, Trajectory
from flywheel.utils.errors import DataError

Need = Literal["final_state", "steps", "screens"]


@dataclass(frozen=True)
class ScoringInput:
    """A trajectory that came to an end, as its scorers see it.

    What none of them needs is not read: then there are no steps (in order), no screens (PNG by sha256; a step names
    the one that it was chosen on), no final state.
    """

    task: Task
    trajectory: Trajectory
    steps: tuple[Step, ...] = ()
    screens: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def final_state(self) -> Any:
        """The state at the end; {} where there is none. Raises DataError where what was recorded is not JSON."""
        try:
            return json.loads(self.trajectory.final_state or "{}")
        except ValueError as error:
            where = self.trajectory.trajectory_id
            raise DataError(f"final_state is not JSON: {error}", where=where) from None


@dataclass(frozen=True)
class Score:
    """Hold what a scorer gives.

    value: in [0, 1], on the scale of the task's threshold: 1 is what was asked and no less. None: the scorer cannot
    tell, and `detail` says why. detail: in words, what it adds. rule: which of the scorer's rules it was.
    """

    value: float | None
    detail: str = ""
    rule: str = ""


class Scorer(Protocol):
    """Judge finished trajectories.

    name: as in `routing.scorers`. version: changes when the same trajectory may get another score, so it names all that
    a score depends on beside the trajectory: rules, a prompt, a model. needs: what it reads of a `ScoringInput`.
    """

    name: str
    version: str
    needs: frozenset[Need]

    def score(self, case: ScoringInput) -> Score:
        """Score a finished trajectory. It may take its time, and is called from several threads.

        A failure of its own is never a score of 0: it gives none, or raises, and the reason is stored with the
        trajectory. BadInput alone stops the stage: settings that must be corrected.
        """
