"""Members for tests of a group of workers: importable by its processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist

from flywheel.errors import TrainingError


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
        if self.fail == "hang":
            time.sleep(300)
        total = torch.tensor([self.rank + number])
        if dist.is_initialized():
            dist.all_reduce(total)
        return float(total)

    def refuse(self) -> None:
        raise TrainingError("the batch is empty", where="PPO")

    def here(self, folder: Path) -> None:
        (folder / str(self.rank)).write_text(str(os.getpid()))
