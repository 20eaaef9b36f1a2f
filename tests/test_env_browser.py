"""The browser environment and its pool: conformance, determinism, actions, crashes, and a clean end."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pocketsphinx
import pytest
import pytest_asyncio
from playwright.async_api import Error as PlaywrightError

from flywheel.agent import actions as act
from flywheel.agent.actions import Click, Drag, Hotkey, Point, Type, Wait
from flywheel.errors import BadInput, EnvError
from flywheel.sandbox import chromium
from flywheel.sandbox.check import check_env
from flywheel.sandbox.fake import FakeEnv, FakePool, Faults, fake_task
from flywheel.sandbox.pool import open_sandbox
from flywheel.settings import Sandbox, Settings
from flywheel.synthesis.tasks import make_task, make_tasks
from flywheel.worlds import catalogue, oracle
from flywheel.worlds.merge.board import first_random, play

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool():
    async with open_sandbox(Settings(sandbox=Sandbox(timeout_s=60))) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def hasty():
    """A pool of one page with a short deadline."""
    async with open_sandbox(Settings(sandbox=Sandbox(browsers=1, pages=1, timeout_s=4))) as opened:
        yield opened


def task_of(world: str, template: str, level: int = 1, seed: int = 4):
    return make_task(catalogue.get(world), template, level, seed, "train")


# -- conformance -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("world", "template"), [("tiles", "clear"), ("merge", "reach"), ("shop", "add")])
async def test_the_browser_passes_the_conformance_suite(pool, world, template):
    await check_env(pool.env, task_of(world, template))


async def test_a_hung_page_meets_its_deadline_and_the_next_lease_is_sound(hasty):
    async def hang(env):
        env.hung = asyncio.ensure_future(_swallow(env._cdp.send("Runtime.evaluate", {"expression": "for(;;);"})))

    await check_env(hasty.env, task_of("settings", "turn_on"), hang)


async def test_the_fake_passes_the_conformance_suite():
    async def hang(env):
        env._faults = Faults(hang_at=1)

    await check_env(FakePool(timeout_s=0.01).env, fake_task(2), hang)


async def test_the_fake_fails_as_told():
    env = FakeEnv(Faults(crash_at=2))
    await env.reset(fake_task(), 0)
    await env.step(Wait())
    with pytest.raises(EnvError, match="step 2"):
        await env.step(Wait())


# -- the worlds, played ------------------------------------------------------------------------------------------------
async def _demonstrate(pool, tasks):
    async def one(task):
        async with pool.env() as env:
            return await oracle.demonstrate(env, task, task.seed)

    return await asyncio.gather(*(one(task) for task in tasks))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def demonstrations(pool):
    """Each held-out task with its expert's steps, played on all pages at once."""
    tasks = make_tasks(Settings(), 0, "eval")
    return list(zip(tasks, await _demonstrate(pool, tasks), strict=True))


async def test_every_held_out_task_is_solved_by_its_expert(demonstrations):
    for task, steps in demonstrations:
        last = steps[-1][2]
        assert (last.reward, last.terminated, last.truncated) == (1.0, True, False), task
        assert task.max_steps >= len(steps) + 1, "no room for one mistake"


async def test_the_same_actions_give_the_same_pixels_in_another_order(pool, demonstrations):
    again = await _demonstrate(pool, [task for task, _ in reversed(demonstrations)])
    for (task, first), second in zip(demonstrations, reversed(again), strict=True):
        assert [_digest(step) for step in first] == [_digest(step) for step in second], task


async def test_thoughts_are_short_and_the_recognizer_knows_their_words(demonstrations):
    model = Path(pocketsphinx.__file__).parent / "model" / "en-us" / "cmudict-en-us.dict"
    known = {line.split(" ", 1)[0] for line in model.read_text().splitlines()}
    thoughts = {thought for _, steps in demonstrations for thought, _, _ in steps}
    assert len(thoughts) > 50
    for thought in thoughts:
        words = thought.lower().replace(".", "").replace(",", "").split()
        assert 1 <= len(words) <= 10
        assert set(words) <= known, thought


