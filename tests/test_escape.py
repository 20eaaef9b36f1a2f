"""The hostile suite of `flywheel bench computer --only escape`: what gets nothing, and that the suite would see it."""

from __future__ import annotations

import importlib

import computers
import pytest

from flywheel import bench
from flywheel.computer import desktop, limits, seccomp, walls
from flywheel.computer.machine import Machine

pytestmark = computers.needed
# Those whose harm is another kind than the rest's; all of them are in the benchmark.
BOMBS = ["a fork bomb", "memory without end", "disks filled", "a folder that is a link in turn"]
BOMBS += ["watches of files without end"]
# What each part of a machine's walls keeps out.
WALLS = {
    "the kernel's settings": (walls, "_READ_ONLY", ("/dev", "/")),
    "the system's files": (walls, "_READ_ONLY", ("/proc",)),
    "keys of this user": (seccomp, "program", lambda: b""),
    "sockets that no namespace keeps apart": (seccomp, "program", lambda: b""),
}


@pytest.fixture
def hostile(monkeypatch):
    monkeypatch.syspath_prepend(str(bench.FOLDER))
    return importlib.import_module("computer_hostile")


async def test_nothing_that_keeps_quiet_gets_anything(hostile):
    """All in one machine, which lives on."""
    async with hostile.target(not desktop.missing()) as target:
        attacker = await Machine.start(hostile.SMALL)
        try:
            got = {name: await hostile.quiet(target, attacker, name) for name in hostile.attacks.QUIET}
        finally:
            await attacker.close()
    assert not {name: what for name, what in got.items() if what}
    assert len(got) >= 30


@pytest.mark.skipif(bool(limits.missing()), reason=limits.missing() or "-")
@pytest.mark.parametrize("name", BOMBS)
async def test_a_bomb_harms_no_other_session(hostile, name):
    async with hostile.target() as target:
        assert await hostile.bomb(target, name) == ""


@pytest.mark.parametrize("name", WALLS)
async def test_the_suite_sees_a_wall_that_is_missing(hostile, monkeypatch, name):
    where, wall, instead = WALLS[name]
    monkeypatch.setattr(where, wall, instead)
    async with hostile.target() as target:
        attacker = await Machine.start(hostile.SMALL)
        try:
            assert "TAKEN" in await hostile.quiet(target, attacker, name)
        finally:
            await attacker.close()


async def test_the_suite_sees_a_secret_and_harm(hostile, monkeypatch):
    show = "print(given['name'])\n"
    async with hostile.target() as target:
        attacker = await Machine.start(hostile.SMALL)
        try:
            monkeypatch.setitem(hostile.attacks.QUIET, "told", show)
            monkeypatch.setattr(target, "secret", target.given["name"])
            assert await hostile.quiet(target, attacker, "told") == "the secret was printed"
            monkeypatch.setitem(hostile.attacks.QUIET, "broken", "1 / 0\n")
            assert "it did not run" in await hostile.quiet(target, attacker, "broken")
            await target.victim.call("/shell/run", {"command": "pkill sleep", "wait_s": 5.0}, 5.0)
            assert "was changed" in await target.harm()
        finally:
            await attacker.close()
