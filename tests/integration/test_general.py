"""General screens: exact answers, drawn the same each time, by a real browser."""

from __future__ import annotations

import asyncio
import io
import random
from types import SimpleNamespace

import numpy as np
import pytest
from night import NIGHT
from PIL import Image as Picture
from playwright.sync_api import Error, Page, sync_playwright

from flywheel.agent.actions import (
    Click,
    Drag,
    Finished,
    Hotkey,
    LeftDouble,
    ParseError,
    Point,
    RightSingle,
    Scroll,
    Type,
    Wait,
)
from flywheel.agent.parsing.parser import parse_response
from flywheel.config import SandboxSettings, Settings
from flywheel.envs.browser.driver import chromium
from flywheel.envs.screens import layouts, vocabulary
from flywheel.envs.screens.scene import extract_texts, format_div
from flywheel.envs.tasks import grounding
from flywheel.envs.tasks.grounding import make_grounding_examples
from flywheel.training.pretrain.pretrainer import is_correct_answer, success_rate
from flywheel.utils.errors import BadInput, EnvError

SAMPLES = 120 if NIGHT else 24
LOST = "Unable to capture screenshot"


@pytest.fixture(scope="module")
def samples():
    return make_grounding_examples(SAMPLES, 3, Settings())


@pytest.mark.parametrize("kind", layouts.SCENE_KINDS)
@pytest.mark.parametrize("level", range(1, layouts.SCENE_LEVELS + 1))
def test_every_answer_is_right_by_its_own_measure(kind, level):
    for seed in range(25):
        scene = layouts.draw_scene(kind, level, random.Random(seed), 100)
        assert scene.questions[0].instruction
        for question in scene.questions:
            assert is_correct_answer(question, question.response, 100), question
            for box in (*question.boxes, *([question.seen] if question.seen else [])):
                assert -1 <= box.x < box.x + box.w <= layouts.SCENE_SIDE + 1
                assert -1 <= box.y < box.y + box.h <= layouts.SCENE_SIDE + 1
            if question.response.startswith("Thought: "):
                assert not isinstance(parse_response(question.response, 100).action, ParseError)


def test_a_wrong_answer_is_wrong():
    box, other = layouts.SceneBox(10, 10, 20, 20), layouts.SceneBox(100, 100, 20, 20)
    click = layouts.SceneQuestion("shape", "Click it.", "Action: click(point='10 10')", (box,))
    assert is_correct_answer(click, "Action: click(point='<point>08 08</point>')", 100)
    assert not is_correct_answer(click, "Action: click(point='<point>50 50</point>')", 100)
    assert not is_correct_answer(click, "Action: drag(start_point='08 08', end_point='49 49')", 100)
    assert not is_correct_answer(click, "Action: left_double(point='<point>08 08</point>')", 100)
    assert not is_correct_answer(click, "nothing", 100)
    drag = layouts.SceneQuestion(
        "drag", "Drag it.", "Action: drag(start_point='10 10', end_point='50 50')", (box, other)
    )
    assert is_correct_answer(drag, "Action: drag(start_point='08 08', end_point='49 49')", 100)
    assert not is_correct_answer(drag, "Action: drag(start_point='49 49', end_point='08 08')", 100)
    typed = layouts.SceneQuestion("type", "Type it.", "Thought: I type mug.\nAction: type(content='mug')")
    assert is_correct_answer(typed, "Thought: other\nAction: type(content='mug')", 100)
    assert not is_correct_answer(typed, "Action: type(content='cup')", 100)