async def test_higher_levels_can_be_solved(pool):
    for world, template in (("tiles", "clear"), ("shapes", "fit"), ("merge", "reach"), ("shop", "swap")):
        async with pool.env() as env:
            steps = await oracle.demonstrate(env, task_of(world, template, level=3), 1)
        assert steps[-1][2].reward == 1.0, world


async def test_random_play_seldom_succeeds(pool):
    async def luck(task):
        rng = random.Random(task.task_id)
        async with pool.env() as env:
            result = await env.reset(task, task.seed)
            while not (result.terminated or result.truncated):
                result = await env.step(_random_action(rng))
        return result.reward >= task.threshold

    wins = await asyncio.gather(*(luck(task) for task in make_tasks(Settings(), 0, "train")))
    assert sum(wins) <= 0.05 * len(wins)


async def test_the_game_and_the_search_have_the_same_rules(pool):
    """merge.js against board.py, where new tiles appear too."""
    task = task_of("merge", "reach", level=3)
    async with pool.env() as env:
        result = await env.reset(task, 0)
        board = tuple(map(tuple, result.info["state"]["board"]))
        for moves, key in enumerate(("left", "up", "right", "down")):
            result = await env.step(Hotkey((key,)))
            board = play(board, key, moves, task.params["spawn"])
            assert tuple(map(tuple, result.info["state"]["board"])) == board
            assert result.info["state"]["moves"] == moves + 1


async def test_a_lost_game_ends_with_what_was_reached(pool):
    task = task_of("tiles", "clear", level=2)
    async with pool.env() as env:
        result = await env.reset(task, 0)
        for wanted in (0, 1, 0, 1):  # two of each kind fill the tray of four
            tiles = result.info["state"]["tiles"]
            kinds = sorted({tile["kind"] for tile in task.params["tiles"]})
            tile = next(tile for tile in tiles if tile["kind"] == kinds[wanted])
            result = await env.step(oracle_click(result, f"tile {tile['id']}"))
    assert (result.terminated, result.truncated, result.reward) == (True, False, 0.0)
    assert result.info["state"]["lost"]


async def test_a_drop_elsewhere_takes_the_piece_back(pool):
    task = task_of("shapes", "fit")
    async with pool.env() as env:
        first = await env.reset(task, 0)
        still = await env.step(Wait())
        piece = next(e for e in first.info["state"]["elements"] if e["name"].startswith("piece"))
        result = await env.step(Drag(Point(piece["x"] + 0.1, piece["y"] + 0.1), Point(0.5, 0.02)))
    assert result.observation.screenshot == still.observation.screenshot
    assert not result.info["state"]["pieces"][0]["placed"]


async def test_a_game_state_can_be_set(pool):
    """The contract's setState: what getState gave is drawn again."""
    task = task_of("tiles", "clear", level=2)
    async with pool.env() as env:
        result = await env.reset(task, 0)
        kept = await _script(env, "JSON.stringify(window.__env__.getState())")
        _, action = oracle.next_step(task, result.info["state"])
        moved = await env.step(action)
        await _script(env, f"window.__env__.setState({kept})")
        back = await env.step(Wait())
    assert len(moved.info["state"]["tiles"]) == 5
    assert back.observation.screenshot == result.observation.screenshot


# -- actions ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("action", "part"),
    [
        (Click(Point(1.0, 0.5)), "outside"),
        (Drag(Point(0.5, 0.5), Point(0.5, -0.1)), "outside"),
        (Hotkey(("hyper", "x")), "no such key"),
        (act.Press("nokey"), "no such key"),
        (act.Navigate("http://example.org/"), "outside this world"),
        (act.Navigate("javascript:alert(1)"), "outside this world"),
        (act.Navigate("/s/other/"), "outside this world"),
        (act.NavigateBack(), "no page to go back to"),
        (Type("x" * 5000), "longer than"),
    ],
)
async def test_what_cannot_be_done_is_a_noted_no_op(pool, action, part):
    async with pool.env() as env:
        first = await env.reset(task_of("shop", "buy", level=2), 1)
        result = await env.step(action)
    assert part in result.info["note"]
    assert result.observation == first.observation


