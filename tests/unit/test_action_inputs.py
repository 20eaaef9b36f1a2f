"""Actions at the sandbox's hands: what a browser page has no means for is said, and every action can be replayed."""

from __future__ import annotations

import random

import pytest
from action_specimens import action as draw

from flywheel.agent import actions as act
from flywheel.agent.actions import actions_from_json, actions_to_json
from flywheel.envs.browser.driver.input import InputDriver

NONE_OF_ITS = [
    act.LongPress(act.Point(0.5, 0.5)),
    act.OpenApp("Maps"),
    act.PressHome(),
    act.PressBack(),
    act.Terminal("ls"),
    act.RunPython("1"),
    act.ReadFile("a"),
    act.WriteFile("a", "b"),
    act.ListFiles("."),
    act.ToolCall("search"),
]


@pytest.mark.parametrize("action", NONE_OF_ITS, ids=lambda action: type(action).__name__)
async def test_what_a_page_cannot_do_is_said(action):
    hands = InputDriver(100, 100)  # no page: it is not touched
    assert (
        await hands.do(action, None, (), "http://a.test/") == f"a browser page has no {act.ACTION_NAMES[type(action)]}"
    )


async def test_waiting_and_ending_need_no_hands():
    hands = InputDriver(100, 100)
    for action in (act.Wait(), act.Finished("x"), act.CallUser()):
        assert await hands.do(action, None, (), "http://a.test/") == ""


def test_every_action_is_kept_in_a_checkpoint():
    rng = random.Random(1)
    actions = [draw(rng) for _ in range(2000)]
    assert {type(one) for one in actions} == set(act.ACTION_NAMES)
    assert actions_from_json(actions_to_json(actions)) == actions
