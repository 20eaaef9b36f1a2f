"""What more samples of a task find: pass@1 and pass@k of a checkpoint on fresh tasks, free and constrained.

The tasks are of the default domains, drawn from a seed that no run uses, and played `--samples` times at each
temperature: as the model writes, and held to the form of an action (`policy.guided_decoding`). pass_k: the share of
tasks that any sample solved; what lies between it and pass@1 is what rejection sampling and RL can win. no_action: the
share of steps whose text held no action.
"""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

from bench_case import BenchCase, emit_case, exit_code

from flywheel import config
from flywheel.envs.base import Task
from flywheel.envs.registry import open_environments
from flywheel.envs.tasks.drawing import make_tasks
from flywheel.evaluation.evaluator import JudgedEpisode, judge_episode
from flywheel.policy import open_policy
from flywheel.rewards.scorer import ScorerSet
from flywheel.rollout.episode import run_rollout
from flywheel.utils.confidence_intervals import wilson_interval

BASE = Path(__file__).resolve().parent.parent / "models" / "base"
FORM = 0.02  # steps without an action, at most


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="flywheel bench exploration", description=__doc__)
    parser.add_argument("--model", type=Path, default=BASE)
    parser.add_argument("--tasks", type=int, default=78)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--seed", type=int, default=4711)
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.5, 1.0])
    options = parser.parse_args(argv)
    cases = []
    for constrained, temperature in product(("never", "always"), options.temperature):
        chosen = config.parse_settings(
            {
                "seed": options.seed,
                "policy": {"guided_decoding": constrained},
                "synthesis": {"train_tasks": options.tasks},
                "rollout": {"n_rollouts": options.samples, "temperature": temperature},
            },
            where="flywheel bench exploration",
        )
        cases += _cases(chosen, asyncio.run(played(options.model, chosen)))
    return exit_code(cases)


async def played(model: Path, chosen: config.Settings) -> list[JudgedEpisode]:
    """rollout.n_rollouts episodes of each training task of a first iteration, judged."""
    tasks = make_tasks(chosen, 1, "train")
    policy, panel = open_policy(model, chosen.policy), ScorerSet(chosen)
    try:
        async with open_environments(chosen, tasks) as environments:
            episodes = await run_rollout(
                tasks,
                chosen.rollout.n_rollouts,
                policy,
                environments,
                iteration=1,
                settings=chosen,
                temperature=chosen.rollout.temperature,
            )
    finally:
        await policy.close()
    by_id = {task.task_id: task for task in tasks}
    return [judge_episode(by_id[one.trajectory.task_id], one, panel) for one in episodes]


def _cases(chosen: config.Settings, judged: Sequence[JudgedEpisode]) -> list[BenchCase]:
    held = chosen.policy.holds_form
    name = f"{'constrained' if held else 'free'}, temperature {chosen.rollout.temperature:g}"
    solved, steps, broken = defaultdict(list), 0, 0
    for one in judged:
        solved[one.task.task_id].append(one.result.v)
        steps += len(one.episode.steps)
        broken += sum(step.parse_error is not None for step in one.episode.steps)
    pass_1, pass_k, mixed = found(solved.values())
    tasks = {one.task.task_id: one.task for one in judged}

    def parts(of: Callable[[Task], str]) -> dict[str, list[float]]:
        groups = defaultdict(list)
        for task_id, runs in solved.items():
            groups[of(tasks[task_id])].append(runs)
        return {group: list(found(runs)) for group, runs in sorted(groups.items())}

    about = {
        "n": len(solved),
        "samples": chosen.rollout.n_rollouts,
        "seed": chosen.seed,
        "interval": list(wilson_interval(round(pass_k * len(solved)), len(solved))),
        "solved_sometimes": mixed,
        "by_domain": parts(lambda task: task.domain),
        "by_world": parts(lambda task: task.world),
    }
    share = broken / max(steps, 1)
    return [
        emit_case(
            BenchCase("exploration", f"pass_k, {name}", "fraction", pass_k, pass_1, "pass@1", None, None, True, about)
        ),
        emit_case(
            BenchCase(
                "exploration",
                f"no_action, {name}",
                "fraction of steps",
                share,
                None,
                "none",
                None,
                FORM if held else None,
                not held or share < FORM,
                {"n": steps, "goal_is": "less than"},
            )
        ),
    ]


def found(solved: Sequence[Sequence[bool]]) -> tuple[float, float, int]:
    """pass@1, pass@k, and how many tasks some samples solved and some did not; solved: of each task, of each sample."""
    solved = list(solved)
    pass_1 = sum(sum(runs) / len(runs) for runs in solved) / len(solved)
    return pass_1, sum(any(runs) for runs in solved) / len(solved), sum(0 < sum(runs) < len(runs) for runs in solved)


if __name__ == "__main__":
    raise SystemExit(main())
