"""What a reader waits for in Chromium: a trajectory of 500 steps and 127 MB, the first rows of a query, a trajectory
that is written while the list is open. Each is what one reader sees, with nobody else there.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import explorer_peer
import numpy as np
from bench_case import BenchCase
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from flywheel.config import SandboxSettings
from flywheel.config.workspace import Workspace
from flywheel.envs.browser.driver import chromium
from flywheel.store import partitions

_LONG, _LIVE = 2, 3  # iterations of the made-up workspace: one long trajectory, and those that are written meanwhile
_STEPS, _SIDE = 500, 290  # a PNG of so many noisy pixels has 254 kB
_TIMES = 5
_WAIT_MS = 120_000


def cases(ws: Workspace, entrance: str, count: int, inspect: Path | None) -> Iterator[BenchCase]:
    """`open_long_ms`, `first_rows_ms`, `live_ms`: medians, with the slowest beside them; and `foreign_requests`.
    inspect: the environment of Inspect, whose viewer is the first one's peer."""
    size = long(ws)
    origin, _, _ = entrance.partition("/login")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(chromium.find_chromium(SandboxSettings())), args=["--no-sandbox"]
        )
        tab = browser.new_page()
        tab.set_default_timeout(_WAIT_MS)
        foreign: list[str] = []
        tab.on(
            "request",
            lambda asked: None if asked.url.startswith((origin, "data:", "blob:")) else foreign.append(asked.url),
        )
        tab.goto(entrance)
        theirs = _in_inspect(browser.new_page(), inspect, ws) if inspect else None
        ours = [_opened(tab, origin) for _ in range(_TIMES)]
        yield _case("open_long_ms", ours, 500, theirs, n=count, steps=_STEPS, mb=size)
        yield _case("first_rows_ms", [_queried(tab, origin, n) for n in range(_TIMES)], 300, n=count)
        try:
            yield _case("live_ms", [_seen(tab, origin, ws, n) for n in range(_TIMES)], 2_000, n=count)
        finally:
            _removed(ws)
        found = len(foreign)
        yield BenchCase("explorer", "foreign_requests", "requests", found, None, "", None, 0, not found, {"n": count})
        browser.close()


def long(ws: Workspace) -> float:
    """A trajectory of 500 steps, each with a screen of its own; made once. Gives the megabytes of its screens."""
    if not ws.partition("steps", _LONG, "rollout").is_dir():
        rng = np.random.default_rng(0)
        screens = [_png(rng) for _ in range(_STEPS)]
        names = [hashlib.sha256(data).hexdigest() for data in screens]
        images = zip(names, screens, strict=True)
        rows = [
            {"sha256": name, "width": _SIDE, "height": _SIDE, "format": "png", "bytes": data} for name, data in images
        ]
        partitions.write_partition(ws, "images", _LONG, "rollout", rows)
        _written(ws, _LONG, ["long"], names)
    files = partitions.partition_files(ws, "images", _LONG, "rollout")
    return round(sum(path.stat().st_size for path in files) / 1e6, 1)


def _png(rng: np.random.Generator) -> bytes:
    file = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (_SIDE, _SIDE, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


def _written(ws: Workspace, iteration: int, names: list[str], screens: list[str | None]) -> None:
    of = {"task_id": f"k{iteration}", "domain": "sites", "world": "shop", "instruction": f"Buy all, {names[-1]}"}
    made = {"source": "rollout", "author": "model", "status": "completed", "steps": len(screens), "level": 1}
    trajectories = [of | made | {"trajectory_id": name, "sample": n} for n, name in enumerate(names)]
    steps = [
        {
            "trajectory_id": name,
            "step": n,
            "thought": f"I look for article {n} and put it into the cart.",
            "action_type": "click",
            "action": "click(point='<point>50 50</point>')",
            "raw_text": f"Thought: I look for article {n}.\nAction: click(point='<point>50 50</point>')",
            "x": 0.5,
            "y": 0.5,
            "token_ids": list(range(40)),
            "logprobs": [-0.1] * 40,
            "image_sha256": screen,
            "author": "model",
        }
        for name in names
        for n, screen in enumerate(screens)
    ]
    partitions.write_partition(ws, "steps", iteration, "rollout", steps)
    partitions.write_partition(ws, "trajectories", iteration, "rollout", trajectories)


def _removed(ws: Workspace) -> None:
    for table in ("steps", "trajectories"):
        shutil.rmtree(ws.data / table / f"iteration={_LIVE:03d}", ignore_errors=True)


def _waited(act: Callable[[], object], *until: Callable[[], object]) -> float:
    """Milliseconds from before `act` to after all of `until`."""
    began = time.perf_counter()
    for one in (act, *until):
        one()
    return 1e3 * (time.perf_counter() - began)


def _opened(tab: Page, origin: str) -> float:
    """Until its first step can be read and seen."""
    tab.goto("about:blank")
    return _waited(
        lambda: tab.goto(f"{origin}/trajectories/long", wait_until="commit"),
        lambda: tab.locator(".words h2").wait_for(),
        lambda: tab.locator(".screen img").evaluate("screen => screen.decode()"),
    )


def _in_inspect(tab: Page, environment: Path, ws: Workspace) -> float:
    """Until the first step can be read and seen in Inspect's viewer."""
    tab.set_default_timeout(_WAIT_MS)
    with explorer_peer.inspect_viewer(environment, ws, _LONG) as address:
        times = []
        for _ in range(_TIMES):
            tab.goto("about:blank")
            times.append(
                _waited(
                    lambda: tab.goto(address, wait_until="commit"),
                    lambda: tab.get_by_text("I look for article 0").first.wait_for(),
                    lambda: tab.locator("img[src^='data:image']").first.evaluate("screen => screen.decode()"),
                )
            )
    tab.close()
    return statistics.median(times)


def _queried(tab: Page, origin: str, n: int) -> float:
    """Until the first rows of a result are there."""
    tab.goto(f"{origin}/sql")
    tab.get_by_role("textbox", name="SQL").fill(f"SELECT {n} AS n, * FROM trajectories LIMIT 1000")
    if not n:  # the first question of all begins the process that answers
        tab.get_by_role("button", name="Run").click()
        tab.locator("[role=row][row-id]").first.wait_for()
        tab.goto(f"{origin}/sql")
        tab.get_by_role("textbox", name="SQL").fill("SELECT 0 AS n, * FROM trajectories LIMIT 1000")
    return _waited(
        lambda: tab.get_by_role("button", name="Run").click(),
        lambda: tab.locator("[role=row][row-id]").first.wait_for(),
    )


def _seen(tab: Page, origin: str, ws: Workspace, n: int) -> float:
    """From when it is written until the open list shows it."""
    if not n:
        _removed(ws)
        tab.goto(f"{origin}/trajectories")
        tab.locator("[role=row][row-id]").first.wait_for()
    names = [f"live{number}" for number in range(n + 1)]
    _written(ws, _LIVE, names, [None])
    return _waited(lambda: tab.get_by_role("link", name=f"Buy all, live{n}").first.wait_for())


def _case(name: str, times: list[float], goal: float, peer: float | None = None, **extra: float) -> BenchCase:
    ours = statistics.median(times)
    ratio, whose = (ours / peer, "Inspect's viewer") if peer else (None, "")
    extra |= {"slowest": max(times)}
    return BenchCase("explorer", name, "ms", ours, peer, whose, ratio, goal, ours <= goal, extra)
