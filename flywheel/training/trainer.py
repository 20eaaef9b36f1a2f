"""What each training process of RL does: fit V, take PPO's steps, read and write weights and state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from flywheel.policy.encoding import Encoder
from flywheel.policy.model import load_model, save_checkpoint
from flywheel.settings import Rl
from flywheel.training.experience import Experience, turns
from flywheel.training.update import learner, ppo_update
from flywheel.training.value_pretraining import pretrain_value


class Trainer:
    """All processes that train together (`crew`) make the same calls; the first one alone writes files."""

    def __init__(self, folder: Path, rl: Rl, seed: int) -> None:
        """folder: the checkpoint it begins with. seed: of the value model's first weights."""
        self.rl, self.encoder = rl, Encoder.from_folder(folder)
        self.learner = learner(load_model(folder, device=rl.device), rl, seed)

    def fit_value(self, batch: Sequence[Experience], seed: int) -> dict[str, float]:
        """Value pretraining; its figures."""
        found = pretrain_value(self.learner, batch, self.rl, seed)
        return {f"value_pretraining_{name}": value for name, value in vars(found).items()}

    def update(self, batch: Sequence[Experience], seed: int) -> dict[str, float]:
        """One PPO step on the batch; the figures of `ppo_update`, and horizon."""
        found, horizon = turns(batch, self.learner, self.rl)
        return ppo_update(self.learner, found, self.rl, seed) | {"horizon": horizon}

    def write(self, folder: Path) -> None:
        """The policy's weights as a checkpoint folder."""
        with self.learner.gathered():
            if self.learner.first:
                save_checkpoint(self.learner.policy, self.encoder, folder)

    def save(self, path: Path, about: dict[str, Any]) -> None:
        """Everything that must outlast a kill, and `about`, in one file, which is replaced whole."""
        state = self.learner.state_dict()
        if self.learner.first:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_suffix(".part")
            torch.save({**about, "learner": state}, temporary)
            temporary.replace(path)

    def load(self, path: Path, key: str) -> dict[str, Any] | None:
        """Back to what `save` wrote; returns its `about`, None where there is no file or one of another key."""
        if not path.is_file():
            return None
        raw = torch.load(path, weights_only=True)
        if raw["key"] != key:
            return None
        self.learner.load_state_dict(raw.pop("learner"))
        return raw
