"""Merge specialists in parameter space (section 2.6): theta = sum_k w_k theta_k."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from flywheel.errors import BadInput, ModelError

_WEIGHTS = "model.safetensors"


def merge(folders: Sequence[Path], weights: Sequence[float], out: Path) -> None:
    """Write to `out` the weighted mean of the checkpoints; what is not a weight is copied from the first.

    The sum is taken in float64 and stored in the first checkpoint's type; integer tensors must be equal. Raises
    BadInput for weights that are negative or do not sum to 1, ModelError for checkpoints of different shape.
    """
    if len(folders) != len(weights) or not folders:
        raise BadInput(f"{len(folders)} checkpoints but {len(weights)} weights", where="merge")
    if min(weights) < 0 or abs(sum(weights) - 1) > 1e-6:
        raise BadInput(f"weights {list(weights)} must be 0 or more and sum to 1", where="merge.weights")
    states = [_load(folder) for folder in folders]
    for folder, state in zip(folders[1:], states[1:], strict=True):
        _same_shape(states[0], state, folder)
    merged = {name: _mean(name, [state[name] for state in states], weights) for name in states[0]}
    temporary = out.with_name(f".{out.name}.merging")
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(folders[0], temporary)
    (temporary / _WEIGHTS).unlink()
    save_file(merged, temporary / _WEIGHTS, metadata={"format": "pt"})
    shutil.rmtree(out, ignore_errors=True)
    temporary.replace(out)


def _load(folder: Path) -> dict[str, Tensor]:
    path = folder / _WEIGHTS
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read the checkpoint: {error}", where=path) from error


def _same_shape(first: dict[str, Tensor], other: dict[str, Tensor], folder: Path) -> None:
    for name in sorted(first.keys() | other.keys()):
        if name not in first or name not in other:
            raise ModelError(f"only one of the checkpoints has {name}", where=folder, fix="merge one architecture")
        if first[name].shape != other[name].shape:
            shapes = f"{tuple(first[name].shape)} and {tuple(other[name].shape)}"
            raise ModelError(f"{name} has shapes {shapes}", where=folder, fix="merge one architecture")


def _mean(name: str, tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    if not tensors[0].is_floating_point():
        if any(not torch.equal(tensors[0], other) for other in tensors[1:]):
            raise ModelError(f"{name} is not a float and differs between the checkpoints", where="merge")
        return tensors[0]
    total = sum(weight * tensor.double() for weight, tensor in zip(weights, tensors, strict=True))
    return total.to(tensors[0].dtype)
