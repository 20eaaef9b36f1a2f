"""Shards: what was finished is taken from disk, other inputs do not meet old results, half a shard is done again."""

from __future__ import annotations

import contextlib
import ctypes
import json
from dataclasses import replace
from pathlib import Path

import pytest

from flywheel import config
from flywheel.pipeline import dag
from flywheel.pipeline import stage as pipeline_stage
from flywheel.store import partitions
from flywheel.utils.errors import BadInput, DataError, FlywheelError
from flywheel.utils.files import write_text


@pytest.fixture
def ctx(ws):
    write_text(ws.frozen_params(1), config.dump_settings(config.Settings()))
    return pipeline_stage.StageContext.open(ws, 1, "count")


def counting(calls, depends="same", fail_at="", wrote=()):
    def work(ctx, shard, folder):
        calls.append(shard)
        if shard == fail_at:
            (folder / "half").write_text("half")
            raise RuntimeError("killed")
        return {"name": shard}

    def finish(ctx, results):
        rows = [{"name": shard, "domain": "all", "step": 1, "value": 1.0} for shard in results]
        return pipeline_stage.StageResult(wrote, tuple(rows), {"shards": len(results)})

    return pipeline_stage.Stage(
        "count",
        reads=(),
        writes=(),
        settings=(),
        plan=lambda ctx: ("a", "b", "c"),
        work=work,
        finish=finish,
        extra=lambda ctx: depends,
    )


def test_a_stage_that_was_killed_goes_on_from_its_finished_shards(ctx):
    calls = []
    with pytest.raises(RuntimeError):
        pipeline_stage.run_stage(counting(calls, fail_at="b"), ctx)
    assert calls == ["a", "b"]
    outcome = pipeline_stage.run_stage(counting(calls), ctx)
    assert calls == ["a", "b", "b", "c"]
    assert outcome.summary == {"shards": 3}
    written = partitions.read_partition(ctx.ws, "metrics", 1, "count").to_pylist()
    assert [row["name"] for row in written] == ["a", "b", "c", "seconds"]


def test_finished_shards_of_other_inputs_are_not_taken(ctx):
    calls = []
    for depends in ("old", "new"):
        pipeline_stage.run_stage(counting(calls, depends), pipeline_stage.StageContext.open(ctx.ws, 1, "count"))
    assert calls == ["a", "b", "c"] * 2


def test_shards_that_other_code_did_are_not_taken(ctx, tmp_path):
    source, calls = tmp_path / "count.py", []
    for text, fails in (("one", "b"), ("other", "b"), ("other", "")):
        source.write_text(text)
        stage = replace(counting(calls, fail_at=fails), source=str(source))
        with pytest.raises(RuntimeError) if fails else contextlib.nullcontext():
            pipeline_stage.run_stage(stage, pipeline_stage.StageContext.open(ctx.ws, 1, "count"))
    assert calls == ["a", "b", "a", "b", "b", "c"]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"reads": pipeline_stage.Partition("steps", "rollout")}, "stage count: reads is no tuple of artifacts"),
        ({"reads": (pipeline_stage.Partition("steps", "rolout"),)}, r"reads Partition\(.*rolout.*\), which no stage"),
        ({"reads": (pipeline_stage.Partition("stepz", "rollout"),)}, "an unknown table: stepz; did you mean steps"),
        ({"reads": (pipeline_stage.Checkpoint("stf"),)}, "which no stage writes"),
        ({"writes": "efforts"}, "writes is no tuple"),
        ({"writes": ("efforts",)}, "an unknown table: efforts"),
        ({"settings": ("rolout",)}, "an unknown block of settings: rolout; did you mean rollout"),
    ],
)
def test_what_a_stage_declares_is_checked_before_anything_runs(changes, what):
    known = dag.all_stages()
    dag.check_declarations([*known, counting([])])
    with pytest.raises(BadInput, match=what):
        dag.check_declarations([*known, replace(counting([]), **changes)])


def test_what_is_written_and_not_declared_is_refused(ctx):
    with pytest.raises(FlywheelError, match=r"wrote the tables \['reviews'\] and declares \[\] \(stage count\)"):
        pipeline_stage.run_stage(counting([], wrote=(partitions.PartitionManifest("reviews", ()),)), ctx)


def gathering(table):
    return lambda ctx, results: pipeline_stage.StageResult((ctx.gather_shards(results, table),))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"finish": lambda ctx, results: None}, r"its `finish` returned None \(stage count\); end it with"),
        ({"work": lambda ctx, shard, folder: folder}, r"no JSON value: .*PosixPath.* \(stage count\); return numbers"),
        ({"finish": gathering("reviews"), "writes": ("reviews",)}, r"the shard a staged no rows of the table reviews"),
        ({"finish": lambda ctx, results: pipeline_stage.read_shards(results, "reviews")}, "the shard a staged no rows"),
    ],
)
def test_slips_of_a_stages_functions_are_named(ctx, changes, what):
    with pytest.raises(FlywheelError, match=what):
        pipeline_stage.run_stage(replace(counting([]), **changes), ctx)


def test_without_a_first_model_it_is_said_which_command_records_it(ctx):
    with pytest.raises(DataError, match="`flywheel run` records there the model that the workspace begins from"):
        ctx.newest_model()


def run_shard(stage, ctx, shard):
    with pipeline_stage.InProcessWorker(stage, ctx) as worker:
        return worker.do_shard(shard)


def test_a_result_is_there_whole_or_not_at_all(ctx):
    stage = counting([])
    folder, result, before = run_shard(stage, ctx, "a")
    assert (result, before) == ({"name": "a"}, False)
    assert json.loads((folder / "result.json").read_text())["result"] == result
    assert run_shard(stage, ctx, "a") == (folder, result, True)
    pipeline_stage.clear_staging(ctx)
    assert not folder.exists()


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this C library gives back by itself, or never"
)
def test_what_a_shard_has_freed_goes_back_to_the_machine(ctx):
    """The C library keeps freed memory below what is still held: here 240 MB."""
    survivors = []

    def work(ctx, shard, folder):
        held = [bytearray(60_000) for _ in range(4_000)]
        survivors.extend(held[::50])
        return None

    before = _resident_mb()
    run_shard(replace(counting([]), work=work), ctx, "a")
    assert _resident_mb() - before < 60


def _resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def test_an_iteration_that_was_not_begun_is_refused(ws):
    with pytest.raises(BadInput, match="iteration 003 has not been begun"):
        pipeline_stage.StageContext.open(ws, 3, "score")


def test_seeds_differ_by_use_and_repeat(ctx):
    seeds = {ctx.seed("rollout", n) for n in range(1000)}
    assert len(seeds) == 1000
    assert ctx.seed("rollout", 1) == ctx.seed("rollout", 1)
    assert all(0 <= seed < 2**31 for seed in seeds)
