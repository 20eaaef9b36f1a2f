"""Define the interface of an RL algorithm, and find an algorithm by its name, `rl.algorithm`.

Rollouts, forward passes, minibatches, gradient steps and the saved state are the same for all algorithms, and their
code does not depend on which one runs. To add an algorithm, write a file in `algorithms/` that has its name and
registers it, or set `ALGORITHMS[name]` anywhere before the run.
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
    """Hold the estimated advantages of one trajectory's tokens, and the targets of V.

    advantages: one array per turn, [response tokens]. returns: V's targets, in the same shapes; empty without V.
    horizon: how many tokens a reward reaches back; NaN where it reaches all tokens equally.
    """

    advantages: tuple[np.ndarray, ...]
    returns: tuple[np.ndarray, ...] = ()
    horizon: float = float("nan")


@dataclass(frozen=True)
class ScoredTrajectory:
    """Hold a whole trajectory with its rewards, as input of an algorithm.

    task_id, start: trajectories of one task and start are a group (start: "" for the task's beginning). rewards: shaped
    reward of each step. lengths: trainable tokens of each step.

    Only where the algorithm needs V: values, one array per step, [its tokens]; bootstrap, V after the last token, and
    outcome, the score earned by then, both of a truncated trajectory. They are 0 for one that ended by itself, whose
    outcome is among the rewards. Without V the outcome is always among the rewards.
    """

    task_id: str
    rewards: tuple[float, ...]
    lengths: tuple[int, ...]
    values: tuple[np.ndarray, ...] = ()
    bootstrap: float = 0.0
    outcome: float = 0.0
    start: str = ""


class Algorithm(Protocol):
    """Compute advantages and loss: the two parts in which algorithms differ.

    whole_groups: whether a batch must have all trajectories of a task, to compare them. needs_value: whether there is a
    value model. It is pretrained, evaluated before each step (`ScoredTrajectory.values`) and trained on the `returns`
    of the estimates.
    """

    whole_groups: bool
    needs_value: bool

    def advantages(self, batch: Sequence[ScoredTrajectory], rl: RlSettings) -> list[TurnEstimates]:
        """Estimate the advantages of each trajectory's tokens, and the targets of V, in the order of `batch`.

        batch: trajectories; with `whole_groups`, all of each task's group. rl: block `rl`. Each estimate has one array
        per step, [response tokens]. The caller has checked rewards and lengths. Raises TrainingError where they cannot
        be estimated.
        """

    def loss(self, part: TokenBatch, rl: RlSettings) -> tuple[Tensor, PolicyTerms]:
        """Return the loss of a part of a minibatch, with gradient, and the terms of the step's metrics.

        The loss is a sum over the tokens of the part, divided by the number of tokens of the whole minibatch
        (`part.tokens`), so that the losses of parts and processes add up. rl: block `rl`.
        """


ALGORITHMS: dict[str, Algorithm] = {}  # by its name in rl.algorithm


def list_algorithms() -> list[str]:
    """List the values that rl.algorithm can have, without importing the algorithms."""
    return sorted({*ALGORITHMS, *(module.name for module in pkgutil.iter_modules(algorithms.__path__))})


def check_algorithm(name: str) -> None:
    """Raise BadInput where there is no RL algorithm `name`."""
    if name not in (known := list_algorithms()):
        what = f"there is no algorithm {name!r}"
        raise BadInput(what, where="rl.algorithm", fix=f"known are {', '.join(known)}")


def get_algorithm(name: str) -> Algorithm:
    """Return the RL algorithm `name`. Raises BadInput where there is none, KeyError where its file registers none."""
    check_algorithm(name)
    if name not in ALGORITHMS:
        importlib.import_module(f"{algorithms.__name__}.{name}")
    return ALGORITHMS[name]
