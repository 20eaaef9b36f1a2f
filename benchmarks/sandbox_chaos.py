"""Episodes while browsers and pages are killed, for `flywheel bench sandbox`. No benchmark itself.

The rollout's own pool plays them, with an expert in the place of the model. What each episode must be is known from a
calm run: the same reward, steps, final state and screens, or it was scored from a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import hashlib
import json
import random
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench_case import BenchCase
from sandbox_processes import Census, kill_one, memory
from sandbox_run import Run

from flywheel.agent.actions import Finished
from flywheel.agent.grammar import Grammar
from flywheel.agent.parsing.parser import serialise_action
from flywheel.agent.prompt import Context
from flywheel.config import RolloutSettings, Settings
from flywheel.envs.base import StepResult, Task
from flywheel.envs.browser.pool import BrowserPool
from flywheel.envs.suites import oracle
from flywheel.envs.tasks.drawing import make_tasks
from flywheel.policy.protocol import Completion, SamplingParams
from flywheel.rollout.episode import Episode, run_rollout
from flywheel.utils.errors import EnvError

EVERY_S = 2.0
MEMORY_GROWTH = 1.2  # the most that counts as flat, end over middle
_CHUNK = 100  # episodes whose screens are in memory at once
_LEFT_S = 10.0
_watched: contextvars.ContextVar[_Watched] = contextvars.ContextVar("watched")


class _Watched:
    """An environment whose last result its expert can see."""

    def __init__(self, env: Any) -> None:
        self._env = env

    async def reset(self, task: Task, seed: int) -> StepResult:
        self.task, self.steps, self.last = task, 0, await self._env.reset(task, seed)
        return self.last

    async def step(self, action: Any) -> StepResult:
        self.last = await self._env.step(action)
        self.steps += 1
        return self.last


class _Watching:
    """A sandbox that lends watched environments."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    @asynccontextmanager
    async def env(self, task: Task) -> AsyncIterator[_Watched]:
        async with self._pool.env() as env:
            watched = _Watched(env)
            _watched.set(watched)  # the rollout asks its policy in the task that leased the environment
            yield watched


class _Expert:
    """Solves two tasks of three; gives up on the third after a step, so that the rewards differ."""

    weight_version = "expert"

    def __init__(self, settings: Settings) -> None:
        self._grammar = Grammar.of_settings(settings)

    async def complete(self, context: Context, sampling: SamplingParams) -> Completion:
        env = _watched.get()
        tired = env.steps and int(env.task.task_id[1:], 16) % 3 == 0
        said = None if tired else oracle.next_expert_step(env.task, env.last.info["state"], env.task.seed)
        action = said[1] if said else Finished()
        text = f"Thought: next.\nAction: {serialise_action(action, self._grammar)}"
        return Completion(text, tuple(map(ord, text)), tuple(0.0 for _ in text), 1, self.weight_version, True)


def outcome(episode: Episode) -> tuple[Any, ...]:
    """What two runs of one task must share. The trajectory's reward is what scoring reads."""
    row = episode.trajectory
    last = hashlib.sha256(episode.last_screen or b"").hexdigest()
    return row.status, row.reward, row.steps, row.final_state, sorted(episode.images), last


