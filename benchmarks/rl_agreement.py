"""How much one batch of episodes says of the direction to learn in: whether batches of other tasks say the same.

The start of `benchmarks/rl.py` plays its training tasks, a few times each. The tasks are dealt out to batches, each
batch has its policy gradient (score less the mean score of its kind of task, over the upper half of the layers), and
the figure is the mean cosine of two batches' gradients: 1 where they say the same, 0 where they are noise (compare the
gradient noise scale, McCandlish et al. 2018). From it one sees in minutes whether a recipe has anything to learn of.

python benchmarks/rl_agreement.py --out bench-rl --episodes long
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean

import numpy as np
import rl_run
import rl_start
import torch
from torch import nn

from flywheel.config import Settings
from flywheel.evaluation.evaluator import JudgedEpisode
from flywheel.policy.encoding import Encoder
from flywheel.policy.model import load_model
from flywheel.rollout.async_pool import EpisodeOutcome
from flywheel.training.rl.trainer import Experience, Learner, build_experiences


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="as of `flywheel bench rl`: its start is taken or made")
    parser.add_argument("--episodes", choices=rl_start.RECIPES, default="long")
    parser.add_argument("--tasks", type=int, default=40, help="training tasks of a kind (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=3, help="episodes of a task (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=8, help="(default: %(default)s)")
    options = parser.parse_args(argv)
    if options.batches < 3:
        parser.error("--batches: at least 3, so that each can be left out")
    start = rl_run.start(options.out, options.episodes)
    # No V and no penalties: the outcome alone is looked at.
    plain = {"algorithm": "grpo", "format_penalty": 0.0, "length_buffer": 0}
    s = rl_run.settings("full", 1, other=plain, episodes=options.episodes)
    s = s.model_copy(update={"evaluation": s.evaluation.model_copy(update={"n_trials": options.samples})})
    tasks = rl_start.tasks("train", options.tasks, rl_start.RECIPES[options.episodes].kinds)
    played = [one for one in asyncio.run(rl_run.play(start, tasks, s)) if one.episode.steps]
    batches = _batches(played, options.batches)
    advantages = _advantages(played)
    if blank := sum(not any(advantages[one.episode.id] for one in batch) for batch in batches):
        parser.error(f"in {blank} of {len(batches)} batches all episodes score alike: take more (--tasks, --samples)")
    learner, encoder = Learner(load_model(start), s.rl, 0), Encoder.from_folder(start)
    gradients = [_gradient(batch, advantages, learner, encoder, s) for batch in batches]
    agreement, error = mean_cosine(gradients)
    found = {
        "episodes": len(played) / len(batches),
        "turns": sum(len(one.episode.steps) for one in played) / len(batches),
        "success": fmean(one.result.v for one in played),
        "agreement": agreement,
        "standard_error": error,
    }
    print(json.dumps({"recipe": options.episodes, **{name: round(value, 4) for name, value in found.items()}}))
    return 0


def _batches(played: Sequence[JudgedEpisode], count: int) -> list[list[JudgedEpisode]]:
    """Tasks in random order, by turns; a task's episodes stay together, as they would agree by their task alone."""
    names = np.random.default_rng(0).permutation(sorted({one.task.task_id for one in played})).tolist()
    number = {name: place % count for place, name in enumerate(names)}
    return [[one for one in played if number[one.task.task_id] == batch] for batch in range(count)]


def _advantages(played: Sequence[JudgedEpisode]) -> dict[str, float]:
    """By trajectory: the score less the mean of its kind."""
    of_kind: dict[tuple[str | None, int], list[float]] = defaultdict(list)
    for one in played:
        of_kind[one.task.world, one.task.level].append(one.result.score)
    return {one.episode.id: one.result.score - fmean(of_kind[one.task.world, one.task.level]) for one in played}


def _gradient(
    batch: Sequence[JudgedEpisode], advantages: dict[str, float], learner: Learner, encoder: Encoder, s: Settings
) -> np.ndarray:
    """Of the sum of advantage x log-probability over the batch's tokens, in all weights of the upper layers."""
    outcomes = [EpisodeOutcome(0, one.result.score, one.result.v) for one in batch]
    tasks = {one.task.task_id: one.task for one in batch}
    found: list[Experience] = build_experiences([one.episode for one in batch], outcomes, tasks, encoder, s)
    turns = [(sample, advantages[one.trajectory_id]) for one in found for sample in one.samples]
    items = [learner.reader.encode_example(sample.context, sample.response) for sample, _ in turns]
    weights, total = upper(learner.policy), 0.0
    for part in learner.reader.split_into_micro_batches(items, s.rl, learner.actor.shares):
        *_, logprobs = learner.actor.forward(part, s.rl.temperature)
        by = np.concatenate([np.full(len(items[member].response), turns[member][1]) for member in part.members])
        parts = torch.autograd.grad((logprobs * torch.from_numpy(by).to(logprobs)).sum(), weights)
        total = total + torch.cat([one.flatten() for one in parts]).double().cpu().numpy()
    return np.asarray(total)


def upper(policy: nn.Module) -> list[nn.Parameter]:
    """The upper half of the language model's layers: what is below costs as much again and says the same of noise."""
    layers = policy.base_model.language_model.layers
    return [weight for layer in layers[len(layers) // 2 :] for weight in layer.parameters()]


def mean_cosine(gradients: Sequence[np.ndarray]) -> tuple[float, float]:
    """Over all pairs; and its standard error by leaving out each in turn (jackknife)."""

    def mean(some: Sequence[np.ndarray]) -> float:
        return fmean(float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)) for a, b in combinations(some, 2))

    n = len(gradients)
    without = [mean([one for place, one in enumerate(gradients) if place != left]) for left in range(n)]
    return mean(gradients), float(np.sqrt((n - 1) / n * sum((one - fmean(without)) ** 2 for one in without)))


if __name__ == "__main__":
    raise SystemExit(main())
