"""Judge a task of OSWorld's. It runs as a program, where a checker runs, and is told what was found in the machine.

What an agent left behind may be anything: a metric that cannot read it gives 0. One that cannot read what is expected
either judges nothing, and that is an error.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # on its own, wherever the package lies there
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from flywheel.computer.osworld.metrics import METRICS

_DEPTH, _ENTRIES = 64, 10_000
_MOST = 2**25  # bytes of a file that is looked at: one of holes may say that it has any number
_WHY = 200  # characters


def main() -> None:
    told = json.load(sys.stdin)
    scores, reasons = [], []
    for one in told["metrics"]:
        score, why = _score(one["func"], _value(one["result"]), _value(one["expected"]), one["options"])
        scores.append(score)
        reasons.append(f"{one['func']} {score:g}" + (f" ({why})" if why else ""))
    print(json.dumps({"score": joined(scores, told["conj"]), "reason": ", ".join(reasons)[:2000]}))


def joined(scores: list[float], conj: str) -> float:
    """Of several metrics, as OSWorld joins them: all must score something, and the mean counts; or the best does."""
    if conj == "or":
        return max(scores)
    return sum(scores) / len(scores) if all(scores) else 0.0


def _score(func: str, result: Any, expected: Any, options: dict[str, Any]) -> tuple[float, str]:
    """A score from 0 to 1, and what kept the metric from reading the result."""
    if result is None:
        return 0.0, "nothing is there that can be looked at"
    judged = METRICS[func].score
    try:
        return min(max(float(judged(result, expected, options)), 0.0), 1.0), ""
    except (Exception, RecursionError) as error:
        if METRICS[func].expected != "rules" and expected is not None:
            judged(expected, expected, options)
        return 0.0, f"{type(error).__name__}: {error}"[:_WHY]


def _value(got: dict[str, Any]) -> Any:
    """What was found: a value as it is, or something of a kind that is looked for here."""
    ((kind, what),) = got.items()
    return {"value": lambda: what, "file": lambda: _file(what), "files": lambda: _files(what),
            "tree": lambda: _tree(what)}[kind]()  # fmt: skip


def _file(path: str) -> str | None:
    return path if Path(path).is_file() and Path(path).stat().st_size <= _MOST else None


def _files(paths: list[str]) -> list[str | None]:
    return [_file(path) for path in paths]


def _tree(path: str) -> dict[str, Any] | None:
    """As OSWorld's server tells it."""
    return _folder(path, _DEPTH, [_ENTRIES]) if Path(path).is_dir() else None


def _folder(path: str, depth: int, left: list[int]) -> dict[str, Any]:
    children = []
    for entry in sorted(os.scandir(path), key=lambda one: one.name):
        left[0] -= 1
        if left[0] < 0:
            break
        if entry.is_dir(follow_symlinks=False) and depth:
            children.append(_folder(entry.path, depth - 1, left))
        else:
            children.append({"type": "file", "name": entry.name})
    return {"type": "directory", "name": Path(path).name, "children": children}


if __name__ == "__main__":
    main()
