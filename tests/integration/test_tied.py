"""Server and worker end with the process that began them, however it ends."""

from __future__ import annotations

import subprocess
import sys

import psutil
from processes import PATIENCE_S

# Begins a module that says its process, its name and its words, and waits.
_BEGINS = """
import subprocess, sys
from flows.ops import tied_process
subprocess.Popen(tied_process.tied_command("waits", "one", "two"), env={"PYTHONPATH": sys.argv[1]})
input()
"""
_WAITS = "import os, sys; print(os.getpid(), __name__, *sys.argv, flush=True); import time; time.sleep(3600)"


def _begun(folder) -> tuple[subprocess.Popen, list[str]]:
    (folder / "waits.py").write_text(_WAITS)
    program = [sys.executable, "-c", _BEGINS, f"{folder}:{':'.join(path for path in sys.path if path)}"]
    began = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return began, began.stdout.readline().split()


def test_a_tied_program_is_the_module_with_its_words_and_ends_where_the_other_is_killed(tmp_path):
    began, (pid, name, _, *words) = _begun(tmp_path)
    tied = psutil.Process(int(pid))
    assert (name, words, tied.ppid()) == ("__main__", ["one", "two"], began.pid)
    began.kill()
    assert psutil.wait_procs([tied], timeout=PATIENCE_S)[1] == []
    began.wait(PATIENCE_S)


def test_a_program_whose_other_is_gone_already_does_not_begin():
    command = [sys.executable, "-P", "-m", "flows.ops.tied_process", "0", "this", "x"]  # 0 is nobody's parent
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (143, "")
