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
    """What attention layers call `past_key_values`: for each layer two buffers [rows, heads, length, head size].

    `at` says where the next forward pass writes; then each layer calls `update` once. Beyond a row's end the buffers
    hold what was there before: finite numbers, which a mask must hide.
    """

    is_compileable = False  # the library asks

    def __init__(self, rows: int, length: int) -> None:
        self.rows, self.length = rows, length
        self._layers: list[tuple[Tensor, Tensor]] = []
        self._where: tuple[Any, ...] = ()
        self._start = self._seen = self._count = 0

    def at(self, starts: list[int], width: int, seen: int, device: torch.device) -> Tensor:
        """The next pass brings `width` tokens to each of the first len(starts) rows, from starts[row] on.

        Returns the attention mask, bool [rows, 1, width, seen]: a token sees its row up to itself. `seen`: the
        length that the layers get back; at least max(starts) + width.
        """
        self._count, self._start, self._seen = len(starts), starts[0], seen
        places = torch.tensor(starts, device=device)[:, None] + torch.arange(width, device=device)  # [rows, width]
        if min(starts) == max(starts):
            self._where = (slice(self._count), slice(self._start, self._start + width))
        else:
            self._where = (torch.arange(self._count, device=device)[:, None], places)
        return (torch.arange(seen, device=device) <= places[:, :, None])[:, None]

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Keeps a layer's new keys and values, [rows, heads, width, head size]; returns those of all tokens so far."""
        if layer == len(self._layers):
            self._add_layer(keys, values)
        kept = self._layers[layer]
        for buffer, new in zip(kept, (keys, values), strict=True):
            buffer.transpose(1, 2)[self._where] = new.transpose(1, 2)
        return kept[0][: self._count, :, : self._seen], kept[1][: self._count, :, : self._seen]

    def _add_layer(self, keys: Tensor, values: Tensor) -> None:
        def empty(like: Tensor) -> Tensor:  # zeros: even hidden, a number that is not finite would spoil a row
            return like.new_zeros(self.rows, like.shape[1], self.length, like.shape[3])

        self._layers.append((empty(keys), empty(values)))

    def reserve(self, rows: int, length: int, kept: int) -> None:
        """Make room for `rows` rows of `length` tokens; the first `kept` rows keep what they hold."""
        length = -(-length // BLOCK) * BLOCK
        if rows <= self.rows and length <= self.length:
            return
        rows, length = max(rows, self.rows), max(length, self.length)
        for number, pair in enumerate(self._layers):
            grown = tuple(old.new_zeros(rows, old.shape[1], length, old.shape[3]) for old in pair)
            for old, new in zip(pair, grown, strict=True):
                new[:kept, :, : self.length] = old[:kept]
            self._layers[number] = (grown[0], grown[1])
        self.rows, self.length = rows, length

    def read(self, row: int, tokens: int) -> Tensor:
        """A copy of a row's first tokens: [layers, 2, heads, tokens, head size]."""
        first = self._layers[0][0]
        held = first.new_empty(len(self._layers), 2, first.shape[1], tokens, first.shape[3])
        for layer, pair in zip(held, self._layers, strict=True):
            for part, buffer in zip(layer, pair, strict=True):
                part.copy_(buffer[row, :, :tokens])
        return held

    def write(self, row: int, held: Tensor) -> None:
        """The other way round: a row begins with what `read` gave."""
        if not self._layers:
            for _ in held:
                self._add_layer(held[0, :1], held[0, :1])
        for pair, layer in zip(self._layers, held, strict=True):
            for buffer, part in zip(pair, layer, strict=True):
                buffer[row, :, : part.shape[1]] = part

    def take(self, row: int, other: KeyValues, other_row: int, tokens: int) -> None:
        """A row begins with the first tokens of a row of another batch (or of this one)."""
        if not self._layers:
            for keys, values in other._layers:
                self._add_layer(keys, values)
        for pair, others in zip(self._layers, other._layers, strict=True):
            for buffer, source in zip(pair, others, strict=True):
                buffer[row, :, :tokens] = source[other_row, :, :tokens]

    def wipe(self, row: int) -> None:
        """Zeros, for a row that may hold numbers that are not finite."""
        for pair in self._layers:
            for buffer in pair:
                buffer[row] = 0

    def get_seq_length(self, layer: int = 0) -> int:
        """Asked for by the library; positions and masks are given to it, so that nothing hangs on the answer."""
        return self._start


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
