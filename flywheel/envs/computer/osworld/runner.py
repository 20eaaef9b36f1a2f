"""Set up a task of OSWorld in a machine, and evaluate it after the episode."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import flywheel
from flywheel.envs.computer import checker
from flywheel.envs.computer.checker import CHECKER_FOLDER, CHECKER_HOME, CheckerLimits, CheckerVerdict, decode_files
from flywheel.envs.computer.machine import MachineRefused
from flywheel.envs.computer.task_spec import OsworldTask
from flywheel.utils.errors import EnvError

if TYPE_CHECKING:
    from flywheel.envs.computer.computer import Computer


COMMAND_TIMEOUT_S = 10.0  # of a command
_WINDOW_S = 5.0  # until a window is there
_RETRY_S = 0.1
_PASSWORD = "password"  # of OSWorld's user; nothing in a machine asks for it


async def run_osworld_steps(computer: Computer, steps: list[dict[str, Any]], *, after: bool = False) -> None:
    """Run steps of an OSWorld task, in order: those of its set-up, or those that precede its judging.

    steps: as in `OsworldTask`. after: the agent has ended, and may have made a step impossible, which is then skipped,
    as in OSWorld. Before, an impossible step raises EnvError. Raises EnvError where the machine is gone, EnvTimeout
    where it does not answer.
    """
    for number, step in enumerate(steps):
        try:
            await _StepRunner(computer, after).do(step["type"], step["parameters"])
        except MachineRefused as refused:
            if not after:
                raise EnvError(f"set-up failed: {refused.what}", where=f"config.{number}, {step['type']}") from None


class _StepRunner:
    def __init__(self, computer: Computer, after: bool) -> None:
        self._machine, self._desktop, self._after = computer.machine, computer.desktop, after

    async def do(self, kind: str, said: Mapping[str, Any]) -> None:
        done: dict[str, Callable[[Mapping[str, Any]], Awaitable[None]]] = {
            "download": self._upload, "upload_file": self._upload, "execute": self._execute, "command": self._execute,
            "launch": self._launch, "open": self._open, "sleep": lambda said: asyncio.sleep(said["seconds"]),
            "activate_window": lambda said: self._window("activate", said),
            "close_window": lambda said: self._window("close", said),
        }  # fmt: skip
        await done[kind](said)

    async def _upload(self, said: Mapping[str, Any]) -> None:
        contents = decode_files({file["path"]: file["content"] for file in said["files"]})
        for file in said["files"]:
            if self._after:  # the agent may have put a link or a pipe there
                await self._post("/execute", {"command": ["rm", "-rf", "--", file["path"]], "fresh": True})
            await self._machine.put(file["path"], contents[file["path"]])

    async def _execute(self, said: Mapping[str, Any]) -> None:
        """Run a command. A failing one is ignored, as in OSWorld; one with `until` is repeated until that holds."""
        asked = {"command": self._filled(said["command"]), "shell": said["shell"], "fresh": self._after}
        until = said["until"]
        over = asyncio.get_running_loop().time() + COMMAND_TIMEOUT_S
        while True:
            ran = await self._machine.call("/execute", {**asked, "wait_s": COMMAND_TIMEOUT_S}, COMMAND_TIMEOUT_S)
            if not until or _is_reached(until, ran):
                return
            if asyncio.get_running_loop().time() > over:
                raise MachineRefused(f"{said['command']} did not bring about {until} in {COMMAND_TIMEOUT_S:g} s")
            await asyncio.sleep(_RETRY_S)

    async def _launch(self, said: Mapping[str, Any]) -> None:
        await self._shows("/setup/launch", {"command": self._filled(said["command"]), "shell": said["shell"]})

    async def _open(self, said: Mapping[str, Any]) -> None:
        if not await self._shows("/setup/open_file", {"path": said["path"]}):
            raise MachineRefused(f"no program here opens {said['path']}")

    async def _shows(self, path: str, body: Mapping[str, Any]) -> bool:
        """Post a request that starts a program; returns whether a window appears in time. Some programs show none."""
        before = len((await self._desktop.state())["windows"])
        await self._post(path, body)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WINDOW_S):
                while len((await self._desktop.state())["windows"]) <= before:  # noqa: ASYNC110 - no event tells it
                    await asyncio.sleep(_RETRY_S)
                return True
        return False

    async def _window(self, what: str, said: Mapping[str, Any]) -> None:
        over = asyncio.get_running_loop().time() + (0.0 if self._after else _WINDOW_S)
        while True:
            try:
                await self._post(f"/setup/{what}_window", dict(said))
                return
            except MachineRefused:
                if asyncio.get_running_loop().time() > over:
                    raise
            await asyncio.sleep(_RETRY_S)

    def _filled(self, command: str | list[str]) -> str | list[str]:
        width, height = (self._desktop.width, self._desktop.height) if self._desktop is not None else (0, 0)
        values = {"CLIENT_PASSWORD": _PASSWORD, "SCREEN_WIDTH_HALF": width // 2, "SCREEN_HEIGHT_HALF": height // 2}
        values |= {"SCREEN_WIDTH": width, "SCREEN_HEIGHT": height}

        def fill(text: str) -> str:
            for name, value in values.items():
                text = text.replace(f"{{{name}}}", str(value))
            return text

        return fill(command) if isinstance(command, str) else [fill(word) for word in command]

    async def _post(self, path: str, body: Mapping[str, Any]) -> bytes:
        return await self._machine.request("POST", path, COMMAND_TIMEOUT_S, content=json.dumps(body))


def _is_reached(until: Mapping[str, Any], ran: Mapping[str, Any]) -> bool:
    return (
        ("returncode" in until and ran["returncode"] == until["returncode"])
        or ("stdout" in until and until["stdout"] in ran["output"])
        or ("stderr" in until and until["stderr"] in ran["error"])
    )


_PACKAGE = Path(flywheel.__file__).parent
_PACKAGE_IN_CHECKER = "/opt/flywheel"  # folder of the package in the judge's sandbox
_JUDGE_PROGRAM = f"{_PACKAGE_IN_CHECKER}/{_PACKAGE.name}/{Path(__file__).with_name('judge.py').relative_to(_PACKAGE)}"


async def evaluate_osworld_task(computer: Computer, task: OsworldTask, gave_up: bool) -> CheckerVerdict:
    """Judge an OSWorld task after the episode, by its metrics. gave_up: the agent has said that it is infeasible.

    Raises CheckerFailed where the judge gives no verdict, EnvError where the machine is gone, EnvTimeout where it does
    not answer.
    """
    if not task.metrics:
        return CheckerVerdict(score=float(gave_up), reason="it cannot be done, and that is to be said")
    if gave_up:
        return CheckerVerdict(score=0.0, reason="the agent gave up")
    await run_osworld_steps(computer, task.after, after=True)
    machine = computer.machine
    question: dict[str, Any] = {"conj": task.conj, "metrics": []}
    for metric in task.metrics:
        sides = {side: await _resolve_getter(computer, getattr(metric, side)) for side in ("result", "expected")}
        question["metrics"].append({"func": metric.func, "options": metric.options, **sides})
    return await checker.run_checker(
        "of OSWorld",
        [sys.executable, "-I", _JUDGE_PROGRAM],
        CheckerLimits(seconds=task.seconds),
        machine.home,
        machine.home_bytes,
        question,
        files=decode_files(task.gold),
        bound={f"{_PACKAGE_IN_CHECKER}/{_PACKAGE.name}": _PACKAGE},
    )


async def _resolve_getter(computer: Computer, one: dict[str, Any]) -> dict[str, Any]:
    """Turn a metric's entry into an input of the judge. A command that does not start or end has no output (None)."""
    if "gold" in one:
        return {"file": f"{CHECKER_FOLDER}/{one['gold']}"}
    if "golds" in one:
        return {"files": [f"{CHECKER_FOLDER}/{name}" for name in one["golds"]]}
    if "files" in one:
        return {"files": [f"{CHECKER_HOME}/{path}" for path in one["files"]]}
    if "file" in one or "tree" in one:
        return {kind: f"{CHECKER_HOME}/{path}" for kind, path in one.items()}
    if "command" not in one:
        return one
    asked = {"command": one["command"], "shell": one["shell"], "fresh": True, "wait_s": COMMAND_TIMEOUT_S}
    try:
        return {"value": (await computer.machine.call("/execute", asked, COMMAND_TIMEOUT_S))[one["stream"]]}
    except MachineRefused:
        return {"value": None}
