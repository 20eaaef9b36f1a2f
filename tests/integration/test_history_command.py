"""What ran, what failed and why, how long it took, what was read and written: in SQL, and by `iteration history`."""

from __future__ import annotations

import csv
import io
import json
import shutil
import time
from datetime import UTC, datetime, timedelta

import pytest
import synthetic
import yaml
from made_workspaces import flywheel

from flywheel.config import Settings, run_lock
from flywheel.config.workspace import Workspace, iteration_label
from flywheel.maintenance import status
from flywheel.pipeline.iterations import begin_iteration
from flywheel.store import partitions
from flywheel.store.catalog import database
from flywheel.store.versioning import dvc_files, stage_records
from flywheel.utils.errors import FlywheelError
from flywheel.utils.files import sha256_file, write_json, write_text

START = datetime(2026, 1, 2, 3, tzinfo=UTC)
SETTINGS = Settings.model_validate({"recording": {"sessions_per_iteration": 0}})
RAISED = "Task run encountered an exception EnvError: the browser is gone (s1); start again\nand more"


def run(name: str, parent: str = "", *, kind="flow", state="Completed", at=0, seconds=1.0, attempts=1, message=""):
    """A row of `runs`, whose id is its name and when it began."""
    return {
        "run_id": f"{name}@{at}",
        "parent_id": parent,
        "kind": kind,
        "name": name,
        "state": state,
        "attempts": attempts,
        "started_at": START + timedelta(seconds=at),
        "ended_at": START + timedelta(seconds=at + seconds),
        "seconds": float(seconds),
        "parameters": "{}",
        "message": message,
    }


def tried(k: int, stage: str, at: float, seconds: float, shards: list[dict], **ended) -> list[dict]:
    """A turn that makes one stage: flow, the task that stands for it in the turn, and its own tasks."""
    turn, one = f"iteration {iteration_label(k)}", f"{iteration_label(k)} {stage}"
    return [
        run(turn, at=at, seconds=seconds + 1, **ended),
        run(f"{stage}-0", f"{turn}@{at}", kind="task", at=at, seconds=seconds, **ended),
        run(one, f"{stage}-0@{at}", at=at, seconds=seconds, **ended),
        *({**shard, "parent_id": f"{one}@{at}"} for shard in shards),
    ]


def task(name: str, **facts) -> dict:
    return run(name, kind="task", **facts)


@pytest.fixture
def ws(made, tmp_path) -> Workspace:
    return Workspace(shutil.copytree(made.root, tmp_path / "ws", symlinks=True))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Workspace:
    """Twelve iterations in which rollout takes 10, 20, ... seconds, and iteration 13, in which it failed first."""
    ws, _ = synthetic.workspace(tmp_path_factory.mktemp("made"))
    for k in range(1, 13):
        complete(ws, k, tried(k, "rollout", 0, 10 * k, [task("a", seconds=10 * k)]))
    failed = {"state": "Failed", "message": "Flow run encountered an exception: EnvError: the browser is gone"}
    first = [task("a", seconds=5), task("b", at=5, seconds=35, attempts=3, state="Failed", message=RAISED)]
    second = [task("a", at=100, seconds=0), task("b", at=101, attempts=2, seconds=90)]
    second += [task("finish rollout", at=191), task("version rollout", at=192)]
    rows = [*tried(13, "rollout", 0, 40, first, **failed), *tried(13, "rollout", 100, 95, second)]
    complete(ws, 13, rows)
    return ws


def complete(ws: Workspace, k: int, rows: list[dict]) -> None:
    begin_iteration(ws, k, SETTINGS)
    partitions.write_partition(ws, "runs", k, "runs", rows)
    record(ws, k, stage_records.stage_names(ws, k))


def record(ws: Workspace, k: int, stages) -> None:
    """As recorded: of rollout with a partition that it wrote, which is there, and a model that is not."""
    data = f"data/images/iteration={iteration_label(k)}/stage=rollout"
    partitions.write_partition(ws, "images", k, "rollout", [{"sha256": "0" * 64, "bytes": b"png"}])
    outs = [{"path": data, "md5": "abc.dir", "size": 1234, "nfiles": 2}]
    entry = {"deps": [{"path": "iterations/000/promotion.json", "md5": "def", "size": 7}], "outs": outs}
    outs.append({"path": f"models/iteration={iteration_label(k)}/ct", "md5": "fed.dir", "size": 99, "nfiles": 3})
    entries = {name: entry if name == "rollout" else {"cmd": "flywheel stage"} for name in stages}
    write_text(dvc_files.dvc_lock_path(ws, k), dvc_files.dump_dvc_lock(entries))


def ask(ws: Workspace, sql: str) -> list[dict]:
    return database.query_catalog(ws, sql).to_pylist(maps_as_pydicts="strict")


