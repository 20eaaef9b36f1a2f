"""One side of `benchmarks/rollouts.py`, in a process of its own: the code that is first on the path, today's or an
earlier commit's. Prints a JSON object.

python benchmarks/rollouts_side.py {episodes,begin,route,rl} ROOT MODEL FOLDER
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

try:
    from flywheel.config import Settings
    from flywheel.config.workspace import Workspace
    from flywheel.envs.registry import open_environments
    from flywheel.envs.tasks.drawing import make_tasks
    from flywheel.rollout.episode import open_rollout_worker as open_players
    from flywheel.rollout.episode import run_rollout as rollout
    from flywheel.store import manifest
    from flywheel.store.routing.training_stores import build_training_stores, publish_training_stores
    from flywheel.training.rl.run import train_rl

    GROUP, init_manifests = "group_size", manifest.init_manifests
except ImportError:  # an earlier commit
    from flywheel.environments.router import open_environments
    from flywheel.rollout.players import open_players
    from flywheel.rollout.pool import rollout
    from flywheel.settings import Settings
    from flywheel.store.build import build as build_training_stores
    from flywheel.store.build import publish as publish_training_stores
    from flywheel.synthesis.tasks import make_tasks
    from flywheel.workspace import Workspace

    from flywheel.store import manifest
    from flywheel.training.rl.run import train_rl

    GROUP, init_manifests = "samples", manifest.begin

TASKS, SAMPLES, AT_ONCE = 40, 4, 20  # of the default run: training tasks, episodes of each, tasks of a shard
BEGUN = 24  # episodes begun, after as many that warm up
RL_STEPS = 6  # of 64 episodes each
TRAJECTORIES = 200
READ = [("trajectories", "rollout"), ("steps", "rollout"), ("images", "rollout"), ("tasks", "synthesize")]


def cpu_s(pick: Callable[[str], bool] | None = None) -> float:
    """CPU seconds so far: of this process's threads whose names `pick` takes; None: of it and all that it began."""
    process = psutil.Process()
    if pick is not None:
        names = {thread.native_id: thread.name for thread in threading.enumerate()}
        return sum(one.user_time + one.system_time for one in process.threads() if pick(names.get(one.id, "")))
    total = sum(process.cpu_times()[:4])
    return total + sum(sum(one.cpu_times()[:4]) for one in process.children(recursive=True))


def is_policy(name: str) -> bool:
    return name.startswith("policy")


def episodes(model: Path, _: Path) -> dict[str, Any]:
    """The rollouts of the default run, once the policy and the environments are open."""
    settings = Settings()
    tasks = make_tasks(settings, 1, "train")[:TASKS]
    done = []
    with open_players(model, tasks, settings, Path.cwd()) as players:
        own, whole = cpu_s(lambda name: True), cpu_s()
        policy, began = cpu_s(is_policy), time.perf_counter()
        for first in range(0, len(tasks), AT_ONCE):
            part = tasks[first : first + AT_ONCE]
            done += players.run(
                lambda policy, environments, part=part: rollout(
                    part, SAMPLES, policy, environments, iteration=1, settings=settings,
                    temperature=settings.rollout.temperature,
                )
            )  # fmt: skip
        seconds = time.perf_counter() - began
        policy = cpu_s(is_policy) - policy
        own, whole = cpu_s(lambda name: True) - own, cpu_s() - whole
    answers = {
        f"{one.trajectory.task_id} {one.trajectory.sample} {step.step}": hashlib.sha256(
            json.dumps(list(step.token_ids)).encode()
        ).hexdigest()[:16]
        for one in done
        for step in one.steps
    }
    return {
        "episodes": len(done),
        "steps": len(answers),
        "seconds": seconds,
        "policy_cpu_s": policy,
        "rest_cpu_s": own - policy,
        "browser_cpu_s": whole - own,
        "answers": answers,
    }


def begin(_: Path, __: Path) -> dict[str, Any]:
    """Begin one episode after another, in environments that are open."""
    settings = Settings()
    tasks = make_tasks(settings, 1, "train")[:BEGUN]

    async def run() -> float:
        async with open_environments(settings, tasks, Path.cwd()) as environments:
            for _ in range(2):
                before = cpu_s()
                for task in tasks:
                    async with environments.env(task) as env:
                        await env.reset(task, task.seed)
            return cpu_s() - before

    return {"cpu_s": asyncio.run(run()) / len(tasks)}


def route(_: Path, folder: Path) -> dict[str, Any]:
    """Route made trajectories of 15 steps."""
    import store_synthetic

    ws = store_synthetic.workspace(folder / "workspace", TRAJECTORIES)
    init_manifests(ws)
    before = cpu_s()
    staged = Workspace(ws.root / "staged")
    build_training_stores(ws, 1, Settings(), READ, staged)
    publish_training_stores(ws, 1, staged)
    ended = psutil.Process().cpu_times()
    return {"cpu_s": cpu_s() - before, "children_cpu_s": ended.children_user + ended.children_system}


def rl(model: Path, folder: Path) -> dict[str, Any]:
    """A run of RL, with all it opens: a step's share. Episodes are played ahead, so no step can be measured alone."""
    rl = {"steps": RL_STEPS, "tasks_per_step": 8, GROUP: 8, "value_pretraining_steps": 0}
    settings = Settings.model_validate({"rl": rl})
    began, before, at = time.perf_counter(), cpu_s(), []
    train_rl(
        model,
        folder / "model",
        "",
        make_tasks(settings, 1, "train"),
        settings=settings,
        iteration=1,
        state_folder=folder / "state",
        on_metric=lambda metric: at.append((time.perf_counter(), cpu_s())),
    )
    seconds, cpu = at[-1]
    return {"seconds": (seconds - began) / RL_STEPS, "cpu_s": (cpu - before) / RL_STEPS}


if __name__ == "__main__":
    kind, root, model, folder = sys.argv[1:]
    sys.path.insert(0, str(Path(root) / "benchmarks"))  # a commit's own `store_synthetic`
    run = {"episodes": episodes, "begin": begin, "route": route, "rl": rl}[kind]
    print(json.dumps(run(Path(model), Path(folder))))
