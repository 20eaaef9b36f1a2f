"""Damaged inputs to `route`: bytes, lists, files, columns and rows. Each must be named, set aside, or change nothing.

Bytes: truncated, flipped bits (pages, footer), zeros, another file's bytes, a list that is cut off or edited, a file
or a list that is lost, a file of another table, version or schema. Rows: a sound partition is written again with one
value that cannot be (null, NaN, out of range, doubled, orphaned, contradicting), as a faulty program would.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import random
import shutil
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import store_synthetic
from bench_case import BenchCase

from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.store import manifest, partitions
from flywheel.store.routing import training_stores
from flywheel.utils.errors import FlywheelError

INPUTS = 10_000
SHARE = 100  # that a process judges at a time
TRAJECTORIES = 12
ROW_SHARE = 0.2  # of the inputs: a whole routing each
READ = [
    ("trajectories", "rollout"), ("steps", "rollout"), ("images", "rollout"), ("tasks", "synthesize"),
    ("scores", "score"),
]  # fmt: skip
NAN, ENDLESS = float("nan"), float("inf")


def cases(options: Namespace) -> Iterator[BenchCase]:
    inputs = min(INPUTS, options.trajectories // 2)
    sound = _sound(options.folder / "damaged" / "sound")
    began = time.monotonic()
    found: Counter[str] = Counter()
    examples: dict[str, str] = {}
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        numbers = [range(first, min(first + SHARE, inputs)) for first in range(0, inputs, SHARE)]
        for counts, some in pool.map(partial(_judged, sound, options.seed), numbers):
            found += counts
            examples = {**some, **examples}
            print(f"damaged: {found.total()} of {inputs} inputs: {dict(found)}", file=sys.stderr)
    bad = found["silent"] + found["traceback"]
    yield BenchCase(
        "store", "damaged", "inputs", bad, None, "", None, 0, bad == 0,
        {"inputs": inputs, "seed": options.seed, "seconds": round(time.monotonic() - began), **dict(found),
         "examples": examples},
    )  # fmt: skip


def _judged(sound: Workspace, seed: int, numbers: range) -> tuple[Counter[str], dict[str, str]]:
    """What became of these inputs, each damaged by its own number, whichever process it falls to."""
    logging.disable(logging.WARNING)
    found: Counter[str] = Counter()
    examples: dict[str, str] = {}
    ws = Workspace(sound.root.with_name(f"input-{os.getpid()}"))
    expected = _routed(sound, ws.root.with_name(f"staged-{os.getpid()}"))
    for number in numbers:
        rng = random.Random(f"{seed} {number}")
        shutil.rmtree(ws.root, ignore_errors=True)
        shutil.copytree(sound.root, ws.root)
        rows = rng.random() < ROW_SHARE
        table, stage = rng.choice(READ)
        damage = rng.choice(ROWS[table]) if rows else rng.choice(BYTES)
        told = damage(ws, table, stage, rng)
        outcome = _outcome(ws, expected, told if rows else None)
        found[outcome] += 1
        if outcome in ("silent", "traceback"):
            examples.setdefault(f"{damage.__name__} {table}", f"input {number}: {told}")
    return found, examples


def _sound(folder: Path) -> Workspace:
    if not folder.is_dir():
        made = store_synthetic.workspace(folder.with_name("made"), TRAJECTORIES, screens=8)
        ws = Workspace(folder.resolve())
        for table, stage in READ:  # as this version writes them
            partitions.write_partition(ws, table, 1, stage, partitions.read_partition(made, table, 1, stage))
    manifest.init_manifests(Workspace(folder.resolve()))
    return Workspace(folder.resolve())


def _routed(ws: Workspace, at: Path | None = None) -> dict:
    staged = Workspace(at or ws.root / "staged")
    settings = Settings().model_copy(
        update={"routing": Settings().routing.model_copy(update={"max_invalid_fraction": 1.0})}
    )
    training_stores.build_training_stores(ws, 1, settings, READ, staged, page=False)
    found = {
        table: partitions.read_partition(staged, table, 1, training_stores.ROUTE_STAGE).to_pylist()
        for table in training_stores.WRITTEN_TABLES
    }
    shutil.rmtree(staged.root)
    return found


def _outcome(ws: Workspace, expected: dict, damaged: str | None) -> str:
    """damaged: the id of the trajectory whose rows cannot be, perhaps an empty one; None where whole files
    were damaged, or a row that is nobody's."""
    try:
        got = _routed(ws)
    except FlywheelError:
        return "named"
    except Exception:
        return "traceback"
    rows = sum(part.rows for part in partitions.partition_manifest(ws, "trajectories", 1, "rollout").parts)
    kept = sum(len(got[store]) for store in ("sft", "ct"))
    aside = sum(row["source_table"] == "trajectories" for row in got["quarantine"])
    if kept + aside != rows:
        return "silent"
    if damaged is not None:
        return "set aside" if any(row["trajectory_id"] == damaged for row in got["quarantine"]) else "silent"
    return "harmless" if got == expected else "silent"