def told(ws: Workspace, *arguments) -> list | dict:
    code, output = flywheel(ws, "iteration", "history", *arguments, "--format", "json")
    assert code == 0, output
    return json.loads(output)


def test_a_row_a_stage_has_all_its_tries(ws):
    (row,) = ask(ws, "FROM stage_runs WHERE iteration = 13")
    assert row == {
        "iteration": 13,
        "stage": "rollout",
        "tries": 2,
        "failed": 1,
        "state": "Completed",
        "last_seconds": 95.0,
        "seconds": 135.0,
        "first_started": START,
        "last_ended": START + timedelta(seconds=195),
        "shards": 2,
        "retries": 3,
    }


def test_the_trend_is_the_ratio_to_the_median_of_ten_iterations_before(ws):
    rows = {row["iteration"]: row for row in ask(ws, "FROM stage_trend WHERE stage = 'rollout'")}
    facts = ("seconds", "median_before", "ratio", "iterations_before")
    assert [rows[1][name] for name in facts] == [10.0, None, None, 0]
    assert [rows[3][name] for name in facts] == [30.0, 15.0, 2.0, 2]
    assert [rows[13][name] for name in facts] == [135.0, 75.0, 1.8, 10]  # of 30 to 120


def test_failures_are_the_innermost_runs(ws):
    (row,) = ask(ws, "FROM failures")
    assert row == {
        "iteration": 13,
        "stage": "rollout",
        "run": "b",
        "kind": "task",
        "state": "Failed",
        "attempts": 3,
        "ended_at": START + timedelta(seconds=40),
        "message": RAISED,
        "run_id": "b@5",
    }


def test_a_turn_that_failed_by_itself_is_told(ws):
    rows = [run("iteration 014", state="Crashed", message="killed"), run("014 score", at=1, state="Completed")]
    complete(ws, 14, rows)
    found = ask(ws, "SELECT stage, run, message FROM failures WHERE iteration = 14")
    assert found == [{"stage": "", "run": "iteration 014", "message": "killed"}]


@pytest.mark.parametrize(
    "written", [dvc_files.dump_dvc_lock, lambda of: yaml.safe_dump({"schema": "2.0", "stages": of})]
)
def test_artifacts_are_what_dvc_recorded_however_it_is_written(ws, written):
    entries = dvc_files.read_dvc_lock(dvc_files.dvc_lock_path(ws, 13))
    entries["rollout"]["params"] = {"iterations/013/params.yaml": {"outs": [{"path": "no"}], "deps": "no"}}
    write_text(dvc_files.dvc_lock_path(ws, 13), written(entries))
    facts = ("role", "kind", "path", "files", "bytes", "md5")
    rows = ask(ws, "FROM stage_artifacts WHERE iteration = 13 AND stage = 'rollout'")
    assert [tuple(row[name] for name in facts) for row in rows] == [
        ("input", "record", "iterations/000/promotion.json", 1, 7, "def"),
        ("output", "partition", "data/images/iteration=013/stage=rollout", 2, 1234, "abc.dir"),
        ("output", "checkpoint", "models/iteration=013/ct", 3, 99, "fed.dir"),
    ]
    assert ask(ws, "SELECT count(*) AS n FROM stage_artifacts WHERE iteration = 13") == [{"n": 3}]


def test_the_views_are_there_where_nothing_was_made(tmp_path):
    for view in ("run_history", "stage_runs", "stage_trend", "failures", "stage_artifacts"):
        assert ask(Workspace(tmp_path), f"FROM {view}") == []


def test_the_command_has_the_ten_newest_iterations_the_newest_last(ws):
    rows = told(ws)
    assert [row["iteration"] for row in rows] == list(range(4, 14))
    last = rows[-1]
    assert (last["state"], last["tries"], last["failed"], last["seconds"]) == ("complete", 2, 1, 137.0)
    assert (last["longest"], last["longest_seconds"], last["reason"]) == ("rollout", 135.0, RAISED)
    assert len(told(ws, "--all")) == 13


def test_one_iteration_has_its_stages_in_their_order(ws):
    rows = told(ws, "-k", 13)
    assert [row["stage"] for row in rows] == list(stage_records.stage_names(ws, 13))
    assert {row["stage"]: row["state"] for row in rows if row["state"] != "recorded"} == {"rollout": "Completed"}
    (row,) = (row for row in rows if row["stage"] == "rollout")
    assert (row["ratio"], row["shards"], row["retries"], row["reason"]) == (1.8, 2, 3, RAISED)


