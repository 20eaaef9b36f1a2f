"""What `flywheel prune` removed of an iteration: `iterations/NNN/pruned.json`. It is not missing, and not fetched."""

from __future__ import annotations

import json
from collections.abc import Iterable

from flywheel.errors import DataError
from flywheel.files import write_json
from flywheel.workspace import Workspace


def read(ws: Workspace, iteration: int) -> frozenset[str]:
    """Paths of outputs, relative to the workspace. Raises DataError."""
    path = ws.iteration(iteration) / "pruned.json"
    try:
        return frozenset(json.loads(path.read_text(encoding="utf-8"))["paths"])
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError, KeyError, TypeError) as error:
        where = ws.relative(path)
        raise DataError(f"not a list of what was pruned: {error!r}", where=where, fix="restore it from git") from None


def add(ws: Workspace, iteration: int, paths: Iterable[str]) -> None:
    every = sorted(read(ws, iteration) | set(paths))
    write_json(ws.iteration(iteration) / "pruned.json", {"paths": every})
