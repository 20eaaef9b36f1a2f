"""Train SFT by a preference loss too: a kept step is to become likelier than one that was not kept on the same screen.

The losses are DPO (Rafailov et al. 2023) against the checkpoint that SFT begins from, and SimPO (Meng et al. 2024),
which needs no reference. A response's log-probability is the sum over its tokens, thought and action, among all tokens;
what rollouts store is among those that the grammar allows, and of older weights, so the reference is computed here.

A gradient step first reads the pairs at the present weights. The loss depends on the weights through these sums alone,
so their derivatives make one weight a token, with which the pairs join the packs of the batch like other examples: the
two responses of a pair may lie in different packs or processes, and share their prompt where they lie in one.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from flywheel.config import PreferenceSettings
from flywheel.training.data import Example, PreferencePair, SupervisedDataset
from flywheel.training.distributed import engine as engines
from flywheel.training.modeling.policy_forward import EncodedExample, MicroBatch
from flywheel.training.sft import SupervisedTrainer

_AT_ONCE = 32  # pairs whose pixels are in memory while the reference is read


def preference_loss(logprobs: Tensor, reference: Tensor, tokens: Tensor, settings: PreferenceSettings) -> Tensor:
    """Return the loss of each pair, [pairs], without `weight` and `nll`.

    logprobs: [pairs, 2], summed log-probabilities in nats of the kept and the other response at the present weights.
    reference: the same of the frozen weights; simpo does not read it. tokens: [pairs, 2], their lengths. settings:
    block `preference`.
    """
    if settings.loss == "simpo":
        mean = logprobs / tokens
        return -logsigmoid(settings.beta * (mean[:, 0] - mean[:, 1]) - settings.margin)
    gained = logprobs - reference
    return -logsigmoid(settings.beta * (gained[:, 0] - gained[:, 1]))


@dataclass(frozen=True)
class PairedDataset:
    """Hold a data set whose batches have preference `pairs` too, for `PreferenceTrainer`.

    examples: the data set. pairs: at least one. settings: block `preference`. repeats: times that a pair comes, at
    most. seed: of their order.
    """

    examples: SupervisedDataset
    pairs: Sequence[PreferencePair]
    settings: PreferenceSettings
    repeats: int
    seed: int

    @property
    def fingerprint(self) -> str:
        """Hash data set, pairs and settings, in 64 hex digits, as `SupervisedDataset.fingerprint`."""
        sha = hashlib.sha256(f"{self.examples.fingerprint}|{self.settings}|{self.repeats}|{self.seed}".encode())
        for pair in self.pairs:
            one = pair.chosen
            sha.update(f"{one.trajectory_id}|{one.step}|{one.response}|{pair.rejected}".encode())
        return sha.hexdigest()

    def __len__(self) -> int:
        return len(self.examples)

    def get_batch(self, index: int) -> Sequence[Example]:
        """Return batch `index` of the data set, without its pairs (`pair_numbers`)."""
        return self.examples.get_batch(index)

    def pair_numbers(self, index: int) -> list[int]:
        """Return the indices in `pairs` of the pairs of batch `index`.

        All pairs come equally often, but for a difference of one.
        """
        count = min(len(self) * self.settings.pairs, self.repeats * len(self.pairs))
        rng, order = np.random.default_rng(self.seed), []
        while len(order) < count:
            order += rng.permutation(len(self.pairs)).tolist()
        return order[:count][index :: len(self)]

    @property
    def trajectory_samples(self) -> Counter[str]:
        """Count the pairs that the batches have of each trajectory, by its id."""
        drawn = (number for index in range(len(self)) for number in self.pair_numbers(index))
        return Counter(self.pairs[number].chosen.trajectory_id for number in drawn)


class PreferenceTrainer(SupervisedTrainer):
    """Train on a `PairedDataset` in one process of SFT.

    The log-probabilities of the weights that it begins from are read once, and lie in the saved state.
    """

    dataset: PairedDataset
    reference: list[float]

    def load(self, path: Path, key: str) -> dict[str, Any] | None:
        """Restore as `SupervisedTrainer` does; where there is no state, read the reference first."""
        found = super().load(path, key)
        if not found:
            needed = self.dataset.pairs if self.dataset.settings.loss == "dpo" else ()
            parts = (needed[start : start + _AT_ONCE] for start in range(0, len(needed), _AT_ONCE))
            self.reference = [number for part in parts for number in self._sum_logprobs(self._encode(part))]
        return found

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"reference": self.reference}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.reference = state["reference"]

    def step(self, number: int, rate: float) -> tuple[float, ...]:
        """Take a gradient step on batch `number` and its pairs at learning rate `rate`.

        Returns (loss, mean token probability of the batch, share of the pairs whose loss is below that of no
        difference); where no pair is left, the first two. The loss is that of `SupervisedTrainer` + weight x (mean of
        `preference_loss` + nll x -mean log pi over the kept responses' tokens). Raises as `SupervisedTrainer.step`.
        """
        settings, places = self.dataset.settings, self.dataset.pair_numbers(number)
        if not places:
            return super().step(number, rate)
        batch, pairs = self.dataset.get_batch(number), [self.dataset.pairs[place] for place in places]
        examples = [self.reader.encode_example(example.context, example.response) for example in batch]
        encoded = self._encode(pairs)
        lengths = [len(item.response) for item in (*examples, *encoded)]
        tokens = torch.tensor(lengths[len(batch) :], dtype=torch.float64).view(-1, 2)
        now = torch.tensor(self._sum_logprobs(encoded), dtype=torch.float64).view(-1, 2).requires_grad_()
        reference = torch.zeros_like(now)
        if settings.loss == "dpo":
            reference = torch.tensor(self.reference, dtype=torch.float64).view(-1, 2)[places]
        each = preference_loss(now, reference, tokens, settings)
        extra = each.mean() - settings.nll * now[:, 0].sum() / tokens[:, 0].sum()
        (slopes,) = torch.autograd.grad(settings.weight * extra, now)
        supervised = -1 / sum(lengths[: len(batch)])
        factors = np.array([supervised] * len(batch) + slopes.flatten().tolist())

        def loss_of(part: MicroBatch) -> tuple[Tensor, tuple[float, float]]:
            _, _, logprobs = self.engine.forward(part, 1.0)
            members, repeats = list(part.members), [lengths[member] for member in part.members]
            weights = torch.from_numpy(np.repeat(factors[members], repeats)).to(logprobs)
            own = torch.from_numpy(np.repeat(np.array(members) < len(batch), repeats)).to(logprobs.device)
            read = logprobs.detach()[own]
            return (weights * logprobs).sum(), (float(read.sum()) * supervised, -float(read.exp().sum()) * supervised)

        parts = self.reader.split_into_micro_batches([*examples, *encoded], self.settings, self.engine.shares)
        parts = engines.pad_microbatches_across_ranks(parts, self.engine)
        (_, loss, probability), _ = engines.take_gradient_step(
            self.engine, parts, loss_of, rate, what=f"step {number + 1}", where=self.name, rate_name=f"{self.name}.lr"
        )
        nothing = torch.zeros(1, 2, dtype=torch.float64)
        even = preference_loss(nothing, nothing, nothing + 1, settings)
        preferred = float((each < even).double().mean())
        return loss + settings.weight * float(extra.detach()), probability, preferred

    def _encode(self, pairs: Sequence[PreferencePair]) -> list[EncodedExample]:
        """Encode the responses of pairs, of each the kept one first."""
        found = []
        for pair in pairs:
            context = pair.chosen.context
            found += [self.reader.encode_example(context, one) for one in (pair.chosen.response, pair.rejected)]
        return found

    @torch.no_grad()
    def _sum_logprobs(self, items: Sequence[EncodedExample]) -> list[float]:
        """Return the log-probability of each item's response at the present weights; each process reads a part."""
        sums = [0.0] * len(items)
        parts = self.reader.split_into_micro_batches(items, self.settings, self.engine.size)
        for part, weight in engines.pad_microbatches_across_ranks(parts, self.engine):
            _, _, logprobs = self.engine.forward(part, 1.0)
            lengths = [len(items[member].response) for member in part.members]
            for member, piece in zip(part.members, logprobs.double().split(lengths), strict=True):
                sums[member] += weight * float(piece.sum())
        return engines.sum_across_ranks(sums, self.engine)
