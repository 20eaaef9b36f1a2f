"""Map names of public benchmarks to their adapters, which load tasks, convert actions and score results."""

from __future__ import annotations

from flywheel.evaluation.benchmarks.android_world import AndroidWorld
from flywheel.evaluation.benchmarks.benchmark import BenchmarkAdapter
from flywheel.evaluation.benchmarks.browsecomp_plus import BrowseCompPlus
from flywheel.evaluation.benchmarks.lmgame_bench import LmgameBench
from flywheel.evaluation.benchmarks.online_mind2web import OnlineMind2Web
from flywheel.evaluation.benchmarks.osworld import OsworldBenchmark
from flywheel.evaluation.benchmarks.swe_bench import SweBench
from flywheel.evaluation.benchmarks.terminal_bench import TerminalBench
from flywheel.evaluation.benchmarks.windows_agent_arena import WindowsAgentArena
from flywheel.utils.errors import BadInput, did_you_mean

_ADAPTERS: tuple[BenchmarkAdapter, ...] = (
    TerminalBench(), OsworldBenchmark(), SweBench(), WindowsAgentArena(), AndroidWorld(), BrowseCompPlus(),
    LmgameBench(), OnlineMind2Web(),
)  # fmt: skip
BENCHMARKS: dict[str, BenchmarkAdapter] = {one.name: one for one in _ADAPTERS}


def choose_benchmark(name: str) -> BenchmarkAdapter:
    """Return the adapter that loads and scores the benchmark `name`, such as `swe-bench` (the keys of `BENCHMARKS`).

    Raises BadInput for an unknown name, with the nearest one.
    """
    if name not in BENCHMARKS:
        raise BadInput(f"no benchmark {name!r}", fix=did_you_mean(name, BENCHMARKS))
    return BENCHMARKS[name]
