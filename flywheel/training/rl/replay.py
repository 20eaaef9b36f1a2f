"""Keep successful episodes, and train again on turns of those whose tasks seldom succeed (`rl.replay_fraction`).

A turn is taken again with the advantage that it had in its own batch, if that was positive, and with the
log-probabilities that were recorded then. The buffer's list is saved with the trainer's state, its episodes lie in
files beside it: a killed run draws the same turns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from flywheel.config import Settings
from flywheel.envs.tasks.drawing import task_from_row, task_to_row
from flywheel.policy.encoding import Encoder
from flywheel.rollout.async_pool import EpisodeBatch, EpisodeOutcome
from flywheel.rollout.episode import read_episode, read_episode_facts, write_episode
from flywheel.training.rl.trainer import Experience, build_experiences

_RARE = 0.5  # success rate of a task below which its successes are replayed
_MOST = 256  # episodes that are kept, the newest


@dataclass(frozen=True)
class ReplayedTurns:
    """Hold the turns drawn from one kept episode: their indices among its steps, and the advantage of each."""

    trajectory_id: str
    turns: tuple[int, ...]
    advantages: tuple[float, ...]


class ReplayBuffer:
    """Keep the newest 256 successful episodes that began at their task's beginning, as files in `folder`.

    entries: for the saved state, oldest first: `id` of the trajectory, `task` that was drawn, `advantages` of its
    turns.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.entries: list[dict[str, Any]] = []

    def add(self, batch: EpisodeBatch, advantages: Mapping[str, Sequence[float]]) -> None:
        """Keep the successful episodes of a `batch` that was trained on, each in a file.

        They are those that began at their task's beginning and have a turn of positive advantage; of more than 256 the
        oldest go. advantages: of each turn, by trajectory_id. Raises DiskFull.
        """
        for (request, episode), outcome in zip(batch.episodes, batch.outcomes, strict=True):
            mine = [float(one) for one in advantages.get(episode.id, ())]
            if outcome.success and not episode.trajectory.start_step and max(mine, default=0.0) > 0:
                self._folder.mkdir(parents=True, exist_ok=True)
                facts = {"task": task_to_row(request.task), "score": outcome.score}
                write_episode(self._file(episode.id), episode, facts)
                self.entries.append({"id": episode.id, "task": request.drawn, "advantages": mine})
        self.entries = self.entries[-_MOST:]

    def sweep(self) -> None:
        """Delete the files of episodes that are no longer kept; call it once the state that says so is saved."""
        kept = {self._file(entry["id"]) for entry in self.entries}
        for path in self._folder.glob("*.zip"):
            if path not in kept:
                path.unlink(missing_ok=True)

    def choose(self, count: int, success_rate: Callable[[str], float | None], seed: int) -> list[ReplayedTurns]:
        """Draw `count` turns of positive advantage, or as many as there are, of tasks that seldom succeed now.

        Seldom: in less than half of the episodes. success_rate: of a task by its id, in [0, 1]; None: not known, and
        its turns are not drawn. seed: of the draw. Returns them sorted by trajectory.
        """
        rare = [entry for entry in self.entries if (rate := success_rate(entry["task"])) is not None and rate < _RARE]
        turns = [(entry, n) for entry in rare for n, one in enumerate(entry["advantages"]) if one > 0]
        drawn = np.random.default_rng(seed).permutation(len(turns))[:count].tolist()
        found: dict[str, dict[int, float]] = defaultdict(dict)
        for entry, n in (turns[place] for place in drawn):
            found[entry["id"]][n] = entry["advantages"][n]
        return [
            ReplayedTurns(name, tuple(sorted(mine)), tuple(mine[n] for n in sorted(mine)))
            for name, mine in sorted(found.items())
        ]

    def read(self, chosen: Sequence[ReplayedTurns], encoder: Encoder, settings: Settings) -> list[Experience]:
        """Read the `chosen` turns from their files as experiences to train on, in order.

        encoder: of the policy. settings: of the workspace. Raises DataError for an episode that is missing or damaged,
        and what `build_experiences` does.
        """
        found = []
        for one in chosen:
            facts, episode = (
                read_episode_facts(self._file(one.trajectory_id)),
                read_episode(self._file(one.trajectory_id)),
            )
            task, outcome = task_from_row(facts["task"]), EpisodeOutcome(0, facts["score"], True)
            (whole,) = build_experiences([episode], [outcome], {task.task_id: task}, encoder, settings)
            found.append(
                replace(
                    whole,
                    samples=tuple(whole.samples[n] for n in one.turns),
                    rewards=tuple(whole.rewards[n] for n in one.turns),
                    value_features=tuple(whole.value_features[n] for n in one.turns),
                    bootstrap_context=None,
                    success=False,  # imitating it once (rl.positive_nll) is enough
                    replayed=one.advantages,
                )
            )
        return found

    def _file(self, trajectory_id: str) -> Path:
        return self._folder / f"{trajectory_id}.zip"
