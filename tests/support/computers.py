"""Computers for tests, and a small world for them; where a machine cannot be, the tests are passed over and say why."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_env import fake_task
from night import by_day

from flywheel.config import Settings, parse_settings
from flywheel.envs import isolation
from flywheel.envs.base import Task
from flywheel.envs.computer import backend
from flywheel.envs.computer.computer import Computer
from flywheel.envs.computer.machine import Machine, MachineSettings, TerminalSettings
from flywheel.envs.computer.task_spec import ComputerTaskSpec

WALLS = ("bubblewrap", "podman", "docker")
needed = pytest.mark.skipif(bool(isolation.explain_missing_bwrap()), reason=isolation.explain_missing_bwrap() or "-")
RUN_S = 3.0  # that a command is waited for, where none is to be interrupted


def wanted(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """Whether the files are as `wanted` says; no other is looked at."""
    return float(all(state["files"].get(path) == text for path, text in params["wanted"].items()))


@pytest.fixture(autouse=True)
def small_world(monkeypatch):
    """The verifier of `task`."""
    monkeypatch.setitem(backend.COMPUTER_VERIFIERS, "wanted", wanted)


@pytest.fixture(params=by_day(WALLS), name="apart")
def each_wall(request) -> str:
    """Each of what may keep a machine apart, where it can here."""
    if why := MachineSettings(walls=request.param).missing()[0]:
        pytest.skip(why)
    return request.param


def guest(machine: Machine) -> int:
    """The first process of a machine."""
    begun = {}
    for pid in machine.processes():
        with suppress(OSError):  # it is gone meanwhile
            name, fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)
            if "(python" in name:
                begun[pid] = int(fields.split()[19])
    return min(begun, key=begun.__getitem__)


def task(kind: str, **params: Any) -> Task:
    """One that is done when done.txt says yes."""
    given = {"files": {"notes.txt": "one\ntwo\n"}, "wanted": {"done.txt": "yes\n"}, **params}
    told = {"task_id": "k1", "domain": "computer", "world": "small", "template": "write", "verifier": "wanted"}
    return replace(fake_task(5, 100), **told, params=given, environment=kind)


def settings(kind: str, **chosen: Any) -> Settings:
    return parse_settings({"sandbox": {"kinds": {kind: {"run_s": RUN_S, "wait_ms": 10.0} | chosen}}}, where="test")


@asynccontextmanager
async def machine(**chosen: Any) -> AsyncIterator[Machine]:
    made = await Machine.start(MachineSettings(**chosen))
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def terminal(chosen: Mapping[str, Any] | None = None, **given: Any) -> AsyncIterator[Computer]:
    """A computer without a screen. chosen: its settings. given: what a task says to it."""
    made = await Computer.start(TerminalSettings(**{"run_s": RUN_S, "wait_ms": 10.0, **(chosen or {})}))
    try:
        await made.begin(ComputerTaskSpec(**given), 10.0)
        yield made
    finally:
        await made.close()
