"""One run for `flywheel bench flywheel`: an arm with a seed in a workspace of its own, and each of its models measured.

    python benchmarks/flywheel_run.py --out bench-flywheel --arm whole --seed 7

The run is `flywheel run` as a user types it. What is finished is not done again, and a run that was killed goes on.

Models are measured on tasks like those that promotion asks: greedy, of contents that no run trains on, a third of them
of held-out templates where a world has these, the same tasks for all models of all arms and seeds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import flywheel_rl

from flywheel import config
from flywheel.cli.scaffold import load_profile
from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.envs import registry
from flywheel.envs.base import Task
from flywheel.envs.registry import open_environments
from flywheel.envs.suites import references
from flywheel.envs.tasks.drawing import make_tasks
from flywheel.envs.tasks.held_out import is_held_out
from flywheel.evaluation.evaluator import JudgedEpisode, evaluate_policy
from flywheel.policy import open_policy
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.store.catalog import database
from flywheel.utils.files import atomic_folder, write_json

PROJECT = Path(__file__).resolve().parent.parent
BASE = PROJECT / "models" / "base"
SEED = 4711  # of the tasks that models are measured on; no run has it

# What grows with the data of a round, for the arm that has but one.
_GROWS = (
    "recording.sessions_per_iteration",
    "synthesis.train_tasks",
    "synthesis.num_grounding_examples",
    "ct.num_examples",
    "sft.num_examples",
    "rl.steps",
)
RL_ALONE = "rl-alone"
# Arms that go on from the last model of the whole run, so many iterations without a new recording.
MORE_ITERATIONS = 5
_NO_RECORDINGS = {"recording.sessions_per_iteration": 0, "iterations": MORE_ITERATIONS}
_CORRECTED = _NO_RECORDINGS | {"rollout.corrections_per_task": 2, "synthesis.train_tasks": 80, "rollout.n_rollouts": 2}
BY_ITSELF: Mapping[str, Mapping[str, Any]] = {
    "by-itself": _CORRECTED,
    "by-itself-least-sure": _CORRECTED | {"rollout.corrections_at": "least_sure"},
    "by-itself-default": _NO_RECORDINGS,
}
ARMS = {
    "whole": "the whole flywheel",
    "one-round": "no flywheel: one round of the base's data, as much of it, trained on for as long",
    "no-routing": "without routing: all trajectories to SFT",
    "no-recycling": "without recycling: what failed goes nowhere",
    "no-rl": "without RL",
    RL_ALONE: "the whole flywheel, and then RL alone",
    "by-itself": "the whole flywheel, and then iterations without new recordings, with corrections by solvers",
    "by-itself-least-sure": "the same, corrected from the step on that the model was least sure of",
    "by-itself-default": "the whole flywheel, and then iterations without new recordings, by the default recipe",
}


# The same as the view p_v1_rise, of the first iteration and the last.
_IN_ALL = """
SELECT count(*) AS slots, avg(a.pass_1) AS before, avg(b.pass_1) AS after, avg(b.pass_1 - a.pass_1) AS rise,
    rise - 1.959963984540054 * stddev_samp(b.pass_1 - a.pass_1) / sqrt(slots) AS low,
    rise + 1.959963984540054 * stddev_samp(b.pass_1 - a.pass_1) / sqrt(slots) AS high
FROM template_success a JOIN template_success b ON (a.world, a.template, a.level) = (b.world, b.template, b.level)
WHERE a.iteration = 1 AND b.iteration = (SELECT max(iteration) FROM template_success)
"""


def overrides(arm: str, profile: Settings) -> dict[str, Any]:
    """Parameters of an arm that differ from the profile's."""
    if arm == "one-round":
        grown = {name: _value(profile, name) * profile.iterations for name in _GROWS}
        return {"iterations": 1, **grown}
    return {
        "whole": {},
        "no-routing": {"sft.verified_only": False},
        "no-recycling": {"ct.rollout_weight": 0.0},
        "no-rl": {"rl.steps": 0},
        RL_ALONE: dict(flywheel_rl.CHANGES),
        **BY_ITSELF,
    }[arm]


def _value(settings: Settings, name: str) -> Any:
    block, _, leaf = name.partition(".")
    return getattr(getattr(settings, block), leaf)


def settings_of(profile: str) -> Settings:
    """What a run of a profile is measured by: the profile, with a seed that no run has."""
    return config.load_settings(PROJECT / "params.yaml", {**load_profile(profile), "seed": SEED})


