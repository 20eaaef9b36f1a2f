"""Keep a process with Prefect imported for the next flow run, which then begins in 1.3 instead of 3.5 seconds.

That is from *Submitting* to *Running*. On busy cores it saves 1.1 to 2.7 s where half a minute lies between runs,
nothing where they follow one another, since then the next one is still importing. It takes 85 MB.

`python -P -m flows.ops.prewarmed_process` waits for a line on its standard input, JSON of the run's environment and
folder. It imports nothing of flywheel before: the files may have changed by then.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import anyio
from anyio.abc import Process

from flows.ops import tied_process

log = logging.getLogger(__name__)
ENGINE = "prefect.engine"  # the module that a run executes


class PrewarmedProcess:
    """Hold a process that waits to become a flow run; it ends with this process unless it has become one."""

    def __init__(self) -> None:
        self._waits: Process | None = None
        self._environment: dict[str, str] = {}
        self._begins = False

    async def start(self) -> None:
        """Start a spare process, unless one waits. Where it cannot be started, runs begin without it."""
        if self._begins or (self._waits is not None and self._waits.returncode is None):
            return
        self._waits, self._environment, self._begins = None, dict(os.environ), True
        try:
            self._waits = await anyio.open_process(
                tied_process.tied_command("flows.ops.prewarmed_process"),
                stdin=subprocess.PIPE,
                stdout=None,
                stderr=None,
            )
        except OSError as error:
            log.warning("no process waits for the next run: %s", error)
        finally:
            self._begins = False

    async def become_run(self, env: Mapping[str, str], cwd: Path | str | None) -> Process | None:
        """Turn the waiting process into a flow run, with the environment `env` and the folder `cwd`; return it.

        Returns None where none waits, or the run wants other values of variables that Python or Prefect read at start.
        """
        if self._waits is None or _startup_variables(env) != _startup_variables(self._environment):
            return None
        process, self._waits = self._waits, None
        if _has_ended(process.pid):  # its pipe may take the line all the same
            return None
        try:
            await process.stdin.send(json.dumps({"env": dict(env), "cwd": str(cwd) if cwd else None}).encode() + b"\n")
            await process.stdin.aclose()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):  # it has ended
            return None
        return process


def _has_ended(pid: int) -> bool:
    """Tell whether a child has ended, also before the event loop knows. It is not reaped: the loop waits for it."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # waited for already
        return True


def _startup_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are read at start: all but Prefect's settings other than those of its log."""
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith("PREFECT_") or name.startswith("PREFECT_LOGGING_")
    }


def _main() -> None:
    importlib.import_module("prefect.flow_engine")  # nearly all that a run imports
    from prefect.context import refresh_global_settings_context

    line = sys.stdin.readline()
    if not line:
        return
    told = json.loads(line)
    tied_process.untie_from_parent()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
    os.environ.clear()
    os.environ.update(told["env"])
    if told["cwd"]:
        os.chdir(told["cwd"])
    refresh_global_settings_context()
    sys.argv = [ENGINE]
    runpy.run_module(ENGINE, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
