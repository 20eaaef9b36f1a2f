"""The hostile suite of `flywheel bench computer --only escape`: what gets nothing, and that the suite would see it."""

from __future__ import annotations

import importlib

import computers
import pytest
from computers import each_wall  # noqa: F401 - what keeps a machine apart

from flywheel.cli import bench
from flywheel.envs import cgroups, isolation
from flywheel.envs.computer import bwrap, desktop, launcher
from flywheel.envs.computer.machine import Machine

pytestmark = computers.needed
# Those whose harm is another kind than the rest's; all of them are in the benchmark.
BOMBS = ["a fork bomb", "memory without end", "disks filled", "a folder that is a link in turn"]
BOMBS += ["watches of files without end"]
NOT_DOCKER = ("other files of the kernel's", "watches of files without end")
# What each part of a machine's walls keeps out.
WALLS = {
    "the kernel's settings": (isolation, "_READ_ONLY", ("/dev", "/")),
    "the system's files": (isolation, "_READ_ONLY", ("/proc",)),
    "keys of this user": (bwrap, "seccomp_program", lambda: b""),
    "sockets that no namespace keeps apart": (bwrap, "seccomp_program", lambda: b""),
}


@pytest.fixture
def hostile(monkeypatch):
    monkeypatch.syspath_prepend(str(bench.BENCHMARKS_FOLDER))
    return importlib.import_module("computer_hostile")


@pytest.fixture
def contained(hostile, monkeypatch, apart):
    """The same, with machines by each of the walls. What docker has no words for, docs/computer.md tells."""
    monkeypatch.setattr(hostile, "SMALL", hostile.SMALL.model_copy(update={"walls": apart}))
    for name in NOT_DOCKER if apart == "docker" else ():
        monkeypatch.delitem(hostile.attacks.QUIET, name, raising=False)
        monkeypatch.delitem(hostile.attacks.BOMBS, name, raising=False)
    return hostile


async def test_nothing_that_keeps_quiet_gets_anything(contained):
    """All in one machine, which lives on."""
    hostile = contained
    async with hostile.target(not desktop.list_missing_packages()) as target:
        attacker = await Machine.start(hostile.SMALL)
        try:
            got = {name: await hostile.quiet(target, attacker, name) for name in hostile.attacks.QUIET}
        finally:
            await attacker.close()
    assert not {name: what for name, what in got.items() if what}
    assert len(got) >= 30


@pytest.mark.skipif(bool(cgroups.explain_missing_cgroups()), reason=cgroups.explain_missing_cgroups() or "-")
async def test_bombs_harm_no_other_session(contained):
    hostile = contained
    async with hostile.target() as target:
        got = {name: await hostile.bomb(target, name) for name in BOMBS if name in hostile.attacks.BOMBS}
    assert not {name: what for name, what in got.items() if what}
    assert len(got) >= len(BOMBS) - 1


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


@pytest.mark.parametrize("name", ["sockets that no namespace keeps apart", "namespaces of its own"])
async def test_the_suite_sees_that_a_container_has_no_rules(contained, monkeypatch, name):
    hostile = contained
    if hostile.SMALL.walls == "bubblewrap":
        pytest.skip("no container")
    monkeypatch.setattr(bwrap, "seccomp_profile", lambda: {"defaultAction": "SCMP_ACT_ALLOW"})
    monkeypatch.setattr(launcher, "_LIMIT_SCRIPT", "true")
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
