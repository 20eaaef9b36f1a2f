"""Define what an RL algorithm decides, and find one by its name, `rl.algorithm`.

Rollouts, the reading of the policy, minibatches, gradient steps and the state on disk are the same for all, and none of
them asks which algorithm runs. A file of `algorithms/` that is named as its algorithm and registers it is all that one
more takes; so is `ALGORITHMS[name] = ...` anywhere before the run.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from flywheel.config import RlSettings
from flywheel.training.rl import algorithms
from flywheel.utils.errors import BadInput

if TYPE_CHECKING:  # names are looked up without importing torch, which takes seconds
    from torch import Tensor

    from flywheel.training.rl.losses import PolicyTerms, TokenBatch


@dataclass(frozen=True)
class TurnEstimates:
    """One array a turn, [its response tokens], of each: advantages, and V's targets (returns; none without V). horizon:
    tokens that a reward reaches back; NaN where it reaches every token alike."""

    advantages: tuple[np.ndarray, ...]
    returns: tuple[np.ndarray, ...] = ()
    horizon: float = float("nan")


@dataclass(frozen=True)
class ScoredTrajectory:
    """A whole trajectory as an algorithm sees it. task_id: trajectories of one task are a group. rewards: of each step,
    shaped. lengths: trainable tokens of each step.

    Where the algorithm needs V: values, one array a step, [its tokens]; and of a trajectory that a limit cut off
    `bootstrap`, V behind its last token, and `outcome`, what it had earned by then, both 0 where it really ended (there
    the outcome is among the rewards). Without V the outcome is always among the rewards.
    """

    task_id: str
    rewards: tuple[float, ...]
    lengths: tuple[int, ...]
    values: tuple[np.ndarray, ...] = ()
    bootstrap: float = 0.0
    outcome: float = 0.0


class Algorithm(Protocol):
    """What an algorithm decides: advantages and loss.

    whole_groups: a batch has all of a task's trajectories, since they are compared with one another. needs_value: there
    is a value model. It is pretrained, read before each step (`ScoredTrajectory.values`) and trained on the `returns`
    of the estimates.
    """

    whole_groups: bool
    needs_value: bool

    def advantages(self, batch: Sequence[ScoredTrajectory], rl: RlSettings) -> list[TurnEstimates]:
        """Estimate the advantages of each trajectory's tokens, and the targets of V, in the order of `batch`.

        batch: trajectories, whole groups of a task with `whole_groups`. rl: block `rl`. Returns arrays of shape
        [response tokens], one a step. Raises nothing but what NumPy does: rewards and lengths are checked before.
        """

    def loss(self, part: TokenBatch, rl: RlSettings) -> tuple[Tensor, PolicyTerms]:
        """Return the share of a part in the minibatch's loss, with gradient, and the terms of the step's metrics.

        The share is a sum over the tokens of the part, divided by the number of tokens of the minibatch
        (`part.tokens`), so that parts and processes add up. rl: block `rl`.
        """


ALGORITHMS: dict[str, Algorithm] = {}  # by the name that rl.algorithm calls it by


def list_algorithms() -> list[str]:
    """List the values of rl.algorithm, without importing any."""
    return sorted({*ALGORITHMS, *(module.name for module in pkgutil.iter_modules(algorithms.__path__))})


def check_algorithm(name: str) -> None:
    """Check that an RL algorithm has this name. Raises BadInput where there is none."""
    if name not in (known := list_algorithms()):
        what = f"there is no algorithm {name!r}"
        raise BadInput(what, where="rl.algorithm", fix=f"known are {', '.join(known)}")


def get_algorithm(name: str) -> Algorithm:
    """Return the algorithm of this name. Raises BadInput where there is none."""
    check_algorithm(name)
    if name not in ALGORITHMS:
        importlib.import_module(f"{algorithms.__name__}.{name}")
    return ALGORITHMS[name]
