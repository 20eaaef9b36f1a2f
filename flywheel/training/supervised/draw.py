"""Which steps and general samples a supervised run is of: drawn from how many there are, before any of them is read."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from flywheel.settings import Supervised

log = logging.getLogger(__name__)


class Drawn(NamedTuple):
    """One sample to be. name: its trajectory_id, or its sample_id where it is general data. number: among the steps of
    that trajectory that can be learned from, from 0."""

    name: str
    number: int
    general: bool


@dataclass(frozen=True)
class Pool:
    """What samples are drawn from: names, how many steps of each can be learned from, and what one of them weighs
    beside the others. Each [names]; a general sample is one of a single step."""

    names: Sequence[str]
    steps: np.ndarray
    weights: np.ndarray

    @property
    def total(self) -> int:
        """How many steps there are."""
        return int(self.steps.sum())

    @property
    def weight(self) -> float:
        """Of all of them."""
        return float(self.steps @ self.weights)


def joined(own: Pool, people: Pool, share: float) -> Pool:
    """Both, weighed so that `share`, below 1, of what a mix draws of them is people's; one alone where the other is
    empty."""
    if not own.total or not people.total:
        return own if own.total else people
    weight = share / (1 - share) * own.weight / people.weight
    return Pool(
        [*own.names, *people.names],
        np.concatenate([own.steps, people.steps]),
        np.concatenate([own.weights, people.weights * weight]),
    )


def mix(agent: Pool, general: Pool, settings: Supervised, seed: int) -> list[Drawn]:
    """settings.samples samples, the share settings.agent_fraction of them from `agent`, the rest general, shuffled.

    Within its source a step comes as often as its weight asks, rounded up or down. Few agent samples are repeated
    settings.max_repeats times on average, no more; general data take the rest. Where one source is empty the other
    fills the mix (an early iteration has no agent data), and the log says so.
    """
    n = settings.samples
    of_agent = min(round(n * settings.agent_fraction), settings.max_repeats * agent.total)
    if not agent.total or not general.total:
        log.warning("there are no %s samples: the other source fills the mix", "general" if agent.total else "agent")
        of_agent = n if agent.total else 0
    rng = np.random.default_rng(seed)
    chosen = [Drawn(*one, False) for one in _drawn(agent, of_agent, rng)]
    chosen += [Drawn(*one, True) for one in _drawn(general, n - of_agent, rng)]
    return [chosen[i] for i in rng.permutation(len(chosen))]


def _drawn(pool: Pool, n: int, rng: np.random.Generator) -> list[tuple[str, int]]:
    """n steps by systematic sampling: each comes floor or ceil of n weight / sum of weights times.

    On a line each step has a piece as long as its weight, those of a trajectory side by side, the trajectories in
    random order; points at equal distances choose.
    """
    if not pool.total or not n:
        return []
    order = rng.permutation(len(pool.names))
    lengths = (pool.steps * pool.weights)[order]
    ends = np.cumsum(lengths)
    points = (np.arange(n) + rng.random()) * (ends[-1] / n)
    places = np.searchsorted(ends, points, side="right").clip(max=np.flatnonzero(lengths)[-1])
    chosen = order[places]
    numbers = (points - (ends - lengths)[places]) // pool.weights[chosen]
    numbers = numbers.astype(int).clip(0, pool.steps[chosen] - 1)
    return [(pool.names[i], number) for i, number in zip(chosen.tolist(), numbers.tolist(), strict=True)]
