"""Implement `Env` on computers: play tasks, read the state that verifiers judge, save and restore parts of episodes."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict

from flywheel.agent.actions import Action, CallUser, Finished
from flywheel.envs.base import Observation, StepResult, Streams, Task, Verdict, Verifier, apply_verifier
from flywheel.envs.computer import checker
from flywheel.envs.computer.computer import ActionOutcome, Computer, WarmPool
from flywheel.envs.computer.home import MachineHome
from flywheel.envs.computer.machine import Machine, MachineRefused
from flywheel.envs.computer.osworld import runner
from flywheel.envs.computer.task_spec import ComputerTaskSpec
from flywheel.utils.errors import EnvError, EnvTimeout

# Archives are unpacked outside their machine, within limits, since their headers may lie about sizes.

_MAX_ARCHIVE_BYTES = 2**24  # bytes that are read
_MAX_ARCHIVE_FILES = 1000
_MAX_UNPACKED_BYTES = 2**20  # bytes of all files, unpacked


def read_archive(data: bytes | None) -> dict[str, str] | None:
    """Return the files of a ZIP or tar archive (of any compression) as texts by path; None where it cannot be read.

    data: bytes of the archive; None: there is none. None is returned too for an archive that is encrypted or has more
    than 16 MiB, 1000 files or 1 MiB unpacked.
    """
    if data is None or len(data) > _MAX_ARCHIVE_BYTES:
        return None
    members = _iterate_zip if data.startswith(b"PK") else _iterate_tar
    found, left = {}, _MAX_UNPACKED_BYTES
    try:
        for path, content in members(data):
            left -= len(content)
            if left < 0 or len(found) >= _MAX_ARCHIVE_FILES:
                return None
            found[path.removeprefix("./")] = content.decode("utf-8", "replace")
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, KeyError):
        return None
    except RuntimeError:  # it is encrypted
        return None
    return found


def _iterate_zip(data: bytes) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for about in archive.infolist():
            if not about.is_dir():
                with archive.open(about) as file:
                    yield about.filename, file.read(_MAX_UNPACKED_BYTES + 1)


def _iterate_tar(data: bytes) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for about in archive:
            if about.isfile() and (file := archive.extractfile(about)) is not None:
                yield about.name, file.read(_MAX_UNPACKED_BYTES + 1)


ARCHIVE_READ_BYTES = _MAX_ARCHIVE_BYTES + 1  # bytes to read of a file, one more than the limit


# The state that a verifier reads. It is read from outside the machine, except for the services (`ports`) and the
# commands (`probe`) that the task names.

_MAX_FILE_BYTES = 64 * 2**10  # of a file's text in a state; a longer file has its digest there
_MAX_STATE_BYTES = 2**22  # of all texts in a state; the files after those have their digests there
_MAX_DIGESTED_BYTES = 2**28  # of a file that are hashed: a sparse file may claim any size
_PORT_S = 1.0
_PROBE_S = 5.0


async def read_machine_state(machine: Machine, given: ComputerTaskSpec, said_done: bool) -> dict[str, Any]:
    """Read the state that a verifier judges, as JSON values: `files`, and further keys that the task asks for.

    These are `programs`, `ports`, `packed` and `printed`. given: the task. said_done: whether the agent has ended the
    episode; commands of `probe` are run, and `printed` read, only then. Raises EnvError where the home has more than
    MAX_HOME_ENTRIES, or the machine is gone, EnvTimeout where it does not answer.
    """
    found: dict[str, Any] = {"files": await asyncio.to_thread(read_home_files, machine.home, given.hidden)}
    if given.programs:
        found["programs"] = await asyncio.to_thread(machine.programs)
    if given.ports:
        answers = await asyncio.gather(*(_ask_port(machine, *one) for one in given.ports.items()))
        found["ports"] = dict(zip(given.ports, answers, strict=True))
    if given.packed:

        def read_packed(path: str) -> dict[str, str] | None:
            return read_archive(machine.home.read(path, ARCHIVE_READ_BYTES))

        found["packed"] = {path: await asyncio.to_thread(read_packed, path) for path in given.packed}
    if given.probe and said_done:
        found["printed"] = [await _run_probe(machine, words) for words in given.probe]
    return found


def read_home_files(home: MachineHome, hidden: Collection[str] = ()) -> dict[str, str]:
    """Read all files of `home`; returns by path the text, or `sha256:` and the digest of a large file.

    Hidden files and folders, where applications keep their own data, are left out except for the paths in `hidden`;
    links and pipes are listed and not read; paths of folders end in /. Large is a file above 64 KiB, or above what is
    left of 4 MiB for all texts; of one above 256 MiB the beginning is hashed. Raises EnvError as `MachineHome.entries`.
    """
    found, left = {}, _MAX_STATE_BYTES
    for entry in home.entries():
        if (entry.path.startswith(".") or "/." in entry.path) and entry.path not in hidden:
            continue
        name = entry.path.encode("utf-8", "replace").decode()
        if entry.kind == "folder":
            found[f"{name}/"] = ""
        elif entry.kind != "file":
            found[name] = "a link" if entry.kind == "link" else "no file"
        elif entry.size > min(_MAX_FILE_BYTES, left):
            found[name] = f"sha256:{home.digest(entry.path, _MAX_DIGESTED_BYTES)}"
        elif (data := home.read(entry.path, _MAX_FILE_BYTES + 1)) is not None:
            left -= len(data)
            found[name] = data.decode("utf-8", "replace")
    return found


async def _run_probe(machine: Machine, words: list[str]) -> str:
    """Run a command of `probe` and return its output, which the agent may have forged; "" where it is late."""
    with contextlib.suppress(MachineRefused, EnvTimeout):
        return (await machine.output(words, _PROBE_S, _MAX_FILE_BYTES)).decode("utf-8", "replace")
    return ""


async def _ask_port(machine: Machine, port: str, path: str) -> str | None:
    """Return the body that a service, which the agent may have written, answers for `path`; None without an answer."""
    asked = {"port": int(port), "path": path, "wait_s": _PORT_S, "limit": _MAX_FILE_BYTES}
    try:
        return (await machine.call("/port/get", asked, _PORT_S))["body"]
    except MachineRefused:
        return None


# Partial checkpoints of an episode: docs/computer.md#what-is-kept-of-an-episode. The states of shell and Python are
# opaque bytes here; only the shell and the Python of a machine decode them.

_HEADER_FILE, _HOME_FILE = "episode.json", "home.tar"
_ZIP_DATE = (2000, 1, 1, 0, 0, 0)
_SNAPSHOT_S = 20.0  # for shell and Python to save or restore their state
_MAX_SNAPSHOT_BYTES = 2**30  # of the unpacked snapshot
_MAX_LOST_LINES, _MAX_LINE_CHARACTERS = 100, 200  # of the list of what is lost


class EpisodeSnapshot(BaseModel):
    """Hold a partial checkpoint of an episode: its files, and the states of shell and Python.

    task: its id. steps: taken so far. received: forms that the task's site got. shell, python: their states, base64; ""
    where none was saved. lost: a line for each thing that was not saved. home: a tar file.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    task: str
    steps: int
    received: list[dict[str, str]]
    shell: str = ""
    python: str = ""
    lost: list[str]
    home: bytes

    def encode(self) -> bytes:
        """Encode the snapshot as a ZIP file."""
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            header = self.model_dump_json(exclude={"home"}).encode()
            for name, content in ((_HEADER_FILE, header), (_HOME_FILE, self.home)):
                archive.writestr(zipfile.ZipInfo(name, _ZIP_DATE), content, zipfile.ZIP_DEFLATED, 1)
        return out.getvalue()

    @classmethod
    def decode(cls, data: bytes) -> EpisodeSnapshot:
        """Decode a snapshot from a ZIP file. Raises EnvError for other data."""
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                if sum(one.file_size for one in archive.infolist()) > _MAX_SNAPSHOT_BYTES:
                    raise ValueError("too much")
                return cls(**json.loads(archive.read(_HEADER_FILE)), home=archive.read(_HOME_FILE))
        except (zipfile.BadZipFile, zlib.error, KeyError, ValueError, TypeError, RuntimeError, EOFError):
            raise EnvError("nothing of an episode was kept in this", where=f"{len(data)} bytes") from None


