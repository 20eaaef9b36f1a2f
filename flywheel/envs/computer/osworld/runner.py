"""Set up a task of OSWorld in a machine, and judge it after the episode."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import flywheel
from flywheel.envs.computer import checker
from flywheel.envs.computer.checker import CHECKER_FOLDER, CHECKER_HOME, CheckerLimits, CheckerVerdict, decode_files
from flywheel.envs.computer.home import MachineHome
from flywheel.envs.computer.machine import MachineRefused
from flywheel.envs.computer.osworld import official
from flywheel.envs.computer.osworld.applications import prepare_applications
from flywheel.envs.computer.task_spec import OsworldTask
from flywheel.utils.errors import EnvError

if TYPE_CHECKING:
    from flywheel.envs.computer.computer import Computer


COMMAND_TIMEOUT_S = 60.0  # of a command
_WINDOW_S = 5.0  # until a window is there that may come or not
_APPLICATION_S = 90.0  # until the window of a program is there that shows one
_REST_S = 30.0  # until the screen of an application that has begun is at rest
_SETTLE_S = 10.0  # likewise, after a task's own wait: what plays a film never rests
_SHORTEST_REST_MS = 300.0  # milliseconds that a window may stay empty before its application draws
_RETRY_S = 0.1
_MAX_PRINTED_BYTES = 2**20  # of a command's output that is judged
_SPLASH = "GIMP Startup"  # title of a window that goes before an application's own; others have no class
_PASSWORD = "password"  # of OSWorld's user; nothing in a machine asks for it


async def run_osworld_steps(
    computer: Computer, steps: list[dict[str, Any]], *, after: bool = False
) -> dict[str, bytes]:
    """Run steps of an OSWorld task, in order: those of its set-up, or those before its judging (`after`).

    steps: as in `OsworldTask`. after: the agent has ended, and may have made a step impossible, which is then skipped,
    as in OSWorld. In a set-up, an impossible step raises EnvError. Returns what commands printed, by the file name that
    their step chose. Raises EnvError where the machine is gone, EnvTimeout where it does not answer.
    """
    runner = _StepRunner(computer, after)
    if not after and computer.desktop is not None:
        await prepare_applications(computer.machine)
    for number, step in enumerate(steps):
        try:
            await runner.do(step["type"], step["parameters"])
        except MachineRefused as refused:
            if not after:
                raise EnvError(f"set-up failed: {refused.what}", where=f"config.{number}, {step['type']}") from None
    return runner.printed


class _StepRunner:
    def __init__(self, computer: Computer, after: bool) -> None:
        self._machine, self._desktop, self._after = computer.machine, computer.desktop, after
        self.printed: dict[str, bytes] = {}  # by the file names that steps chose

    async def do(self, kind: str, said: Mapping[str, Any]) -> None:
        done: dict[str, Callable[[Mapping[str, Any]], Awaitable[None]]] = {
            "download": self._upload, "upload_file": self._upload, "execute": self._execute, "command": self._execute,
            "launch": self._launch, "open": self._open, "sleep": self._sleep,
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
            for stream, answer in (("stdout", "output"), ("stderr", "error")):
                if name := said.get(stream):
                    self.printed[name] = ran[answer].encode("utf-8", "replace")[:_MAX_PRINTED_BYTES]
            if not until or _is_reached(until, ran):
                return
            if asyncio.get_running_loop().time() > over:
                raise MachineRefused(f"{said['command']} did not bring about {until} in {COMMAND_TIMEOUT_S:g} s")
            await asyncio.sleep(_RETRY_S)

    async def _launch(self, said: Mapping[str, Any]) -> None:
        body = {"command": self._filled(said["command"]), "shell": said["shell"]}
        within_s = _APPLICATION_S if said.get("shows_window") and not self._after else _WINDOW_S
        if not await self._shows("/setup/launch", body, within_s) and within_s == _APPLICATION_S:
            raise MachineRefused(f"{said['command']} shows no window in {within_s:g} s")

    async def _open(self, said: Mapping[str, Any]) -> None:
        if not await self._shows("/setup/open_file", {"path": said["path"]}, _APPLICATION_S):
            raise MachineRefused(f"no program here opens {said['path']}")
        with contextlib.suppress(TimeoutError):  # an application may show an empty window first
            async with asyncio.timeout(_WINDOW_S):
                while not await self._count_windows(PurePosixPath(said["path"]).name):  # noqa: ASYNC110 - as above
                    await asyncio.sleep(_RETRY_S)
                await self._rest(_REST_S)

    async def _shows(self, path: str, body: Mapping[str, Any], within_s: float) -> bool:
        """Post a request that starts a program; returns whether a window appears in time. Some programs show none.

        The window is not its splash, and the screen is at rest.
        """
        before = await self._count_windows()
        await self._post(path, body)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while await self._count_windows() <= before:  # noqa: ASYNC110 - no event tells it
                    await asyncio.sleep(_RETRY_S)
                await self._rest(_REST_S)
                return True
        return False

    async def _sleep(self, said: Mapping[str, Any]) -> None:
        """Wait as the task says, and then until the screen is at rest: it counts on a machine that is not busy."""
        await asyncio.sleep(said["seconds"])
        if self._desktop is not None:
            await self._rest(_SETTLE_S)

    async def _rest(self, within_s: float) -> None:
        """Wait until the screen is at rest: on a busy machine an application draws its window seconds later."""
        body = {"acts": [], "after_ms": _SHORTEST_REST_MS, "within_ms": within_s * 1000}
        await self._machine.request("POST", "/step", within_s, content=json.dumps(body))

    async def _count_windows(self, named: str = "") -> int:
        """Count the windows of applications, without splashes. named: what the title must contain."""
        windows = (await self._desktop.state())["windows"]
        return sum(bool(one["kind"]) and one["title"] != _SPLASH and named in one["title"] for one in windows)

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
_JUDGE_PROGRAM = (
    f"import sys; sys.path.insert(0, {_PACKAGE_IN_CHECKER!r}); "
    "from flywheel.envs.computer.osworld.judge import main; main()"
)
_JUDGE_LIMITS = {"memory_mb": 2048, "processes": 128}  # of desktop-env's metrics: pictures, sounds and videos


async def evaluate_osworld_task(computer: Computer, task: OsworldTask, gave_up: bool) -> CheckerVerdict:
    """Judge an OSWorld task after the episode, by its metrics. gave_up: whether the agent said that it is infeasible.

    Raises CheckerFailed where the judge gives no verdict, EnvError where the machine is gone or desktop-env, which is
    to judge, is not installed, EnvTimeout where the machine does not answer.
    """
    if not task.metrics:
        return CheckerVerdict(score=float(gave_up), reason="it cannot be done, and that is to be said")
    if gave_up:
        return CheckerVerdict(score=0.0, reason="the agent gave up")
    printed = await run_osworld_steps(computer, task.after, after=True)
    files = decode_files(task.gold) | {f"printed-{name}": text for name, text in printed.items()}
    metrics = []
    for metric in task.metrics:
        sides = {}
        for side in ("result", "expected"):
            sides[side] = await _resolve_getter(computer, getattr(metric, side), f"{len(metrics)}-{side}", files)
        metrics.append({"func": metric.func, "module": metric.module, "options": metric.options, **sides})
    machine = computer.machine
    return await judge_osworld_metrics(metrics, task.conj, task.seconds, machine.home, machine.home_bytes, files)


async def judge_osworld_metrics(
    metrics: list[dict[str, Any]], conj: str, seconds: float, home: MachineHome, most: int, files: Mapping[str, bytes]
) -> CheckerVerdict:
    """Judge a copy of a machine's home by OSWorld's metrics, in a checker's sandbox, and return the verdict.

    metrics: `func`, `module`, `options`, `result` and `expected` of each, with paths of the sandbox. conj: how
    their scores are combined. seconds: deadline. home, most: as of `run_checker`. files: content by name, in
    CHECKER_FOLDER. Raises CheckerFailed where the judge gives no verdict, EnvError where desktop-env, which is to
    judge, is not installed.
    """
    bound = {f"{_PACKAGE_IN_CHECKER}/{_PACKAGE.name}": _PACKAGE}
    python, limits = sys.executable, {}
    if any(metric["module"] for metric in metrics):
        environment = official.find_environment()
        if environment is None:
            raise EnvError("no judge: desktop-env is not installed", where="osworld", fix="make osworld")
        bound[official.ENVIRONMENT_IN_CHECKER] = environment
        python, limits = f"{official.ENVIRONMENT_IN_CHECKER}/bin/python", _JUDGE_LIMITS
    return await checker.run_checker(
        "of OSWorld",
        [python, "-I", "-c", _JUDGE_PROGRAM],
        CheckerLimits(seconds=seconds, **limits),
        home,
        most,
        {"conj": conj, "metrics": metrics},
        files=files,
        bound=bound,
    )


def place_in_checker(one: Mapping[str, Any], printed: Mapping[str, bytes]) -> dict[str, Any]:
    """Return one side of a metric (its result or expected) with paths of the checker's sandbox.

    one: the side, as of `OsworldMetric`. printed: what steps printed, by names of files in the sandbox.
    """
    given = {name: one[name] for name in ("name", "names", "given") if name in one}
    if "printed" in one:
        name = f"printed-{one['printed']}"
        return {"file": f"{CHECKER_FOLDER}/{name}", "name": one["printed"]} if name in printed else {"value": None}
    if "gold" in one:
        return {"file": f"{CHECKER_FOLDER}/{one['gold']}", **given}
    if "golds" in one:
        return {"files": [f"{CHECKER_FOLDER}/{name}" for name in one["golds"]], **given}
    if "files" in one:
        return {"files": [f"{CHECKER_HOME}/{path}" for path in one["files"]], **given}
    if "slide_part" in one:
        return {"slide_part": {**one["slide_part"], "file": f"{CHECKER_HOME}/{one['slide_part']['file']}"}}
    for kind in ("file", "tree", "last_row"):
        if kind in one:
            return {kind: f"{CHECKER_HOME}/{one[kind]}", **given}
    return dict(one)


async def _resolve_getter(
    computer: Computer, one: dict[str, Any], name: str, files: dict[str, bytes]
) -> dict[str, Any]:
    """Turn a metric's entry into an input of the judge. A command that does not start or end has no output (None).

    name: of a file that is added to `files` where what is asked of the desktop is one.
    """
    if "screen_size" in one:
        return {"value": {"width": computer.desktop.width, "height": computer.desktop.height}}
    if "window_size" in one:
        return {"value": await _window_size(computer, one["window_size"])}
    if "vlc_status" in one:
        told = await _run_fresh(computer, ["python3", "-I", "-c", _VLC_STATUS], False, "output")
        if not told:
            return {"value": None}
        files[name] = told.encode("utf-8", "replace")
        return {"file": f"{CHECKER_FOLDER}/{name}", "name": one["vlc_status"]}
    if "command" not in one:
        return place_in_checker(one, files)
    return {"value": await _run_fresh(computer, one["command"], one["shell"], one["stream"])}


_VLC_STATUS = """
import base64, urllib.request
asked = urllib.request.Request("http://127.0.0.1:8080/requests/status.xml")
asked.add_header("Authorization", "Basic " + base64.b64encode(b":password").decode())
print(urllib.request.urlopen(asked, timeout=10).read(2**20).decode())
"""


async def _run_fresh(computer: Computer, command: str | list[str], shell: bool, stream: str) -> str | None:
    asked = {"command": command, "shell": shell, "fresh": True, "wait_s": COMMAND_TIMEOUT_S}
    try:
        return (await computer.machine.call("/execute", asked, COMMAND_TIMEOUT_S))[stream]
    except MachineRefused:
        return None


async def _window_size(computer: Computer, kind: str) -> dict[str, int] | None:
    windows = (await computer.desktop.state())["windows"]
    found = next((one for one in reversed(windows) if one["kind"].lower() == kind.lower()), None)
    return found and {"width": found["width"], "height": found["height"]}
