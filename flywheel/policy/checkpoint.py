"""Find checkpoint folders, and check them before anything is loaded.

The library's own errors for a broken checkpoint are many, long and late (after gigabytes were read), so what can be
seen from names, sizes and headers is checked here first, each fault by name.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from flywheel.utils.errors import ModelError
from flywheel.utils.files import cached_sha256

# model_type of the architectures that place images in a sequence in the same way.
FAMILY = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
_INDEX = "model.safetensors.index.json"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_WANTED = ["*.json", "*.safetensors", "*.jinja", "*.txt"]  # of a repository: no weights in other formats
_COPY = "copy the whole checkpoint"


def resolve_checkpoint(base: Path | str, root: Path | None = None) -> Path:
    """Return the folder of a checkpoint: of a path, or the snapshot of a Hugging Face repository.

    base: a path, or a repository's name (`owner/name`), which is looked up in the hub's cache on this machine and
    fetched where it is not there. What begins with the name of a folder that is there (`models/none`) is a path, there
    or not. root: the folder that relative paths count from; None: the working directory. Raises ModelError where such a
    repository is not within reach.
    """
    folder = (root or Path()) / base
    if folder.exists() or folder.parent.exists() or not _HUB_NAME.fullmatch(str(base)):
        return folder
    from huggingface_hub import snapshot_download  # takes a second to import

    try:
        return Path(snapshot_download(str(base), allow_patterns=_WANTED))
    except Exception as error:  # no network, no such repository, no permission: the hub has a class for each
        what = f"no such model folder, and as a Hugging Face name {str(base)!r} cannot be fetched: "
        fix = "give the folder of a checkpoint, or a name that the hub knows"
        raise ModelError(what + summarise_error(error), where="policy.base", fix=fix) from None


def check_checkpoint(folder: Path | str, *, weights: bool = True) -> dict[str, Any]:
    """Check that a checkpoint's folder is whole, from headers alone, and return its config.json.

    folder: of the checkpoint. weights: False looks at no weights. Raises ModelError for a folder that is not there, or
    without configuration, weights, tokeniser or image settings, for a damaged config.json or index of shards, a model
    of another family, a missing shard, and a weights file that is cut off or no safetensors file.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ModelError("no such model folder", where=folder, fix="set policy.base to a checkpoint's folder")
    if not (folder / "config.json").is_file():
        raise ModelError("not a model folder: it has no config.json", where=folder, fix="give policy.base a checkpoint")
    config = read_json_object(folder / "config.json")
    kind = config.get("model_type")
    if kind not in FAMILY:
        what = f"a model of the architecture {str(kind)[:40]!r} cannot see screens here"
        raise ModelError(what, where=folder, fix=f"give policy.base one of the family {', '.join(FAMILY)}")
    if weights:
        count_parameters(folder)
    merges = all((folder / name).is_file() for name in ("vocab.json", "merges.txt"))
    if not (merges or (folder / "tokenizer.json").is_file()):
        raise ModelError("the model folder has no tokenizer.json", where=folder, fix=_COPY)
    if not (folder / "preprocessor_config.json").is_file():
        raise ModelError("the model folder has no preprocessor_config.json", where=folder, fix=_COPY)
    return config


def checkpoint_digest(folder: Path | str) -> str:
    """Name the weights in `folder`: the first 16 hexadecimal digits of the SHA-256 over its safetensors files, which
    are read once in a process, and again where they change. Raises ModelError as `weight_files`."""
    return cached_sha256(*weight_files(folder))[:16]


def weight_files(folder: Path | str) -> list[Path]:
    """List the safetensors files of the checkpoint in `folder`, sorted by name: those of its index, where it has one.
    Raises ModelError where there are none, the index is damaged or names a shard that is not there."""
    folder = Path(folder)
    if (folder / _INDEX).is_file():
        shards = read_json_object(folder / _INDEX).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise ModelError(f"{_INDEX} names no shards", where=folder, fix="copy it again")
        files = [folder / name for name in sorted({str(name) for name in shards.values()})]
        missing = [file.name for file in files if not file.is_file()]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise ModelError(f"the shard {missing[0]} is missing{more}", where=folder, fix=_COPY)
        return files
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError("the model folder has no safetensors file", where=folder, fix=_COPY)
    return files


def read_json_object(path: Path) -> dict[str, Any]:
    """Read the JSON object in the file `path`. Raises ModelError naming the file where it is missing or holds none."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        what = f"{path.name} is not JSON: {summarise_error(error)}"
        raise ModelError(what, where=path.parent, fix="copy it again") from None
    if not isinstance(raw, dict):
        raise ModelError(f"{path.name} is not a JSON object", where=path.parent, fix="copy it again")
    return raw


def count_parameters(folder: Path | str) -> int:
    """Count the numbers in the checkpoint's weights files, from their headers. folder: its folder.

    Raises ModelError as `weight_files`, and for a file that is cut off or no safetensors file.
    """
    return sum(_check_header(file) for file in weight_files(folder))


def _check_header(file: Path) -> int:
    """Numbers in a safetensors file. It begins with its header's length (8 bytes) and the header, which has the shape
    of each tensor and where it ends; the last one ends where the file does."""
    size = file.stat().st_size
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if not 2 <= length <= min(size, 2**27):
                raise ValueError
            header = json.loads(stream.read(length))
        tensors = [tensor for name, tensor in header.items() if name != "__metadata__"]
        wanted = 8 + length + max((tensor["data_offsets"][1] for tensor in tensors), default=0)
        numbers = sum(math.prod(tensor["shape"]) for tensor in tensors)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        raise ModelError(f"{file.name} is not a safetensors file", where=file.parent, fix="copy it again") from None
    if size < wanted:
        what = f"{file.name} is cut off: it has {size} bytes of {wanted}"
        raise ModelError(what, where=file.parent, fix="copy it again")
    return numbers


def summarise_error(error: Exception) -> str:
    """Return the first line of a library's error that is not blank, 300 characters of it at most; the name of its class
    where it says nothing."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return (lines[0].strip() if lines else type(error).__name__)[:300]
