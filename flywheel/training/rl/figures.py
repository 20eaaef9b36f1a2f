"""The figures of one training step that are of its episodes: what the table `metrics` and the curves show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from flywheel.environments.env import INTERFACES
from flywheel.rollout.stream import EpisodeBatch
from flywheel.training.rl.experience import Experience


def finite(metric: dict[str, Any]) -> dict[str, Any]:
    """Without what has no meaning, such as the explained variance of returns that are all the same."""
    return {name: value for name, value in metric.items() if np.isfinite(value)}


def of_episodes(batch: Sequence[Experience]) -> dict[str, float]:
    lengths = [len(sample.response) for experience in batch for sample in experience.samples]
    return {
        "reward": float(np.mean([sum(experience.rewards) for experience in batch])),
        "score": float(np.mean([experience.score for experience in batch])),
        "success": float(np.mean([experience.success for experience in batch])),
        "response_length": float(np.mean(lengths)),
        "think_length": float(np.mean([length for experience in batch for length in experience.think_lengths])),
        "rounds": float(np.mean([len(experience.samples) for experience in batch])),
        "episodes": float(len(batch)),
    }


def by_interface(batch: Sequence[Experience]) -> dict[str, float]:
    """reward_<interface>, success_<interface>: of the episodes of tasks that say how they may be done."""
    found = {}
    for name in INTERFACES:
        if mine := [experience for experience in batch if experience.interface == name]:
            found[f"reward_{name}"] = float(np.mean([sum(experience.rewards) for experience in mine]))
            found[f"success_{name}"] = float(np.mean([experience.success for experience in mine]))
    return found


def by_world(batch: EpisodeBatch) -> dict[str, float]:
    """success_<world>: of the batch's episodes in each."""
    found: dict[str, list[bool]] = defaultdict(list)
    for (ticket, _), outcome in zip(batch.episodes, batch.outcomes, strict=True):
        found[ticket.task.world].append(outcome.success)
    return {f"success_{world}": float(np.mean(each)) for world, each in sorted(found.items())}