def test_every_skill_is_there():
    questions = [
        question
        for kind in layouts.SCENE_KINDS
        for level in range(1, 5)
        for seed in range(20)
        for question in layouts.draw_scene(kind, level, random.Random(seed), 100).questions
    ]
    actions = {type(parse_response(q.response, 100).action) for q in questions}
    assert actions - {ParseError} == {Click, LeftDouble, RightSingle, Drag, Hotkey, Type, Scroll, Wait, Finished}
    assert {q.skill for q in questions} == {
        "describe",
        "board",
        "ask",
        "read",
        "shape",
        "block",
        "button",
        "text",
        "mixed",
        "toggle",
        "done",
        "field",
        "type",
        "drag",
        "number",
        "key",
        "steps",
        "sheet",
        "double",
        "right",
        "scroll",
        "wait",
    }
    assert any("\nDone: " in q.instruction for q in questions)


def test_a_name_means_one_thing_and_higher_levels_hold_more():
    for kind in ("shapes", "blocks", "texts", "mixed"):
        sizes = []
        for level in range(1, 5):
            described = []
            for seed in range(30):
                scene = layouts.draw_scene(kind, level, random.Random(seed), 100)
                clicks: dict[str, set[layouts.SceneBox]] = {}
                for question in scene.questions:
                    if question.skill in ("shape", "block", "text", "mixed"):
                        name = question.instruction.split(" the ", 1)[1]
                        clicks.setdefault(name, set()).add(question.boxes[0])
                assert all(len(boxes) == 1 for boxes in clicks.values())
                described.append(scene.questions[0].response.count(";") + 1)
            sizes.append(np.mean(described))
        assert sizes == sorted(sizes)


def test_samples_are_screens_with_questions_the_same_each_time(samples):
    assert len(samples) == SAMPLES
    assert samples == make_grounding_examples(SAMPLES, 3, Settings())
    assert len({sample.sample_id for sample in samples}) == SAMPLES
    assert samples[0] != make_grounding_examples(1, 4, Settings())[0]
    for sample in samples:
        picture = Picture.open(io.BytesIO(sample.png))
        assert (picture.size, picture.format) == ((224, 224), "PNG")
        assert sample.instruction
        assert sample.response


async def test_samples_are_made_where_an_event_loop_runs():
    assert len(make_grounding_examples(2, 5, Settings())) == 2
    assert len(await asyncio.to_thread(make_grounding_examples, 1, 5, Settings())) == 1


@pytest.mark.parametrize(
    ("message", "lost", "drawn"), [(LOST, 1, True), (LOST, 3, False), ("Target crashed", 1, False)]
)
def test_a_sheet_whose_surface_chromium_lost_is_drawn_by_a_new_page(samples, monkeypatch, message, lost, drawn):
    screenshot, failures = Page.screenshot, iter([message] * lost)

    def fail_at_first(page, **options):
        if failure := next(failures, ""):
            raise Error(failure)
        return screenshot(page, **options)

    monkeypatch.setattr(Page, "screenshot", fail_at_first)
    if drawn:
        assert make_grounding_examples(SAMPLES, 3, Settings()) == samples
    else:
        with pytest.raises(EnvError, match=f"sheet of general screens was not drawn: {message}"):
            make_grounding_examples(SAMPLES, 3, Settings())
    assert next(failures, None) is None


def test_the_named_colour_is_where_the_answer_points(samples):
    """What was drawn agrees with what is said: the commonest colour around the point is the one named."""
    checked = 0
    for sample in samples:
        action = parse_response(sample.response, 100).action
        name = sample.instruction.split("\n")[0].rstrip(".").split()
        if sample.kind != "block" or not isinstance(action, Click) or name[-2] not in vocabulary.COLOURS:
            continue
        pixels = np.asarray(Picture.open(io.BytesIO(sample.png)).convert("RGB")).astype(int)
        x, y = int(action.point.x * 224), int(action.point.y * 224)
        around = pixels[max(0, y - 20) : y + 21, max(0, x - 20) : x + 21].reshape(-1, 3)
        value = vocabulary.COLOURS[name[-2]]
        wanted = np.array([int(value[i : i + 2], 16) for i in (1, 3, 5)])
        assert (np.abs(around - wanted).max(axis=1) <= 14).mean() > 0.08, sample.instruction
        checked += 1
    assert checked >= (3 if NIGHT else 1)


