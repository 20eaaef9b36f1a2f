"""What is done at every turn, in a workspace of 200 iterations beside one of 10 (20 trajectories each).

Recording a stage, asking whether one is done, where the flywheel stands, the view `iterations` and the report: each at
most 1.5 times what it costs at iteration 10. What looks at all iterations grows with them: it is told. CPU seconds of
this process, the best of several, since other work shares the machine.
"""

from __future__ import annotations

import hashlib
import json
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import store_synthetic as synthetic
import yaml
from bench_case import BenchCase

from flywheel import config as settings_module
from flywheel.config import Settings
from flywheel.config.workspace import Workspace, iteration_label
from flywheel.maintenance import status
from flywheel.pipeline import dag
from flywheel.store import lineage, manifest, partitions, routing_decisions
from flywheel.store.catalog import compaction, database
from flywheel.store.schema import ALL_DOMAINS, TABLES, fraction_metric_row, metric_row
from flywheel.store.versioning import dvc_files, stage_records
from flywheel.ui.report import pages
from flywheel.utils.files import write_json, write_text

_FEW, _MANY, _GOAL = 10, 200, 1.5
_TRAJECTORIES = 20
_STAGE = "rollout"  # the one that is recorded and asked for


@dataclass(frozen=True)
class _Cost:
    what: str
    act: Callable[[Workspace, int], Any]
    goal: float | None = _GOAL
    repetitions: int = 5


_COSTS = (
    _Cost("record", lambda ws, k: stage_records.record_stage(ws, _STAGE, k)),
    _Cost("is_done", lambda ws, k: stage_records.is_stage_done(ws, _STAGE, k)),
    _Cost("status", lambda ws, k: status.read_workspace_status(ws)),
    _Cost("connect", lambda ws, k: database.connect_catalog(ws).close()),
    _Cost("iterations", lambda ws, k: database.query_catalog(ws, "FROM iterations")),
    _Cost("report", lambda ws, k: pages.write_report(ws), repetitions=3),
    _Cost("status_all", lambda ws, k: status.read_workspace_status(ws, everything=True), goal=None, repetitions=1),
)


def cases(options: Namespace) -> Iterator[BenchCase]:
    made = {count: workspace(options.folder / f"iterations-{count:03d}", count) for count in (_FEW, _MANY)}
    for cost in _COSTS:
        few, many = (_seconds(cost, ws, count) for count, ws in made.items())
        ratio = many / few
        met = cost.goal is None or ratio <= cost.goal
        name = f"iterations_{_MANY}_{cost.what}"
        yield BenchCase("store", name, "CPU s", many, few, f"at iteration {_FEW}", ratio, cost.goal, met)


def _seconds(cost: _Cost, ws: Workspace, iteration: int) -> float:
    found = []
    for _ in range(cost.repetitions + (cost.repetitions > 1)):  # the first pays for what is imported and cached
        began = time.process_time()
        cost.act(ws, iteration)
        found.append(time.process_time() - began)
    return min(found)


def workspace(folder: Path, iterations: int) -> Workspace:
    """One of so many complete iterations, recorded as DVC records them; made once."""
    ws = Workspace(folder.resolve())
    if not (ws.root / "made").is_file():
        write_text(ws.params, "seed: 7\n")
        stage_records.init_dvc_project(ws)
        manifest.init_first_checkpoint(ws, digest="d000")
        chosen = Settings.model_validate({"recording": {"sessions_per_iteration": 0}})
        text = settings_module.dump_settings(chosen)
        for k in range(1, iterations + 1):
            write_text(ws.frozen_params(k), text)
            write_json(ws.iteration(k) / "sessions.json", {"sessions": []})
            routing_decisions.init_decisions(ws, k)
            write_text(dvc_files.dvc_yaml_path(ws, k), dag.render_dvc_yaml(k, list(chosen.synthesis.domains)))
            _iteration(ws, k, list(chosen.synthesis.domains))
            _record(ws, k)
            if k % 10 == 0:
                compaction.compact_iterations(ws)
        dvc_files.write_workspace_dvc_yaml(ws, iterations)
        write_text(ws.root / "made", "")
    compaction.compact_iterations(ws)
    return ws


