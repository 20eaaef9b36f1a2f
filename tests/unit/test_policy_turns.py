"""Turns at a policy: so many at once, none lost, and nobody inside while its weights change."""

from __future__ import annotations

import asyncio
import random

from hypothesis import given
from hypothesis import strategies as st
from processes import PATIENCE_S

from flywheel.policy.client.remote import RequestSlots


@given(st.integers(1, 4), st.lists(st.sampled_from(["go", "give up", "swap"]), max_size=25), st.integers(0, 999))
def test_turns_are_bounded_and_none_is_lost(at_once, wanted, seed):
    """Whoever comes has a turn, gives up or swaps alone, in whatever order they run."""
    turns, inside, most, done, draw = RequestSlots(at_once), 0, 0, [], random.Random(seed)

    async def go(number):
        nonlocal inside, most
        await turns.take()
        try:
            inside += 1
            most = max(most, inside)
            for _ in range(draw.randrange(4)):
                await asyncio.sleep(0)
            done.append(number)
        finally:
            inside -= 1
            turns.give_back()

    async def swap(number):
        async with turns.hold_empty():
            assert inside == 0
            await asyncio.sleep(0)
            assert inside == 0
        done.append(number)

    async def everyone():
        tasks = [asyncio.create_task((swap if kind == "swap" else go)(n)) for n, kind in enumerate(wanted)]
        for number, kind in enumerate(wanted):
            if kind == "give up":
                for _ in range(draw.randrange(3)):
                    await asyncio.sleep(0)
                tasks[number].cancel()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.cancelled() or task.exception() is None for task in tasks)

    asyncio.run(everyone())
    assert {number for number, kind in enumerate(wanted) if kind != "give up"} <= set(done)
    assert most <= at_once
    assert (inside, turns.waiting, turns.free) == (0, 0, True)
