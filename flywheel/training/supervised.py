"""CT and SFT: one loop of next-token loss on response tokens."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flywheel.errors import TrainingError
from flywheel.policy.checkpoint import digest
from flywheel.policy.encoding import Encoder
from flywheel.policy.model import load_model, save_checkpoint
from flywheel.settings import Supervised
from flywheel.training.reading import Reader
from flywheel.training.samples import Sample

log = logging.getLogger(__name__)

OnMetric = Callable[[Mapping[str, Any]], None]  # called with {"step", "steps", "loss", "lr", "probability"} each step


def train_supervised(
    model_folder: Path,
    out_folder: Path,
    samples: Sequence[Sample],
    *,
    settings: Supervised,
    seed: int,
    state_folder: Path,
    on_metric: OnMetric = lambda metric: None,
) -> list[float]:
    """Train the checkpoint on the samples and write the result to `out_folder`; returns the loss of each step.

    A killed run that is called again with the same arguments goes on from the state in `state_folder` and ends with
    the same weights; the state is left for the caller to delete. Raises TrainingError where there are no samples or
    the loss is not finite.
    """
    if not samples:
        raise TrainingError("there are no samples to train on", where=out_folder.name, fix="collect trajectories first")
    encoder, model = Encoder.from_folder(model_folder), load_model(model_folder, device=settings.device)
    model.train()
    reader = Reader(model)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay, betas=(0.9, 0.95)
    )
    batches = plan(len(samples), settings.batch, seed)
    state = _State(state_folder, _key(model_folder, samples, settings, seed))
    done, losses = state.load(model, optimizer)
    for number in range(done, len(batches)):
        lr = schedule(number, len(batches), settings)
        for group in optimizer.param_groups:
            group["lr"] = lr
        loss, probability = _accumulate(reader, [samples[i] for i in batches[number]], settings)
        losses.append(loss)
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss is {loss} at step {number + 1}", where=out_folder.name, fix="lower the learning rate"
            )
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if (number + 1) % settings.save_every == 0:
            state.save(model, optimizer, number + 1, losses)
        on_metric({"step": number + 1, "steps": len(batches), "loss": loss, "lr": lr, "probability": probability})
    save_checkpoint(model.eval(), encoder, out_folder)
    return losses


def plan(count: int, batch: int, seed: int) -> list[list[int]]:
    """Batches of indices, each of `count` samples once, in random order. The same arguments give the same batches.

    Not sorted by length: lengths go with kinds of samples, and batches of one kind pull the model to and fro.
    """
    order = np.random.default_rng(seed).permutation(count).tolist()
    return [order[start : start + batch] for start in range(0, count, batch)]


def schedule(step: int, steps: int, settings: Supervised) -> float:
    """Linear warmup, then a cosine down to a tenth of the rate."""
    warm = max(1, round(settings.warmup * steps))
    if step < warm:
        return settings.lr * (step + 1) / warm
    progress = (step - warm) / max(1, steps - warm)
    return settings.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))


def _accumulate(reader: Reader, samples: Sequence[Sample], settings: Supervised) -> tuple[float, float]:
    """Adds the gradient of the loss, -mean log pi over the response tokens of all samples; returns the loss and their
    mean probability."""
    tokens = sum(len(sample.response) for sample in samples)
    items = [reader.item(sample.context, sample.response) for sample in samples]
    loss = probability = 0.0
    for part in reader.parts(items, settings):
        _, _, logprobs = reader.forward(part, 1.0)
        mean = -logprobs.sum() / tokens
        mean.backward()
        loss += float(mean.detach())
        probability += float(logprobs.detach().exp().sum()) / tokens
    return loss, probability


class _State:
    """The resumable state of a run: one file, replaced whole. Its key names the run's inputs: another run's state is
    not taken up."""

    def __init__(self, folder: Path, key: str) -> None:
        self.path, self.key = folder / "supervised.pt", key

    def load(self, model, optimizer) -> tuple[int, list[float]]:
        if not self.path.is_file():
            return 0, []
        raw = torch.load(self.path, weights_only=True)
        if raw["key"] != self.key:
            return 0, []
        model.load_state_dict(raw["model"])
        optimizer.load_state_dict(raw["optimizer"])
        log.info("goes on at step %d", raw["done"])
        return raw["done"], raw["losses"]

    def save(self, model, optimizer, done: int, losses: list[float]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".part")
        torch.save(
            {"key": self.key, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": done,
             "losses": losses}, temporary,
        )  # fmt: skip
        temporary.replace(self.path)


def _key(model_folder: Path, samples: Sequence[Sample], settings: Supervised, seed: int) -> str:
    sha = hashlib.sha256(json.dumps([digest(model_folder), repr(settings), seed]).encode())
    for sample in samples:
        sha.update(f"{sample.trajectory_id}|{sample.step}|{sample.response}".encode())
    return sha.hexdigest()
