"""Read the state that a verifier judges: files, archives, programs, ports and probes of a machine."""

from __future__ import annotations

import asyncio
import contextlib
import io
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator
from typing import Any

from flywheel.envs.computer.home import MachineHome
from flywheel.envs.computer.machine import Machine, MachineRefused
from flywheel.envs.computer.task_spec import ComputerTaskSpec
from flywheel.utils.errors import EnvTimeout

# Archives are opened outside of their machine, within limits: their headers may lie about sizes.

_MAX_ARCHIVE_BYTES = 2**24  # bytes that are read
_MAX_ARCHIVE_FILES = 1000
_MAX_UNPACKED_BYTES = 2**20  # bytes of all files, unpacked


def read_archive(data: bytes | None) -> dict[str, str] | None:
    """Read texts by path, of a zip or of a tar of any compression; folders are left out.

    Returns None where it is no archive, wants a password, or holds more than is looked at.
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
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError, ValueError, RuntimeError, KeyError):
        return None  # RuntimeError: it wants a password
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


ARCHIVE_READ_BYTES = _MAX_ARCHIVE_BYTES + 1  # bytes to read of a file, so that one that is too long is seen to be so


# The state of a computer that a verifier reads. It is read from outside: no program in there is asked, except services
# that the task names.

_MAX_FILE_BYTES = 64 * 2**10  # bytes of a file that a state holds; a longer one has its digest there
_MAX_STATE_BYTES = 2**22  # bytes of all files that a state holds; of those that come then the digests
_MAX_DIGESTED_BYTES = 2**28  # bytes of a file whose digest is made: a file of holes may say that it has any number
_PORT_S = 1.0
_PROBE_S = 5.0


async def read_machine_state(machine: Machine, given: ComputerTaskSpec, said_done: bool) -> dict[str, Any]:
    """Read the state that a verifier judges.

    It has `files`; where the task asks for it `programs`, `ports`, `packed`, and `printed` once the agent has said that
    it is done (`said_done`).
    """
    found: dict[str, Any] = {"files": await asyncio.to_thread(read_home_files, machine.home, given.hidden)}
    if given.programs:
        found["programs"] = await asyncio.to_thread(machine.programs)
    if given.ports:
        answers = await asyncio.gather(*(_ask_port(machine, *one) for one in given.ports.items()))
        found["ports"] = dict(zip(given.ports, answers, strict=True))
    if given.packed:
        found["packed"] = {
            path: await asyncio.to_thread(_read_packed_files, machine.home, path) for path in given.packed
        }
    if given.probe and said_done:
        found["printed"] = [await _run_probe(machine, words) for words in given.probe]
    return found


def read_home_files(home: MachineHome, hidden: Collection[str] = ()) -> dict[str, str]:
    """Read each file's text, or `sha256:` and its digest, by path; a folder's path ends in /.

    Hidden folders, where applications keep their own files, are left out but for the paths in `hidden`; links and pipes
    are listed and not read.
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


def _read_packed_files(home: MachineHome, path: str) -> dict[str, str] | None:
    return read_archive(home.read(path, ARCHIVE_READ_BYTES))


async def _run_probe(machine: Machine, words: list[str]) -> str:
    """What a command prints, which the agent may have changed: it proves what a right program alone could print. ""
    where it does not end in time."""
    with contextlib.suppress(MachineRefused, EnvTimeout):
        return (await machine.output(words, _PROBE_S, _MAX_FILE_BYTES)).decode("utf-8", "replace")
    return ""


async def _ask_port(machine: Machine, port: str, path: str) -> str | None:
    """What a service says, None where it does not; it is an agent's, and may do anything."""
    asked = {"port": int(port), "path": path, "wait_s": _PORT_S, "limit": _MAX_FILE_BYTES}
    try:
        return (await machine.call("/port/get", asked, _PORT_S))["body"]
    except MachineRefused:
        return None
