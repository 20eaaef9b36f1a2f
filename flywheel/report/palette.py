"""Colours of what charts show, by name: a CSS class `tone-<name>` sets `--tone`, on light pages and on dark ones."""

from __future__ import annotations

import zlib

_TONES = {  # name -> its colour on light pages, on dark ones
    "all": ("#343c4a", "#d5dae2"),
    "sft": ("#1f7a5f", "#56c39f"),
    "ct": ("#3569c9", "#7fa8f5"),
    "quarantine": ("#b07a10", "#e0b04e"),
    "other": ("#77808e", "#98a1af"),
    "games": ("#6a51c4", "#a893f5"),
    "sites": ("#c8601d", "#f0985a"),
    "control": ("#2a7ab8", "#6cb4ea"),
    # Domains of any other name.
    "domain-0": ("#b03a7a", "#f08cc0"),
    "domain-1": ("#4f7a1f", "#a3d06a"),
    "domain-2": ("#1f7f86", "#5fc9d0"),
    "domain-3": ("#8a5a2b", "#d6a873"),
    # Curves that are told apart by order.
    "one": ("#343c4a", "#d5dae2"),
    "two": ("#c8601d", "#f0985a"),
    "three": ("#6a51c4", "#a893f5"),
    "four": ("#1f7a5f", "#56c39f"),
    "five": ("#b3362c", "#ef8a80"),
    "six": ("#3569c9", "#7fa8f5"),
    "seven": ("#b07a10", "#e0b04e"),
}
_SPARE = 4  # colours for domains that have none of their own


def tone(name: str) -> str:
    """The CSS class of a domain, a store or `all`. A domain keeps its colour from report to report."""
    return f"tone-{name}" if name in _TONES else f"tone-domain-{zlib.crc32(name.encode()) % _SPARE}"


def css(*, dark: bool = True) -> str:
    """The classes. dark: those of dark pages too, for a page that follows the reader's choice."""
    light = "".join(f".tone-{name}{{--tone:{colour}}}" for name, (colour, _) in _TONES.items())
    if not dark:
        return light
    night = "".join(f".tone-{name}{{--tone:{colour}}}" for name, (_, colour) in _TONES.items())
    return f"{light}@media (prefers-color-scheme:dark){{{night}}}"
