"""The worlds: whether experts win every task, verifiers refuse what is not done, chance wins none, and all repeats.

oracle_games: evaluation levels that the game's expert wins by screen actions. oracle_sites: templates x seeds that
the site's expert completes and the verifier accepts. verifier_rejects: of these, those refused where the expert stops
one step early, and where the state is that of a neighbouring task in the same session. random_success: evaluation
tasks that clicks, drags and keys at random places win. replay_identical: the expert's actions played again, and gone
back to a checkpoint in the middle: every screen byte for byte. Then levels generated a second, levels that repeat,
reset time, page weight.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence

from worlds_facts import level_cases, measure_references, reset_case, weight_case
from worlds_figures import case, named, note, shares
from worlds_neighbours import neighbour
from worlds_play import (
    Episode,
    again,
    at_random,
    by_expert,
    each,
    game_tasks,
    site_tasks,
    spread_tasks,
    through_checkpoint,
)

from flywheel.agent.actions import Finished
from flywheel.bench import Case, exit_code
from flywheel.errors import BadInput
from flywheel.reward import verifiers
from flywheel.sandbox.env import Task
from flywheel.sandbox.pool import open_sandbox
from flywheel.settings import Sandbox, Settings
from flywheel.worlds import catalogue, references
from flywheel.worlds.catalogue import World

CHANCE = 0.05  # most that random play may win
CASES = ("oracle_games", "oracle_sites", "verifier_rejects", "random_success", "replay_identical", "levels", "pages")
_SHOWN = 20  # tasks named where something failed


def main(argv: Sequence[str] | None = None) -> int:
    options = _options(argv)
    worlds = [catalogue.get(name) for name in options.worlds or catalogue.names()]
    sandbox = Sandbox(
        browsers=options.browsers, pages=options.pages, timeout_s=options.timeout_s, recycle_after=10_000, width=224,
        height=224,
    )  # fmt: skip
    cases = asyncio.run(_measure(worlds, options, Settings(sandbox=sandbox)))
    if "levels" in options.only:
        cases += level_cases(worlds, options.distinct)
    return exit_code(cases)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="flywheel bench worlds", description=__doc__)
    parser.add_argument("--worlds", nargs="+", metavar="WORLD", default=[], help="all where left out")
    parser.add_argument("--only", nargs="+", metavar="CASE", default=list(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--quick", action="store_true", help="few levels and seeds: that it works")
    parser.add_argument("--levels", type=int, default=100, help="evaluation levels of a game (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=20, help="of each template of a site (default: %(default)s)")
    parser.add_argument("--random", type=int, default=100, help="tasks of a world played at random")
    parser.add_argument("--replays", type=int, default=10, help="episodes of a world played again")
    parser.add_argument("--distinct", type=int, default=1000, help="levels drawn to look for repeats")
    cores = os.cpu_count() or 1
    parser.add_argument("--browsers", type=int, default=cores, help="default: the number of cores")
    parser.add_argument("--pages", type=int, default=3 * cores, help="pages at once, over all browsers")
    parser.add_argument("--timeout-s", type=float, default=120.0, help="deadline of a step")
    parser.add_argument(
        "--write-references", action="store_true",
        help=f"measure expert and random play in {references.SEEDS} levels of each game at a budget of "
        f"{references.BUDGET} steps, and keep them in its folder; no other case is run",
    )  # fmt: skip
    options = parser.parse_args(argv)
    unknown = [name for name in options.only if name not in CASES]
    if unknown:
        raise BadInput(f"no case {unknown[0]!r}", where="flywheel bench worlds", fix=f"of {', '.join(CASES)}")
    if options.quick:
        options.levels, options.seeds, options.random, options.replays, options.distinct = 12, 1, 12, 1, 30
    if options.write_references:
        options.only = []
    return options


async def _measure(worlds: list[World], options: argparse.Namespace, settings: Settings) -> list[Case]:
    cases: list[Case] = []
    games = [world for world in worlds if world.kind == "game"]
    sites = [world for world in worlds if world.kind == "site"]
    async with open_sandbox(settings) as pool:
        if options.write_references:
            await measure_references(pool, games)
        played: list[Episode] = []
        if {"oracle_games", "replay_identical"} & set(options.only) and games:
            won = await _experts(pool, games, options.levels)
            cases.append(_success("oracle_games", won))
            played += won
        if {"oracle_sites", "verifier_rejects", "replay_identical"} & set(options.only) and sites:
            won = await _experts(pool, sites, options.seeds)
            cases.append(_success("oracle_sites", won))
            if "verifier_rejects" in options.only:
                cases.append(await _rejects(pool, [one for one in won if one.won]))
            played += won
        if "random_success" in options.only:
            cases.append(await _random_success(pool, worlds, options))
        if "replay_identical" in options.only:
            cases.append(await _replays(pool, [one for one in played if one.won], options.replays))
    if "pages" in options.only:
        cases += [reset_case(played), await weight_case(worlds)]
    return cases


# -- cases -------------------------------------------------------------------------------------------------------------
async def _experts(pool, worlds: list[World], count: int) -> list[Episode]:
    """The expert's play of each world, which is told when it is done: a long benchmark shows where it is."""
    played = []
    for world in worlds:
        tasks = game_tasks(world, count) if world.kind == "game" else site_tasks(world, count)
        found = await each(pool, tasks, by_expert)
        note(f"{world.name}: expert won {sum(one.won for one in found)} of {len(found)}")
        played += found
    return played


