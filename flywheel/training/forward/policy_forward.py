"""The policy as training reads it: samples in parts, packed or padded, and what is read at each response token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from transformers import PreTrainedModel

from flywheel.policy.encoding import Encoded
from flywheel.settings import Training
from flywheel.training.forward.padded import PaddedTokens, batch_of, by_length, response_hidden
from flywheel.training.forward.sequence_packing import PackedBatch, TokenSequence, pack, packed_hidden, token_sequence
from flywheel.training.forward.varlen_attention import install
from flywheel.training.rl.ppo import token_logprobs


@dataclass(frozen=True, eq=False)
class Example:
    """A prompt and its response. sequence: the two as packs take them, where the model can read packs."""

    context: Encoded
    response: tuple[int, ...]
    sequence: TokenSequence | None


@dataclass(frozen=True, eq=False)
class PaddedBatch:
    """members: numbers of its items."""

    members: tuple[int, ...]
    batch: PaddedTokens

    @property
    def targets(self) -> Tensor:
        return self.batch.ids[self.batch.mask]


MicroBatch = PackedBatch | PaddedBatch  # response tokens of a part: those of its members one after the other, [tokens]


class PolicyForward(nn.Module):
    """Makes `policy` able to read packs, where it is of a family that can."""

    def __init__(self, policy: PreTrainedModel) -> None:
        super().__init__()
        self.policy = policy
        self.reads_packs = install(policy)

    def item(self, context: Encoded, response: Sequence[int]) -> Example:
        """response: one token at least."""
        made = token_sequence(self.policy, context, response) if self.reads_packs else None
        return Example(context, tuple(response), made)

    def parts(self, items: Sequence[Example], settings: Training, processes: int = 1) -> list[MicroBatch]:
        """All items; for several processes in parts that they can share evenly."""
        device = next(self.policy.parameters()).device
        if settings.pack_tokens and items and items[0].sequence is not None:
            even = -(-sum(len(item.sequence) for item in items) // processes)
            return [
                packed.to(device) for packed in pack([item.sequence for item in items], min(settings.pack_tokens, even))
            ]
        size = min(settings.micro_batch, -(-len(items) // processes))
        found = []
        for rows in by_length([len(item.context) + len(item.response) for item in items], size):
            batch = batch_of([items[i].context for i in rows], [items[i].response for i in rows])
            found.append(PaddedBatch(tuple(rows), batch.to(device)))
        return found

    def forward(self, part: MicroBatch, *temperatures: float) -> tuple[Tensor, ...]:
        """(hidden [tokens, width], entropy [tokens], log-probabilities [tokens] at each temperature): what the response
        tokens are predicted from, the entropy of the first temperature's distribution, without gradient."""
        if isinstance(part, PackedBatch):
            hidden = packed_hidden(self.policy.base_model, part)
        else:
            hidden = response_hidden(self.policy.base_model, part.batch)[part.batch.mask]
        logits = self.policy.get_output_embeddings()(hidden)
        read = [token_logprobs(logits / temperature, part.targets) for temperature in temperatures]
        return hidden, read[0][1], *(logprobs for logprobs, _ in read)
