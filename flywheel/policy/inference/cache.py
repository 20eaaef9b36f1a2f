"""Cache keys and values, prompt prefixes and screen features between passes of the model."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain
from types import SimpleNamespace
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from flywheel.policy.encoding import EncodedSequence

# The library's own caches grow by concatenation and pad on the left, so no row can join later or leave before the
# others. Here each row has its own part of a buffer, begins at position 0 and has its own length; a mask bounds what
# its tokens attend to.

V = TypeVar("V")
BLOCK = 64  # buffers grow by multiples of this number of tokens


class KVCache:
    """Hold keys and values of a batch in one buffer; the library's layers take it as `past_key_values`.

    The buffer is [layers, 2, rows, heads, length, head size]. `at` sets where the next forward pass writes; then each
    layer calls `update` once. Beyond a row's end the buffer holds old, finite numbers, which a mask must hide.
    """

    is_compileable = False  # read by the library

    def __init__(self, rows: int, length: int, layers: int, *, spare_masks: bool = False) -> None:
        """Begin with no buffer.

        rows, length, layers: its size. spare_masks: `at` returns no mask where the causal one is enough, as flash
        kernels need.
        """
        self.rows, self.length, self._layers, self._spare_masks = rows, length, layers, spare_masks
        self._held: Tensor | None = None  # allocated with heads, head size, dtype and device of the first keys
        self._where: tuple[Any, ...] = ()
        self._start = self._seen = self._count = 0

    def at(self, starts: list[int], width: int, seen: int, device: torch.device) -> Tensor | None:
        """Prepare the next pass, which writes `width` tokens to each of the first rows; return the attention mask.

        starts: where each row's tokens are written. seen: length of the keys and values that `update` returns. The mask
        is bool [rows, 1, width, seen]: a token attends to its row up to itself. None with `spare_masks`, where all rows
        start at the same position, end at `seen`, and start at 0 or get one token.
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
        """Store a layer's new keys and values; return those of all tokens so far.

        keys, values: [rows, heads, width, head size]; the result's are [rows, heads, seen, head size].
        """
        pair = self.buffer(keys.shape[1], keys.shape[-1], keys)[layer]
        for buffer, new in zip(pair, (keys, values), strict=True):
            buffer.transpose(1, 2)[self._where] = new.transpose(1, 2)
        keys, values = pair[:, : self._count, :, : self._seen]
        return keys, values

    def buffer(self, heads: int, size: int, like: Tensor | None = None) -> Tensor:
        """Return the buffer, allocated at the first call.

        heads: of keys. size: of a head. like: has its dtype and device; None: float32 on the CPU.
        """
        if self._held is None:  # zeros: a number that is not finite would spoil a row even behind the mask
            shape = (self._layers, 2, self.rows, heads, self.length, size)
            self._held = torch.zeros(shape) if like is None else like.new_zeros(shape)
        return self._held

    def reserve(self, rows: int, length: int, kept: int) -> None:
        """Make room for `rows` rows of `length` tokens; the first `kept` rows keep their contents."""
        length = -(-length // BLOCK) * BLOCK
        if rows <= self.rows and length <= self.length:
            return
        old, before = self._held, self.length
        self.rows, self.length, self._held = max(rows, self.rows), max(length, self.length), None
        if old is not None:
            self.buffer(old.shape[3], old.shape[5], old)[:, :, :kept, :, :before] = old[:, :, :kept]

    def read(self, row: int, tokens: int) -> Tensor:
        """Return a copy of the first `tokens` tokens of a row: [layers, 2, heads, tokens, head size]."""
        return self._held[:, :, row, :, :tokens].clone(memory_format=torch.contiguous_format)

    def write(self, row: int, held: Tensor) -> None:
        """Write the beginning of a row. held: as `read` returns it."""
        self.buffer(held.shape[2], held.shape[4], held)[:, :, row, :, : held.shape[3]] = held

    def take(self, row: int, other: KVCache, other_row: int, tokens: int) -> None:
        """Copy the first `tokens` tokens of another row into `row`.

        other, other_row: the cache, which may be this one, and the row to copy from.
        """
        self.write(row, other._held[:, :, other_row, :, :tokens])

    def wipe(self, row: int) -> None:
        """Set a row to zero, since it may hold numbers that are not finite."""
        if self._held is not None:
            self._held[:, :, row] = 0

    def get_seq_length(self, layer: int = 0) -> int:
        """Return a length, which the library asks for; it gets explicit positions, so nothing depends on the value."""
        return self._start

    def get_query_offset(self, layer: int = 0) -> int:
        """Return where the pass's tokens begin; the library asks for it where it is given no mask."""
        return self._start

    def get_mask_sizes(self, width: int, layer: int = 0) -> tuple[int, int]:
        """Return length and first position of the keys that `update` returns; the library asks for them."""
        return self._seen, 0


class LruCache(Generic[V]):
    """Hold the most recently used values, up to `limit` bytes. Not safe for concurrent threads."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0
        self._held: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._held)

    def get(self, key: Hashable) -> V | None:
        """Return the value of `key`, which is then the most recently used; None where there is none."""
        found = self._held.get(key)
        if found is None:
            return None
        self._held.move_to_end(key)
        return found[0]

    def put(self, key: Hashable, value: V, size: int) -> list[V]:
        """Store a value of `size` bytes; return the values that are evicted for it.

        It is not stored if it is larger than the limit, or `key` is present.
        """
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


# Prefix cache. A token's hidden states depend only on the tokens before it: attention is causal, and neither the
# positions of a prefix (multimodal RoPE) nor what deepstack adds to its image tokens depend on later tokens. So prompts
# share keys and values of their common prefix, which may end anywhere outside of an image.

PREFIX_STRIDE = 32  # text may be cut after every multiple of this number of tokens


@dataclass(frozen=True)
class EncodedScreen:
    """Hold an image of a prompt.

    key: digest of its content. start, stop: range of its tokens in the prompt. grid: (frames, rows, columns) of
    patches. pixels: float32 [patches, values per patch].
    """

    key: bytes
    start: int
    stop: int
    grid: tuple[int, int, int]
    pixels: np.ndarray = field(repr=False)


@dataclass(frozen=True, eq=False)
class EncodedPrompt:
    """Hold a prompt in the engine's form.

    ids: int64 [tokens]. positions: int64 [3, tokens] (time, row, column). following: position of the first new token.
    cuts: (tokens, digest) of the prefixes that may be shared, shortest first; the last is the whole prompt. Equal
    digests mean equal tokens and equal screens.
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
        """Return the digest of the whole prompt."""
        return self.cuts[-1][1]

    @property
    def nbytes(self) -> int:
        """Return the bytes of its arrays, with those of its screens."""
        return self.ids.nbytes + self.positions.nbytes + sum(screen.pixels.nbytes for screen in self.screens)

    def showing(self, pixels: Sequence[np.ndarray]) -> EncodedPrompt:
        """Return this prompt with other pixels of its screens. pixels: of each screen, in order."""
        shown = (replace(screen, pixels=one) for screen, one in zip(self.screens, pixels, strict=True))
        return replace(self, screens=tuple(shown))


def make_prompt(model: PreTrainedModel, encoded: EncodedSequence, end_id: int, keys: Sequence[bytes]) -> EncodedPrompt:
    """Prepare a prompt for the engine: positions, screens and the places where its prefix may be cut.

    model: only its rule for positions is used. encoded: the prompt. end_id: the token that ends a message. keys: one
    per screen, in order, none of them b""; equal keys mean equal screens. Raises ValueError where keys and screens
    differ in number.
    """
    ids, positions = torch.from_numpy(encoded.input_ids), find_positions(model, encoded)
    screens = _screens(encoded, keys)
    cuts = find_prefix_cuts(encoded.input_ids, screens, end_id)
    return EncodedPrompt(ids, positions, int(positions.max()) + 1, screens, cuts)


_MOST_FORMS = 256
_positions: WeakKeyDictionary[torch.nn.Module, dict[tuple[bytes, bytes], Tensor]] = WeakKeyDictionary()


def find_positions(model: PreTrainedModel, encoded: EncodedSequence) -> Tensor:
    """Return the positions of a prompt's tokens by the model's rule (multimodal RoPE): int64 [3, tokens].

    The rows are time, row and column. model: whose rule in the library is used. That rule takes half of the time of
    preparing a prompt. So its result up to the last screen is kept for all prompts of the same form; the text behind
    counts on, each token one more.
    """
    kinds, grid = encoded.mm_token_type_ids, encoded.image_grid_thw
    places = np.flatnonzero(kinds)
    end = int(places[-1]) + 1 if len(places) else 0
    forms = _positions.setdefault(model.base_model, {})
    name = kinds[:end].tobytes(), grid.tobytes()
    begun = forms.get(name)
    if begun is None:
        begun = torch.empty(3, 0, dtype=torch.int64)
        if end:
            ids, shown = torch.from_numpy(encoded.input_ids[:end]), torch.from_numpy(kinds[:end])
            found, _ = model.base_model.get_rope_index(ids[None], shown[None], image_grid_thw=torch.from_numpy(grid))
            begun = found[:, 0]
        if len(forms) >= _MOST_FORMS:
            forms.clear()
        forms[name] = begun
    following = int(begun.max()) + 1 if end else 0
    rest = torch.arange(following, following + len(kinds) - end).expand(3, -1)
    return torch.cat([begun, rest], dim=1)


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
    """Find where a prompt's prefix may be cut: (tokens, digest of these tokens and their screens), shortest first.

    A prefix may end after a screen, after a message, after a multiple of PREFIX_STRIDE tokens outside of screens, and
    at the prompt's end. ids: int64 [tokens]. end_id: the token that ends a message.
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
            chain.update(b"\xff" * 8 + len(key).to_bytes(8, "little") + key)  # no token id has these bytes
            cuts.append((stop, chain.digest()))
    return tuple(cuts)


@dataclass(frozen=True, eq=False)
class CachedPrefix:
    """Hold a prompt whose keys and values are computed.

    cuts: as in `EncodedPrompt`. held: its keys and values, [layers, 2, heads, tokens, head size]. hidden: [size], at
    its last token.
    """

    cuts: tuple[tuple[int, bytes], ...]
    held: Tensor
    hidden: Tensor

    @property
    def name(self) -> bytes:
        """Return the digest of the whole prompt."""
        return self.cuts[-1][1]


class PrefixCache:
    """Hold the most recently used prompts, computed, up to `limit` bytes; any of their prefixes can be found."""

    def __init__(self, limit: int) -> None:
        self._held: LruCache[CachedPrefix] = LruCache(limit)
        self._cuts: dict[bytes, bytes] = {}  # name of a cut -> name of a prompt that begins so

    @property
    def limit(self) -> int:
        """Return how many bytes the cache may hold at most."""
        return self._held.limit

    def find_longest(self, prompt: EncodedPrompt) -> tuple[CachedPrefix | None, int]:
        """Return the cached prompt with the longest common prefix, and how many tokens that has; (None, 0) for none.

        The prefix is the whole prompt only where that prompt itself is cached: the first new token's logits need the
        hidden state of the last token, which is kept for whole prompts only.
        """
        if (whole := self._held.get(prompt.name)) is not None:
            return whole, len(prompt)
        for tokens, cut in reversed(prompt.cuts[:-1]):
            if (name := self._cuts.get(cut)) is not None and (found := self._held.get(name)) is not None:
                return found, tokens
        return None, 0

    def put(self, prefix: CachedPrefix) -> None:
        """Add a computed prompt; the least recently used prompts make room. One above the limit is not kept."""
        size = prefix.held.nbytes + prefix.hidden.nbytes
        if size > self._held.limit:
            return
        self._cuts |= dict.fromkeys((cut for _, cut in prefix.cuts), prefix.name)
        for gone in self._held.put(prefix.name, prefix, size):
            for _, cut in gone.cuts:
                if self._cuts.get(cut) == gone.name:
                    del self._cuts[cut]


PATCHES = 1024  # most patches of one pass on a CPU: they fit into its caches
PATCHES_CUDA = 65_536

ScreenFeatures = tuple[Tensor, ...]  # [tokens, size] each: for the input, then what deepstack adds to the first layers


class VisionEncoder:
    """Run a model's vision tower, and cache the features of the most recently used screens, up to `limit` bytes."""

    def __init__(
        self,
        model: PreTrainedModel,
        limit: int,
        threads: int = 1,
        beside: ThreadPoolExecutor | None = None,
        *,
        one_by_one: bool = False,
        before: VisionEncoder | None = None,
    ) -> None:
        """Use the vision tower of `model`.

        limit: bytes of features that are cached. beside: a pool of `threads` threads for parallel passes; None: all run
        on the caller's thread. one_by_one: one pass per screen, so that its features do not depend, to the last bit, on
        the screens computed with it. before: an encoder that is no longer used, with equal weights of the tower, equal
        image settings and the same limit: its cache is taken over.
        """
        self._model, self._held = model, before._held if before else LruCache[ScreenFeatures](limit)
        device = next(model.parameters()).device
        self._patches = 1 if one_by_one else PATCHES_CUDA if device.type == "cuda" else PATCHES
        self._device = device
        self._beside, self._threads = beside, threads
        self.encoded = self.shared = 0  # screens computed, and not computed again, since the start

    def features(self, screens: Sequence[EncodedScreen]) -> list[ScreenFeatures]:
        """Compute the features of `screens`, in their order, without gradients.

        Equal screens are encoded once, cached ones not again. Returns for each screen its features at the text model's
        input, then those that deepstack adds to the first layers, [tokens, size] each, on the model's device.
        """
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

    @torch.inference_mode()  # this mode is set per thread
    def _encode(self, screens: Sequence[EncodedScreen]) -> list[ScreenFeatures]:
        found = run_vision_tower(self._model.base_model, screens, self._device)
        # Copies: the views of a split would keep the tensors of the whole pass in memory.
        return [tuple(part.clone() for part in parts) for parts in found] if len(screens) > 1 else found


def run_vision_tower(
    trunk: torch.nn.Module, screens: Sequence[EncodedScreen], device: torch.device, /, **more: object
) -> list[ScreenFeatures]:
    """Compute the features of `screens`, at least one, in one pass of the vision tower of `trunk`.

    trunk: the model without its head, on `device`. more: further arguments of its `get_image_features`. Returns for
    each screen, in order, its features at the text model's input, then those that deepstack adds to the first layers:
    [tokens, size] each. Gradients flow where they are enabled.
    """
    # Copied to memory that torch allocates: numpy's alignment varies, and the rounding of products may depend on it.
    pixels = torch.cat([torch.from_numpy(screen.pixels) for screen in screens]).to(device)
    grid = torch.tensor([screen.grid for screen in screens], device=device)
    out = trunk.get_image_features(pixels, grid, return_dict=True, **more)
    return list(zip(out.pooler_output, *(getattr(out, "deepstack_features", None) or ()), strict=True))


def _split_screens(screens: Sequence[EncodedScreen], limit: int, threads: int) -> list[list[EncodedScreen]]:
    """Split screens into parts of at most `limit` patches or one screen; into about equal ones for several threads."""
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
    """Return the features of screens as the argument `mm_encoder_outputs` of a transformers model takes them.

    features: one per screen, in order, at least one, as `run_vision_tower` returns them. Returns one entry, `image`,
    with `pooler_output` (a tensor per screen) and `deepstack_features` (per level, a tensor per screen).
    """
    first, *deeper = zip(*features, strict=True)
    return {"image": SimpleNamespace(pooler_output=list(first), deepstack_features=[list(level) for level in deeper])}