def test_letters_stand_where_a_text_is_drawn():
    """M, u and g of Liberation Sans take 0.833, 0.556 and 0.556 of the font's size, centred in the box."""
    box = layouts.SceneBox(20, 40, 80, 30)
    section = "<section style=\"font:normal 15px 'Liberation Sans'\">{}</section>"
    (found,) = extract_texts(section.format(format_div(box, "font-size:20.0px", "Mug")))
    assert found.characters == "mug"
    start = 60 - (0.833 + 2 * 0.556) * 20 / 2
    assert [place.x for place in found.boxes] == pytest.approx([start, start + 16.66, start + 16.66 + 11.12])
    assert all((place.y, place.h) == pytest.approx((43, 24)) for place in found.boxes)
    assert (found.box.x, found.box.w) == pytest.approx((start, 38.9))
    (left,) = extract_texts(section.format(format_div(box, "justify-content:flex-start", "go on")))
    assert left.characters == "goon"
    assert left.boxes[0].x == 20


_LETTERS = """() => [...document.querySelectorAll("section")].map((section) => {
  const corner = section.getBoundingClientRect(), found = [];
  for (const { firstChild: text } of section.querySelectorAll("div")) {
    if (text?.nodeType !== Node.TEXT_NODE) continue;
    for (let i = 0; i < text.length; i += 1) {
      const range = document.createRange();
      range.setStart(text, i);
      range.setEnd(text, i + 1);
      const box = range.getBoundingClientRect();
      if (/[a-z0-9]/i.test(text.data[i])) {
        found.push([text.data[i].toLowerCase(), box.x - corner.x + box.width / 2, box.y - corner.y + box.height / 2]);
      }
    }
  }
  return found;
})"""


def test_letters_stand_where_chromium_puts_them():
    """To a pixel on average a page, both ways together; kerning may shift one by more."""
    rng = random.Random(3)
    drawn = [layouts.draw_scene(kind, 3, rng, 100) for kind in layouts.SCENE_KINDS for _ in range(2)]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(chromium.find_chromium(SandboxSettings())), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 8 * layouts.SCENE_SIDE, "height": 8 * layouts.SCENE_SIDE})
        page.set_content(grounding.SHEET_STYLE + "".join(scene.html for scene in drawn))
        measured = page.evaluate(_LETTERS)
        browser.close()
    for scene, marks in zip(drawn, measured, strict=True):
        mine = [(c, box) for text in scene.texts for c, box in zip(text.characters, text.boxes, strict=True)]
        assert [c for c, _ in mine] == [c for c, _, _ in marks]
        off = [
            abs(box.x + box.w / 2 - x) + abs(box.y + box.h / 2 - y)
            for (_, box), (_, x, y) in zip(mine, marks, strict=True)
        ]
        assert not off or np.mean(off) < 1, scene.kind


def test_the_interval_is_wilsons():
    assert success_rate([True] * 8 + [False] * 2) == {"value": 0.8, "n": 10, "low": 0.49, "high": 0.943}
    assert success_rate([False] * 20)["low"] == 0
    assert Point(0.5, 0.5) == layouts.SceneBox(102, 102, 20, 20).centre


def test_a_driver_that_lacks_a_library_is_named_with_what_to_install(tmp_path, monkeypatch):
    """Playwright alone would tell of a closed connection, once an iteration has begun."""
    assert chromium.check_playwright_driver().startswith("v")
    node = tmp_path / "driver" / "node"
    node.parent.mkdir()
    node.write_text("#!/bin/sh\necho 'libatomic.so.1: cannot open shared object file' >&2\nexit 127\n")
    node.chmod(0o755)
    found = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(chromium.importlib.util, "find_spec", lambda name: found)
    with pytest.raises(BadInput, match=r"driver does not start: libatomic.so.1.*apt-get install libatomic1"):
        chromium.check_playwright_driver()