async def save_episode(computer: Computer, task: Task, steps: int) -> EpisodeSnapshot:
    """Take a snapshot of an episode after `steps` steps; programs keep running.

    Raises EnvError for too large a home, or where the machine is gone, EnvTimeout where it does not answer.
    """
    machine = computer.machine
    held: dict[str, Any] = await machine.call("/keep", {}, _SNAPSHOT_S)
    lost = ["files: all that lay outside of the home", "terminal: what it showed"]
    lost += [f"program: {words}" for words in machine.programs()]
    lost += [f"file: {entry.path}, which is no file" for entry in machine.home.entries() if entry.kind == "other"]
    if computer.desktop is not None:
        lost.append("windows: all; the task's applications begin anew")
    if computer.tools:
        lost.append("tools: what their servers held in memory")
    return EpisodeSnapshot(
        task=task.task_id,
        steps=steps,
        received=list(computer.site.received) if computer.site else [],
        shell=held.get("shell", ""),
        python=held.get("python", ""),
        lost=_limit_lines([*lost, *held["lost"]]),
        home=await machine.checkpoint(),
    )


async def restore_episode(
    computer: Computer, given: ComputerTaskSpec, kept: EpisodeSnapshot
) -> tuple[ActionOutcome, list[str]]:
    """Restore a snapshot of an episode in a fresh computer; returns (outcome, a line for each thing that is lost).

    given: the episode's task. kept: the snapshot. Raises EnvError and EnvTimeout as `Computer.open_task`,
    MachineRefused where the home does not fit.
    """
    machine, lost = computer.machine, list(kept.lost)
    await computer.serve(given)
    if computer.site is not None:
        computer.site.received += kept.received
    await machine.restore(kept.home)
    lost += (await machine.call("/bring_back", {"shell": kept.shell, "python": kept.python}, _SNAPSHOT_S))["lost"]
    try:
        done = await computer.open_task()
    except MachineRefused as refused:  # a file that an application is to show may be gone
        lost.append(f"windows: {refused.what}")
        done = await computer.build_outcome()
    return done, _limit_lines(lost)