# Bytes of a partition.


def _file(ws: Workspace, table: str, stage: str) -> Path:
    return partitions.partition_files(ws, table, 1, stage)[0]


def truncated(ws, table, stage, rng) -> str:
    path = _file(ws, table, stage)
    content = path.read_bytes()
    cut = rng.randrange(len(content))
    path.write_bytes(content[:cut])
    return f"cut to {cut} bytes"


def flipped(ws, table, stage, rng) -> str:
    path = _file(ws, table, stage)
    content = bytearray(path.read_bytes())
    place = rng.randrange(len(content))
    content[place] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return f"bit of byte {place} of {len(content)}"


def flipped_footer(ws, table, stage, rng) -> str:
    path = _file(ws, table, stage)
    content = bytearray(path.read_bytes())
    length = int.from_bytes(content[-8:-4], "little")
    place = len(content) - 1 - rng.randrange(length + 8)
    content[place] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return f"bit of byte {place} of {len(content)}, in the footer"


def zeroed(ws, table, stage, rng) -> str:
    path = _file(ws, table, stage)
    content = bytearray(path.read_bytes())
    place = rng.randrange(len(content))
    size = min(len(content) - place, rng.choice([1, 16, 512, 4096]))
    before = bytes(content[place : place + size])
    content[place : place + size] = bytes(size)
    if before == bytes(size):
        content[place] = 255
    path.write_bytes(content)
    return f"{size} bytes from {place}"


def noise(ws, table, stage, rng) -> str:
    path = _file(ws, table, stage)
    path.write_bytes(rng.randbytes(rng.choice([0, 4, 100, path.stat().st_size])))
    return "other bytes"


def swapped(ws, table, stage, rng) -> str:
    other = rng.choice([one for one in READ if one != (table, stage)])
    shutil.copyfile(_file(ws, *other), _file(ws, table, stage))
    return f"the file of {other}"


def lost_file(ws, table, stage, rng) -> str:
    _file(ws, table, stage).unlink()
    return "lost file"


def lost_list(ws, table, stage, rng) -> str:
    (_file(ws, table, stage).parent / partitions.PARTS_FILE).unlink()
    return "lost list"


def cut_list(ws, table, stage, rng) -> str:
    path = _file(ws, table, stage).parent / partitions.PARTS_FILE
    content = path.read_text()
    path.write_text(content[: rng.randrange(len(content) - 2)])
    return "cut list"


def edited_list(ws, table, stage, rng) -> str:
    path = _file(ws, table, stage).parent / partitions.PARTS_FILE
    about = json.loads(path.read_text())
    field = rng.choice(["name", "rows", "bytes", "sha256", "footer"])
    value = about["parts"][0][field]
    about["parts"][0][field] = value + 1 if isinstance(value, int) else value[:-1] + ("0" if value[-1] != "0" else "1")
    path.write_text(json.dumps(about))
    return f"list: {field}"


def stray(ws, table, stage, rng) -> str:
    folder = _file(ws, table, stage).parent
    name = rng.choice(["note.txt", "part-00009-0badc0de.parquet", ".00000.part", "part-00001.parquet"])
    shutil.copyfile(_file(ws, table, stage), folder / name)
    return f"a stray {name}"


def foreign(ws, table, stage, rng) -> str:
    """A list and a file that agree with one another, and are not of this schema."""
    path = _file(ws, table, stage)
    data = pq.read_table(path, partitioning=None)
    kind = rng.choice(["no metadata", "version", "table", "column gone", "column more", "column of a type"])
    about = dict(data.schema.metadata)
    if kind == "no metadata":
        about = {}
    elif kind == "version":
        about[b"schema_version"] = b"99"
    elif kind == "table":
        about[b"table"] = b"lineage"
    elif kind == "column gone":
        data = data.drop_columns([data.schema.names[0]])
    elif kind == "column more":
        data = data.append_column("more", pa.nulls(data.num_rows, pa.int32()))
    else:
        data = data.set_column(0, data.schema.names[0], pa.array(range(data.num_rows), pa.int64()))
    pq.write_table(data.replace_schema_metadata(about), path)
    partitions.write_part_list(
        path.parent, table, [partitions.describe_part_file(path, data.num_rows, partitions.cached_sha256(path))]
    )
    return kind


