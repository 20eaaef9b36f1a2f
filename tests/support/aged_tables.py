"""Tables as the version before renamed them had them: written by its names, and named so by manifests and DVC."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from flywheel.config.workspace import Workspace
from flywheel.store import partitions
from flywheel.store.versioning import dvc_files

TABLES = {"grounding_examples": "general", "utterances": "thoughts", "trajectory_hashes": "signatures"}
COLUMNS = {
    "steps": {"misclick": "slip"},
    "utterances": {"low_confidence": "doubtful"},
    "scores": {"success": "v"},
    "routes": {"success": "v"},
    "curriculum": {"sampling_prob": "chance", "relative_prob": "relative"},
    "duplicates": {"duplicate_of": "twin"},
    "trajectory_hashes": {
        "store": "fate",
        "step_codes": "steps",
        "first_image_sha256": "first_screen",
        "last_image_sha256": "last_screen",
    },
    "quarantine": {"source_table": "of_table"},
}
# Columns that the first files of a table lacked.
LACKING = {
    "quarantine": "of_table",
    "tasks": "environment",
    "ct": "weight",
    "lineage": "times",
    "trajectories": "final_image_sha256",
}


def old_rows(table: str, rows: pa.Table) -> pa.Table:
    """Rows by the earlier columns. table: its name of today."""
    names = [COLUMNS.get(table, {}).get(name, name) for name in rows.column_names]
    rows = rows.rename_columns(names).replace_schema_metadata(
        {"table": TABLES.get(table, table), "schema_version": "1"}
    )
    if table == "quarantine":
        names = [TABLES.get(value, value) for value in rows["of_table"].to_pylist()]
        rows = rows.set_column(rows.column_names.index("of_table"), "of_table", pa.array(names, pa.string()))
    return rows


def write_old_partition(ws: Workspace, folder: Path, *, lacking: bool = False) -> Path:
    """Write a partition of today by the earlier names in its place; returns its folder. lacking: as the first version
    wrote it, without the column that came later."""
    table = folder.parts[-3]
    rows = old_rows(table, pa.concat_tables(pq.read_table(path, partitioning=None) for path in files_of(folder)))
    if lacking and table in LACKING:
        rows = rows.drop_columns([LACKING[table]])
    shutil.rmtree(folder)
    old = ws.data / TABLES.get(table, table) / folder.parent.name / folder.name
    old.mkdir(parents=True)
    pq.write_table(rows, old / "unnamed", compression="zstd", write_page_checksum=True)
    sha256 = hashlib.sha256((old / "unnamed").read_bytes()).hexdigest()
    path = (old / "unnamed").rename(old / f"part-00000-{sha256[:8]}.parquet")
    partitions.write_part_list(
        old, TABLES.get(table, table), [partitions.describe_part_file(path, rows.num_rows, sha256)]
    )
    if not any(folder.parents[1].rglob("*.parquet")):
        shutil.rmtree(folder.parents[1])
    return old


def files_of(folder: Path) -> list[Path]:
    return [folder / part.name for part in partitions.read_part_list(folder) or ()]


def age_tables(ws: Workspace, *, lacking: bool = False) -> None:
    """Write all tables of a workspace by the earlier names, and what names them as that version would have."""
    iterations = sorted(path.parent for path in (ws.root / "iterations").glob("*/dvc.yaml"))
    recorded: dict[str, str] = {}  # path -> md5
    for folder in sorted(ws.data.glob("*/iteration=*/stage=*")):
        table = folder.parts[-3]
        if table in COLUMNS or table in TABLES or (lacking and table in LACKING):
            old = write_old_partition(ws, folder, lacking=lacking)
            recorded[ws.relative(old)] = dvc_files.folder_md5(old)
    previous = hashlib.sha256(ws.manifest(0).read_bytes()).hexdigest()
    for folder in iterations:
        raw = json.loads((folder / "manifest.json").read_text())
        raw["previous"] = previous
        for one in raw["shards"]:
            one["table"] = TABLES.get(one["table"], one["table"])
            (part,) = partitions.read_part_list(old := ws.partition(one["table"], int(folder.name), one["stage"]))
            one |= {"path": f"{ws.relative(old)}/{part.name}", "rows": part.rows, "sha256": part.sha256}
        text = json.dumps(raw, indent=2, sort_keys=True) + "\n"
        (folder / "manifest.json").write_text(text)
        previous = hashlib.sha256(text.encode()).hexdigest()
        recorded[ws.relative(folder / "manifest.json")] = hashlib.md5(text.encode()).hexdigest()
    for folder in iterations:
        path = folder / "dvc.yaml"
        path.write_text(_named(path.read_text()))
        entries = dvc_files.read_dvc_lock(folder / "dvc.lock")
        for entry in entries.values():
            for one in (*entry.get("deps", ()), *entry.get("outs", ())):
                one["path"] = _named(one["path"] + "/").rstrip("/")
                if one["path"] in recorded:
                    one["md5"] = recorded[one["path"]]
                    path = ws.root / one["path"]
                    one["size"] = sum(p.stat().st_size for p in ([path] if path.is_file() else path.iterdir()))
        (folder / "dvc.lock").write_text(dvc_files.dump_dvc_lock(entries))
    shutil.rmtree(ws.state / "closed", ignore_errors=True)


def _named(text: str) -> str:
    return re.sub(rf"data/({'|'.join(TABLES)})/", lambda found: f"data/{TABLES[found[1]]}/", text)
