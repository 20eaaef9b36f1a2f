"""The pipeline is what the stages declare: its order, a new stage by its file alone, and declarations that are true."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import minimal_iterations
import pytest
import synthetic
import yaml
from opened_files import watching

from flywheel.config import Settings, load_settings
from flywheel.config.workspace import Workspace
from flywheel.pipeline import dag
from flywheel.pipeline import stages as package
from flywheel.pipeline.iterations import begin_iteration
from flywheel.pipeline.stage import Checkpoint, Partition, Record, StageContext, expand_domains, run_stage, stage_inputs
from flywheel.store import manifest, partitions
from flywheel.store.versioning import stage_records
from flywheel.utils import files
from flywheel.utils.errors import BadInput


@pytest.mark.smoke
def test_the_order_follows_from_what_is_read():
    known = [
        "ingest",
        "synthesize",
        "rollout",
        "score",
        "route",
        "ct",
        "sft",
        "rl-games",
        "rl-web",
        "merge",
        "evaluate",
        "promote",
        "runs",
    ]
    order = dag.stage_order(["games", "web"], closing=True)
    assert [name for name in order if name in known] == known  # somebody may have added others
    assert "runs" not in dag.stage_order(["games"])


def test_the_pipeline_is_known_without_what_learns():
    """Who asks for the order waits for no torch."""
    code = "from flywheel.pipeline import dag; dag.all_stages(); import sys; print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"


def test_each_path_is_written_by_one_stage():
    written = [path for stage in dag.all_stages() for path in stage.outputs]
    assert len(set(written)) == len(written)
    read = {one for stage in dag.all_stages() for one in stage.reads if not getattr(one, "previous", False)}
    assert read - set(written) == {Record("sessions"), Record("decisions")}  # made when an iteration begins


@pytest.mark.parametrize("name", ["rolout", "rl-", "rl", ""])
def test_an_unknown_stage_is_refused(name):
    with pytest.raises(BadInput, match=r"unknown stage .*known are ingest, .*rl-<domain>"):
        dag.find_stage(name)


CENSUS = """
from flywheel.pipeline.stage import Partition, StageResult, single_shard_stage
from flywheel.store.schema import metric_row


def _work(ctx, folder):
    return len(ctx.read_rows("trajectories", "rollout"))


def _finish(ctx, folder, count):
    return StageResult((), (metric_row("trajectories", count),))