def test_one_stage_is_told_over_the_iterations(ws):
    rows = told(ws, "--stage", "rollout")
    assert [(row["iteration"], row["seconds"]) for row in rows[-2:]] == [(12, 120.0), (13, 135.0)]
    assert rows[0]["median_before"] == 20.0  # of iterations 1 to 3, which are not shown


def test_all_of_a_stage(ws):
    found = told(ws, "-k", 13, "--stage", "rollout")
    assert [(row["try"], row["state"], row["seconds"]) for row in found["tries"]] == [
        (1, "Failed", 40.0),
        (2, "Completed", 95.0),
    ]
    assert [(row["try"], row["task"], row["attempts"]) for row in found["tasks"]] == [
        (1, "a", 1),
        (1, "b", 3),
        (2, "a", 1),
        (2, "b", 2),
        (2, "finish rollout", 1),
        (2, "version rollout", 1),
    ]
    (part,) = partitions.partition_files(ws, "images", 13, "rollout")
    read, wrote, model = found["artifacts"]
    assert read["sha256"] == [sha256_file(ws.promotion(0))]
    assert (wrote["rows"], wrote["bytes"], wrote["sha256"]) == (1, 1234, [sha256_file(part)])
    assert (model["rows"], model["sha256"]) == (None, [])  # it is not here


@pytest.mark.exhaustive
def test_the_page_of_a_stage_can_be_read_in_80_columns(ws, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, output = flywheel(ws, "iteration", "history", "-k", 13, "-s", "rollout")
    assert code == 0
    lines = [line.rstrip() for line in output.splitlines()]
    assert max(map(len, lines)) <= 80
    assert " 013 rollout Completed 01-02 03:00 2.2 m 75.0 s  1.80     2      2       3" in lines
    assert "013 rollout failed before: EnvError: the browser is gone (s1); start again" in lines
    assert "1.80 times the median of the 10 iterations before" in lines
    assert any(line.startswith("data/images/iteration=013/stage=rollout    1  1234 ") for line in lines)


def test_what_failed_is_told_with_the_reason(ws):
    code, output = flywheel(ws, "iteration", "history", "--failed")
    lines = [line.rstrip() for line in output.splitlines()]
    assert (code, lines) == (
        0,
        [
            "013  01-02 03:00  rollout, task b: Failed at attempt 3",
            "     EnvError: the browser is gone (s1); start again",
        ],
    )
    assert flywheel(ws, "iteration", "history", "--failed", "-k", 12) == (0, "nothing failed\n")
    assert told(ws, "--failed", "--stage", "score") == []


def test_an_iteration_is_told_from_its_own_partitions_and_those_of_ten_before(ws):
    (path,) = partitions.partition_files(ws, "runs", 2, "runs")
    path.write_bytes(b"no Parquet")
    assert flywheel(ws, "iteration", "history", "-k", 13)[0] == 0
    assert flywheel(ws, "iteration", "history", "-k", 13, "-s", "rollout")[0] == 0
    assert flywheel(ws, "iteration", "history", "-k", 3, "--failed")[0] == 0
    code, output = flywheel(ws, "iteration", "history", "-k", 12)
    assert (code, output.count("\n")) == (1, 1)
    assert "runs/iteration=002" in output


def test_an_iteration_at_work_is_told_by_what_lies_on_disk(ws):
    """It failed in rollout, and the run after that was killed there: no table `runs`, two shards finished."""
    begin_iteration(ws, 14, SETTINGS)
    record(ws, 14, ["ingest", "synthesize"])
    rows = tried(14, "rollout", 0, 30, [task("a", state="Failed", message=RAISED)], state="Failed", message="so")
    rows = [{**row, **{name: row[name].isoformat() for name in ("started_at", "ended_at")}} for row in rows]
    write_json(ws.run_history(14), rows)
    for shard in ("a", "b"):
        write_json(ws.staging(14, "rollout") / "key" / shard / "result.json", {"result": 1, "seconds": 1})
    last = told(ws)[-1]
    assert (last["state"], last["recorded"], last["at_stage"], last["reason"]) == ("unfinished", 2, "rollout", RAISED)
    found = {row["stage"]: row for row in told(ws, "-k", 14)}
    assert {name: row["state"] for name, row in found.items()} == {
        **dict.fromkeys(found, "not begun"),
        "ingest": "recorded",
        "synthesize": "recorded",
        "rollout": "Failed",
    }
    assert (found["rollout"]["staged"], found["rollout"]["shards"], found["rollout"]["ratio"]) == (2, 2, 30 / 85)
    assert [row["run"] for row in told(ws, "-k", 14, "--failed")] == ["a"]
    assert ask(ws, "FROM failures WHERE iteration = 14") == []
    with run_lock.hold_workspace(ws):
        assert told(ws)[-1]["state"] == "running"
        assert [row["stage"] for row in told(ws, "-k", 14) if row["state"] == "running"] == ["rollout"]


def test_what_a_run_at_work_does_is_told_as_it_does_it(ws):
    """Beside what the stages took before; the same as `status` has."""
    begin_iteration(ws, 14, SETTINGS)
    record(ws, 14, ["ingest", "synthesize"])
    with run_lock.hold_workspace(ws):
        run_lock.record_run(ws, 14, run_lock.RUN_COMMAND)
        began = time.time() - 20
        run_lock.record_stage_at_work(ws, run_lock.StageAtWork("synthesize", began - 5, ended=began))
        run_lock.record_stage_at_work(ws, run_lock.StageAtWork("rollout", began, line="a: 1 of 2"))
        (row,) = [row for row in told(ws) if row["iteration"] == 14]
        assert (row["state"], row["tries"], row["first_started"] is not None) == ("running", 1, True)
        found = {row["stage"]: row for row in told(ws, "-k", 14)}
        work = status.read_work_status(ws).facts()
        head, *stages = status.read_work_status(ws).lines()
    assert (found["rollout"]["state"], found["rollout"]["median_before"]) == ("running", 85)
    assert found["rollout"]["seconds"] >= 20
    assert (found["synthesize"]["seconds"], found["score"]["state"]) == (5, "not begun")
    assert (work["iteration"], work["recorded_stages"], work["seconds_left"]) == (14, 2, None)  # `score` never ran
    (rollout,) = [one for one in work["stages"] if one["stage"] == "rollout"]
    assert (rollout["usual"], 0 < rollout["left"] <= 65) == (85, True)
    assert head.startswith("iteration 014 is at work since")
    assert [line.split()[0] for line in stages] == ["rollout"]
    assert flywheel(ws, "status", "--watch") == (0, "nothing is at work\n")


def test_a_stage_that_was_run_without_prefect_has_the_time_of_its_work(ws):
    complete(ws, 14, [])
    partitions.write_partition(
        ws, "metrics", 14, "score", [{"domain": "all", "name": "seconds", "step": 0, "value": 4.5, "n": 3}]
    )
    (row,) = told(ws, "-k", 14, "-s", "score")["stage"]
    assert (row["state"], row["tries"], row["seconds"], row["shards"]) == ("recorded", 0, 4.5, 3)


def test_nothing_was_made_yet(tmp_path):
    ws, _ = synthetic.workspace(tmp_path)
    assert flywheel(ws, "iteration", "history") == (0, "no iteration yet: type flywheel run\n")
    assert told(ws) == []


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["-k", 99], "iteration 99 has not been begun (--iteration); the newest is 13"),
        (["-k", 0], "0 is not in the range"),
        (["--stage", "rolout"], "did you mean rollout?"),
        (["-k", 13, "-s", "rollout", "--format", "csv"], "ask for json"),
        (["--format", "xml"], "'xml' is not one of"),
    ],
)
def test_what_cannot_be_told_is_one_line(ws, asked, said):
    code, output = flywheel(ws, "iteration", "history", *asked)
    assert code == 2
    assert said in output
    assert output.count("\n") == 1


