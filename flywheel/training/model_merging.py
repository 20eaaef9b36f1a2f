"""Merge specialists in parameter space (section 2.6): theta = sum_k w_k theta_k."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from flywheel.policy import checkpoint
from flywheel.utils.errors import BadInput, ModelError
from flywheel.utils.files import atomic_folder, disk_full_errors, remove_unfinished

if TYPE_CHECKING:
    from flywheel.training.adapter_merging import MergedAdapter

# Files that must be equal besides the tensors, and entries in them that may differ: the library's own notes.
_ALIKE = ("config.json", "preprocessor_config.json", "tokenizer.json")
_INCIDENTAL = frozenset({"_name_or_path", "transformers_version", "processor_class", "torch_dtype", "dtype"})
_ONE = "merge checkpoints that were trained from one"


class _CheckpointTensors:
    """Read the tensors of a checkpoint by name, from one file or shards, one tensor at a time."""

    def __init__(self, folder: Path) -> None:
        """List the tensors. Raises ModelError for a file that cannot be read, or a tensor that two files hold."""
        self.folder, self.files = folder, checkpoint.list_weight_files(folder)
        self.file_of: dict[str, Path] = {}
        for file in self.files:
            with _open_weights(file) as opened:
                for name in opened.keys():  # noqa: SIM118 - not a mapping
                    if name in self.file_of:
                        raise ModelError(f"two files hold {name}", where=folder, fix="copy the whole checkpoint again")
                    self.file_of[name] = file

    def tensor(self, name: str) -> Tensor:
        """Read a tensor. Raises ModelError where it is not finite."""
        with _open_weights(self.file_of[name]) as opened:
            found = opened.get_tensor(name)
        if found.is_floating_point() and not torch.isfinite(found.float()).all():
            raise ModelError(f"{name} is not finite", where=self.folder, fix="train that specialist again")
        return found

    def shape(self, name: str) -> tuple[tuple[int, ...], str]:
        """Return shape and dtype of a tensor, from the file's header."""
        with _open_weights(self.file_of[name]) as opened:
            part = opened.get_slice(name)
            return tuple(part.get_shape()), str(part.get_dtype())


def merge_checkpoints(
    folders: Sequence[Path], weights: Sequence[float], out: Path, rank: int | None = None
) -> MergedAdapter | None:
    """Write the weighted mean of checkpoints, theta = sum_k w_k theta_k, to the folder `out` (section 2.6).

    folders: of the checkpoints; other files than weights are copied from the first. Adapters are merged by
    `merge_adapters`, whose result is returned; else None is. weights: one per checkpoint, 0 or more, sum 1. out:
    written whole or not at all, replaced where it exists; missing parent folders are made, and unfinished folders of a
    killed call are removed. rank: of a merged adapter; None: the exact sum.

    The sum is computed in float64 and stored in the checkpoints' dtype, in shards like the first checkpoint's: memory
    holds one shard and one tensor. Integer tensors must be equal. Raises BadInput for no checkpoints, another number of
    weights, weights that are not finite, are negative or do not sum to 1, and a rank with whole checkpoints; ModelError
    for a checkpoint that cannot be read, checkpoints with different tensors, shapes, dtypes or configurations, a mix of
    adapters and whole checkpoints, a tensor that is not finite, and a mean that the dtype cannot hold; DiskFull, and as
    `merge_adapters`.
    """
    if len(folders) != len(weights) or not folders:
        raise BadInput(f"{len(folders)} checkpoints but {len(weights)} weights", where="merge")
    if not (min(weights) >= 0 and abs(sum(weights) - 1) <= 1e-6):  # so that NaN is refused too
        raise BadInput(f"weights {list(weights)} must be 0 or more and sum to 1", where="merge.weights")
    adapters = [folder for folder in folders if checkpoint.is_adapter(folder)]
    if adapters and (whole := next((folder for folder in folders if folder not in adapters), None)):
        fix = "make it whole first: flywheel model merge-adapter"
        raise ModelError(f"it is an adapter, and {whole} is a whole checkpoint", where=adapters[0], fix=fix)
    if adapters:
        remove_unfinished(out.parent, out.name)
        from flywheel.training.adapter_merging import merge_adapters  # imports transformers, seconds of a core

        return merge_adapters(folders, weights, out, rank)
    if rank is not None:
        raise BadInput(f"whole checkpoints are not merged to a rank ({rank})", where="rank", fix="leave the rank out")
    models = [_CheckpointTensors(folder) for folder in folders]
    for other in models[1:]:
        _same_tensors(models[0], other)
        _same_settings(folders[0], other.folder)
    remove_unfinished(out.parent, out.name)
    with disk_full_errors(out), atomic_folder(out) as folder:
        shutil.copytree(folders[0], folder, ignore=shutil.ignore_patterns("*.safetensors"), dirs_exist_ok=True)
        for file in models[0].files:
            names = [name for name, holder in models[0].file_of.items() if holder == file]
            merged = {name: _mean_tensor(name, models, weights) for name in names}
            save_file(merged, folder / file.name, metadata={"format": "pt"})
    return None


def _open_weights(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read the checkpoint: {error}", where=file) from error


def _same_tensors(first: _CheckpointTensors, other: _CheckpointTensors) -> None:
    for name in sorted(first.file_of.keys() | other.file_of.keys()):
        if name not in first.file_of or name not in other.file_of:
            raise ModelError(f"only one of the checkpoints has {name}", where=other.folder, fix=_ONE)
        for what, mine, theirs in zip(("shapes", "types"), first.shape(name), other.shape(name), strict=True):
            if mine != theirs:
                raise ModelError(f"{name} has {what} {mine} and {theirs}", where=other.folder, fix=_ONE)


def _same_settings(first: Path, other: Path) -> None:
    """Raise ModelError where the files with the model's configuration differ."""
    for file in _ALIKE:
        if (first / file).is_file() != (other / file).is_file():
            raise ModelError(f"only one of the checkpoints has {file}", where=other, fix=_ONE)
        if (first / file).is_file():
            mine, theirs = (checkpoint.read_json_object(folder / file) for folder in (first, other))
            if entry := _first_difference(mine, theirs):
                raise ModelError(f"{file} differs from the first checkpoint's in {entry}", where=other, fix=_ONE)


def _first_difference(one: Any, other: Any, path: str = "") -> str:
    """Return the path of the first entry in which two JSON values differ; "" where they are equal. path: of the values
    within their file."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for name in sorted((one.keys() | other.keys()) - _INCIDENTAL):
            below = f"{path}.{name}".lstrip(".")
            if name not in one or name not in other:
                return below
            if found := _first_difference(one[name], other[name], below):
                return found
        return ""
    return "" if one == other else path or "its value"


def _mean_tensor(name: str, models: Sequence[_CheckpointTensors], weights: Sequence[float]) -> Tensor:
    first = models[0].tensor(name)
    if not first.is_floating_point():
        if any(not torch.equal(first, other.tensor(name)) for other in models[1:]):
            raise ModelError(f"{name} is not a float and differs between the checkpoints", where="merge")
        return first
    total = weights[0] * first.double()
    for weight, model in zip(weights[1:], models[1:], strict=True):
        total += weight * model.tensor(name).double()
    mean = total.to(first.dtype)
    if not torch.isfinite(mean.float()).all():
        raise ModelError(f"the mean of {name} does not fit into {first.dtype}", where="merge")
    return mean
