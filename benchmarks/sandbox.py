"""Steps a second of the browser sandbox against plain Playwright and BrowserGym; that it repeats itself, and survives.

A step is an action, some page time (`--step-ms`), a PNG and the state that the verifier reads. Ours and the peer run
the same page with the same browser binary, as many pages over as many browsers, in alternating rounds of one run; a
figure is the median over the rounds, its interval the smallest and the largest. The pages are opened before a round's
clock starts.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench_case import BenchCase, emit_case, exit_code
from sandbox_chaos import chaos_cases
from sandbox_controls import native_controls
from sandbox_loopback import loopback_blocked
from sandbox_replay import replay_identical
from sandbox_run import Run
from sandbox_speed import (
    begin_cpu,
    step_vs_browsergym,
    step_vs_browsergym_equal,
    steps_320,
    steps_320_vs_playwright,
    steps_720,
    time_acceleration,
)

from flywheel.utils.errors import BadInput, FlywheelError

CASES: dict[str, Callable] = {
    "steps_320": steps_320,
    "steps_720": steps_720,
    "steps_320_vs_playwright": steps_320_vs_playwright,
    "step_vs_browsergym": step_vs_browsergym,
    "step_vs_browsergym_equal": step_vs_browsergym_equal,
    "begin_cpu": begin_cpu,
    "replay_identical": replay_identical,
    "time_acceleration": time_acceleration,
    "loopback_blocked": loopback_blocked,
    "native_controls": native_controls,
    "chaos_lost": chaos_cases,
    "chaos_misscored": chaos_cases,
    "chaos_leaked": chaos_cases,
}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="flywheel bench sandbox", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="CASE", default=list(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--quick", action="store_true", help="few rounds: that it works, not how fast")
    parser.add_argument("--pages", type=int, default=4, help="pages at once, on both sides")
    parser.add_argument("--browsers", type=int, default=2, help="browsers that they are spread over, on both sides")
    parser.add_argument("--step-ms", type=int, default=50, help="page time of our steps")
    parser.add_argument("--chaos-pages", type=int, default=8, help="pages at once in the chaos cases")
    parser.add_argument("--rounds", type=int, default=7, help="of each timed case, after one to warm up")
    parser.add_argument("--browsergym-python", default="", help="of an environment with BrowserGym and MiniWoB")
    parser.add_argument("--install-s", type=float, default=600.0, help="deadline of making that environment")
    options = parser.parse_args(argv)
    unknown = [name for name in options.only if name not in CASES]
    if unknown:
        raise BadInput(f"no case is called {unknown[0]!r}", where="--only", fix=f"one of {', '.join(CASES)}")
    logging.getLogger("flywheel").setLevel(logging.ERROR)  # of crashes, which are made here, the figures tell
    done: list[BenchCase] = []
    with tempfile.TemporaryDirectory(prefix="flywheel-bench-") as folder:
        run = Run(options, Path(folder))
        for function in dict.fromkeys(CASES[name] for name in CASES if name in options.only):
            names = [name for name in options.only if CASES[name] is function]
            try:
                found = asyncio.run(function(run))
            except FlywheelError as error:
                found = [_failed(name, error) for name in names]
            found = found if isinstance(found, list) else [found]
            done += [emit_case(case) for case in found if case.case in names]
    return exit_code(done)


def _failed(name: str, error: FlywheelError) -> BenchCase:
    """A case that could not be measured is not met, and says why."""
    return BenchCase("sandbox", name, "", math.nan, None, "none", None, None, False, {"error": str(error)})
