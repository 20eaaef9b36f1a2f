"""Readers while a partition is replaced under them: each answer is of one write, and none an error; and two writers.

Every write has rows of its own number alone, and as many as the number says, in several files. Readers are processes,
by the partition's reader, by a new connection for each query, and by one connection that is kept.
"""

from __future__ import annotations

import multiprocessing
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from bench_case import BenchCase

from flywheel.config.workspace import Workspace
from flywheel.store import partitions
from flywheel.store.catalog import database
from flywheel.utils.errors import DataError

READERS = 8
REPLACEMENTS = 10_000


def cases(options: Namespace) -> Iterator[BenchCase]:
    replacements = min(REPLACEMENTS, options.trajectories // 2)
    ws = Workspace((options.folder / "concurrent").resolve())
    fork = multiprocessing.get_context("spawn")
    stop, told = fork.Event(), fork.Queue()
    _write(ws, 0)
    readers = [fork.Process(target=_read, args=(ws.root, kind % 3, stop, told)) for kind in range(READERS)]
    for reader in readers:
        reader.start()
    began = time.monotonic()
    for number in range(1, replacements + 1):
        _write(ws, number)
    seconds = time.monotonic() - began
    stop.set()
    found = [told.get(timeout=120) for _ in readers]
    for reader in readers:
        reader.join()
    answers, wrong, errors = (sum(one[place] for one in found) for place in range(3))
    met = answers > 0 and wrong + errors == 0
    yield BenchCase(
        "store", "concurrent", "wrong answers and errors", wrong + errors, None, "", None, 0, met,
        {"readers": READERS, "replacements": replacements, "answers": answers, "wrong": wrong, "errors": errors,
         "seconds": seconds, "first_error": next((one[3] for one in found if one[3]), "")},
    )  # fmt: skip
    writers = [fork.Process(target=_write_often, args=(ws.root, first, 250)) for first in (1_000_000, 2_000_000)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    failed = sum(writer.exitcode != 0 for writer in writers)
    rows = partitions.read_partition(ws, "scores", 1, "score")
    mixed = len(set(rows["scorer"].to_pylist())) != 1
    yield BenchCase(
        "store", "two_writers", "failures", failed + mixed, None, "", None, 0, not failed and not mixed,
        {"writes_each": 250},
    )  # fmt: skip


def _write(ws: Workspace, number: int) -> None:
    rows = [{"trajectory_id": f"t{row:04d}", "scorer": str(number), "score": 1.0} for row in range(_count(number))]
    with mock.patch.object(partitions, "_RUN_BYTES", 4_000):  # several files of few rows
        partitions.write_partition(ws, "scores", 1, "score", rows)


def _count(number: int) -> int:
    return 50 + number % 200


def _write_often(root: Path, first: int, times: int) -> None:
    for number in range(first, first + times):
        _write(Workspace(root), number)


def _read(root: Path, kind: int, stop, told) -> None:
    ws = Workspace(root)
    answers = wrong = errors = 0
    first = ""
    sql = "SELECT count(*) AS n, min(scorer) AS a, max(scorer) AS b FROM scores"
    kept = database.connect_catalog(ws) if kind == 2 else None
    while not stop.is_set():
        try:
            if kind == 0:
                names = partitions.read_partition(ws, "scores", 1, "score")["scorer"].to_pylist()
                answer = {"n": len(names), "a": min(names), "b": max(names)}
            elif kind == 1:
                (answer,) = database.query_catalog(ws, sql).to_pylist()
            else:
                try:
                    (answer,) = database.query_rows(kept, sql)
                except DataError:  # what it saw is gone: it is told so, and connects anew
                    kept.close()
                    kept = database.connect_catalog(ws)
                    continue
            answers += 1
            wrong += not (answer["a"] == answer["b"] and answer["n"] == _count(int(answer["a"])))
        except Exception as error:
            errors += 1
            first = first or f"{type(error).__name__}: {error}"
    told.put((answers, wrong, errors, first))
