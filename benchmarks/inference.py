"""What more computing brings when a model acts: more samples of a task, and more steps an episode (the UI-TARS-2
report's figure 11).

best_of_N: success where of N samples a task the best by the verifier counts (pass@N). gap_closed_WAY_N: the share of
the way from one sample (pass@1) to pass@N that choosing one of the N goes, by `vote` (the end that most samples agree
on; of like numbers the likelier tokens), by `orm` (an outcome reward model's probability, with --orm) or by `orm_vote`
(the end whose samples' probabilities sum to most).
success_at_F_of_the_steps: greedy success where an episode may have F times the steps of its task. Intervals are 95%, by
a bootstrap over tasks.

The tasks are those that `flywheel bench flywheel` measures on: no run trains on them.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import flywheel_run
import numpy as np
from bench_case import BenchCase, emit_case, exit_code

from flywheel.envs.base import Task
from flywheel.envs.registry import open_environments
from flywheel.evaluation.evaluator import JudgedEpisode, evaluate_policy
from flywheel.evaluation.headroom import pass_at_k
from flywheel.policy import open_policy
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.rewards.outcome import Calibration, VerdictReader, build_verdict_context, find_orm
from flywheel.utils.errors import BadInput

GAP_GOAL = 0.6  # of `gap_closed`, by the best way that does not ask the verifier
BOOTSTRAPS, SEED = 2000, 5


@dataclass(frozen=True)
class Sample:
    """Hold one episode of a task. end: what it left, as the verifier reads it. logprob: mean of its tokens. orm: the
    probability that it is solved, by the reward model; NaN without one."""

    solved: bool
    end: str
    logprob: float
    orm: float = math.nan


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="flywheel bench inference", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=flywheel_run.BASE, help="checkpoint (default: the shipped base)")
    parser.add_argument("--orm", type=Path, help="an outcome reward model, of `flywheel model train-orm`")
    parser.add_argument("--tasks", type=int, default=120, help="(default: %(default)s)")
    parser.add_argument("--samples", type=int, default=8, help="a task (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.7, help="of the samples (default: %(default)s)")
    parser.add_argument("--budgets", nargs="*", type=float, default=[0.25, 0.5, 1, 2, 4], help="(default: %(default)s)")
    options = parser.parse_args(argv)
    if options.samples < 2 or options.tasks < 1:
        raise BadInput("at least two samples of one task are needed", where="--samples, --tasks")
    return exit_code([emit_case(case) for case in asyncio.run(_measure(options))])


async def _measure(options: argparse.Namespace) -> list[BenchCase]:
    tasks = flywheel_run.measured_tasks(options.tasks)
    about = {"model": checkpoint_digest(options.model)[:16], "n": len(tasks), "seed": flywheel_run.SEED}
    reader = _OrmReader(options.orm) if options.orm else None  # refused before anything is played
    sampled = await play(options.model, tasks, samples=options.samples, temperature=options.temperature)
    groups = group_samples(sampled, reader)
    cases = list(sample_cases(groups, about | {"temperature": options.temperature}))
    for factor in sorted(options.budgets):
        allowed = [replace(task, max_steps=max(1, round(factor * task.max_steps))) for task in tasks]
        judged = await play(options.model, allowed, samples=1, temperature=0.0)
        won = [float(one.result.v) for one in judged]
        steps = fmean(len(one.episode.steps) for one in judged)
        more = about | {"interval": bootstrap(won, fmean), "steps": steps}
        name = f"success_at_{factor:g}_of_the_steps"
        cases.append(BenchCase("inference", name, "fraction", fmean(won), None, "", None, None, True, more))
    return cases


async def play(
    model: Path, tasks: Sequence[Task], *, samples: int, temperature: float, policy: Mapping[str, object] = {}
) -> list[JudgedEpisode]:
    """Play `samples` episodes of each task, as `flywheel bench flywheel` measures. policy: settings of the block that
    differ from the default run's."""
    settings = flywheel_run.settings_of("laptop")
    chosen = settings.evaluation.model_copy(update={"n_trials": samples, "temperature": temperature})
    asked = settings.policy.model_copy(update=policy)
    settings = settings.model_copy(update={"evaluation": chosen, "policy": asked})
    opened = open_policy(model, settings.policy)
    try:
        async with open_environments(settings, tasks) as environments:
            return await evaluate_policy(opened, tasks, environments, iteration=1000, settings=settings)
    finally:
        await opened.close()