def _success(name: str, played: list[Episode]) -> Case:
    lost = [one for one in played if not one.won]
    for one in lost[:_SHOWN]:
        note(f"not won: {named(one.task)}, score {one.score:.3g} after {len(one.actions)} steps {one.fault}")
    value = 1 - len(lost) / len(played)
    return case(name, value, 1.0, not lost, n=len(played), by_world=shares(played))


async def _rejects(pool, won: list[Episode]) -> Case:
    """Of finished tasks, those whose verifier refuses both of two states that are not what was asked."""
    early = _sound(await each(pool, [(one.task, (*one.actions[:-1], Finished())) for one in won], again))
    beside: list[bool] = []
    others: dict[str, Task] = {}
    for one in won:
        other = neighbour(catalogue.get(one.task.world), one.task)
        if other is not None:
            others[one.task.task_id] = other
    once = {other.task_id: other for other in others.values()}
    ends = {end.task.task_id: end for end in _sound(await each(pool, once.values(), by_expert))}
    accepted = [f"{named(one.task)} one step early" for one in early if one.won]
    for one in won:
        other = others.get(one.task.task_id)
        if other is not None and other.task_id in ends:
            state = ends[other.task_id].state
            refused = verifiers.score(one.task, state) < one.task.threshold
            beside.append(refused)
            if not refused:
                accepted.append(f"{named(one.task)} by the state of: {other.instruction}")
    for line in accepted[:_SHOWN]:
        note(f"wrongly accepted: {line}")
    checks = len(early) + len(beside)
    value = 1 - len(accepted) / checks if checks else 0.0
    counted = {"one_step_early": len(early), "neighbours": len(beside)}
    return case("verifier_rejects", value, 1.0, checks > 0 and not accepted, n=checks, **counted)


def _sound(played: list[Episode]) -> list[Episode]:
    """Without those whose page failed: they show nothing of the world."""
    return [one for one in played if one.screens]


async def _random_success(pool, worlds: list[World], options: argparse.Namespace) -> Case:
    played: list[Episode] = []
    for world in worlds:
        tasks = game_tasks(world, options.random) if world.kind == "game" else spread_tasks(world, options.random)
        found = _sound(await each(pool, tasks, at_random))
        note(f"{world.name}: random play won {sum(one.won for one in found)} of {len(found)}")
        played += found
    wins = [one for one in played if one.won]
    for one in wins[:_SHOWN]:
        note(f"won at random: {named(one.task)} after {len(one.actions)} steps")
    value, by_world = len(wins) / len(played), shares(played)
    worst = list(max(by_world.items(), key=lambda item: item[1]))
    about = {"goal_is": "less than", "worst": worst, "by_world": by_world}
    return case("random_success", value, CHANCE, value < CHANCE, n=len(played), **about)


async def _replays(pool, won: list[Episode], count: int) -> Case:
    chosen: list[Episode] = []
    for name in dict.fromkeys(one.task.world for one in won):
        mine = [one for one in won if one.task.world == name and len(one.actions) > 1]
        chosen += mine[:: max(1, len(mine) // count)][:count]
    replayed = await each(pool, [(one.task, one.actions) for one in chosen], again)
    resumed = await each(pool, chosen, through_checkpoint)
    differ = []
    for way, episodes in (("again", replayed), ("through a checkpoint", resumed)):
        differ += [(way, a) for a, b in zip(chosen, episodes, strict=True) if a.screens != b.screens]
    for way, one in differ[:_SHOWN]:
        note(f"differs {way}: {named(one.task)}")
    checks = len(replayed) + len(resumed)
    value, screens = 1 - len(differ) / max(checks, 1), sum(len(one.screens) for one in chosen)
    return case("replay_identical", value, 1.0, checks > 0 and not differ, n=checks, screens=screens)


if __name__ == "__main__":
    raise SystemExit(main())
