"""RL that streams against RL in synchronous batches: samples a second, use of environments, reward at the end.

Both are the project's own run: the same tasks, seeds, start, environments and number of training steps; they differ in
rl.max_staleness (0: synchronous). Lengths of episodes have a long tail, and every call of an environment waits as a
remote machine's does (`streaming_world`); policy and trainer are real, and small. Sides alternate, a seed at a time.

samples_per_second: training samples (steps of episodes) from the sandbox's opening to the end of the last training
step. utilisation: share of that time for which environments were lent to an episode (acting: in a call of their own).
final_reward: of the trained weights on other tasks of the same kind, without latency, after the same number of steps
(in the same time the stream makes more of them); interval: 95%, of the difference, over seeds. The stream is measured
in its steady state: it is ended after the same number of steps while episodes are still under way.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from bench_case import BenchCase, compare_with_peer, emit_case, exit_code, student_mean_interval
from streaming_world import SIZE, Line, start, tasks

from flywheel.config import Settings
from flywheel.envs.base import Task
from flywheel.evaluation.evaluator import evaluate_policy
from flywheel.policy.inference.embedded import EmbeddedPolicy
from flywheel.training.rl.run import train_rl
from flywheel.utils.errors import BadInput

TOLERANCE = 0.01  # by which a mean reward of three seeds may be lower and count as the same


@dataclass(frozen=True)
class Side:
    """What one run gave. samples: trained. late: staleness_max of each step. acting: share of environments' time."""

    samples: int
    seconds: float
    utilisation: float
    acting: float
    rewards: tuple[float, ...]
    late: tuple[float, ...]
    update_s: float
    final: float


def settings_of(options: argparse.Namespace, seed: int, staleness: int) -> Settings:
    return Settings.model_validate(
        {
            "seed": seed,
            "policy": {
                "max_new_tokens": 24,
                "timeout_s": 300,
                "max_num_seqs": options.environments,
                "device": "cpu",
                "max_context_tokens": 256,
            },
            "sandbox": {
                "width": SIZE,
                "height": SIZE,
                "pages": options.environments,
                "timeout_s": 300,
                "heartbeat_timeout_s": 1200,
            },
            "rollout": {"max_concurrent": options.environments},
            "rl": {
                # More than are taken, so that the last ones that count are not short of episodes.
                "steps": options.steps + staleness + 1,
                "tasks_per_step": options.batch,
                "group_size": 1,
                "max_staleness": staleness,
                "temperature": 1.0,
                "minibatch": options.batch * 4,
                "micro_batch": 64,
                "actor_lr": 5e-4,
                "critic_lr": 5e-4,
                "value_pretraining_steps": 0,
                "curriculum_uniform_fraction": 1.0,
                "positive_nll": 0.0,
                "max_logprob_diff_off_policy": 10.0,
            },
            "evaluation": {"temperature": 1.0},
        }
    )


def run(folder: Path, model: Path, options: argparse.Namespace, seed: int, staleness: int) -> Side:
    chosen = settings_of(options, seed, staleness)
    line, metrics, ends = Line(options.latency), [], []
    pupils = tasks(options.tasks, options.median, options.tail, seed)

    def after(metric) -> None:
        metrics.append(metric)
        ends.append(time.monotonic())

    train_rl(
        model,
        folder / "out",
        "games",
        pupils,
        open_environments=line.open,
        settings=chosen,
        iteration=1,
        state_folder=folder / "state",
        on_metric=after,
        stop=lambda: len(metrics) >= options.steps,
    )
    seconds = ends[-1] - line.began
    spans = np.diff([line.began, *ends])
    return Side(
        samples=round(sum(metric["episodes"] * metric["rounds"] for metric in metrics)),
        seconds=seconds,
        utilisation=float(np.average([metric["utilisation"] for metric in metrics], weights=spans)),
        acting=line.acting / (options.environments * seconds),
        rewards=tuple(metric["score"] for metric in metrics),
        late=tuple(metric["staleness_max"] for metric in metrics),
        update_s=fmean(metric["update_s"] for metric in metrics),
        final=asyncio.run(final_reward(folder / "out", chosen, options)),
    )


async def final_reward(model: Path, chosen: Settings, options: argparse.Namespace) -> float:
    held_out: list[Task] = tasks(400, options.median, options.tail, seed=9_999)
    policy = EmbeddedPolicy(model, chosen.policy)
    try:
        played = await evaluate_policy(policy, held_out, Line(0.0), iteration=0, settings=chosen)
    finally:
        await policy.close()
    return fmean(one.result.score for one in played)


