"""Merge specialists that are adapters of one base: W + sum_k w_k s_k B_k A_k, the weighted sum of their products.

The sum of products is one product of the concatenated factors: exact, with the sum of their ranks as its rank. The best
approximation of a lower rank (Eckart and Young 1936) is computed from a small matrix between the factors.

A DoRA (Liu et al. 2024) has rows c_k (W + s_k B_k A_k), c_k = m_k / |W + s_k B_k A_k|. The weighted mean of several is
exactly a DoRA again: with c = sum_k w_k c_k it is c (W + (sum_k w_k c_k s_k B_k A_k) / c).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flywheel.policy import checkpoint
from flywheel.policy.adapter import (
    adapter_scaling,
    iter_adapter_modules,
    name_adapter_tensor,
    read_adapter_tensors,
    write_adapter,
)
from flywheel.policy.model import load_model, stored_dtype
from flywheel.utils.errors import ModelError

_FIX = "merge adapters that were trained on one base with the same targets"


@dataclass(frozen=True)
class MergedAdapter:
    """Hold the rank of a merged adapter, and how far it is from the exact sum.

    rank: of each module's product. error: norm of what that rank leaves out of the exact sum, relative to the norm of
    the sum (Frobenius, over all modules); 0 for the exact sum. worst, worst_error: name and relative error of the
    module with the largest error.
    """

    rank: int
    error: float
    worst: str
    worst_error: float

    def __str__(self) -> str:
        if not self.error:
            return f"an adapter of rank {self.rank}, the exact sum"
        worst = f"; {self.worst_error:.2%} in {self.worst}, the worst module"
        return f"an adapter of rank {self.rank}, which leaves out {self.error:.2%} of the exact sum{worst}"


class _Adapter:
    """Hold an adapter's factors by module."""

    def __init__(self, folder: Path) -> None:
        """Read the adapter in `folder`. Raises ModelError if it cannot be read, or its tensors do not fit together."""
        self.folder, self.config = folder, checkpoint.read_adapter_config(folder)
        self.base, self.rank = checkpoint.adapter_base_digest(folder), self.config["r"]
        self.tensors = read_adapter_tensors(folder)
        self.parts = dict(iter_adapter_modules(self.tensors, folder))
        self.scaling, self.dora = adapter_scaling(self.config), bool(self.config.get("use_dora"))
        for module, parts in self.parts.items():
            a, b, size = parts["lora_A"], parts["lora_B"], parts.get("lora_magnitude_vector")
            whole = a.ndim == b.ndim == 2 and (a.shape[0], b.shape[1]) == (self.rank, self.rank)
            if not whole or (size is not None) != self.dora or (self.dora and size.shape != b.shape[:1]):
                shapes = ", ".join(f"{kind} {tuple(part.shape)}" for kind, part in parts.items())
                what = f"{module} has {shapes}: no {'DoRA' if self.dora else 'LoRA'} of rank {self.rank}"
                raise ModelError(what, where=folder, fix="copy the adapter again")

    def factors(self, module: str) -> tuple[Tensor, Tensor]:
        """Return a module's factors in float64: B [out, rank], multiplied by the scaling, and A [rank, in]."""
        parts = self.parts[module]
        return self.scaling * parts["lora_B"].double(), parts["lora_A"].double()

    def shape(self, module: str) -> tuple[int, int]:
        parts = self.parts[module]
        return parts["lora_B"].shape[0], parts["lora_A"].shape[1]


def merge_adapters(
    folders: Sequence[Path], weights: Sequence[float], out: Path, rank: int | None = None
) -> MergedAdapter:
    """Write the weighted sum of adapters to the folder `out` as one adapter of their base; return its rank and error.

    folders: of the adapters, LoRA or DoRA, of any ranks and scalings. weights: one per adapter, 0 or more, sum 1. out:
    written whole or not at all. rank: None writes the exact sum; its rank is the sum of the ranks of adapters with a
    weight above 0, its scaling 1. A number writes the best approximation of that rank, with alpha and rslora of the
    first adapter with a weight above 0, so that training can continue: each factor gets the square root of each
    singular value; where there are fewer of these than `rank`, the other rows and columns begin as in a new adapter. If
    only one adapter has a weight above 0, and `rank` is None or its own, it is copied. Raises ModelError for adapters
    of different bases, modules or shapes, that cannot be read or are not finite, or whose sum is not; DiskFull.
    """
    base = checkpoint.find_base_checkpoint(folders[0])
    adapters = [_Adapter(folder) for folder in folders]
    first = adapters[0]
    for other in adapters[1:]:
        _check_same_base(first, other)
    used = [(weight, one) for weight, one in zip(weights, adapters, strict=True) if weight > 0]
    dora = any(one.dora for _, one in used)
    chief = used[0][1]
    if len(used) == 1 and rank in (None, chief.rank):
        write_adapter(chief.tensors, chief.config, base, out)
        return MergedAdapter(chief.rank, 0.0, "", 0.0)
    config = {**chief.config, "use_dora": dora}
    if rank is None:
        total = sum(one.rank for _, one in used)
        config |= {"r": total, "lora_alpha": total, "use_rslora": False}
    else:
        config["r"] = rank
    layers = dict(load_model(base, dtype=stored_dtype(base)).named_modules()) if dora else {}
    generator = torch.Generator().manual_seed(0)
    tensors: dict[str, Tensor] = {}
    lost, sums = {}, {}
    for module in first.parts:
        weight = _base_weight(layers, module, first) if dora else None
        left, right, rows = _sum_products(used, module, weight)
        if rank is not None:
            left, right, *norms = _approximate(left, right, rank, adapter_scaling(config), generator)
            lost[module], sums[module] = norms
        made = {"lora_A": right, "lora_B": left}
        if dora:
            made["lora_B"] = left / rows[:, None]
            product = adapter_scaling(config) * made["lora_B"] @ right
            made["lora_magnitude_vector"] = rows * (weight + product).norm(dim=1)
        for kind, tensor in made.items():
            tensors[name_adapter_tensor(module, kind)] = stored = tensor.float().contiguous()
            if not torch.isfinite(stored).all():
                raise ModelError(f"the sum of {module} is not finite in float32", where=first.folder, fix=_FIX)
    write_adapter(tensors, config, base, out)
    relative = {module: (lost[module] / whole) ** 0.5 for module, whole in sums.items() if whole}
    worst = max(relative, key=relative.__getitem__, default="")
    error = (sum(lost.values()) / sum(sums.values())) ** 0.5 if relative else 0.0
    return MergedAdapter(config["r"], error, worst, relative.get(worst, 0.0))


