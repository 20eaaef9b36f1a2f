"""Join the JavaScript that runs in pages: ahead of a document's or worker's own scripts, and the pickers.

A script in several parts is one function, run at once: its parts share their names, as if they were one file, and a
page sees none of them.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent / "scripts"

# In order: a later part may replace what an earlier one defined.
_DOCUMENT_PARTS = (
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
_PICKER_PARTS = ("style", "common", "list", "calendar", "times", "colour", "show")


def _read_script(path: str) -> str:
    return (_HERE / path).read_text(encoding="utf-8")


def _join_scripts(folder: str, parts: tuple[str, ...]) -> str:
    return "".join(['(() => {\n"use strict";\n', *(_read_script(f"{folder}/{part}.js") for part in parts), "})();\n"])


# `CONFIG` in the first two is replaced for each page and worker (`page.py`).
DOCUMENT_SCRIPT = _join_scripts("document", _DOCUMENT_PARTS) + _read_script("refusals.js")
WORKER_SCRIPT = _read_script("worker_clock.js")
PICKERS_SCRIPT = _join_scripts("pickers", _PICKER_PARTS)
