"""The whole flywheel, as a user runs it: a small turn that is stopped with Ctrl-C, killed with -9, and finished."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import minimal_iterations
import pytest
import yaml
from manifest_pages import COUNTER, lay
from processes import PATIENCE_S

from flywheel.config.workspace import Workspace
from flywheel.store import manifest
from flywheel.store.catalog import database
from flywheel.store.versioning import dvc_files

# As little to train and to play as there can be: what is seen of a turn does not hang on it.
_LEAST = (
    "recording.sessions_per_iteration=1",
    "synthesis.train_tasks=8",
    "ct.num_examples=12",
    "sft.num_examples=12",
    "synthesis.num_grounding_examples=12",
    "synthesis.eval_tasks=4",
    "rl.tasks_per_step=1",
    "rl.value_pretraining_tasks=2",
    "promotion.tasks=7",
    "promotion.margin=0.5",
)
_RUN = ("run", *(word for one in _LEAST for word in ("--set", one)))
_COMMAND = [str(Path(sys.executable).with_name("flywheel"))]


def start(ws: Workspace, *arguments: str) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "160"}
    return subprocess.Popen(
        [*_COMMAND, *arguments, "-w", str(ws.root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )


def flywheel(ws: Workspace, *arguments: str) -> tuple[int, str]:
    process = start(ws, *arguments)
    output, _ = process.communicate(timeout=PATIENCE_S)
    return process.returncode, output


def until(process: subprocess.Popen, words: str) -> str:
    """Read the run's output up to a line that holds the words; fails where the run ends before."""
    seen = []
    for line in process.stdout:
        seen.append(line)
        if words in line:
            return "".join(seen)
    pytest.fail(f"the run ended before saying {words!r}:\n{''.join(seen)}")


def finished_shards(ws: Workspace) -> list[str]:
    return sorted(path.parent.name for path in ws.staging(1, "rollout").glob("*/*/result.json"))


def with_a_domain_of_its_own(ws: Workspace) -> None:
    """A domain more, of a third-party page: named in params.yaml and nowhere else."""
    page = lay(ws.root / "pages" / "counter", COUNTER)
    raw = yaml.safe_load(ws.params.read_text())
    tasks = raw["synthesis"]
    tasks["domains"]["clicking"] = [page.name]
    tasks["manifests"] = ["pages/counter/page.yaml"]
    raw["merge"]["weights"] = dict.fromkeys(tasks["domains"], 1 / len(tasks["domains"]))
    ws.params.write_text(yaml.safe_dump(raw))
    git = ["git", "-C", str(ws.root), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "add", "--all"], check=True)
    subprocess.run([*git, "commit", "-qm", "A domain"], check=True)


@pytest.fixture(scope="module")
def turned(tmp_path_factory) -> tuple[Workspace, list[str]]:
    """A workspace with an iteration that was stopped, killed and gone on with, and the shards of when it was killed."""
    ws = minimal_iterations.created(tmp_path_factory.mktemp("turn") / "flywheel", sessions=1)
    with_a_domain_of_its_own(ws)

    signals = ((signal.SIGINT, "stopped;", 130), (signal.SIGTERM, "stopped by SIGTERM;", 143))
    for number, words, code in signals:
        assert words in stop(ws, "ingest", number, code)

    killed = start(ws, *_RUN)
    until(killed, "rollout-000 done")
    killed.kill()
    killed.wait(PATIENCE_S)
    shards = finished_shards(ws)

    code, output = flywheel(ws, *_RUN)
    assert code == 0, output
    return ws, shards


def stop(ws: Workspace, words: str, number: int, code: int) -> str:
    """Begin or go on with the iteration, and send the signal once it says the words; returns what it says then."""
    stopped = start(ws, *_RUN)
    until(stopped, words)
    stopped.send_signal(number)
    output = stopped.communicate(timeout=PATIENCE_S)[0]
    assert stopped.returncode == code, output
    assert "Traceback" not in output
    assert "go on" in output
    return output


def rows(ws: Workspace, sql: str) -> list[dict]:
    return database.query_catalog(ws, sql).to_pylist()


def test_a_killed_rollout_goes_on_and_loses_or_repeats_nothing(turned):
    ws, shards = turned
    assert "rollout-000" in shards
    found = rows(ws, "select count(*) n, count(distinct trajectory_id) ids from trajectories where stage = 'rollout'")
    tasks = rows(ws, "select count(*) n from tasks where split = 'train' and stage = 'synthesize'")[0]["n"]
    assert found == [{"n": tasks * 2, "ids": tasks * 2}]
    counted = rows(ws, "select task_id, count(distinct sample) n from trajectories where stage = 'rollout' group by 1")
    assert len(counted) == tasks
    assert {row["n"] for row in counted} == {2}


def test_what_comes_in_is_what_lies_in_the_stores(turned):
    ws, _ = turned
    sql = """
        select iteration, (select count(*) from trajectories t where t.iteration = r.iteration
                           and stage in ('ingest', 'rollout')) as rows_in,
               (select count(*) from sft s where s.iteration = r.iteration) as to_sft,
               (select count(*) from ct c where c.iteration = r.iteration) as to_ct,
               (select count(*) from quarantine q where q.iteration = r.iteration) as to_quarantine
        from (select distinct iteration from routes) r"""
    (row,) = rows(ws, sql)
    assert row["rows_in"] > 0
    assert row["rows_in"] == row["to_sft"] + row["to_ct"] + row["to_quarantine"]
    assert rows(ws, "select iteration, conserved from iterations") == [{"iteration": 1, "conserved": True}]


