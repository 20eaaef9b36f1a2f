"""What `benchmarks/worlds.py` tells of worlds beside success: levels, pages, resets, and the references."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

import httpx
from worlds_figures import case, grouped, note, rounded
from worlds_play import Episode, at_random, by_expert, each, game_tasks, slots

from flywheel.bench import Case
from flywheel.synthesis.tasks import make_task
from flywheel.worlds import catalogue, levels, references
from flywheel.worlds.catalogue import World
from flywheel.worlds.references import Played, References
from flywheel.worlds.server import WorldServer


def reset_case(played: list[Episode]) -> Case:
    """Milliseconds; measured while other pages were at work too."""
    by_world = {name: 1000 * statistics.median(one.reset_s for one in mine) for name, mine in grouped(played).items()}
    value = statistics.median(by_world.values()) if by_world else 0.0
    return case("reset_time", value, None, True, unit="ms", by_world=rounded(by_world))


async def weight_case(worlds: list[World]) -> Case:
    """KiB of the first page of a task, everything that it needs included."""
    sizes = {}
    async with WorldServer() as server, httpx.AsyncClient() as client:
        for world in worlds:
            task = make_task(world, *slots(world)[-1], 0, "eval")
            url = server.new_session(task, task.seed)
            sizes[world.name] = len((await client.get(url, follow_redirects=True)).content) / 1024
            server.end_session(url)
    middle = statistics.median(sizes.values())
    return case("page_weight", middle, None, True, unit="KiB", by_world=rounded(sizes))


def level_cases(worlds: list[World], count: int) -> list[Case]:
    """levels_distinct: share of games with a level that did not repeat in `count` draws; `repeats`: where it did."""
    jobs = [(world.name, *slot, count) for world in worlds if world.kind == "game" for slot in slots(world)]
    if not jobs:
        return []
    rates: dict[str, float] = {}
    different: dict[str, float] = {}
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("fork")) as pool:
        for (name, template, level, _), (distinct, seconds) in zip(jobs, pool.map(_generate, jobs), strict=True):
            rates[f"{name} {template} {level}"] = count / seconds
            different[f"{name} {template} {level}"] = distinct / count
    repeats = {slot: share for slot, share in different.items() if share < 1}
    games = {name for name, *_ in jobs}
    whole = {slot.partition(" ")[0] for slot, share in different.items() if share == 1}
    slowest = list(min(rates.items(), key=lambda item: item[1]))
    about = {"slowest": slowest, "by_level": rounded(rates)}
    return [
        case("levels_a_second", statistics.median(rates.values()), None, True, unit="levels/s of a core", **about),
        case("levels_distinct", len(whole) / len(games), 1.0, whole == games, n=count, repeats=repeats),
    ]


def _generate(job: tuple[str, str, int, int]) -> tuple[int, float]:
    """Different levels among so many draws, and CPU seconds that they took."""
    name, template, level, count = job
    world = catalogue.get(name)
    started = time.process_time()
    digests = {levels.digest(levels.draw(world, template, level, seed)) for seed in range(count)}
    return len(digests), max(time.process_time() - started, 1e-6)


async def measure_references(pool, games: list[World]) -> None:
    """Expert and random play of each game at the references' budget, kept in its folder."""
    for world in games:
        tasks = [dataclasses.replace(task, max_steps=references.BUDGET) for task in game_tasks(world, references.SEEDS)]
        players = {"expert": by_expert, "random": at_random}
        played = {name: await each(pool, tasks, player) for name, player in players.items()}
        by_level = {
            str(level): {
                name: _summary(one for one in found if one.task.level == level) for name, found in played.items()
            }
            for level in world.levels
        }
        kept = References(
            world=world.name, version=world.version, checksum=world.checksum, seeds=references.SEEDS,
            budget=references.BUDGET, levels=by_level, **{name: _summary(found) for name, found in played.items()},
        )  # fmt: skip
        path = references.write(world, kept)
        note(
            f"{path}: expert {kept.expert.score}, random {kept.random.score} ({kept.normalised(kept.random.score):.3f})"
        )


def _summary(played: Iterable[Episode]) -> Played:
    return Played.of([(one.score, one.won, len(one.actions)) for one in played])
