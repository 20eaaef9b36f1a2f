"""Combine the weights of specialists, chunk by chunk: weighted mean, task arithmetic, TIES, DARE.

All but the mean work on task vectors, delta_k = theta_k - base (Ilharco et al. 2023, arXiv:2212.04089), and add
scaling * mix(delta) to the base:

    task_arithmetic  mix = sum_k w_k delta_k
    ties             each tensor of delta_k keeps its `density` numbers of largest magnitude; of each number, the sign
                     of sum_k w_k delta_k is elected, and mix is the weighted mean of those that have it (Yadav et al.
                     2023, arXiv:2306.01708, which ranks the numbers of all tensors together)
    dare_linear      each number of delta_k is kept with probability `density` and divided by it, else 0; mix is their
                     weighted sum (Yu et al. 2024, arXiv:2311.03099)
    dare_ties        as dare_linear, and then the signs of ties

Everything is computed in float64. The names are mergekit's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from flywheel.utils.errors import BadInput

MethodName = Literal["linear", "task_arithmetic", "ties", "dare_linear", "dare_ties"]
METHODS: tuple[MethodName, ...] = get_args(MethodName)
_COUNTED = 1 << 18  # numbers whose histogram is made at once: it has 65,536 bins, however few they are
_SPARSE = frozenset({"ties", "dare_linear", "dare_ties"})


@dataclass(frozen=True)
class MergeMethod:
    """Hold the settings of a merge: method, base, scaling, density, seed.

    name: of the method. base: folder of the checkpoint that all were trained from; None for linear alone. scaling: of
    what is added to the base, above 0 (lambda of the papers). density: share of a task vector's numbers that is kept,
    above 0, at most 1; of ties, dare_linear and dare_ties. seed: of the numbers that dare drops. Raises BadInput for an
    unknown name, numbers outside of their range, and what the method does not use.
    """

    name: MethodName = "linear"
    base: Path | None = None
    scaling: float = 1.0
    density: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise BadInput for an unknown name, numbers outside of their range, and what the method does not use."""
        if self.name not in METHODS:
            raise BadInput(f"no method {self.name!r}", where="method", fix=f"one of {', '.join(METHODS)}")
        if self.name != "linear" and self.base is None:
            fix = "name the checkpoint that the specialists were trained from"
            raise BadInput(f"{self.name} needs the base of the task vectors", where="base", fix=fix)
        if self.name == "linear" and (self.base is not None or self.scaling != 1):
            raise BadInput("a weighted mean has neither a base nor a scaling", where="method", fix="task_arithmetic")
        if not 0 < self.scaling < float("inf"):
            raise BadInput(f"{self.scaling} is not above 0", where="scaling")
        if not 0 < self.density <= 1:
            raise BadInput(f"{self.density} is not above 0 and at most 1", where="density")
        if self.density != 1 and self.name not in _SPARSE:
            raise BadInput(f"{self.name} keeps all numbers", where="density", fix=f"one of {', '.join(METHODS[2:])}")

    @property
    def trims(self) -> bool:
        """Tell whether each tensor is trimmed to its largest numbers, which takes a `Cut` of it."""
        return self.name == "ties" and self.density < 1

    @property
    def drops(self) -> bool:
        """Tell whether numbers are dropped at random."""
        return self.name in ("dare_linear", "dare_ties") and self.density < 1

    @property
    def elects(self) -> bool:
        """Tell whether signs are elected."""
        return self.name in ("ties", "dare_ties")


LINEAR = MergeMethod()


class Cut:
    """Keep a tensor's largest numbers by magnitude, a share `density` of them; of equal ones the first are kept.

    Magnitudes are ranked in float32. The least one that is kept is found by two histograms over the bits of these, so
    that no copy of the tensor is held: non-negative floats are ordered as their bits are.
    """

    def __init__(self, chunks: Callable[[], Iterator[Tensor]], size: int, density: float) -> None:
        """Find the least magnitude that is kept.

        chunks: yields the tensor from its beginning; it is called twice. size: how many numbers the tensor has.
        density: share of them that is kept; at least one is.
        """
        left = max(1, int(density * size))
        high, left, _ = _cut_bin(_histogram(_magnitude_bits(one) >> 16 for one in chunks()), left)
        low = (bits[bits >> 16 == high] & 0xFFFF for bits in map(_magnitude_bits, chunks()))
        within, self._equal, there = _cut_bin(_histogram(low), left)
        self._least, self._all_equal = (high << 16) + within, there == self._equal

    def keep(self, chunk: Tensor) -> Tensor:
        """Return the chunk with 0 in place of what is not kept. Call it for each chunk once, from the beginning."""
        bits = _magnitude_bits(chunk)
        if self._all_equal:
            return chunk.masked_fill(bits < self._least, 0.0)
        equal = bits == self._least
        if (found := int(equal.sum())) > self._equal:
            equal &= equal.cumsum(0) <= self._equal
        self._equal -= min(found, self._equal)
        return chunk * (equal | (bits > self._least))


def _magnitude_bits(chunk: Tensor) -> Tensor:
    return chunk.abs().float().view(torch.int32)


def _histogram(parts: Iterator[Tensor]) -> Tensor:
    counts, waiting, count = torch.zeros(1 << 16, dtype=torch.int64), [], 0
    for part in parts:
        waiting.append(part)
        count += len(part)
        if count >= _COUNTED:
            counts += torch.bincount(torch.cat(waiting), minlength=1 << 16)
            waiting, count = [], 0
    return counts + torch.bincount(torch.cat(waiting), minlength=1 << 16) if waiting else counts


def _cut_bin(counts: Tensor, wanted: int) -> tuple[int, int, int]:
    """Return the bin that number `wanted` from above lies in, how many of that bin are wanted, and how many it has."""
    above = counts.flip(0).cumsum(0)
    place = int(torch.searchsorted(above, wanted))
    number = len(counts) - 1 - place
    return number, wanted - (int(above[place - 1]) if place else 0), int(counts[number])


def draw_mask(count: int, density: float, *source: object) -> Tensor:
    """Draw which numbers of a task vector DARE keeps: float32 [count], 1 with probability `density`, else 0.

    source: what the random numbers are a function of, beside `count`.
    """
    digest = hashlib.sha256(repr(source).encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big", signed=True))
    return torch.empty(count).bernoulli_(density, generator=generator)


def mix_task_vectors(deltas: Sequence[Tensor], weights: Sequence[float], elect: bool) -> Tensor:
    """Return the weighted sum of task vectors; with `elect`, at each place the mean of those with the sum's sign.

    The mean is weighted. deltas: of equal shapes, in float64; they are overwritten. weights: one each.
    """
    for delta, weight in zip(deltas, weights, strict=True):
        delta *= weight
    total = deltas[0].clone()
    for delta in deltas[1:]:
        total += delta
    if not elect:
        return total
    sign = (total >= 0).double() * 2 - 1
    mixed, share = torch.zeros_like(total), torch.zeros_like(total)
    for delta, weight in zip(deltas, weights, strict=True):
        agrees = (delta.sign() == sign).double()  # a truth value times a float is of 32 bits
        mixed += delta * agrees
        share += agrees * weight
    return mixed / share.masked_fill_(share == 0, 1)
