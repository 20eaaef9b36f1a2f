"""JavaScript that runs in pages: what each document and worker gets ahead of its own scripts, and the pickers.

A script in several parts is one function, run at once: its parts share their names, as if they were one file, and a
page sees none of them.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent

# In this order: a later part may replace what an earlier one put in place.
_DOCUMENT = (
    "builtins",
    "core",
    "clock",
    "chance",
    "dialogs",
    "gestures",
    "navigation",
    "requests",
    "loads",
    "threads",
    "workers",
    "settling",
    "shadow_trees",
    "animations",
    "frames",
    "advance",
    "native_controls",
    "observe",
    "checkpoints",
    "clipboard",
    "install",
)
_PICKERS = ("style", "common", "list", "calendar", "times", "colour", "show")


def _read(path: str) -> str:
    return (_HERE / path).read_text(encoding="utf-8")


def _joined(folder: str, parts: tuple[str, ...]) -> str:
    return "".join(['(() => {\n"use strict";\n', *(_read(f"{folder}/{part}.js") for part in parts), "})();\n"])


# `CONFIG` in the first two is replaced for each page and worker (`page_setup.py`).
DOCUMENT = _joined("document", _DOCUMENT) + _read("refusals.js")
WORKER = _read("worker_clock.js")
PICKERS = _joined("pickers", _PICKERS)