async def test_navigation_inside_the_world(pool):
    async with pool.env() as env:
        await env.reset(task_of("shop", "buy", level=2), 1)
        cart = await env.step(act.Navigate("cart"))
        back = await env.step(act.NavigateBack())
        lost = await env.step(act.Navigate("no/such/page"))
    assert (cart.info["state"]["page"], cart.observation.url) == ("cart", "shop/cart")
    assert back.info["state"]["page"] == ""
    assert not lost.terminated


async def test_all_other_actions_are_taken(pool):
    async with pool.env() as env:
        await env.reset(task_of("shop", "buy", level=2), 1)
        for action in (
            act.LeftDouble(Point(0.5, 0.99)), act.RightSingle(Point(0.5, 0.99)), act.Scroll(Point(0.5, 0.5), "down"),
            act.Press("shift"), act.Release("shift"), Hotkey(("ctrl", "a")), Wait(),
        ):  # fmt: skip
            result = await env.step(action)
            assert "note" not in result.info
        ended = await env.step(act.CallUser())
    assert ended.terminated
    assert ended.reward == 0.0


async def test_hostile_typed_text_stays_text(pool):
    task = task_of("settings", "name", level=2)
    async with pool.env() as env:
        await env.reset(task, 1)
        await env.step(act.Navigate("user"))
        field = next(e for e in (await env.step(Wait())).info["state"]["elements"] if e["name"] == "name field")
        await env.step(Click(Point(field["x"] + 0.1, field["y"] + 0.05)))
        result = await env.step(Type("<b onclick=alert(1)>ab</b>\n"))
        assert result.info["state"]["values"]["name"] == "<b onclick=alert(1)>ab</b>"
        assert await _script(env, "document.querySelectorAll('b').length") == 0


# -- the clock -------------------------------------------------------------------------------------------------------
async def test_page_time_passes_by_steps_alone(pool):
    async with pool.env() as env:
        await env.reset(task_of("shapes", "fit", level=3), 42)
        await _script(
            env,
            """
            window.seen = {frames: 0, ticks: 0};
            const frame = () => { seen.frames += 1; requestAnimationFrame(frame); };
            requestAnimationFrame(frame);
            setInterval(() => { seen.ticks += 1; }, 30);
            setTimeout(() => { seen.at = Date.now(); seen.now = performance.now(); }, 150);
            seen.start = Date.now();
        """,
        )
        assert await _script(env, "new Promise(r => { const c = new MessageChannel(); c.port1.onmessage = () => r("
                                  "seen.ticks); c.port2.postMessage(0); })") == 0  # fmt: skip
        await env.step(Wait())
        seen = await _script(env, "seen")
        chance = await _script(env, "Math.random()")
        date = await _script(env, "new Date().toISOString()")
    assert seen["at"] - seen["start"] == 150
    assert seen["now"] == 150
    assert (seen["frames"], seen["ticks"]) == (12, 6)  # 200 ms at 60 frames a second; every 30 ms
    assert chance == first_random(42)
    assert date == "2026-01-01T09:00:00.200Z"


# -- crashes ---------------------------------------------------------------------------------------------------------
async def test_a_crashed_page_costs_its_lease_and_no_more(hasty):
    task = task_of("tiles", "clear")
    async with hasty.env() as env:
        await env.reset(task, 0)
        crash = asyncio.ensure_future(_swallow(env._cdp.send("Page.crash")))
        with pytest.raises(EnvError, match="world tiles"):
            await env.step(Wait())
        crash.cancel()
        with pytest.raises(EnvError, match="broken"):
            await env.reset(task, 0)
    async with hasty.env() as env:
        assert (await env.reset(task, 0)).info["score"] == 0


