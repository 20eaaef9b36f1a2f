"""What an RL run is of: the state of another run is not taken up."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from flywheel.environments import kind
from flywheel.environments.env import Task
from flywheel.policy.checkpoint import digest
from flywheel.settings import Settings
from flywheel.training.rl.curriculum import PastOutcomes

_FORMAT = 4  # of the state on disk: that of another one is not taken up
# Settings that change how long a run takes, and not what it trains on: a run that goes on may have others.
_FREE = {
    "rl": {"batch_timeout_s", "threads", "processes", "device"},
    "policy": {
        "backend",
        "endpoint",
        "model",
        "key_variable",
        "device",
        "batch",
        "queue",
        "cache_mb",
        "timeout_s",
        "retries",
    },
}


def run_key(
    settings: Settings, sft_folder: Path, domain: str, iteration: int, tasks: Sequence[Task], prior: PastOutcomes | None
) -> str:
    """One text for all inputs of the run that it depends on."""
    used = [_FORMAT, digest(sft_folder), domain, iteration, settings.seed, [task.task_id for task in tasks]]
    blocks = [getattr(settings, name).model_dump(exclude=free) for name, free in _FREE.items()]
    blocks += [kind.find(name).identity(settings) for name in sorted({task.environment for task in tasks})]
    return hashlib.sha256(json.dumps([used, blocks, repr(prior)], sort_keys=True).encode()).hexdigest()
