"""Trajectories to export, and how other tools would write the same."""

from __future__ import annotations

import io
from functools import cache

from hypothesis import strategies as st
from PIL import Image

from flywheel.agent import actions as act
from flywheel.agent.actions import Point
from flywheel.agent.parsing.parser import serialise_action
from flywheel.store.images import image_digest
from flywheel.store.interop.demonstration import DEMONSTRATION_GRAMMAR, DemonstratedStep, Demonstration
from flywheel.store.interop.traces import Trace

SIZES = ((1000, 500), (64, 48), (1920, 1080))
FORMS = {0: "png", 1: "jpeg", 2: "webp"}


@cache
def picture(number: int) -> bytes:
    """A screen of its own for each number; one in three is a JPEG, one a WebP."""
    out = io.BytesIO()
    Image.new("RGB", SIZES[number // 3 % 3], (number * 40 % 256, 0, number)).save(out, FORMS[number % 3])
    return out.getvalue()


def trace(*steps: DemonstratedStep, instruction: str = "sort it", score: float | None = 1.0) -> Trace:
    screens = {image_digest(picture(number)): picture(number) for number in range(9)}
    used = {step.screen: screens[step.screen] for step in steps if step.screen}
    facts = {"author": "model", "agent": "p0"} | ({} if score is None else {"result": score})
    done = None if score is None else score == 1
    told = Demonstration("flywheel", "t1", "", instruction, "tiles", "games", "train", done, steps, facts, used)
    return Trace(told, score=score)


def step(action: act.Action, number: int = 0, thought: str = "", **more) -> DemonstratedStep:
    return DemonstratedStep(
        serialise_action(action, DEMONSTRATION_GRAMMAR), image_digest(picture(number)), thought, **more
    )


# No lone surrogates, which no file can hold.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
_fractions = st.integers(0, 9999).map(lambda number: number / 10_000)
_points = st.builds(Point, _fractions, _fractions)
_keys = st.sampled_from(["ctrl", "a", "enter", "+", ",", "f5", "pageup", "-", "space", "up"])
_pointed = st.sampled_from([act.Click, act.LeftDouble, act.LeftTriple, act.RightSingle, act.Hover])
COMMON = st.one_of(
    st.builds(lambda kind, point: kind(point), _pointed, _points),
    st.builds(act.Drag, _points, _points),
    st.builds(act.Scroll, _points, st.sampled_from(["up", "down", "left", "right"])),
    st.builds(act.Hotkey, st.lists(_keys, min_size=1, max_size=3, unique=True).map(tuple)),
    st.builds(act.Type, texts.filter(bool)),
    st.sampled_from([act.Wait(), act.Finished(), act.CallUser()]),
    st.builds(act.Navigate, texts.filter(bool)),
    st.builds(act.OpenApp, texts.filter(bool)),
    st.builds(act.LongPress, _points),
)
MORE = st.one_of(
    COMMON,
    st.builds(act.Press, _keys),
    st.builds(act.TypeAt, _points, texts, st.booleans()),
    st.builds(act.Finished, texts),
    st.builds(act.Terminal, texts.filter(bool)),
    st.builds(lambda name, value: act.ToolCall.of(name, {"value": value}), st.sampled_from(["click", "find"]), texts),
)


def learnt(actions: st.SearchStrategy, **more: st.SearchStrategy) -> st.SearchStrategy:
    """Steps with a screen and an action that the grammar writes as it is."""
    return st.builds(step, actions, st.integers(0, 8), texts, **more)


def unlearnt() -> st.SearchStrategy:
    return st.builds(
        lambda said, thought, text, result: DemonstratedStep(said, "", thought, False, "no action", text, result),
        *(texts, texts, texts, texts),
    )
