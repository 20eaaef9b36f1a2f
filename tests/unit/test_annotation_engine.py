"""An annotation session without a page: what is proposed, decided, undone, lost and kept."""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import replace

import pytest
from text_env import STORE, Shelf, ShelfSettings, Shelves
from told_policy import ToldPolicy

from flywheel.agent import actions as act
from flywheel.agent.actions import Finished, Point, Type, Wait
from flywheel.agent.grammar import Grammar
from flywheel.agent.parsing.parser import parse_response
from flywheel.config import Settings
from flywheel.envs.base import Gesture
from flywheel.envs.registry import BACKENDS
from flywheel.envs.tasks.drawing import make_task
from flywheel.recordings.annotation import journal as journals
from flywheel.recordings.annotation.distinct import have_the_same_effect
from flywheel.recordings.annotation.journal import read_annotation, read_unfinished
from flywheel.recordings.annotation.overrides import action_of_gestures, word_thought
from flywheel.recordings.annotation.rows import annotation_rows
from flywheel.recordings.annotation.session import AnnotationSession
from flywheel.utils.errors import BadInput, DataError, DiskFull, EnvError, PolicyError

SETTINGS = Settings.model_validate({"annotation": {"candidates": 3, "max_samples": 8}})
TASK = replace(make_task(STORE, "on", 2, 3, "train"), max_steps=6)
THINGS = [name for name in TASK.params["store"] if name != "lamp"]


def says(action: str, thought: str = "I try.") -> str:
    return f"Thought: {thought}\nAction: {action}"


def types(text: str) -> str:
    return says(f"type(content='{text}')")


@pytest.fixture(autouse=True)
def shelves(monkeypatch):
    monkeypatch.setitem(BACKENDS, "shelves", Shelves())


async def begun(folder, policy, env=None):
    env = env or Shelf(ShelfSettings())
    return await AnnotationSession.begin(env, TASK, policy, SETTINGS, folder / "s1", annotator="ada", model="base")


async def test_what_does_the_same_is_one_candidate_with_its_votes(tmp_path):
    said = [types("set a 1"), types("set b 2"), types("set a 1"), "no action", says("wait()"), types("set a 1")]
    session = await begun(tmp_path, ToldPolicy(said))
    found = await session.propose()
    assert [(one.chosen["action"], one.votes) for one in found] == [
        ("type(content='set a 1')", 3),
        ("type(content='set b 2')", 1),
        ("wait()", 1),
    ]
    assert {one.samples for one in found} == {6}


async def test_a_policy_that_says_the_same_is_asked_no_more_than_allowed(tmp_path):
    policy = ToldPolicy([types("set a 1")])
    session = await begun(tmp_path, policy)
    (only,) = await session.propose()
    assert policy.asked == only.votes == SETTINGS.annotation.max_samples
    assert [one.number for one in await session.propose()] == [0]
    assert policy.asked == SETTINGS.annotation.max_samples  # the same proposals: nothing is asked again
    assert [one.number for one in await session.propose(more=True)] == [0]


async def test_rows_say_who_decided_what(tmp_path):
    policy = ToldPolicy([types("set a 1"), types("set b 2"), says("wait()"), *[types("set c 3")] * 3, types("set d 4")])
    session = await begun(tmp_path, policy)
    await session.propose()
    await session.accept(0)
    await session.undo()
    assert [one.undone for one in session.candidates] == [True, False, False]
    await session.override(Type("set e 5"), "Better so.")
    assert await session.play(1) == 1
    verdict = await session.finish("", "It is done.")
    assert (verdict.score, verdict.v) == (0.0, False)
    made = annotation_rows(tmp_path / "s1", SETTINGS, 4)
    assert [(one.author, one.action, one.thought) for one in made.steps[:1]] == [
        ("human", "type(content='set e 5')", "Better so.")
    ]
    assert [one.author for one in made.steps] == ["human", "model", "human"]
    assert made.steps[1].token_ids
    assert made.steps[1].logprobs == (-0.5, -0.25)
    assert made.steps[0].token_ids is None
    assert [(row["step"], row["candidate"], row["decision"], row["annotator"]) for row in made.candidate_rows] == [
        (0, 0, "undone", "ada"),
        (0, 1, "rejected", "ada"),
        (0, 2, "rejected", "ada"),
        (1, 0, "accepted", None),
    ]
    row = made.trajectory
    assert (row.source, row.author, row.annotator, row.status, row.policy_version, row.steps) == (
        "annotation", "human", "ada", "completed", "told", 3,
    )  # fmt: skip


