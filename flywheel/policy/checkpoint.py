"""Find checkpoint folders, and check and digest what they hold before anything is loaded.

The library's own errors for a broken checkpoint are many, long and late (after gigabytes were read). So these checks
come first; they need only names, sizes and headers of files, and name each fault.

A folder holds a whole checkpoint, or an adapter (LoRA): PEFT's two files, and `base.json`, which names the adapter's
base checkpoint and the digest of the base's weights. All other files (config.json, tokeniser, image settings) are in
the base's folder.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flywheel.utils.errors import ModelError
from flywheel.utils.files import cached_sha256

# model_type of the supported architectures, which place images in a sequence in the same way.
FAMILY = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
_INDEX = "model.safetensors.index.json"
_HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+")
_CONFIGURATION = ["*.json", "*.jinja", "*.txt"]
_WANTED = [*_CONFIGURATION, "*.safetensors"]  # files to download from a repository: no weights in other formats
_COPY, _AGAIN = "copy the whole checkpoint", "copy it again"
ADAPTER_CONFIG, ADAPTER_WEIGHTS, ADAPTER_BASE = "adapter_config.json", "adapter_model.safetensors", "base.json"


def resolve_checkpoint(base: Path | str, root: Path | None = None, *, weights: bool = True) -> Path:
    """Return the folder of a checkpoint: a path, or the snapshot of a Hugging Face repository, downloaded if needed.

    base: a path, or a repository's name (`owner/name`). Of a repository the newest revision is downloaded into the
    hub's cache on this machine, where that lacks files of it; where the hub cannot be asked, the cached one is taken. A
    name whose first part is an existing folder (`models/none`) is a path. A path is not checked: it may not exist.
    root: the folder that relative paths start from; None: the working directory. weights: False downloads the
    configuration only. Raises ModelError where the repository is neither there nor can be downloaded.
    """
    folder = (root or Path()) / base
    if folder.exists() or folder.parent.exists() or not _HUB_NAME.fullmatch(str(base)):
        return folder
    from huggingface_hub import snapshot_download  # takes a second to import

    try:
        return Path(snapshot_download(str(base), allow_patterns=_WANTED if weights else _CONFIGURATION))
    except Exception as error:  # no network, no such repository, no permission: the hub has a class for each
        what = f"no such model folder, and as a Hugging Face name {str(base)!r} cannot be fetched: "
        fix = "give the folder of a checkpoint, or a name that the hub knows"
        raise ModelError(what + summarise_error(error), where="policy.base", fix=fix) from None


def check_checkpoint(folder: Path | str, *, weights: bool = True) -> dict[str, Any]:
    """Check that a checkpoint's folder is complete, by the headers of its weights; return its config.json.

    folder: of the checkpoint, or of an adapter, whose base is checked too, and whose base's config.json is returned;
    that base is found, and its weights are read, as `find_base_checkpoint` does. weights: False skips the weights.
    Raises ModelError for a folder that does not exist or lacks configuration, weights, tokeniser or image settings, a
    damaged config.json or index of shards, a model of another family, a missing shard, a weights file that is cut off
    or not in safetensors format, and as `read_adapter_config` and `find_base_checkpoint`.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ModelError("no such model folder", where=folder, fix="give the folder of a checkpoint")
    if is_adapter(folder):
        read_adapter_config(folder)
        if weights:
            count_parameters(folder)
        return check_checkpoint(find_base_checkpoint(folder, weights=weights), weights=weights)
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
    """Return the digest of the weights in `folder`, the first 16 hexadecimal digits of a SHA-256.

    It is over the safetensors files; an adapter's digest includes its base's. A process reads the files once, and again
    where they change. Raises ModelError as `list_weight_files`, and for an adapter as `adapter_base_digest`; OSError
    for a file that cannot be read.
    """
    own = cached_sha256(*list_weight_files(folder))
    if is_adapter(folder):
        own = hashlib.sha256(f"{own} on {adapter_base_digest(Path(folder))}".encode()).hexdigest()
    return own[:16]


