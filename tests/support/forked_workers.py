"""Begin pytest-xdist's workers as forks of the process that deals the tests, which has imported every test before.

Each worker by itself would import torch, transformers, Prefect's server and 280 test files: 20 s of a core, twice that
where there is no bytecode yet. Here that is paid once, and what is imported is shared. The forks are made before any
thread of execnet begins.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import sys
import threading
import traceback
from collections.abc import Sequence

import execnet
import pytest
from execnet import gateway_base, gateway_io


def import_tests(config: pytest.Config) -> None:
    """Import the files of tests that the command names. What cannot be imported is left for the workers to report."""
    for argument in config.args:
        path = config.invocation_params.dir / argument.partition("::")[0]
        files = sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
        for file in files:
            folder = str(file.parent)
            if folder not in sys.path:
                sys.path.insert(0, folder)  # as pytest's own import mode does
            # A skip of a whole module is no Exception.
            with contextlib.suppress(Exception, pytest.skip.Exception):
                importlib.import_module(file.stem)


class ForkedWorker(gateway_base.Popen2IO):
    """execnet's end of the pipes to a forked worker, as `execnet.gateway_io.Popen2IOMaster` is to a new Python."""

    def __init__(self, execmodel: gateway_base.ExecModel, before: Sequence[ForkedWorker]) -> None:
        own_stdin, their_stdout = os.pipe()
        their_stdin, own_stdout = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if not self._pid:
            os.close(own_stdin)
            os.close(own_stdout)
            for other in before:  # who holds these too keeps others from seeing that the first process is gone
                other.close_read()
                other.close_write()
            _serve(their_stdin, their_stdout)
        os.close(their_stdin)
        os.close(their_stdout)
        super().__init__(os.fdopen(own_stdout, "wb", 0), os.fdopen(own_stdin, "rb"), execmodel=execmodel)

    def wait(self) -> int | None:
        with contextlib.suppress(ChildProcessError):
            return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, 9)


def _serve(stdin: int, stdout: int) -> None:
    """Be the worker: what `python -c` with execnet's first line does, then end without pytest's own end above."""
    code = 1
    try:
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        os.close(stdin)
        os.close(stdout)
        sys.stdin, sys.stdout = os.fdopen(0, "r", 1, closefd=False), os.fdopen(1, "w", 1, closefd=False)
        exec(eval(sys.stdin.readline()), {"__name__": "__main__"})
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # as an interpreter ends: threads first, then what was registered
        atexit._run_exitfuncs()
        sys.stderr.flush()
        os._exit(code)


def fork_workers(config: pytest.Config, specs: Sequence[execnet.XSpec]) -> None:
    """Make a fork for each of xdist's workers; one that takes a dead worker's place later is a Python of its own."""
    if any(not spec.popen or spec.python or spec.via for spec in specs):
        return
    gc.disable()  # nearly all that is imported stays
    import_tests(config)
    # What each worker would else read out of all modules of flywheel at its collection.
    with contextlib.suppress(ImportError):
        from hypothesis.internal.conjecture.providers import _get_local_constants

        _get_local_constants()
    gc.enable()
    assert threading.active_count() == 1, threading.enumerate()
    gc.collect()
    gc.freeze()  # what is imported stays: no worker's collector looks at it, nor copies its pages by that
    gc.set_threshold(20_000)  # of 700 by default: a twentieth of a worker's time
    original = gateway_io.Popen2IOMaster
    ready: list[ForkedWorker] = []
    for _ in specs:
        ready.append(ForkedWorker(gateway_base.get_execmodel("thread"), ready))

    def take(arguments: list[str], execmodel: gateway_base.ExecModel) -> gateway_base.Popen2IO:
        return ready.pop(0) if ready else original(arguments, execmodel)

    gateway_io.Popen2IOMaster = take
