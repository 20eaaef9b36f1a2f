"""The browser environment: conformance, actions and the clock."""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio
from fake_env import FakeEnv, FakePool, Faults, fake_task
from night import by_day
from pages import click_on, script, swallow, task_of

from flywheel.agent import actions as act
from flywheel.agent.actions import Click, Drag, Hotkey, Point, Type, Wait
from flywheel.config import SandboxSettings, Settings
from flywheel.envs.browser.pool import open_browser_pool
from flywheel.envs.conformance import check_env
from flywheel.envs.suites.merge.board import first_random
from flywheel.utils.errors import EnvError

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool():
    async with open_browser_pool(Settings(sandbox=SandboxSettings(timeout_s=60))) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def hasty():
    """A pool of one page with a short deadline."""
    async with open_browser_pool(Settings(sandbox=SandboxSettings(browsers=1, pages=1, timeout_s=4))) as opened:
        yield opened


# -- conformance ---
@pytest.mark.parametrize(("world", "template"), by_day([("tiles", "clear"), ("merge", "reach"), ("shop", "add")]))
async def test_the_browser_passes_the_conformance_suite(pool, world, template):
    await check_env(pool.env, task_of(world, template))


@pytest.mark.exhaustive
async def test_a_hung_page_meets_its_deadline_and_the_next_lease_is_sound(hasty):
    async def hang(env):
        # Sent at once, or the step would be quicker now and then.
        env.hung = asyncio.ensure_future(swallow(env.tab.page.send("Runtime.evaluate", {"expression": "for(;;);"})))

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


# -- actions ---
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
        (act.Navigate("http://["), "not an address"),
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
            act.LeftDouble(Point(0.5, 0.99)),
            act.RightSingle(Point(0.5, 0.99)),
            act.Scroll(Point(0.5, 0.5), "down"),
            Type("\ud800 \u4f60"),
            act.Press("shift"),
            act.Release("shift"),
            Hotkey(("ctrl", "a")),
            Wait(),
        ):
            result = await env.step(action)
            told = "no menu opens here" if isinstance(action, act.RightSingle) else None
            assert told is None if "note" not in result.info else told in result.info["note"]
        ended = await env.step(act.CallUser())
    assert ended.terminated
    assert ended.reward == 0.0


async def test_a_double_click_is_two_clicks_one_after_the_other(pool):
    """On a switch: on, a new page, off again."""
    task = task_of("settings", "turn_on")
    async with pool.env() as env:
        first = await env.reset(task, 1)
        point = click_on(first, f"switch {task.params['switch']}").point
        result = await env.step(act.LeftDouble(point))
        await script(env, "addEventListener('dblclick', () => { window.doubled = true; })")
        await env.step(act.LeftDouble(Point(0.3, 0.05)))
        assert await script(env, "window.doubled") is True
    assert result.info["state"]["values"] == first.info["state"]["values"]
    assert result.observation.screenshot == first.observation.screenshot


async def test_hostile_typed_text_stays_text(pool):
    task = task_of("settings", "name", level=2)
    async with pool.env() as env:
        await env.reset(task, 1)
        await env.step(act.Navigate("user"))
        field = next(e for e in (await env.step(Wait())).info["state"]["elements"] if e["name"] == "name field")
        await env.step(Click(Point(field["x"] + 0.1, field["y"] + 0.05)))
        result = await env.step(Type("<b onclick=alert(1)>ab</b>\n"))
        assert result.info["state"]["values"]["name"] == "<b onclick=alert(1)>ab</b>"
        assert await script(env, "document.querySelectorAll('b').length") == 0


# -- the clock ---
async def test_page_time_passes_by_steps_alone(pool):
    async with pool.env() as env:
        await env.reset(task_of("shapes", "fit", level=3), 42)
        await script(
            env,
            """
            window.seen = {frames: 0, ticks: 0};
            {const frame = () => { seen.frames += 1; requestAnimationFrame(frame); };
            requestAnimationFrame(frame);}
            setInterval(() => { seen.ticks += 1; }, 30);
            setTimeout(() => { seen.at = Date.now(); seen.now = performance.now(); }, 150);
            seen.start = Date.now();
        """,
        )
        assert (
            await script(
                env,
                "new Promise(r => { const c = new MessageChannel(); c.port1.onmessage = () => r("
                "seen.ticks); c.port2.postMessage(0); })",
            )
            == 0
        )
        await env.step(Wait())
        seen = await script(env, "seen")
        chance = await script(env, "Math.random()")
        date = await script(env, "new Date().toISOString()")
    assert seen["at"] - seen["start"] == 150
    assert seen["now"] == 150
    assert (seen["frames"], seen["ticks"]) == (12, 6)  # 200 ms at 60 frames a second; every 30 ms
    assert chance == first_random(42)
    assert date == "2026-01-01T09:00:00.200Z"
