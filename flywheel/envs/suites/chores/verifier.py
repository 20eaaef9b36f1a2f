"""Score the end of a chore by what was observed from outside of the machine."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

CHORES_VERIFIER = "as_wanted"


def score_chore_state(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """Score the end of a chore: 1.0 where all that is wanted holds and no file that has to stay is spoilt.

    params: of the task. state: what was observed from outside of the machine. Otherwise the score is half of (parts
    that hold - files spoilt) / parts, at least 0: at most 0.5, so that no higher threshold accepts a half. Where the
    params name a `checker`, the score is at most its score, and 0 before it ran; it also judges what is spoilt.
    """
    parts = list(_part_results(params, state))
    if "checker" in params:
        most = 1.0 if all(parts) else 0.5 * sum(parts) / len(parts)
        return min(most, state["checked"]["score"] if "checked" in state else 0.0)
    spoilt = _count_spoilt_files(params, state)
    if all(parts) and not spoilt:
        return 1.0
    return 0.5 * max(0, sum(parts) - spoilt) / len(parts)


def _part_results(params: Mapping[str, Any], state: Mapping[str, Any]) -> Iterator[bool]:
    now = state.get("files", {})
    for path, text in params.get("wanted", {}).items():
        if text != params["files"].get(path):
            yield file_matches(path, text, now.get(path))
    if "answer" in params:
        yield answer_matches(params["answer"], state.get("answer", ""))
    for port, text in params.get("served", {}).items():
        found = state.get("ports", {}).get(port)
        yield found is None if text is None else found is not None and found.strip() == text.strip()
    for path, files in params.get("packed", {}).items():
        yield state.get("packed", {}).get(path) == files
    if "received" in params:
        yield state.get("received", [])[-1:] == [params["received"]]
    if "printed" in params:
        yield [line.strip() for line in state.get("printed") or ()] == params["printed"]


def _count_spoilt_files(params: Mapping[str, Any], state: Mapping[str, Any]) -> int:
    """Count the files that have to stay as they are and do not."""
    now, wanted = state.get("files", {}), params.get("wanted", {})
    free = params.get("free", ())
    stay = {path: text for path, text in params["files"].items() if path not in free and wanted.get(path, text) == text}
    spoilt = sum(not file_matches(path, text, now.get(path)) for path, text in stay.items())
    hidden = params.get("hidden", ())
    for path, encoded in params.get("binary", {}).items():
        seen = path in hidden or not (path.startswith(".") or "/." in path)  # the state has no other hidden files
        if seen and path not in free and path not in wanted:
            spoilt += not _is_unchanged(path, base64.b64decode(encoded), now.get(path))
    return spoilt


def _is_unchanged(path: str, begun: bytes, found: str | None) -> bool:
    """Tell whether a file that began as `begun` is still what the state tells, which is a digest of a long file."""
    text = begun.decode("utf-8", "replace")
    return found in (text, f"sha256:{hashlib.sha256(begun).hexdigest()}") or file_matches(path, text, found)


def file_matches(path: str, wanted: str | None, found: str | None) -> bool:
    """Tell whether the text `found` is that `wanted` at `path`; None stands for no file.

    JSON and CSV are compared by their values, other texts exactly but for space at the end of lines and of the file.
    """
    if wanted is None or found is None:
        return wanted is found
    try:
        return _parse_file(path, wanted) == _parse_file(path, found)
    except (ValueError, csv.Error, RecursionError):
        return False


def _parse_file(path: str, text: str) -> Any:
    if path.endswith(".json"):
        return json.dumps(json.loads(text), sort_keys=True)
    if path.endswith(".csv"):
        return [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text)) if row]
    return [line.rstrip() for line in text.rstrip().splitlines()]


def answer_matches(wanted: str, said: str) -> bool:
    """Tell whether `said` is the answer `wanted`: numbers by value, words in any case.

    A full stop may follow, and quotes may stand around it.
    """
    wanted, said = (" ".join(one.split()).rstrip(".").strip("\"'“”‘’`").casefold() for one in (wanted, said))
    try:
        return wanted == said or float(wanted) == float(said.replace(",", ""))
    except ValueError:
        return False