def measured_tasks(count: int, profile: str = "laptop") -> list[Task]:
    """The same for every model of a profile; see the head of this file."""
    chosen = settings_of(profile)
    promotion = chosen.promotion.model_copy(update={"tasks": count})
    return make_tasks(chosen.model_copy(update={"promotion": promotion}), 1, "gate")


def run(
    out: Path, arm: str, seed: int, profile: str, tasks: int, other: Sequence[str] = (), merged: bool = False
) -> dict[str, Any]:
    """Make the workspace, turn the flywheel, measure its models; the result, which is kept beside the workspace.

    other: NAME=VALUE for `flywheel run --set`, where a recipe is looked for. merged: measure the base and the merged
    models alone. A workspace that is there is taken as it is, with recordings of its own perhaps.
    """
    out = out.resolve()
    ws, before = Workspace(out / f"{arm}-{seed}"), 0
    if arm in BY_ITSELF:
        before = _copy_whole_run(out, ws.root, seed, profile, tasks)
    elif not ws.params.is_file():
        _flywheel("init", str(ws.root), "--profile", profile)
    chosen = dict(overrides(arm, config.load_settings(ws.params)))
    sets = [f"{name}={value}" for name, value in {**chosen, "seed": seed}.items()] + list(other)
    started = time.monotonic()
    done = sum(path.parent.name != "000" for path in ws.root.glob("iterations/*/promotion.json"))  # 000: the base
    left = before + chosen.get("iterations", config.load_settings(ws.params).iterations) - done
    if left > 0:
        sets += [f"iterations={left}"] * bool(before)
        _flywheel("run", "-w", str(ws.root), *(word for pair in sets for word in ("--set", pair)))
    result = {
        "arm": arm,
        "seed": seed,
        "profile": profile,
        "set": {**chosen, **dict(pair.partition("=")[::2] for pair in other)},
        "threads": os.environ.get("OMP_NUM_THREADS", ""),
        "minutes": round((time.monotonic() - started) / 60, 2) if done == before else None,
        "iterations_before": before,
        "iterations": database.query_catalog(
            ws, "SELECT iteration, p_v1, to_sft, promoted, minutes FROM iterations"
        ).to_pylist(),
        "p_v1_rise": database.query_catalog(ws, "FROM p_v1_rise WHERE domain = 'all'").to_pylist(),
        "p_v1_in_all": database.query_catalog(ws, _IN_ALL).to_pylist(),
        "models": [],
    }
    drawn = measured_tasks(tasks, profile)
    for name, folder in [("base", BASE), *_models(ws)]:
        if merged and not (name == "base" or name.endswith(": merged")):
            continue
        domain = folder.name.removeprefix("rl-") if folder.name.startswith("rl-") else ""
        result["models"].append({"name": name, **measured(out / "measured", folder, drawn, profile, domain)})
    write_json(out / "results" / f"{arm}-{seed}.json", result)
    return result


def _copy_whole_run(out: Path, root: Path, seed: int, profile: str, tasks: int) -> int:
    """Copy the workspace of the whole flywheel's run to `root`, unless it is there. Return its number of iterations."""
    before = out / "results" / f"whole-{seed}.json"
    if not before.is_file():
        run(out, "whole", seed, profile, tasks, merged=True)
    if not root.is_dir():
        with atomic_folder(root) as copy:
            shutil.copytree(out / f"whole-{seed}", copy, dirs_exist_ok=True, symlinks=True)
    return len(json.loads(before.read_text(encoding="utf-8"))["iterations"])


def _rl_alone(out: Path, seed: int, profile: str, tasks: int, other: Sequence[str]) -> dict[str, Any]:
    """From the last model of the whole flywheel's run, which is made first where it is not there."""
    before = out / "results" / f"whole-{seed}.json"
    if not before.is_file():
        run(out, "whole", seed, profile, tasks, merged=True)
    whole = json.loads(before.read_text(encoding="utf-8"))
    started = time.monotonic()
    model = flywheel_rl.go_on(Workspace(out / f"whole-{seed}"), out / f"{RL_ALONE}-{seed}", seed, other)
    after = {"name": "RL alone: merged", **measured(out / "measured", model, measured_tasks(tasks, profile), profile)}
    result = {
        "arm": RL_ALONE,
        "seed": seed,
        "profile": profile,
        "set": {**flywheel_rl.CHANGES, **dict(pair.partition("=")[::2] for pair in other)},
        "threads": os.environ.get("OMP_NUM_THREADS", ""),
        "minutes": round((time.monotonic() - started) / 60, 2),
        "models": [*(model for model in whole["models"] if model["name"].partition(": ")[2] in ("", "merged")), after],
    }
    write_json(out / "results" / f"{RL_ALONE}-{seed}.json", result)
    return result


