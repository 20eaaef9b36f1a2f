"""A run that has environments on a Ray cluster, plays in one, writes where its manager is, and waits to be killed."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from flywheel import cluster
from flywheel.config.workspace import Workspace
from flywheel.envs.registry import open_environments
from flywheel.envs.remote.client import MANAGER_VARIABLE
from flywheel.utils.files import write_text


async def play(settings, place: Path) -> None:
    from test_placed import TASK

    async with open_environments(settings, [TASK]) as environments, environments.env(TASK) as env:
        await env.reset(TASK, 3)
        write_text(place, os.environ[MANAGER_VARIABLE])
        await asyncio.Event().wait()


def main(address: str, place: Path) -> None:
    from test_placed import chosen

    settings = chosen(address)
    with cluster.open_cluster(Workspace(place.parent), settings):
        asyncio.run(play(settings, place))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
