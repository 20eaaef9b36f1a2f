"""CT and SFT: one loop of next-token loss on response tokens."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flywheel.errors import TrainingError
from flywheel.policy.encoding import Encoder
from flywheel.policy.model import digest, load_model, save_checkpoint
from flywheel.training.forward import batch_of, response_logprobs
from flywheel.training.samples import Sample

log = logging.getLogger(__name__)

OnMetric = Callable[[Mapping[str, Any]], None]  # called with {"step", "steps", "loss", "lr", "accuracy"} each step


@dataclass(frozen=True)
class SupervisedSettings:
    """passes: batches are drawn for `passes` rounds over the samples given. save_every: gradient steps between
    resumable states. warmup: fraction of the steps; the rest decays to a tenth by a cosine."""

    lr: float
    batch: int
    passes: int = 1
    warmup: float = 0.05
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    save_every: int = 10
    micro_batch: int = 32


def train_supervised(
    model_folder: Path,
    out_folder: Path,
    samples: Sequence[Sample],
    *,
    settings: SupervisedSettings,
    seed: int,
    state_folder: Path,
    on_metric: OnMetric = lambda metric: None,
) -> dict[str, float]:
    """Train the checkpoint on the samples and write the result to `out_folder`; returns the final metrics.

    A killed run that is called again with the same arguments goes on from the state in `state_folder` and ends with
    the same weights. Raises TrainingError where there are no samples or the loss is not finite.
    """
    if not samples:
        raise TrainingError("there are no samples to train on", where=out_folder.name, fix="collect trajectories first")
    encoder, model = Encoder.from_folder(model_folder), load_model(model_folder)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay, betas=(0.9, 0.95))
    batches = plan(samples, settings.batch, settings.passes, seed)
    state = _State(state_folder, _key(model_folder, samples, settings, seed))
    done, losses, hits = state.load(model, optimizer)
    for number in range(done, len(batches)):
        lr = schedule(number, len(batches), settings)
        for group in optimizer.param_groups:
            group["lr"] = lr
        loss, accuracy = _step(model, optimizer, [samples[i] for i in batches[number]], settings)
        losses.append(loss)
        hits.append(accuracy)
        if not math.isfinite(loss):
            raise TrainingError(f"the loss is {loss} at step {number + 1}", where=out_folder.name, fix="lower the learning rate")
        if (number + 1) % settings.save_every == 0:
            state.save(model, optimizer, number + 1, losses, hits)
        on_metric({"step": number + 1, "steps": len(batches), "loss": loss, "lr": lr, "accuracy": accuracy})
    save_checkpoint(model.eval(), encoder, out_folder)
    state.clear()
    tail = max(1, len(losses) // 10)
    return {
        "loss_first": float(np.mean(losses[:tail])), "loss": float(np.mean(losses[-tail:])),
        "accuracy": float(np.mean(hits[-tail:])), "steps": float(len(batches)),
        "samples": float(len(samples) * settings.passes),
    }  # fmt: skip


def plan(samples: Sequence[Sample], batch: int, passes: int, seed: int) -> list[list[int]]:
    """Batches of indices: every pass uses each sample once, in batches of similar length (little padding), whose
    order is shuffled. The same arguments give the same batches."""
    rng = np.random.default_rng(seed)
    batches: list[list[int]] = []
    for _ in range(passes):
        shuffled = rng.permutation(len(samples))
        # Sorted within windows of 8 batches: lengths are alike in a batch, and its members differ from pass to pass.
        one: list[list[int]] = []
        for start in range(0, len(shuffled), 8 * batch):
            window = sorted(shuffled[start : start + 8 * batch].tolist(), key=lambda i: len(samples[i]))
            one += [window[at : at + batch] for at in range(0, len(window), batch)]
        batches += [one[i] for i in rng.permutation(len(one))]
    return batches


def schedule(step: int, steps: int, settings: SupervisedSettings) -> float:
    """Linear warmup, then a cosine down to a tenth of the rate."""
    warm = max(1, round(settings.warmup * steps))
    if step < warm:
        return settings.lr * (step + 1) / warm
    progress = (step - warm) / max(1, steps - warm)
    return settings.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))


def supervised_loss(logprobs: Tensor, mask: Tensor, weights: Tensor, tokens: float) -> Tensor:
    """-sum w log pi / tokens over response tokens; weights: [batch]; tokens: weighted count of the whole batch."""
    return -(torch.where(mask, logprobs, 0.0) * weights[:, None]).sum() / tokens


def _step(model, optimizer, samples: Sequence[Sample], settings: SupervisedSettings) -> tuple[float, float]:
    """One gradient step in micro-batches; returns the loss and the mean probability-weighted accuracy (greedy hit)."""
    tokens = sum(sample.weight * len(sample.response) for sample in samples)
    optimizer.zero_grad(set_to_none=True)
    total, hit, count = 0.0, 0.0, 0
    for start in range(0, len(samples), settings.micro_batch):
        part = samples[start : start + settings.micro_batch]
        batch = batch_of([s.context for s in part], [s.response for s in part])
        logprobs, _ = response_logprobs(model, batch)
        loss = supervised_loss(logprobs, batch.mask, torch.tensor([s.weight for s in part]), tokens)
        loss.backward()
        total += float(loss.detach())
        hit += float(logprobs.detach()[batch.mask].exp().sum())
        count += int(batch.mask.sum())
    torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
    if math.isfinite(total):
        optimizer.step()
    return total, hit / count


class _State:
    """The resumable state of a run: one file, replaced whole. Its key names the run's inputs: another run's state is
    not taken up."""

    def __init__(self, folder: Path, key: str) -> None:
        self.path, self.key = folder / "supervised.pt", key

    def load(self, model, optimizer) -> tuple[int, list[float], list[float]]:
        if not self.path.is_file():
            return 0, [], []
        raw = torch.load(self.path, weights_only=True)
        if raw["key"] != self.key:
            return 0, [], []
        model.load_state_dict(raw["model"])
        optimizer.load_state_dict(raw["optimizer"])
        log.info("goes on at step %d", raw["done"])
        return raw["done"], raw["losses"], raw["hits"]

    def save(self, model, optimizer, done: int, losses: list[float], hits: list[float]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".part")
        torch.save(
            {"key": self.key, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": done,
             "losses": losses, "hits": hits}, temporary,
        )  # fmt: skip
        os.replace(temporary, self.path)

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)


def _key(model_folder: Path, samples: Sequence[Sample], settings: SupervisedSettings, seed: int) -> str:
    sha = hashlib.sha256(json.dumps([digest(model_folder), repr(settings), seed]).encode())
    for sample in samples:
        sha.update(f"{sample.trajectory_id}|{sample.step}|{sample.weight}|{sample.response}".encode())
    return sha.hexdigest()
