"""How far a task of OSWorld's is done: what it says is looked for in the machine, and judged outside of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import flywheel
from flywheel.computer import checker
from flywheel.computer.checker import HOME, PLACE, Judgement, Limits
from flywheel.computer.machine import GuestRefused
from flywheel.computer.osworld.steps import COMMAND_S, carry_out
from flywheel.computer.osworld.task import Metric, OsworldTask

if TYPE_CHECKING:
    from flywheel.computer.computer import Computer

_PACKAGE = Path(flywheel.__file__).parent
_SEEN = "/opt/flywheel"  # the package, where the judge runs
_JUDGE = f"{_SEEN}/{_PACKAGE.name}/{Path(__file__).with_name('judge.py').relative_to(_PACKAGE)}"


async def evaluate(computer: Computer, task: OsworldTask, gave_up: bool) -> Judgement:
    """gave_up: the agent has said that it cannot be done.

    Raises CheckerFailed where nothing could be judged, EnvError where the machine is gone.
    """
    if not task.metrics:
        return Judgement(score=float(gave_up), reason="it cannot be done, and that is to be said")
    if gave_up:
        return Judgement(score=0.0, reason="the agent gave up")
    await carry_out(computer, task.after, after=True)
    machine = computer.machine
    told = {"conj": task.conj, "metrics": [await _found(computer, one) for one in task.metrics]}
    return await checker.judge(
        "of OSWorld",
        [sys.executable, "-I", _JUDGE],
        Limits(seconds=task.seconds),
        machine.home,
        machine.home_bytes,
        told,
        files=checker.decoded(task.gold),
        bound={f"{_SEEN}/{_PACKAGE.name}": _PACKAGE},
    )


async def _found(computer: Computer, metric: Metric) -> dict[str, Any]:
    return {
        "func": metric.func,
        "options": metric.options,
        "result": await _got(computer, metric.result),
        "expected": await _got(computer, metric.expected),
    }


async def _got(computer: Computer, one: dict[str, Any]) -> dict[str, Any]:
    """What the judge is told of it. A command that does not start, or does not end, has printed nothing."""
    if "gold" in one:
        return {"file": f"{PLACE}/{one['gold']}"}
    if "golds" in one:
        return {"files": [f"{PLACE}/{name}" for name in one["golds"]]}
    if "files" in one:
        return {"files": [f"{HOME}/{path}" for path in one["files"]]}
    if "file" in one or "tree" in one:
        return {kind: f"{HOME}/{path}" for kind, path in one.items()}
    if "command" not in one:
        return one
    asked = {"command": one["command"], "shell": one["shell"], "fresh": True, "wait_s": COMMAND_S}
    try:
        raw = await computer.machine.request("POST", "/execute", COMMAND_S, content=json.dumps(asked))
    except GuestRefused:
        return {"value": None}
    return {"value": json.loads(raw)[one["stream"]]}
