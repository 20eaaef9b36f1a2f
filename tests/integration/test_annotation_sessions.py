"""Annotated sessions of a real page and the shipped model: what is accepted is on-policy, and nothing is lost."""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import pytest_asyncio
import synthetic
import torch
from anyio import open_process
from pages import click_on, task_of
from processes import PATIENCE_S

from flywheel.agent.actions import Click, Point
from flywheel.config import Settings
from flywheel.envs.registry import open_environments
from flywheel.pipeline.iterations import begin_iteration
from flywheel.pipeline.stage import StageContext, run_stage
from flywheel.pipeline.stages import ingest
from flywheel.policy.encoding import Encoder, collate_sequences
from flywheel.policy.inference.embedded import EmbeddedPolicy
from flywheel.policy.model import load_model
from flywheel.recordings.annotation.journal import is_annotation, iter_open_sessions
from flywheel.recordings.annotation.rows import annotation_rows
from flywheel.recordings.annotation.session import AnnotationSession, ReplayDiffers
from flywheel.rollout.corrections import does_the_same
from flywheel.store.catalog import database
from flywheel.training.data import build_agent_examples

BASE = Path(__file__).parents[2] / "models" / "base"
SETTINGS = Settings.model_validate({
    # Without a grammar that decoding holds to, log-probabilities are those of a plain pass.
    "policy": {"guided_decoding": "never", "history_n_images": 2},
    "sandbox": {"timeout_s": 60.0, "pages": 2, "browsers": 1, "pages_min": 0},
})  # fmt: skip
SETTINGS_TASK = task_of("settings", "two", level=2)
PLAYED = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def environments():
    async with open_environments(SETTINGS, [SETTINGS_TASK]) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def policy():
    opened = EmbeddedPolicy(BASE, SETTINGS.policy)
    yield opened
    await opened.close()


def switch(session, number):
    """A click on the page's switch of that number."""
    names = [one["name"] for one in session.elements if one["name"].startswith("switch")]
    return click_on(session.result, names[number])


async def annotate(env, policy, folder, task=SETTINGS_TASK) -> AnnotationSession:
    """Accept, take back, override, let it play: to the end."""
    session = await AnnotationSession.begin(env, task, policy, SETTINGS, folder, annotator="ada", model="models/base")
    found = await session.propose()
    await session.accept(found[0].number)
    await session.undo()
    await session.accept((await session.propose())[-1].number)
    if not session.over:
        await session.propose()
        await session.override(click_on(session.result, "page look"), "The other page.")
    await session.play(1)
    await session.finish("", "It is done.")
    return session


@PLAYED
async def test_candidates_differ_by_what_they_do(environments, policy, tmp_path):
    task = task_of("shop", "add", level=2)
    async with environments.env(task) as env:
        session = await AnnotationSession.begin(env, task, policy, SETTINGS, tmp_path / "s", annotator="ada")
        found = await session.propose()
        assert 1 <= len(found) <= SETTINGS.annotation.candidates
        for one, other in itertools.combinations(found, 2):
            assert not does_the_same(one.action, other.action, session.elements)
        assert sum(one.votes for one in found) <= found[0].samples <= SETTINGS.annotation.max_samples
        session.close()


@PLAYED
async def test_log_probabilities_of_what_the_model_chose_are_those_of_its_weights(environments, policy, tmp_path):
    async with environments.env(SETTINGS_TASK) as env:
        await annotate(env, policy, tmp_path / "s")
    made = annotation_rows(tmp_path / "s", SETTINGS, 1)
    images = {row["sha256"]: row["bytes"] for row in made.image_rows}
    encoder, model = Encoder.from_folder(BASE), load_model(BASE)
    examples = build_agent_examples([made.trajectory], made.steps, images, encoder, SETTINGS.policy)
    own = [step for step in made.steps if step.author == "model"]
    assert own
    for step in own:
        example = next(one for one in examples if one.step == step.step)
        sequence = example.context.extended(step.token_ids)
        with torch.no_grad():
            rows = model(**collate_sequences([sequence], "right")).logits[0].log_softmax(-1)
        assert len(example.context) == step.prompt_tokens
        recomputed = [rows[step.prompt_tokens + n - 1, token].item() for n, token in enumerate(step.token_ids)]
        assert step.logprobs == pytest.approx(recomputed, abs=1e-4)
    accepted = {row["step"]: row for row in made.candidate_rows if row["decision"] == "accepted"}
    for step in own:
        assert tuple(accepted[step.step]["token_ids"]) == step.token_ids


