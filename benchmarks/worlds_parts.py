"""Parts of `benchmarks/worlds.py`: what one process measures at a time, and the folder that keeps what was measured.

A run that was killed goes on where it was, as long as the worlds' sources are the same.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worlds_neighbours import neighbours
from worlds_play import (
    Episode,
    again,
    at_random,
    by_expert,
    each,
    expert_seeds,
    random_seeds,
    slots,
    through_checkpoint,
)

from flywheel.agent.actions import Finished
from flywheel.config import Settings
from flywheel.envs.base import Task, Verdict
from flywheel.envs.browser.pool import open_browser_pool
from flywheel.envs.suites import catalogue, levels, references
from flywheel.envs.suites.catalogue import BrowserWorld
from flywheel.envs.tasks.drawing import make_task
from flywheel.rewards.scorers import verifier

Row = dict[str, Any]
SIZE = 100  # episodes of a part


@dataclass(frozen=True)
class Part:
    """Episodes `first` to `last` of all that a world's player plays; of kind levels: one of its levels.

    kind: expert, random, levels; reference_expert and reference_random at the references' step budget. of: seeds (of
    each template, where the world is no game), or levels to draw. replays: episodes of the world, all its parts
    together, that are played again. neighbours: whether the expert plays a neighbouring task of each too.
    """

    world: str
    kind: str
    of: int
    first: int
    last: int
    replays: int = 0
    neighbours: bool = False

    def __str__(self) -> str:
        if self.kind == "levels":
            return " ".join(map(str, (self.world, *slots(catalogue.get_world(self.world))[self.first], "levels")))
        return f"{self.world} {self.kind.replace('_', ' ')} {self.first} to {self.last - 1}"


def parts_of(world: BrowserWorld, kind: str, of: int, **more: int) -> list[Part]:
    """All parts of one kind. Of a game's levels the middle one is drawn `of` times, the others a fifth as often."""
    if kind == "levels":
        count = len(slots(world))
        fewer = min(of, max(of // 5, 20))
        return [Part(world.name, kind, of if n == count // 2 else fewer, n, n + 1) for n in range(count)]
    total = len(_seeds(world, kind, of))
    return [Part(world.name, kind, of, first, min(first + SIZE, total), **more) for first in range(0, total, SIZE)]


class Kept:
    """The rows of parts in a folder, a file each; without a folder nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def read(self, part: Part) -> list[Row] | None:
        """None where the part was not measured, or with other options or sources than now."""
        if self._folder is None:
            return None
        try:
            found = json.loads(self._file(part).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found["rows"] if isinstance(found, dict) and found.get("about") == self._about(part) else None

    def write(self, part: Part, rows: list[Row]) -> None:
        """A part with a page that failed is not kept: it is measured again the next time."""
        if self._folder is None or any(row.get("failed") for row in rows):
            return
        path = self._file(part)
        half = path.with_suffix(".part")
        half.write_text(json.dumps({"about": self._about(part), "rows": rows}) + "\n", encoding="utf-8")
        half.replace(path)

    def _file(self, part: Part) -> Path:
        return self._folder / f"{part.world}.{part.kind}.{part.first:04}.json"

    @staticmethod
    def _about(part: Part) -> Row:
        """What was measured: the part, and all sources of the worlds, since what they share decides too."""
        return {**dataclasses.asdict(part), "sources": _sources(), "checksum": catalogue.get_world(part.world).checksum}


def _sources() -> str:
    """Of the Python that all worlds share."""
    digest = hashlib.sha256()
    for path in sorted(catalogue.SUITES_ROOT.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def measure(part: Part, settings: Settings) -> list[Row]:
    """The rows of a part, an episode or a level each; runs in a process of its own, with browsers of its own."""
    world = catalogue.get_world(part.world)
    if part.kind == "levels":
        return [_level(world, part)]
    return asyncio.run(_episodes(world, part, settings))


def _level(world: BrowserWorld, part: Part) -> Row:
    """Different levels among so many draws, and the CPU seconds that they took."""
    template, level = slots(world)[part.first]
    started = time.process_time()
    different = {levels.level_digest(world.draw(template, level, seed)) for seed in range(part.of)}
    seconds = max(time.process_time() - started, 1e-6)
    return {"template": template, "level": level, "different": len(different), "seconds": seconds}


def _seeds(world: BrowserWorld, kind: str, of: int) -> list[tuple[str, int, int]]:
    return random_seeds(world, of) if kind in ("random", "reference_random") else expert_seeds(world, of)


async def _episodes(world: BrowserWorld, part: Part, settings: Settings) -> list[Row]:
    seeds = _seeds(world, part.kind, part.of)
    tasks = [make_task(world, *seed, "eval") for seed in seeds[part.first : part.last]]
    if part.kind.startswith("reference"):
        tasks = [dataclasses.replace(task, max_steps=references.BUDGET) for task in tasks]
    async with open_browser_pool(settings) as pool:
        played = await each(pool, tasks, at_random if part.kind.endswith("random") else by_expert)
        rows = {one.task.task_id: _row(one) for one in played}
        if part.kind == "expert":
            chosen = _spread(len(seeds), part.replays)
            won = [(index, one) for index, one in enumerate(played, part.first) if one.won and one.actions]
            for _, one in won:
                rows[one.task.task_id]["early"] = _refused(one.task, one.before)
            await _replay(pool, [one for index, one in won if index in chosen], rows)
            if part.neighbours:
                await _beside(pool, world, [one.task for _, one in won], rows)
    return list(rows.values())


def _row(one: Episode) -> Row:
    """failed: its page failed each time, which shows nothing of the world."""
    return {
        "template": one.task.template,
        "level": one.task.level,
        "seed": one.task.seed,
        "score": one.score,
        "won": one.won,
        "steps": len(one.actions),
        "fault": one.fault,
        "failed": not one.screens,
    }


def _spread(total: int, count: int) -> set[int]:
    """`count` places among `total`, evenly, and so that things which come in turn are all among them."""
    return {(number * total // count + number) % total for number in range(min(count, total))} if count else set()


def _refused(task: Task, state: Row) -> bool:
    return not Verdict(verifier.score_final_state(task, state), task.threshold).v


async def _replay(pool, played: list[Episode], rows: dict[str, Row]) -> None:
    """again, resumed: the same screens, played again and gone back to a checkpoint in the middle. cut: what the
    verifier says where the expert truly stops one step early."""
    for name, found in {
        "again": await each(pool, [(one.task, one.actions) for one in played], again),
        "resumed": await each(pool, played, through_checkpoint),
    }.items():
        for one, two in zip(played, found, strict=True):
            rows[one.task.task_id] |= {name: one.screens == two.screens, "screens": len(one.screens)}
            rows[one.task.task_id]["failed"] |= not two.screens
    for one in await each(pool, [(one.task, (*one.actions[:-1], Finished())) for one in played], again):
        if one.screens:
            rows[one.task.task_id]["cut"] = not one.won


async def _beside(pool, world: BrowserWorld, won: list[Task], rows: dict[str, Row]) -> None:
    """beside: of a neighbouring task, what it asks for and whether its end is refused."""
    found = [(task, neighbours(world, task)) for task in won]
    of = [(task, random.Random(task.task_id).choice(others)) for task, others in found if others]
    ends = await each(pool, [other for _, other in of], by_expert)
    for (task, other), end in zip(of, ends, strict=True):
        if end.screens:
            told = {"asks": other.instruction, "refused": _refused(task, end.state), "won": end.won}
            rows[task.task_id]["beside"] = told
