"""Experiences without an environment, as the policy would have sampled them, and what a model says of responses, for
tests of the trainer."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from lamp_env import LEFT, RIGHT, screen, settings

from flywheel.agent.prompt import build_context
from flywheel.config import RlSettings
from flywheel.policy.encoding import Encoder
from flywheel.policy.model import load_model
from flywheel.training.data import Example
from flywheel.training.modeling.policy_forward import PaddedBatch, PolicyForward, compute_padded_hidden, token_logprobs
from flywheel.training.rl.trainer import Experience, ValueFeatures

DEEPSPEED = importlib.util.find_spec("deepspeed") is not None
needs_deepspeed = pytest.mark.skipif(not DEEPSPEED, reason="deepspeed is not installed: make test-deepspeed")


def made_up(folder: Path, rl: RlSettings, trajectories: int = 8, seed: int = 0) -> list[Experience]:
    """Trajectories of one to three steps, two of each task; some reach the goal, some are cut off. Their recorded
    log-probabilities are the ones of the checkpoint in `folder`."""
    encoder, rng, policy = Encoder.from_folder(folder), np.random.default_rng(seed), settings().policy
    made = []
    for number in range(trajectories):
        name, samples = f"trajectory{number:02d}", []
        for step in range(int(rng.integers(1, 4))):
            context = build_context(f"Click lamp {number // 2}.", (), screen("left", step), policy)
            text = encoder.encode_text((LEFT, RIGHT)[int(rng.integers(2))])[: int(rng.integers(2, 20))]
            samples.append(Example(encoder.encode(context), tuple(text), None, name, step, "games"))
        success = bool(rng.integers(2))
        rewards = tuple([*rng.normal(0, 0.1, len(samples) - 1).tolist(), float(success)])
        beyond = None if success or number % 3 else samples[0].context
        told = tuple(ValueFeatures(0.0, 1 - step / 3) for step in range(len(samples)))
        task = f"task{number // 2}"
        made.append(Experience(name, tuple(samples), rewards, told, float(success), success, beyond, task))
    return recorded(folder, rl, made)


def recorded(folder: Path, rl: RlSettings, made: list[Experience]) -> list[Experience]:
    """With log-probabilities as the checkpoint in `folder` samples them."""
    reader = PolicyForward(load_model(folder))

    def logprobs(sample: Example) -> tuple[float, ...]:
        (part,) = reader.split_into_micro_batches([reader.encode_example(sample.context, sample.response)], rl)
        with torch.no_grad():
            return tuple(reader(part, rl.temperature)[2].tolist())

    return [replace(one, samples=tuple(replace(s, sampled_logprobs=logprobs(s)) for s in one.samples)) for one in made]


def response_logprobs(model, batch: PaddedBatch, temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability and entropy of each response token, [batch, longest response], at a sampling temperature."""
    hidden = compute_padded_hidden(model.base_model, batch)
    return token_logprobs(model.get_output_embeddings()(hidden) / temperature, batch.ids)
