"""Which elements of a page are asked for, where the answers point, and which tasks' pages are looked at."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
import synthetic

from flywheel.agent.actions import Click, Point
from flywheel.agent.parsing.parser import parse_response
from flywheel.config import Settings
from flywheel.envs.suites import catalogue
from flywheel.envs.tasks.drawing import make_task, make_tasks
from flywheel.envs.tasks.grounding import GroundingExample, encode_png
from flywheel.pipeline.stage import StageContext, run_stage
from flywheel.pipeline.stages import synthesize
from flywheel.synthesis import page_grounding
from flywheel.synthesis.exploration.page_view import PageControl, PageView
from flywheel.synthesis.page_grounding import (
    SeenScreen,
    ask_about_page,
    check_page_tasks,
    choose_page_tasks,
    list_named_elements,
)
from flywheel.utils.errors import BadInput

PLAIN = {
    "named": True, "tag": "a", "type": "", "state": "", "signature": "a", "value": "", "options": (), "chosen": -1,
    "multiple": False, "href": "", "scope": "", "submits": False, "required": False, "low": "", "high": "",
    "suggests": False, "heading": "", "off": False, "box": (10, 10, 60, 20), "inside": (), "place": "",
}  # fmt: skip
SIZE = (400, 300)


def control(name, role="link", **more):
    field = {"tag": "input", "type": "text"} if role == "textbox" else {}
    return PageControl(role=role, name=name, **(PLAIN | field | more))


def page(*controls, size=SIZE, text=""):
    return PageView(controls=controls, size=size, regions={"body": text})


def ask(view, seed=3, limit=3, **screen):
    return ask_about_page(SeenScreen("shop", b"", view, **screen), random.Random(seed), 100, limit)


def names(*controls, size=SIZE):
    return [one.names for one in list_named_elements(page(*controls, size=size), 100)]


@pytest.mark.parametrize(
    "left_out",
    [
        control("Tiny", box=(10, 10, 7, 20)),
        control("Right of it", box=(350, 10, 60, 20)),
        control("Below", box=(10, 290, 60, 20)),
        control("Above", box=(10, -10, 60, 20)),
        control("Off", off=True),
        control(""),
        control("—"),
        control("x" * 41),
        control("Scrolled away", box=(10, 100, 60, 20), inside=(0, 0, 400, 90)),
    ],
    ids=lambda one: one.name,
)
def test_what_nobody_could_find_is_left_out(left_out):
    assert names(control("Cart", box=(10, 200, 60, 20)), left_out) == [("cart", "cart link")]


def test_a_name_means_one_element():
    twice = control("Remove", "button"), control("Remove", "button", box=(10, 40, 60, 20))
    assert names(*twice, control("Pay", "button", box=(10, 80, 60, 20))) == [("pay", "pay button")]
    beyond = control("Pay", "button", box=(10, 900, 60, 20))
    assert names(control("Pay", "button"), beyond) == []
    field, button = control("Search", "textbox"), control("search", "button", box=(80, 10, 60, 20))
    assert names(field, button) == [("search field",), ("search button",)]
    assert names(field) == [("search field",)]  # "the search" is no field
    before = control("Name: not set", "textbox", named=False)  # the words before a field without a label
    assert names(before) == [("name field",)]


def test_points_lie_in_the_element_whatever_the_size_of_the_screen():
    rng = random.Random(5)
    for number in range(300):
        width, height = rng.choice(((224, 224), (1280, 720), (390, 844)))
        w, h = rng.uniform(max(8, width / 100), 90), rng.uniform(max(8, height / 100), 40)
        x, y = rng.uniform(0, width - w), rng.uniform(0, height - h)
        one = control("Add", rng.choice(("button", "textbox")), box=(x, y, w, h))
        (asked,) = ask(page(one, size=(width, height), text="Add"), number)
        if "Action:" not in asked.response:
            continue
        action = parse_response(asked.response, 100).action
        assert isinstance(action, Click)
        assert x <= action.point.x * width <= x + w
        assert y <= action.point.y * height <= y + h


def test_a_field_is_asked_for_as_often_as_the_links_around_it():
    links = [control(f"Page {number}", box=(10, 10 + 20 * number, 60, 12)) for number in range(12)]
    view = page(*links, control("Search", "textbox", box=(200, 10, 60, 20)))
    for seed in range(20):
        asked = ask(view, seed)
        assert len(asked) == 3
        assert sum("search field" in one.instruction + one.response for one in asked) == 1
    assert ask(view) == ask(view)
    assert len(ask(view, limit=40)) == 13
    assert ask(page()) == []


def test_what_is_read_stands_there():
    """A picture's label, and a text that stands below a picture, are no text to read in its middle."""
    cases = [
        (control("Save", "button"), "Save", True),
        (control("Save", "button"), "Other", False),
        (control("Mug", box=(10, 10, 40, 60)), "Mug", False),
        (control("Search", "textbox"), "Search", False),
    ]
    for one, text, legible in cases:
        view = page(one, text=text)
        questions = [ask(view, seed)[0] for seed in range(60)]
        assert any(asked.instruction.startswith("What does it say") for asked in questions) == legible
        assert all("Save" not in asked.response for asked in questions)  # in lower case, as on general screens