def test_csv_has_the_rows_with_the_whole_reason(ws):
    code, output = flywheel(ws, "iteration", "history", "-s", "rollout", "--format", "csv")
    assert code == 0
    rows = list(csv.DictReader(io.StringIO(output)))
    assert [row["iteration"] for row in rows] == [str(k) for k in range(4, 14)]
    assert (rows[-1]["seconds"], rows[-1]["ratio"], rows[-1]["reason"]) == ("135.0", "1.8", RAISED)


def test_a_turn_that_failed_leaves_its_runs(tmp_path, monkeypatch):
    from flows import iteration as flow
    from tasks import run_history

    ws, _ = synthetic.workspace(tmp_path)
    asked = {}

    def begin(*_) -> None:
        begin_iteration(ws, 1, SETTINGS)

    def stages(*_) -> None:
        raise FlywheelError("it broke")

    def runs_of(*_, **how) -> list[dict]:
        asked.update(how)
        return [row | dict.fromkeys(("started_at", "ended_at")) for row in [run("iteration 001", state="Failed")]]

    monkeypatch.setattr(flow, "_begin_iteration", begin)
    monkeypatch.setattr(flow, "_run_stages", stages)
    monkeypatch.setattr(run_history, "mark_killed_runs", lambda *_: [])
    monkeypatch.setattr(run_history, "read_run_rows", runs_of)
    with pytest.raises(FlywheelError, match="it broke"):
        flow._run_stages_and_close(ws, SETTINGS, 1, None)
    assert asked["error"] == "it broke"
    assert [row["run"] for row in told(ws, "-k", 1, "--failed")] == ["iteration 001"]