def _models(ws: Workspace) -> Iterator[tuple[str, Path]]:
    """In the order in which they were trained."""
    for iteration in sorted(ws.root.glob("models/iteration=*")):
        number = int(iteration.name.partition("=")[2])
        specialists = sorted(path.name for path in iteration.glob("rl-*"))
        for name in ("ct", "sft", *specialists, "merged"):
            yield f"{number}: {name}", iteration / name


def measured(
    folder: Path, model: Path, tasks: Sequence[Task], profile: str = "laptop", domain: str = ""
) -> dict[str, Any]:
    """Each task's outcome as a digit; by domain the share of steps without an action; by game the mean score, of the
    expert's at the same level. Kept by the model's digest: what arms have in common is measured once. domain: play its
    tasks alone; the outcome of others is `-`."""
    of = "" if profile == "laptop" else f"-{profile}"
    path = folder / f"{checkpoint_digest(model)[:16]}-{len(tasks)}{of}{domain and '-'}{domain}.json"
    if path.is_file():
        return json.loads(path.read_text(encoding="utf-8"))
    chosen = settings_of(profile)
    judged = asyncio.run(play_tasks(model, [task for task in tasks if domain in ("", task.domain)], chosen))
    won = {one.task.task_id: one.result.v for one in judged}
    steps: dict[str, list[bool]] = {}
    for one in judged:
        steps.setdefault(one.task.domain, []).extend(step.parse_error is not None for step in one.episode.steps)
    found = {
        "outcomes": "".join(str(int(won[task.task_id])) if task.task_id in won else "-" for task in tasks),
        "no_action": {domain: round(sum(broken) / len(broken), 4) for domain, broken in sorted(steps.items())},
        "games": _normalised(judged),
    }
    write_json(path, found)
    return found


def _normalised(judged: Sequence[JudgedEpisode]) -> dict[str, float]:
    """Mean score of each game, as a share of its expert's at the same levels (`envs/suites/references.py`)."""
    shares: dict[str, list[float]] = {}
    for one in judged:
        if one.task.domain == "games":
            expert = (
                references.read_references(registry.get_task_suite(one.task.world))
                .levels[str(one.task.level)]["expert"]
                .score
            )
            shares.setdefault(one.task.world, []).append(one.result.score / expert)
    return {world: round(fmean(found), 4) for world, found in sorted(shares.items())}


async def play_tasks(model: Path, tasks: Sequence[Task], chosen: Settings):
    policy = open_policy(model, chosen.policy)
    try:
        async with open_environments(chosen, tasks) as environments:
            return await evaluate_policy(policy, tasks, environments, iteration=1000, settings=chosen)
    finally:
        await policy.close()


def groups(tasks: Sequence[Task], profile: str = "laptop") -> dict[str, list[int]]:
    """Places in `tasks` of all, of each domain, and of the templates that training never has."""
    chosen = settings_of(profile)
    found: dict[str, list[int]] = {"all": list(range(len(tasks)))}
    for place, task in enumerate(tasks):
        found.setdefault(task.domain, []).append(place)
        if is_held_out(chosen, task):
            found.setdefault("unseen templates", []).append(place)
    return found


def success(model: Mapping[str, Any], places: Sequence[int]) -> float:
    """NaN where it was not measured at all of the places."""
    played = [model["outcomes"][place] for place in places]
    return math.nan if "-" in played else played.count("1") / len(played)


def _flywheel(*words: str) -> None:
    subprocess.run([Path(sys.executable).with_name("flywheel"), *words], check=True, stdout=sys.stderr)


def main_of_run(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--arm", choices=ARMS, default="whole")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--profile", default="laptop")
    parser.add_argument("--tasks", type=int, default=312)
    parser.add_argument("--set", dest="other", nargs="*", default=[])
    parser.add_argument("--merged", action="store_true", help="measure the base and the merged models alone")
    options = parser.parse_args(argv)
    result = run(**vars(options))
    drawn = groups(measured_tasks(options.tasks, options.profile), options.profile)
    for model in result["models"]:
        played = {name: success(model, places) for name, places in drawn.items()}
        shares = {name: round(share, 3) for name, share in played.items() if not math.isnan(share)}
        print(json.dumps({"model": model["name"], **shares, "no_action": model["no_action"]}), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main_of_run())
