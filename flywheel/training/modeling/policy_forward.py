"""Read log-probabilities, entropies and hidden states at response tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from flywheel.config import TrainingSettings
from flywheel.policy.devices import open_pass_pool
from flywheel.policy.encoding import EncodedSequence
from flywheel.policy.guided_decoding import BLOCKED_LOGIT, AnswerConstraint
from flywheel.policy.inference.cache import VisionEncoder
from flywheel.training.modeling.monkey_patch import patch_for_training
from flywheel.training.modeling.packing import (
    PackedBatch,
    PaddedTokens,
    TokenSequence,
    batch_by_length,
    build_token_sequence,
    compute_packed_hidden,
    compute_padded_hidden,
    pack_sequences,
    pad_samples,
)

SCREEN_CACHE_BYTES = 256 << 20  # bytes of screens' features: about 2,000 screens of the shipped base


@dataclass(frozen=True, eq=False)
class EncodedExample:
    """A prompt and its response. sequence: the two as packs take them, where the model can read packs. blocked: bits,
    uint8 [response, vocabulary / 8], of the tokens that could not come, where answers are held to a form."""

    context: EncodedSequence
    response: tuple[int, ...]
    sequence: TokenSequence | None
    blocked: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class PaddedBatch:
    """Hold a padded batch. members: numbers of its items. blocked: as a PackedBatch has it."""

    members: tuple[int, ...]
    batch: PaddedTokens
    blocked: Tensor | None = None

    @property
    def targets(self) -> Tensor:
        return self.batch.ids[self.batch.mask]


MicroBatch = PackedBatch | PaddedBatch  # response tokens of a part: those of its members one after the other, [tokens]


def freeze_vision_tower(policy: PreTrainedModel, chosen: TrainingSettings) -> bool:
    """Freeze the vision tower of `policy` where `chosen.freeze_vision` says so; returns whether its features may be
    cached.

    chosen: block of the training. With ZeRO 3 they may not: each pass is one of all processes together, so none may
    have a screen's features already.
    """
    if chosen.freeze_vision:
        policy.base_model.visual.requires_grad_(False)
    return chosen.freeze_vision and not (chosen.engine == "deepspeed" and chosen.zero_stage == 3)


class PolicyForward(nn.Module):
    """Read a policy at response tokens; patches `policy` to read packs where its family can.

    constraint: what the responses were held to when they were sampled; probabilities are then among the tokens that it
    allows. keeps_screens: cache the vision tower's features of a screen for the next example that shows it
    (`freeze_vision_tower`). at_once: screens that the tower then reads side by side, each on a core.
    """

    def __init__(
        self,
        policy: PreTrainedModel,
        constraint: AnswerConstraint | None = None,
        *,
        keeps_screens: bool = False,
        at_once: int = 1,
    ) -> None:
        super().__init__()
        self.policy, self._constraint = policy, constraint
        self.reads_packs = patch_for_training(policy)
        self.vision: VisionEncoder | None = None
        if keeps_screens:
            self.vision = VisionEncoder(policy, SCREEN_CACHE_BYTES, at_once, open_pass_pool(at_once), one_by_one=True)

    def encode_example(
        self, context: EncodedSequence, response: Sequence[int], *, sampled: bool = True
    ) -> EncodedExample:
        """Join a prompt and its response.

        context: the encoded prompt. response: token ids, at least one. sampled: False for a placeholder, which no
        constraint held.
        """
        made = build_token_sequence(self.policy, context, response) if self.reads_packs else None
        held = self._constraint is not None and sampled
        return EncodedExample(context, tuple(response), made, self._constraint.blocked(response) if held else None)

    def split_into_micro_batches(
        self, items: Sequence[EncodedExample], settings: TrainingSettings, shares: int = 1
    ) -> list[MicroBatch]:
        """Divide all items into micro-batches on the policy's device: packs of settings.pack_tokens tokens, or padded
        batches.

        settings: block of the training; padded batches have settings.micro_batch items. shares: least number of parts,
        of about equal size.
        """
        device = next(self.policy.parameters()).device
        found: list[MicroBatch] = []
        if settings.pack_tokens and items and items[0].sequence is not None:
            packs = pack_sequences([item.sequence for item in items], settings.pack_tokens, shares=shares)
            found += [self._seen(packed.to(device)) for packed in packs]
        else:
            size = min(settings.micro_batch, -(-len(items) // shares))
            for rows in batch_by_length([len(item.context) + len(item.response) for item in items], size):
                batch = pad_samples([items[i].context for i in rows], [items[i].response for i in rows])
                found.append(PaddedBatch(tuple(rows), batch.to(device)))
        if self._constraint is None:
            return found
        return [
            replace(part, blocked=_concatenate_blocked([items[i] for i in part.members]).to(device)) for part in found
        ]

    def _seen(self, packed: PackedBatch) -> PackedBatch:
        if self.vision is None:
            return packed
        return replace(packed, features=tuple(self.vision.features(packed.screens)))

    def forward(self, part: MicroBatch, *temperatures: float) -> tuple[Tensor, ...]:
        """Return (hidden [tokens, width], entropy [tokens], log-probabilities [tokens] at each temperature).

        part: one micro-batch; tokens counts its response tokens. temperatures: at least one. hidden: the states that
        the response tokens are predicted from. entropy: of the distribution at the first temperature, in nats, without
        gradient.
        """
        if isinstance(part, PackedBatch):
            hidden = compute_packed_hidden(self.policy.base_model, part)
        else:
            hidden = compute_padded_hidden(self.policy.base_model, part.batch)[part.batch.mask]
        logits = self.policy.get_output_embeddings()(hidden)
        if part.blocked is not None:
            logits = logits.masked_fill(_unpack_bits(part.blocked, logits.shape[-1]), BLOCKED_LOGIT)
        read = [token_logprobs(logits / temperature, part.targets) for temperature in temperatures]
        return hidden, read[0][1], *(logprobs for logprobs, _ in read)


def token_logprobs(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each target and the entropy of each distribution, both [...], in nats.

    logits: [..., vocabulary]. targets: ids [...]. The entropy carries no gradient.
    """
    logp = torch.log_softmax(logits.float(), dim=-1)
    with torch.no_grad():
        entropy = -(logp.exp() * logp).sum(-1)
    return logp.gather(-1, targets.unsqueeze(-1)).squeeze(-1), entropy


def _concatenate_blocked(items: Sequence[EncodedExample]) -> Tensor:
    """uint8 [tokens, vocabulary / 8]; nothing is blocked of a placeholder."""
    width = next((item.blocked.shape[1] for item in items if item.blocked is not None), 0)
    free = [np.zeros((len(item.response), width), np.uint8) if item.blocked is None else item.blocked for item in items]
    return torch.from_numpy(np.concatenate(free))


def _unpack_bits(bits: Tensor, width: int) -> Tensor:
    """bool [tokens, width], of bytes whose highest bit comes first."""
    places = torch.arange(7, -1, -1, dtype=torch.uint8, device=bits.device)
    every = (bits[:, :, None] >> places & 1).flatten(1).bool()
    return every[:, :width] if every.shape[1] else every.new_zeros(len(bits), width)
