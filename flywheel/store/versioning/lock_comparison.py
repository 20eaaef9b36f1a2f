"""Find the stages of an iteration that are as its dvc.lock records them, without loading DVC.

Loading it takes half a second, for which `flywheel status` and the beginning of a run do not wait where nothing
changed. DVC's rules are followed as far as flywheel's own files need them: `dvc.yaml` as `pipeline/dag.py` writes it,
MD5 of files and of folders' listings, parameters by block. A stage is named only where it is certain to be unchanged;
of every other one DVC itself is to be asked (`stage_records`, `backup`), which also says what changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from flywheel.config.workspace import Workspace, iteration_label
from flywheel.store.versioning import dvc_files
from flywheel.utils.errors import DataError, DiskFull
from flywheel.utils.files import file_signature, is_changed_just_now, write_json

_STAGE_KEYS = {"wdir", "cmd", "params", "deps", "outs"}
_LOCK_KEYS = {"path", "hash", "md5", "size", "nfiles", "isexec"}
_BLOCK = re.compile(r"\w+")  # in other names DVC sees patterns
_READ_BYTES = 2**28  # DVC remembers the hashes of what it recorded: where more is to be read it is asked
_MALFORMED = (ValueError, LookupError, TypeError, AttributeError)  # of a file that flywheel did not write so


def find_unchanged_stages(ws: Workspace, iteration: int) -> frozenset[str]:
    """Name the stages whose command, parameters, inputs and outputs are certain to be as they are recorded."""
    from ruamel.yaml import YAMLError

    hashes = _ContentHashes(ws, iteration)
    read_params = cache(lambda path: dvc_files.parse_dvc_yaml(ws.resolve(path).read_text(encoding="utf-8")))
    try:
        ignored = (ws.root / ".dvcignore").read_text(encoding="utf-8")
        text = dvc_files.dvc_yaml_path(ws, iteration).read_text(encoding="utf-8")
        declared = dvc_files.parse_dvc_yaml(text)
        if not (ws.root / ".dvc").is_dir() or ignored != dvc_files.DVCIGNORE:
            return frozenset()
        if declared.keys() != {"stages"} or "${" in text:  # flywheel does not write it so
            return frozenset()
        recorded = dvc_files.read_dvc_lock(dvc_files.dvc_lock_path(ws, iteration))
        unchanged = frozenset(
            name
            for name, stage in declared["stages"].items()
            if name in recorded and _is_unchanged(stage, recorded[name], read_params, hashes)
        )
    except (OSError, YAMLError, DataError, *_MALFORMED):  # DVC tells what is wrong with it
        return frozenset()
    hashes.save()
    return unchanged


def _is_unchanged(
    stage: Mapping[str, Any], recorded: Mapping[str, Any], read_params: Callable[[str], Any], hashes: _ContentHashes
) -> bool:
    if not stage.keys() <= _STAGE_KEYS or stage["wdir"] != "../.." or stage["cmd"] != recorded.get("cmd"):
        return False
    for block in stage.get("params", ()):
        ((path, names),) = block.items()
        now, before = read_params(path), recorded.get("params", {}).get(path, {})
        known = all(_BLOCK.fullmatch(name) and name in now and name in before for name in names)
        if not known or any(now[name] != before[name] for name in names):
            return False
    for key in ("deps", "outs"):
        entries = {entry["path"]: entry for entry in recorded.get(key, ())}
        for path in _paths(stage.get(key, ())):
            entry = entries.get(path, {})
            if not entry.keys() <= _LOCK_KEYS or entry.get("hash") != "md5" or hashes.md5(path) != entry["md5"]:
                return False
    return True


def _paths(declared: Iterable[str | Mapping[str, Any]]) -> Iterator[str]:
    """Of inputs or outputs. Raises ValueError where one is declared as flywheel does not."""
    for one in declared:
        if not isinstance(one, str):
            ((one, options),) = one.items()
            if options != {"cache": False}:
                raise ValueError(one)
        if one.startswith("/") or "://" in one or ".." in one.split("/"):
            raise ValueError(one)
        yield one


class _ContentHashes:
    """MD5 of files and folders, as DVC counts them. What was read is remembered for as long as inodes, sizes and times
    stay (`.flywheel/hashes/NNN.json`), so that models are not read at each look."""

    def __init__(self, ws: Workspace, iteration: int) -> None:
        self._root = ws.root
        self._file = ws.state / "hashes" / f"{iteration_label(iteration)}.json"
        self._before = self._load()
        self._known: dict[str, list[str]] = {}  # path -> [digest of its files' signatures, MD5]
        self._found: dict[str, str | None] = {}
        self._bytes_left = _READ_BYTES

    def md5(self, path: str) -> str | None:
        """Return the MD5 of a file, or of a folder with `.dir` behind it; None where DVC may see it otherwise."""
        if path not in self._found:
            try:
                self._found[path] = self._compute(path)
            except FileNotFoundError:  # taken away just now, too
                self._found[path] = None
        return self._found[path]

    def _compute(self, path: str) -> str | None:
        place = self._root / path
        files = dict(_list_files(place))
        if None in files.values():
            return None
        signatures = sorted((name, *file_signature(status)) for name, status in files.items())
        signature = hashlib.sha256(json.dumps(signatures).encode()).hexdigest()
        known = self._before.get(path)
        if known is None or known[0] != signature:
            self._bytes_left -= sum(status.st_size for status in files.values())
            if self._bytes_left < 0:
                return None
            known = [signature, (dvc_files.folder_md5 if place.is_dir() else dvc_files.file_md5)(place)]
        if not is_changed_just_now(files.values()):
            self._known[path] = known
        return known[1]

    def save(self) -> None:
        """Remember what was read. Where the workspace cannot be written it is read again the next time."""
        if self._known != self._before:
            with contextlib.suppress(OSError, DiskFull):
                write_json(self._file, self._known)

    def _load(self) -> dict[str, list[str]]:
        try:
            return json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}


def _list_files(place: Path, name: str = "") -> Iterator[tuple[str, os.stat_result | None]]:
    """Each file at or below a place, by its path from there; None for what DVC may leave out or follow."""
    if not name and (place.is_symlink() or not place.is_dir()):
        yield "", None if place.is_symlink() else place.stat()
        return
    with os.scandir(place) as entries:
        for entry in entries:
            inner = f"{name}{entry.name}"
            if entry.name.startswith(".") or entry.is_symlink():
                yield inner, None
            elif entry.is_dir():
                yield from _list_files(place / entry.name, f"{inner}/")
            else:
                yield inner, entry.stat() if entry.is_file() else None
