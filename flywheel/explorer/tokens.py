"""Texts of token ids, by the tokeniser of the checkpoint that sampled them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from flywheel.workspace import Workspace

_KEPT = 4


class Tokens:
    """Keeps the tokenisers that were asked for last. Where a checkpoint is not here any more, an id is its text."""

    def __init__(self, ws: Workspace) -> None:
        self._ws = ws
        self._lock = threading.Lock()
        self._kept: OrderedDict[Path, Tokenizer | None] = OrderedDict()

    def texts(self, model: str | None, ids: Sequence[int]) -> list[str]:
        """One text a token; a part of a character is shown as the sign for it."""
        if not ids:
            return []
        tokenizer = self._of(model)
        if tokenizer is None:
            return [str(number) for number in ids]
        return [tokenizer.decode([number], skip_special_tokens=False) or f"⟨{number}⟩" for number in ids]

    def _of(self, model: str | None) -> Tokenizer | None:
        path = self._file(model)
        if path is None:
            return None
        with self._lock:
            if path not in self._kept:
                try:
                    self._kept[path] = Tokenizer.from_file(str(path))
                except Exception:  # the library has no error of its own: a file that is none
                    self._kept[path] = None
            self._kept.move_to_end(path)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
            return self._kept[path]

    def _file(self, model: str | None) -> Path | None:
        """Of a checkpoint of the workspace: lineage may name others, and this reads nothing outside."""
        if not model:
            return None
        path = (self._ws.root / model / "tokenizer.json").resolve()
        return path if path.is_relative_to(self._ws.root.resolve()) and path.is_file() else None
