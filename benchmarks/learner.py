"""Trained tokens a second of RL's trainer, packed, against the same trainer on padded batches.

The samples are real: episodes of the model in games and sites, in Chromium, several of each task, their lengths and
screens as they come. One repetition is the whole step as the RL stage takes it, of both sides by turns: values and
log-probabilities of all samples are read, then come the gradient steps of policy and value model. Both sides take the
same minibatches; the peer pads them to the longest, computes logits at response tokens alone, as ours, and sorts its
micro-batches by length where the settings give it several. Trained tokens are response tokens. The floor is the
arithmetic that our side does at the rate at which this machine multiplies matrices of its shapes.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
import torch
from bench_case import BenchCase, compare_with_peer, emit_case, exit_code
from torch.utils.flop_counter import FlopCounterMode

from flywheel import config
from flywheel.envs.base import Task
from flywheel.envs.registry import open_environments
from flywheel.envs.tasks.drawing import make_tasks
from flywheel.evaluation.evaluator import judge_episode
from flywheel.policy import open_policy
from flywheel.policy.encoding import Encoder
from flywheel.policy.model import load_model
from flywheel.rewards.scorer import ScorerSet
from flywheel.rollout.async_pool import EpisodeOutcome
from flywheel.rollout.episode import Episode, run_rollout
from flywheel.training.modeling.policy_forward import pack_sequences
from flywheel.training.rl.trainer import Experience, Learner, build_experiences, estimate_step_samples, train_step

ROOT = Path(__file__).resolve().parent.parent


def episodes(model: Path, settings: config.Settings, count: int) -> tuple[list[Task], list[Episode]]:
    """rl.group_size episodes of `count` tasks, as many of each domain."""
    every = [task for task in make_tasks(settings, 1, "train", ROOT) if task.instruction]
    domains = {domain: [task for task in every if task.domain == domain] for domain in settings.synthesis.domains}
    tasks = [task for some in zip(*domains.values(), strict=False) for task in some][:count]

    async def play() -> list[Episode]:
        policy = open_policy(model, settings.policy)
        try:
            async with open_environments(settings, tasks, ROOT) as environments:
                return await run_rollout(
                    tasks,
                    settings.rl.group_size,
                    policy,
                    environments,
                    iteration=1,
                    settings=settings,
                    temperature=settings.rl.temperature,
                )
        finally:
            await policy.close()

    return tasks, asyncio.run(play())


class Side:
    """The trainer at a learning rate that leaves the weights where they are, so that every repetition is the same."""

    def __init__(self, model: Path, rl: config.RlSettings) -> None:
        self.rl = rl.model_copy(update={"actor_lr": 1e-12, "critic_lr": 1e-12})
        self.learner: Learner = Learner(load_model(model), self.rl, 0)
        self.seconds: list[float] = []

    def step(self, batch: Sequence[Experience]) -> dict[str, float]:
        begin = time.perf_counter()
        cut, _ = estimate_step_samples(batch, self.learner, self.rl)
        figures = train_step(self.learner, cut, self.rl, 1)
        self.seconds.append(time.perf_counter() - begin)
        return figures


def matmul_rate(hidden: int, inner: int, tokens: int) -> float:
    """Floating-point operations a second in products of the model's shapes: the best of several."""
    left, right = torch.randn(tokens, hidden), torch.randn(hidden, inner)
    best = 0.0
    for _ in range(20):
        begin = time.perf_counter()
        left @ right
        best = max(best, 2 * tokens * hidden * inner / (time.perf_counter() - begin))
    return best


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="flywheel bench learner", description=__doc__)
    parser.add_argument("--model", default="models/base", help="checkpoint folder")
    parser.add_argument("--tasks", type=int, default=8, help="tasks of the step, rl.group_size episodes each")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument(
        "--history-n-images", type=int, default=1, help="policy.history_n_images: steps shown with screens"
    )
    options = parser.parse_args(argv)
    folder = Path(options.model)
    if not folder.exists() and not folder.is_absolute():
        folder = ROOT / folder
    policy = {"history_n_images": options.history_n_images, "max_context_tokens": 512 * options.history_n_images}
    settings = config.Settings.model_validate({"policy": policy | {"guided_decoding": "never"}})
    tasks, played = episodes(folder, settings, options.tasks)
    encoder = Encoder.from_folder(folder)
    by_id, panel = {task.task_id: task for task in tasks}, ScorerSet(settings)
    played = [episode for episode in played if episode.steps]
    results = [judge_episode(by_id[episode.trajectory.task_id], episode, panel).result for episode in played]
    outcomes = [EpisodeOutcome(0, result.score, result.v) for result in results]
    batch = build_experiences(played, outcomes, by_id, encoder, settings)
    return exit_code([measure(folder, settings.rl, batch, options.repetitions)])


def measure(folder: Path, rl: config.RlSettings, batch: Sequence[Experience], repetitions: int) -> BenchCase:
    sides = {"ours": Side(folder, rl), "peer": Side(folder, rl.model_copy(update={"pack_tokens": 0}))}
    first = {name: side.step(batch) for name, side in sides.items()}  # warms up, too
    apart = max(abs(first["ours"][name] - first["peer"][name]) for name in ("policy_loss", "entropy", "grad_norm"))
    with FlopCounterMode(display=False) as counted:
        sides["ours"].step(batch)
    for side in sides.values():
        side.seconds.clear()
    shape = sides["ours"].learner.policy.config.text_config
    rate = 0.0
    for repetition in range(repetitions):
        for name in sorted(sides, reverse=bool(repetition % 2)):
            sides[name].step(batch)
        rate = max(rate, matmul_rate(shape.hidden_size, shape.intermediate_size, rl.pack_tokens))
    samples = [sample for experience in batch for sample in experience.samples]
    tokens = sum(len(sample.response) for sample in samples)
    reader = sides["ours"].learner.reader
    sequences = [reader.encode_example(sample.context, sample.response).sequence for sample in samples]
    read = pack_sequences(sequences, rl.pack_tokens)
    lengths = np.array([len(line) for line in sequences])
    facts = {
        "samples": len(samples),
        "tokens": tokens,
        "length_median": float(np.median(lengths)),
        "length_max": int(lengths.max()),
        "screens_shown": sum(len(line.screens) for line in sequences),
        "screens_computed": sum(len(pack.screens) for pack in read),
        "sequence_tokens": int(lengths.sum()),
        "computed_tokens": sum(pack.tokens for pack in read),
    }
    ours, peer = (tokens / median(sides[name].seconds) for name in ("ours", "peer"))
    floor = tokens / (counted.get_total_flops() / rate)
    return emit_case(
        compare_with_peer(
            "learner",
            "tokens_per_second",
            "trained tokens/s",
            ours=ours,
            peer=peer,
            peer_name="the same trainer on padded batches",
            goal=1.5,
            n=repetitions,
            **facts,
            floor=floor,
            share_of_floor=ours / floor,
            gflops_rate=rate / 1e9,
            difference=apart,
            threads=torch.get_num_threads(),
            ours_all=[tokens / s for s in sides["ours"].seconds],
            peer_all=[tokens / s for s in sides["peer"].seconds],
        )
    )
