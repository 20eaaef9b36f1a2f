"""Escape: hostile programs inside of a machine, which must get nothing of this machine's and harm no other session."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import computer_attacks as attacks
import computer_hostile as hostile
from bench_case import BenchCase

from flywheel.envs import cgroups
from flywheel.envs.computer import desktop
from flywheel.envs.computer.machine import Machine


def cases(options) -> Iterator[BenchCase]:
    hostile.SMALL = hostile.SMALL.model_copy(update={"walls": options.walls})
    got = asyncio.run(_all())
    for name, what in got.items():
        if what:
            print(f"{name}: {what}", file=sys.stderr)
    succeeded = sum(map(bool, got.values()))
    extra = {"n": len(got), "bombs": len(attacks.BOMBS), "goal_of": "ours"}
    extra |= {
        "walls": options.walls,
        "cgroups": not cgroups.explain_missing_cgroups(),
        "screen": not desktop.list_missing_packages(),
    }
    yield BenchCase("computer", "escape", "attacks that succeed", succeeded, None, "", None, 0, not succeeded, extra)


async def _all() -> dict[str, str]:
    """What each has got. Each has a machine of its own."""
    got = {}
    async with hostile.target(not desktop.list_missing_packages()) as target:
        for name in attacks.QUIET:
            attacker = await Machine.start(hostile.SMALL)
            try:
                got[name] = await hostile.quiet(target, attacker, name)
            finally:
                await attacker.close()
        for name in attacks.BOMBS:
            got[name] = await hostile.bomb(target, name)
    return got
