"""Train CT and SFT: next-token loss on response tokens, in one process or several."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flywheel.config import AdapterSettings, SupervisedSettings
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.policy.devices import count_parallel_passes
from flywheel.policy.encoding import Encoder
from flywheel.training.data import SupervisedDataset
from flywheel.training.distributed import engine as engines
from flywheel.training.distributed.worker_group import WorkerGroup
from flywheel.training.modeling.policy_forward import MicroBatch, PolicyForward, freeze_vision_tower
from flywheel.training.modeling.trained_policy import computes_in_bfloat16, load_trained_policy, save_trained_policy
from flywheel.utils.errors import TrainingError

log = logging.getLogger(__name__)

OnMetric = Callable[[Mapping[str, Any]], None]  # called with {"step", "steps", "loss", "lr", "probability"} each step

_STATE_FORMAT = 4  # format of the saved state: a state of another format is not resumed
_FREE_SETTINGS = {"processes", "device"}  # settings that may differ in a resumed run


def train_supervised(
    model_folder: Path,
    out_folder: Path,
    dataset: SupervisedDataset,
    *,
    settings: SupervisedSettings,
    state_folder: Path,
    adapter: AdapterSettings = AdapterSettings(),  # noqa: B008 - frozen
    seed: int = 0,
    on_metric: OnMetric = lambda metric: None,
    trainer: type[SupervisedTrainer] | None = None,
) -> list[float]:
    """Train a checkpoint on each batch once, write the result to `out_folder`, and return the loss of each step.

    model_folder: a whole checkpoint, or an adapter. out_folder: replaced where it exists. dataset: its batches are
    trained in order. settings: block `ct` or `sft`. adapter: block `adapter`; with a method, the result is an adapter.
    state_folder: the state is saved in it every `save_every` steps. A killed run that is called again with the same
    arguments resumes from there, and ends with the same weights and losses; a state of other arguments is ignored. The
    caller deletes the folder. seed: of a new adapter. on_metric: called after each step of this call with step (from
    1), steps, loss, lr and probability (mean over the response tokens), and preferred where the trainer tells it.
    trainer: takes the steps; None: `SupervisedTrainer`. Raises ModelError for a checkpoint that cannot be loaded;
    TrainingError where the data set is empty, DeepSpeed is set and not installed, the saved state is damaged or does
    not fit, the loss is not finite, or one of several processes ends or times out (on the nodes of a cluster
    WorkerLost, and ClusterError where a node cannot take part); DataError, BadInput or PolicyError where a prompt
    cannot be encoded (`Example.context`); DiskFull.
    """
    name = out_folder.name
    steps = len(dataset)
    if not steps:
        raise TrainingError("there are no samples to train on", where=name, fix="collect trajectories first")
    path, key = state_folder / "supervised.pt", _hash_inputs(model_folder, dataset, settings, adapter, seed)
    kind, size = trainer or SupervisedTrainer, settings.processes
    make = partial(kind, model_folder, dataset, settings, name, adapter, seed)
    workers = WorkerGroup(make, size, torch.get_num_threads(), where=f"{name}.processes")
    try:
        about = workers.call("load", path, key) or {"key": key, "done": 0, "losses": []}
        done, losses = about["done"], about["losses"]
        if done:
            log.info("goes on at step %d", done)
        for number in range(done, steps):
            lr = cosine_learning_rate(number, steps, settings)
            loss, probability, *preferred = workers.call("step", number, lr)
            losses.append(loss)
            if (number + 1) % settings.save_every == 0:
                workers.call("save", path, {"key": key, "done": number + 1, "losses": losses})
            on_metric(
                {"step": number + 1, "steps": steps, "loss": loss, "lr": lr, "probability": probability}
                | ({"preferred": preferred[0]} if preferred else {})
            )
        workers.call("write", out_folder)
    finally:
        workers.close()
    return losses


class SupervisedTrainer(engines.TrainState):
    """Train in one process of CT or SFT, with the whole data set; each batch is encoded when it is trained.

    Raises ModelError for a checkpoint that cannot be loaded, TrainingError as `open_engine`.
    """

    def __init__(
        self,
        folder: Path,
        dataset: SupervisedDataset,
        settings: SupervisedSettings,
        name: str,
        adapter: AdapterSettings = AdapterSettings(),  # noqa: B008 - frozen
        seed: int = 0,
    ) -> None:
        self.dataset, self.settings, self.name, self.begun = dataset, settings, name, folder
        self.encoder = Encoder.from_folder(folder)
        self.policy = load_trained_policy(folder, settings, adapter, seed)
        # Dropout draws its masks in the order of the passes, which must not be parallel then.
        at_once = 1 if adapter.dropout else count_parallel_passes(self.policy)
        keeps = freeze_vision_tower(self.policy, settings)
        self.reader = PolicyForward(
            self.policy, keeps_screens=keeps, at_once=at_once, bfloat16=computes_in_bfloat16(settings, adapter)
        )
        self.engine = engines.open_engine(self.reader, settings, at_once)
        super().__init__({"policy": self.policy}, {"policy": self.engine})

    def step(self, number: int, rate: float) -> tuple[float, ...]:
        """Take a gradient step on batch `number` at learning rate `rate`; return (loss, mean token probability).

        The loss is -mean log pi over the response tokens of the batch. Raises TrainingError where it is not finite,
        what the data set's `get_batch` and `Example.context` do.
        """
        batch = self.dataset.get_batch(number)
        tokens = sum(len(example.response) for example in batch)
        items = [self.reader.encode_example(example.context, example.response) for example in batch]

        def loss_of(part: MicroBatch) -> tuple[Tensor, tuple[float]]:
            _, _, logprobs = self.engine.forward(part, 1.0)
            return -logprobs.sum() / tokens, (float(logprobs.detach().exp().sum()) / tokens,)

        parts = self.reader.split_into_micro_batches(items, self.settings, self.engine.shares)
        parts = engines.pad_microbatches_across_ranks(parts, self.engine)
        (loss, probability), _ = engines.take_gradient_step(
            self.engine, parts, loss_of, rate, what=f"step {number + 1}", where=self.name, rate_name=f"{self.name}.lr"
        )
        return loss, probability

    def write(self, folder: Path) -> None:
        """Write the policy's weights, or its adapter, to `folder`.

        Raises DiskFull, and ModelError as `save_trained_policy`.
        """
        with self.gathered():
            if self.first:
                save_trained_policy(self.policy, self.encoder, self.begun, folder)


def cosine_learning_rate(step: int, steps: int, settings: SupervisedSettings) -> float:
    """Return the learning rate of a step, 0 <= step < steps: linear warmup to settings.lr, then a cosine to a tenth."""
    warm = max(1, round(settings.warmup * steps))
    if step < warm:
        return settings.lr * (step + 1) / warm
    progress = (step - warm) / max(1, steps - warm)
    return settings.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))


def _hash_inputs(
    model_folder: Path, dataset: SupervisedDataset, settings: SupervisedSettings, adapter: AdapterSettings, seed: int
) -> str:
    block = settings.model_dump(exclude=_FREE_SETTINGS)
    trained = [adapter.model_dump(), seed] if adapter.method != "none" else []
    inputs = [_STATE_FORMAT, checkpoint_digest(model_folder), block, dataset.fingerprint, *trained]
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
