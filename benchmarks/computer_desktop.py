"""Desktops: from the lease to the first picture, memory of many, steps a second beside PyAutoGUI.

A step is a key, the screen come to rest, and its PNG; PyAutoGUI waits for nothing. Of both it is told how many pictures
show what the key did.
"""

from __future__ import annotations

import asyncio
import statistics
import string
import time
from collections.abc import Iterator

import computer_plain as plain
import psutil
from bench_case import BenchCase

from flywheel.agent.actions import Finished, Type
from flywheel.config import parse_settings
from flywheel.envs.base import TaskSuite
from flywheel.envs.computer.backend import SHIPPED_COMPUTER_SUITES
from flywheel.envs.computer.computer import WarmPool
from flywheel.envs.computer.desktop import Desktop
from flywheel.envs.computer.machine import MachineSettings
from flywheel.envs.registry import open_environments
from flywheel.envs.suites.desk.world import DESK
from flywheel.envs.tasks.drawing import make_task

_BENCH, _WIDTH, _HEIGHT = "computer", 1280, 720
_FILES, _EDITOR = {"notes.txt": "one\n"}, ["mousepad", "notes.txt"]
_GOAL_STEPS = 40
_PAUSE_S = 1.5  # between leases of warm desktops: what an episode would take
_PYAUTOGUI = """
import io
from PIL import ImageGrab
seen, last = 0, b""
began = time.monotonic()
for number in range(int(sys.argv[1])):
    pyautogui.press("abcdefghijklmnopqrstuvwxyz"[number % 26])
    picture = io.BytesIO()
    ImageGrab.grab(xdisplay="").save(picture, "PNG", compress_level=1)
    seen, last = seen + (picture.getvalue() != last), picture.getvalue()
print(json.dumps({"seconds": time.monotonic() - began, "seen": seen}))
"""


def cases(options) -> Iterator[BenchCase]:
    plain.needs_pyautogui()
    yield asyncio.run(_cold_leases(options.leases))
    yield asyncio.run(_warm_leases(options.leases))
    yield asyncio.run(_resets("reset_ms", DESK, options))
    yield asyncio.run(_resets("reset_ms_terminal", SHIPPED_COMPUTER_SUITES["chores"], options))
    yield asyncio.run(_memory(options.desktops))
    yield _steps("desktop_steps", options.steps, "xterm")
    yield _steps("desktop_steps_gtk", options.steps, "mousepad")


# -- leases -----------------------------------------------------------------------------------------------------------
async def _with_editor() -> Desktop:
    made = await Desktop.start(_WIDTH, _HEIGHT, MachineSettings())
    for path, text in _FILES.items():
        await made.machine.put(path, text.encode())
    await made.launch([_EDITOR])
    return made


async def _cold_leases(count: int) -> BenchCase:
    times = []
    for _ in range(count):
        began = time.monotonic()
        desktop = await _with_editor()
        await desktop.screenshot()
        times.append((time.monotonic() - began) * 1000)
        await desktop.close()
    return _p95("lease_ms_cold", times, 1500)


async def _warm_leases(count: int) -> BenchCase:
    times = []
    async with WarmPool(_with_editor, 1) as warm:
        for _ in range(count):
            await asyncio.sleep(_PAUSE_S)
            began = time.monotonic()
            desktop = await warm.take()
            await desktop.screenshot()
            times.append((time.monotonic() - began) * 1000)
            warm.fill()
            await desktop.close()
    return _p95("lease_ms_warm", times, 150)


async def _resets(case: str, world: TaskSuite, options) -> BenchCase:
    """As the environment resets once an episode is over: a warm machine, the files of the task, its set-up, its
    applications; what is seen first."""
    times, templates = [], list(world.templates)
    names = [templates[number % len(templates)] for number in range(options.leases)]
    tasks = [make_task(world, name, 1, number, "train") for number, name in enumerate(names)]
    kinds = {tasks[0].environment: {"machine": {"walls": options.walls}}}
    settings = parse_settings({"sandbox": {"kinds": kinds}}, where="bench")
    async with open_environments(settings, tasks) as environments, environments.env(tasks[0]) as env:
        for task in tasks:
            await asyncio.sleep(_PAUSE_S)
            began = time.monotonic()
            await env.reset(task, task.seed)
            times.append((time.monotonic() - began) * 1000)
            await env.step(Finished("done"))
    return _p95(case, times, 1000, walls=options.walls)


def _p95(case: str, times: list[float], goal: float, **more: str) -> BenchCase:
    p95 = statistics.quantiles(times, n=20)[-1]
    extra = {"n": len(times), "median": statistics.median(times), "goal_of": "p95", **more}
    return BenchCase(_BENCH, case, "ms", p95, None, "", None, goal, p95 <= goal, extra)


# -- memory -----------------------------------------------------------------------------------------------------------
async def _memory(count: int) -> BenchCase:
    """PSS: what processes share counts once, in parts."""
    here = psutil.Process()
    desktops = []
    try:
        for _ in range(count):
            desktops.append(await _with_editor())
        for desktop in desktops:
            await desktop.screenshot()
        by_program: dict[str, float] = {}
        for process in here.children(recursive=True):
            name = process.name()
            by_program[name] = by_program.get(name, 0.0) + process.memory_full_info().pss / 2**20
    finally:
        for desktop in desktops:
            await desktop.close()
    gib = sum(by_program.values()) / 1024
    each = {name: round(mib / count, 1) for name, mib in sorted(by_program.items())}
    extra = {"n": count, "mib_of_each": each}
    return BenchCase(_BENCH, "desktops_2gib", "GiB", gib, None, "", None, 2.0, gib <= 2.0, extra)


# -- steps ------------------------------------------------------------------------------------------------------------
def _steps(case: str, count: int, app: str) -> BenchCase:
    seconds, seen = asyncio.run(_ours(count, app))
    with plain.desktop(_WIDTH, _HEIGHT, [[app]]) as (display, _):
        peer = plain.pyautogui(display, _PYAUTOGUI, str(count))
    ours, theirs = count / seconds, count / peer["seconds"]
    extra = {"n": count, "shown": seen / count, "shown_peer": peer["seen"] / count, "goal_of": "ours"}
    name, ratio, met = "PyAutoGUI, PIL", ours / theirs, ours >= _GOAL_STEPS
    return BenchCase(_BENCH, case, "steps/s", ours, theirs, name, ratio, _GOAL_STEPS, met, extra)


async def _ours(count: int, app: str) -> tuple[float, int]:
    desktop = await Desktop.start(_WIDTH, _HEIGHT, MachineSettings())
    try:
        desktop.after_ms = 0
        await desktop.launch([[app]])
        await desktop.screenshot()
        seen, last = 0, b""
        began = time.monotonic()
        for number in range(count):
            _, picture = await desktop.do(Type(string.ascii_lowercase[number % 26]))
            seen, last = seen + (picture != last), picture
        return time.monotonic() - began, seen
    finally:
        await desktop.close()
