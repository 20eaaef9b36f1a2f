"""Merge specialists in parameter space (section 2.6): theta = sum_k w_k theta_k, or by task vectors.

Checkpoints are read and written in chunks of some million numbers, so that no shard of them is held in memory, and the
next chunk is read while one is merged.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from flywheel.policy import checkpoint
from flywheel.policy.torch_threads import use_one_core_in_thread
from flywheel.training.merge_methods import LINEAR, Cut, MergeMethod, draw_mask, mix_task_vectors
from flywheel.utils.errors import BadInput, ModelError
from flywheel.utils.files import atomic_folder, disk_full_errors, remove_unfinished

if TYPE_CHECKING:
    from flywheel.training.adapter_merging import MergedAdapter

# Files that must be equal besides the tensors, and entries in them that may differ: the library's own notes.
_ALIKE = ("config.json", "preprocessor_config.json", "tokenizer.json")
_INCIDENTAL = frozenset({"_name_or_path", "transformers_version", "processor_class", "torch_dtype", "dtype"})
_ONE = "merge checkpoints that were trained from one"
# Types of safetensors that are merged; tensors of others must be equal.
_FLOATS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
_CHUNK = 1 << 20  # numbers
_SLICE = 1 << 15  # numbers that are computed in float64 at once, which a core's cache holds
_WIDEST = 8  # bytes of a number
_HEADER_METADATA = "__metadata__"


@dataclass(frozen=True)
class _Entry:
    """Say where a tensor lies. start, stop: its bytes in `file`."""

    file: Path
    kind: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class _CheckpointTensors:
    """Read the tensors of a checkpoint by name, in chunks, from one file or shards."""

    def __init__(self, folder: Path, opened: ExitStack) -> None:
        """List the tensors, and open the files while `opened` is. Raises ModelError for a file that cannot be read, or
        a tensor that two files hold."""
        self.folder, self.files = folder, checkpoint.list_weight_files(folder)
        self.entries: dict[str, _Entry] = {}
        self._opened = {file: opened.enter_context(file.open("rb", buffering=0)) for file in self.files}
        # One for the chunk that is merged, one for that which is read meanwhile.
        self._buffers = [torch.empty(_CHUNK * _WIDEST, dtype=torch.uint8) for _ in range(2)]
        for file in self.files:
            for name, entry in _read_header(file)[1].items():
                if name in self.entries:
                    raise ModelError(f"two files hold {name}", where=folder, fix="copy the whole checkpoint again")
                self.entries[name] = entry

    def read(self, name: str, first: int, last: int, buffer: int) -> Tensor:
        """Read the numbers [first, last) of a tensor, at most `_CHUNK` of them, as a vector; bytes where it is of no
        type of `_FLOATS`. buffer: 0 or 1, which holds them until it is read into again."""
        entry = self.entries[name]
        width = (entry.stop - entry.start) // entry.size
        whole = self._buffers[buffer][: (last - first) * width]
        there, offset = memoryview(whole.numpy()), entry.start + first * width
        while there:
            if not (count := os.preadv(self._opened[entry.file].fileno(), [there], offset)):
                raise ModelError("the file has become shorter while it was read", where=entry.file)
            there, offset = there[count:], offset + count
        return whole.view(_FLOATS[entry.kind]) if entry.kind in _FLOATS else whole

    def read_whole(self, name: str) -> Iterator[Tensor]:
        """Yield a tensor from its beginning, chunk by chunk, in buffer 1."""
        for first, last in _chunks(self.entries[name]):
            yield self.read(name, first, last, 1)


def _read_header(file: Path) -> tuple[dict[str, Any], dict[str, _Entry]]:
    """Return the header of a safetensors file as it is, and its tensors in the order in which they lie there. Raises
    ModelError for a file that cannot be read."""
    try:
        with safe_open(file, framework="pt"):  # which checks the header and the length of the file
            pass
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(length))
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read the checkpoint: {error}", where=file) from error
    entries = {}
    for name, told in header.items():
        if name != _HEADER_METADATA:
            start, stop = (8 + length + place for place in told["data_offsets"])
            entries[name] = _Entry(file, told["dtype"], tuple(told["shape"]), start, stop)
    return header, dict(sorted(entries.items(), key=lambda one: one[1].start))


def _chunks(entry: _Entry) -> Iterator[tuple[int, int]]:
    for first in range(0, entry.size, _CHUNK):
        yield first, min(first + _CHUNK, entry.size)


def merge_checkpoints(
    folders: Sequence[Path], weights: Sequence[float], out: Path, rank: int | None = None, method: MergeMethod = LINEAR
) -> MergedAdapter | None:
    """Merge checkpoints into the folder `out`: by default their weighted mean, theta = sum_k w_k theta_k (section 2.6).

    folders: of the checkpoints; other files than weights are copied from the first. Adapters are merged by
    `merge_adapters`, whose result is returned; else None is. weights: one per checkpoint, 0 or more, sum 1. out:
    written whole or not at all, replaced where it exists; missing parent folders are made, and unfinished folders of a
    killed call are removed. rank: of a merged adapter, at least 1; None: the exact sum. method: the mean, or one of
    `merge_methods`, for whole checkpoints alone.

    It is computed in float64 and stored in the checkpoints' dtype, in shards like the first checkpoint's; memory holds
    two chunks of each. Integer tensors must be equal. Raises BadInput for no checkpoints, another number of weights,
    weights that are not finite, are negative or do not sum to 1, and a rank or a method that the checkpoints are not
    merged by; ModelError for a checkpoint that cannot be read, checkpoints with different tensors, shapes, dtypes or
    configurations, a mix of adapters and whole checkpoints, a tensor that is not finite, and a result that the dtype
    cannot hold; DiskFull, and as `merge_adapters`.
    """
    if len(folders) != len(weights) or not folders:
        raise BadInput(f"{len(folders)} checkpoints but {len(weights)} weights", where="merge")
    if not (min(weights) >= 0 and abs(sum(weights) - 1) <= 1e-6):  # so that NaN is refused too
        raise BadInput(f"weights {list(weights)} must be 0 or more and sum to 1", where="merge.weights")
    adapters = [folder for folder in folders if checkpoint.is_adapter(folder)]
    fix = "make it whole first: flywheel model merge-adapter"
    if adapters and (whole := next((folder for folder in folders if folder not in adapters), None)):
        raise ModelError(f"it is an adapter, and {whole} is a whole checkpoint", where=adapters[0], fix=fix)
    if adapters and method.name != "linear":
        raise BadInput(f"adapters are not merged by {method.name}", where=adapters[0], fix=fix)
    if adapters:
        remove_unfinished(out.parent, out.name)
        from flywheel.training.adapter_merging import merge_adapters  # imports transformers, seconds of a core

        return merge_adapters(folders, weights, out, rank)
    if rank is not None:
        raise BadInput(f"whole checkpoints are not merged to a rank ({rank})", where="rank", fix="leave the rank out")
    with ExitStack() as opened:
        models = [_CheckpointTensors(folder, opened) for folder in folders]
        base = None if method.base is None else _CheckpointTensors(method.base, opened)
        for other in models[1:]:
            _same_tensors(models[0], other)
            _same_settings(folders[0], other.folder)
        if base:
            _same_tensors(models[0], base)
            # Training writes a configuration with defaults that the one it began from may lack.
            _same_settings(folders[0], base.folder, shared_alone=True)
        merge = _Merge(models, weights, base, method)
        remove_unfinished(out.parent, out.name)
        with disk_full_errors(out), atomic_folder(out) as folder:
            shutil.copytree(folders[0], folder, ignore=shutil.ignore_patterns("*.safetensors"), dirs_exist_ok=True)
            # Slices are small: threads that share one would wait for each other longer than they work.
            with ThreadPoolExecutor(1, "merge", use_one_core_in_thread) as thread:
                for file in models[0].files:
                    with (folder / file.name).open("wb", buffering=0) as written:
                        thread.submit(merge.write_file, file, written).result()
    return None


class _Merge:
    """Merge checkpoints that were found to fit together, a file after the other."""

    def __init__(
        self,
        models: Sequence[_CheckpointTensors],
        weights: Sequence[float],
        base: _CheckpointTensors | None,
        method: MergeMethod,
    ) -> None:
        self._models, self._weights, self._base, self._method = models, weights, base, method
        self._all = [*models, *([base] if base else [])]
        # One for the chunk that is merged, one for that which is written meanwhile.
        self._merged = [torch.empty(_CHUNK * _WIDEST, dtype=torch.uint8) for _ in range(2)]

    def write_file(self, file: Path, out: BinaryIO) -> None:
        """Write the merge of the tensors that lie in `file` of the first checkpoint to `out`. Raises ModelError for one
        that is not finite, whose result the dtype cannot hold, or that is no float and differs; OSError."""
        header, entries = _read_header(file)
        header[_HEADER_METADATA] = {**header.get(_HEADER_METADATA, {}), "format": "pt"}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        out.write(len(text).to_bytes(8, "little") + text)
        pieces = [(name, first, last) for name, entry in entries.items() for first, last in _chunks(entry)]
        cuts: list[Cut] = []
        with ThreadPoolExecutor(2) as pool:
            coming: Future | None = None
            writing: Future | None = None
            for place, (name, first, last) in enumerate(pieces):
                if self._method.trims and not first and entries[name].kind in _FLOATS:
                    # It reads the whole tensor into the buffers of the chunk that would come next.
                    cuts = [self._cut(model, name) for model in self._models]
                    coming = None
                buffer = place % 2
                parts = coming.result() if coming else self._read(name, first, last, buffer)
                following = pieces[place + 1] if place + 1 < len(pieces) else None
                coming = None
                if following and not (self._method.trims and not following[1]):
                    coming = pool.submit(self._read, *following, 1 - buffer)
                merged = self._merge_chunk(name, first, parts, cuts, self._merged[buffer])
                if writing:
                    writing.result()
                writing = pool.submit(_write_all, out, merged)
            if writing:
                writing.result()

    def _read(self, name: str, first: int, last: int, buffer: int) -> list[Tensor]:
        return [model.read(name, first, last, buffer) for model in self._all]

    def _cut(self, model: _CheckpointTensors, name: str) -> Cut:
        def deltas() -> Iterator[Tensor]:
            for theta, base in zip(model.read_whole(name), self._base.read_whole(name), strict=True):
                for part, start in zip(theta.split(_SLICE), base.split(_SLICE), strict=True):
                    yield part.double().sub_(start)

        return Cut(deltas, model.entries[name].size, self._method.density)

    def _merge_chunk(
        self, name: str, first: int, parts: Sequence[Tensor], cuts: Sequence[Cut], buffer: Tensor
    ) -> Tensor:
        """Return the merge of a chunk, which lies in `buffer`."""
        kind = self._models[0].entries[name].kind
        merged = buffer[: parts[0].nbytes].view(parts[0].dtype)
        if kind not in _FLOATS:
            if any(not torch.equal(parts[0], other) for other in parts[1:]):
                raise ModelError(f"{name} is not a float and differs between the checkpoints", where="merge")
            return merged.copy_(parts[0])
        if self._base is None:
            sum_weighted(parts, self._weights, merged)
        else:
            self._add_task_vectors(name, first, parts, cuts, merged)
        # Infinity and NaN of any part are still in the merge, and in its sum; which may overflow, so all is looked at.
        narrow = torch.float32 if merged.dtype.itemsize < 4 else None
        if not math.isfinite((merged.float() if kind.startswith("F8") else merged).sum(dtype=narrow).item()):
            self._check_finite(name, parts, merged)
        return merged

    def _add_task_vectors(
        self, name: str, first: int, parts: Sequence[Tensor], cuts: Sequence[Cut], merged: Tensor
    ) -> None:
        method, masks = self._method, []
        if method.drops:
            source = (method.seed, name, first)
            masks = [draw_mask(len(merged), method.density, *source, k) for k in range(len(self._models))]
        for begin in range(0, len(merged), _SLICE):
            *thetas, base = (part[begin : begin + _SLICE].to(torch.float64, copy=True) for part in parts)
            deltas = [theta.sub_(base) for theta in thetas]
            if method.trims:
                deltas = [cut.keep(delta) for cut, delta in zip(cuts, deltas, strict=True)]
            for delta, mask in zip(deltas, masks):  # noqa: B905 (no masks: all stays)
                delta.mul_(mask[begin : begin + _SLICE]).div_(method.density)
            mixed = mix_task_vectors(deltas, self._weights, method.elects)
            merged[begin : begin + _SLICE] = base.add_(mixed.mul_(method.scaling))

    def _check_finite(self, name: str, parts: Sequence[Tensor], merged: Tensor) -> None:
        for model, part in zip(self._all, parts, strict=True):
            if not torch.isfinite(part.double()).all():
                raise ModelError(f"{name} is not finite", where=model.folder, fix="train that specialist again")
        if not torch.isfinite(merged.double()).all():
            what = "mean" if self._base is None else "merge"
            raise ModelError(f"the {what} of {name} does not fit into {merged.dtype}", where="merge")


def sum_weighted(parts: Sequence[Tensor], weights: Sequence[float], out: Tensor) -> None:
    """Write sum_k w_k part_k, computed in float64, to `out`. parts: vectors of the length and the type of `out`."""
    total = torch.empty(min(_SLICE, len(out)), dtype=torch.float64)
    for first in range(0, len(out), _SLICE):
        sums = total[: min(_SLICE, len(out) - first)]
        for place, (part, weight) in enumerate(zip(parts, weights, strict=True)):
            wide = part[first : first + _SLICE].double()
            if place:
                sums.add_(wide, alpha=weight)
            else:
                torch.mul(wide, weight, out=sums)
        out[first : first + _SLICE] = sums


def _write_all(out: BinaryIO, tensor: Tensor) -> None:
    left = memoryview(tensor.view(torch.uint8).numpy())
    while left:
        left = left[out.write(left) :]


def _same_tensors(first: _CheckpointTensors, other: _CheckpointTensors) -> None:
    for name in sorted(first.entries.keys() | other.entries.keys()):
        if name not in first.entries or name not in other.entries:
            raise ModelError(f"only one of the checkpoints has {name}", where=other.folder, fix=_ONE)
        one, two = first.entries[name], other.entries[name]
        for what, mine, theirs in (("shapes", one.shape, two.shape), ("types", one.kind, two.kind)):
            if mine != theirs:
                raise ModelError(f"{name} has {what} {mine} and {theirs}", where=other.folder, fix=_ONE)


def _same_settings(first: Path, other: Path, shared_alone: bool = False) -> None:
    """Raise ModelError where the files with the model's configuration differ. shared_alone: compare the entries of
    config.json that both have."""
    for file in _ALIKE[:1] if shared_alone else _ALIKE:
        there = [(folder / file).is_file() for folder in (first, other)]
        if shared_alone and not all(there):
            continue
        if there[0] != there[1]:
            raise ModelError(f"only one of the checkpoints has {file}", where=other, fix=_ONE)
        if all(there):
            mine, theirs = (checkpoint.read_json_object(folder / file) for folder in (first, other))
            if entry := _first_difference(mine, theirs, shared_alone):
                raise ModelError(f"{file} differs from the first checkpoint's in {entry}", where=other, fix=_ONE)


def _first_difference(one: Any, other: Any, shared_alone: bool, path: str = "") -> str:
    """Return the path of the first entry in which two JSON values differ; "" where they are equal. shared_alone: leave
    out entries that one of them lacks. path: of the values within their file."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for name in sorted((one.keys() | other.keys()) - _INCIDENTAL):
            below = f"{path}.{name}".lstrip(".")
            if name not in one or name not in other:
                if shared_alone:
                    continue
                return below
            if found := _first_difference(one[name], other[name], shared_alone, below):
                return found
        return ""
    return "" if one == other else path or "its value"