def test_a_field_is_clicked_before_it_is_typed_into():
    box = (10, 10, 60, 20)

    def actions(**more):
        field = control("Search", "textbox", box=box, value=more.pop("value", ""))
        asked = [ask(page(field), seed, **more)[0] for seed in range(60)]
        typing = [one for one in asked if one.instruction.startswith("Type ")]
        return [(one, parse_response(one.response, 100).action) for one in typing]

    resting, ready = actions(), actions(focused=box)
    assert len(resting) > 10
    assert all(isinstance(action, Click) and "I click the search field." in one.response for one, action in resting)
    assert all(one.instruction == f"Type {action.content} in the search field." for one, action in ready)
    assert actions(focused=(200, 10, 60, 20)) == resting
    assert actions(value="mug") == []


def test_the_way_is_a_menus():
    main, look = control("Main", box=(10, 200, 60, 20)), control("Look", box=(80, 200, 60, 20))
    mug, large = control("Mug"), control("Large", "button")

    def ways(clicked, *after):
        seen = SeenScreen("shop", b"", page(main, look, mug), (), clicked, page(*after))
        return ask_about_page(seen, random.Random(1), 100, 40, kinds=("way",))

    (asked,) = [one for one in ways(Point(0.25, 0.7), main, look, large) if "large" in one.instruction]
    assert re.fullmatch(r"(Find|Go to|Show) the large( button)?\.", asked.instruction)
    assert parse_response(asked.response, 100).action == Click(Point(0.275, 0.705))
    for clicked, after in ((Point(0.1, 0.05), (main, look, large)), (Point(0.25, 0.7), (look, mug)), (None, (large,))):
        assert not [one for one in ways(clicked, *after) if re.match("Find|Go|Show", one.instruction)]


def task(world, template, split="train"):
    return make_task(catalogue.get_world(world), template, 1, 2**30 + 3, split)


def test_pages_of_sites_that_training_tasks_are_on():
    settings = Settings()
    kept = [task("shop", "add"), task("settings", "turn_on")]
    others = [task("shop", "search"), task("settings", "size"), task("shop", "add", "eval"), task("tiles", "clear")]
    assert choose_page_tasks([*others, *kept, task("control", "type_word")], settings) == kept
    assert choose_page_tasks(make_tasks(settings, 1, "eval"), settings) == []


def test_examples_of_no_page_are_refused():
    games, share = [task("tiles", "clear")], {"page_grounding_fraction": 0.5}
    check_page_tasks(games, Settings())
    check_page_tasks(games, Settings.model_validate({"synthesis": share | {"num_grounding_examples": 0}}))
    chosen = Settings.model_validate({"synthesis": share})
    check_page_tasks([*games, task("shop", "add")], chosen)
    with pytest.raises(BadInput, match=r"no training task is on a page.*page_grounding_fraction"):
        check_page_tasks(games, chosen)


@pytest.mark.parametrize(("fraction", "found", "general"), [(0.0, 0, 10), (0.4, 4, 6), (0.4, 3, 7), (1.0, 10, 0)])
def test_general_screens_fill_what_pages_leave(tmp_path, monkeypatch, fraction, found, general):
    chosen = {"num_grounding_examples": 10, "train_tasks": 6, "eval_tasks": 6, "page_grounding_fraction": fraction}
    ws, settings = synthetic.workspace(tmp_path, synthesis=chosen)

    def make(kind, n):
        pngs = [encode_png(np.full((8, 8, 3), number, np.uint8)) for number in range(n)]
        return [GroundingExample(f"g{kind}{number}", kind, png, "Click it.", "no") for number, png in enumerate(pngs)]

    async def make_pages(n, seed, settings, tasks, root):
        assert fraction, "no page is looked at"
        assert n == round(10 * fraction)
        assert {one.split for one in tasks} == {"train"}
        return make("page: shop", found)

    monkeypatch.setattr(page_grounding, "make_page_examples", make_pages)
    monkeypatch.setattr(synthesize, "make_grounding_examples", lambda n, seed, settings: make("block", n))
    ctx = StageContext(ws, settings, 1, "synthesize")
    summary = run_stage(synthesize.STAGE, ctx).summary
    kinds = [row["kind"] for row in ctx.read_rows("grounding_examples", "synthesize")]
    assert (kinds.count("block"), kinds.count("page: shop")) == (general, found)
    assert summary.get("of pages") == (found or None)