async def test_candidates_of_a_screen_that_was_left_stand_beside_no_step(tmp_path):
    session = await begun(tmp_path, ToldPolicy([types("set a 1"), types("set b 2"), says("wait()")] * 9))
    await session.propose()
    await session.accept(0)
    await session.propose()  # of a screen that the undo leaves
    await session.undo()
    await session.accept(1)
    await session.propose()
    await session.override(Type("set lamp on"))
    await session.finish()
    rows = annotation_rows(tmp_path / "s1", SETTINGS, 1).candidate_rows
    assert [row["candidate"] for row in rows if row["step"] == 1] == [3, 4, 5]
    assert {row["decision"] for row in rows if row["step"] == 1} == {"rejected"}


async def test_votes_count_the_proposals_for_the_screen_that_is_shown(tmp_path):
    said = [types("set a 1"), types("set b 2"), says("wait()")]
    session = await begun(tmp_path, ToldPolicy(said * 20))
    for number in (0, 1):
        await session.propose()
        await session.accept(number)
        found = await session.propose()
        assert [(one.votes, one.samples) for one in found] == [(1, 3)] * 3
        await session.undo()
    assert [(one.votes, one.samples) for one in await session.propose()] == [(1, 3)] * 3
    await session.play(1)
    await session.undo()
    assert [(one.votes, one.samples) for one in session.candidates] == [(1, 3)] * 3 + [(1, 1)]


async def test_an_end_that_is_not_solved_is_asked_about_once(tmp_path):
    session = await begun(tmp_path, ToldPolicy([says("wait()")]))
    assert not (await session.finish("", ask=True)).v
    assert (session.over, session.state.ended) == (True, None)
    await session.undo()
    assert not (await session.finish("", ask=True)).v
    assert not (await session.finish("", ask=True)).v
    assert session.state.ended
    (step,) = annotation_rows(tmp_path / "s1", SETTINGS, 1).steps
    assert (step.author, step.action) == ("human", "finished()")


async def test_an_undo_brings_back_what_was_there(tmp_path):
    session = await begun(tmp_path, ToldPolicy([says("wait()")]))
    before = session.result.observation.text
    await session.override(Type(f"set {THINGS[0]} 77"))
    assert "=77" in session.result.observation.text
    await session.undo()
    assert session.result.observation.text == before
    with pytest.raises(BadInput, match="no step to undo"):
        await session.undo()


async def test_a_text_without_an_action_costs_the_playing_model_a_step(tmp_path):
    session = await begun(tmp_path, ToldPolicy(["nothing"]))
    assert await session.play(9) == 6  # the task's budget
    assert session.over
    await session.finish()
    made = annotation_rows(tmp_path / "s1", SETTINGS, 1)
    assert made.trajectory.status == "invalid"
    assert all(step.parse_error for step in made.steps)


async def test_an_episode_that_is_over_can_be_undone_or_finished_alone(tmp_path):
    session = await begun(tmp_path, ToldPolicy([types("set lamp on")]))
    await session.propose()
    await session.accept(0)
    assert session.over
    assert session.verdict.v
    for call in (session.propose(), session.accept(0), session.override(Wait())):
        with pytest.raises(BadInput, match="over"):
            await call
    await session.finish()
    made = annotation_rows(tmp_path / "s1", SETTINGS, 1)
    assert (made.trajectory.reward, made.trajectory.author, len(made.steps)) == (1.0, "model", 1)