BYTES: tuple[Callable, ...] = (
    truncated, flipped, flipped, flipped_footer, zeroed, noise, swapped, lost_file, lost_list, cut_list, edited_list,
    stray, foreign,
)  # fmt: skip


# Rows of a sound partition.


def _changed(**changes) -> Callable:
    def damage(ws, table, stage, rng) -> str:
        rows = partitions.read_partition(ws, table, 1, stage).to_pylist()
        chosen = rng.choice(rows)
        told = _whose(ws, table, chosen)
        name = rng.choice(sorted(changes))
        chosen[name] = rng.choice(changes[name]) if isinstance(changes[name], list) else changes[name](chosen)
        partitions.write_partition(ws, table, 1, stage, rows)
        return chosen["trajectory_id"] if name == "trajectory_id" else told

    damage.__name__ = "changed"
    return damage


def _whose(ws: Workspace, table: str, row: dict) -> str | None:
    """The trajectory that a row belongs to."""
    if table not in ("tasks", "images"):
        return row["trajectory_id"]
    of, own, key = ("trajectories",) + ("task_id",) * 2 if table == "tasks" else ("steps", "image_sha256", "sha256")
    found = partitions.read_partition(ws, of, 1, "rollout", ["trajectory_id", own])
    names = [one["trajectory_id"] for one in found.to_pylist() if one[own] == row[key]]
    return names[0] if names else None  # nobody's: to lose it changes nothing


def doubled(ws, table, stage, rng) -> str:
    rows = partitions.read_partition(ws, table, 1, stage).to_pylist()
    chosen = rng.choice(rows)
    partitions.write_partition(ws, table, 1, stage, [*rows, chosen])
    return _whose(ws, table, chosen)


def orphaned(ws, table, stage, rng) -> str:
    rows = partitions.read_partition(ws, table, 1, stage).to_pylist()
    partitions.write_partition(ws, table, 1, stage, [*rows, rng.choice(rows) | {"trajectory_id": "nobody"}])
    return "nobody"


def removed(ws, table, stage, rng) -> str:
    rows = partitions.read_partition(ws, table, 1, stage).to_pylist()
    gone = rows.pop(rng.randrange(len(rows)))
    told = _whose(ws, table, gone)
    partitions.write_partition(ws, table, 1, stage, rows)
    return told


_RANGE = [NAN, ENDLESS, -ENDLESS, -0.01, 1.01, 1e300]
ROWS: dict[str, tuple[Callable, ...]] = {
    "trajectories": (
        _changed(
            status=["tired", None, ""], source=["rumour", None], author=["nobody", None], domain=[""],
            steps=[-1, 3, 99], reward=[NAN, ENDLESS, -1.5, 2.0], task_id=["unknown", ""], trajectory_id=[""],
            ended_at=lambda row: row["started_at"].replace(year=2000),
        ),
        doubled,
    ),
    "steps": (
        _changed(
            step=[99, -5], author=[None, "nobody"], image_sha256=[None, "0" * 64, ""], x=_RANGE, y=_RANGE, x2=_RANGE,
            y2=_RANGE, logprobs=[None, [], [-0.1], [NAN] * 40, [0.5] * 40, [-ENDLESS] * 40, [None] * 40],
            token_ids=[None, [], [1], [-5] * 40, [None] * 40],
            ended_at=lambda row: row["started_at"].replace(year=2000),
        ),
        doubled, orphaned, removed,
    ),
    "images": (_changed(bytes=[None, b"", b"no picture"], sha256=["0" * 64, ""]), removed),
    "tasks": (_changed(split=["eval"], task_id=["other", ""]), removed),
    "scores": (
        _changed(score=[NAN, -0.1, 1.1, None], threshold=[NAN, -0.1, 1.1, None], scorer=[None],
                 success=lambda row: not row["success"]),
        orphaned, removed,
    ),
}  # fmt: skip
