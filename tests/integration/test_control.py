"""The small pages for grounding and control: all can be won on the screen, none by something else than was asked."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import re

import pytest
import pytest_asyncio
from night import by_day
from pages import Experts, script, spoken_words

from flywheel.agent.actions import (
    Click,
    Drag,
    Finished,
    Hotkey,
    LeftDouble,
    Point,
    Press,
    Release,
    RightSingle,
    Scroll,
    Type,
    Wait,
)
from flywheel.config import SandboxSettings, Settings
from flywheel.envs.browser.pool import open_browser_pool
from flywheel.envs.suites import catalogue
from flywheel.envs.suites.control.sketch import LEVELS
from flywheel.envs.suites.control.world import FAMILIES, KINDS
from flywheel.envs.suites.steps import spot, where
from flywheel.envs.tasks.drawing import make_task
from flywheel.rewards.scorers import verifier

WORLD = catalogue.get_world("control")
STATE = "JSON.stringify(window.__env__.getState())"
SLOTS = [(template, level) for template in KINDS for level in LEVELS]
SEEDS = {1: 3, 2: 4, 3: 5}  # by level: of what the experts play
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool():
    async with open_browser_pool(Settings(sandbox=SandboxSettings(timeout_s=60, browsers=2, pages=4))) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def experts(pool):
    return Experts(pool)


def task_of(template: str, level: int = 1, seed: int = 3, **changes):
    return dataclasses.replace(make_task(WORLD, template, level, seed, "train"), **changes)


def digest(result) -> str:
    return hashlib.sha256(result.observation.screenshot).hexdigest()


async def at_work(pool, task, *actions):
    """What comes of some actions, the last result first to last."""
    async with pool.env() as env:
        results = [await env.reset(task, task.seed)]
        for action in actions:
            results.append(await env.step(action(results[-1]) if callable(action) else action))
        return results


def on(name, action=Click):
    return lambda result: action(where(result.info["state"], name))


# -- the expert --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("family", by_day(FAMILIES), ids=lambda family: family.__name__.rpartition(".")[2])
async def test_its_expert_wins_each_page_and_says_why(experts, family):

    async def win(task):
        return task, await experts.demonstrate(task)

    tasks = [task_of(kind.name, level, SEEDS[level]) for kind in family.KINDS for level in LEVELS]
    for task, steps in await asyncio.gather(*map(win, tasks)):
        named, last = (task.template, task.level), steps[-1][2]
        assert (last.reward, last.terminated, last.truncated) == (1.0, True, False), named
        assert not any(step[2].info["state"]["won"] for step in steps[:-1]), named
        for thought, _, _ in steps:
            said = re.sub(r"[.,:]", "", thought.lower()).split()
            assert 1 <= len(said) <= 10, thought
            assert set(said) <= spoken_words(), thought


ODD = [
    ("toggle", 3),
    ("type_word", 3),
    ("slider", 3),
    ("copy_paste", 2),
    ("scroll_box", 2),
    ("menu", 3),
    ("hold_key", 1),
    ("wait", 1),
    ("select", 2),
    ("reorder", 3),
    ("form", 2),
    ("info", 1),
    ("drag_box", 3),
    ("tab", 2),
]


@pytest.mark.parametrize(("template", "level"), by_day(ODD, 4))
async def test_state_and_checkpoints_bring_back_all(pool, experts, template, level):
    """After setState(getState()), and after restore(checkpoint), what follows is the same."""
    task = task_of(template, level, SEEDS[level], max_steps=100)
    actions = [action for _, action, _ in await experts.demonstrate(task_of(template, level, SEEDS[level]))]
    async with pool.env() as env:
        half = len(actions) // 2
        result = await env.reset(task, task.seed)
        for action in actions[:half]:
            result = await env.step(action)
        kept, mark, seen = await script(env, STATE), await env.checkpoint(), digest(result)
        followed = [digest(await env.step(action)) for action in actions[half:]]
        assert digest(await env.restore(mark)) == seen
        assert await script(env, STATE) == kept
        assert [digest(await env.step(action)) for action in actions[half:]] == followed

        if template == "hold_key":  # it is the keyboard that holds the key
            return
        await env.reset(task, task.seed)
        await script(env, f"window.__env__.setState({kept})")
        assert await script(env, STATE) == kept
        for action in actions[half:]:
            result = await env.step(action)
        assert result.reward == 1.0


async def test_the_contract_is_published(pool):
    async with pool.env() as env:
        await env.reset(task_of("slider"), 77)
        seen = json.loads(await script(env, "JSON.stringify({...window.__env__, ...window.__env__.getState()})"))
        assert (seen["version"], seen["seed"], seen["level"], seen["lives"]) == (WORLD.version, 77, 1, None)
        assert (seen["score"], seen["terminated"], seen["won"], seen["lost"], seen["moves"]) == (
            0,
            False,
            False,
            False,
            0,
        )
        given_out = await script(
            env, "const s = window.__env__.getState(); s.values.x = 9; window.__env__.getState().values.x"
        )
        assert given_out is None  # what is given out is a copy


# -- what is not asked for ---------------------------------------------------------------------------------------------
async def test_a_wrong_pick_ends_the_page_and_scores_nothing(pool):
    for template in ("click_shape", "click_number", "click_row"):
        task = task_of(template, 2)
        names = [item["name"] for item in task.params["items"] if item.get("click")]
        wrong = next(name for name in names if name != task.params["goal"]["picked"])
        last = (await at_work(pool, task, on(wrong)))[-1]
        assert (last.terminated, last.reward) == (True, 0.0)
        assert last.info["state"]["lost"]


async def test_a_click_is_not_a_double_click_nor_a_right_click(pool):
    for template, action in (("double_click", LeftDouble), ("right_click", RightSingle)):
        task = task_of(template)
        goal = task.params["goal"]["picked"]
        other = {LeftDouble: RightSingle, RightSingle: LeftDouble}[action]
        results = await at_work(
            pool, dataclasses.replace(task, max_steps=9), on(goal), on(goal, other), on(goal, action)
        )
        assert [result.terminated for result in results] == [False, False, False, True]
        assert results[-1].reward == 1.0


@pytest.mark.parametrize(
    ("template", "action", "name"),
    by_day(
        [
            ("double_click", LeftDouble, "{picked}"),
            ("right_click", RightSingle, "{picked}"),
            ("toggle", Click, "switch {}"),
            ("check_boxes", Click, "box {}"),
            ("radio", Click, "radio {choice}"),
        ],
        2,
    ),
)
async def test_a_label_is_a_part_of_what_it_labels(pool, template, action, name):
    """As on every desktop and in every form."""
    task = task_of(template)
    goal = task.params["goal"]
    asked = [key for key, value in goal.items() if value is not task.params["start"][key]]
    labels = {item["labels"]: item["box"] for item in task.params["items"] if "labels" in item}
    named = {name.format(key, **goal) for key in asked}
    assert named <= labels.keys()
    x, y, w, h = labels[sorted(named)[0]]
    frame = Point((x + w / 2) / 224, (y + h / 2) / 224)
    last = (await at_work(pool, dataclasses.replace(task, max_steps=9), action(frame)))[-1]
    values = last.info["state"]["values"]
    assert values != task.params["start"]
    assert values[asked[0]] == goal[asked[0]]


async def test_a_form_that_says_more_or_less_is_refused_once_it_is_sent(pool):
    task = task_of("check_boxes", 2)
    wrong = next(name for name, asked in task.params["goal"].items() if not asked)
    last = (await at_work(pool, task, on(f"box {wrong}"), on("submit button")))[-1]
    assert (last.terminated, last.info["state"]["lost"]) == (True, True)
    assert last.reward < 1


async def test_a_longer_word_is_not_the_word(pool):
    task = task_of("type_word", 1, max_steps=9)
    label = task.params["label"]
    text = task.params["text"]
    results = await at_work(pool, task, on(f"{label} field"), Type(text + "s"), Hotkey(("backspace",)))
    assert [result.terminated for result in results] == [False, False, False, True]
    assert results[-1].reward == 1.0


async def test_a_drop_elsewhere_puts_the_piece_back(pool):
    task = task_of("drag_outline", 2, max_steps=9)
    pieces = [item for item in task.params["items"] if item["kind"] == "piece"]
    key = next(iter(task.params["goal"]))
    other = next(piece for piece in pieces if piece["key"] != key)

    def to(x, y):
        box = other["box"]
        return lambda r: Drag(
            spot(r.info["state"], box[0] + box[2] / 2, box[1] + box[3] / 2), spot(r.info["state"], x, y)
        )

    results = await at_work(pool, task, to(3, 221))
    assert digest(results[0]) == digest(results[1])
    assert results[1].info["state"]["values"] == task.params["start"]


async def test_a_key_held_too_long_or_a_wrong_key_loses(pool):
    hold = task_of("hold_key", 1)
    results = await at_work(pool, hold, Press("right"), *[Wait()] * 10, Release("right"))
    assert results[-1].info["state"]["lost"]
    press = task_of("press_keys", 1)
    first = press.params["goal"]["pressed"][0]
    results = await at_work(pool, press, Hotkey((next(k for k in ("left", "up") if k != first),)))
    assert results[-1].info["state"]["lost"]
    assert results[-1].terminated


async def test_what_has_to_be_waited_for_is_not_there_before(pool):
    task = task_of("wait", 1)
    results = await at_work(pool, task, Wait())
    names = [{element["name"] for element in result.info["state"]["elements"]} for result in results]
    assert not any(task.params["goal"]["picked"] in seen for seen in names)


async def test_fields_of_the_tab_page_are_reached_by_keys_alone(pool):
    task = task_of("tab", 2, max_steps=9)
    last = (await at_work(pool, task, on(f"{task.params['target']} field")))[-1]
    assert not last.terminated
    assert last.info["state"]["values"]["focus"] == task.params["start"]["focus"]


# -- bad input ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("template", by_day(["type_word", "search", "form", "copy_word"]))
async def test_hostile_text_is_text(pool, template):
    task = task_of(template, 1, max_steps=20)
    field = next(item["name"] for item in task.params["items"] if item["kind"] == "field")
    key = next(item["key"] for item in task.params["items"] if item["kind"] == "field")
    # What is long about it comes in one piece, since no key types it.
    text = "<script>window.hacked=1</script>\"'`\\u0000 \u4f60\u597d \U0001f600 \u202e" + "\u9f98" * 1500
    async with pool.env() as env:
        result = await env.reset(task, task.seed)
        await env.step(on(field)(result))
        await env.step(Hotkey(("ctrl", "a")))
        result = await env.step(Type(text))
        assert result.info["state"]["values"][key] == text
        assert result.reward == 0.0
        assert await script(env, "typeof window.hacked") == "undefined"


async def test_actions_beside_everything_change_nothing(pool):
    for template in ("click_shape", "slider", "menu", "drag_box"):
        task = task_of(template, 1, max_steps=50)
        edge = Point(0.001, 0.999), Point(0.999, 0.999)
        beside = [
            *map(Click, edge),
            Drag(*edge),
            LeftDouble(edge[0]),
            RightSingle(edge[1]),
            Click(Point(1.5, 2)),
            Drag(Point(0.5, 0.5), Point(-1, 3)),
            Scroll(Point(0.5, 0.5), "down"),
            Hotkey(("f5",)),
            Hotkey(("ctrl", "q")),
            Type("Hello <b>there</b>\n"),
            Hotkey(("left",)),
        ]
        async with pool.env() as env:
            first = await env.reset(task, task.seed)
            for action in beside:
                result = await env.step(action)
                assert result.info["state"] == first.info["state"], (template, action)
                assert digest(result) == digest(first), (template, action)
            assert (await env.step(Finished())).reward == 0.0


# -- the verifier ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("template", by_day(KINDS, 2))
async def test_the_verifier_agrees_with_the_page_and_refuses_other_pages(pool, experts, template):
    """The end of a page counts for it alone; one step before it, and the end of another page, do not."""
    task, other = task_of(template, 2, SEEDS[2]), task_of(template, 2, 9)
    steps = await experts.demonstrate(task)
    async with pool.env() as env:
        first = await env.reset(task, task.seed)
    states = [first.info["state"], *(step[2].info["state"] for step in steps)]
    for state in states:
        assert verifier.score_final_state(task, state) == pytest.approx(state["score"]), template
    assert verifier.score_final_state(task, states[-1]) == 1.0
    assert max(verifier.score_final_state(task, state) for state in states[:-1]) < 1
    if other.params["goal"] != task.params["goal"]:
        assert verifier.score_final_state(other, states[-1]) < 1
