"""Hashes of what a small deterministic iteration writes, beside an earlier commit: the same data, whatever the code is.

Both sides make a workspace of the profile `small` with one thread, and run one iteration. What the stages from `ingest`
to `sft` write is compared; RL is left out, since its episodes end in the order of the clock. Of each table the values
of each column are hashed, under the names that table and column have today; columns of times and the tables `runs`,
`metrics` and `lineage` are left out, and the pictures that only a trajectory's end shows, which commits before
2026-12-01 do not keep. Of a checkpoint its tensors are hashed. Columns that the earlier commit lacks are listed as
`added`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from bench_case import BenchCase, emit_case, exit_code
from safetensors import safe_open

from flywheel.store.renamed_tables import RENAMED_COLUMNS, RENAMED_TABLES

PROJECT = Path(__file__).resolve().parent.parent
BASELINE = "6659744"
STAGES = ("ingest", "synthesize", "rollout", "score", "route", "ct", "sft")
LEFT_OUT = ("runs", "metrics", "lineage")
# checksum: of the source text of a task suite. record: a row as JSON, with its times. logprobs: their last bits depend
# on which requests share a batch, and so on the clock; the token ids that were sampled are compared.
# version: a scorer's is raised on purpose; its scores are compared.
LEFT_OUT_COLUMNS = ("run_id", "checksum", "record", "logprobs", "version")
ORDERED_BY_TIME = ("reviews",)  # which of two shards ends first decides: the order of their rows is not compared
DEADLINE_S = 1800


def read_column(folder: Path, column: str) -> set[str]:
    """The values of a column in all Parquet files below the folder of one table that have it."""
    tables = (pq.read_table(path, partitioning=None) for path in folder.rglob("*.parquet"))
    return {value for table in tables if column in table.column_names for value in table[column].to_pylist() if value}


def table_hashes(folder: Path, end_screens: set[str]) -> dict[str, str]:
    """A hash of each column's values, of all Parquet files below the folder of one table. end_screens: digests of
    pictures whose rows are left out."""
    hashes = {}
    name = RENAMED_TABLES.get(folder.name, folder.name)
    renamed = RENAMED_COLUMNS.get(name, {})
    for path in sorted(folder.rglob("*.parquet")):
        stage = next((part for part in path.parts if part.removeprefix("stage=") in STAGES), None)
        if stage is None:
            continue
        table = pq.read_table(path, partitioning=None)
        if name == "images":
            table = table.filter(pa.array([digest not in end_screens for digest in table["sha256"].to_pylist()]))
        values = {
            renamed.get(column.name, column.name): [repr(value) for value in table[column.name].to_pylist()]
            for column in table.schema
            if not pa.types.is_timestamp(column.type) and column.name not in LEFT_OUT_COLUMNS
        }
        order = list(range(table.num_rows))
        if name in ORDERED_BY_TIME:
            order.sort(key=lambda row: [values[column][row] for column in sorted(values)])
        for column, of in values.items():
            text = "\n".join(of[row] for row in order)
            hashes[f"{name} {stage} {path.name[:10]} {column}"] = hashlib.sha256(text.encode()).hexdigest()
    return hashes


def model_hashes(folder: Path) -> dict[str, str]:
    """A hash of each tensor of the checkpoints below the folder."""
    hashes = {}
    for path in sorted(folder.rglob("*.safetensors")):
        with safe_open(path, framework="pt") as weights:
            for name in sorted(weights.keys()):
                data = weights.get_tensor(name).contiguous().view(-1).numpy().tobytes()
                hashes[f"model {folder.name} {name}"] = hashlib.sha256(name.encode() + data).hexdigest()
    return hashes


def run_stages(root: Path, workspace: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-c", "from flywheel.cli import main; main()"]

    def flywheel(*words: str, cwd: Path = workspace) -> None:
        done = subprocess.run(
            [*command, *words], cwd=cwd, env=environment, capture_output=True, text=True, timeout=DEADLINE_S
        )
        if done.returncode:
            raise RuntimeError(f"{root}: flywheel {' '.join(words)}: {done.stderr[-500:]}")

    workspace.parent.mkdir(parents=True, exist_ok=True)
    flywheel("init", str(workspace), "--profile", "small", cwd=workspace.parent)
    flywheel("run", "--iteration", "1")


def measure(workspace: Path) -> dict[str, str]:
    hashes: dict[str, str] = {}
    data = workspace / "data"
    end_screens = read_column(data / "trajectories", "final_image_sha256") - read_column(data / "steps", "image_sha256")
    for folder in sorted(data.iterdir()):
        if folder.name not in LEFT_OUT:
            hashes |= table_hashes(folder, end_screens)
    for folder in sorted((workspace / "models").glob("iteration=001/*")):
        if folder.name in STAGES:
            hashes |= model_hashes(folder)
    return hashes


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="flywheel bench iteration_hashes", description=__doc__)
    parser.add_argument("--baseline", default=BASELINE, help="the commit to compare with")
    parser.add_argument("--out", type=Path, help="keep the hashes of both sides in this JSON file")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        tree = Path(temporary) / "baseline"
        subprocess.run(
            ["git", "-C", PROJECT, "worktree", "add", "--quiet", "--detach", tree, options.baseline], check=True
        )
        try:
            sides = {}
            for name, root in (("ours", PROJECT), ("peer", tree)):
                workspace = Path(temporary) / name / "workspace"
                run_stages(root, workspace)
                sides[name] = measure(workspace)
        finally:
            subprocess.run(["git", "-C", PROJECT, "worktree", "remove", "--force", tree], check=True)
    if options.out:
        options.out.write_text(json.dumps(sides, indent=1))
    ours, peer = sides["ours"], sides["peer"]
    differing = sorted(place for place, value in peer.items() if ours.get(place) != value)
    same = len(peer) - len(differing)
    return exit_code(
        [
            emit_case(
                BenchCase(
                    "iteration_hashes",
                    "columns and tensors",
                    "count",
                    len(ours),
                    len(peer),
                    f"commit {options.baseline}",
                    same / max(len(peer), 1),
                    1.0,
                    not differing,
                    {"differing": differing, "added": sorted(ours.keys() - peer.keys())},
                )
            )
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
