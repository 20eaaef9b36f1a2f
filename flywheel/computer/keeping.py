"""What of an episode on a computer can be kept, and brought back in a fresh one.

It is the home; what the shell holds (folder, variables, functions, aliases, options); of Python's variables those that
it can write down; what the site was sent.

What else there had been is lost, and told line by line. What shell and Python hold are bytes here, which only they
themselves read again, in their machine.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from typing import Any

from pydantic import BaseModel, ConfigDict

from flywheel.computer.computer import Computer, Done
from flywheel.computer.given import Given
from flywheel.computer.machine import GuestRefused
from flywheel.environments.env import Task
from flywheel.errors import EnvError

_TOLD = "episode.json"
_HOME = "home.tar"
_DATE = (2000, 1, 1, 0, 0, 0)
_GUEST_S = 20.0  # for what shell and Python take for it
_MOST = 2**30  # bytes of what is unpacked
_LINES, _LETTERS = 100, 200  # of what is lost: as many lines, so long each


class _Told(BaseModel):
    """shell, python: base64. received: forms that the site was sent. lost: of what there had been."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    task: str
    steps: int
    received: list[dict[str, str]]
    shell: str = ""
    python: str = ""
    lost: list[str]


class Kept(_Told):
    """home: a tar file."""

    home: bytes

    def packed(self) -> bytes:
        """As a ZIP file."""
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            told = self.model_dump_json(exclude={"home"}).encode()
            for name, content in ((_TOLD, told), (_HOME, self.home)):
                archive.writestr(zipfile.ZipInfo(name, _DATE), content, zipfile.ZIP_DEFLATED, 1)
        return out.getvalue()

    @classmethod
    def opened(cls, data: bytes) -> Kept:
        """Raises EnvError for what is none."""
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                if sum(one.file_size for one in archive.infolist()) > _MOST:
                    raise ValueError("too much")
                told = _Told.model_validate_json(archive.read(_TOLD))
                return cls(**told.model_dump(), home=archive.read(_HOME))
        except (zipfile.BadZipFile, zlib.error, KeyError, ValueError, NotImplementedError, EOFError):
            raise EnvError("nothing of an episode was kept in this", where=f"{len(data)} bytes") from None


async def keep(computer: Computer, task: Task, steps: int) -> Kept:
    """What runs goes on meanwhile. Raises EnvError for a home of more than its size."""
    machine = computer.machine
    held: dict[str, Any] = await machine.call("/keep", {}, _GUEST_S)
    lost = ["files: all that lay outside of the home", "terminal: what it showed"]
    lost += [f"program: {words}" for words in machine.programs()]
    lost += [f"file: {entry.path}, which is no file" for entry in machine.home.entries() if entry.kind == "other"]
    if computer.desktop is not None:
        lost += ["windows: all; the task's applications begin anew"]
    if computer.tools:
        lost += ["tools: what their servers held in memory"]
    return Kept(
        task=task.task_id,
        steps=steps,
        received=list(computer.site.received) if computer.site else [],
        shell=held.get("shell", ""),
        python=held.get("python", ""),
        lost=_lines([*lost, *held["lost"]]),
        home=await machine.checkpoint(),
    )


async def bring_back(computer: Computer, given: Given, kept: Kept) -> tuple[Done, list[str]]:
    """Into a fresh computer: what is seen then, and what is lost. Raises EnvError as `Computer.begin`."""
    machine, lost = computer.machine, list(kept.lost)
    await computer.serve(given)
    if computer.site is not None:
        computer.site.received += kept.received
    await machine.restore(kept.home)
    held = {"shell": kept.shell, "python": kept.python}
    lost += (await machine.call("/bring_back", held, _GUEST_S))["lost"]
    try:
        done = await computer.opened()
    except GuestRefused as refused:  # what it is to show may not be there any more
        lost.append(f"windows: {refused.what}")
        done = await computer.seen()
    return done, _lines(lost)


def _lines(lost: list[str]) -> list[str]:
    lines = [line[:_LETTERS].encode("utf-8", "replace").decode() for line in lost]
    return lines if len(lines) <= _LINES else [*lines[:_LINES], f"and {len(lines) - _LINES} more"]
