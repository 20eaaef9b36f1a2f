"""Keep keys and values, prompt prefixes and screen features between passes of the model."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from flywheel.policy.encoding import EncodedSequence

# The library's own caches grow by concatenation and pad on the left, so a row can neither join late nor leave alone.
# Here each row has a place of its own, begins at 0 and has its own length; a mask says how far it may look.

V = TypeVar("V")
BLOCK = 64  # buffers grow by so many tokens


class KVCache:
    """What attention layers call `past_key_values`: one buffer [layers, 2, rows, heads, length, head size].

    `at` says where the next forward pass writes; then each layer calls `update` once. Beyond a row's end the buffer
    holds what was there before: finite numbers, which a mask must hide.
    """

    is_compileable = False  # the library asks

    def __init__(self, rows: int, length: int, layers: int, *, spare_masks: bool = False) -> None:
        """spare_masks: `at` makes no mask where the causal one is enough, as flash kernels need it."""
        self.rows, self.length, self._layers, self._spare_masks = rows, length, layers, spare_masks
        self._held: Tensor | None = None  # heads, head size, type and device are those of what comes first
        self._where: tuple[Any, ...] = ()
        self._start = self._seen = self._count = 0

    def at(self, starts: list[int], width: int, seen: int, device: torch.device) -> Tensor | None:
        """Prepare the next pass: `width` tokens to each of the first len(starts) rows, from starts[row] on.

        Returns the attention mask, bool [rows, 1, width, seen]: a token sees its row up to itself; None where masks are
        spared and rows of one length bring a token each, or all that they are. seen: the length that the layers get
        back.
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
        """Keep a layer's new keys and values, [rows, heads, width, head size]; return those of all tokens so far."""
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
        """Copy a row's first tokens: [layers, 2, heads, tokens, head size]."""
        return self._held[:, :, row, :, :tokens].clone(memory_format=torch.contiguous_format)

    def write(self, row: int, held: Tensor) -> None:
        """Begin a row with what `read` returned."""
        self._buffer(held)[:, :, row, :, : held.shape[3]] = held

    def take(self, row: int, other: KVCache, other_row: int, tokens: int) -> None:
        """Begin a row with the first tokens of a row of another batch (or of this one)."""
        self.write(row, other._held[:, :, other_row, :, :tokens])

    def wipe(self, row: int) -> None:
        """Set a row that may hold numbers that are not finite to zero."""
        if self._held is not None:
            self._held[:, :, row] = 0

    def get_seq_length(self, layer: int = 0) -> int:
        """Asked for by the library; positions are given to it, so that nothing hangs on the answer."""
        return self._start

    def get_query_offset(self, layer: int = 0) -> int:
        """Asked for by the library where it is given no mask: where the pass's tokens begin."""
        return self._start

    def get_mask_sizes(self, width: int, layer: int = 0) -> tuple[int, int]:
        """Return the length that the layers get back, and where it begins, as the library asks for it."""
        return self._seen, 0


class LruCache(Generic[V]):
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


# Prefix cache. A token's states depend on the tokens before it alone: attention is causal, and neither the positions of
# a prefix (multimodal RoPE) nor what deepstack adds to its image tokens look ahead. So prompts that begin alike share
# keys and values as far as they are alike, cut anywhere outside of an image.

