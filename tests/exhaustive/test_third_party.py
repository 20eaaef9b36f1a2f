"""Pages that ship in packages of PyPI, npm and Debian, run by manifest alone: a scripted player solves each of them.

Packages are looked for beside us, then in the cache, then fetched; without a registry a test skips by name. MiniWoB is
among what the tests need (scripts/setup), so it always runs. Servers are installed into the cache where they are not
there, which takes a minute each: only where FLYWHEEL_TEST_SERVERS is set.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import sqlite3

import pytest
import pytest_asyncio
import yaml

from flywheel.agent.actions import Click, Drag, Hotkey, Navigate, Point, Type, TypeAt, Wait
from flywheel.config import SandboxSettings
from flywheel.envs.base import Verdict
from flywheel.envs.browser.pages import manifest, packages
from flywheel.envs.browser.pages.session import ManifestPages
from flywheel.envs.browser.pool import BrowserPool
from flywheel.envs.conformance import check_env
from flywheel.envs.tasks.page_tasks import make_page_task
from flywheel.synthesis.verifier_attack.attack import Solution, attack_template
from flywheel.synthesis.verifier_attack.contracts import make_page_contract
from flywheel.synthesis.verifier_attack.run import is_solved
from flywheel.utils.errors import EnvError

pytestmark = pytest.mark.asyncio(loop_scope="module")
SHIPPED = manifest.load_page_manifests([str(manifest.SHIPPED_MANIFESTS)], manifest.SHIPPED_MANIFESTS)


class Pages:
    """A PageSource over those of the shipped pages that are here."""

    start_s = 90.0

    def __init__(self):
        self.opened = {}

    def open(self, task, seed):
        return self.opened[task.world].open(task, seed)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox():
    pages = Pages()
    async with BrowserPool(SandboxSettings(browsers=1, pages=1, timeout_s=60), pages) as pool:
        yield pages, pool
    for opened in pages.opened.values():
        await opened.__aexit__(None, None, None)


@pytest_asyncio.fixture(loop_scope="module")
async def lease(sandbox):
    """lease(name): a leased env and the manifest, whose package is here; else the test skips."""
    pages, pool = sandbox

    async def ready(name):
        manifest = SHIPPED[name]
        if not packages.has_server_programs(manifest):
            if "FLYWHEEL_TEST_SERVERS" not in os.environ:
                pytest.skip(f"{name}: its server is not installed; set FLYWHEEL_TEST_SERVERS to have it installed")
            packages.install_server_packages(manifest)
        if not packages.has_page_files(manifest):
            try:
                packages.fetch_page_packages(manifest)
            except EnvError as error:
                if name == "miniwob":
                    raise
                pytest.skip(f"{name}: {error}")
        if name not in pages.opened:
            pages.opened[name] = await ManifestPages({name: manifest}).__aenter__()
        return manifest, pool.env

    return ready


async def middle(env, selector, text=None, at=0.5):
    """The place of the first element of a selector, or of the one with this text; at: from its left end."""
    wanted = "true" if text is None else f"(n.value || n.textContent).trim() === {json.dumps(text)}"
    x, y, width, height, *whole = await env.tab.evaluate(
        f"(() => {{ const found = [...document.querySelectorAll({json.dumps(selector)})].find((n) => {wanted});"
        "const r = found.getBoundingClientRect(); return [r.x, r.y, r.width, r.height, innerWidth, innerHeight]; })()"
    )
    return Point((x + at * width) / whole[0], (y + height / 2) / whole[1])


def quoted(instruction):
    return instruction.split('"')[1::2]


async def click_test(env, said):
    yield Click(await middle(env, "#subbtn"))


async def click_button(env, said):
    yield Click(await middle(env, "button", quoted(said)[0]))


async def click_link(env, said):
    yield Click(await middle(env, ".alink", quoted(said)[0]))


async def enter_text(env, said):
    yield Click(await middle(env, "#tt"))
    yield Type(quoted(said)[0])
    yield Click(await middle(env, "#subbtn"))


async def login_user(env, said):
    for selector, text in zip(("#username", "#password"), quoted(said), strict=True):
        yield Click(await middle(env, selector))
        yield Type(text)
    yield Click(await middle(env, "#subbtn"))


async def focus_text(env, said):
    yield Click(await middle(env, "#tt"))


async def circle_center(env, said):
    yield Click(await middle(env, "svg circle"))
    yield Click(await middle(env, "#subbtn"))


async def beside_the_center(env, said):
    yield Click(await middle(env, "svg circle", at=0.7))
    yield Click(await middle(env, "#subbtn"))


async def nowhere(env, said):
    yield Click(await middle(env, "#subbtn"))


async def find_midpoint(env, said):
    one, other = [await middle(env, f"svg circle:nth-of-type({number})") for number in (1, 2)]
    yield Click(Point((one.x + other.x) / 2, (one.y + other.y) / 2))
    yield Click(await middle(env, "#subbtn"))


async def use_colorwheel(env, said):
    colour = await env.tab.evaluate(f"ui_utils.colorNameToHex({json.dumps(said.split()[1])})")
    yield TypeAt(await middle(env, "#col"), colour.lstrip("#"), clear=True)
    yield Click(await middle(env, "#query"))  # closes the picker
    yield Click(await middle(env, "#subbtn"))


async def click_checkboxes(env, said):
    names = said.removeprefix("Select ").removesuffix(" and click Submit.")
    for name in [] if names == "nothing" else names.split(", "):
        yield Click(await middle(env, "label", name, at=0.1))
    yield Click(await middle(env, "#subbtn"))


async def next_slides(env, said):
    for _ in range(int(said.split()[3]) - 1):
        yield Hotkey(("right",))


async def search(env, said):
    yield Click(await middle(env, "input[name=q]"))
    yield Type(said.split()[-1].rstrip(".") + "\n")
    yield Wait()


async def drag_to_top(env, said):
    item = await middle(env, "#sortable li", f"Item {said.split()[2]}")
    top = await middle(env, "#sortable li")
    yield Drag(item, Point(top.x, top.y - 0.02))


async def mark_as_sent(env, said):
    item = said.split()[-3]
    with sqlite3.connect(env.env.backend.folder / "shop.db") as base:
        (number,) = base.execute("select id from orders where item = ? order by price desc", [item]).fetchone()
    yield Navigate("/shop/mark_as_sent")
    yield Click(await middle(env, "input[name=id], textarea[name=id]"))
    yield Type(str(number))
    yield Click(await middle(env, "input[type=submit]"))


async def compute(env, said):
    yield Click(await middle(env, ".jp-Notebook .jp-InputArea-editor"))
    yield Type(said.partition("compute ")[2].partition(" in ")[0])
    yield Hotkey(("shift", "enter"))
    for _ in range(200):  # the kernel answers in its own time
        if await env.tab.evaluate("document.querySelector('.jp-OutputArea-output') !== null"):
            break
        yield Wait()
    yield Hotkey(("ctrl", "s"))
    yield Wait()
    yield Wait()


async def create_calendar(env, said):
    yield Click(await middle(env, "[data-name=new]"))
    yield Wait()
    form = "#createcollectionscene"
    yield Click(await middle(env, f"{form} [data-name=displayname]"))
    yield Type(said.partition("title ")[2].rstrip("."))
    yield Click(await middle(env, f"{form} [data-name=submit]"))
    yield Wait()


PLAYERS = {
    ("miniwob", "click-test"): click_test,
    ("miniwob", "click-button"): click_button,
    ("miniwob", "click-link"): click_link,
    ("miniwob", "enter-text"): enter_text,
    ("miniwob", "login-user"): login_user,
    ("miniwob", "focus-text"): focus_text,
    ("miniwob", "click-checkboxes"): click_checkboxes,
    ("miniwob", "use-colorwheel"): use_colorwheel,
    ("reveal", "page"): next_slides,
    ("click-docs", "page"): search,
    ("jquery-ui", "page"): drag_to_top,
    ("datasette", "page"): mark_as_sent,
    ("jupyterlab", "page"): compute,
    ("radicale", "page"): create_calendar,
}


@pytest.mark.parametrize(("name", "variant"), PLAYERS)
async def test_a_scripted_player_reaches_the_reward(lease, name, variant):
    manifest, env_of = await lease(name)
    async with env_of() as env:
        for seed in (3, 11):
            task = dataclasses.replace(make_page_task(manifest, variant, seed, "eval"), max_steps=300)
            result = await env.reset(task, seed)
            assert result.info["score"] < 1
            async for action in PLAYERS[name, variant](env, result.info["state"]["instruction"]):
                if not result.terminated:
                    result = await env.step(action)
            assert (result.info["score"], result.terminated, result.reward) == (1.0, True, 1.0), result.info


async def wrong_ways(env, task, other, player):
    """Last states of runs that leave out one action, and of one that does what another seed's task asks."""
    said = (await env.reset(task, task.seed)).info["state"]["instruction"]
    actions = len([action async for action in player(env, said)])
    for left_out in range(actions):
        result, number = await env.reset(task, task.seed), 0
        async for action in player(env, said):
            if number != left_out and not result.terminated:
                result = await env.step(action)
            number += 1
        yield f"without action {left_out}", result.info["state"]
    asked = (await env.reset(other, other.seed)).info["state"]["instruction"]
    if asked != said:
        with contextlib.suppress(EnvError):  # what it asks for is not on this page
            result = await env.reset(task, task.seed)
            async for action in player(env, asked):
                if not result.terminated:
                    result = await env.step(action)
            yield f"{asked} for {said}", result.info["state"]


