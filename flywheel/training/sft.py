"""Train CT and SFT: next-token loss on response tokens, in one process or several."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flywheel.config import SupervisedSettings
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.policy.devices import count_parallel_passes
from flywheel.policy.encoding import Encoder
from flywheel.policy.model import load_model, save_checkpoint
from flywheel.training.data.samples import Sample
from flywheel.training.distributed.engine import open_engine, pad_microbatches_across_ranks, take_gradient_step
from flywheel.training.distributed.train_state import TrainState
from flywheel.training.distributed.worker_group import WorkerGroup
from flywheel.training.modeling.policy_forward import MicroBatch, PolicyForward, freeze_vision_tower
from flywheel.utils.errors import TrainingError

log = logging.getLogger(__name__)

OnMetric = Callable[[Mapping[str, Any]], None]  # called with {"step", "steps", "loss", "lr", "probability"} each step

_FORMAT = 2  # of the state on disk: that of another one is not taken up
_FREE = {"processes", "device"}  # settings that a run which goes on may have others of


def train_supervised(
    model_folder: Path,
    out_folder: Path,
    samples: Sequence[Sample],
    *,
    settings: SupervisedSettings,
    seed: int,
    state_folder: Path,
    on_metric: OnMetric = lambda metric: None,
) -> list[float]:
    """Train the checkpoint on the samples and write the result to `out_folder`; returns the loss of each step.

    A killed run that is called again with the same arguments goes on from the state in `state_folder` and ends with
    the same weights; the state is left for the caller to delete. Raises TrainingError where there are no samples, the
    loss is not finite, or one of several processes ends (on the nodes of a cluster that is WorkerLost, and a node that
    cannot take part ClusterError).
    """
    name = out_folder.name
    if not samples:
        raise TrainingError("there are no samples to train on", where=name, fix="collect trajectories first")
    batches = plan_batches(len(samples), settings.batch, seed)
    path, key = state_folder / "supervised.pt", _hash_inputs(model_folder, samples, settings, seed)
    make, size = partial(SupervisedTrainer, model_folder, samples, settings, name), settings.processes
    workers = WorkerGroup(make, size, torch.get_num_threads(), where=f"{name}.processes")
    try:
        about = workers.call("load", path, key) or {"key": key, "done": 0, "losses": []}
        done, losses = about["done"], about["losses"]
        if done:
            log.info("goes on at step %d", done)
        for number in range(done, len(batches)):
            lr = cosine_learning_rate(number, len(batches), settings)
            loss, probability = workers.call("step", batches[number], lr, number + 1)
            losses.append(loss)
            if (number + 1) % settings.save_every == 0:
                workers.call("save", path, {"key": key, "done": number + 1, "losses": losses})
            on_metric({"step": number + 1, "steps": len(batches), "loss": loss, "lr": lr, "probability": probability})
        workers.call("write", out_folder)
    finally:
        workers.close()
    return losses


class SupervisedTrainer(TrainState):
    """What each process of CT and SFT does. Each has all samples, and encodes those of a batch as it comes."""

    def __init__(self, folder: Path, samples: Sequence[Sample], settings: SupervisedSettings, name: str) -> None:
        self.samples, self.settings, self.name = samples, settings, name
        self.encoder = Encoder.from_folder(folder)
        self.policy = load_model(folder, device=settings.device).train()
        at_once = count_parallel_passes(self.policy)
        keeps = freeze_vision_tower(self.policy, settings)
        self.reader = PolicyForward(self.policy, keeps_screens=keeps, at_once=at_once)
        self.engine = open_engine(self.reader, settings, at_once)
        super().__init__({"policy": self.policy}, {"policy": self.engine})

    def step(self, batch: Sequence[int], rate: float, number: int) -> tuple[float, float]:
        """One gradient step on samples by their numbers: the loss, -mean log pi over their response tokens, and the
        tokens' mean probability."""
        chosen = [self.samples[i] for i in batch]
        tokens = sum(len(sample.response) for sample in chosen)
        items = [self.reader.item(sample.context, sample.response) for sample in chosen]

        def loss_of(part: MicroBatch) -> tuple[Tensor, tuple[float]]:
            _, _, logprobs = self.engine.forward(part, 1.0)
            return -logprobs.sum() / tokens, (float(logprobs.detach().exp().sum()) / tokens,)

        parts = pad_microbatches_across_ranks(self.reader.parts(items, self.settings, self.engine.shares), self.engine)
        (loss, probability), _ = take_gradient_step(
            self.engine, parts, loss_of, rate, what=f"step {number}", where=self.name
        )
        return loss, probability

    def write(self, folder: Path) -> None:
        with self.gathered():
            if self.first:
                save_checkpoint(self.policy.eval(), self.encoder, folder)


def plan_batches(count: int, batch: int, seed: int) -> list[list[int]]:
    """Batches of indices, each of `count` samples once, in random order. The same arguments give the same batches.

    Not sorted by length: lengths go with kinds of samples, and batches of one kind pull the model to and fro.
    """
    order = np.random.default_rng(seed).permutation(count).tolist()
    return [order[start : start + batch] for start in range(0, count, batch)]


def cosine_learning_rate(step: int, steps: int, settings: SupervisedSettings) -> float:
    """Linear warmup, then a cosine down to a tenth of the rate."""
    warm = max(1, round(settings.warmup * steps))
    if step < warm:
        return settings.lr * (step + 1) / warm
    progress = (step - warm) / max(1, steps - warm)
    return settings.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))


def _hash_inputs(model_folder: Path, samples: Sequence[Sample], settings: SupervisedSettings, seed: int) -> str:
    block = settings.model_dump(exclude=_FREE)
    sha = hashlib.sha256(json.dumps([_FORMAT, checkpoint_digest(model_folder), block, seed], sort_keys=True).encode())
    for sample in samples:
        sha.update(f"{sample.trajectory_id}|{sample.step}|{sample.response}".encode())
    return sha.hexdigest()