PREFIX_STRIDE = 32  # text may be cut after each so many tokens


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
class EncodedPrompt:
    """Hold a prompt as the engine takes it. following: position of the first new token.

    ids: int64 [tokens]. positions: int64 [3, tokens] (time, row, column). cuts: (tokens, name) of the prefixes that may
    be shared, shortest first; the last is the whole prompt. Equal names mean equal tokens and equal screens.
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


def make_prompt(model: PreTrainedModel, encoded: EncodedSequence, end_id: int, keys: Sequence[bytes]) -> EncodedPrompt:
    """Prepare a prompt for the engine: positions, screens and the places where its prefix may be cut. model: only its
    rule for positions is used. encoded: the prompt. end_id: the token that ends a message. keys: one a screen, in
    order, not empty; equal keys mean equal screens."""
    ids, kinds = torch.from_numpy(encoded.input_ids), torch.from_numpy(encoded.mm_token_type_ids)
    grid = torch.from_numpy(encoded.image_grid_thw) if len(encoded.image_grid_thw) else None
    positions, _ = model.base_model.get_rope_index(ids[None], kinds[None], image_grid_thw=grid)
    screens = _screens(encoded, keys)
    cuts = find_prefix_cuts(encoded.input_ids, screens, end_id)
    return EncodedPrompt(ids, positions[:, 0], int(positions.max()) + 1, screens, cuts)


def _screens(encoded: EncodedSequence, keys: Sequence[bytes]) -> tuple[EncodedScreen, ...]:
    places = np.flatnonzero(encoded.mm_token_type_ids)
    patches = encoded.image_grid_thw.prod(axis=1)
    merged = int(patches.sum() // len(places)) if len(places) else 1  # patches that one token stands for
    found, token, patch = [], 0, 0
    for key, grid, count in zip(keys, encoded.image_grid_thw.tolist(), patches.tolist(), strict=True):
        start, size = int(places[token]), count // merged
        found.append(EncodedScreen(key, start, start + size, tuple(grid), encoded.pixel_values[patch : patch + count]))
        token, patch = token + size, patch + count
    return tuple(found)


def find_prefix_cuts(ids: np.ndarray, screens: Sequence[EncodedScreen], end_id: int) -> tuple[tuple[int, bytes], ...]:
    """Find where a prompt's prefix may be cut, each with a digest of what precedes it.

    After each screen, after each message, after every PREFIX_STRIDE tokens outside of screens, and at the end.
    """
    chain = hashlib.blake2b(digest_size=16)
    ends = (np.flatnonzero(ids == end_id) + 1).tolist()
    marks = sorted({*ends, *range(PREFIX_STRIDE, len(ids), PREFIX_STRIDE), len(ids)})
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
class CachedPrefix:
    """A computed prompt: its cuts. held: [layers, 2, heads, tokens, head size]. hidden: [size], at its last token."""

    cuts: tuple[tuple[int, bytes], ...]
    held: Tensor
    hidden: Tensor

    @property
    def name(self) -> bytes:
        return self.cuts[-1][1]


class PrefixCache:
    """The computed prompts used last, up to `limit` bytes, found by any of their cuts."""

    def __init__(self, limit: int) -> None:
        self._held: LruCache[CachedPrefix] = LruCache(limit)
        self._cuts: dict[bytes, bytes] = {}  # name of a cut -> name of a prompt that begins so

    @property
    def limit(self) -> int:
        return self._held.limit

    def longest(self, prompt: EncodedPrompt) -> tuple[CachedPrefix | None, int]:
        """Return the longest beginning that is kept, and its tokens. All of them only where the prompt itself is
        kept: the logits of the first new token come from the last token's hidden state."""
        if (whole := self._held.get(prompt.name)) is not None:
            return whole, len(prompt)
        for tokens, cut in reversed(prompt.cuts[:-1]):
            if (name := self._cuts.get(cut)) is not None and (found := self._held.get(name)) is not None:
                return found, tokens
        return None, 0

    def put(self, prefix: CachedPrefix) -> None:
        size = prefix.held.nbytes + prefix.hidden.nbytes
        if size > self._held.limit:
            return
        self._cuts |= dict.fromkeys((cut for _, cut in prefix.cuts), prefix.name)
        for gone in self._held.put(prefix.name, prefix, size):
            for _, cut in gone.cuts:
                if self._cuts.get(cut) == gone.name:
                    del self._cuts[cut]


PATCHES = 1024  # in one pass on a CPU: they stay in its caches
PATCHES_CUDA = 65_536

ScreenFeatures = tuple[Tensor, ...]  # [tokens, size]: at the input, then what deepstack adds to the first layers


