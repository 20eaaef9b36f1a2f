"""Figures of a benchmark: a script runs ours and the peer in one run, prints each figure by `emit_case`, and ends with
`exit_code`."""

from __future__ import annotations

import argparse
import json
import math
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from flywheel.utils.files import write_json


@dataclass(frozen=True)
class BenchCase:
    """One figure. bench, case: its name. unit: of `ours` and `peer`, such as tokens/s or fraction.

    peer, peer_name: what it is compared with, measured in the same run. ratio: ours / peer unless a script says
    otherwise; None where there is nothing to divide by. goal: of `ratio`, or of `ours` where the script says so, as
    `met` does. extra: further keys of the line (n, interval, threads, repetitions).
    """

    bench: str
    case: str
    unit: str
    ours: float
    peer: float | None
    peer_name: str
    ratio: float | None
    goal: float | None
    met: bool
    extra: dict[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """JSON: the nine keys in this order, then the further ones; numbers to four significant digits."""
        row = asdict(self)
        row |= row.pop("extra")
        return json.dumps({name: _round_numbers(value) for name, value in row.items()})


def _round_numbers(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else None
    if isinstance(value, (list, tuple)):
        return [_round_numbers(part) for part in value]
    return value


def compare_with_peer(
    bench: str, case: str, unit: str, *, ours: float, peer: float, peer_name: str, goal: float, **extra: Any
) -> BenchCase:
    """A case whose goal is a ratio ours / peer of at least `goal`."""
    ratio = ours / peer if peer else None
    return BenchCase(bench, case, unit, ours, peer, peer_name, ratio, goal, ratio is not None and ratio >= goal, extra)


def emit_case(case: BenchCase) -> BenchCase:
    """Print the case's line at once, so that a long benchmark shows what it has."""
    print(case.line(), flush=True)
    return case


def peak_memory_mb() -> float:
    """Return the largest resident set that this process had, in MiB.

    By VmHWM, since `ru_maxrss` of a process begins with the largest size of the one that it was forked from.
    """
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 2**10


def reset_peak_memory() -> float:
    """Let `peak_memory_mb` count from now on; return its value now, which is the present size."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_memory_mb()


def exit_code(cases: Iterable[BenchCase]) -> int:
    """1 where a case is not met, else 0."""
    return int(any(not case.met for case in cases))


# Student's t at 0.975, by degrees of freedom.
_T = (math.inf, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def student_mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Compute the 95% t interval of a mean over few runs; unbounded for one. With more than ten it is a little too
    wide."""
    if len(values) < 2:
        return -math.inf, math.inf
    reach = _T[min(len(values), len(_T)) - 1] * stdev(values) / math.sqrt(len(values))
    return fmean(values) - reach, fmean(values) + reach


def add_study_arguments(parser: argparse.ArgumentParser, out: str) -> None:
    """Add the options that all studies from a run's model have. out: default of `--out`."""
    parser.add_argument("--workspace", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path(out), help="(default: %(default)s)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--lr", type=float, default=3e-4, help="(default: %(default)s)")


def make_once(path: Path, make: Callable[[], Any]) -> Any:
    """Return what `make` gives, pickled at `path` by the first call; later ones read it from there."""
    if not path.is_file():
        found = make()
        path.write_bytes(pickle.dumps(found))
    return pickle.loads(path.read_bytes())


def print_study(
    doc: str | None,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    run: Callable[[argparse.Namespace], dict[str, Any]],
    argv: Sequence[str] | None = None,
) -> int:
    """Run a study whose result is one JSON object: print it, and keep it as `result.json` in `--out`.

    doc: its help. run: makes the result of the arguments. argv: default: those of the process. Returns 0.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    args = parser.parse_args(argv)
    result = run(args)
    write_json(args.out.resolve() / "result.json", result)
    print(json.dumps(result))
    return 0