# Fields of PEFT's adapter_config.json that this project supports, or that do not change the adapter's meaning. All
# others, of which a newer PEFT may have more, must be off (null, false, "none", empty).
_ADAPTER_FIELDS = {
    *("peft_type", "peft_version", "task_type", "base_model_name_or_path", "revision", "inference_mode"),
    *("r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora", "target_modules", "exclude_modules"),
    *("layers_to_transform", "layers_pattern", "init_lora_weights", "loftq_config", "eva_config", "corda_config"),
    *("auto_mapping", "megatron_core", "qalora_group_size", "runtime_config", "ensure_weight_tying"),
}
_OFF = (None, False, "none", "", [], {})
_MOVED_BASE = ("pissa", "olora", "corda", "loftq")  # initialisations of an adapter that change the base's weights


def is_adapter(folder: Path | str) -> bool:
    """Tell whether a folder holds an adapter and not a whole checkpoint; False where it does not exist."""
    return (Path(folder) / ADAPTER_CONFIG).is_file()


@dataclass(frozen=True)
class AdapterBase:
    """Hold which checkpoint an adapter belongs to.

    model: its folder, absolute or relative to the adapter's, or its Hugging Face name. digest: of its weights. config:
    digest of its config.json, as `config_digest` has it; "": not noted.
    """

    model: str
    digest: str
    config: str = ""


def read_adapter_base(folder: Path) -> AdapterBase | None:
    """Read `base.json` in an adapter's folder; None where there is none (PEFT alone wrote the adapter).

    Raises ModelError for a damaged file.
    """
    if not (folder / ADAPTER_BASE).is_file():
        return None
    raw = read_json_object(folder / ADAPTER_BASE)
    model, digest, config = raw.get("model"), raw.get("digest"), raw.get("config", "")
    if not (isinstance(model, str) and model and isinstance(digest, str) and digest and isinstance(config, str)):
        raise ModelError(f"{ADAPTER_BASE} names no model and digest", where=folder, fix=_AGAIN)
    return AdapterBase(model, digest, config)


