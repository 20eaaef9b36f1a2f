"""Make demonstrations by program: the expert of a world solves its tasks in a terminal or on a computer.

    python -m flywheel.recordings.synthetic.demonstrations recordings --world chores --count 400

They have no sound, and their thoughts are the experts' own words: an iteration takes them in as it does imported data
sets (`recording.imports_per_iteration`), with `flywheel` as their origin.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
from pathlib import Path

from flywheel.agent.parsing.parser import serialise_action
from flywheel.config import Settings, load_settings
from flywheel.envs.base import Env, Task
from flywheel.envs.registry import open_environments
from flywheel.envs.suites.chores.family import ChoreFamilySuite
from flywheel.envs.suites.chores.world import CHORES, ERRANDS
from flywheel.envs.tasks.drawing import make_task, make_tasks, task_content
from flywheel.envs.tasks.held_out import held_out_templates, list_templates
from flywheel.store.interop.demonstration import (
    DEMONSTRATION_GRAMMAR,
    DemonstratedStep,
    Demonstration,
    demonstration_folder_name,
    save_demonstration,
)
from flywheel.utils.errors import BadInput, DataError, FlywheelError

DATASET = "flywheel"
SEEDS = 2**31  # the first seed of demonstrated tasks: above those of training and evaluation
WORLDS: dict[str, ChoreFamilySuite] = {world.name: world for world in (CHORES, ERRANDS)}


def demonstration_tasks(world: ChoreFamilySuite, settings: Settings, count: int) -> list[Task]:
    """Draw `count` tasks to demonstrate, in turn from all templates and levels of `world` that are not held out.

    None has the content of an evaluation task. Returns [] where no template is left. Raises BadInput for a suite in
    the settings that does not exist.
    """
    held = {task_content(task) for task in make_tasks(settings, 0, "eval")}
    apart = held_out_templates(settings, world)
    kinds = [
        (template, level)
        for level in settings.synthesis.levels
        for template, spec in list_templates(settings, world).items()
        if template not in apart and level in spec.max_steps
    ]
    made, seed = [], SEEDS
    while len(made) < count and kinds:
        task = make_task(world, *kinds[len(made) % len(kinds)], seed, "train")
        seed += 1
        if task_content(task) not in held:
            held.add(task_content(task))
            made.append(task)
    return made


def list_demonstration_folders(world: str, settings: Settings, count: int) -> list[str]:
    """List the names of the `count` folders that `make_demonstrations` would write for the world named `world`.

    [] where no task of it may be demonstrated. Raises KeyError for a name that is not in `WORLDS`, and as
    `demonstration_tasks`.
    """
    tasks = demonstration_tasks(WORLDS[world], settings, count)
    return [demonstration_folder_name(DATASET, task.task_id) for task in tasks]


async def make_demonstrations(folder: Path, world: ChoreFamilySuite, count: int, settings: Settings) -> int:
    """Write `count` demonstrations of `world` to the recordings `folder`; return the number of new ones.

    settings: of the tasks and the environment. Raises DataError where an expert does not solve its task, BadInput where
    training may draw no task of `world`, BadInput and EnvError where an environment cannot be opened or fails,
    DiskFull.
    """
    tasks, new = demonstration_tasks(world, settings, count), 0
    if not tasks:
        fix = "see synthesis.levels and --count"
        raise BadInput(f"of {world.name} there is no task to demonstrate", where="synthesis", fix=fix)
    async with open_environments(settings, tasks) as environments, environments.env(tasks[0]) as env:
        for task in tasks:
            if not (folder / demonstration_folder_name(DATASET, task.task_id)).exists():
                new += save_demonstration(await record_demonstration(env, task, world), folder)
    return new


async def record_demonstration(env: Env, task: Task, world: ChoreFamilySuite) -> Demonstration:
    """Record the expert of `world` while it solves `task` in `env`.

    Raises DataError where it does not solve it, EnvError where `env` fails.
    """
    seen = await env.reset(task, task.seed)
    steps, screens = [], {}
    for thought, action in world.play(task.template, task.params):
        before, name = seen.observation, ""
        if before.screenshot is not None:
            name = hashlib.sha256(before.screenshot).hexdigest()
            screens[name] = before.screenshot
        seen = await env.step(action)
        outcome = seen.info.get("note") or seen.info.get("result") or ""
        read = before.text if before.text or not name else None
        steps.append(
            DemonstratedStep(
                serialise_action(action, DEMONSTRATION_GRAMMAR), name, thought, observation=read, result=outcome
            )
        )
    if seen.reward < 1:
        raise DataError("the expert did not solve it", where=task.task_id, fix=f"look at the world {world.name}")
    return Demonstration(
        dataset=DATASET,
        id=task.task_id,
        licence="",
        instruction=task.instruction,
        world=task.world,
        template=task.template,
        split="train",
        completed=True,
        steps=tuple(steps),
        facts={"task_level": task.level},
        screens=screens,
        seed=task.seed,
    )


def main() -> None:
    """Run the command line; on an error print one line and exit with 2."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where they go, such as recordings")
    parser.add_argument("--world", choices=WORLDS, default="chores", help="(default %(default)s)")
    parser.add_argument("--count", type=int, default=400, help="how many (default %(default)s)")
    parser.add_argument("--params", type=Path, help="a params.yaml, for its levels and held-out templates")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    try:
        chosen = load_settings(options.params) if options.params else Settings()
        new = asyncio.run(make_demonstrations(options.folder, WORLDS[options.world], options.count, chosen))
    except FlywheelError as error:
        parser.exit(2, f"make_demonstrations: {error}\n")
    print(f"{new} new demonstrations in {options.folder}")


if __name__ == "__main__":
    main()
