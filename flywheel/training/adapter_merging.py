"""Merge specialists that are adapters of one base: W + sum_k w_k s_k B_k A_k, the weighted sum of their products.

The sum of products is one product, of the factors side by side: it needs no approximation, and has the rank of all of
them together. The best approximation of a rank (Eckart and Young 1936) comes from the small core between them.

A DoRA (Liu et al. 2024) has rows c_k (W + s_k B_k A_k), c_k = m_k / |W + s_k B_k A_k|. The mean of several is again a
DoRA, exactly: with c = sum_k w_k c_k it is c (W + (sum_k w_k c_k s_k B_k A_k) / c).
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
    adapter_modules,
    adapter_scaling,
    name_adapter_tensor,
    read_adapter_tensors,
    write_adapter,
)
from flywheel.policy.model import load_model, stored_dtype
from flywheel.utils.errors import ModelError

_FIX = "merge adapters that were trained on one base with the same targets"


@dataclass(frozen=True)
class MergedAdapter:
    """Tell what was written. rank: of each module's product. error: what that rank leaves out of the exact sum, in
    Frobenius norms over all modules, relative to the sum; 0 for the exact one. worst, worst_error: the module that
    loses most by itself, and how much."""

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
    """An adapter's factors by module, as they are multiplied: B has the scaling within."""

    def __init__(self, folder: Path) -> None:
        """Raises ModelError for one that cannot be read, or whose parts do not belong together."""
        self.folder, self.config = folder, checkpoint.read_adapter_config(folder)
        self.base, self.rank = checkpoint.adapter_base_digest(folder), self.config["r"]
        self.tensors = read_adapter_tensors(folder)
        self.parts = dict(adapter_modules(self.tensors, folder))
        self.scaling, self.dora = adapter_scaling(self.config), bool(self.config.get("use_dora"))
        for module, parts in self.parts.items():
            a, b, size = parts["lora_A"], parts["lora_B"], parts.get("lora_magnitude_vector")
            whole = a.ndim == b.ndim == 2 and (a.shape[0], b.shape[1]) == (self.rank, self.rank)
            if not whole or (size is not None) != self.dora or (self.dora and size.shape != b.shape[:1]):
                shapes = ", ".join(f"{kind} {tuple(part.shape)}" for kind, part in parts.items())
                what = f"{module} has {shapes}: no {'DoRA' if self.dora else 'LoRA'} of rank {self.rank}"
                raise ModelError(what, where=folder, fix="copy the adapter again")

    def factors(self, module: str) -> tuple[Tensor, Tensor]:
        """B [out, rank] and A [rank, in] of a module, in float64."""
        parts = self.parts[module]
        return self.scaling * parts["lora_B"].double(), parts["lora_A"].double()

    def shape(self, module: str) -> tuple[int, int]:
        parts = self.parts[module]
        return parts["lora_B"].shape[0], parts["lora_A"].shape[1]


def merge_adapters(
    folders: Sequence[Path], weights: Sequence[float], out: Path, rank: int | None = None
) -> MergedAdapter:
    """Write the weighted sum of adapters as one adapter of their base to the folder `out`; tell its rank and error.

    folders: of the adapters, LoRA or DoRA, of any ranks and scalings. weights: one an adapter, 0 or more, sum 1. out:
    written whole or not at all. rank: None writes the exact sum, with the ranks of all that have a weight together and
    the scaling 1; a number the best approximation of that rank, with alpha and rsLoRA as the first that has a weight,
    so that training goes on with it: both factors get the root of each singular value, and where there are fewer of
    these than the rank, the rest of it begins as a new adapter does. One adapter alone comes out as it is. Raises
    ModelError for adapters of another base, with other modules or shapes, that cannot be read or are not finite, or a
    sum that is not; DiskFull.
    """
    base = checkpoint.base_checkpoint(folders[0])
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
    """Return by how much two adapters differ: |B A - B' A'| / |B A| in Frobenius norms over all modules, scalings
    within.

    one, other: their folders. None where they cannot be compared by their products: of another base, with other
    modules or shapes, a DoRA, or `one` without effect. Raises ModelError for one that cannot be read.
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
    """A linear layer's weight, in float64."""
    weight = getattr(layers.get(module), "weight", None)
    if weight is None or tuple(weight.shape) != adapter.shape(module):
        raise ModelError(f"the base has no layer {module} of that shape", where=adapter.folder, fix=_FIX)
    return weight.detach().double()


def _sum_products(
    used: Sequence[tuple[float, _Adapter]], module: str, weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The sum as factors [out, ranks], [ranks, in]; and c [out], by which rows of the base are multiplied, where its
    weight is given."""
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
    """Factors of the best approximation divided by the scaling; the squared norms of what it leaves out, and of all."""
    u, values, v = _singular_parts(left, right)
    # What is below rounding would be two columns near 0, which no training moves.
    n = min(rank, int((values > values.max() * torch.finfo(torch.float32).eps).sum()))
    root = (values[:n] / scaling).sqrt()
    b, into = torch.zeros(len(left), rank, dtype=torch.float64), right.shape[1]
    a = torch.randn(rank, into, generator=generator, dtype=torch.float64) / (3 * into) ** 0.5
    b[:, :n], a[:n] = u[:, :n] * root, root[:, None] * v[:n]
    return b, a, values[n:].square().sum().item(), values.square().sum().item()


def _singular_parts(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The singular value decomposition of left @ right, which is never made: u [out, n], values [n], v [n, in]."""
    outer, core = torch.linalg.qr(left)
    inner, other = torch.linalg.qr(right.T)
    u, values, v = torch.linalg.svd(core @ other.T, full_matrices=False)
    return outer @ u, values, v @ inner.T