def cases(stream: Sequence[Side], batch: Sequence[Side], options: argparse.Namespace, before: float) -> list[BenchCase]:
    """stream, batch: a run a seed, in the same order."""
    lengths = np.sort([task.max_steps for task in tasks(options.tasks, options.median, options.tail, 0)])
    p50, p99 = np.quantile(lengths, (0.5, 0.99))
    facts = {
        "seeds": len(stream),
        "steps": options.steps,
        "environments": options.environments,
        "batch": options.batch,
        "latency_s": options.latency,
        "length_p50": float(p50),
        "length_p99": float(p99),
        "p99_over_p50": p99 / p50,
        "max_staleness": options.staleness,
        "threads": torch.get_num_threads(),
    }
    peer = "the same run in synchronous batches (max_staleness 0)"

    def rates(sides: Sequence[Side]) -> list[float]:
        return [side.samples / side.seconds for side in sides]

    speed = compare_with_peer(
        "streaming",
        "samples_per_second",
        "samples/s",
        ours=fmean(rates(stream)),
        peer=fmean(rates(batch)),
        peer_name=peer,
        goal=2.5,
        **facts,
        ours_all=rates(stream),
        peer_all=rates(batch),
        update_s=fmean(side.update_s for side in stream),
        peer_update_s=fmean(side.update_s for side in batch),
        staleness_max=max(max(side.late) for side in stream),
    )
    used, peer_used = (fmean(side.utilisation for side in sides) for sides in (stream, batch))
    use = BenchCase(
        "streaming",
        "utilisation",
        "fraction",
        used,
        peer_used,
        peer,
        used / peer_used,
        0.9,
        used >= 0.9,
        {
            "acting": fmean(side.acting for side in stream),
            "peer_acting": fmean(side.acting for side in batch),
            "ours_all": [side.utilisation for side in stream],
            "peer_all": [side.utilisation for side in batch],
        },
    )
    mine, theirs = (fmean(side.final for side in sides) for sides in (stream, batch))
    differences = [a.final - b.final for a, b in zip(stream, batch, strict=True)]
    reward = BenchCase(
        "streaming",
        "final_reward",
        "score",
        mine,
        theirs,
        peer,
        mine / theirs if theirs else None,
        theirs,
        mine >= theirs - TOLERANCE,
        {
            "n": len(stream),
            "difference": mine - theirs,
            "interval": list(student_mean_interval(differences)),
            "differences": differences,
            "tolerance": TOLERANCE,
            "before": before,
            "ours_all": [side.final for side in stream],
            "peer_all": [side.final for side in batch],
            "ours_curve": np.mean([side.rewards for side in stream], axis=0).tolist(),
            "peer_curve": np.mean([side.rewards for side in batch], axis=0).tolist(),
        },
    )
    return [emit_case(case) for case in (speed, use, reward)]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="flywheel bench streaming", description=__doc__)
    parser.add_argument("--model", default="models/base", help="whose tokeniser is used")
    parser.add_argument("--seeds", type=int, default=3, help="how many (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=24, help="of training, a run")
    parser.add_argument("--batch", type=int, default=32, help="episodes of a training step")
    parser.add_argument("--environments", type=int, default=32, help="lent at once at most")
    parser.add_argument("--staleness", type=int, default=8, help="max_staleness of the stream")
    parser.add_argument("--latency", type=float, default=0.6, help="mean seconds of a step of an environment")
    parser.add_argument("--tasks", type=int, default=400, help="to draw from in training")
    parser.add_argument("--median", type=int, default=2, help="length of an episode, in steps")
    parser.add_argument("--tail", type=float, default=8.5, help="99th percentile of the lengths over their median")
    parser.add_argument("--initial-success", type=float, default=0.7, help="share of right clicks that RL begins with")
    options = parser.parse_args(argv)
    if options.seeds < 1:
        raise BadInput(f"--seeds {options.seeds}", where="flywheel bench streaming", fix="1 or more")
    base = Path(options.model)
    if not base.exists() and not base.is_absolute():
        base = Path(__file__).resolve().parent.parent / base
    stream, batch = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        chosen = settings_of(options, 0, 0)
        model = start(folder, base, chosen.policy, options.initial_success, seed=0)
        before = asyncio.run(final_reward(model, chosen, options))
        for seed in range(options.first, options.first + options.seeds):
            sides = [(stream, options.staleness), (batch, 0)]
            for found, staleness in sides if seed % 2 else sides[::-1]:
                found.append(run(folder / f"{seed}-{staleness}", model, options, seed, staleness))
        return exit_code(cases(stream, batch, options, before))