def test_a_domain_is_a_name_in_the_parameters(turned):
    """Tasks, rollouts, a specialist with its curriculum, the merge, the catalogue and the report have it."""
    ws, _ = turned
    having = "select distinct stage from trajectories where domain = 'clicking' order by stage"
    assert [row["stage"] for row in rows(ws, having)] == ["evaluate", "rl-clicking", "rollout"]
    assert {row["world"] for row in rows(ws, "from curriculum where stage = 'rl-clicking'")} == {"counter"}
    merged = "select parent from lineage where child like '%/merged' and parent like 'models/%' order by parent"
    assert "models/iteration=001/rl-clicking" in [row["parent"] for row in rows(ws, merged)]
    assert rows(ws, "select held_out_success['clicking'] is not null as told from iterations") == [{"told": True}]
    assert "rl-clicking" in dvc_files.recorded_stages(ws, 1)
    assert "Held-out success, clicking" in ws.report_page.read_text()


def test_dvc_is_clean_and_has_nothing_to_do(turned):
    ws, _ = turned
    dvc = [str(Path(sys.executable).with_name("dvc"))]
    status = subprocess.run([*dvc, "status"], cwd=ws.root, capture_output=True, text=True, timeout=PATIENCE_S)
    assert "up to date" in status.stdout
    repro = subprocess.run([*dvc, "repro", "--dry"], cwd=ws.root, capture_output=True, text=True, timeout=PATIENCE_S)
    assert "Running stage" not in repro.stdout
    assert repro.returncode == 0


def test_a_complete_iteration_asked_for_again_does_nothing(turned):
    ws, _ = turned
    before = ws.promotion(1).stat().st_mtime_ns
    code, output = flywheel(ws, "run", "--iteration", "1")
    assert (code, output.strip()) == (0, "iteration 001 is complete: nothing to do")
    assert ws.promotion(1).stat().st_mtime_ns == before


def test_the_iteration_is_committed_and_tagged(turned):
    ws, _ = turned
    git = ["git", "-C", str(ws.root)]
    assert subprocess.check_output([*git, "tag"], text=True).split() == ["iteration-001"]
    assert subprocess.check_output([*git, "status", "--porcelain"], text=True) == ""


def test_run_history_is_kept_with_the_killed_try(turned):
    ws, _ = turned
    turns = rows(ws, "select state from runs where kind = 'flow' and name = 'iteration 001' order by started_at")
    assert [row["state"] for row in turns][-1] == "Completed"
    assert "Crashed" in {row["state"] for row in turns[:-1]}
    assert rows(ws, "select count(*) n from runs where kind = 'task' and state = 'Completed'")[0]["n"] >= 12


def test_every_trajectory_leads_to_its_run_and_its_model(turned):
    ws, _ = turned
    of_the_loop = "(stage = 'rollout' or stage like 'rl-%')"
    lost = rows(ws, f"select * from trajectory_lineage where {of_the_loop} and (run is null or model is null)")
    assert lost == []


def test_the_specialists_name_what_they_were_trained_on(turned):
    """As many trajectories as their steps had episodes, each played by the start or by the specialist on its way."""
    ws, _ = turned
    trained = "select stage, count(*) n from trajectory_lineage where stage like 'rl-%' and trained_checkpoints = "
    found = rows(ws, f"{trained} ['models/iteration=001/' || stage] group by stage")
    used = rows(ws, "select stage, sum(value)::int n from metrics where name = 'episodes' and step > 0 group by stage")
    assert sorted(map(str, found)) == sorted(map(str, used))
    models = rows(ws, "select distinct split_part(model, '@', 1) m from trajectory_lineage where stage = 'rl-games'")
    assert {row["m"] for row in models} <= {"models/iteration=001/sft", "models/iteration=001/rl-games"}


def test_nothing_is_left_running(turned):
    ws, _ = turned
    own = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            own.append(process.joinpath("cmdline").read_bytes().decode(errors="replace"))
            environment = process.joinpath("environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        assert f"PREFECT_HOME={ws.prefect_home}" not in environment, own[-1]


def test_the_chain_of_manifests_holds(turned):
    ws, _ = turned
    manifest.verify_manifest(ws, 1)


def test_a_changed_file_is_seen_and_checked_out_again(turned):
    ws, _ = turned
    part = next(ws.partition("routes", 1, "route").glob("*.parquet"))
    whole = part.read_bytes()
    _, before = flywheel(ws, "query", "from routes")
    part.unlink()
    part.write_bytes(whole[: len(whole) // 2])
    # What a closed iteration's rows were is kept beside it: the answer is the same, and the damage is told.
    assert flywheel(ws, "query", "from routes") == (0, before)
    code, output = flywheel(ws, "workspace", "verify")
    assert code == 1
    assert part.name in output
    assert "dvc checkout" in output
    dvc = str(Path(sys.executable).with_name("dvc"))
    subprocess.run([dvc, "checkout", "--force"], cwd=ws.root, check=True, capture_output=True, timeout=PATIENCE_S)
    assert part.read_bytes() == whole


def test_status_for_programs(turned):
    ws, _ = turned
    code, output = flywheel(ws, "status", "--json")
    told = json.loads(output)
    assert code == 0
    assert told["changed"] == {}
    assert [row["iteration"] for row in told["iterations"]] == [1]
