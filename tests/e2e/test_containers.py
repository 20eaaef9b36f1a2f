"""Machines that are containers: what is wrong with an engine or an image is a line before anything begins, and nothing
is left of them. What holds for all machines is tested for these too, in test_machine, test_terminal and test_escape."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time

import computers
import processes
import pytest
from computers import each_wall  # noqa: F401 - what keeps a machine apart

from flywheel.envs import registry
from flywheel.envs.computer import launcher
from flywheel.envs.computer.machine import MachineSettings
from flywheel.utils.errors import BadInput

BEGIN = """import asyncio, sys
from flywheel.envs.computer.machine import Machine, MachineSettings
async def main():
    machine = await Machine.start(MachineSettings(walls=sys.argv[1]))
    busy = "(trap '' TERM HUP; setsid sleep 999 &) ; while :; do :; done &"
    await machine.call("/shell/run", {"command": busy, "wait_s": 20.0}, 20.0)
    print(*machine.processes(), flush=True)
    await asyncio.sleep(999)
asyncio.run(main())
"""


MANY = """import subprocess
begun = []
try:
    while len(begun) < 99: begun.append(subprocess.Popen(["sleep", "999"]))
except OSError: pass
print(len(begun))
"""


def refused(**machine: str) -> str:
    """What is said of such settings; `flywheel doctor` must say the same."""
    terminal, chosen = registry.find_backend("terminal"), computers.settings("terminal", machine=machine)
    with pytest.raises(BadInput) as raised:
        terminal.check(chosen)
    (finding,) = terminal.diagnose(chosen)
    assert finding.state == "missing"
    assert finding.detail in str(raised.value)
    return str(raised.value)


def test_walls_and_images_that_cannot_be_are_told():
    assert "machine.walls: must be 'bubblewrap', 'podman' or 'docker'" in refused(walls="qemu")
    assert "bubblewrap has no images" in refused(image="debian")
    assert "machine.image" in refused(walls="podman", image="--privileged")


def test_an_engine_that_is_not_there_or_not_allowed_is_told(monkeypatch, tmp_path):
    launcher.diagnose_container_engine.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    try:
        assert "docker is not installed" in refused(walls="docker")
        launcher.diagnose_container_engine.cache_clear()
        said = "permission denied while trying to connect to the Docker daemon socket"
        (tmp_path / "docker").write_text(f"#!/bin/sh\necho 'Some warning' >&2\necho '{said}' >&2\nexit 1\n")
        (tmp_path / "docker").chmod(0o755)
        assert f"docker does not work here: {said}" in refused(walls="docker")
    finally:
        launcher.diagnose_container_engine.cache_clear()


def test_an_image_that_is_not_there_or_has_no_python_is_told(apart):
    if apart == "bubblewrap":
        pytest.skip("no container")
    assert f"{apart} has no image localhost/none:1" in refused(walls=apart, image="localhost/none:1")
    assert f"{apart} runs no Python in {launcher.EMPTY_IMAGE}" in refused(walls=apart, image=launcher.EMPTY_IMAGE)


@pytest.mark.smoke
def test_nothing_is_left_when_who_began_it_is_killed(apart):
    with tempfile.TemporaryDirectory(prefix="fw-") as folder:  # sockets want short paths
        _killed(apart, {**os.environ, "TMPDIR": folder})


def _killed(apart: str, environment: dict[str, str]) -> None:
    words = [sys.executable, "-c", BEGIN, apart]
    begun = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        pids = [int(pid) for pid in begun.stdout.readline().split()]
        assert len(pids) >= 4
    finally:
        os.kill(begun.pid, signal.SIGKILL)
        begun.wait()
        begun.stdout.close()
    assert asyncio.run(processes.gone(pids))
    if apart != "bubblewrap":
        words = [apart, "ps", "--all", "--format", "{{.Names}}"]
        name, deadline = f"flywheel-{begun.pid}-", time.monotonic() + processes.PATIENCE_S
        while name in subprocess.run(words, capture_output=True, text=True, check=True).stdout:
            assert time.monotonic() < deadline


async def test_a_container_may_use_what_the_settings_say_and_no_more(apart):
    chosen = MachineSettings(walls=apart, memory_mb=128, home_mb=8, processes=24, cores=0.5)
    async with computers.machine(**chosen.model_dump(exclude={"image"})) as machine:
        if not machine.memory:
            pytest.skip("no cgroups")
        big = "python3 -c 'b\"x\" * 2**29'"
        told = await machine.call("/shell/run", {"command": big, "wait_s": 20.0}, 20.0)
        assert told["status"] == 137  # killed, for the memory that it wanted
        told = await machine.call("/shell/run", {"command": "head -c 9000000 /dev/zero >fill", "wait_s": 20.0}, 20.0)
        assert "No space left" in told["text"]
        told = await machine.call("/python/run", {"code": MANY, "wait_s": 20.0}, 20.0)
        assert 5 < int(told["text"]) < 24