def _iteration(ws: Workspace, k: int, domains: list[str]) -> None:
    """What the stages leave: rows for what views and report count, no rows or a few bytes elsewhere."""
    names = synthetic.screen_names(8)
    made = {
        ("tasks", "synthesize"): synthetic.tasks(_TRAJECTORIES, k),
        ("trajectories", "rollout"): synthetic.episodes(0, _TRAJECTORIES, k, names, 7),
        ("steps", "rollout"): synthetic.steps(0, _TRAJECTORIES, k, names, 7),
        ("images", "rollout"): synthetic.images(len(names)),
        ("scores", "score"): synthetic.scores(0, _TRAJECTORIES, k, names, 7),
    }
    routes = [
        {
            "trajectory_id": row["trajectory_id"],
            "destination": "sft" if row["success"] else "ct",
            "success": row["success"],
            "reason": "",
        }
        | {"score": row["score"], "threshold": row["threshold"]}
        for row in made["scores", "score"].to_pylist()
    ]
    known = set(TABLES["routes"].names)
    made["routes", "route"] = [{name: value for name, value in row.items() if name in known} for row in routes]
    with duckdb.connect() as connection:
        connection.register("incoming", made["trajectories", "rollout"])
        connection.register("decided", pa.Table.from_pylist(made["routes", "route"]))
        made["lineage", "route"] = connection.execute(lineage.routed_links_sql(k)).to_arrow_table()
    for stage, declared in _declared(ws, k).items():
        for out in declared["outs"]:
            path = ws.root / (next(iter(out)) if isinstance(out, dict) else out)
            if path.parts[-3:-2] == ("models",):
                write_text(path / "model.safetensors", f"{stage} {k}")
            elif path.suffix != ".json":
                table = path.parent.parent.name
                rows = made.get((table, stage), _figures(stage, k, domains) if table == "metrics" else [])
                partitions.write_partition(ws, table, k, stage, rows)
    data = [("trajectories", _STAGE), ("steps", _STAGE), ("images", _STAGE), ("tasks", "synthesize")]
    manifest.write_manifest(ws, k, window=2, data=data)
    write_json(ws.levels(k), {"open": {}})
    write_json(ws.held_out(k), {"about": "", "models": {}})
    model = f"models/iteration={iteration_label(k)}/merged"
    write_json(ws.promotion(k), {"model": model, "digest": f"d{k:03d}", "iteration": k, "promoted": True, "reason": ""})


def _figures(stage: str, k: int, domains: list[str]) -> list[dict[str, Any]]:
    rows = [metric_row("seconds", 10.0)]
    if stage in ("ct", "sft"):
        rows += [metric_row("loss", 1 / (n + k), step=n) for n in range(24)]
    if stage.startswith("rl-"):
        names = ("reward", "success", "entropy", "kl", "mismatch", "clip_fraction", "value_loss", "explained_variance")
        domain = stage.removeprefix("rl-")
        rows += [metric_row(name, (n + k) % 7 / 7, domain=domain, step=n) for name in names for n in range(1, 9)]
    if stage == "evaluate":
        for domain in (*domains, ALL_DOMAINS):
            rows += [fraction_metric_row(f"success_{when}", (k + n) % 20, 20, domain=domain)
                     for n, when in enumerate(("before", "after"))]  # fmt: skip
    return rows


def _declared(ws: Workspace, k: int) -> dict[str, Any]:
    return yaml.load(dvc_files.dvc_yaml_path(ws, k).read_text(encoding="utf-8"), yaml.CSafeLoader)["stages"]


def _record(ws: Workspace, k: int) -> None:
    """The iteration's dvc.lock, from the files: what `versioning.commit` would write, without its cache."""
    frozen = yaml.load(ws.frozen_params(k).read_text(encoding="utf-8"), yaml.CSafeLoader)
    entries = {}
    for stage, declared in _declared(ws, k).items():
        outs = [next(iter(out)) if isinstance(out, dict) else out for out in declared["outs"]]
        entry = {"cmd": declared["cmd"], "deps": [_hashed(ws, path) for path in declared.get("deps", [])]}
        for params in declared.get("params", []):
            (file, blocks), = params.items()  # fmt: skip
            entry["params"] = {file: {block: frozen[block] for block in blocks}}
        entries[stage] = entry | {"outs": [_hashed(ws, path) for path in outs]}
    write_text(dvc_files.dvc_lock_path(ws, k), dvc_files.dump_dvc_lock(entries))


def _hashed(ws: Workspace, path: str) -> dict[str, Any]:
    """An entry of a file or a folder, as DVC writes it."""
    there = ws.root / path
    if there.is_file():
        return {"path": path, "hash": "md5", "md5": _md5(there.read_bytes()), "size": there.stat().st_size}
    files = sorted(path.name for path in there.iterdir())
    listed = [{"md5": _md5((there / name).read_bytes()), "relpath": name} for name in files]
    size = sum((there / name).stat().st_size for name in files)
    md5 = _md5(json.dumps(listed, sort_keys=True).encode()) + ".dir"
    return {"path": path, "hash": "md5", "md5": md5, "size": size, "nfiles": len(files)}


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
