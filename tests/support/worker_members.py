"""Members for tests of a group of workers: importable by its processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from flywheel.config import OptimizerSettings
from flywheel.training.distributed.engine import TorchEngine, TrainState
from flywheel.utils.errors import TrainingError


class Member:
    """fail_at: rank of the process that does what `fail` says."""

    def __init__(self, fail_at: int = -1, fail: str = "") -> None:
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.fail = fail if self.rank == fail_at else ""
        if self.fail == "start":
            raise OSError("no room left")

    def add(self, number: float) -> float:
        """rank + number, summed over the processes."""
        if self.fail == "raise":
            raise ValueError("it does not fit")
        if self.fail == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fail == "abort":
            os.write(2, b"reading\nno room on the device\n")
            os._exit(3)
        if self.fail == "hang":
            time.sleep(300)
        total = torch.tensor([self.rank + number])
        if dist.is_initialized():
            dist.all_reduce(total)
        return float(total)

    def wait_for_none(self) -> None:
        """One dies, and the others would not see it."""
        if self.fail == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(300)

    def refuse(self) -> None:
        raise TrainingError("the batch is empty", where="PPO")

    def here(self, folder: Path) -> None:
        (folder / str(self.rank)).write_text(str(os.getpid()))


class Kept(TrainState):
    """A training of one number, which each process looks for in a folder of its own."""

    def __init__(self) -> None:
        module = nn.Linear(1, 1)
        super().__init__({"one": module}, {"one": TorchEngine(module, OptimizerSettings())})

    def load_own(self, folder: Path) -> dict | None:
        return self.load(folder / str(dist.get_rank()) / "state", "key")
