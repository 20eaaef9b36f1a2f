"""Dialogs in episodes: what is read under one, checkpoints, resets, leases and crashes. In a real browser."""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio
from browser_pages import SIZE
from dialogs import ENTER, ESCAPE
from hostile import QUIET, Page, Site, Source, task_on
from processes import PATIENCE_S

from flywheel.agent import actions as act
from flywheel.agent.actions import Click, Point, Type, Wait
from flywheel.config import SandboxSettings
from flywheel.envs.browser.pool import BrowserPool
from flywheel.utils.errors import EnvError

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool():
    pages = {
        "saves": Page(click="alert('saved'); tell('after'); if (confirm('more?')) tell('more');"),
        "greets": Page(load="tell(confirm('at load'));"),
    }
    with Site(pages) as site:
        settings = SandboxSettings(browsers=1, pages=2, width=SIZE, height=SIZE, timeout_s=20)
        async with BrowserPool(settings, Source(site)) as opened:
            yield opened


BUTTON = Click(Point(0.5, 0.35))


@pytest.mark.parametrize("end", [act.Finished(), act.CallUser(), Wait()])
async def test_an_episode_that_ends_under_a_dialog_is_read_without_it(pool, end):
    """The screen is what was seen; the state is the true one."""
    async with pool.env() as env:
        await env.reset(task_on("saves", max_steps=2), 7)
        open_ = await env.step(BUTTON)
        over = await env.step(end)
    assert open_.info["state"]["dialog"] == {"kind": "alert", "message": "saved"}
    assert open_.info["state"]["told"] == []
    assert (over.terminated, over.truncated) == (end != Wait(), end == Wait())
    assert over.info["state"]["told"] == ["after"]
    assert over.observation.screenshot == open_.observation.screenshot
    assert 'alert "saved": closed at the end; confirm "more?": cancelled at the end' in over.info["note"]


@pytest.mark.parametrize("page", ["saves", "greets"])
async def test_a_dialog_that_is_open_at_a_checkpoint_is_open_after_it(pool, page):
    async with pool.env() as env:
        kept = [await env.reset(task_on(page), 7)]
        if page == "saves":
            kept.append(await env.step(BUTTON))
        checkpoint = await env.checkpoint()
        follow = (Wait(), ENTER, Type("x"), ESCAPE, Wait())
        first = [kept[-1], *[await env.step(action) for action in follow]]
        again = [await env.restore(checkpoint), *[await env.step(action) for action in follow]]
    assert "dialog" in kept[-1].info["state"]
    assert again == first
    assert "dialog" not in first[-1].info["state"]


async def test_a_reset_and_a_lease_may_end_under_a_dialog(pool):
    for page in ("saves", "greets", "greets"):
        async with pool.env() as env:
            first = await env.reset(task_on(page), 7)
            await env.step(BUTTON)
            assert await env.reset(task_on(page), 7) == first
            await env.step(BUTTON)
    async with pool.env() as env:
        calm = await env.reset(task_on(QUIET), 7)
    assert "dialog" not in calm.info["state"]


async def test_a_page_whose_dialog_waits_does_not_hang_and_may_crash(pool):
    async with pool.env() as env:
        await env.reset(task_on("saves"), 7)
        await env.step(BUTTON)
        async with asyncio.timeout(PATIENCE_S):
            await env.tab.ping()
        env.tab.page.post("Page.crash")
        await env.tab.died.wait()
        with pytest.raises(EnvError):
            await env.step(ENTER)
