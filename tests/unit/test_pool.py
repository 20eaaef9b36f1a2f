"""The pool's own rules, on browsers that are not there: growth, waiting, the end of a lease, events, status."""

from __future__ import annotations

import asyncio
import contextlib

import lamp_env
import pytest
from fake_browsers import TASK, Fleetful, hold, settle
from fake_env import fake_task
from lamp_env import LEFT, Scripted

from flywheel.agent.actions import Finished, Wait
from flywheel.envs.browser import fleet as ev
from flywheel.envs.conformance import check_env
from flywheel.envs.registry import EnvRouter
from flywheel.rollout.episode import RolloutStats, run_rollout
from flywheel.utils.errors import EnvError, EnvTimeout


# -- growth and shrinking ---
async def test_sessions_spread_over_browsers_and_grow_to_the_limit():
    async with Fleetful(browsers=3, pages=7) as fleet, contextlib.AsyncExitStack() as stack:
        loads = []
        for _ in range(7):
            await hold(fleet, stack, 1)
            loads.append(fleet.pages)
        assert loads == [[1], [1, 1], [1, 1, 1], [1, 1, 2], [1, 2, 2], [2, 2, 2], [2, 2, 3]]


async def test_one_user_after_the_other_needs_one_page():
    async with Fleetful(browsers=3, pages=7) as fleet:
        for _ in range(5):
            async with fleet.pool.env() as env:
                await env.reset(TASK, 0)
        assert fleet.pages == [1]


async def test_idle_pages_and_browsers_are_closed_down_to_the_least():
    async with Fleetful(browsers=2, pages=6, pages_min=1, idle_s=60) as fleet:
        async with contextlib.AsyncExitStack() as stack:
            await hold(fleet, stack, 6)
            fleet.clock.now += 100
            await fleet.pool.watchdog.close_idle()
            await settle()
            assert fleet.pages == [3, 3]  # in use, however long
        fleet.clock.now += 59
        await fleet.pool.watchdog.close_idle()
        await settle()
        assert len(fleet.alive) == 2
        fleet.clock.now += 2
        await fleet.pool.watchdog.close_idle()
        await settle()
        assert fleet.pages == [1]
        async with fleet.pool.env() as env:
            await env.reset(TASK, 0)


async def test_a_browser_is_replaced_after_its_episodes_and_those_on_it_finish():
    async with Fleetful(browsers=1, pages=2, recycle_after=3) as fleet, contextlib.AsyncExitStack() as stack:
        (other,) = await hold(fleet, stack, 1)
        await other.reset(TASK, 0)
        async with fleet.pool.env() as env:
            await env.reset(TASK, 0)
            await env.reset(TASK, 1)
        async with fleet.pool.env() as env:
            await env.reset(TASK, 0)
            assert [browser.alive for browser in fleet.browsers] == [True, True]
        await other.step(Wait())
        await stack.aclose()
        await settle()
        assert [browser.alive for browser in fleet.browsers] == [False, True]


# -- waiting ---
async def test_waiting_is_first_come_first_served():
    async with Fleetful(browsers=1, pages=1) as fleet:
        served = []

        async def one(number: int) -> None:
            async with fleet.pool.env():
                served.append(number)
                await asyncio.sleep(0)

        async with fleet.pool.env():
            tasks = []
            for number in range(5):
                tasks.append(asyncio.create_task(one(number)))
                await settle()
            assert fleet.pool.waiting == 5
            tasks.pop(2).cancel()
            await settle()
        await asyncio.gather(*tasks)
        assert served == [0, 1, 3, 4]


async def test_a_wait_has_a_deadline_and_takes_no_place():
    async with Fleetful(browsers=1, pages=1, acquire_timeout_s=0.01) as fleet:
        async with fleet.pool.env():
            with pytest.raises(EnvTimeout, match=r"no page came free within 0\.01 s.*sandbox\.pages"):
                await fleet.pool.env().__aenter__()
        async with fleet.pool.env():
            assert fleet.pool.waiting == 0


