"""Run a program that judges a computer's task, its checker, after the episode and in a sandbox, on a copy of the home.

Its input and output: docs/computer.md#a-checker. Where the program breaks this contract, CheckerFailed is raised: the
episode counts as a crash and gets no score.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from flywheel.envs import cgroups, isolation
from flywheel.envs.computer import bwrap
from flywheel.envs.computer import home as computer_home
from flywheel.envs.computer.home import MachineHome
from flywheel.utils.errors import EnvError, last_line

CHECKER_FOLDER = "/opt/checker"  # path of the program's folder in the sandbox
# Path of the home's copy in the sandbox: the home's own, unless flywheel is installed below it on the host.
_OWN_PATHS = (Path(sys.prefix), Path(sys.base_prefix), Path(__file__))
CHECKER_HOME = "/opt/home" if any(one.is_relative_to(bwrap.MACHINE_HOME) for one in _OWN_PATHS) else bwrap.MACHINE_HOME
_MAX_OUTPUT_BYTES = 2**16  # bytes that a checker may print
_MAX_REASON_CHARACTERS = 2000  # characters of the reason that are kept
_N_BWRAP_PROCESSES = 3  # bubblewrap's own, in addition to the checker's
_CORES = 1.0
_WHERE = "what judges the task"


FileName = Annotated[str, Field(pattern=r"^[^/\x00]+$")]  # without a folder


class CheckerFailed(EnvError):
    """Signal that a checker gave no verdict: it is missing, crashed, did not end in time, or printed something else."""


class CheckerLimits(BaseModel):
    """Hold the limits of a checker program.

    seconds: its timeout. memory_mb: MiB of all its processes and the files that they write; without cgroups, of each
    process and each writable folder. processes: processes and threads at once; not enforced without cgroups.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    seconds: float = Field(10.0, gt=0, le=600)
    memory_mb: int = Field(512, ge=32, le=65536)
    processes: int = Field(32, ge=1, le=4096)


class Checker(CheckerLimits):
    """Hold a task's checker and its limits. program: its file name. files: base64 by name, the program included."""

    program: str
    files: dict[FileName, str]


