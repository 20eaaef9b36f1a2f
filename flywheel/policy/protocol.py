"""The policy contract: context in; text, token ids, log-probabilities and weight version out.

Back-ends: `embedded` (transformers in this process) and `remote` (an OpenAI-compatible server such as `vllm serve`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Image:
    """A screen, as the bytes of a PNG."""

    png: bytes


@dataclass(frozen=True)
class Message:
    """role: system, user or assistant. parts: text and images in reading order."""

    role: str
    parts: tuple[str | Image, ...]


Context = tuple[Message, ...]


@dataclass(frozen=True)
class Sampling:
    """temperature 0 is greedy. seed: the sampled tokens depend on it and on the context alone, not on the batch."""

    temperature: float = 1.0
    max_new_tokens: int = 48
    seed: int = 0


@dataclass(frozen=True)
class Completion:
    """text: decoded `token_ids` without the end token. token_ids include the end token where it was sampled.

    logprobs: natural, of each sampled token under the untempered distribution at temperature 1.
    prompt_tokens: length of the encoded context.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    prompt_tokens: int
    weight_version: str
    finished: bool


class Policy(Protocol):
    """Requests may come singly and at once; the back-end batches them. Raises PolicyError, PolicyTimeout."""

    @property
    def weight_version(self) -> str:
        """Name of the weights that answer now (a checkpoint's digest)."""

    async def complete(self, context: Context, sampling: Sampling) -> Completion: ...

    async def load(self, checkpoint: Path) -> None:
        """Swap the weights; requests under way finish on the ones they began with."""

    async def close(self) -> None: ...
