"""The loop in which models compete: it stops as soon as the gate knows, and takes up what a killed run has played.

The episodes are scripted here: what is tested is when they are asked for. tests/e2e/test_turn.py plays real ones.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from flywheel import config
from flywheel.evaluation import gate
from flywheel.pipeline.stage import StageContext, write_shard
from flywheel.pipeline.stages import evaluate
from flywheel.store import manifest
from flywheel.utils.files import write_text


@pytest.fixture
def ctx(ws) -> StageContext:
    chosen = config.parse_settings({"promotion": {"tasks": 60, "tasks_per_look": 10}}, where="test")
    write_text(ws.frozen_params(1), config.dump_settings(chosen))
    manifest.init_first_checkpoint(ws, digest="d0")
    manifest.write_manifest(ws, 1, window=1)
    return StageContext.open(ws, 1, "evaluate")


@pytest.fixture
def played(monkeypatch) -> list[tuple[str, int]]:
    """(player, tasks) of each look that was played. A model solves the first tasks of a look: as many as its folder's
    name says."""
    seen = []

    async def play(ctx, name, model, tasks, sandbox, folder):
        seen.append((model.name, len(tasks)))
        solved = int(model.name)
        write_shard(folder, "scores", [])
        return {
            "results": [
                {"task_id": task.task_id, "domain": task.domain, "score": 0.0, "v": number < solved}
                for number, task in enumerate(tasks)
            ],
            "around": {},
        }

    @asynccontextmanager
    async def no_environments(*_):
        yield SimpleNamespace(env=None)

    async def as_they_are(tasks, lease):
        return list(tasks)

    monkeypatch.setattr(evaluate, "play_and_stage", play)
    monkeypatch.setattr(evaluate, "open_environments", no_environments)
    monkeypatch.setattr(evaluate.page_tasks, "fetch_page_instructions", as_they_are)
    return seen


async def compete(ctx, tmp_path, candidate: str, **rivals: str) -> dict:
    models = {name: tmp_path / solved for name, solved in rivals.items()}
    return await evaluate.run_sequential_eval(ctx, tmp_path / candidate, models, tmp_path / "shard")


@pytest.mark.parametrize(
    ("candidate", "before", "looks", "verdict"),
    [("10", "0", 1, "pass"), ("0", "10", 1, "fail"), ("4", "4", 6, "pass"), ("5", "6", 6, "fail")],
)
async def test_it_plays_until_the_gate_knows(ctx, played, tmp_path, candidate, before, looks, verdict):
    found = await compete(ctx, tmp_path, candidate, before=before)
    assert played == [(candidate, 10), (before, 10)] * looks
    judged = evaluate.judge_results(found["results"], ctx.settings.promotion)
    assert (judged["before"].verdict, judged["before"].n) == (verdict, 10 * looks)
    told = gate.build_gate_metrics("before", judged["before"])
    assert gate.parse_gate_metrics([{"domain": "all", **row} for row in told], ctx.settings.promotion) == judged


async def test_it_must_hold_its_own_against_the_best_so_far_too(ctx, played, tmp_path):
    """Much better than the model before it, much worse than the best: one look of the three is enough."""
    found = await compete(ctx, tmp_path, "5", before="0", best="10")
    judged = evaluate.judge_results(found["results"], ctx.settings.promotion)
    assert judged["best"].verdict == "fail"
    assert set(played) == {("5", 10), ("0", 10), ("10", 10)}


async def test_a_killed_run_takes_up_its_looks(ctx, played, tmp_path):
    whole = await compete(ctx, tmp_path, "4", before="4")
    (tmp_path / "shard" / whole["looks"][-1] / "result.json").unlink()
    played.clear()
    assert await compete(ctx, tmp_path, "4", before="4") == whole
    assert played == [("4", 10)]