@PLAYED
async def test_an_undo_by_checkpoint_shows_what_was_there(environments, policy, tmp_path):
    async with environments.env(SETTINGS_TASK) as env:
        session = await AnnotationSession.begin(env, SETTINGS_TASK, policy, SETTINGS, tmp_path / "s", annotator="ada")
        screens = [session.result.observation.screenshot]
        for number in range(2):
            await session.override(switch(session, number))
            screens.append(session.result.observation.screenshot)
        assert len(set(screens)) == 3
        for screen in screens[1::-1]:
            assert (await session.undo()).observation.screenshot == screen
        session.close()


@PLAYED
async def test_a_world_that_has_changed_is_not_gone_on_with(environments, policy, tmp_path):
    async with environments.env(SETTINGS_TASK) as env:
        session = await AnnotationSession.begin(env, SETTINGS_TASK, policy, SETTINGS, tmp_path / "s", annotator="ada")
        await session.override(Click(Point(0.5, 0.5)))
        session.close()
        journal = tmp_path / "s" / "journal.jsonl"
        text = journal.read_text()
        shown = session.state.seen[-1]["screen"]
        journal.write_text(text.replace(shown, "0" * 64))
        with pytest.raises(ReplayDiffers, match="another screen"):
            await AnnotationSession.resume(env, policy, SETTINGS, tmp_path / "s")


_CHILD = """
import asyncio, sys
from pathlib import Path
import test_annotation_sessions as here
from flywheel.agent.actions import Wait
from flywheel.recordings.annotation.session import AnnotationSession

async def main():
    policy = here.EmbeddedPolicy(here.BASE, here.SETTINGS.policy)
    task = here.SETTINGS_TASK
    async with here.open_environments(here.SETTINGS, [task]) as opened, opened.env(task) as env:
        session = await AnnotationSession.begin(
            env, task, policy, here.SETTINGS, Path(sys.argv[1]), annotator="ada", model="models/base")
        await session.override(here.switch(session, 2))
        await session.propose()
        await session.override(Wait())
        hang = asyncio.Event()
        env.step = lambda action: hang.wait()
        deciding = asyncio.create_task(session.override(here.switch(session, 1)))
        while session.steps < 3 and not deciding.done():
            await asyncio.sleep(0.01)
        print("decided", flush=True)
        await deciding

asyncio.run(main())
"""


@PLAYED
async def test_a_kill_loses_nothing_that_was_decided(environments, policy, tmp_path):
    """Killed while the third decision was being carried out: all three are there, and the third is carried out."""
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support"), str(Path(__file__).parents[2])]
    child = await open_process(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {paths!r}\n{_CHILD}", str(tmp_path / "s")],
        stderr=subprocess.DEVNULL,
    )
    async with asyncio.timeout(PATIENCE_S):
        assert b"decided" in await child.stdout.receive()
    child.send_signal(signal.SIGKILL)
    await child.wait()
    await child.aclose()
    ((name, state),) = iter_open_sessions(tmp_path)
    assert (name, len(state.steps), len(state.seen)) == ("s", 3, 3)
    async with environments.env(SETTINGS_TASK) as env:
        session = await AnnotationSession.resume(env, policy, SETTINGS, tmp_path / "s")
        assert session.steps == 3
        assert len(session.state.seen) == 4
        await session.finish()
    assert is_annotation(tmp_path / "s")
    made = annotation_rows(tmp_path / "s", SETTINGS, 1)
    assert [step.action_type for step in made.steps] == ["click", "wait", "click", "finished"]
    assert {row["step"] for row in made.candidate_rows} == {1}


@PLAYED
async def test_the_next_iteration_takes_in_what_is_finished(environments, policy, tmp_path):
    ws, settings = synthetic.workspace(tmp_path / "ws", policy=SETTINGS.policy.model_dump())
    async with environments.env(SETTINGS_TASK) as env:
        await annotate(env, policy, ws.root / "annotations" / "one")
        left = await AnnotationSession.begin(
            env, SETTINGS_TASK, policy, SETTINGS, ws.root / "annotations" / "two", annotator="ben"
        )
        left.close()
    begin_iteration(ws, 1, settings)
    result = run_stage(ingest.STAGE, StageContext(ws, settings, 1, "ingest"))
    assert result.summary["sessions"] == result.summary["usable"] == 1
    with database.connect_catalog(ws) as connection:
        query = Path(__file__).parents[2] / "docs" / "annotation.md"
        (proof,) = [block for block in query.read_text().split("```sql\n")[1:] if "on_policy" in block]
        rows = database.query_rows(connection, proof.partition("```")[0].strip().rstrip(";"), {})
        pairs = database.query_rows(connection, "FROM preference_pairs", {})
    assert rows
    assert all(row["on_policy"] for row in rows)
    assert {row["weight_version"] for row in rows} == {policy.weight_version}
    assert all(row["rejected_token_ids"] for row in pairs)
    begin_iteration(ws, 1, settings)  # what was chosen stays chosen
    assert run_stage(ingest.STAGE, StageContext(ws, settings, 1, "ingest")).summary["sessions"] == 1
