"""A session of a node that is watched and taken over becomes data, as an annotated one does; its player plays again."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import managers
import pytest
from annotating import annotator
from managers import kinds  # noqa: F401 (a fixture)
from takeovers import SAID, TASK, make_move, taken_node
from text_env import STORE
from told_policy import ToldPolicy
from watched_sessions import logged_in, told

from flywheel.envs.registry import open_environments
from flywheel.envs.tasks.drawing import make_task
from flywheel.recordings.annotation.journal import is_annotation, read_unfinished
from flywheel.recordings.annotation.rows import annotation_rows
from flywheel.recordings.annotation.session import AnnotationSession
from flywheel.utils.errors import EnvError


async def test_a_session_that_is_taken_over_becomes_a_trajectory(tmp_path):
    async with taken_node(tmp_path) as (ws, settings, one, env), logged_in(one.address) as client:
        shown = await told(client)
        async with annotator(client, f"{shown['annotate']}work") as ada:
            await ada.say("begin", annotator="Ada")
            heard = await ada.at_step(2, candidates=False)
            assert (heard["session"]["proposes"], heard["state"]["over"]) == (False, False)
            assert [one["author"] for one in heard["state"]["history"]] == ["model", "model"]
            with pytest.raises(EnvError, match="ada took this session over"):
                await env.step(make_move())
            assert not one.node.sessions
            lamp = {"do": "text", "text": "set lamp on"}
            await ada.say("override", step=2, gestures=[lamp], thought="The lamp.")
            await ada.at_step(3, candidates=False)
            (folder,) = (ws.root / settings.annotation.folder).iterdir()
            lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
            assert [line["do"] for line in lines[-2:]] == ["chose", "seen"]  # on the disk before it is carried out
            await ada.say("undo", step=3)
            await ada.at_step(2, candidates=False)
            await ada.say("override", step=2, gestures=[lamp], thought="The lamp.")
            await ada.at_step(3, candidates=False)
            await ada.say("finish", step=3)
            await ada.hear(lambda heard: "done" in heard or heard["state"]["over"])
            await ada.say("finish", step=3)
            await ada.hear(lambda heard: "done" in heard)
        assert is_annotation(folder)
        assert not one.node.taken
    made = annotation_rows(folder, settings, 4)
    row = made.trajectory
    assert (row.source, row.author, row.annotator, row.policy_version, row.start_step) == (
        "annotation", "human", "ada", "weights", 2,
    )  # fmt: skip
    assert [(step.author, step.weight_version, step.token_ids) for step in made.steps[:3]] == [
        ("model", "weights", (1, 2)), ("model", "weights", (1, 2)), ("human", "human", None),
    ]  # fmt: skip
    assert [step.parse_error for step in made.steps] == ["no action", None, None]
    assert made.steps[2].thought == "The lamp."
    assert [(one["step"], one["decision"], one["annotator"]) for one in made.candidate_rows] == [
        (0, "accepted", None), (1, "accepted", None),
    ]  # fmt: skip


async def test_what_was_decided_before_a_node_dies_is_gone_on_with(tmp_path):
    async with (
        taken_node(tmp_path) as (ws, settings, one, _),
        logged_in(one.address) as client,
        annotator(client, f"{(await told(client))['annotate']}work") as ada,
    ):
        await ada.say("begin", annotator="Ada")
        await ada.at_step(2, candidates=False)
        await ada.say("override", step=2, gestures=[{"do": "text", "text": "set lamp on"}])
        await ada.at_step(3, candidates=False)
        (folder,) = (ws.root / settings.annotation.folder).iterdir()
    state = read_unfinished(folder)
    assert (len(state.steps), state.begun["annotator"]) == (3, "ada")
    async with open_environments(settings, [TASK]) as environments, environments.env(TASK) as env:
        session = await AnnotationSession.resume(env, ToldPolicy([SAID]), settings, folder)
        assert session.result.info["state"]["store"]["lamp"] == "on"
        assert not session.proposes  # other weights than those that played
        await session.finish()
    assert annotation_rows(folder, settings, 1).trajectory.start_step == 2


@pytest.mark.parametrize("split", ["eval"])
async def test_a_task_of_evaluation_is_watched_alone(tmp_path, split):
    task = make_task(STORE, "on", 2, 3, split)
    async with taken_node(tmp_path, task) as (_, _, one, env), logged_in(one.address) as client:
        shown = await told(client)
        assert shown["annotate"] == ""
        async with annotator(client, f"/watch/annotate/{shown['id']}/work") as eve:
            await eve.say("begin", annotator="Eve")
            heard = await eve.hear(lambda heard: "error" in heard)
            assert "never trained on" in heard["error"]
        assert (await env.step(make_move())).info["state"]  # its player plays on


async def test_only_who_has_logged_in_takes_over_and_only_one_does(tmp_path):
    async with taken_node(tmp_path) as (_, _, one, _), logged_in(one.address) as client:
        work = f"{(await told(client))['annotate']}work"
        async with aiohttp.ClientSession(one.address) as stranger, stranger.get(work) as refused:
            assert refused.status == 401
        async with annotator(client, work) as ada, annotator(client, work) as ben:
            await ada.say("begin", annotator="Ada")
            await ada.at_step(2, candidates=False)
            await ben.say("begin", annotator="Ben")
            assert "ada has taken it over" in (await ben.hear(lambda heard: "error" in heard))["error"]


async def test_a_person_who_stays_away_gives_the_place_back(tmp_path):
    async with taken_node(tmp_path) as (ws, settings, one, _), logged_in(one.address) as client:
        async with annotator(client, f"{(await told(client))['annotate']}work") as ada:
            await ada.say("begin", annotator="Ada")
            await ada.at_step(2, candidates=False)
            (taken,) = one.node.taken.values()
            await ada.say("leave")
            await managers.until(lambda: not one.node.taken, "the session is not given back")
        assert taken.life.done()
        assert await asyncio.to_thread(lambda: [*(ws.root / settings.annotation.folder).iterdir()])
