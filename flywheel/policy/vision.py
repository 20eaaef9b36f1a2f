"""Screens to what the language model reads of them, a few at a time, each computed once while it is remembered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from flywheel.policy.cache import Lru
from flywheel.policy.prefix import EncodedScreen

PATCHES = 1024  # in one pass on a CPU: what it works on then stays in its caches
PATCHES_CUDA = 65_536

Features = tuple[Tensor, ...]  # [tokens, size]: at the input, then what deepstack adds to the first layers


class Vision:
    """The vision tower of a model, and the features of the screens seen last, up to `limit` bytes."""

    def __init__(
        self,
        model: PreTrainedModel,
        limit: int,
        threads: int = 1,
        beside: ThreadPoolExecutor | None = None,
        *,
        one_by_one: bool = False,
    ) -> None:
        """beside: has `threads` threads, on which passes go side by side; none: all on the caller's.

        one_by_one: a pass for each screen, so that its features are the same to the last bit whatever else is asked
        for beside it.
        """
        self._model, self._held = model, Lru[Features](limit)
        device = next(model.parameters()).device
        self._patches = 1 if one_by_one else PATCHES_CUDA if device.type == "cuda" else PATCHES
        self._device = device
        self._beside, self._threads = beside, threads
        self.encoded = self.shared = 0  # screens, since the start

    def features(self, screens: Sequence[EncodedScreen]) -> list[Features]:
        """In the order of `screens`; equal screens are encoded once."""
        unique = {screen.key: screen for screen in screens}
        known = {key: found for key in unique if (found := self._held.get(key)) is not None}
        new = [screen for key, screen in unique.items() if key not in known]
        self.encoded, self.shared = self.encoded + len(new), self.shared + len(screens) - len(new)
        parts = _parts(new, self._patches, self._threads)
        for screen, found in zip(chain(*parts), chain(*self._encode_all(parts)), strict=True):
            known[screen.key] = found
            self._held.put(screen.key, found, sum(tensor.nbytes for tensor in found))
        return [known[screen.key] for screen in screens]

    def _encode_all(self, parts: Sequence[Sequence[EncodedScreen]]) -> Iterable[list[Features]]:
        return (self._beside.map if self._beside and len(parts) > 1 else map)(self._encode, parts)

    @torch.inference_mode()  # holds for one thread
    def _encode(self, screens: Sequence[EncodedScreen]) -> list[Features]:
        # In memory of torch's own: where numpy's begins is chance, and matrix products may round by it.
        pixels = torch.cat([torch.from_numpy(screen.pixels) for screen in screens]).to(self._device)
        grid = torch.tensor([screen.grid for screen in screens], device=self._device)
        out = self._model.base_model.get_image_features(pixels, grid, return_dict=True)
        levels = [out.pooler_output, *(getattr(out, "deepstack_features", None) or ())]
        # Copies: the parts of a split keep the whole pass alive.
        copy = len(screens) > 1
        return [tuple(part.clone() if copy else part for part in parts) for parts in zip(*levels, strict=True)]

    def clear(self) -> None:
        self._held.clear()


def _parts(screens: Sequence[EncodedScreen], limit: int, threads: int) -> list[list[EncodedScreen]]:
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


def as_model_output(features: Sequence[Features]) -> dict[str, Any]:
    """The form in which the library's models take features that are ready (`mm_encoder_outputs`)."""
    first, *deeper = zip(*features, strict=True)
    return {"image": SimpleNamespace(pooler_output=list(first), deepstack_features=[list(level) for level in deeper])}
