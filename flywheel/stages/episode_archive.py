"""The episodes that RL trained on, kept so that people can look at them: all rows, and the screens of a few.

They are rows of `trajectories`, `steps` and `images` of the stage; no store takes them up. Episodes are written as they
end, since a killed run is not told again of those that it had finished.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from flywheel.rollout import episode_files
from flywheel.rollout.episode import Episode
from flywheel.stages import shards


class EpisodeArchive:
    """A folder of episodes, one file each. Of every `every`-th episode of a task (rl.samples: one a group) the screens
    are kept too."""

    def __init__(self, folder: Path, run_id: str, every: int) -> None:
        self._folder, self._run_id, self._every = folder / "episodes", run_id, every
        self._folder.mkdir(parents=True, exist_ok=True)

    def add(self, episode: Episode) -> None:
        images = episode.images if episode.trajectory.sample % self._every == 0 else {}
        trajectory = replace(episode.trajectory, run_id=self._run_id or None)
        steps = tuple(replace(step, sampled_logprobs=()) for step in episode.steps)
        kept = Episode(trajectory, steps, images)
        episode_files.write(self._folder / f"{episode.id}.zip", kept, {})

    def episodes(self) -> Iterator[Episode]:
        """In the order of their identity."""
        return map(episode_files.read, sorted(self._folder.glob("*.zip")))

    def stage(self, folder: Path) -> None:
        """Stage the rows for the partitions."""
        shards.write_episodes(folder, self.episodes())
