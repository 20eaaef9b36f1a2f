"""The worlds: whether experts win every task, verifiers refuse what is not done, chance wins none, and all repeats.

oracle_games: evaluation levels that the game's expert wins by screen actions. oracle_sites, oracle_control: templates x
seeds that the world's expert completes and the verifier accepts. verifier_rejects: of these, those refused where the
expert stops one step early, and where the state is that of a neighbouring task in the same session. random_success:
evaluation tasks that clicks, drags and keys at random places win. replay_identical: the expert's actions played again,
and gone back to a checkpoint in the middle: every screen byte for byte. Then levels generated a second, levels that
repeat, reset time, page weight.

It runs in parts of a hundred episodes, in as many processes as there are cores. With --keep FOLDER each part is kept
there, and the same command goes on where one was ended.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from bench_case import BenchCase, exit_code
from worlds_facts import page_cases
from worlds_figures import Found, chance, level_cases, note, rejects, replays, rows_of, success, write_references
from worlds_parts import Kept, Part, Row, measure, parts_of

from flywheel.config import SandboxSettings, Settings
from flywheel.envs.suites import catalogue, references
from flywheel.envs.suites.catalogue import BrowserWorld
from flywheel.utils.errors import BadInput, EnvError

_ORACLES = {"game": "oracle_games", "site": "oracle_sites", "page": "oracle_control"}
CASES = (*_ORACLES.values(), "verifier_rejects", "random_success", "replay_identical", "levels", "pages")


def main(argv: Sequence[str] | None = None) -> int:
    options = _options(argv)
    worlds = [catalogue.get_world(name) for name in options.worlds or catalogue.list_worlds()]
    sandbox = SandboxSettings(
        browsers=1, pages=options.pages, timeout_s=options.timeout_s, recycle_after=10_000, width=224, height=224
    )
    settings = Settings(sandbox=sandbox)
    found = _measured(_plan(worlds, options), Kept(options.keep), options.workers, settings)
    if options.write_references:
        write_references(found)
        return 0
    cases = _cases(found, options.only)
    if "pages" in options.only:
        cases += asyncio.run(page_cases(worlds, settings))
    return exit_code(cases)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="flywheel bench worlds", description=__doc__)
    parser.add_argument("--worlds", nargs="+", metavar="WORLD", default=[], help="all where left out")
    parser.add_argument("--only", nargs="+", metavar="CASE", default=list(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="for what was measured; taken up again from there")
    parser.add_argument("--quick", action="store_true", help="few levels and seeds: that it works")
    parser.add_argument("--levels", type=int, default=100, help="evaluation levels of a game (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=20, help="of each template of a site (default: %(default)s)")
    parser.add_argument("--random", type=int, default=100, help="tasks of a world played at random")
    parser.add_argument("--replays", type=int, default=10, help="episodes of a world played again")
    parser.add_argument("--distinct", type=int, default=1000, help="draws of a game's middle level, to see repeats")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="default: the number of cores")
    parser.add_argument("--pages", type=int, default=3, help="pages at once in each worker's browser")
    parser.add_argument("--timeout-s", type=float, default=120.0, help="deadline of a step")
    parser.add_argument(
        "--write-references",
        action="store_true",
        help=f"measure expert and random play in {references.SEEDS} levels of each game at a budget of "
        f"{references.BUDGET} steps, and keep them in its folder; no case is run",
    )
    options = parser.parse_args(argv)
    unknown = [name for name in options.only if name not in CASES]
    if unknown:
        raise BadInput(f"no case {unknown[0]!r}", where="flywheel bench worlds", fix=f"of {', '.join(CASES)}")
    if options.quick:
        options.levels, options.seeds, options.random, options.replays, options.distinct = 12, 1, 12, 1, 30
    return options


def _plan(worlds: list[BrowserWorld], options: argparse.Namespace) -> list[Part]:
    """All that is to be measured."""
    if options.write_references:
        kinds = ("reference_expert", "reference_random")
        return [
            part
            for world in worlds
            if world.kind == "game"
            for kind in kinds
            for part in parts_of(world, kind, references.SEEDS)
        ]
    only, plan = set(options.only), []
    for world in worlds:
        if {_ORACLES[world.kind], "verifier_rejects", "replay_identical"} & only:
            count = options.levels if world.kind == "game" else options.seeds
            more = {"replays": options.replays if "replay_identical" in only else 0}
            more["neighbours"] = "verifier_rejects" in only and world.kind == "site"
            plan += parts_of(world, "expert", count, **more)
        if "random_success" in only:
            plan += parts_of(world, "random", options.random)
        if "levels" in only and world.kind == "game":
            plan += parts_of(world, "levels", options.distinct)
    return plan


def _measured(plan: list[Part], kept: Kept, workers: int, settings: Settings) -> Found:
    """The rows of each part, those that are kept already first; a line is printed as each is done."""
    read = {part: kept.read(part) for part in plan}
    found = {part: rows for part, rows in read.items() if rows is not None}
    missing = [part for part in plan if part not in found]
    if found:
        note(f"{len(found)} of {len(plan)} parts were measured before")
    started = time.monotonic()
    lifeline = os.pipe()
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _end_with_parent, lifeline) as pool:
        going = {pool.submit(measure, part, settings): part for part in missing}
        try:
            for number, done in enumerate(as_completed(going), 1):
                part, rows = going[done], done.result()
                found[part] = rows
                kept.write(part, rows)
                spent = (time.monotonic() - started) / 60
                left = spent / number * (len(missing) - number)
                note(f"{number}/{len(missing)}, {spent:.1f} min, about {left:.0f} left: {part}{_told(part, rows)}")
        except BrokenProcessPool:
            raise EnvError(
                "a process of the benchmark was killed",
                where="flywheel bench worlds",
                fix="the same command with --keep goes on where it was",
            ) from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            os.close(lifeline[1])  # a worker would go on with its part, and with the one after it
            raise
    return {part: found[part] for part in plan}


def _end_with_parent(reads: int, writes: int) -> None:
    """A worker ends when the parent does, by whatever the parent ends: then nobody holds the pipe's other end."""
    os.close(writes)
    threading.Thread(target=lambda: os.read(reads, 1) or os._exit(1), daemon=True).start()


def _told(part: Part, rows: list[Row]) -> str:
    if part.kind == "levels":
        return f", {part.of / rows[0]['seconds']:.1f} a second"
    return f", won {sum(row['won'] for row in rows)} of {len(rows)}"


def _cases(found: Found, only: Sequence[str]) -> list[BenchCase]:
    cases = []
    for kind, name in _ORACLES.items():
        rows = rows_of(found, "expert", kind)
        if name in only and rows:
            cases.append(success(name, rows))
    played, lucky = rows_of(found, "expert"), rows_of(found, "random")
    if "verifier_rejects" in only and played:
        cases.append(rejects(played))
    if "random_success" in only and lucky:
        cases.append(chance(lucky))
    if "replay_identical" in only and played:
        cases.append(replays(played))
    if any(part.kind == "levels" for part in found):
        cases += level_cases(found)
    return cases


if __name__ == "__main__":
    raise SystemExit(main())
