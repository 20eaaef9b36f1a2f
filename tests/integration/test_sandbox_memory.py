"""What a family of processes takes: their shares exactly, unless less than a limit is mapped in all."""

from __future__ import annotations

import subprocess
import sys

import pytest

from flywheel.utils import child_processes

_TWO = """
import subprocess, sys
held = bytearray(40 << 20)
held[::4096] = b"x" * len(held[::4096])
child = subprocess.Popen([sys.executable, "-c", "print('up', flush=True); input()"], stdin=0)
child.wait()
"""


@pytest.fixture(scope="module")
def family():
    first = subprocess.Popen([sys.executable, "-c", _TWO], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert first.stdout.readline() == b"up\n"
    yield first.pid
    first.stdin.close()
    first.wait(10)


def taken(pid, **limits):
    return {process.pid: process.mb for process in child_processes.measure_memory([pid], **limits)[pid]}


def test_a_family_under_both_limits_is_told_by_what_it_maps(family, monkeypatch):
    exact = taken(family)
    assert len(exact) == 2
    assert exact[family] > 40
    with monkeypatch.context() as patch:
        patch.setattr(
            child_processes.psutil.Process, "memory_full_info", lambda process: pytest.fail("went through all pages")
        )
        most = taken(family, one_mb=1000, all_mb=1000)
    assert set(most) == set(exact)
    assert all(most[pid] > exact[pid] for pid in exact)  # they share Python itself


@pytest.mark.parametrize("limits", [{"one_mb": 30, "all_mb": 1000}, {"one_mb": 1000, "all_mb": 40}, {}])
def test_above_a_limit_the_shares_are_exact(family, limits):
    assert taken(family, **limits) == pytest.approx(taken(family), abs=2)


def test_a_process_that_is_gone_takes_nothing():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert child_processes.measure_memory([gone.pid], one_mb=1, all_mb=1) == {gone.pid: []}