@pytest.mark.parametrize("variant", [variant for name, variant in PLAYERS if name == "miniwob"])
async def test_miniwob_refuses_what_is_not_done_or_done_for_another_task(lease, variant):
    manifest, env_of = await lease("miniwob")
    player = PLAYERS["miniwob", variant]
    async with env_of() as env:
        for seed in (3, 11):
            tasks = [make_page_task(manifest, variant, one, "eval") for one in (seed, seed + 100)]
            states = [
                (await env.reset(tasks[0], seed)).info["state"],
                (await play(env, tasks[0], player)).info["state"],
            ]
            found = attack_template([Solution(tasks[0], states)], make_page_contract, is_solved)
            assert (found.gold, found.start, found.kill_rate, found.false_alarms) == (1, 0, 1.0, 0), found
            assert [way async for way, state in wrong_ways(env, *tasks, player) if is_solved(tasks[0], state)] == []


@pytest.mark.parametrize("variant", SHIPPED["miniwob"].variants)
async def test_every_variant_of_miniwob_opens_with_an_instruction(lease, variant):
    manifest, env_of = await lease("miniwob")
    async with env_of() as env:
        result = await env.reset(make_page_task(manifest, variant, 5, "eval"), 5)
    assert len(result.info["state"]["instruction"]) > 10
    assert result.info["score"] == 0


