"""What Prefect's history says of killed runs, held against when they were killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta

from flows.ops.prefect_server import open_prefect_server
from flywheel.config.workspace import Workspace
from flywheel.store.catalog import database

_ENDS = {"Completed", "Failed", "Crashed"}
_CLOCK = timedelta(seconds=2)
_SILENT = timedelta(seconds=60)  # that a run at work is not heard of, at most


def false(ws: Workspace, killed: Sequence[datetime], iterations: Sequence[int] = (1,)) -> list[str]:
    """What the history of complete iterations says and was not so, in words. killed: when one of their flows was."""
    with open_prefect_server(ws):
        from prefect.context import refresh_global_settings_context

        from tasks import run_history

        refresh_global_settings_context()
        rows = [row for k in iterations for row in run_history.read_run_rows(ws, k)]
    kept = database.query_catalog(ws, "SELECT run_id, state FROM runs").to_pylist()
    wrong = not_so(rows, killed, iterations)
    if {row["run_id"]: row["state"] for row in rows} != {row["run_id"]: row["state"] for row in kept}:
        wrong.append("the table runs is not what Prefect says")
    return wrong


def not_so(rows: Sequence[dict], killed: Sequence[datetime], iterations: Sequence[int]) -> list[str]:
    """Of the runs of complete iterations; rows as in the table `runs`, times as ISO 8601."""
    wrong = [f"{row['name']} is {row['state']}" for row in rows if row["state"] not in _ENDS]
    done = [row for row in rows if row["state"] == "Completed" and row["kind"] == "flow"]
    # A run of recordings alone ends where the iteration has taken them in: it says so, and completes nothing.
    ended = Counter(row["name"] for row in done if " waits after " not in (row.get("message") or ""))
    wrong += [f"{name} was completed {times} times" for name, times in ended.items() if times > 1]
    wrong += [f"iteration {k:03d} was not completed" for k in iterations if not ended[f"iteration {k:03d}"]]
    crashed = [row for row in rows if row["state"] == "Crashed" and row["name"].startswith("iteration")]
    if len(crashed) > len(killed):
        wrong.append(f"{len(crashed)} iterations crashed, {len(killed)} were killed")
    for row in crashed:
        last = datetime.fromisoformat(row["ended_at"])
        if not any(-_CLOCK <= at - last <= _SILENT for at in killed):
            wrong.append(f"{row['name']} ended at {last}, and no flow was killed then")
    return wrong + [f"{row['name']} ended before it began" for row in rows if (row["seconds"] or 0) < 0]
