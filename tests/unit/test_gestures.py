"""Raw input of a pointer and a keyboard becomes the events of a session, by known answers and by properties."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from flywheel.recordings.recorder.gestures import HIDDEN_TEXT, GestureReader, RawInput
from flywheel.recordings.recorder.keymap import KeyReader, explain_missing_xkbcommon
from flywheel.recordings.session import events_to_actions

assert not explain_missing_xkbcommon()


def read(*inputs: RawInput) -> list:
    reader = GestureReader(1000, 500)
    events = [event for one in inputs for event in reader.feed(one)] + list(reader.flush())
    return [(one.kind, one.text or one.key) for one in events]


def click(at: float, x: int = 100, button: int = 1, to: int | None = None) -> list[RawInput]:
    return [
        RawInput(at, "press", x, 100, button, screen=1),
        RawInput(at + 0.05, "release", x if to is None else to, 100, button),
    ]


def keys(at: float, *names: str, held: tuple[str, ...] = ()) -> list[RawInput]:
    """Keys pressed one after another; of one letter, with their text."""
    return [
        RawInput(at + 0.1 * number, "key_down", key=name, text=name if len(name) == 1 else "", held=held)
        for number, name in enumerate(names)
    ]


def test_clicks_within_a_moment_at_a_place_are_one_action():
    assert read(*click(0)) == [("click", "")]
    assert read(*click(0), *click(0.3)) == [("double", "")]
    assert read(*click(0), *click(0.3), *click(0.6)) == [("triple", "")]
    assert read(*click(0), *click(0.3), *click(0.6), *click(0.9)) == [("triple", ""), ("click", "")]
    assert read(*click(0), *click(0.6)) == [("click", ""), ("click", "")]
    assert read(*click(0), *click(0.3, x=120)) == [("click", ""), ("click", "")]
    assert read(*click(0), *click(0.3, button=3)) == [("click", ""), ("right", "")]


def test_nothing_goes_on_over_another_page():
    page = RawInput(0.2, "page")
    assert read(*click(0), page, *click(0.3)) == [("click", ""), ("click", "")]
    assert read(*keys(0, "a", "b"), page, *keys(0.3, "c")) == [("type", "ab"), ("type", "c")]
    went = RawInput(0.2, "navigate", text="https://shop.example/")
    assert read(*keys(0, "a"), went, RawInput(0.3, "back")) == [
        ("type", "a"), ("navigate", "https://shop.example/"), ("back", "")
    ]  # fmt: skip
    assert read(*click(0), *keys(0.1, "a"), *click(0.3)) == [("click", ""), ("type", "a"), ("click", "")]


def test_a_press_that_moves_is_a_drag_with_its_drop():
    assert read(*click(0, to=300)) == [("drag", ""), ("drop", "")]
    assert read(*click(0), *click(0.3, to=300)) == [("click", ""), ("drag", ""), ("drop", "")]


def test_notches_of_a_wheel_are_one_scroll_each_way():
    turned = [RawInput(0.1 * n, "press", 5, 5, button, screen=0) for n, button in enumerate((5, 5, 5, 4, 4))]
    assert read(*turned, RawInput(3, "press", 5, 5, 4)) == [("scroll", "down"), ("scroll", "up"), ("scroll", "up")]


def test_typed_text_is_one_action_with_its_enter_and_its_mistakes():
    assert read(*keys(0, *"heu", "Backspace", *"y", "Enter")) == [("type", "hey"), ("key", "Enter")]
    assert read(*keys(0, "Enter"), *keys(1, "Backspace")) == [("key", "enter"), ("key", "backspace")]
    assert read(*keys(0, "a", "Backspace", "Backspace")) == [("key", "backspace")]
    assert read(*keys(0, "A", held=("Shift",)), *keys(1, "c", held=("Control",))) == [("type", "A"), ("key", "ctrl c")]
    assert read(*keys(0, "Tab", held=("Shift",)), *keys(1, "F5")) == [("key", "shift tab"), ("key", "f5")]
    super_key = [RawInput(0, "key_down", key="Meta"), RawInput(0.1, "key_up", key="Meta")]
    assert read(*super_key) == [("key", "meta")]
    assert read(super_key[0], *keys(0.05, "e", held=("Meta",)), super_key[1]) == [("key", "meta e")]


def test_what_is_hidden_is_one_text_beside_the_rest():
    secret = [replace(one, key="", text=HIDDEN_TEXT) for one in keys(1, *"pw")]
    assert read(*keys(0, "a"), *secret, *keys(2, "Enter")) == [("type", "a"), ("type", HIDDEN_TEXT), ("key", "Enter")]


def test_what_no_event_can_hold_is_counted():
    reader = GestureReader(1000, 500)
    assert [event for one in click(0, button=2) for event in reader.feed(one)] == []
    assert [event for one in click(1, button=3, to=400) for event in reader.feed(one)] == []
    assert reader.dropped == {"button 2": 1, "drag of another button": 1}


@st.composite
def streams(draw):
    at, made, down = 0.0, [], set()
    for _ in range(draw(st.integers(0, 30))):
        at += draw(st.sampled_from([0.0, 0.01, 0.3, 0.5, 2.0]))
        x, y = draw(st.integers(-50, 1100)), draw(st.integers(-50, 600))
        if draw(st.booleans()):
            button = draw(st.integers(1, 9))
            made.append(RawInput(at, "release" if button in down else "press", x, y, button, screen=0))
            down ^= {button}
        else:
            key = draw(st.sampled_from(["a", "é", " ", "Enter", "Backspace", "Shift", "Meta", "Control", "", "F1"]))
            held = draw(st.sampled_from([(), ("Shift",), ("Control",), ("Control", "Alt", "Shift")]))
            kind = draw(st.sampled_from(["key_down", "key_up"]))
            made.append(RawInput(at, kind, x, y, key=key, text=key if len(key) == 1 else "", held=held, screen=0))
    return made


@given(streams())
def test_any_input_gives_events_in_order_that_are_actions(inputs):
    reader = GestureReader(1000, 500)
    events = [event for one in inputs for event in reader.feed(one)] + list(reader.flush())
    assert all(0 <= place < 1 for one in events for place in (one.x, one.y) if place is not None)
    assert [one.time_s for one in events] == sorted(one.time_s for one in events)
    assert len(events_to_actions(events)) <= len(inputs)
    assert not any(one.kind == "type" and not one.text for one in events)


# Keys: a German row with a dead key, and AltGr.

ROWS = {10: [ord("q"), ord("Q"), 0, 0, ord("@"), 0], 11: [0xFE51, 0xFE50], 12: [ord("e"), ord("E")], 13: [0xFF0D, 0],
        14: [ord("1"), ord("!")], 15: [0xFF57, 0xFFB1], 16: [0xFFE1, 0], 17: [0x20AC, 0]}  # fmt: skip


def reader(monkeypatch) -> KeyReader:
    monkeypatch.setenv("LC_ALL", "en_US.UTF-8")
    return KeyReader(10, [ROWS[code] for code in sorted(ROWS)])


def test_keys_are_read_by_layout_level_and_compose(monkeypatch):
    keyboard = reader(monkeypatch)
    assert [keyboard.read(10, state) for state in (0, 1, 2, 3, 1 << 7)] == [
        ("q", "q"), ("Q", "Q"), ("Q", "Q"), ("q", "q"), ("@", "@")
    ]  # fmt: skip
    assert [keyboard.read(code, 0) for code in (11, 12)] == [("", ""), ("é", "é")]
    assert [keyboard.read(14, state) for state in (0, 2, 1)] == [("1", "1"), ("1", "1"), ("!", "!")]
    assert [keyboard.read(code, 0) for code in (13, 16, 17)] == [("Enter", ""), ("Shift", ""), ("€", "€")]
    assert keyboard.read(10, 4) == ("q", "q")  # with Control: a name, whose text is no typing
    assert [keyboard.read(11, 0), keyboard.read(13, 0), keyboard.read(12, 0)] == [("", ""), ("Enter", ""), ("e", "e")]


def test_altgr_is_no_key_of_its_own(monkeypatch):
    monkeypatch.setenv("LANG", "C.UTF-8")
    keys = KeyReader(8, [[0xFE03], [ord("q"), ord("Q"), 0, 0, ord("@")]])
    assert [keys.read(8, 0), keys.read(9, 128)] == [("", ""), ("@", "@")]


def test_a_key_that_no_layout_has_is_nothing(monkeypatch):
    assert reader(monkeypatch).read(250, 0)[1] == ""
