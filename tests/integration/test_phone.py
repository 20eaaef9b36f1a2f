"""The emulated phone: touched by fingers, solved by its expert, never by chance, and the same each time."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import fnmatch
import random

import pytest
import pytest_asyncio
from night import NIGHT
from phone_expert import next_phone_step

from flywheel.agent import actions as act
from flywheel.agent.actions import Click, Drag, Finished, LongPress, OpenApp, Point, PressBack, PressHome, Scroll, Type
from flywheel.config import parse_settings
from flywheel.envs import registry
from flywheel.envs.conformance import check_env
from flywheel.envs.registry import open_environments
from flywheel.envs.suites.phone import world
from flywheel.envs.suites.phone.home_screen import PHONE_APPS
from flywheel.envs.suites.phone.world import PHONE, PHONE_TASK_FAMILIES
from flywheel.envs.tasks.drawing import make_task, make_tasks
from flywheel.rewards.scorers import verifier
from flywheel.utils.errors import BadInput

SETTINGS = parse_settings(
    {"sandbox": {"pages_min": 0, "kinds": {"phone": {"places": 3, "timeout_s": 60}}}}, where="test"
)
MIDDLE = Point(0.5, 0.5)
ABLE = frozenset({LongPress, OpenApp, PressHome, PressBack})
pytestmark = pytest.mark.asyncio(loop_scope="module")


def task_of(family: str, level: int = 1, seed: int = 5):
    return make_task(PHONE, family, level, seed, "train")


TASKS = [
    task_of(name, level)
    for n, name in enumerate(PHONE_TASK_FAMILIES)
    for level in (PHONE.levels if NIGHT else [PHONE.levels[n % 3]])
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def phones():
    async with open_environments(SETTINGS, TASKS) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def phone(phones):
    async with phones.env(TASKS[0]) as env:
        await env.reset(dataclasses.replace(task_of("rounds", 3), max_steps=100), 1)
        yield env


async def expert(phones, task):
    async with phones.env(task) as env:
        results, actions = [await env.reset(task, task.seed)], []
        while not (results[-1].terminated or results[-1].truncated):
            _, action = next_phone_step(task, results[-1].info["state"], task.seed) or ("I am done.", Finished())
            actions.append(action)
            results.append(await env.step(action))
    return task, actions, results


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def played(phones):
    return await asyncio.gather(*(expert(phones, task) for task in TASKS))


def place(result, name: str) -> Point:
    one = next(one for one in result.info["state"]["elements"] if one["name"] == name)
    return Point(one["x"] + one["w"] / 2, one["y"] + one["h"] / 2)


# -- the world -------------------------------------------------------------------------------------------------------
async def test_the_expert_solves_every_family_with_room_for_mistakes(played):
    for task, actions, results in played:
        story = (task.template, task.level, task.instruction, actions)
        assert (results[-1].reward, results[-1].terminated) == (1.0, True), story
        assert max(one.info["score"] for one in results[:-1]) < 1, story
        assert len(actions) + 2 <= task.max_steps, story
        assert verifier.score_final_state(task, results[-1].info["state"]) == 1.0


async def test_the_expert_has_fingers_alone(played):
    kinds = {type(action) for _, actions, _ in played for action in actions}
    assert kinds <= {Click, Scroll, LongPress, Type, OpenApp, PressHome, Finished}
    assert {Click, Scroll, LongPress, OpenApp, PressHome} <= kinds


def leaves(tree, path=()):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))
        elif not key.startswith("_") and not isinstance(value, list):
            yield (*path, key)


def ignored(task, site: str, path) -> bool:
    """What may change by looking at it."""
    found = [one for one in task.params["parts"] if one["site"] == site]
    patterns = (
        world.get_part_site(found[0]).tasks[found[0]["params"]["task"]].ignore if found else ("threads/*/unread",)
    )
    return any(key.startswith("_") for key in path) or any(fnmatch.fnmatch("/".join(path), one) for one in patterns)


def mutants(task, state, rng):
    """End states that are not what was asked for: one thing is other than the expert left it."""
    sites = list(state["apps"])
    for _ in range(14):
        other = copy.deepcopy(state)
        site = rng.choice(sites) if sites else "mail"
        if site not in other["apps"]:
            other["apps"][site] = world.catalogue.get_world(site).play.start(
                {"seed": world.get_records_seed(task.params, site)}
            )
        records = other["apps"][site]["records"]
        path = rng.choice([one for one in leaves(records) if not ignored(task, site, one)])
        for key in path[:-1]:
            records = records[key]
        value = records[path[-1]]
        records[path[-1]] = (not value) if isinstance(value, bool) else f"{value} and more"
        yield path, other
    for _ in range(3):
        other = copy.deepcopy(state)
        icons = other["home"]["records"]["icons"]
        del icons[rng.choice(list(icons))]
        yield "an icon is gone", other
    nothing = copy.deepcopy(state)
    nothing |= {"apps": {}, "opened": [], "app": "", "answer": "", "home": world.HOME_SCREEN.start({"seed": 0})}
    yield "nothing was done", nothing
    yield "another application is seen", state | {"app": "shop" if state["app"] != "shop" else "", "answer": "no"}
    yield "others were opened", state | {"opened": [*state["opened"], "files"], "answer": "", "app": "files"}


@pytest.mark.exhaustive
async def test_twenty_other_ends_of_each_task_are_refused(played):
    for task, _, results in played:
        state, count = results[-1].info["state"], 0
        for what, other in mutants(task, state, random.Random(task.task_id)):
            if what in ("another application is seen", "others were opened") and not (
                task.params["home"] or task.params["opened"] or state.get("answer")
            ):
                continue  # where one is at the end is not asked for
            count += 1
            assert verifier.score_final_state(task, other) < 1, (task.template, task.instruction, what)
        assert count >= 18


def random_action(rng):
    def at():
        return Point(rng.random(), rng.random())

    kinds = (
        lambda: Click(at()),
        lambda: Drag(at(), at()),
        lambda: LongPress(at()),
        lambda: Type(rng.choice(("anna\n", "7"))),
        lambda: OpenApp(rng.choice(list(PHONE_APPS))),
        PressHome,
        PressBack,
    )
    return rng.choice(kinds)()


async def test_chance_solves_nothing(phones):
    async def one(task):
        rng = random.Random(task.task_id)
        async with phones.env(task) as env:
            result = await env.reset(task, task.seed)
            while not (result.terminated or result.truncated):
                result = await env.step(random_action(rng))
        assert result.reward == 0, task.instruction

    await asyncio.gather(*(one(task_of(name, 1, 11)) for name in ("errand", "question", "icons", "rounds")))


@pytest.mark.exhaustive
async def test_the_same_touches_give_the_same_pixels(phones, played):
    for task, actions, results in played[::3]:
        async with phones.env(task) as env:
            again = [await env.reset(task, task.seed), *[await env.step(action) for action in actions]]
        assert [one.observation for one in again] == [one.observation for one in results], task.template


@pytest.mark.exhaustive
async def test_the_phone_passes_the_suite(phones):
    moves = (OpenApp("mail"), Scroll(MIDDLE, "down"), PressBack(), LongPress(Point(0.2, 0.17)), PressHome())
    task = task_of("several")
    await check_env(lambda: phones.env(task), task, able=ABLE, moves=moves)


async def test_tasks_are_drawn_as_those_of_any_domain():
    wanted = {"domains": {"phone": ["phone"]}, "train_tasks": 12, "eval_tasks": 6}
    settings = parse_settings({"synthesis": wanted, "merge": {"weights": {"phone": 1.0}}}, where="test")
    tasks = make_tasks(settings, 0, "train")
    assert {task.environment for task in tasks} == {"phone"}
    assert registry.find_used_backends(settings) == {"phone"}
    assert len({task.task_id for task in tasks}) == 12


async def test_wrong_settings_are_refused_by_name():
    wrong = parse_settings({"sandbox": {"kinds": {"phone": {"width": 7}}}}, where="test")
    with pytest.raises(BadInput, match=r"sandbox\.kinds\.phone\.width"):
        async with open_environments(wrong, TASKS):
            pass


# -- the phone -------------------------------------------------------------------------------------------------------
async def test_back_goes_back_in_the_application_and_then_home(phone):
    first = await phone.step(OpenApp("Settings"))
    assert first.observation.url == "phone/"
    inside = await phone.step(Click(place(first, "open network")))
    assert inside.observation.screenshot != first.observation.screenshot
    back = await phone.step(PressBack())
    assert (back.info["state"]["app"], back.observation) == ("settings", first.observation)
    home = await phone.step(PressBack())
    assert home.info["state"]["app"] == ""
    assert "nothing to go back to" in (await phone.step(PressBack())).info["note"]


async def test_an_application_is_found_as_it_was_left(phone):
    first = await phone.step(OpenApp("Settings"))
    inside = await phone.step(Click(place(first, "open network")))
    await phone.step(PressHome())
    again = await phone.step(OpenApp("SETTINGS"))
    assert again.observation.screenshot == inside.observation.screenshot
    # Back leads out of it, to the home screen, and not into the one that was seen before.
    await phone.step(OpenApp("Mail"))
    assert (await phone.step(PressBack())).info["state"]["app"] == ""


async def test_an_application_that_is_not_there_is_said(phone):
    before = await phone.step(PressHome())
    after = await phone.step(OpenApp("Camera/../../x"))
    assert after.info["note"] == "there is no application called Camera/../../x"
    assert after.observation == before.observation
    assert "a phone has no hotkey" in (await phone.step(act.Hotkey(("ctrl", "a")))).info["note"]


@pytest.mark.exhaustive
async def test_swipes_turn_the_home_screens_and_scroll_the_pages(phone):
    second = await phone.step(Scroll(MIDDLE, "right"))
    names = {one["name"] for one in second.info["state"]["elements"]}
    assert "app settings" in names
    assert "app mail" not in names
    first = await phone.step(Drag(Point(0.2, 0.5), Point(0.8, 0.5)))
    assert "app mail" in {one["name"] for one in first.info["state"]["elements"]}
    top = await phone.step(OpenApp("Shop"))
    assert {one["name"] for one in top.info["state"]["elements"]} & {"home"}
    low = await phone.step(Scroll(MIDDLE, "down"))
    assert not [one for one in low.info["state"]["elements"] if one["name"] == "home" and one["y"] >= 0]
    still = await phone.step(act.Wait())
    assert still.observation == low.observation, "a page flies on"


async def test_a_long_press_marks_a_fields_text_and_typing_replaces_it(phone):
    page = await phone.step(OpenApp("Mail"))
    page = await phone.step(Click(place(page, "search")))
    page = await phone.step(Type("opera"))
    page = await phone.step(LongPress(place(page, "search")))
    page = await phone.step(Type("café ☕ 票"))
    field = next(one for one in page.info["state"]["elements"] if one["name"] == "search")
    assert field["value"] == "café ☕ 票"


async def test_text_goes_to_the_field_at_its_point_and_other_hands_are_refused_by_name(phone):
    page = await phone.step(OpenApp("Mail"))
    field = place(page, "search")
    page = await phone.step(act.TypeAt(field, "opera"))
    typed = next(one for one in page.info["state"]["elements"] if one["name"] == "search")
    assert (typed["value"], page.info.get("note")) == ("opera", None)
    for action, told in (
        (act.TypeAt(field, "x", clear=True), "a phone cannot empty a field and type in one action"),
        (act.LeftTriple(field), "a phone has no left_triple"),
    ):
        after = await phone.step(action)
        assert (after.info["note"], after.observation) == (told, page.observation)


async def script(phone, expression: str):
    return (await phone.tab.page.send("Runtime.evaluate", {"expression": expression}))["result"].get("value")


async def test_a_page_hears_of_fingers(phone):
    """Touches, not a mouse, and however quick two taps are, no double tap; and what it is told of the phone."""
    told = "[navigator.maxTouchPoints, /Mobile/.test(navigator.userAgent), matchMedia('(pointer: coarse)').matches]"
    assert await script(phone, f"[...{told}, innerWidth, innerHeight].join()") == "5,true,true,360,640"
    kinds = "['touchstart', 'touchmove', 'touchend', 'touchcancel', 'click', 'dblclick', 'contextmenu']"
    await script(phone, f"window.heard = []; for (const one of {kinds}) addEventListener(one, () => heard.push(one))")
    for action, heard in (
        (Click(Point(0.5, 0.8)), "touchstart,touchend,click"),
        (Click(Point(0.5, 0.8)), "touchstart,touchend,click"),
        (LongPress(Point(0.5, 0.8)), "touchstart,contextmenu,touchcancel"),
        (Drag(Point(0.5, 0.8), Point(0.5, 0.7)), "touchstart,touchend"),
    ):
        await phone.step(action)
        said = await script(phone, "heard.splice(0).filter((one) => one !== 'touchmove').join()")
        assert said == heard, action


@pytest.mark.exhaustive
async def test_back_leaves_a_dialog(phone):
    await script(phone, "setTimeout(() => { window.said = confirm('Leave?'); }, 50)")
    asked = await phone.step(act.Wait())
    assert asked.info["state"]["dialog"]["message"] == "Leave?"
    left = await phone.step(PressBack())
    assert "dialog" not in left.info["state"]
    assert await script(phone, "said") is False


async def test_back_closes_an_open_list_and_nothing_else(phone):
    await phone.step(OpenApp("Shop"))
    await script(phone, "document.querySelector('main').insertAdjacentHTML('afterbegin', '<select id=s data-el=pick>"
        "<option>one<option>two</select>')")  # fmt: skip
    shown = await phone.step(act.Wait())
    await phone.step(Click(place(shown, "pick")))
    assert await script(phone, "s.matches(':open')") is True
    closed = await phone.step(PressBack())
    assert await script(phone, "s.matches(':open')") is False
    assert closed.info["state"]["app"] == "shop"
    assert (await phone.step(PressBack())).info["state"]["app"] == ""
