"""Solve tasks by the experts of their suites: actions as a person's, with a short spoken-style thought at each step.

Those of browser suites read the state; those of chores, errands and the desk know the whole way. Experts prove that
tasks can be solved (as BrowserGym's `cheat` does), and synthetic recordings are made of their play.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flywheel.agent.actions import Action, Finished
from flywheel.envs.base import Env, StepResult, Task
from flywheel.envs.suites import catalogue

Demonstration = list[tuple[str, Action, StepResult]]


def next_expert_step(task: Task, state: Mapping[str, Any], seed: int = 0) -> tuple[str, Action] | None:
    """Return the expert's thought and action for the screen that `state` describes; None where nothing is left to do.

    task: of a browser suite. state: the environment's `info["state"]`. seed: varies the wording. Thoughts have at most
    ten words, all known to pocketsphinx's English dictionary. Raises BadInput for an unknown suite, DataError where
    `state` does not show what the expert looks for.
    """
    rng = random.Random(f"{task.task_id} {seed} {len(state['elements'])} {state.get('page', state.get('moves', ''))}")
    return catalogue.get_task_world(task).play.next_step(task, state, rng)


async def demonstrate_task(env: Env, task: Task, seed: int) -> Demonstration:
    """Solve the task in `env` and return (thought, action, result of the step) of each step.

    seed: of the reset and of the wording. Raises what `Env.reset`, `Env.step` and `next_expert_step` do.
    """
    result = await env.reset(task, seed)
    steps: Demonstration = []
    while not (result.terminated or result.truncated):
        thought, action = next_expert_step(task, result.info["state"], seed) or ("I am done.", Finished())
        result = await env.step(action)
        steps.append((thought, action, result))
    return steps


def list_computer_suites() -> dict[str, Callable[[str, Mapping[str, Any]], Iterator[tuple[str, Action]]]]:
    """Return the suites of computers that have an expert, by name: each plays a template with a task's params."""
    from flywheel.envs.suites.chores.world import CHORES, ERRANDS
    from flywheel.envs.suites.desk.world import DESK, play_desk_task

    return {CHORES.name: CHORES.play, ERRANDS.name: ERRANDS.play, DESK.name: play_desk_task}


def list_expert_steps(task: Task) -> list[tuple[str, Action]]:
    """Return the thoughts and actions of an expert of a computer's suite, from the task's reset on.

    task: of a suite of `list_computer_suites`; KeyError for another.
    """
    return list(list_computer_suites()[task.world](task.template, task.params))
