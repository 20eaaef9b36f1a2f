"""How many environments one process keeps at work: the rollout's own scheduler, with machines that only wait.

Environments and policy wait as remote machines do (`--latency` seconds a step on average, and as long for an answer),
so that what is left is the work of this process: contexts, parsing, records, the loop itself. `ideal` is what so many
environments would do if it took no time.
"""

from __future__ import annotations

import asyncio
import random
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import orchestration_turn as turn
from bench_case import BenchCase
from streaming_world import CLICKS, SIZE, Line, tasks

from flywheel.agent.prompt import Context
from flywheel.config import Settings
from flywheel.policy.protocol import Completion, SamplingParams
from flywheel.rollout.episode import run_rollout

_ENVIRONMENTS = (1, 100, 1000, 4096)
_STEPS, _ROUNDS = 8, 2
_BUSY = 0.9  # of what the environments could do


class _Waits:
    """A policy that answers after a while, and knows nothing."""

    weight_version = "waits"

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def complete(self, context: Context, sampling: SamplingParams) -> Completion:
        await asyncio.sleep(self._seconds * random.Random(sampling.seed).gammavariate(4, 0.25))
        return Completion(CLICKS["left"], tuple(range(20)), (-0.1,) * 20, 80, self.weight_version, True)

    async def load(self, checkpoint: Path) -> None:
        """There are no weights."""

    async def close(self) -> None:
        """Nothing is open."""


def cases(options: Namespace) -> Iterator[BenchCase]:
    cost = 0.0
    for count in _ENVIRONMENTS:
        steps, seconds, cpu = asyncio.run(_played(count, options.latency))
        # A reset takes as long as a step and its answer.
        ideal = count * _STEPS / (2 * options.latency * (_STEPS + 1))
        cost = cpu / steps
        share = steps / seconds / ideal
        extra = {"of_ideal": share, "ideal": ideal, "cpu_ms_a_step": 1000 * cost, "steps": steps}
        yield turn.figure(f"scale_{count}", "steps/s", steps / seconds, None, True, **extra)
    # One core does 1 / cost steps a second, and an environment asks for one each two latencies.
    limit = _BUSY * 2 * options.latency / cost
    yield turn.figure("scale_one_process", "environments", limit, None, True, latency_s=options.latency)


async def _played(count: int, latency: float) -> tuple[int, float, float]:
    """Steps, seconds and CPU seconds of so many environments at work at once, each for some episodes."""
    settings = Settings.model_validate(
        {
            "rollout": {"max_concurrent": count},
            "sandbox": {"pages": count, "width": SIZE, "height": SIZE, "timeout_s": 600, "heartbeat_timeout_s": 1200},
            "policy": {"timeout_s": 600},
        }
    )
    episodes = tasks(max(4, _ROUNDS * count), _STEPS, 1.0 + 1e-9, seed=1)
    began, cpu = time.monotonic(), time.process_time()
    played = await run_rollout(
        episodes, 1, _Waits(latency), Line(latency), iteration=1, settings=settings, temperature=1.0
    )
    steps = sum(len(episode.steps) for episode in played)
    return steps, time.monotonic() - began, time.process_time() - cpu
