"""Keys and values of a running batch, and what is kept for contexts that come again.

The library's own caches grow by concatenation and pad on the left, so a row can neither join late nor leave alone.
Here each row has a place of its own, begins at 0 and is as long as it is; a mask says how far it may look.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

V = TypeVar("V")
BLOCK = 64  # buffers grow by so many tokens


class KeyValues:
    """What attention layers call `past_key_values`: one buffer [layers, 2, rows, heads, length, head size].

    `at` says where the next forward pass writes; then each layer calls `update` once. Beyond a row's end the buffer
    holds what was there before: finite numbers, which a mask must hide.
    """

    is_compileable = False  # the library asks

    def __init__(self, rows: int, length: int, layers: int, *, spare_masks: bool = False) -> None:
        """spare_masks: `at` makes none where causality says as much (`fused.takes_flash`)."""
        self.rows, self.length, self._layers, self._spare_masks = rows, length, layers, spare_masks
        self._held: Tensor | None = None  # heads, head size, type and device are those of what comes first
        self._where: tuple[Any, ...] = ()
        self._start = self._seen = self._count = 0

    def at(self, starts: list[int], width: int, seen: int, device: torch.device) -> Tensor | None:
        """The next pass brings `width` tokens to each of the first len(starts) rows, from starts[row] on.

        Returns the attention mask, bool [rows, 1, width, seen]: a token sees its row up to itself. `seen`: the
        length that the layers get back; at least max(starts) + width.

        None where masks are spared and rows of one length bring a token each, or all that they are.
        """
        self._count, self._start, self._seen = len(starts), starts[0], seen
        level = min(starts) == max(starts)
        if level:
            self._where = (slice(self._count), slice(self._start, self._start + width))
            if self._spare_masks and seen == self._start + width and (width == 1 or self._start == 0):
                return None
        places = torch.tensor(starts, device=device)[:, None] + torch.arange(width, device=device)  # [rows, width]
        if not level:
            self._where = (torch.arange(self._count, device=device)[:, None], places)
        return (torch.arange(seen, device=device) <= places[:, :, None])[:, None]

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Keeps a layer's new keys and values, [rows, heads, width, head size]; returns those of all tokens so far."""
        pair = self._buffer(keys)[layer]
        for buffer, new in zip(pair, (keys, values), strict=True):
            buffer.transpose(1, 2)[self._where] = new.transpose(1, 2)
        keys, values = pair[:, : self._count, :, : self._seen]
        return keys, values

    def _buffer(self, like: Tensor) -> Tensor:
        """like: [..., heads, tokens, head size]."""
        if self._held is None:  # zeros: even hidden, a number that is not finite would spoil a row
            shape = (self._layers, 2, self.rows, like.shape[-3], self.length, like.shape[-1])
            self._held = like.new_zeros(shape)
        return self._held

    def reserve(self, rows: int, length: int, kept: int) -> None:
        """Make room for `rows` rows of `length` tokens; the first `kept` rows keep what they hold."""
        length = -(-length // BLOCK) * BLOCK
        if rows <= self.rows and length <= self.length:
            return
        old, before = self._held, self.length
        self.rows, self.length, self._held = max(rows, self.rows), max(length, self.length), None
        if old is not None:
            self._buffer(old)[:, :, :kept, :, :before] = old[:, :, :kept]

    def read(self, row: int, tokens: int) -> Tensor:
        """A copy of a row's first tokens: [layers, 2, heads, tokens, head size]."""
        return self._held[:, :, row, :, :tokens].clone(memory_format=torch.contiguous_format)

    def write(self, row: int, held: Tensor) -> None:
        """The other way round: a row begins with what `read` gave."""
        self._buffer(held)[:, :, row, :, : held.shape[3]] = held

    def take(self, row: int, other: KeyValues, other_row: int, tokens: int) -> None:
        """A row begins with the first tokens of a row of another batch (or of this one)."""
        self.write(row, other._held[:, :, other_row, :, :tokens])

    def wipe(self, row: int) -> None:
        """Zeros, for a row that may hold numbers that are not finite."""
        if self._held is not None:
            self._held[:, :, row] = 0

    def get_seq_length(self, layer: int = 0) -> int:
        """Asked for by the library; positions are given to it, so that nothing hangs on the answer."""
        return self._start

    def get_query_offset(self, layer: int = 0) -> int:
        """Asked for by the library where it is given no mask: where the pass's tokens begin."""
        return self._start

    def get_mask_sizes(self, width: int, layer: int = 0) -> tuple[int, int]:
        """The same: the length that the layers get back, and where it begins."""
        return self._seen, 0


class Lru(Generic[V]):
    """The values used last, up to a number of bytes. Not for several threads at once."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0
        self._held: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._held)

    def get(self, key: Hashable) -> V | None:
        found = self._held.get(key)
        if found is None:
            return None
        self._held.move_to_end(key)
        return found[0]

    def put(self, key: Hashable, value: V, size: int) -> list[V]:
        """Keep a value of `size` bytes, unless it is larger than all the room. Returns what had to go for it."""
        if size > self.limit or key in self._held:
            return []
        self._held[key] = (value, size)
        self.used += size
        gone = []
        while self.used > self.limit:
            _, (old, freed) = self._held.popitem(last=False)
            self.used -= freed
            gone.append(old)
        return gone

    def clear(self) -> None:
        self._held.clear()
        self.used = 0