def adapter_distance(one: Path, other: Path) -> float | None:
    """Return how much two adapters differ: |B A - B' A'| / |B A|, with their scalings.

    The norms are Frobenius norms over all modules. one, other: folders of the adapters. None where their products
    cannot be compared: different bases, modules or shapes, a DoRA, or `one` without effect. Raises ModelError for an
    adapter that cannot be read, and as `adapter_base_digest`.
    """
    first, second = _Adapter(one), _Adapter(other)
    try:
        _check_same_base(first, second)
    except ModelError:
        return None
    if first.dora or second.dora:
        return None
    apart = whole = 0.0
    for module in first.parts:
        (b, a), (b2, a2) = first.factors(module), second.factors(module)
        apart += _singular_parts(torch.cat((b, -b2), 1), torch.cat((a, a2)))[1].square().sum().item()
        whole += _singular_parts(b, a)[1].square().sum().item()
    return (apart / whole) ** 0.5 if whole else None


def _check_same_base(first: _Adapter, other: _Adapter) -> None:
    if first.base != other.base:
        what = f"it is of the base {other.base}, the first adapter of {first.base}"
        raise ModelError(what, where=other.folder, fix=_FIX)
    for module in sorted(first.parts.keys() ^ other.parts.keys()):
        raise ModelError(f"only one of the adapters adapts {module}", where=other.folder, fix=_FIX)
    for module in first.parts:
        if (mine := first.shape(module)) != (theirs := other.shape(module)):
            raise ModelError(f"{module} has shapes {mine} and {theirs}", where=other.folder, fix=_FIX)


def _base_weight(layers: Mapping[str, Any], module: str, adapter: _Adapter) -> Tensor:
    """Return the weight of the base's linear layer `module`, in float64. Raises ModelError for another shape."""
    weight = getattr(layers.get(module), "weight", None)
    if weight is None or tuple(weight.shape) != adapter.shape(module):
        raise ModelError(f"the base has no layer {module} of that shape", where=adapter.folder, fix=_FIX)
    return weight.detach().double()


def _sum_products(
    used: Sequence[tuple[float, _Adapter]], module: str, weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the weighted sum as factors [out, ranks] and [ranks, in]; and c [out], the factors of the base's rows, if
    the base's `weight` is given (DoRA)."""
    lefts, rights, rows = [], [], None
    for share, one in used:
        b, a = one.factors(module)
        if weight is not None:
            own = torch.ones(len(weight), dtype=torch.float64)
            if one.dora:
                own = one.parts[module]["lora_magnitude_vector"].double() / (weight + b @ a).norm(dim=1)
            rows = share * own if rows is None else rows + share * own
            b = own[:, None] * b
        lefts.append(share * b)
        rights.append(a)
    return torch.cat(lefts, 1), torch.cat(rights), rows


def _approximate(
    left: Tensor, right: Tensor, rank: int, scaling: float, generator: torch.Generator
) -> tuple[Tensor, Tensor, float, float]:
    """Return B and A of the best approximation of left @ right with `rank` and `scaling`, and the squared norms of what
    it leaves out, and of the whole."""
    u, values, v = _singular_parts(left, right)
    # A singular value below rounding would make a row and a column near 0, which training cannot change.
    n = min(rank, int((values > values.max() * torch.finfo(torch.float32).eps).sum()))
    root = (values[:n] / scaling).sqrt()
    b, into = torch.zeros(len(left), rank, dtype=torch.float64), right.shape[1]
    a = torch.randn(rank, into, generator=generator, dtype=torch.float64) / (3 * into) ** 0.5
    b[:, :n], a[:n] = u[:, :n] * root, root[:, None] * v[:n]
    return b, a, values[n:].square().sum().item(), values.square().sum().item()


def _singular_parts(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the singular value decomposition of left @ right, without that product: u [out, n], values [n], v [n,
    in]."""
    outer, core = torch.linalg.qr(left)
    inner, other = torch.linalg.qr(right.T)
    u, values, v = torch.linalg.svd(core @ other.T, full_matrices=False)
    return outer @ u, values, v @ inner.T
