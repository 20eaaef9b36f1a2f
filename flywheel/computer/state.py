"""What a verifier reads of a computer. It is looked at from outside: nothing that runs there is asked about itself, but
services that the task names."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from flywheel.computer.given import Given
from flywheel.computer.home import Home
from flywheel.computer.machine import GuestRefused, Machine

_MOST = 64 * 2**10  # bytes of a file that a state holds; of a longer one its digest
_ALL = 2**22  # bytes of all files that a state holds; of those that come then the digests
_DIGESTED = 2**28  # bytes of a file whose digest is made: a file of holes may say that it has any number
_PORT_S = 1.0


async def state(machine: Machine, given: Given) -> dict[str, Any]:
    """`files`; `programs` and `ports` where the task says so."""
    found: dict[str, Any] = {"files": await asyncio.to_thread(files, machine.home, given.hidden)}
    if given.programs:
        found["programs"] = await asyncio.to_thread(machine.programs)
    if given.ports:
        answers = await asyncio.gather(*(_answer(machine, *one) for one in given.ports.items()))
        found["ports"] = dict(zip(given.ports, answers, strict=True))
    return found


def files(home: Home, hidden: Collection[str] = ()) -> dict[str, str]:
    """Each file's text, or `sha256:` and its digest, by path; a folder ends in /. What lies in hidden folders, where
    applications keep what they need, is left out but for the paths in `hidden`; links and pipes are named and not read.
    """
    found, left = {}, _ALL
    for entry in home.entries():
        if (entry.path.startswith(".") or "/." in entry.path) and entry.path not in hidden:
            continue
        name = entry.path.encode("utf-8", "replace").decode()
        if entry.kind == "folder":
            found[f"{name}/"] = ""
        elif entry.kind != "file":
            found[name] = "a link" if entry.kind == "link" else "no file"
        elif entry.size > min(_MOST, left):
            found[name] = f"sha256:{home.digest(entry.path, _DIGESTED)}"
        elif (data := home.read(entry.path, _MOST + 1)) is not None:
            left -= len(data)
            found[name] = data.decode("utf-8", "replace")
    return found


async def _answer(machine: Machine, port: str, path: str) -> str | None:
    """What a service says, None where it does not; it is an agent's, and may do anything."""
    asked = {"port": int(port), "path": path, "wait_s": _PORT_S, "limit": _MOST}
    try:
        return (await machine.call("/port/get", asked, _PORT_S))["body"]
    except GuestRefused:
        return None
