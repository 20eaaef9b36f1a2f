"""Run code in a Python that lives on between calls; it begins with the first one."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from shell import BoundedOutput, strip_control_sequences

_LOOP_PROGRAM = Path(__file__).with_name("python_loop.py")
_ANSWERS = {b"true\n": True, b"false\n": False}  # anything else was said by the code itself
_START_S = 10.0
_STOP_S = 2.0  # that code has to end in, once it is interrupted
_CHUNK = 2**16


@dataclass(frozen=True)
class PythonOutput:
    """Hold the outcome of running code.

    text: what was printed, and the value of the last line. failed: by an exception, which the text tells. stopped: its
    time was over. lost: it did not stop, so that what was computed before is gone too.
    """

    text: str
    failed: bool = False
    stopped: bool = False
    lost: bool = False


class PythonSession:
    """One interpreter. folder, environment: of each new one."""

    def __init__(self, folder: str, environment: dict[str, str]) -> None:
        self._folder, self._environment = folder, environment
        self._process: subprocess.Popen | None = None
        self._alone = threading.Lock()

    @property
    def begun(self) -> bool:
        """There is one that holds what code has left in it."""
        return self._process is not None and self._process.poll() is None

    def run(self, code: str, wait_s: float, limit: int, how: str = "code") -> PythonOutput:
        """Run code; after wait_s it is interrupted. limit: bytes of what it prints that are kept.

        how: "keep" and "bring back" put what it holds into a file, and take it from there (`code` being its path).
        """
        with self._alone:
            if not self.begun:
                self._start()
            kept = BoundedOutput(limit)
            message = json.dumps({"code": code, "as": how}).encode() + b"\n"
            threading.Thread(target=self._send, args=(message,), daemon=True).start()
            told = self._wait(kept, wait_s)
            stopped = told is None and self._process.poll() is None
            if stopped:
                self._process.send_signal(signal.SIGINT)
                told = self._wait(kept, _STOP_S)
            lost = told is None
            if lost:
                self.close()
            return PythonOutput(kept.taken(strip_control_sequences), bool(told) or lost, stopped, lost)

    def close(self) -> None:
        """End it, with what it has begun in its process group."""
        process, self._process = self._process, None
        if process is not None:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (self._asked, self._told, self._printed):
                os.close(pipe)

    def _start(self) -> None:
        self.close()
        theirs_in, self._asked = os.pipe()
        self._told, theirs_out = os.pipe()
        self._printed, printed = os.pipe()
        words = [sys.executable, "-u", str(_LOOP_PROGRAM), str(theirs_in), str(theirs_out)]
        try:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed, cwd=self._folder,
                env=self._environment, pass_fds=(theirs_in, theirs_out), start_new_session=True,
            )  # fmt: skip
        finally:
            for pipe in (theirs_in, theirs_out, printed):
                os.close(pipe)
        self._wait(BoundedOutput(0), _START_S)  # it says so when it is there

    def _send(self, message: bytes) -> None:
        try:
            while message:
                message = message[os.write(self._asked, message) :]
        except OSError:
            pass  # it has ended, which `run` sees

    def _wait(self, kept: BoundedOutput, wait_s: float) -> bool | None:
        """Tell whether the code failed; None where it has not ended by then, or its process has."""
        until = time.monotonic() + wait_s
        told = b""
        while (left := until - time.monotonic()) > 0:
            ready = select.select([self._told, self._printed], [], [], left)[0]
            if self._printed in ready:
                kept.add(os.read(self._printed, _CHUNK))
            elif self._told in ready:  # after all that was printed before
                data = os.read(self._told, _CHUNK)
                told += data
                if not data:
                    self._process.wait()
                    return None
                if told.endswith(b"\n"):
                    return _ANSWERS.get(told)
        return None
