"""Curation: what takes a recording out, what is only remarked on."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from flywheel.agent.actions import Click
from flywheel.config import Settings
from flywheel.envs.base import Observation, StepResult, Task
from flywheel.recordings.curate import (
    ReplayVerdict,
    curate_recording,
    recording_fingerprint,
    replay_recording,
    replay_recordings,
)
from flywheel.store.schema import Step, Trajectory
from flywheel.utils.errors import EnvError


def steps(*screens: str, action: str = "click(point='<point>10 20</point>')", thought: str = "I click."):
    return [
        Step(
            "t1",
            number,
            "human",
            thought,
            action=action,
            raw_text=f"Thought: {thought}\nAction: {action}",
            image_sha256=screen,
            terminated=number == len(screens) - 1,
        )
        for number, screen in enumerate(screens)
    ]


def check(rows, images="abcdef", status="completed", max_steps=8):
    return curate_recording(Trajectory("t1", "k1", "sites", status=status), rows, list(images), 100, max_steps)


def test_a_clean_recording_is_accepted_without_remarks():
    found = check(steps("a", "b", "c"))
    assert (found.accepted, found.remarks) == (True, ())


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ([], "no actions"),
        (steps("a", "z"), "step 1 has no screen"),
        (steps("a", action="wink()"), "step 0 is no action"),
        (steps("a", "b")[1:], "step 0 is missing"),
        ([*steps("a"), *steps("a", "b")[1:]], "step 0 ended the task, yet actions follow"),
        (steps("a", "a", "a", "b"), "noise"),
    ],
)
def test_faults(rows, fault):
    found = check(rows)
    if fault == "noise":  # two of four steps is not more than half
        assert found.accepted
        found = check(steps("a", "a", "a"))
    assert not found.accepted
    assert any(text.startswith(fault) for text in found.faults)


def test_remarks_are_for_the_reviewer():
    rows = steps("a", "a", "b", "c")
    rows[3] = replace(rows[3], thought="")
    found = check(rows, status="truncated", max_steps=3)
    assert found.accepted
    assert found.remarks == (
        "the annotator did not reach an end",
        "4 steps, where the task allows the agent 3",
        "steps that changed nothing: 0",
        "1 of 4 steps have no thought",
    )


def test_a_fingerprint_is_of_the_content_not_of_the_words():
    task = {"world": "shop", "template": "open", "params": "{}"}
    same = recording_fingerprint(task, steps("a", thought="I open it."))
    assert same == recording_fingerprint({**task, "task_id": "k1"}, steps("b"))
    assert same != recording_fingerprint({**task, "params": '{"item": 1}'}, steps("a"))
    assert same != recording_fingerprint(task, steps("a", "b"))


class FakeEnv:
    """Screens 0, 1, 2, ...; ends after `length` steps; `broken`: the step at which it crashes."""

    def __init__(self, length: int, broken: int = -1) -> None:
        self.length, self.broken, self.at = length, broken, 0

    async def reset(self, task, seed):
        self.at = 0
        return self._result()

    async def step(self, action):
        assert isinstance(action, Click)
        if self.at == self.broken:
            raise EnvError("the page crashed")
        self.at += 1
        return self._result()

    def _result(self):
        return StepResult(Observation(b"%d" % self.at, 8, 8), terminated=self.at >= self.length)


def sha(number: int) -> str:
    return hashlib.sha256(b"%d" % number).hexdigest()


TASK = Task("k", "games", "tiles", "clear", 1, 3, "", {}, 8, "train", "", 1.0, "")


@pytest.mark.parametrize(
    ("env", "screens", "found"),
    [
        (FakeEnv(2), [0, 1], ReplayVerdict("same")),
        (FakeEnv(2), [0, 5], ReplayVerdict("differs", "the screen before step 1 differs", 1)),
        (FakeEnv(1), [0, 1], ReplayVerdict("differs", "the task ends before step 1", 1)),
        (FakeEnv(3), [0, 1], ReplayVerdict("differs", "the end differs, after step 1", 1)),
        (FakeEnv(2, broken=1), [0, 1], ReplayVerdict("not replayable", "the environment failed: the page crashed")),
    ],
)
async def test_replay_says_where_an_environment_departs_from_the_recording(env, screens, found):
    assert await replay_recording(env, TASK, steps(*map(sha, screens)), 100) == found


@pytest.mark.parametrize(
    ("task", "size", "why"),
    [
        (replace(TASK, world="desktop"), (224, 224), "there is no world desktop here"),
        (TASK, (1280, 720), "it was recorded at 1280 x 720 pixels, and the sandbox has 224 x 224"),
    ],
)
async def test_what_cannot_be_played_here_is_never_called_the_same(tmp_path, task, size, why):
    found = await replay_recordings(Settings(), tmp_path, [(task, steps("a"), size)])
    assert found == [ReplayVerdict("not replayable", why)]
