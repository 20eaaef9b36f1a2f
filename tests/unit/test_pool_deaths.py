"""Browsers and pages that die, hang or grow too large, which are not there: whom it costs, and who goes on."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from fake_browsers import TASK, Fleetful, hold, settle

from flywheel.agent.actions import Wait
from flywheel.envs.browser import fleet as ev
from flywheel.utils.errors import EnvError, EnvTimeout


async def test_a_dead_browser_costs_its_sessions_at_once_and_no_others():
    async with Fleetful(browsers=2, pages=4) as fleet, contextlib.AsyncExitStack() as stack:
        leases = await hold(fleet, stack, 4)
        for lease in leases:
            await lease.reset(TASK, 0)
        dead = leases[0].page.host
        hit = [lease for lease in leases if lease.page.host is dead]
        assert len(hit) == 2
        hit[0].env.held = True
        under_way = asyncio.create_task(hit[0].step(Wait()))
        await settle()
        dead.chromium.kill()
        with pytest.raises(EnvError, match="the browser died"):
            await under_way
        with pytest.raises(EnvError, match=f"the browser died.*session {hit[1].session}"):
            await hit[1].step(Wait())
        for lease in set(leases).difference(hit):
            await lease.step(Wait())
        for lease in await hold(fleet, stack, 2):  # though the holders of the dead ones are still there
            await lease.reset(TASK, 0)
        assert fleet.pool.events.counts["Crashed"] == 3  # the browser and two sessions
        await settle()
        assert dead.chromium.ended


async def test_a_dead_page_costs_its_session_and_no_others():
    async with Fleetful(browsers=1, pages=2) as fleet, contextlib.AsyncExitStack() as stack:
        one, two = await hold(fleet, stack, 2)
        await one.reset(TASK, 0)
        await two.reset(TASK, 0)
        one.tab.crash()
        await settle()
        with pytest.raises(EnvError, match="the page crashed"):
            await one.step(Wait())
        await two.step(Wait())
        assert len(fleet.browsers) == 1


async def test_a_page_that_dies_while_nobody_uses_it_is_never_lent():
    async with Fleetful(browsers=1, pages=1) as fleet:
        async with fleet.pool.env() as env:
            await env.reset(TASK, 0)
        env.tab.crash()
        async with fleet.pool.env() as env:
            await env.reset(TASK, 0)


async def test_a_browser_that_dies_while_a_page_opens_is_tried_again():
    class Dying(Fleetful):
        async def launch(self):
            browser = await super().launch()
            if self.starts == 1:
                browser.kill()
            return browser

    async with Dying(browsers=1, pages=1) as fleet, fleet.pool.env() as env:
        await env.reset(TASK, 0)
        assert fleet.starts == 2


async def test_the_watchdog_ends_hung_pages_that_nobody_asks_anything():
    async with Fleetful(browsers=1, pages=3, timeout_s=0.5) as fleet, contextlib.AsyncExitStack() as stack:
        held, sound = await hold(fleet, stack, 2)
        await held.reset(TASK, 0)
        await sound.reset(TASK, 0)
        held.tab.hung = True
        await fleet.pool.watchdog.end_hung_pages()
        await settle()
        with pytest.raises(EnvTimeout, match="hangs"):
            await held.step(Wait())
        await sound.step(Wait())
        assert fleet.pool.fleet.pages == [sound.page]


async def test_a_page_that_cannot_be_closed_takes_its_browser_with_it_when_the_others_are_done(monkeypatch):
    monkeypatch.setattr("flywheel.envs.browser.fleet.CLOSE_TIMEOUT_S", 0.01)
    async with Fleetful(browsers=1, pages=2) as fleet:
        async with fleet.pool.env() as other:
            await other.reset(TASK, 0)
            async with fleet.pool.env() as env:
                await env.reset(TASK, 0)
                fleet.browsers[0].stuck = True
                env.tab.crash()
                await settle()
            closed = fleet.pool.events.stream(ev.Closed)
            assert (await anext(closed)).page == env.page.number
            await other.step(Wait())
        assert (await anext(closed)).browser == fleet.browsers[0].pid
        assert not fleet.alive


async def test_step_history_above_the_limit_retires_a_browser(monkeypatch):
    from flywheel.utils import child_processes

    async with Fleetful(browsers=1, pages=2, browser_mb=300) as fleet:
        async with fleet.pool.env() as env:
            await env.reset(TASK, 0)
            monkeypatch.setattr(
                child_processes,
                "measure_memory",
                lambda pids, **_: {p: [child_processes.ProcessMemory(p, "browser", 301)] for p in pids},
            )
            await fleet.pool.watchdog.limit_memory()
            await env.step(Wait())
        await settle()
        assert not fleet.alive
