"""A policy in 8-bit integers (`policy.quantization: w8a8`) beside the same one in float32, on this CPU.

tokens: tokens a second of 16 requests at once at the shape of 75 million parameters, random weights, by turns; the goal
is 1.3 times. agreement: on --tasks first screens of a trained --model, the share of greedy answers that are equal, and
the mean difference of the log-probabilities of tokens that follow the same text. success: greedy success on the same
held-out tasks less that in float32, with its 95% interval over tasks; the goal is that the interval holds 0 or lies
above.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median

import flywheel_run
import inference
import policy as policy_bench
import torch
from bench_case import BenchCase, compare_with_peer, emit_case, exit_code
from transformers import Qwen3VLForConditionalGeneration

from flywheel.config import PolicySettings
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.policy.encoding import Encoder
from flywheel.policy.inference.embedded import EmbeddedPolicy
from flywheel.policy.model import save_checkpoint, tiny_config
from flywheel.policy.protocol import Completion, SamplingParams

GOAL = 1.3
# The language model of 75 million parameters; the vision tower is that of the shipped base.
SHAPE = {
    "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 10, "num_attention_heads": 12,
    "num_key_value_heads": 12, "head_dim": 64, "initializer_range": 0.02,
}  # fmt: skip
ROPE = {"mrope_section": [12, 10, 10]}  # halves of the head


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="flywheel bench quantized", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=flywheel_run.BASE, help="trained (default: the shipped base)")
    parser.add_argument("--tokens", type=int, default=48, help="of each answer, for the speed (default: %(default)s)")
    parser.add_argument("--repetitions", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--tasks", type=int, default=120, help="0: the speed alone (default: %(default)s)")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        cases = [speed(make_shape(Path(folder) / "shape"), options.tokens, options.repetitions)]
    if options.tasks:
        cases += [agreement(options.model, options.tasks), asyncio.run(success(options.model, options.tasks))]
    return exit_code(cases)


def make_shape(folder: Path) -> Path:
    """Write a checkpoint of `SHAPE` with random weights, and the shipped base's tokeniser; return its folder."""
    shape = tiny_config()
    for name, value in SHAPE.items():
        setattr(shape.text_config, name, value)
    shape.text_config.rope_parameters = {**shape.text_config.rope_parameters, **ROPE}
    shape.vision_config.out_hidden_size = SHAPE["hidden_size"]
    torch.manual_seed(0)
    model = Qwen3VLForConditionalGeneration(shape)
    return save_checkpoint(model, Encoder.from_folder(flywheel_run.BASE), folder)


def chosen(quantization: str) -> PolicySettings:
    return PolicySettings(max_num_seqs=policy_bench.REQUESTS, device="cpu", quantization=quantization, timeout_s=600)


def speed(folder: Path, tokens: int, repetitions: int) -> BenchCase:
    fresh = policy_bench.contexts(224)
    sides = {name: partial(policy_bench.Ours, folder, chosen(name)) for name in ("w8a8", "none")}
    draw = lambda: [next(fresh) for _ in range(policy_bench.REQUESTS)]  # noqa: E731 - one word for both sides
    found = policy_bench.measured(sides, draw, tokens, repetitions)
    config = Qwen3VLForConditionalGeneration(tiny_config().from_pretrained(folder)).num_parameters()
    about = {"n": repetitions, "requests": policy_bench.REQUESTS, "tokens": tokens, "parameters": config}
    about |= {"threads": torch.get_num_threads(), "ours_all": found["w8a8"], "peer_all": found["none"]}
    ours, peer = median(found["w8a8"]), median(found["none"])
    name = "the same policy in float32"
    return emit_case(
        compare_with_peer("quantized", "tokens", "tokens/s", ours=ours, peer=peer, peer_name=name, goal=GOAL, **about)
    )


def agreement(model: Path, count: int) -> BenchCase:
    fresh = policy_bench.contexts(224)
    asked = [next(fresh) for _ in range(count)]

    def answers(quantization: str) -> list[Completion]:
        async def ask() -> list[Completion]:
            policy = EmbeddedPolicy(model, chosen(quantization))
            try:
                greedy = SamplingParams(max_new_tokens=48, temperature=0.0)
                return [await policy.complete(context, greedy) for context in asked]
            finally:
                await policy.close()

        return asyncio.run(ask())

    differences, equal = [], []
    for ours, theirs in zip(answers("w8a8"), answers("none"), strict=True):
        equal.append(float(ours.token_ids == theirs.token_ids))
        same = 0
        while (
            same < min(map(len, (ours.token_ids, theirs.token_ids))) and ours.token_ids[same] == theirs.token_ids[same]
        ):
            same += 1
        pairs = zip(ours.logprobs[:same], theirs.logprobs[:same], strict=True)
        differences += [abs(mine - other) for mine, other in pairs]
    about = {
        "model": checkpoint_digest(model)[:16], "n": count, "interval": inference.bootstrap(equal, fmean),
        "logprob_difference": fmean(differences), "largest": max(differences), "tokens": len(differences),
    }  # fmt: skip
    return emit_case(
        BenchCase("quantized", "agreement", "fraction", fmean(equal), None, "in float32", None, None, True, about)
    )


async def success(model: Path, count: int) -> BenchCase:
    tasks = flywheel_run.measured_tasks(count)
    won = {}
    for name in ("w8a8", "none"):
        judged = await inference.play(model, tasks, samples=1, temperature=0.0, policy={"quantization": name})
        won[name] = {one.task.task_id: float(one.result.v) for one in judged}
    differences = [won["w8a8"][task.task_id] - won["none"][task.task_id] for task in tasks]
    low, high = inference.bootstrap(differences, fmean)
    ours, peer = (fmean(found.values()) for found in won.values())
    about = {
        "model": checkpoint_digest(model)[:16], "n": len(tasks), "difference": fmean(differences),
        "interval": [low, high], "goal_is": "the interval of the difference reaches 0",
    }  # fmt: skip
    return emit_case(
        BenchCase("quantized", "success", "fraction", ours, peer, "in float32", None, 0.0, high >= 0, about)
    )


if __name__ == "__main__":
    sys.exit(main())