@pytest.mark.parametrize(
    "thought",
    [
        "Action: wait()",
        "so\nAction: click(point='<point>1 1</point>')",
        "</think>",
        "Thought: a Action：wait()",
        '<tool_call>{"name": "wait"}</tool_call>',
        "\u202e\x00 \ud800",
    ],
)
async def test_no_thought_changes_what_is_read_back(tmp_path, thought):
    session = await begun(tmp_path, ToldPolicy([says("wait()")]))
    await session.override(Type("set a 1"), thought)
    await session.finish()
    step = annotation_rows(tmp_path / "s1", SETTINGS, 1).steps[0]
    assert parse_response(step.raw_text, Grammar.of_settings(SETTINGS)).action == Type("set a 1")


async def test_a_thought_that_hides_the_action_is_refused(tmp_path):
    session = await begun(tmp_path, ToldPolicy([says("wait()")]))
    with pytest.raises(BadInput, match="would not be read after this thought"):
        await session.override(Type("set a 1"), "<think>no")
    assert session.steps == 0


async def test_weights_that_change_in_a_session_propose_nothing(tmp_path):
    policy = ToldPolicy([types("set a 1")])
    session = await begun(tmp_path, policy)
    policy.weight_version = "newer"
    with pytest.raises(PolicyError, match="began with told"):
        await session.propose()
    await session.override(Type("set a 1"))  # by hand it goes on
    assert session.steps == 1


async def test_a_dead_policy_leaves_the_person_at_work(tmp_path):
    session = await begun(tmp_path, ToldPolicy([PolicyError("gone")]))
    with pytest.raises(PolicyError, match="gone"):
        await session.propose()
    await session.override(Type("set lamp on"))
    assert (await session.finish()).v


# -- the journal ------------------------------------------------------------------------------------------------------
class Breaking(Shelf):
    """Breaks at its second step."""

    async def step(self, action):
        if self._steps:
            raise EnvError("the page crashed")
        return await super().step(action)


async def test_a_lost_environment_loses_no_decision(tmp_path):
    session = await begun(tmp_path, ToldPolicy([says("wait()")]), Breaking(ShelfSettings()))
    await session.override(Type(f"set {THINGS[0]} 1"))
    with pytest.raises(EnvError, match="crashed"):
        await session.override(Type(f"set {THINGS[1]} 2"))
    await session.revive(Shelf(ShelfSettings()))
    assert session.steps == 2
    assert f"{THINGS[0]}=1" in session.result.observation.text
    assert f"{THINGS[1]}=2" in session.result.observation.text


async def test_a_session_goes_on_from_its_journal(tmp_path):
    policy = ToldPolicy([types("set a 1"), types("set b 2"), says("wait()")] * 9)
    session = await begun(tmp_path, policy)
    await session.propose()
    await session.accept(1)
    proposed = await session.propose()
    session.close()
    with (tmp_path / "s1" / journals.OPEN_JOURNAL).open("ab") as file:
        file.write(b'{"do": "chose", "st')  # cut off by a kill
    again = await AnnotationSession.resume(Shelf(ShelfSettings()), policy, SETTINGS, tmp_path / "s1")
    assert again.steps == 1
    assert again.candidates == proposed
    await again.accept(proposed[2].number)
    await again.finish()
    assert [step.action for step in annotation_rows(tmp_path / "s1", SETTINGS, 1).steps] == [
        "type(content='set b 2')",
        "wait()",
        "finished()",
    ]


async def test_a_session_is_open_once(tmp_path):
    session = await begun(tmp_path, ToldPolicy([says("wait()")]))
    with pytest.raises(DataError, match="open elsewhere"):
        await AnnotationSession.resume(Shelf(ShelfSettings()), ToldPolicy([""]), SETTINGS, tmp_path / "s1")
    await session.override(Wait())
    assert session.steps == 1


async def test_an_end_that_was_written_is_an_end(tmp_path):
    session = await begun(tmp_path, ToldPolicy([says("wait()")]))
    await session.override(Type("set lamp on"))
    await session.finish()
    done, open_ = tmp_path / "s1" / journals.FINISHED_JOURNAL, tmp_path / "s1" / journals.OPEN_JOURNAL
    done.rename(open_)  # killed just before its new name
    with pytest.raises(DataError, match="finished"):
        await AnnotationSession.resume(Shelf(ShelfSettings()), ToldPolicy([""]), SETTINGS, tmp_path / "s1")
    assert read_annotation(tmp_path / "s1")[0].ended["score"] == 1.0


