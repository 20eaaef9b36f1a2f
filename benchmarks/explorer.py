"""The explorer's answers with many readers at once, beside pandas on the same files.

    flywheel bench explorer --trajectories 20000 --users 20

The workspace is made up (`store_synthetic.py`), lies in `--folder` and is used again. Each reader asks one question
after another: the list under changing filters and orders, a search in thoughts, one trajectory with its steps, two
samples of a task beside one another. Readers look at an answer for `--think-time` seconds on average before they ask
again; `..._busy_ms` is of readers who never do, which is the most work that so many can make. Before that one reader
alone uses the pages in Chromium (`explorer_pages.py`). The server is a process of its own, whose memory is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import explorer_pages
import httpx
import pandas as pd
import psutil
import store_queries
import store_synthetic as synthetic
from bench_case import BenchCase, emit_case, exit_code

from flywheel.config.workspace import Workspace

_GOAL_MS, _GOAL_GIB = 200, 1.0
_SCREENS, _SCREEN_BYTES = 20_000, 20_000
_SERVER = str(Path(__file__).with_name("explorer_server.py"))
Ask = Callable[[httpx.AsyncClient, random.Random], Any]


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="flywheel bench explorer", description=__doc__)
    parser.add_argument("--trajectories", type=int, default=20_000, help="of 15 steps each")
    parser.add_argument("--users", type=int, default=20, help="who ask at once")
    parser.add_argument("--questions", type=int, default=10, help="of each reader, of each kind")
    parser.add_argument(
        "--think-time", type=float, default=3.0, help="seconds that a reader looks at an answer, on average"
    )
    parser.add_argument("--folder", type=Path, default=Path(".flywheel/bench-store"), help="where workspaces are made")
    parser.add_argument("--inspect", type=Path, help="an environment with Inspect, as a peer (`explorer_peer.py`)")
    parser.add_argument("--seed", type=int, default=2026)
    options = parser.parse_args(argv)
    return exit_code([emit_case(case) for case in _cases(options)])


def _cases(options) -> Iterator[BenchCase]:
    count = options.trajectories
    ws = synthetic.workspace(
        options.folder / f"queries-{count}", count, screens=_SCREENS, screen_bytes=_SCREEN_BYTES, seed=options.seed
    )
    store_queries.route(ws, count)
    server = subprocess.Popen(
        [sys.executable, _SERVER, str(ws.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        entrance = server.stdout.readline().strip()
        reader = {"base_url": entrance.partition("/login")[0], "cookies": dict(httpx.get(entrance, timeout=60).cookies)}
        options.indexed_s = _indexed(reader)
        yield from explorer_pages.cases(ws, _another_entrance(server), count, options.inspect)
        for name, ask, peer in _kinds(ws, count):
            yield from _measured(name, reader, ask, peer, options)
        family = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
        gib = sum(one.memory_info().rss for one in family) / 2**30
        yield BenchCase("explorer", "memory_gib", "GiB", gib, None, "", None, _GOAL_GIB, gib <= _GOAL_GIB, {"n": count})
    finally:
        server.stdin.close()
        server.wait(60)


def _another_entrance(server: subprocess.Popen) -> str:
    server.stdin.write("\n")
    server.stdin.flush()
    return server.stdout.readline().strip()


def _indexed(reader: dict[str, Any]) -> float:
    """Seconds until the words of all thoughts can be searched; a moment where they were indexed before."""
    began = time.monotonic()
    with httpx.Client(timeout=120, **reader) as client:
        while client.get("/api/trajectories", params={"q": "press", "in": "thoughts"}).status_code == 504:
            pass
    return time.monotonic() - began


def _kinds(ws: Workspace, count: int) -> Iterator[tuple[str, Ask, Callable[[], Any]]]:
    """Name, what a reader asks, and the same with pandas."""

    def one_of(rng: random.Random) -> str:
        return synthetic.identity(1, rng.randrange(count))

    async def listed(client: httpx.AsyncClient, rng: random.Random) -> None:
        where = rng.choice(["world:is:shop", "world:is:tiles", "level:least:2", "success:is:true", "destination:is:ct"])
        sort = rng.choice(["-iteration", "level", "-reward", "instruction"])
        await _get(client, "/api/trajectories", where=where, sort=sort, offset=100 * rng.randrange(5))

    async def searched(client: httpx.AsyncClient, rng: random.Random) -> None:
        # Thoughts are made of fourteen words: each search is of some of the commonest, which is the most work there is.
        await _get(client, "/api/trajectories", q=" ".join(rng.choices(synthetic.WORDS, k=3)), **{"in": "both"})

    async def searched_rare(client: httpx.AsyncClient, rng: random.Random) -> None:
        # Each thought ends in a number of its own.
        await _get(client, "/api/trajectories", q=f"{rng.randrange(count * synthetic.STEPS)}", **{"in": "thoughts"})

    async def opened(client: httpx.AsyncClient, rng: random.Random) -> None:
        await _get(client, f"/api/trajectories/{one_of(rng)}")

    async def compared(client: httpx.AsyncClient, rng: random.Random) -> None:
        first = rng.randrange(count // 4) * 4
        both = (f"/api/trajectories/{synthetic.identity(1, number)}" for number in (first, first + 1))
        await asyncio.gather(*(_get(client, path) for path in both))

    def by_pandas(*tables: str, **options: Any) -> Callable[[], Any]:
        return lambda: [pd.read_parquet(ws.data / table, **options) for table in tables]

    def page() -> pd.DataFrame:
        rows = pd.read_parquet(ws.data / "trajectories").merge(pd.read_parquet(ws.data / "routes"), on="trajectory_id")
        return rows[rows["world"] == "shop"].sort_values("reward").head(100)

    def search(words: str = "press open close") -> int:
        thoughts = pd.read_parquet(ws.data / "steps", columns=["trajectory_id", "thought"])
        return thoughts[thoughts["thought"].str.contains(words, regex=False)]["trajectory_id"].nunique()

    mine = [("trajectory_id", "==", synthetic.identity(1, count // 3))]
    yield "list", listed, page
    yield "search", searched, search
    yield "search_rare", searched_rare, lambda: search(f" {count}")
    yield "step", opened, by_pandas("trajectories", "steps", "scores", "routes", filters=mine)
    yield "compare", compared, by_pandas("trajectories", "steps", "trajectories", "steps", filters=mine)


class _Refused(Exception):
    """The server says that it has no time for it."""


async def _get(client: httpx.AsyncClient, path: str, **params: Any) -> None:
    answer = await client.get(path, params=params)
    if answer.status_code == 504:
        raise _Refused
    answer.raise_for_status()


def _measured(name: str, reader: dict[str, Any], ask: Ask, peer: Callable[[], Any], options) -> Iterator[BenchCase]:
    """Many readers who look at what they get, then many who do not."""
    began = time.perf_counter()
    peer()
    theirs = 1e3 * (time.perf_counter() - began)
    alone = asyncio.run(_asked(reader, ask, 1, options, 0.0))
    told = {"alone": statistics.median(alone), "alone_p95": _p95(alone)}
    if name == "search":
        told["indexed_s"] = options.indexed_s
    asked = options.users * options.questions
    for case, look in ((f"{name}_ms", options.think_time), (f"{name}_busy_ms", 0.0)):
        many = asyncio.run(_asked(reader, ask, options.users, options, look))
        ours = _p95(many)
        extra = {"n": options.trajectories, "users": options.users, "look_s": look, "answers": len(many)}
        extra |= {"refused": asked - len(many), "median": statistics.median(many), **told}
        met = ours <= _GOAL_MS and len(many) == asked
        yield BenchCase("explorer", case, "ms", ours, theirs, "pandas, one reader", ours / theirs, _GOAL_MS, met, extra)


async def _asked(reader: dict[str, Any], ask: Ask, users: int, options, look: float) -> list[float]:
    """Milliseconds of each answer. The first question pays for what is opened, and does not count.

    look: seconds from an answer to the same reader's next question, on average; they are spread evenly about it."""
    async with httpx.AsyncClient(timeout=120, **reader) as client:
        await ask(client, random.Random(0))
        found: list[float] = []

        async def one(number: int) -> None:
            rng = random.Random(f"{options.seed} {number}")
            for _ in range(options.questions):
                await asyncio.sleep(rng.uniform(0, 2 * look))
                began = time.perf_counter()
                with contextlib.suppress(_Refused):
                    await ask(client, rng)
                    found.append(1e3 * (time.perf_counter() - began))

        await asyncio.gather(*(one(number) for number in range(users)))
        return found


def _p95(times: list[float]) -> float:
    return sorted(times)[max(0, -(-95 * len(times) // 100) - 1)]
