"""What each training process of RL does: fit V, take the algorithm's steps, read and write weights and state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flywheel.policy.constraint import open_constraint
from flywheel.policy.encoding import Encoder
from flywheel.policy.model import load_model, save_checkpoint
from flywheel.settings import Settings
from flywheel.training.rl.algorithm import Algorithm
from flywheel.training.rl.experience import Experience, step_samples
from flywheel.training.rl.learner import Learner
from flywheel.training.rl.update import train_step
from flywheel.training.rl.value_pretraining import pretrain_value


class RLTrainer:
    """All processes that train together (`workers`) make the same calls; the first one alone writes files."""

    def __init__(self, folder: Path, settings: Settings, seed: int, algorithm: Algorithm) -> None:
        """folder: the checkpoint it begins with. seed: of the value model's first weights."""
        self.rl, self.encoder = settings.rl, Encoder.from_folder(folder)
        policy = load_model(folder, device=self.rl.device)
        constraint = open_constraint(self.encoder, policy.config, settings.policy)
        self.learner = Learner(policy, self.rl, seed, algorithm, constraint)

    def fit_value(self, batch: Sequence[Experience], seed: int) -> dict[str, float]:
        """Value pretraining; its figures."""
        found = pretrain_value(self.learner, batch, self.rl, seed)
        return {f"value_pretraining_{name}": value for name, value in vars(found).items()}

    def update(self, batch: Sequence[Experience], seed: int) -> dict[str, float]:
        """One RL step on the batch; the figures of `train_step`, and horizon."""
        found, horizon = step_samples(batch, self.learner, self.rl)
        return train_step(self.learner, found, self.rl, seed) | {"horizon": horizon}

    def write(self, folder: Path) -> None:
        """The policy's weights as a checkpoint folder."""
        with self.learner.gathered():
            if self.learner.first:
                save_checkpoint(self.learner.policy, self.encoder, folder)

    def save(self, path: Path, about: dict[str, Any]) -> None:
        self.learner.save(path, about)

    def load(self, path: Path, key: str) -> dict[str, Any] | None:
        return self.learner.load(path, key)