class _OrmReader:
    """Ask an outcome reward model for the probability that an episode is solved. Raises as `Calibration.read`."""

    def __init__(self, place: Path) -> None:
        folder = find_orm(place)
        self._calibration = Calibration.read(folder)
        self._reader = VerdictReader(folder, self._calibration.reads, "cpu")

    def __call__(self, one: JudgedEpisode) -> float:
        known = self._calibration.domains.get(one.task.domain)
        if known is None:
            return math.nan
        episode, reads = one.episode, self._calibration.reads
        count = self._reader.encoder.count
        final = episode.trajectory.final_image_sha256
        context = build_verdict_context(one.task.instruction, episode.steps, episode.images, count, reads, final)
        return float(known.probability(float(self._reader.probabilities([context])[0])))


def group_samples(
    judged: Sequence[JudgedEpisode], reader: Callable[[JudgedEpisode], float] | None = None
) -> dict[str, list[Sample]]:
    """Return the samples of each task, by its id; crashed ones are left out, since they say nothing of the model."""
    groups: dict[str, list[Sample]] = {}
    for one in judged:
        if one.episode.trajectory.status == "crashed":
            continue
        tokens = [value for step in one.episode.steps for value in step.logprobs or ()]
        end = one.episode.trajectory.final_state or ""
        logprob = fmean(tokens) if tokens else -math.inf
        orm = reader(one) if reader else math.nan
        groups.setdefault(one.task.task_id, []).append(Sample(bool(one.result.v), end, logprob, orm))
    return groups


def choose_by_vote(samples: Sequence[Sample]) -> Sample:
    """Choose a sample of the end that most agree on; of like numbers, the one whose tokens are the likeliest."""
    ends = Counter(sample.end for sample in samples)
    return max(samples, key=lambda sample: (ends[sample.end], sample.logprob))


def choose_by_orm(samples: Sequence[Sample]) -> Sample:
    """Choose the sample that the reward model finds the likeliest to be solved; of like ones, the first."""
    return max(samples, key=lambda sample: sample.orm)


def choose_by_orm_vote(samples: Sequence[Sample]) -> Sample:
    """Choose a sample of the end whose samples' probabilities sum to most; of these, the likeliest to be solved."""
    ends = {one.end: sum(other.orm for other in samples if other.end == one.end) for one in samples}
    return max(samples, key=lambda sample: (ends[sample.end], sample.orm))


def sample_cases(groups: Mapping[str, Sequence[Sample]], about: Mapping[str, object]) -> Iterator[BenchCase]:
    """Yield best_of_N for N = 1, 2, 4, ... and gap_closed_WAY_N for the largest N. groups: each task's samples."""
    tasks = [group for group in groups.values() if group]
    most = min(len(group) for group in tasks)
    sizes = [size for size in (1, 2, 4, 8, 16, 32) if size <= most]

    def best(size: int) -> list[float]:
        return [pass_at_k(sum(one.solved for one in group), len(group), size) for group in tasks]

    for size in sizes:
        extra = {**about, "tasks": len(tasks), "interval": bootstrap(best(size), fmean)}
        yield BenchCase(
            "inference", f"best_of_{size}", "fraction", fmean(best(size)), None, "", None, None, True, extra
        )
    ways: dict[str, Callable[[Sequence[Sample]], Sample]] = {"vote": choose_by_vote}
    if not any(math.isnan(one.orm) for group in tasks for one in group):
        ways |= {"orm": choose_by_orm, "orm_vote": choose_by_orm_vote}
    one, all_of_them = best(1), best(sizes[-1])
    closed = {}
    for way, choose in ways.items():
        chosen = [float(choose(group[: sizes[-1]]).solved) for group in tasks]
        closed[way] = (chosen, [*zip(one, chosen, all_of_them, strict=True)])
    for way, (chosen, rows) in closed.items():
        extra = {
            **about,
            "success": fmean(chosen),
            "interval": bootstrap(rows, gap_closed),
            "goal_is": "of the best way",
        }
        value = gap_closed(rows)
        met = max(gap_closed(other) for _, other in closed.values()) >= GAP_GOAL
        name = f"gap_closed_{way}_{sizes[-1]}"
        yield BenchCase("inference", name, "fraction", value, 1.0, "the verifier", None, GAP_GOAL, met, extra)


def gap_closed(rows: Sequence[tuple[float, float, float]]) -> float:
    """Return the share of the way from one sample to the best of N. rows: (pass@1, chosen, pass@N) of each task; NaN
    where there is no way."""
    one, chosen, best = (fmean(column) for column in zip(*rows, strict=True))
    return (chosen - one) / (best - one) if best > one else math.nan


def bootstrap(rows: Sequence, figure: Callable[[Sequence], float]) -> list[float]:
    """Return the 95% percentile interval of a figure over tasks drawn with replacement. rows: a value a task."""
    rng = np.random.default_rng(SEED)
    draws = (figure([rows[place] for place in rng.integers(len(rows), size=len(rows))]) for _ in range(BOOTSTRAPS))
    low, high = np.nanquantile(list(draws), (0.025, 0.975))
    return [float(low), float(high)]


if __name__ == "__main__":
    sys.exit(main())