class CheckerVerdict(BaseModel):
    """Hold a checker's verdict. score: 0 to 1. reason: for people who look at a trajectory, cut to 2000 characters."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)
    score: float = Field(ge=0, le=1, allow_inf_nan=False)
    reason: str = ""

    @field_validator("reason")
    @classmethod
    def _cut(cls, reason: str) -> str:
        return reason[:_MAX_REASON_CHARACTERS]


async def run_task_checker(checker: Checker, home: MachineHome, most: int, told: Mapping[str, Any]) -> CheckerVerdict:
    """Run a task's own checker on a copy of the home, and return its verdict.

    home: of the machine. most: bytes of the home's files that are copied at most. told: fields of the JSON object on
    its standard input, besides `home` and `left_out`. Raises CheckerFailed where it gives no verdict, EnvError where it
    cannot run here, one of its files is not base64 or the home has too many.
    """
    place = f"{CHECKER_FOLDER}/{checker.program}"
    words = [sys.executable, "-I", place] if checker.program.endswith(".py") else [place]
    return await run_checker(checker.program, words, checker, home, most, told, files=decode_files(checker.files))


def decode_files(files: Mapping[str, str]) -> dict[str, bytes]:
    """Decode files from base64; returns bytes by name. Raises EnvError where one is not base64."""
    try:
        return {name: base64.b64decode(text, validate=True) for name, text in files.items()}
    except ValueError as error:
        raise EnvError(f"a file of the task is not base64: {error}", where="params") from None


async def run_checker(
    name: str,
    words: Sequence[str],
    chosen: CheckerLimits,
    home: MachineHome,
    most: int,
    told: Mapping[str, Any],
    *,
    files: Mapping[str, bytes],
    bound: Mapping[str, Path] | None = None,
) -> CheckerVerdict:
    """Run a program that judges a copy of the home, without network, and return its verdict.

    name: of the checker, for error messages. words: its command. chosen: its limits. home, most, told: as of
    `run_task_checker`. files: content by name, put into CHECKER_FOLDER. bound: path in the sandbox -> host path,
    read-only. Raises CheckerFailed where it gives no verdict, EnvError without bubblewrap or for too many files.
    """
    if why := isolation.explain_missing_bwrap():
        raise EnvError(f"no checker without bubblewrap: {why}", fix="apt-get install bubblewrap")
    folder = Path(tempfile.mkdtemp(prefix="flywheel-checker-"))
    try:
        left_out = await asyncio.to_thread(_prepare_folder, folder, home, most, files)
        seen = {CHECKER_HOME: folder / "home", CHECKER_FOLDER: folder / "program", **(bound or {})}
        question = json.dumps({"home": CHECKER_HOME, "left_out": left_out, **told}).encode()
        output = await _run_program(name, words, chosen, seen, question)
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    return _parse_verdict(name, output)


def _prepare_folder(folder: Path, home: MachineHome, most: int, files: Mapping[str, bytes]) -> dict[str, str]:
    for part in ("home", "program"):
        (folder / part).mkdir()
    for name, content in files.items():
        path = folder / "program" / name
        path.write_bytes(content)
        path.chmod(0o755)
    return computer_home.copy_home(home, folder / "home", most)


async def _run_program(
    name: str, words: Sequence[str], chosen: CheckerLimits, seen: Mapping[str, Path], question: bytes
) -> bytes:
    """Run the checker and return what it printed; all processes that it started have ended by then."""
    memory, rules = chosen.memory_mb * 2**20, bwrap.open_seccomp_program()
    group = process = None
    try:
        group = cgroups.create_cgroup(chosen.memory_mb, chosen.processes + _N_BWRAP_PROCESSES, _CORES)
        limit = "" if group else f"ulimit -v {memory // 1024}; "
        inside = ["/bin/sh", "-c", f'{limit}exec "$@"', "sh", *words]
        command = bwrap.build_checker_command(inside, seen, [Path(sys.prefix)], memory, rules)
        process = await asyncio.create_subprocess_exec(
            *(group.wrap_command(command) if group else command), stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, pass_fds=(rules,), env={},
            start_new_session=True, limit=2**16,
        )  # fmt: skip
        async with asyncio.timeout(chosen.seconds):
            _, output, complaint = await asyncio.gather(
                _write_question(process.stdin, question), _read_output(process), _last_error_line(process.stderr)
            )
            status = await process.wait()
    except TimeoutError:
        raise CheckerFailed(f"the checker {name} did not end in {chosen.seconds:g} s", where=_WHERE) from None
    finally:
        os.close(rules)
        if process is not None:
            await _end_process(process)
        if group is not None:
            await asyncio.to_thread(group.kill_and_remove)
    if len(output) > _MAX_OUTPUT_BYTES:
        raise CheckerFailed(f"the checker {name} printed more than {_MAX_OUTPUT_BYTES} bytes", where=_WHERE)
    if status:
        why = f": {complaint}" if complaint else ""
        raise CheckerFailed(f"the checker {name} ended with status {status}{why}", where=_WHERE)
    return output


async def _write_question(stdin: asyncio.StreamWriter, question: bytes) -> None:
    with contextlib.suppress(ConnectionError):  # a checker need not read its input
        stdin.write(question)
        await stdin.drain()
        stdin.close()


async def _read_output(process: asyncio.subprocess.Process) -> bytes:
    """Read what the checker prints until its output ends; kill it once it has printed too much."""
    output = b""
    while part := await process.stdout.read(_MAX_OUTPUT_BYTES):
        output = (output + part)[: _MAX_OUTPUT_BYTES + 1]
        if len(output) > _MAX_OUTPUT_BYTES:
            _kill(process)
    return output


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


async def _end_process(process: asyncio.subprocess.Process) -> None:
    """Kill the process group and wait. asyncio reports an exit only once both outputs are read to their end."""
    _kill(process)
    for stream in (process.stdout, process.stderr):
        while await stream.read(_MAX_OUTPUT_BYTES):
            pass
    await process.wait()


async def _last_error_line(stderr: asyncio.StreamReader) -> str:
    kept = b""
    while part := await stderr.read(_MAX_OUTPUT_BYTES):
        kept = (kept + part)[-_MAX_OUTPUT_BYTES:]
    return last_line(kept.decode("utf-8", "replace"))


def _parse_verdict(name: str, said: bytes) -> CheckerVerdict:
    lines = said.decode("utf-8", "replace").strip().split("\n")
    try:
        return CheckerVerdict.model_validate_json(lines[-1])
    except ValidationError as error:
        fault = error.errors()[0]
        field = ".".join(map(str, fault["loc"]))
        why = f"{field}: {fault['msg']}" if field else "it is not a JSON object"
        raise CheckerFailed(
            f"the last line of the checker {name} is no verdict ({why}): {lines[-1][:100]!r}",
            where=_WHERE,
            fix='let it print {"score": 1, "reason": "..."}',
        ) from None