async def test_a_killed_browser_costs_its_lease_and_no_more(hasty):
    task = task_of("shop", "add")
    async with hasty.env() as env:
        await env.reset(task, 0)
        inspector = await env._page.context.browser.new_browser_cdp_session()
        processes = (await inspector.send("SystemInfo.getProcessInfo"))["processInfo"]
        os.kill(next(process["id"] for process in processes if process["type"] == "browser"), signal.SIGKILL)
        with pytest.raises(EnvError):
            await env.step(Wait())
    async with hasty.env() as env:
        assert (await env.reset(task, 0)).info["score"] == 0


async def test_an_error_of_the_user_of_a_lease_frees_the_page(hasty):
    async def fail():
        async with hasty.env() as env:
            await env.reset(task_of("tiles", "clear"), 0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with hasty.env() as env:
        await env.reset(task_of("tiles", "clear"), 0)


_HOLD = """
import asyncio
from flywheel.settings import Sandbox, Settings
from flywheel.sandbox.pool import open_sandbox
from flywheel.synthesis.tasks import make_tasks

async def main():
    settings = Settings(sandbox=Sandbox(browsers=1, pages=1, timeout_s=60))
    async with open_sandbox(settings) as pool, pool.env() as env:
        await env.reset(make_tasks(settings, 0, "eval")[0], 0)
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_no_browser_outlives_a_killed_parent():
    root = Path(__file__).parent.parent
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", _HOLD, stdout=asyncio.subprocess.PIPE, cwd=root)
    try:
        assert await parent.stdout.readline() == b"ready\n"
        family = _descendants(parent.pid)
        assert any("chrom" in name for _, name in family)
    finally:
        parent.kill()
        await parent.wait()
    deadline = time.monotonic() + 20
    while left := [pid for pid, _ in family if _alive(pid)]:
        assert time.monotonic() < deadline, f"still there: {left}"
        await asyncio.sleep(0.05)


# -- which Chromium --------------------------------------------------------------------------------------------------
async def test_a_missing_browser_says_what_to_type(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))
    with pytest.raises(BadInput, match="playwright install"):
        chromium.find(Sandbox())
    with pytest.raises(BadInput, match="no-such-browser"):
        chromium.find(Sandbox(executable="no-such-browser"))
    shell = tmp_path / "chromium_headless_shell-1" / "linux" / "headless_shell"
    shell.parent.mkdir(parents=True)
    shell.touch(mode=0o755)
    assert chromium.find(Sandbox()) == shell


async def test_a_browser_that_does_not_start_is_an_env_error(tmp_path):
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    settings = Settings(sandbox=Sandbox(browsers=1, pages=1, executable=str(broken)))
    async with open_sandbox(settings) as pool:
        with pytest.raises(EnvError, match="did not start"):
            await pool.env().__aenter__()


# -- helpers ---------------------------------------------------------------------------------------------------------
def _digest(step):
    return hashlib.sha256(step[2].observation.screenshot).hexdigest()


def oracle_click(result, name):
    element = next(e for e in result.info["state"]["elements"] if e["name"] == name)
    return Click(Point(element["x"] + element["w"] / 2, element["y"] + element["h"] / 2))


def _random_action(rng: random.Random):
    def point():
        return Point(rng.random(), rng.random())

    return rng.choice(
        [
            lambda: Click(point()),
            lambda: Drag(point(), point()),
            lambda: Hotkey((rng.choice(("left", "right", "up", "down")),)),
            lambda: Type(rng.choice(("anna\n", "mug\n", "red\n"))),
        ]
    )()


async def _script(env, expression: str):
    answer = await env._cdp.send(
        "Runtime.evaluate", {"expression": expression, "returnByValue": True, "awaitPromise": True}
    )
    assert "exceptionDetails" not in answer, answer
    return answer["result"].get("value")


async def _swallow(sending) -> None:
    """Await a call that never comes back, because of what it does to its page."""
    with suppress(PlaywrightError):
        await sending


def _descendants(pid: int) -> list[tuple[int, str]]:
    """Processes below `pid`, with their names."""
    children: dict[int, list[tuple[int, str]]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
        children.setdefault(int(rest[1]), []).append((int(stat.parent.name), name))
    found, queue = [], [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += [child for child, _ in below]
    return found


def _alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False
