"""Hold the workers of pytest-xdist to be forks: a test's file is imported once, and what a worker does is its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import forked_workers

_CONFTEST = """
import sys
sys.path.insert(0, {support!r})
from forked_workers import fork_workers

def pytest_xdist_setupnodes(config, specs):
    fork_workers(config, specs)
"""
_TEST = """
import atexit, os, pathlib, pytest, sys
HERE = pathlib.Path(__file__).parent
with (HERE / "imported").open("a") as file:
    file.write("once ")
atexit.register(lambda: print("ended", file=sys.stderr, flush=True))

@pytest.mark.parametrize("i", range({n}))
def test_it(i, capfd):
    print("seen")
    assert capfd.readouterr().out == "seen\\n"
    {do}
"""


def run(folder: Path, do: str) -> subprocess.CompletedProcess[str]:
    support = str(Path(forked_workers.__file__).parent)
    (folder / "conftest.py").write_text(_CONFTEST.format(support=support))
    for name in ("one", "two"):
        (folder / f"test_{name}.py").write_text(_TEST.format(n=3, do=do))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "xdist",
        "-n",
        "2",
        "--dist",
        "loadfile",
    ]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # they take ten times what the tests do
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, env=environment)


def test_each_file_is_imported_once_and_each_worker_ends_in_order(tmp_path: Path) -> None:
    done = run(tmp_path, "(HERE / f'{os.getpid()}.pid').touch()")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout
    assert (tmp_path / "imported").read_text() == "once once "
    assert len(list(tmp_path.glob("*.pid"))) == 2
    # Both files in both workers, and in the process that deals the tests.
    assert done.stderr.count("ended") == 6, done.stderr


def test_a_dead_worker_is_told_and_another_takes_its_place(tmp_path: Path) -> None:
    killed = "(HERE / 'killed')"
    do = f"if 'one' in __file__ and i == 1 and not {killed}.exists(): {killed}.touch(); os.kill(os.getpid(), 9)"
    done = run(tmp_path, do)
    assert done.returncode == 1
    assert "crashed while running 'test_one.py::test_it[1]'" in done.stdout, done.stdout
    assert "1 failed, 6 passed" in done.stdout, done.stdout  # the one that was running is run again


def test_a_failure_is_told_as_ever(tmp_path: Path) -> None:
    done = run(tmp_path, "assert i < 2")
    assert done.returncode == 1
    assert "2 failed, 4 passed" in done.stdout
    assert "assert 2 < 2" in done.stdout