@dataclass
class Chaos:
    """What came of it. memory: MiB (own, browsers) at the start, in the middle and at the end, medians."""

    episodes: int = 0
    lost: int = 0
    misscored: int = 0
    kills: dict[str, int] = field(default_factory=lambda: {"browser": 0, "page": 0})
    seconds: float = 0.0
    rewards: dict[str, int] = field(default_factory=dict)
    memory: list[dict[str, float]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    left_folders: list[str] = field(default_factory=list)

    @property
    def growth(self) -> float:
        """Memory at the end over memory in the middle: at the start not all pages are open yet."""
        return sum(self.memory[2].values()) / sum(self.memory[1].values())


async def chaos(open_pool: Any, tasks: Sequence[Task], episodes: int, settings: Settings, scratch: Path) -> Chaos:
    """`episodes` of the tasks in turn while something is killed every two seconds.

    open_pool: opens the sandbox. scratch: the folder for temporary files, empty at first, which shows what is left.
    """
    found, census, expert = Chaos(), Census(), _Expert(settings)
    samples: list[tuple[float, dict[str, float]]] = []
    async with open_pool() as pool:
        sandbox = _Watching(pool)
        calm = await run_rollout(tasks, 1, expert, sandbox, iteration=0, settings=settings, temperature=0.0)
        expected = {episode.trajectory.task_id: outcome(episode) for episode in calm}
        for episode in calm:
            if episode.trajectory.status == "crashed":
                raise EnvError(f"a calm episode crashed: {episode.trajectory.error}", where="bench sandbox")
        del calm, episode
        begin = time.monotonic()
        killer = asyncio.create_task(_kill(found, census, samples, random.Random(0)))
        try:
            rounds = -(-episodes // len(tasks))
            for number in range(rounds):
                batch = list(tasks)[: episodes - found.episodes]
                for start in range(0, len(batch), _CHUNK):
                    played = await run_rollout(
                        batch[start : start + _CHUNK],
                        1,
                        expert,
                        sandbox,
                        iteration=number + 1,
                        settings=settings,
                        temperature=0.0,
                    )
                    _judge(found, played, expected)
                    del played
        finally:
            killer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await killer
        found.seconds = time.monotonic() - begin
        census.look()
    found.left = census.left(_LEFT_S)
    found.left_folders = _names(scratch)
    found.memory = _thirds(samples)
    return found


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _judge(found: Chaos, played: Sequence[Episode], expected: dict[str, tuple[Any, ...]]) -> None:
    found.episodes += len(played)
    for episode in played:
        row = episode.trajectory
        if row.status == "crashed":
            found.lost += 1
        elif outcome(episode) != expected[row.task_id]:
            found.misscored += 1
        name = json.dumps(row.reward)
        found.rewards[name] = found.rewards.get(name, 0) + 1


async def _kill(
    found: Chaos, census: Census, samples: list[tuple[float, dict[str, float]]], rng: random.Random
) -> None:
    """Every two seconds a kill; shortly before it, when all has recovered from the last one, the memory."""
    due = time.monotonic()
    while True:
        due = max(due + EVERY_S, time.monotonic())
        await asyncio.sleep(due - time.monotonic())
        census.look()
        gc.collect()
        samples.append((time.monotonic(), memory()))
        if kind := kill_one(rng):
            found.kills[kind] += 1


def _thirds(samples: Sequence[tuple[float, dict[str, float]]]) -> list[dict[str, float]]:
    """Medians of the first fifth of the samples, of the middle fifth, and of the last."""
    rows = [row for _, row in samples] or [memory()]
    share = max(len(rows) // 5, 1)
    middle = (len(rows) - share) // 2
    parts = (rows[:share], rows[middle : middle + share], rows[-share:])
    return [{key: sorted(row[key] for row in part)[len(part) // 2] for key in part[0]} for part in parts]


async def chaos_cases(run: Run) -> list[BenchCase]:
    count = run.count(1000, 60)
    pages = run.options.chaos_pages
    # Twenty tries: with a kill every two seconds a try is lost now and then, and this counts what no try can save.
    settings = Settings(
        sandbox=run.sandbox(width=224, height=224, pages=pages, timeout_s=20.0),
        rollout=RolloutSettings(max_concurrent=pages, retries=20),
    )
    scratch = Path(tempfile.mkdtemp(dir=run.folder))
    with _temporary(scratch):
        tasks = make_tasks(settings, 0, "eval")[: run.count(40, 20)]

        @asynccontextmanager
        async def opened() -> AsyncIterator[BrowserPool]:
            async with run.pool(settings.sandbox) as (pool, _):
                yield pool

        found = await chaos(opened, tasks, count, settings, scratch)
    return _chaos_lines(found, settings)


@contextlib.contextmanager
def _temporary(folder: Path):
    """Temporary files of this process go there while the block runs."""
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


def _chaos_lines(found: Chaos, settings: Settings) -> list[BenchCase]:
    facts = {
        "episodes": found.episodes,
        "seconds": found.seconds,
        "kills": found.kills,
        "every_s": EVERY_S,
        "pages": settings.sandbox.pages,
        "browsers": settings.sandbox.browsers,
    }
    flat = found.growth <= MEMORY_GROWTH
    counts = {"lost": (found.lost, {"rewards": found.rewards}), "misscored": (found.misscored, {})}
    leaks = {
        "left": found.left,
        "left_folders": found.left_folders,
        "memory_mib": found.memory,
        "memory_growth": found.growth,
        "memory_flat": flat,
    }
    counts["leaked"] = (len(found.left), leaks)
    return [
        BenchCase(
            "sandbox",
            f"chaos_{name}",
            "processes" if name == "leaked" else "episodes",
            float(number),
            None,
            "none",
            None,
            0.0,
            number == 0 and (name != "leaked" or flat),
            {**facts, **more},
        )
        for name, (number, more) in counts.items()
    ]
