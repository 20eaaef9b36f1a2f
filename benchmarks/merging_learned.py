"""Coefficients of specialists that are fitted, for `flywheel bench merging`.

theta = base + sum_k lambda_k (theta_k - base), lambda for each specialist or for each specialist and tensor. The
gradient of the loss by lambda is that by theta, times the task vector, so one backward pass gives all of them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import flywheel_run
import torch

from flywheel.config import AdapterSettings, Settings
from flywheel.envs.tasks.drawing import make_tasks
from flywheel.policy.encoding import Encoder
from flywheel.policy.model import save_checkpoint
from flywheel.training.data import Example, build_agent_examples
from flywheel.training.modeling.policy_forward import PolicyForward, freeze_vision_tower
from flywheel.training.modeling.trained_policy import load_trained_policy

RATE = 0.05  # Adam's, of coefficients that begin at 1 / specialists
EXAMPLES = 8  # of each domain in a gradient step


def solved_examples(specialists: Mapping[str, Path], base: Path, count: int, seed: int) -> dict[str, list[Example]]:
    """Play each specialist on `count` tasks of its own domain; return the steps of the solved ones, by domain."""
    chosen = flywheel_run.settings_of("laptop")
    promotion = chosen.promotion.model_copy(update={"tasks": count * len(specialists)})
    tasks = make_tasks(chosen.model_copy(update={"promotion": promotion, "seed": seed}), 1, "gate")
    encoder, found = Encoder.from_folder(base, max_image_side=chosen.policy.max_image_side), {}
    for domain, folder in specialists.items():
        own = [task for task in tasks if task.domain == domain]
        judged = asyncio.run(flywheel_run.play_tasks(folder, own, chosen))
        solved = [one.episode for one in judged if one.result.v]
        images = {name: picture for episode in solved for name, picture in episode.images.items()}
        steps = [step for episode in solved for step in episode.steps]
        trajectories = [episode.trajectory for episode in solved]
        found[domain] = build_agent_examples(trajectories, steps, images, encoder, chosen.policy)
    return found


def fit(
    base: Path,
    specialists: Mapping[str, Path],
    examples: Mapping[str, Sequence[Example]],
    steps: int,
    by_tensor: bool,
    out: Path,
) -> dict[str, Any]:
    """Fit coefficients by the mean SFT loss of the domains, and write the merge to `out`; return what was fitted.

    examples: of each domain; a domain without any has no part in the loss. by_tensor: a coefficient for each tensor.
    """
    settings = Settings()
    policies = [
        load_trained_policy(folder, settings.sft, AdapterSettings(), 0) for folder in (base, *specialists.values())
    ]
    policy, *others = policies
    start = {name: weight.detach().clone() for name, weight in policy.named_parameters()}
    deltas = [{name: weight.detach() - start[name] for name, weight in other.named_parameters()} for other in others]
    names = [name for name in start if any(delta[name].any() for delta in deltas)]
    freeze_vision_tower(policy, settings.sft)
    reader = PolicyForward(policy, keeps_screens=False)
    shape = (len(deltas), len(names) if by_tensor else 1)
    coefficients = torch.full(shape, 1 / len(deltas), requires_grad=True)
    optimizer, rng, losses = torch.optim.Adam([coefficients], lr=RATE), random.Random(0), []
    weights = dict(policy.named_parameters())

    def put() -> None:
        with torch.no_grad():
            for place, name in enumerate(names):
                of = coefficients[:, place if by_tensor else 0]
                weights[name].copy_(start[name] + sum(one * delta[name] for one, delta in zip(of, deltas, strict=True)))

    for _ in range(steps):
        put()
        policy.zero_grad(set_to_none=True)
        losses.append(_backward(reader, examples, settings, rng))
        gradient = torch.zeros(shape)
        for place, name in enumerate(names):
            if (slope := weights[name].grad) is not None:
                for number, delta in enumerate(deltas):
                    gradient[number, place if by_tensor else 0] += (slope * delta[name]).sum()
        coefficients.grad = gradient
        optimizer.step()
    put()
    save_checkpoint(policy, Encoder.from_folder(base), out)
    means = coefficients.detach().mean(1).tolist()
    fifth = max(1, steps // 5)
    return {
        "coefficients": dict(zip(specialists, means, strict=True)),
        "examples": {domain: len(own) for domain, own in examples.items()},
        "loss": [fmean(losses[:fifth]), fmean(losses[-fifth:])],
        "steps": steps,
    }


def _backward(
    reader: PolicyForward, examples: Mapping[str, Sequence[Example]], settings: Settings, rng: random.Random
) -> float:
    """Add the gradient of the mean over domains of the loss a token, of a few steps each; return that mean."""
    total, domains = 0.0, [own for own in examples.values() if own]
    for own in domains:
        drawn = rng.sample(own, min(EXAMPLES, len(own)))
        tokens = sum(len(one.response) for one in drawn)
        items = [reader.encode_example(one.context, one.response) for one in drawn]
        for part in reader.split_into_micro_batches(items, settings.sft, 1):
            loss = -reader(part, 1.0)[-1].sum() / tokens / len(domains)
            loss.backward()
            total += loss.item()
    return total