def read_adapter_config(folder: Path) -> dict[str, Any]:
    """Read adapter_config.json in a LoRA adapter's folder; return PEFT's fields.

    Raises ModelError for a missing or damaged file, an adapter of another kind than LoRA, and, naming it, a field that
    training and merging do not support.
    """
    raw = read_json_object(folder / ADAPTER_CONFIG)
    where = folder / ADAPTER_CONFIG
    if raw.get("peft_type") != "LORA":
        what = f"an adapter of the kind {str(raw.get('peft_type'))[:40]!r} is not understood here"
        raise ModelError(what, where=where, fix="make a LoRA")
    if strange := next((name for name in sorted(raw.keys() - _ADAPTER_FIELDS) if raw[name] not in _OFF), ""):
        what = f"an adapter with {strange} {json.dumps(raw[strange])[:60]} is not understood here"
        by = f" (PEFT {raw['peft_version']} wrote it)" if raw.get("peft_version") else ""
        raise ModelError(what + by, where=where, fix=f"make one without {strange}")
    if str(raw.get("init_lora_weights", "")).lower().startswith(_MOVED_BASE):
        what = f"an adapter that began by {raw['init_lora_weights']} belongs to changed weights of its base"
        raise ModelError(what, where=where, fix="let PEFT convert it to a plain LoRA")
    for field, name in (("r", "rank"), ("lora_alpha", "alpha")):
        value = raw.get(field)
        is_number = isinstance(value, int if field == "r" else int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or (field == "r" and value < 1):
            what = f"{field} is {json.dumps(value)[:60] if field in raw else 'missing'}"
            raise ModelError(f"the adapter has no {name}: {what}", where=where, fix=_AGAIN)
    return raw


def find_base_checkpoint(folder: Path | str, *, weights: bool = True) -> Path:
    """Return the folder of the whole checkpoint: `folder` itself, unchecked, or the base of an adapter.

    A base that is known by its Hugging Face name only is fetched as by `resolve_checkpoint`. Where `base.json` gives
    the digest of the base's weights, or of its config.json, these are read and compared. weights: False downloads the
    configuration only, and does not compare weights that are missing. Raises ModelError for an adapter whose
    `base.json` or adapter_config.json is damaged, or whose base is missing, cannot be downloaded, is an adapter itself
    or, where `base.json` gives a digest, has another config.json or other weights than that, or none.
    """
    folder = Path(folder)
    if not is_adapter(folder):
        return folder
    named = read_adapter_base(folder)
    base = _find_base(folder, named, weights)
    short = os.path.normpath(base)
    if is_adapter(base):
        fix = "merge the lower one first: flywheel model merge-adapter"
        raise ModelError(f"its base, {short}, is an adapter too", where=folder, fix=fix)
    if named is not None and named.config not in ("", found := config_digest(base)):
        now = f"is now {found}" if found else "is gone"
        what = f"the adapter belongs to the config.json {named.config}, and that of its base, {short}, {now}"
        fix = f"bring that file back, or where the change means nothing write the new digest into {ADAPTER_BASE}"
        raise ModelError(what, where=folder, fix=fix)
    if named is None or not (weights or _has_weights(base)):
        return base
    if (found := checkpoint_digest(base)) != named.digest:
        what = f"the adapter belongs to the weights {named.digest}, and its base, {short}, now has {found}"
        raise ModelError(what, where=folder, fix="bring those weights back: an adapter is of no use on others")
    return base


# Fields of config.json that other versions of the library write anew, and that change no number here.
_NO_MATTER = {"transformers_version", "_name_or_path", "architectures", "dtype", "torch_dtype", "use_cache"}


def config_digest(folder: Path) -> str:
    """Return the digest of what config.json in a whole checkpoint's `folder` says of the network.

    16 hexadecimal digits of a SHA-256; "" where there is no such file. The order of its fields, and those that say
    nothing of the network, do not count. Raises ModelError for a damaged file.
    """
    if not (folder / "config.json").is_file():
        return ""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(one) for name, one in value.items() if name not in _NO_MATTER}
        return value

    text = json.dumps(plain(read_json_object(folder / "config.json")), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def find_local_base(folder: Path) -> Path | None:
    """Return the folder of an adapter's base on this machine, unchecked; None where there is none.

    Then the folder does not exist, or the base is known by its Hugging Face name only. folder: the adapter's. A
    relative path in `base.json` counts from it, one in adapter_config.json from the working directory. Raises
    ModelError for a damaged `base.json`, and a missing or damaged adapter_config.json.
    """
    named = read_adapter_base(folder)
    by_peft = str(read_json_object(folder / ADAPTER_CONFIG).get("base_model_name_or_path") or "")
    places = ([folder / named.model] if named else []) + ([Path(by_peft)] if by_peft else [])
    return next((place for place in places if place.is_dir()), None)


def _find_base(folder: Path, named: AdapterBase | None, weights: bool) -> Path:
    if (found := find_local_base(folder)) is not None:
        return found
    by_peft = str(read_json_object(folder / ADAPTER_CONFIG).get("base_model_name_or_path") or "")
    for name in filter(None, (named.model if named else "", by_peft)):
        if _HUB_NAME.fullmatch(name):
            try:
                return resolve_checkpoint(name, weights=weights)
            except ModelError as error:
                what = f"the base of the adapter cannot be had: {error.what}"
                raise ModelError(what, where=folder, fix="fetch it, or name its folder in base.json") from None
    what = f"the base of the adapter, {named.model if named else by_peft or 'not named'}, is not there"
    fix = f"put it there, or name its folder in {ADAPTER_BASE if named else ADAPTER_CONFIG}"
    raise ModelError(what, where=folder, fix=fix)


def _has_weights(folder: Path) -> bool:
    try:
        return bool(list_weight_files(folder))
    except ModelError:
        return False


def adapter_base_digest(folder: Path) -> str:
    """Return the digest of an adapter's base: from `base.json`, or computed from its weights where there is none.

    folder: the adapter's. The digest is as of `checkpoint_digest`. Raises ModelError for a damaged `base.json`; where
    it is computed, also as `find_base_checkpoint` and, for the base, `checkpoint_digest`.
    """
    named = read_adapter_base(folder)
    return named.digest if named else checkpoint_digest(find_base_checkpoint(folder))


def hub_name(folder: Path) -> str:
    """Return the Hugging Face name of a snapshot in the hub's cache; "" for another folder."""
    repository = folder.absolute().parent.parent.name
    is_snapshot = folder.absolute().parent.name == "snapshots" and repository.startswith("models--")
    return repository.removeprefix("models--").replace("--", "/", 1) if is_snapshot else ""


def name_adapter_base(base: Path, folder: Path) -> AdapterBase:
    """Return what `base.json` of an adapter in `folder` is to hold: where its base is, and two digests of it.

    base: folder of the base; a snapshot in the hub's cache is noted by its Hugging Face name, another folder by its
    path relative to `folder`, so that a workspace can be moved. Raises ModelError as `checkpoint_digest` and
    `config_digest`.
    """
    digest, config, base = checkpoint_digest(base), config_digest(base), base.absolute()
    if name := hub_name(base):
        return AdapterBase(name, digest, config)
    outside = len(Path(os.path.commonpath([base, folder.absolute()])).parts) < 2
    place = str(base) if outside else Path(os.path.relpath(base, folder.absolute())).as_posix()
    return AdapterBase(place, digest, config)


def list_weight_files(folder: Path | str) -> list[Path]:
    """List the safetensors files of the checkpoint in `folder`, sorted by name: those of its index, where it has one.

    Raises ModelError where there is no such folder, or no file, or the index is damaged or names a missing shard.
    """
    folder = Path(folder)
    if (folder / _INDEX).is_file():
        shards = read_json_object(folder / _INDEX).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise ModelError(f"{_INDEX} names no shards", where=folder, fix=_AGAIN)
        files = [folder / name for name in sorted({str(name) for name in shards.values()})]
        missing = [file.name for file in files if not file.is_file()]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise ModelError(f"the shard {missing[0]} is missing{more}", where=folder, fix=_COPY)
        return files
    if not folder.is_dir():
        raise ModelError("no such model folder", where=folder, fix="give the folder of a checkpoint")
    if is_adapter(folder) and not (folder / ADAPTER_WEIGHTS).is_file():
        older = folder / "adapter_model.bin"  # a pickle, by PEFT before 0.6
        but = f", but {older.name}, which is not read here" if older.is_file() else ""
        fix = "let a newer PEFT save it: safe_serialization=True" if but else _AGAIN
        raise ModelError(f"the adapter has no {ADAPTER_WEIGHTS}{but}", where=folder, fix=fix)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError("the model folder has no safetensors file", where=folder, fix=_COPY)
    return files


def read_json_object(path: Path) -> dict[str, Any]:
    """Read the JSON object in the file `path`.

    Raises ModelError, which names the file, where it is missing or has none.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        what = f"{path.name} is not JSON: {summarise_error(error)}"
        raise ModelError(what, where=path.parent, fix=_AGAIN) from None
    if not isinstance(raw, dict):
        raise ModelError(f"{path.name} is not a JSON object", where=path.parent, fix=_AGAIN)
    return raw


def count_parameters(folder: Path | str) -> int:
    """Count the parameters in a checkpoint's weights files, from their headers. folder: of the checkpoint.

    Raises ModelError as `list_weight_files`, and for a file that is cut off or not in safetensors format.
    """
    return sum(_check_header(file) for file in list_weight_files(folder))


def _check_header(file: Path) -> int:
    """Count the parameters in a safetensors file from its header. The file begins with the header's length (8 bytes)
    and the header, which has each tensor's shape and end; the last tensor ends where the file does."""
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
        raise ModelError(f"{file.name} is not a safetensors file", where=file.parent, fix=_AGAIN) from None
    if size < wanted:
        what = f"{file.name} is cut off: it has {size} bytes of {wanted}"
        raise ModelError(what, where=file.parent, fix=_AGAIN)
    return numbers


def summarise_error(error: Exception) -> str:
    """Return the first line of an exception's message that is not blank, cut to 300 characters.

    Where the message is empty, it is the name of the exception's class.
    """
    lines = [line for line in str(error).splitlines() if line.strip()]
    return (lines[0].strip() if lines else type(error).__name__)[:300]