class VisionEncoder:
    """Run the vision tower of a model, and cache the features of the newest screens, up to `limit` bytes."""

    def __init__(
        self,
        model: PreTrainedModel,
        limit: int,
        threads: int = 1,
        beside: ThreadPoolExecutor | None = None,
        *,
        one_by_one: bool = False,
    ) -> None:
        """beside: has `threads` threads, on which passes go side by side; None: all on the caller's. one_by_one: a pass
        for each screen, so that its features are the same to the last bit whatever else is asked for beside it."""
        self._model, self._held = model, LruCache[ScreenFeatures](limit)
        device = next(model.parameters()).device
        self._patches = 1 if one_by_one else PATCHES_CUDA if device.type == "cuda" else PATCHES
        self._device = device
        self._beside, self._threads = beside, threads
        self.encoded = self.shared = 0  # screens, since the start

    def features(self, screens: Sequence[EncodedScreen]) -> list[ScreenFeatures]:
        """Compute the features of `screens`, in their order; equal screens are encoded once."""
        unique = {screen.key: screen for screen in screens}
        known = {key: found for key in unique if (found := self._held.get(key)) is not None}
        new = [screen for key, screen in unique.items() if key not in known]
        self.encoded, self.shared = self.encoded + len(new), self.shared + len(screens) - len(new)
        parts = _split_screens(new, self._patches, self._threads)
        side_by_side = self._beside and len(parts) > 1
        done = (self._beside.map if side_by_side else map)(self._encode, parts)
        for screen, found in zip(chain(*parts), chain(*done), strict=True):
            known[screen.key] = found
            self._held.put(screen.key, found, sum(tensor.nbytes for tensor in found))
        return [known[screen.key] for screen in screens]

    @torch.inference_mode()  # holds for one thread
    def _encode(self, screens: Sequence[EncodedScreen]) -> list[ScreenFeatures]:
        found = run_vision_tower(self._model.base_model, screens, self._device)
        # Copies: the parts of a split keep the whole pass alive.
        return [tuple(part.clone() for part in parts) for parts in found] if len(screens) > 1 else found


def run_vision_tower(
    trunk: torch.nn.Module, screens: Sequence[EncodedScreen], device: torch.device, /, **more: object
) -> list[ScreenFeatures]:
    """Compute the features of `screens`, one at least, in one pass of the tower of `trunk`, the model without its head,
    which is on `device`. more: further arguments of its `get_image_features`. Returns for each screen, in their order,
    what stands for it at the text model's input, then what deepstack adds to the first layers: [tokens, size] each.
    Gradients flow where they are asked for."""
    # In memory of torch's own: where numpy's begins is chance, and matrix products may round by it.
    pixels = torch.cat([torch.from_numpy(screen.pixels) for screen in screens]).to(device)
    grid = torch.tensor([screen.grid for screen in screens], device=device)
    out = trunk.get_image_features(pixels, grid, return_dict=True, **more)
    return list(zip(out.pooler_output, *(getattr(out, "deepstack_features", None) or ()), strict=True))


def _split_screens(screens: Sequence[EncodedScreen], limit: int, threads: int) -> list[list[EncodedScreen]]:
    """Parts of at most `limit` patches, one screen at least; of about equal size where threads are to share them."""
    patches = sum(len(screen.pixels) for screen in screens)
    if threads > 1:
        limit = -(-patches // (-(-patches // (limit * threads)) * threads)) if patches else limit
    parts: list[list[EncodedScreen]] = []
    room = 0
    for screen in screens:
        if not parts or len(screen.pixels) > room:
            parts.append([])
            room = limit
        parts[-1].append(screen)
        room -= len(screen.pixels)
    return parts


def to_encoder_outputs(features: Sequence[ScreenFeatures]) -> dict[str, Any]:
    """Put the features of screens into the form of the library's argument `mm_encoder_outputs`, which is returned.

    features: of each screen in its order, one at least, as `run_vision_tower` gives them.
    """
    first, *deeper = zip(*features, strict=True)
    return {"image": SimpleNamespace(pooler_output=list(first), deepstack_features=[list(level) for level in deeper])}
