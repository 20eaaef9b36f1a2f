"""Raw input events become the actions that were done; what is no action is told, and nothing pressed is left out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.agent.actions import (
    Click,
    Drag,
    Hotkey,
    LeftDouble,
    LeftTriple,
    ParseError,
    Point,
    RightSingle,
    Scroll,
    Type,
)
from flywheel.store.interop.demonstration import make_demonstrated_step
from flywheel.store.interop.input_events import RawEvent, reduce_events

SIZE = (800, 600)
MIDDLE = Point(0.5, 0.5)


def click(at: float, x: float = 400, y: float = 300, button: str = "left", to: tuple[float, float] | None = None):
    return [RawEvent(at, "down", x, y, button), RawEvent(at + 0.05, "up", *(to or (x, y)), button)]


def tap(at: float, name: str, text: str = ""):
    return [RawEvent(at, "press", name=name, text=text), RawEvent(at + 0.01, "release", name=name)]


def typed(at: float, text: str, gap: float = 0.1):
    return [event for k, sign in enumerate(text) for event in tap(at + gap * k, sign, sign)]


def held(at: float, name: str, until: float, *inside: RawEvent):
    return [RawEvent(at, "press", name=name), *inside, RawEvent(until, "release", name=name)]


def wheel(at: float, dx: float = 0, dy: float = 0):
    return RawEvent(at, "scroll", 400, 300, dx=dx, dy=dy)


def reduced(*events: RawEvent, **how):
    return [one.action for one in reduce_events(sorted(events, key=lambda one: one.time_s), SIZE, **how)]


@pytest.mark.parametrize(
    ("events", "actions"),
    [
        (click(1), [Click(MIDDLE)]),
        (click(1, to=(403, 304)), [Click(MIDDLE)]),  # a hand that is not still
        (click(1, to=(600, 150)), [Drag(MIDDLE, Point(0.75, 0.25))]),
        (click(1, button="right"), [RightSingle(MIDDLE)]),
        ([*click(1), *click(1.3)], [LeftDouble(MIDDLE)]),
        ([*click(1), *click(1.3), *click(1.6)], [LeftTriple(MIDDLE)]),
        ([*click(1), *click(1.8)], [Click(MIDDLE), Click(MIDDLE)]),  # too late
        ([*click(1), *click(1.3, 410)], [Click(MIDDLE), Click(Point(410 / 800, 0.5))]),  # too far
        ([*click(1), *tap(1.1, "a", "a"), *click(1.3)], [Click(MIDDLE), Type("a"), Click(MIDDLE)]),
        (typed(1, "two words"), [Type("two words")]),
        ([*typed(1, "mug"), *tap(1.5, "enter")], [Type("mug\n")]),
        (tap(1, "enter"), [Hotkey(("enter",))]),
        ([*typed(1, "a"), *typed(9, "b")], [Type("a"), Type("b")]),  # a long pause, and perhaps another screen
        ([*typed(1, "ab"), *tap(1.5, "backspace"), *typed(1.6, "c")], [Type("ab"), Hotkey(("backspace",)), Type("c")]),
        (held(1, "shift", 2, *tap(1.1, "H", "H")) + typed(2.1, "i"), [Type("Hi")]),
        (held(1, "ctrl_l", 2, *typed(1.1, "cv")), [Hotkey(("ctrl", "c")), Hotkey(("ctrl", "v"))]),
        (held(1, "ctrl", 2, *tap(1.1, "\x03", "\x03")), [Hotkey(("ctrl", "c"))]),  # Windows's own name of it
        (held(1, "Ctrl", 3, *held(1.1, "shift_r", 2, *tap(1.2, "T", "T"))), [Hotkey(("ctrl", "shift", "t"))]),
        (held(1, "ctrl", 3, *held(1.1, "alt_gr", 2, *tap(1.2, "@", "@"))), [Type("@")]),
        (tap(1, "cmd"), [Hotkey(("win",))]),
        (tap(1, "Page Down"), [Hotkey(("pagedown",))]),
        ([wheel(1, dy=-1), wheel(1.2, dy=-2), wheel(1.4, dy=1)], [Scroll(MIDDLE, "down"), Scroll(MIDDLE, "up")]),
        ([wheel(1, dy=-1), wheel(61, dy=-1)], [Scroll(MIDDLE, "down")] * 2),
        ([wheel(1, dx=1), wheel(1.1, dx=-1)], [Scroll(MIDDLE, "right"), Scroll(MIDDLE, "left")]),
        ([wheel(1)], []),
    ],
)
def test_known_answers(events, actions):
    assert reduced(*events) == actions


@pytest.mark.parametrize(
    ("events", "why"),
    [
        (held(1, "ctrl", 2, *click(1.1)), "left click at (400, 300) with ctrl held down"),
        (held(1, "ctrl", 2, wheel(1.1, dy=1)), "a scroll with ctrl held down"),
        ([wheel(1, dx=1, dy=1)], "in two directions at once"),
        ([*click(1), *click(1.2), *click(1.4), *click(1.6)], "4 clicks"),
        (click(1, button="middle"), "a click of the middle button"),
        (click(1, button="right", to=(1, 1)), "a drag with the right button"),
        (click(1, 900), "its point (900, 300) is not on the screen of 800 x 600"),
        ([RawEvent(1, "press", name="delete")] * 3, "delete is held down"),
        ([RawEvent(1, "down", 1, 1, "left")], "goes down, and never up"),
        ([RawEvent(1, "up", 1, 1, "left")], "was not down"),
        ([RawEvent(1, "press", name="alt")], "alt goes down, and never up"),
        (held(1, "ctrl", 9, *held(2, "alt", 8, *held(3, "shift", 7, *tap(4, "a", "a")))), "4 keys together"),
        (tap(1, ""), "a key without a name"),
    ],
)
def test_what_is_no_action_is_told(events, why):
    (one,) = reduced(*events)
    assert isinstance(one, ParseError)
    assert why in one.reason


def test_points_behind_one_that_is_not_on_the_screen_are_not_trusted():
    first, _, third, typed_ = reduced(*click(1), *click(2, 400, 700), *click(3), *typed(4, "a"))
    assert (first, typed_) == (Click(MIDDLE), Type("a"))
    assert "whose size may have changed" in third.reason


def test_macos_has_a_command_key_and_scrolls_sideways_in_a_way_that_is_not_told():
    assert reduced(*held(1, "cmd", 2, *tap(1.1, "c", "c")), macos=True) == [Hotkey(("cmd", "c"))]
    (one,) = reduced(wheel(1, dx=1), macos=True)
    assert "sideways" in one.reason


def test_a_pause_of_the_recording_ends_what_is_held():
    paused = [RawEvent(1, "press", name="ctrl"), RawEvent(2, "pause"), *typed(3, "a")]
    told, text = reduced(*paused)
    assert isinstance(told, ParseError)
    assert text == Type("a")


def test_an_action_begins_when_its_first_event_came():
    made = reduce_events([*click(1), *click(1.3), *typed(2, "ab"), *tap(3, "tab")], SIZE)
    assert [one.time_s for one in made] == [1, 2, 3]


TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=0x17F), min_size=1, max_size=30).filter(str.isprintable)


@given(TEXT, st.lists(st.floats(0.01, 5), min_size=30, max_size=30))
def test_text_is_typed_whatever_the_pace(text, gaps):
    at, events = 0.0, []
    for sign, gap in zip(text, gaps, strict=False):
        at += gap
        events += [RawEvent(at, "press", name=sign, text=sign), RawEvent(at, "release", name=sign)]
    assert "".join(one.content for one in reduced(*events)) == text


KIND = st.sampled_from(["down", "up", "press", "release", "scroll", "pause"])
NAME = st.sampled_from(["left", "right", "ctrl", "shift", "alt_gr", "a", "A", "enter", "f5", "$Unknown (12)$", ""])
PLACE = st.floats(-10, 900)
TURN = st.sampled_from([-1.0, 0.0, 1.0])


@given(st.lists(st.builds(RawEvent, st.floats(0, 9), KIND, PLACE, PLACE, NAME, st.sampled_from(["", "a"]), TURN, TURN)))
def test_any_events_make_steps_that_are_learnt_or_told(events):
    made = reduce_events(sorted(events, key=lambda one: one.time_s), SIZE)
    steps = [make_demonstrated_step(one.action, one.said, "0" * 64) for one in made]
    assert all(step.action and (step.fault or not isinstance(one.action, ParseError))
               for step, one in zip(steps, made, strict=True))  # fmt: skip
    assert len(made) <= len(events)
