"""Run commands in a task's sandbox, one JSON line a request. This file runs as a program there, without flywheel."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

_FILE_BYTES = 4 * 2**30  # that any file may have: the root folder is on the machine's disk


def main() -> None:
    """Answer requests, a JSON line each, from standard input until it ends."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(_unpack(asked) if "archive" in asked else _run(asked)), flush=True)


def _run(asked: dict) -> dict:
    """Run a command, and kill it with its group at its deadline; what it started in other groups goes on."""
    output = os.memfd_create("output")
    try:
        started = subprocess.Popen(
            asked["command"],
            cwd=asked["folder"],
            env=asked["environment"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return {"status": 127, "output": str(error), "late": False}
    late = False
    try:
        started.wait(asked["seconds"])
    except subprocess.TimeoutExpired:
        late = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()
    size = os.fstat(output).st_size
    tail = os.pread(output, asked["bytes"], max(0, size - asked["bytes"]))
    os.close(output)
    return {"status": started.returncode, "output": tail.decode("utf-8", "replace"), "late": late}


def _unpack(asked: dict) -> dict:
    """Put the files of a tar archive into a folder, which is made anew where `fresh` says so."""
    folder = Path(asked["folder"])
    if asked["fresh"]:
        if folder.is_symlink() or folder.is_file():
            folder.unlink()
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["tar", "x", "-C", folder], input=base64.b64decode(asked["archive"]), capture_output=True, check=False
    )
    return {"status": done.returncode, "output": done.stderr.decode("utf-8", "replace")[-2000:], "late": False}


if __name__ == "__main__":
    main()
