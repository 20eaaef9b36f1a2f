"""What is attacked: this machine's secrets and another session; and how an attack is judged, from outside."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import secrets
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import computer_attacks as attacks
import psutil

from flywheel.envs.computer import bwrap
from flywheel.envs.computer.desktop import Desktop
from flywheel.envs.computer.env import read_home_files
from flywheel.envs.computer.machine import Machine, MachineSettings
from flywheel.utils.errors import EnvError, EnvTimeout

SMALL = MachineSettings(memory_mb=192, home_mb=16, processes=48)
_QUIET_S, _BOMB_S, _LOOK_S, _LIVES_S = 25.0, 1.0, 10.0, 10.0
_POLL_S = 0.02
_VICTIM = """import socket, threading, time, http.server
one = socket.socket(socket.AF_UNIX); one.bind("\\0victim"); one.listen()
http.server.ThreadingHTTPServer(("0.0.0.0", 8000), http.server.SimpleHTTPRequestHandler).serve_forever()
"""


class Target:
    """victim: another session, whose home and programs hold the secret too."""

    def __init__(self, folder: Path, victim: Machine) -> None:
        self.secret, name = attacks.SECRET + secrets.token_hex(8), f"flywheel-{secrets.token_hex(4)}"
        self.victim, self._open = victim, contextlib.ExitStack()
        file, shared = folder / "secret", Path("/dev/shm", name)
        file.write_text(self.secret)
        shared.write_text(self.secret)
        self._open.callback(shared.unlink)
        listening = self._open.enter_context(socket.create_server(("0.0.0.0", 0)))
        abstract = self._open.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(f"\0{name}")
        abstract.listen()
        addresses = [one.address for found in psutil.net_if_addrs().values() for one in found if one.family == 2]
        self.given = {
            "secret": str(file), "folder": str(folder), "port": listening.getsockname()[1],
            "addresses": addresses, "name": name, "key": 0x5EC4E7, "guest": f"{bwrap.SERVER_IN_MACHINE}/server.py",
        }  # fmt: skip

    def close(self) -> None:
        self._open.close()

    async def harm(self) -> str:
        """What has become of the other session: "" where it is well."""
        try:
            async with asyncio.timeout(_LIVES_S):
                told = await self.victim.call("/shell/run", {"command": "echo well", "wait_s": _LIVES_S})
                programs = self.victim.programs()
        except (EnvError, TimeoutError) as error:
            return f"the other session does not answer: {error}"
        if told["text"] != "well\n" or not any("sleep 7777" in words for words in programs):
            return f"the other session was changed: {told}, {programs}"
        kept = self.victim.home.read("victim.txt", 100)
        if kept != self.secret.encode():
            return "the other session's file was changed"
        return "" if _watches() else "this user can watch no file any more"


def _watches() -> bool:
    """One more can be made: the kernel counts them for all processes of a user."""
    made = ctypes.CDLL(None).inotify_init()
    if made >= 0:
        os.close(made)
    return made >= 0


@asynccontextmanager
async def target(screen: bool = False) -> AsyncIterator[Target]:
    """This machine listens, and another session is at work; on a desktop, where it has a screen."""
    with tempfile.TemporaryDirectory(prefix="flywheel-target-") as folder:
        victim = (await Desktop.start(320, 240, SMALL)).machine if screen else await Machine.start(SMALL)
        made = Target(Path(folder), victim)
        try:
            await victim.put("victim.txt", made.secret.encode())
            await victim.put("victim.py", _VICTIM.encode())
            begin = "sleep 7777 & python3 victim.py >/dev/null 2>&1 & cd"
            await victim.call("/shell/run", {"command": begin, "wait_s": _LIVES_S})
            yield made
        finally:
            made.close()
            await victim.close()


async def attack(target: Target, attacker: Machine, program: str, wait_s: float) -> str:
    """What the attack has got; "" for nothing."""
    await attacker.put("attack.py", (attacks.HEAD + program + attacks.END).encode())
    command = f"cd; python3 -B attack.py '{json.dumps(target.given)}'"
    told = await attacker.call("/shell/run", {"command": command, "wait_s": wait_s, "limit": 2**20}, wait_s)
    seen = json.dumps(await _looked(attacker))
    for name, text in (("printed", told["text"]), ("read from outside", seen)):
        if target.secret in text:
            return f"the secret was {name}"
    got = [line for line in told["text"].splitlines() if line.startswith("TAKEN")]
    if not got and program in attacks.QUIET.values() and not told["text"].endswith("RAN TO ITS END\n"):
        got = [f"it did not run: {told['text'][-200:]!r}"]
    return " | ".join(got)


async def quiet(target: Target, attacker: Machine, name: str) -> str:
    """What one that uses up nothing has got. The machine must live on."""
    try:
        got = await attack(target, attacker, attacks.QUIET[name], _QUIET_S)
        await attacker.request("GET", "/health")
    except EnvError as error:
        return f"the machine did not live on: {error}"
    return got or await target.harm()


async def bomb(target: Target, name: str) -> str:
    """What one that uses up all it can get has got. Its own machine may end; nothing else may suffer."""
    attacker = await Machine.start(SMALL)
    try:
        got = ""
        with contextlib.suppress(EnvError):  # it is gone, or has too much: a crash
            got = await attack(target, attacker, attacks.BOMBS[name], _BOMB_S)
        for _ in range(20 if "in turn" in name else 1):
            with contextlib.suppress(EnvError):
                if target.secret in json.dumps(await _looked(attacker)):
                    got = "the secret was read from outside"
        held = attacker.memory > 0  # by cgroups
        if held and attacker.memory > SMALL.memory_mb * 2**20 * 1.05:
            got = f"it has {attacker.memory} bytes"
        if held and len(attacker.processes()) > SMALL.processes:
            got = "it has more processes than it may"
        got = got or await target.harm()
        pids = attacker.processes()
    finally:
        await attacker.close()
    return got or ("" if await _gone(pids) else "some of its processes are left")


async def _gone(pids: list[int]) -> bool:
    """All of them have ended, or do so in time: the kernel still cleans up."""
    for _ in range(int(_LIVES_S / _POLL_S)):
        if not any(map(_alive, pids)):
            return True
        await asyncio.sleep(_POLL_S)
    return False


def _alive(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


async def _looked(attacker: Machine) -> dict[str, str]:
    """The home as verifiers see it. Raises EnvError for one that has too much, EnvTimeout for one that takes too long,
    which is an attack that succeeds."""
    try:
        async with asyncio.timeout(_LOOK_S):
            return await asyncio.to_thread(read_home_files, attacker.home)
    except TimeoutError:
        raise EnvTimeout(f"the home was not read in {_LOOK_S:g} s") from None