async def test_other_weights_do_not_go_on_with_a_session(tmp_path):
    session = await begun(tmp_path, ToldPolicy([says("wait()")]))
    await session.override(Wait())
    session.close()
    with pytest.raises(PolicyError, match="began with"):
        await AnnotationSession.resume(Shelf(ShelfSettings()), ToldPolicy([""], "other"), SETTINGS, tmp_path / "s1")
    assert len(read_unfinished(tmp_path / "s1").steps) == 1


async def test_a_full_disk_takes_no_decision_and_harms_none(tmp_path, monkeypatch):
    session = await begun(tmp_path, ToldPolicy([types("set a 1")]))
    await session.override(Type(f"set {THINGS[0]} 1"))
    path = tmp_path / "s1" / journals.OPEN_JOURNAL
    before, write = path.read_bytes(), os.write

    def full(file, data):
        if len(data) > 10:
            write(file, data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(journals.os, "write", full)
    with pytest.raises(DiskFull):
        await session.override(Type(f"set {THINGS[1]} 2"))
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert session.steps == 1
    monkeypatch.setitem(BACKENDS, "shelves", Shelves())
    await session.override(Type(f"set {THINGS[1]} 2"))
    assert session.steps == 2


@pytest.mark.parametrize("harm", ["line", "screen", "version", "gone"])
async def test_a_damaged_session_is_invalid_with_its_reason(tmp_path, harm):
    session = await begun(tmp_path, ToldPolicy([says("wait()")]))
    await session.override(Type("set lamp on"))
    await session.finish()
    path = tmp_path / "s1" / journals.FINISHED_JOURNAL
    lines = path.read_text().splitlines()
    if harm == "line":
        path.write_text("\n".join([lines[0], "{", *lines[2:]]) + "\n")
    elif harm == "screen":
        lines[1] = json.dumps({**json.loads(lines[1]), "screen": "ab" * 32})
        path.write_text("\n".join(lines) + "\n")
    elif harm == "version":
        path.write_text(path.read_text().replace('"version": 1', '"version": 99'))
    else:
        shutil.copy(path, tmp_path / "kept")
        path.write_text("\n".join(lines[:2]) + "\n")
    made = annotation_rows(tmp_path / "s1", SETTINGS, 1)
    assert (made.trajectory.status, made.trajectory.source) == ("invalid", "annotation")
    assert made.trajectory.error
    assert not made.steps


# -- gestures ---------------------------------------------------------------------------------------------------------
HERE, THERE = {"x": 0.25, "y": 0.5}, {"x": 0.75, "y": 0.5}
P, Q = Point(0.25, 0.5), Point(0.75, 0.5)
DRAG = [{"do": "grab", **HERE}, {"do": "move", **THERE}, {"do": "drop", **THERE}]


@pytest.mark.parametrize(
    ("said", "touch", "action"),
    [
        ([{"do": "click", **HERE}], False, act.Click(P)),
        ([{"do": "click", **HERE, "count": 2}], False, act.LeftDouble(P)),
        ([{"do": "click", **HERE, "count": 3}], False, act.LeftTriple(P)),
        ([{"do": "click", **HERE, "count": 2}], True, act.Click(P)),
        ([{"do": "click", **HERE, "button": "right"}], False, act.RightSingle(P)),
        ([{"do": "long", **HERE}], True, act.LongPress(P)),
        (DRAG, False, act.Drag(P, Q)),
        ([{"do": "wheel", **HERE, "right": 0, "down": 40}], False, act.Scroll(P, "down")),
        ([{"do": "wheel", **HERE, "right": -40, "down": 4}], False, act.Scroll(P, "left")),
        ([{"do": "text", "text": "abc\n"}], False, act.Type("abc\n")),
        ([{"do": "press", "key": "Control"}, {"do": "press", "key": "a"}], False, act.Hotkey(("ctrl", "a"))),
        ([{"do": "press", "key": " "}], False, act.Hotkey(("space",))),
        ([{"do": "press", "key": "ArrowDown"}], False, act.Hotkey(("down",))),  # as the model's own steps have it
        ([{"do": "press", "key": "Meta"}, {"do": "press", "key": "Escape"}], False, act.Hotkey(("win", "esc"))),
        ([{"do": "back"}], False, act.NavigateBack()),
        ([{"do": "back"}], True, act.PressBack()),
        ([{"do": "home"}], True, act.PressHome()),
    ],
)
def test_gestures_are_actions(said, touch, action):
    assert action_of_gestures([Gesture.from_json(one) for one in said], touch) == action


@pytest.mark.parametrize(
    "said",
    [
        [],
        [{"do": "click", **HERE}] * 2,
        DRAG[:2],
        [{"do": "text", "text": ""}],
        [{"do": "press", "key": "a"}] * 4,
        [{"do": "press", "key": "a"}, {"do": "release", "key": "a"}],
    ],
)
def test_other_gestures_are_none(said):
    with pytest.raises(BadInput, match="no action"):
        action_of_gestures([Gesture.from_json(one) for one in said], False)


def test_four_clicks_are_no_action():
    with pytest.raises(BadInput, match="no action"):
        action_of_gestures([Gesture("click", count=4)], False)


def test_rules_word_what_lies_under_a_point():
    elements = [
        {"name": "page", "x": 0, "y": 0, "w": 1, "h": 1},
        {"name": "cart", "x": 0.2, "y": 0.4, "w": 0.2, "h": 0.2},
    ]
    assert word_thought(act.Click(P), elements) == "Click cart."
    assert word_thought(act.Drag(P, Q), elements) == "Drag from cart to page."
    assert word_thought(act.Click(P)) == "Click here."
    assert word_thought(Finished("7")) == "The answer is 7."


BUTTON = {"name": "go", "x": 0.2, "y": 0.2, "w": 0.1, "h": 0.1}
CARD = {"name": "card", "x": 0.1, "y": 0.1, "w": 0.5, "h": 0.5}


@pytest.mark.parametrize(
    ("one", "other", "elements", "same"),
    [
        ((0.21, 0.21), (0.29, 0.29), [BUTTON], True),
        ((0.30, 0.25), (0.31, 0.25), [BUTTON], True),  # one cell beside it
        ((0.30, 0.25), (0.34, 0.25), [BUTTON], False),
        ((0.25, 0.25), (0.31, 0.25), [CARD, BUTTON], False),  # on the card, beside the button
        ((0.31, 0.25), (0.25, 0.25), [CARD, BUTTON], False),
        ((0.80, 0.80), (0.81, 0.80), [BUTTON], True),
        ((0.80, 0.80), (0.90, 0.80), [BUTTON], False),
    ],
)
def test_clicks_are_distinct_in_effect(one, other, elements, same):
    first, second = act.Click(Point(*one)), act.Click(Point(*other))
    assert have_the_same_effect(first, second, elements) is same
    assert have_the_same_effect(second, first, elements) is same
    assert not have_the_same_effect(first, act.LeftDouble(first.point), elements)


async def test_of_answers_that_mean_one_element_one_that_hits_it_is_the_candidate(tmp_path, monkeypatch):
    said = [says("click(point='<point>31 25</point>')", "Beside."), says("click(point='<point>25 25</point>')", "Go.")]
    monkeypatch.setattr(AnnotationSession, "elements", [BUTTON])
    session = await begun(tmp_path, ToldPolicy(said * 4))
    (found,) = await session.propose()
    assert (found.thought, found.votes) == ("Go.", 8)
    row = (await done_rows(session, found.number)).candidate_rows[0]
    assert (row["votes"], row["samples"], row["decision"]) == (8, 8, "accepted")


async def done_rows(session, number):
    folder = session._journal.folder
    await session.accept(number)
    await session.finish()
    return annotation_rows(folder, SETTINGS, 1)
