"""Play a world in an ordinary browser: serves one task and prints its address.

    python -m flywheel.play snake --level 3 --seed 5

Nothing of it is kept. Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress

from flywheel.errors import BadInput, FlywheelError
from flywheel.synthesis.tasks import make_task
from flywheel.worlds import catalogue
from flywheel.worlds.server import WorldServer


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flywheel.play", description=__doc__.partition("\n")[0])
    parser.add_argument("world", help=", ".join(catalogue.names()))
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
    world = catalogue.get(name)
    task = make_task(world, template or _template(world, level), level, seed, "train")
    async with WorldServer() as server:
        print(f"{task.instruction}\n{server.new_session(task, seed)}", flush=True)
        await asyncio.Event().wait()


def _template(world: catalogue.World, level: int) -> str:
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
