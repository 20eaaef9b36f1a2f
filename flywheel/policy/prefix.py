"""Prompts as the engine sees them, and the keys and values of those it has computed.

What a model makes of a token hangs on the tokens before it alone: attention is causal, the positions of a prefix
(multimodal RoPE: an image counts for as many as its longer side) and what deepstack adds to its image tokens do not
look ahead. So two prompts that begin alike share keys and values as far as they are alike, cut anywhere outside of an
image.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from flywheel.policy.cache import Lru
from flywheel.policy.encoding import Encoded

STRIDE = 32  # text may be cut after each so many tokens


@dataclass(frozen=True)
class EncodedScreen:
    """An image of a prompt. key: of its content. start, stop: its tokens. grid: (frames, rows, columns) of patches;
    pixels: float32 [patches, values of a patch]."""

    key: bytes
    start: int
    stop: int
    grid: tuple[int, int, int]
    pixels: np.ndarray = field(repr=False)


@dataclass(frozen=True, eq=False)
class Prompt:
    """ids: int64 [tokens]. positions: int64 [3, tokens] (time, row, column); following: that of the first new token.

    cuts: (tokens, name) of the prefixes that may be shared, shortest first; the last is the whole prompt. Equal names
    mean equal tokens and equal screens.
    """

    ids: Tensor
    positions: Tensor
    following: int
    screens: tuple[EncodedScreen, ...]
    cuts: tuple[tuple[int, bytes], ...]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def name(self) -> bytes:
        return self.cuts[-1][1]

    @property
    def nbytes(self) -> int:
        return self.ids.nbytes + self.positions.nbytes + sum(screen.pixels.nbytes for screen in self.screens)


def prompt_of(model: PreTrainedModel, encoded: Encoded, end_id: int, keys: Sequence[bytes]) -> Prompt:
    """keys: one a screen; equal keys mean equal screens. Of `model` only the rule for positions is used."""
    ids, kinds = torch.from_numpy(encoded.input_ids), torch.from_numpy(encoded.mm_token_type_ids)
    grid = torch.from_numpy(encoded.image_grid_thw) if len(encoded.image_grid_thw) else None
    positions, _ = model.base_model.get_rope_index(ids[None], kinds[None], image_grid_thw=grid)
    screens = _screens(encoded, keys)
    return Prompt(ids, positions[:, 0], int(positions.max()) + 1, screens, cuts_of(encoded.input_ids, screens, end_id))


def _screens(encoded: Encoded, keys: Sequence[bytes]) -> tuple[EncodedScreen, ...]:
    places = np.flatnonzero(encoded.mm_token_type_ids)
    patches = encoded.image_grid_thw.prod(axis=1)
    merged = int(patches.sum() // len(places)) if len(places) else 1  # patches that one token stands for
    found, token, patch = [], 0, 0
    for key, grid, count in zip(keys, encoded.image_grid_thw.tolist(), patches.tolist(), strict=True):
        start, size = int(places[token]), count // merged
        found.append(EncodedScreen(key, start, start + size, tuple(grid), encoded.pixel_values[patch : patch + count]))
        token, patch = token + size, patch + count
    return tuple(found)


def cuts_of(ids: np.ndarray, screens: Sequence[EncodedScreen], end_id: int) -> tuple[tuple[int, bytes], ...]:
    """After each screen, after each message, after every STRIDE tokens outside of screens, and at the end."""
    chain = hashlib.blake2b(digest_size=16)
    marks = sorted({*(np.flatnonzero(ids == end_id) + 1).tolist(), *range(STRIDE, len(ids), STRIDE), len(ids)})
    cuts: list[tuple[int, bytes]] = []
    at = 0
    for start, stop, key in (*((s.start, s.stop, s.key) for s in screens), (len(ids), len(ids), b"")):
        for mark in (mark for mark in marks if at < mark <= start):
            chain.update(ids[at:mark].tobytes())
            at = mark
            cuts.append((mark, chain.digest()))
        chain.update(ids[at:start].tobytes())
        at = stop
        if key:
            chain.update(b"\xff" * 8 + len(key).to_bytes(8, "little") + key)  # no token id looks like it
            cuts.append((stop, chain.digest()))
    return tuple(cuts)


@dataclass(frozen=True, eq=False)
class Prefix:
    """A computed prompt: its cuts. held: [layers, 2, heads, tokens, head size]. hidden: [size], at its last token."""

    cuts: tuple[tuple[int, bytes], ...]
    held: Tensor
    hidden: Tensor

    @property
    def name(self) -> bytes:
        return self.cuts[-1][1]


class Prefixes:
    """The computed prompts used last, up to `limit` bytes, found by any of their cuts."""

    def __init__(self, limit: int) -> None:
        self._held: Lru[Prefix] = Lru(limit)
        self._cuts: dict[bytes, bytes] = {}  # name of a cut -> name of a prompt that begins so

    def __len__(self) -> int:
        return len(self._held)

    @property
    def limit(self) -> int:
        return self._held.limit

    @property
    def used(self) -> int:
        """Bytes."""
        return self._held.used

    def longest(self, prompt: Prompt) -> tuple[Prefix | None, int]:
        """The longest beginning that is kept, and its tokens. All of them only where the prompt itself is kept: the
        logits of the first new token come from the last token's hidden state."""
        if (whole := self._held.get(prompt.name)) is not None:
            return whole, len(prompt)
        for tokens, cut in reversed(prompt.cuts[:-1]):
            if (name := self._cuts.get(cut)) is not None and (found := self._held.get(name)) is not None:
                return found, tokens
        return None, 0

    def put(self, prefix: Prefix) -> None:
        size = prefix.held.nbytes + prefix.hidden.nbytes
        if size > self._held.limit:
            return
        self._cuts |= dict.fromkeys((cut for _, cut in prefix.cuts), prefix.name)
        for gone in self._held.put(prefix.name, prefix, size):
            for _, cut in gone.cuts:
                if self._cuts.get(cut) == gone.name:
                    del self._cuts[cut]

    def clear(self) -> None:
        self._held.clear()
        self._cuts.clear()
