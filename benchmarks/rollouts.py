"""What episodes cost: rollouts, a step of RL, the beginning of an episode and `route`, beside an earlier commit.

Each side is a process of its own (`rollouts_side.py`), by turns, with the same weights and tasks; the peer is a
worktree of the earlier commit with the same interpreter. episodes: those of the default run's training tasks, 160,
once model and browsers are open; `policy_cpu` is what the policy's threads take of a core for them. `same_answers`
tells the share of answers that both sides give at the same step of the same episode. CPU seconds are those of user and
kernel, which other work on the machine changes less than the time on the clock. Figures are medians over the
repetitions.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench_case import BenchCase, emit_case, exit_code

PROJECT = Path(__file__).resolve().parent.parent
BASELINE = "6659744"
CASES = ("episodes", "begin", "route", "rl")
# Of ours / peer, at least.
EPISODES, POLICY, RL_STEP = 3.0, 3.0, 2.0
# Of ours, in seconds of a core, at most.
BEGIN_S, ROUTE_S = 0.025, 2.0
DEADLINE_S = 1800


def measure(root: Path, kind: str, model: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, str(PROJECT / "benchmarks" / "rollouts_side.py"), kind, str(root), str(model), folder],
            cwd=folder,
            # Compiled once, also where a container forbids it: both sides are measured as they are installed.
            env={**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": ""},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
    if done.returncode:
        raise RuntimeError(f"{root} {kind}: {done.stderr[-1500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def compare(kind: str, found: dict[str, list[dict[str, Any]]], peer_name: str) -> list[BenchCase]:
    ours, peer = found["ours"], found["peer"]
    about = {"n": len(ours)}

    def case(name: str, unit: str, key: str, goal: float | None, *, most: bool = False, per: str = "") -> BenchCase:
        """goal: of peer / ours of a cost, or with `most` of ours."""
        mine, other = (median(one[key] / one[per] if per else one[key] for one in side) for side in (ours, peer))
        ratio = other / mine if mine else None
        met = goal is None or (mine <= goal if most else ratio is not None and ratio >= goal)
        values = {"ours_values": sorted(one[key] for one in ours), "peer_values": sorted(one[key] for one in peer)}
        return emit_case(BenchCase("rollouts", name, unit, mine, other, peer_name, ratio, goal, met, about | values))

    if kind == "begin":
        return [case("begin_episode", "CPU s", "cpu_s", BEGIN_S, most=True)]
    if kind == "route":
        return [case("route_200", "CPU s", "cpu_s", ROUTE_S, most=True)]
    if kind == "rl":
        return [case("rl_step_64", "s", "seconds", RL_STEP), case("rl_step_64_cpu", "CPU s", "cpu_s", None)]
    said = [(mine["answers"], other["answers"]) for mine, other in zip(ours, peer, strict=True)]
    both = [(mine[place], other[place]) for mine, other in said for place in mine.keys() & other.keys()]
    about |= {"episodes": ours[0]["episodes"], "steps": ours[0]["steps"], "peer_steps": peer[0]["steps"]}
    about |= {"same_answers": sum(mine == other for mine, other in both) / max(len(both), 1)}
    return [
        case("episodes", "s/episode", "seconds", EPISODES, per="episodes"),
        case("policy_cpu", "CPU s", "policy_cpu_s", POLICY),
        case("browser_cpu", "CPU s", "browser_cpu_s", None),
        case("other_cpu", "CPU s", "rest_cpu_s", None),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="flywheel bench rollouts", description=__doc__)
    parser.add_argument("--baseline", default=BASELINE, help="the commit to compare with")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--model", type=Path, default=PROJECT / "models" / "base", help="folder of the checkpoint")
    options = parser.parse_args(argv)
    cases: list[BenchCase] = []
    with tempfile.TemporaryDirectory() as temporary:
        tree = Path(temporary) / "baseline"
        subprocess.run(
            ["git", "-C", PROJECT, "worktree", "add", "--quiet", "--detach", tree, options.baseline], check=True
        )
        try:
            sides = {"ours": PROJECT, "peer": tree}
            for kind in options.cases:
                found: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
                for repetition in range(options.repetitions):
                    for name in list(sides)[:: -1 if repetition % 2 else 1]:
                        found[name].append(measure(sides[name], kind, options.model.resolve()))
                cases += compare(kind, found, f"commit {options.baseline}")
        finally:
            subprocess.run(["git", "-C", PROJECT, "worktree", "remove", "--force", tree], check=True)
    return exit_code(cases)


if __name__ == "__main__":
    raise SystemExit(main())