async def play(env, task, player):
    result = await env.reset(task, task.seed)
    async for action in player(env, result.info["state"]["instruction"]):
        if not result.terminated:
            result = await env.step(action)
    return result


def package_reward(manifest):
    """The module of the package that says what its rewards mean."""
    path = packages.find_served_folder(manifest).parent / "reward.py"
    spec = importlib.util.spec_from_file_location("miniwob_reward", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_a_graded_reward_solves_a_task_from_its_threshold_on(lease):
    """The raw reward is kept, and the package's own rule says the same of it."""
    manifest, env_of = await lease("miniwob")
    theirs = package_reward(manifest)
    async with env_of() as env:
        for seed in (0, 1, 2):
            task = make_page_task(manifest, "circle-center", seed, "eval")
            assert task.threshold == 0.8
            midpoint = make_page_task(manifest, "find-midpoint", seed, "eval")
            assert Verdict((await play(env, midpoint, find_midpoint)).reward, midpoint.threshold).v
            for player, solves, score in (
                (circle_center, True, (0.8, 0.999)),
                (beside_the_center, False, (0.4, 0.79)),
                (nowhere, False, (0.0, 0.0)),
            ):
                last = await play(env, task, player)
                raw = last.info["state"]["reward"]
                assert last.terminated
                assert score[0] <= last.info["score"] == last.reward == max(raw, 0.0) <= score[1], player
                assert Verdict(last.reward, task.threshold).v is solves
                said = theirs.get_thresholded_reward({"done": True, "raw_reward": raw}, task.threshold)
                assert (said == 1.0) is solves
                assert Verdict(last.reward, 1.0).v is False, "nobody reaches 1 here"
            assert raw == -1.0


async def test_a_reward_that_time_takes_away_can_be_asked_for_by_a_threshold(sandbox, lease, tmp_path):
    shipped, env_of = await lease("miniwob")
    said = yaml.safe_load(shipped.path.read_text())
    said |= {"name": "timed", "variants": ["click-test"], "reward": "WOB_REWARD_GLOBAL"}
    said |= {"threshold": 0.5, "step_ms": 2000}  # of the page's ten seconds
    said["reset"] = said["reset"].replace("core.EPISODE_MAX_TIME = 1e9; ", "")
    (tmp_path / "timed.yaml").write_text(yaml.safe_dump(said))
    timed = manifest.load_page_manifest(tmp_path / "timed.yaml")
    async with ManifestPages({"timed": timed}) as opened:
        sandbox[0].opened["timed"] = opened
        async with env_of() as env:
            task = make_page_task(timed, "click-test", 3, "eval")
            for waits, least, most, solves in ((0, 0.9, 0.999, True), (3, 0.3, 0.45, False), (6, 0.0, 0.0, False)):

                async def late(env, said, waits=waits):
                    for _ in range(waits):
                        yield Wait()
                    if waits < 5:
                        yield Click(await middle(env, "#subbtn"))

                last = await play(env, task, late)
                assert last.terminated
                assert least <= last.reward <= most
                assert Verdict(last.reward, task.threshold).v is solves
        del sandbox[0].opened["timed"]


@pytest.mark.smoke
async def test_a_wrong_action_fails_the_task_for_good(lease):
    manifest, env_of = await lease("miniwob")
    async with env_of() as env:
        said = (await env.reset(make_page_task(manifest, "click-test-2", 5, "eval"), 5)).info["state"]["instruction"]
        assert said == "Click button ONE."
        last = await env.step(Click(await middle(env, "button", "TWO")))
    assert (last.terminated, last.reward) == (True, 0.0)


async def test_miniwob_passes_the_conformance_suite(lease):
    manifest, env_of = await lease("miniwob")
    await check_env(env_of, make_page_task(manifest, "enter-text", 7, "eval"), seeded=True)