async def test_a_browser_that_does_not_start_is_told_and_tried_again_by_the_next():
    async with Fleetful(browsers=1, pages=1, fail_starts=1) as fleet:
        with pytest.raises(EnvError, match="did not start"):
            await fleet.pool.env().__aenter__()
        async with fleet.pool.env() as env:
            await env.reset(TASK, 0)


async def test_a_cancelled_holder_leaves_its_place_and_no_half_done_page():
    async with Fleetful(browsers=1, pages=1) as fleet:

        async def stuck() -> None:
            async with fleet.pool.env() as env:
                env.env.held = True
                await env.reset(TASK, 0)

        task = asyncio.create_task(stuck())
        await settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with fleet.pool.env() as env:
            await env.reset(TASK, 0)
            assert not env.env.held


# -- the end of a lease ---
@pytest.mark.parametrize(
    ("passed", "why", "said"), [(101, "overdue", "held for more than 100 s"), (31, "idle", "no call for 30 s")]
)
async def test_a_session_is_taken_back_and_others_are_not(passed, why, said):
    async with (
        Fleetful(browsers=1, pages=2, lease_s=100, heartbeat_timeout_s=30) as fleet,
        contextlib.AsyncExitStack() as stack,
    ):
        (late,) = await hold(fleet, stack, 1)
        await late.reset(TASK, 0)
        fleet.clock.now += passed
        (other,) = await hold(fleet, stack, 1)
        await other.reset(TASK, 0)
        if why == "overdue":
            late.used = fleet.clock.now  # it did make calls
        await fleet.pool.watchdog.reclaim_overdue()
        with pytest.raises(EnvTimeout, match=f"{said}.*session {late.session}.*{TASK.task_id}"):
            await late.step(Wait())
        await other.step(Wait())
        await settle()
        assert late.tab.closed
        # Its place is free though its holder still has the lease.
        await hold(fleet, stack, 1)
        assert fleet.pool.events.counts["Reclaimed"] == 1


async def test_a_call_under_way_ends_when_its_session_is_taken_back():
    async with Fleetful(browsers=1, pages=1, lease_s=100, timeout_s=60) as fleet, fleet.pool.env() as env:
        await env.reset(TASK, 0)
        env.env.held = True
        step = asyncio.create_task(env.step(Wait()))
        await settle()
        fleet.clock.now += 101
        await fleet.pool.watchdog.reclaim_overdue()
        with pytest.raises(EnvTimeout, match="taken back"):
            await step


async def test_a_session_that_was_given_back_is_over():
    async with Fleetful(browsers=1, pages=1) as fleet:
        async with fleet.pool.env() as env:
            await env.reset(TASK, 0)
        with pytest.raises(EnvError, match="given back"):
            await env.step(Wait())
        await env.close()


async def test_two_calls_at_once_are_refused_and_harm_nothing():
    async with Fleetful(browsers=1, pages=1) as fleet, fleet.pool.env() as env:
        await env.reset(TASK, 0)
        first = asyncio.create_task(env.step(Wait()))
        await asyncio.sleep(0)
        with pytest.raises(EnvError, match="under way"):
            await env.step(Wait())
        assert not (await first).terminated


async def test_an_environment_that_never_answers_meets_the_pools_own_deadline():
    async with Fleetful(browsers=1, pages=1, timeout_s=0.5) as fleet:
        async with fleet.pool.env() as env:
            await env.reset(TASK, 0)
            env.env.held = True
            with pytest.raises(EnvTimeout, match="did not answer a step"):
                await env.step(Wait())
        async with fleet.pool.env() as env:
            await env.reset(TASK, 0)


