"""Events and actions: what a person's input amounts to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.agent import actions as act
from flywheel.recordings.session import InputEvent, action_to_events, events_to_actions
from flywheel.utils.errors import BadInput

fractions = st.floats(0, 1, exclude_max=True)
points = st.builds(act.Point, fractions, fractions)
words = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=8)
actions = st.one_of(
    st.builds(act.Click, points),
    st.builds(act.LeftDouble, points),
    st.builds(act.LeftTriple, points),
    st.builds(act.RightSingle, points),
    st.builds(act.Hover, points),
    st.builds(act.Drag, points, points),
    st.builds(act.Type, words),
    st.builds(lambda text: act.Type(text + "\n"), words),
    st.builds(act.Hotkey, st.lists(words.map(str.lower), min_size=1, max_size=3).map(tuple)),
    st.builds(act.Scroll, points, st.sampled_from(("up", "down", "left", "right"))),
    st.builds(act.Press, words),
    st.builds(act.Release, words),
    st.builds(act.Navigate, words),
    st.just(act.NavigateBack()),
    st.builds(act.Finished, words),
)


@given(st.lists(actions, max_size=6))
def test_events_of_actions_amount_to_the_same_actions(chosen):
    events = [event for at, action in enumerate(chosen) for event in action_to_events(action, 10.0 * at, at)]
    recorded = events_to_actions(events)
    assert [one.action for one in recorded] == chosen
    assert [one.screen for one in recorded] == list(range(len(chosen)))
    # Each event belongs to one action, in order.
    assert [event for one in recorded for event in one.events] == list(range(len(events)))


def test_enter_right_after_typing_submits_but_not_on_a_new_screen():
    typed, enter = InputEvent(1.0, "type", text="tom", screen=0), InputEvent(1.5, "key", key="Enter")
    assert [one.action for one in events_to_actions([typed, enter])] == [act.Type("tom\n")]
    later = InputEvent(1.5, "key", key="Enter", screen=1)
    assert [one.action for one in events_to_actions([typed, later])] == [act.Type("tom"), act.Hotkey(("enter",))]


def test_a_key_that_is_held_stays_beside_what_is_done_with_it_and_scrolls_stay_apart():
    click = act.Click(act.Point(0.5, 0.5))
    held = [act.Press("ctrl"), click, act.Hotkey(("c",)), act.Release("ctrl")]
    scrolls = [act.Scroll(act.Point(x, 0.5), "down") for x in (0.1, 0.6)]
    done = [event for at, action in enumerate((*held, *scrolls)) for event in action_to_events(action, 60.0 * at, 0)]
    assert [one.action for one in events_to_actions(done)] == [*held, *scrolls]


@pytest.mark.parametrize(
    ("events", "what"),
    [
        ([InputEvent(0, "drop", 0.1, 0.1)], "a drop without a drag"),
        ([InputEvent(0, "drag", 0.1, 0.1, screen=0)], "a drag without its drop"),
        ([InputEvent(0, "click", 1.0, 0.5, screen=0)], "not on the screen"),
        ([InputEvent(0, "click", screen=0)], "not on the screen"),
        ([InputEvent(0, "key", key="a b c d", screen=0)], "one to three keys"),
        ([InputEvent(0, "scroll", 0.5, 0.5, text="sideways", screen=0)], "no scroll direction"),
        ([InputEvent(0, "wink", screen=0)], "no event is of kind 'wink'"),
    ],
)
def test_events_that_are_no_action_are_refused_by_number(events, what):
    with pytest.raises(BadInput, match=what) as caught:
        events_to_actions(events)
    assert caught.value.where == "event 0"


def test_an_action_that_no_input_makes_is_refused():
    with pytest.raises(BadInput, match=r"makes no Wait \(action_to_events\)"):
        action_to_events(act.Wait(), 0.0, 0)
