"""Keep how well the verifiers of shipped suites and of pages' tasks withstood `flywheel tasks attack`."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flywheel.envs.base import TaskSuite
from flywheel.envs.suites.catalogue import SUITES_ROOT
from flywheel.utils.files import write_text

VERIFICATION_FOLDER = SUITES_ROOT / "verification"
# Counts of a template: known solutions run, of them accepted, starts accepted; mutations, of them refused; other legal
# ends, of them accepted.
COUNTS = ("runs", "gold", "start", "mutations", "killed", "ways", "accepted")


@functools.cache
def read_verification(world: str) -> Mapping[str, Any]:
    """Read what attacks on a suite's verifiers counted; {} where the suite was never attacked.

    Returns `checksum`, of the suite as it was attacked, and `templates`: by name, numbers in the order of COUNTS.
    """
    path = VERIFICATION_FOLDER / f"{world}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def write_verification(suite: TaskSuite, counts: Mapping[str, Sequence[int]]) -> Path:
    """Write what attacks on a suite's verifiers counted to the suite's file in VERIFICATION_FOLDER; return its path.

    An existing file is replaced. counts: by name of the template, its numbers in the order of COUNTS. Raises DiskFull,
    OSError where the installed package cannot be written.
    """
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(list(row))}" for name, row in sorted(counts.items()))
    head = f'{{"checksum": "{suite.checksum}", "counts": {json.dumps(COUNTS)}, "templates": {{\n'
    path = VERIFICATION_FOLDER / f"{suite.name}.json"
    path.parent.mkdir(exist_ok=True)
    write_text(path, f"{head}{rows}\n}}}}\n")
    read_verification.cache_clear()
    return path


def find_kill_rate(world: str, template: str, checksum: str) -> float | None:
    """Return the share of mutated end states that a template's verifier refused; None where it was never attacked.

    None also where the suite was attacked with another `checksum`, and where known solutions failed or starts passed:
    then mutations say nothing.
    """
    found = read_verification(world)
    if found.get("checksum") != checksum or template not in found["templates"]:
        return None
    return compute_kill_rate(dict(zip(COUNTS, found["templates"][template], strict=True)))


def compute_kill_rate(counts: Mapping[str, int]) -> float | None:
    """Compute the share of mutated end states that were refused, from counts named as in COUNTS.

    None without mutations, and where a known solution failed or a start was accepted.
    """
    if counts["gold"] < counts["runs"] or counts["start"] or not counts["mutations"]:
        return None
    return counts["killed"] / counts["mutations"]


def format_verification(counts: Mapping[str, int], checksum: str) -> dict[str, Any]:
    """Make the entry `verification` of a page's task in its manifest, from what attacks on its verifier counted.

    counts: all numbers named in COUNTS. checksum: of the task attacked. Returns a mapping that JSON can hold: `gold`
    ("gold/runs") and `other_ways` ("accepted/ways") as text, `start`, `mutations` and `killed` as they are, `checksum`.
    Raises KeyError for a missing number.
    """
    told = {"gold": f"{counts['gold']}/{counts['runs']}", "start": counts["start"], "mutations": counts["mutations"]}
    return told | {
        "killed": counts["killed"],
        "other_ways": f"{counts['accepted']}/{counts['ways']}",
        "checksum": checksum,
    }


def parse_page_kill_rate(entry: Mapping[str, Any], checksum: str) -> float | None:
    """Return the kill rate out of the entry `verification` of a page's task; None for an entry of another form.

    None also as `compute_kill_rate`, and where the task was attacked with another `checksum`.
    """
    try:
        gold, runs = map(int, entry["gold"].split("/"))
        counts = {"gold": gold, "runs": runs} | {name: int(entry[name]) for name in ("start", "mutations", "killed")}
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError):
        return None
    return compute_kill_rate(counts) if entry.get("checksum") == checksum else None