STAGE = single_shard_stage(
    "census", reads=(Partition("trajectories", "rollout"),), writes=(), settings=("rollout",),
    work=_work, finish=_finish,
)
"""


@pytest.fixture
def census(tmp_path, monkeypatch):
    """A stage from outside: one file."""
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages" / "census.py").write_text(CENSUS)
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path / "stages")])
    dag.all_stages.cache_clear()
    yield
    dag.all_stages.cache_clear()
    sys.modules.pop("flywheel.pipeline.stages.census", None)


def test_a_stage_is_one_file(census, tmp_path):
    names = dag.stage_order(["games"])
    assert names.index("rollout") < names.index("census") < len(names)
    declared = yaml.safe_load(dag.render_dvc_yaml(1, ["games"]))["stages"]["census"]
    assert declared["deps"] == ["data/trajectories/iteration=001/stage=rollout"]
    assert declared["params"] == [{"iterations/001/params.yaml": ["rollout"]}]
    ws, settings = synthetic.workspace(tmp_path / "ws")
    synthetic.incoming(ws, settings, 1, tasks=2)
    ctx = StageContext(ws, settings, 1, "census")
    run_stage(dag.find_stage("census"), ctx)
    stage_records.record_stage(ws, "census", 1)
    assert stage_records.is_stage_done(ws, "census", 1)
    counted = {row["name"]: row["value"] for row in partitions.read_partition(ws, "metrics", 1, "census").to_pylist()}
    assert counted["trajectories"] == 8


def test_what_is_declared_keys_the_shards(tmp_path):
    ws, settings = synthetic.workspace(tmp_path / "ws")
    synthetic.incoming(ws, settings, 1, tasks=2)
    score = dag.find_stage("score")

    def key(**changes):
        return StageContext(ws, Settings.model_validate({**settings.model_dump(), **changes}), 1, "score").key(score)

    before = key()
    assert key(seed=8) == before  # it does not read it
    assert key(routing={"threshold": 0.5}) != before
    rows = partitions.read_partition(ws, "trajectories", 1, "rollout").to_pylist()
    partitions.write_partition(ws, "trajectories", 1, "rollout", rows[1:])
    assert key() != before


# -- declarations are true --------------------------------------------------------------------------------------------
class Watched(Settings):
    """Settings that remember which of their blocks were asked for."""

    def __getattribute__(self, name: str):
        if name in type(self).model_fields:
            _ASKED.add(name)
        return super().__getattribute__(name)


_ASKED: set[str] = set()
_PERHAPS = {"language_model"}  # read where a model writes, which is not so here
_CHECK_CONTRACTS = ("route", "promote")  # which look at the tables of all iterations


@pytest.fixture
def workspace(tmp_path) -> Workspace:
    """Iteration 1 is begun; each of its stages takes seconds."""
    ws = minimal_iterations.created(tmp_path / "ws", sessions=1)
    small = {
        "recording.processes": 1,
        "recording.sessions_per_iteration": 1,
        "synthesis.domains": {"games": ["shapes"], "sites": ["shop"]},
        "synthesis.held_out": [],
        "synthesis.train_tasks": 2,
        "synthesis.eval_tasks": 2,
        "synthesis.num_grounding_examples": 12,
        "rollout.n_rollouts": 1,
        "policy.max_new_tokens": 24,
        "ct.num_examples": 12,
        "sft.num_examples": 12,
        "rl.tasks_per_step": 1,
        "rl.value_pretraining_tasks": 2,
        "rl.value_pretraining_steps": 1,
        "rl.length_buffer": 8,
        "rl.fresh_tasks": True,  # so that it opens all that it declares
        "rl.restored_start_fraction": 0.5,
        "merge.weights": {"games": 0.5, "sites": 0.5},
        "evaluation.stages": True,
        "promotion.tasks": 7,
        "promotion.margin": 0.5,
    }
    (ws.params).write_text(yaml.safe_dump(load_settings(ws.params, small).model_dump(mode="json")))
    manifest.init_first_checkpoint(ws, "base", "models/base")
    begin_iteration(ws, 1, load_settings(ws.params))
    return ws


def named(ws: Workspace, record: Record, iteration: int) -> list[Path]:
    """What a record names by hash, which is read with it."""
    path = record.path(ws, iteration - record.previous)
    told = json.loads(path.read_text())
    match record.name:
        case "sessions":
            return [ws.resolve(session["path"]) for session in told["sessions"]]
        case "promotion":
            return [ws.resolve(told["model"])]
        case "manifest":
            before = [ws.manifest(k) for k in range(told["iteration"])]
            return [*before, *(ws.resolve(shard["path"]) for shard in told["shards"])]
    return []


@pytest.mark.slow
def test_what_a_stage_opens_is_what_it_declares(workspace):
    ws, untrue = workspace, []
    settings = Watched.model_validate(load_settings(ws.frozen_params(1)).model_dump())
    for name in dag.stage_order(settings.synthesis.domains, closing=True):
        stage, ctx = dag.find_stage(name), StageContext(ws, settings, 1, name)
        ctx.key(stage)  # it reads all that is declared
        _ASKED.clear()
        files._cache.clear()  # what it asks the hash of it opens, as in a process of its own
        with watching(ws.root) as opened:
            run_stage(stage, ctx)
        asked, declared = set(_ASKED), set(stage.settings)
        untrue += [(name, "asks for", block) for block in asked - declared]
        untrue += [(name, "does not ask for", block) for block in declared - asked - _PERHAPS]
        domains = [ctx.domain] if ctx.domain else list(settings.synthesis.domains)
        reads = [one for whole in stage.reads for one in expand_domains(whole, domains)]
        places = {one: one.path(ws, 1 - getattr(one, "previous", False)) for one in reads}
        allowed = [*places.values(), ws.frozen_params(1)]
        allowed += [path for one in reads if isinstance(one, Record) for path in named(ws, one, 1)]
        allowed += [one.path(ws, 1) for whole in stage.outputs for one in expand_domains(whole, [ctx.domain])]
        allowed += [ws.state, *([ws.data, ws.root / "iterations"] if name in _CHECK_CONTRACTS else [])]
        strange = [path for path in opened if not any(path.is_relative_to(place) for place in allowed)]
        untrue += [(name, "opens", ws.relative(path)) for path in strange]
        idle = [one for one, place in places.items() if not any(path.is_relative_to(place) for path in opened)]
        untrue += [(name, "does not open", one) for one in idle]
    assert untrue == [], "\n".join(map(str, untrue))


# What a stage's process (`flywheel stage`) may load of these, each a twentieth of a second of the processor or more.
_SLOW_IMPORTS = (
    "torch",
    "transformers",
    "prefect",
    "ray",
    "pandas",
    "playwright",
    "aiohttp",
    "uvicorn",
    "pocketsphinx",
)
_MAY_LOAD = {
    "ingest": {"pocketsphinx"},
    "synthesize": {"playwright", "uvicorn"},
    "rollout": {"torch", "transformers", "uvicorn"},
    "route": {"pandas"},  # DuckDB looks whether a parameter of a contract is of it
    "ct": {"torch", "transformers"},
    "sft": {"torch", "transformers"},
    "rl-games": {"torch", "transformers", "uvicorn"},
    "rl-sites": {"torch", "transformers", "uvicorn"},
    "merge": {"torch"},
    "evaluate": {"torch", "transformers", "uvicorn"},
    "promote": {"pandas"},
}


@pytest.mark.slow
def test_a_stage_process_loads_no_more_than_it_works_with(workspace):
    code = f"""
import sys
from flywheel.cli import main
main(["stage", *sys.argv[1:]], standalone_mode=False)
print("loaded:", *({{*sys.modules}} & {{*{_SLOW_IMPORTS!r}}}))
"""
    loaded = {}
    for name in dag.stage_order(load_settings(workspace.params).synthesis.domains, closing=True):
        done = subprocess.run(
            [sys.executable, "-c", code, name, "--iteration", "1"], cwd=workspace.root, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        loaded[name] = {*done.stdout.split("loaded:")[1].split()}
    assert {name: more for name, found in loaded.items() if (more := found - _MAY_LOAD.get(name, set()))} == {}


def test_inputs_are_json(workspace):
    stage = dag.find_stage("synthesize")
    told = stage_inputs(stage, StageContext.open(workspace, 1, "synthesize"))
    assert json.loads(json.dumps(told)) == told
    assert Partition("tasks", "synthesize") in stage.outputs
    assert Checkpoint("merged") in dag.find_stage("merge").outputs
