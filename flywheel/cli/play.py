"""Play a task of a suite by hand, in an ordinary browser.

    python -m flywheel.cli.play snake --level 3 --seed 5

Nothing of it is kept. Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress

from flywheel.envs.suites import catalogue
from flywheel.envs.suites.server import WorldServer
from flywheel.envs.tasks.drawing import make_task
from flywheel.utils.errors import BadInput, FlywheelError


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flywheel.cli.play", description=__doc__.partition("\n")[0])
    parser.add_argument("world", help=", ".join(catalogue.list_worlds()))
    parser.add_argument("--template", default="", help="kind of task; the first that has the level where left out")
    parser.add_argument("--level", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="any integer")
    options = parser.parse_args(argv)
    try:
        with suppress(KeyboardInterrupt):
            asyncio.run(_serve(options.world, options.template, options.level, options.seed))
    except FlywheelError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


async def _serve(name: str, template: str, level: int, seed: int) -> None:
    world = catalogue.get_world(name)
    task = make_task(world, template or _template(world, level), level, seed, "train")
    async with WorldServer() as server:
        print(f"{task.instruction}\n{server.new_session(task, seed)}", flush=True)
        await asyncio.Event().wait()


def _template(world: catalogue.BrowserWorld, level: int) -> str:
    for template, spec in world.templates.items():
        if level in spec.max_steps:
            return template
    raise BadInput(
        f"there is no level {level}",
        where=f"world {world.name}",
        fix=f"its levels are {', '.join(map(str, world.levels))}",
    )


if __name__ == "__main__":
    raise SystemExit(main())