async def test_leaving_the_pool_ends_those_who_hold_and_those_who_wait():
    fleet = Fleetful(browsers=1, pages=1, timeout_s=60)
    async with fleet:
        holding = fleet.pool.env()
        env = await holding.__aenter__()
        await env.reset(TASK, 0)
        env.env.held = True
        step = asyncio.create_task(env.step(Wait()))
        waiter = asyncio.create_task(fleet.pool.env().__aenter__())
        await settle()
    with pytest.raises(EnvError, match="the pool was closed"):
        await step
    await holding.__aexit__(None, None, None)
    with pytest.raises(EnvError, match="the pool is closed"):
        await waiter
    with pytest.raises(EnvError, match="the pool is closed"):
        await fleet.pool.env().__aenter__()


# -- the contract, events, status ---
async def test_a_lease_passes_the_conformance_suite():
    async def hang(lease):
        lease.env.held = True

    async with Fleetful(browsers=2, pages=2, timeout_s=1) as fleet:
        await check_env(fleet.pool.env, TASK, hang)


async def test_the_events_of_a_session_in_order():
    async with Fleetful(browsers=1, pages=1) as fleet:
        with fleet.pool.events.stream() as stream:
            async with fleet.pool.env() as env:
                await env.reset(TASK, 0)
                await env.step(Wait())
                await env.step(Finished())
        seen = [event async for event in stream]
        pid = fleet.browsers[0].pid
        assert [type(event) for event in seen] == [
            ev.Started,
            ev.Started,
            ev.Leased,
            ev.Stepped,
            ev.Stepped,
            ev.Stepped,
            ev.Released,
        ]
        assert {event.browser for event in seen} == {pid}
        assert [event.page for event in seen] == [0, 1, 1, 1, 1, 1, 1]
        assert [event.session for event in seen] == ["", ""] + [env.session] * 5
        assert [(e.step, e.ended) for e in seen[3:6]] == [(0, False), (1, False), (2, True)]
        assert (seen[-1].episodes, seen[-1].steps) == (1, 2)


async def test_a_slow_reader_misses_events_and_knows_how_many():
    async with Fleetful(browsers=1, pages=1) as fleet:
        slow, all_of_them = fleet.pool.events.stream(ev.Stepped, size=3), fleet.pool.events.stream(ev.Stepped)
        async with fleet.pool.env() as env:
            await env.reset(TASK, 0)
            for _ in range(7):
                await env.step(Wait())
        assert fleet.pool.events.counts["Stepped"] == 8
    assert [event.step async for event in slow] == [5, 6, 7]
    assert slow.dropped == 5
    assert [event.step async for event in all_of_them] == list(range(8))
    assert all_of_them.dropped == 0


async def test_status_tells_whose_each_page_is():
    async with Fleetful(browsers=1, pages=2, lease_s=100) as fleet, fleet.pool.env() as env:
        await env.reset(TASK, 0)
        await env.step(Wait())
        fleet.clock.now += 7
        status = await fleet.pool.status()
        (session,) = status.sessions
        assert (session.session, session.task, session.episode, session.step) == (env.session, TASK.task_id, 1, 1)
        assert (session.unused_s, session.left_s, session.busy) == (7, 93, False)
        assert status.browsers[0].pid == fleet.browsers[0].pid
        assert env.session in str(status)
        assert TASK.task_id in str(status)


async def test_the_rollout_counts_what_happened_in_the_pool():
    async def answer_and_kill(context, sampling):
        if not crashed:
            crashed.append(fleet.browsers[0])
            fleet.browsers[0].kill()
        return LEFT

    class Killer(Scripted):
        async def complete(self, context, sampling):
            await answer_and_kill(context, sampling)
            return await super().complete(context, sampling)

    crashed, stats = [], RolloutStats()
    async with Fleetful(browsers=1, pages=1, timeout_s=30) as fleet:
        (episode,) = await run_rollout(
            [fake_task(1, max_steps=3)],
            1,
            Killer(lambda c, s: LEFT),
            EnvRouter({"browser": fleet.pool}),
            iteration=0,
            settings=lamp_env.settings(),
            temperature=1.0,
            stats=stats,
        )
    assert episode.trajectory.status == "truncated"
    assert len(episode.steps) == 3
    assert stats == RolloutStats(retries=1, crashes=2, reclaimed=0, answers=5)  # two resets, three steps