def _limit_lines(lost: list[str]) -> list[str]:
    lines = [line[:_MAX_LINE_CHARACTERS].encode("utf-8", "replace").decode() for line in lost]
    more = [f"and {len(lines) - _MAX_LOST_LINES} more"] if len(lines) > _MAX_LOST_LINES else []
    return [*lines[:_MAX_LOST_LINES], *more]


class ComputerEnv:
    """Play tasks on computers, a fresh one after each reset (an `Env`, `PartialCheckpointable`, `MachineAccess`).

    warm: lends fresh computers. find: returns the verifier of a task. limit_s: deadline of a reset or step, in seconds.
    Its calls raise as those of `Env` say; a checker that fails (CheckerFailed) is an EnvError too.
    """

    def __init__(self, warm: WarmPool, find: Callable[[Task], Verifier], limit_s: float) -> None:
        self._warm, self._find, self._limit_s = warm, find, limit_s
        self._computer: Computer | None = None
        self._task: Task | None = None
        self._given = ComputerTaskSpec()
        self._steps, self._over, self._broken = 0, True, False
        self._answer, self._gave_up = "", False

    async def reset(self, task: Task, seed: int) -> StepResult:
        """Start the task on a fresh computer, and return its first result.

        seed: ignored, as the task's params hold everything that was drawn. Raises EnvError where the params are wrong,
        or the computer or a set-up fails, EnvTimeout after `limit_s`, to which an OSWorld task adds its `seconds`,
        BadInput where there is no such verifier, DataError for a state that it cannot read.
        """
        async with self._deadline("reset", task):
            self._task, self._steps, self._over, self._answer = task, 0, False, ""
            self._given = ComputerTaskSpec.of(task)
        more_s = self._given.osworld.seconds if self._given.osworld else 0.0
        async with self._deadline("reset", task, more_s), self._replace_computer() as computer:
            return await self._result(await computer.begin(self._given, self._limit_s), False)

    async def step(self, action: Action) -> StepResult:
        """Carry out one action and return the result.

        Raises EnvError where the episode is over, the computer is gone or a checker fails, EnvTimeout after `limit_s`,
        to which the step that ends an episode adds what judging may take, DataError for a state that the verifier
        cannot read.
        """
        if self._task is None or self._over:
            raise EnvError("the episode is over", where=self._where(), fix="reset the environment first")
        self._steps += 1
        ends = isinstance(action, Finished | CallUser) or self._steps >= self._task.max_steps
        async with self._deadline("step", self._task, self._given.judging_s if ends else 0.0):
            done = await self._computer.do(action)
            if isinstance(action, Finished):
                self._answer = action.content
            self._gave_up = isinstance(action, CallUser)
            return await self._result(done, isinstance(action, Finished | CallUser), ends)

    async def save_partial(self) -> bytes:
        """Save home, states of shell and Python, and forms that the site received, as bytes for `restore_partial`.

        Programs keep running. Raises EnvError outside of an episode and for too large a home, EnvTimeout after
        `limit_s`.
        """
        if self._task is None or self._over:
            raise EnvError("no episode is played", where=self._where(), fix="reset the environment first")
        async with self._deadline("keep", self._task):
            return (await save_episode(self._computer, self._task, self._steps)).encode()

    async def restore_partial(self, kept: bytes) -> StepResult:
        """Continue a saved episode of this task on a fresh computer, and return its first result.

        In that, `info["lost"]` has a line for each thing that was not saved. kept: from `save_partial`. Raises EnvError
        where no task was begun, for other bytes or those of another task, EnvTimeout after `limit_s`.
        """
        if self._task is None:
            raise EnvError("no task was begun", where=self._where(), fix="reset the environment to the task first")
        async with self._deadline("bring back", self._task):
            part = EpisodeSnapshot.decode(kept)
            if part.task != self._task.task_id:
                raise EnvError(f"what was kept is of task {part.task}", where=self._where(), fix="reset to that task")
            self._steps, self._over, self._answer, self._gave_up = part.steps, False, "", False
            async with self._replace_computer() as computer:
                done, lost = await restore_episode(computer, self._given, part)
                result = await self._result(done, False)
                return replace(result, info={**result.info, "lost": lost})

    async def close(self) -> None:
        """Close the computer; may be called twice."""
        self._task, self._over = None, True
        computer, self._computer = self._computer, None
        if computer is not None:
            await computer.close()

    # -- for watchers -------------------------------------------------------------------------------------------------
    async def screen(self) -> Streams:
        """Connect to the desktop by VNC (RFB). Raises EnvError where the computer has none, or no episode is played."""
        if self._played.desktop is None:
            raise EnvError("there is no desktop to be seen", where=self._where())
        return await self._played.desktop.vnc()

    async def service(self, port: int) -> Streams:
        """Connect to a TCP port of the machine. Raises EnvError where nobody listens there, or no episode is played."""
        return await self._played.machine.stream("/port", {"port": port})

    async def terminal(self) -> Streams:
        """Connect to the agent's terminal: read its output, write keys. Raises EnvError where no episode is played."""
        return await self._played.machine.stream("/terminal/watch", {})

    async def shell(self, rows: int, columns: int) -> Streams:
        """Start a shell for the watcher and connect to it. Raises EnvError where no episode is played.

        rows, columns: characters of its screen.
        """
        return await self._played.machine.stream("/terminal/own", {"rows": rows, "columns": columns})

    async def list_folder(self, path: str) -> Mapping[str, Any]:
        """List the folder `path` below the home: `entries` and how many `more` there are.

        Raises EnvError where there is none, or no episode is played.
        """
        return json.loads(await self._played.machine.request("GET", "/files/list", params={"path": path}))

    async def read_file(self, path: str, most: int) -> bytes:
        """Read the file `path` below the home; of a file longer than `most` bytes, a beginning longer than that.

        Raises EnvError where there is none, or no episode is played.
        """
        return await self._played.machine.request("GET", "/files/read", params={"path": path, "limit": most})

    async def write_file(self, path: str, content: bytes) -> None:
        """Write `content` to the file `path`, which is created or replaced; missing folders are made.

        path: relative to the home; an absolute one leads elsewhere in the machine. One that ends in / makes a folder,
        and `content` is dropped. Raises MachineRefused (an EnvError) where it cannot be written, after which the
        machine is sound; EnvError where the machine is gone or no episode is played, EnvTimeout where it does not
        answer.
        """
        await self._played.machine.request("PUT", "/files/write", params={"path": path}, content=content)

    @property
    def _played(self) -> Computer:
        if self._computer is None:
            raise EnvError("no episode is played", where=self._where())
        return self._computer

    # -- inside -------------------------------------------------------------------------------------------------------
    async def _result(self, done: ActionOutcome, said_done: bool, ends: bool = False) -> StepResult:
        task, computer = self._task, self._computer
        found = {**await read_machine_state(computer.machine, self._given, said_done), "terminated": False}
        if computer.site is not None:
            found["received"] = list(computer.site.received)
        if self._answer:
            found["answer"] = self._answer
        if ends and (judged := await self._judged(found)) is not None:
            found["checked"] = judged.model_dump()
        score = apply_verifier(self._find(task), task.verifier, task.params, found, task.task_id)
        terminated = found["terminated"] = bool(said_done or Verdict(score, task.threshold).v)
        truncated = not terminated and self._steps >= task.max_steps
        self._over = terminated or truncated
        told = {name: text for name, text in (("note", done.note), ("result", done.result)) if text}
        width, height = (computer.desktop.width, computer.desktop.height) if done.screenshot else (0, 0)
        observation = Observation(done.screenshot, width, height, task.world, done.text)
        info = {"state": found, "score": score, **told}
        return StepResult(observation, score if terminated else 0.0, terminated, truncated, info)

    async def _judged(self, found: dict[str, Any]) -> checker.CheckerVerdict | None:
        given, machine = self._given, self._computer.machine
        if given.osworld is not None:
            return await runner.evaluate_osworld_task(self._computer, given.osworld, self._gave_up)
        if given.checker is None:
            return None
        state = {name: value for name, value in found.items() if name not in ("files", "terminated")}
        told = {"answer": self._answer, "values": given.values, "begin": given.files, "state": state}
        return await checker.run_task_checker(given.checker, machine.home, machine.home_bytes, told)

    @asynccontextmanager
    async def _replace_computer(self) -> AsyncIterator[Computer]:
        """Yield a fresh computer, and close the one before meanwhile: to clean up after a container takes long."""
        played, self._computer = self._computer, None
        ending = asyncio.gather(*([played.close()] if played else []))
        try:
            self._computer = await self._warm.take()
            yield self._computer
        finally:
            await ending
        self._warm.fill()

    @asynccontextmanager
    async def _deadline(self, what: str, task: Task, more_s: float = 0.0) -> AsyncIterator[None]:
        """Run the block within `limit_s` + `more_s` seconds, else raise EnvTimeout; any error breaks this env."""
        limit_s = self._limit_s + more_s
        if self._broken:
            raise EnvError("the computer is broken", where=self._where(), fix="lease another environment")
        try:
            async with asyncio.timeout(limit_s):
                yield
        except BaseException as error:
            self._broken = True
            if isinstance(error, TimeoutError):
                raise EnvTimeout(f"no answer to a {what} within {limit_s:g} s", where=f"task {task.task_id}") from None
            raise

    def _where(self) -> str:
        return f"world {self._task.world}, task {self._task.task_id}" if self._task else "a computer"
