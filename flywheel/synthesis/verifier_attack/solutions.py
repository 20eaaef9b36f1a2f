"""Play the known solutions of tasks: by the worlds' expert programs, or by the proof that a page's task carries."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flywheel.agent.actions import Action, Finished
from flywheel.envs.base import Env, Task, TaskSuite
from flywheel.envs.registry import EnvProvider
from flywheel.envs.suites import catalogue, oracle
from flywheel.envs.suites.phone import world as phone
from flywheel.envs.suites.phone.home_screen import HOME_SCREEN
from flywheel.synthesis.verifier_attack.attack import Solution
from flywheel.synthesis.verifier_attack.mutations import State

_BEFORE = 8


def has_known_solutions(suite: TaskSuite) -> bool:
    """Tell whether an expert can play known solutions of the suite's tasks."""
    return suite.environment in ("browser", "phone") or suite.name in oracle.list_computer_suites()


class SolutionPlayer:
    """Play the known solutions of suites' tasks in opened environments.

    Of each it keeps the start, the end and the eight states before the end; of games all. A phone's task is played by
    its parts, as tasks of their sites; its states are composed of their ends, and all are kept. places: solutions
    played at once, at most.
    """

    def __init__(self, environments: EnvProvider, places: int) -> None:
        self._environments, self._places = environments, asyncio.Semaphore(places)

    async def play(self, tasks: Sequence[Task]) -> list[Solution]:
        """Play the expert's solution of each task, and return them in the order of `tasks`.

        tasks: of suites that have one (`has_known_solutions`). Raises what playing environments does.
        """
        return list(await asyncio.gather(*map(self._play_one, tasks)))

    async def _play_one(self, task: Task) -> Solution:
        if task.environment == "phone":
            parts = await asyncio.gather(*map(self._play_one, list_phone_parts(task)))
            return Solution(task, _phone_states(task, [part.end for part in parts]))
        async with self._places, self._environments.env(task) as env:
            states = await _play(env, task)
        kept = states if "won" in states[0] else [states[0], *states[1:][-1 - _BEFORE :]]
        return Solution(task, kept)


async def _play(env: Env, task: Task) -> list[State]:
    if task.environment == "browser":
        first = await env.reset(task, task.seed)
        states, ended = [first.info["state"]], False
        while not ended:
            _, action = oracle.next_expert_step(task, states[-1], task.seed) or ("", Finished())
            result = await env.step(action)
            states.append(result.info["state"])
            ended = result.terminated or result.truncated
        return states
    return await play_actions(env, task, [action for _, action in oracle.list_expert_steps(task)])


async def play_actions(env: Env, task: Task, actions: Iterable[Action]) -> list[State]:
    """Play actions from a reset, then finish unless the episode ended; return the states, the start's first."""
    result = await env.reset(task, task.seed)
    states = [result.info["state"]]
    for action in actions:
        result = await env.step(action)
        states.append(result.info["state"])
        if result.terminated or result.truncated:
            return states
    return [*states, (await env.step(Finished(""))).info["state"]]


# -- the phone: its applications are sites, so that a solution is made of theirs -------------------------------------
def list_phone_parts(task: Task) -> Iterator[Task]:
    """Yield a phone's task in parts, as tasks of sites, without those that are only looked up for a later part."""
    for part in task.params["parts"]:
        if not part["read"]:
            suite, params = catalogue.get_world(part["site"]), part["params"]
            template = suite.templates[params["task"]]
            yield replace(
                task,
                task_id=f"{task.task_id} {part['site']}",
                world=part["site"],
                template=params["task"],
                params=params,
                instruction=params["instruction"],
                verifier=template.verifier,
                max_steps=max(template.max_steps.values()),
                environment="browser",
            )


def _phone_states(task: Task, ends: Sequence[State]) -> list[State]:
    """Return the states of a phone's task, from the ends of its parts."""
    params: Mapping[str, Any] = task.params
    home = HOME_SCREEN.start({"seed": 0})
    apps = {part["site"]: phone.get_part_site(part).start(part["params"]) for part in params["parts"]}
    state: dict[str, Any] = {"apps": apps, "home": home, "app": "", "opened": [], "answer": "", "elements": []}
    states, done = [state], iter(ends)
    for part in params["parts"]:
        own = apps[part["site"]] if part["read"] else dict(next(done))
        said = str(own.pop("answer", "") or state["answer"])
        state = {**state, "apps": {**state["apps"], part["site"]: own}, "app": part["site"], "answer": said}
        states.append(state := {**state, "opened": [*state["opened"], part["site"]]})
    for site in params["removed"]:
        home = {**home, "records": HOME_SCREEN.records({"seed": 0}) | {"icons": dict(home["records"]["icons"])}}
        HOME_SCREEN.act(home, f"icon/{site}/remove", {})
        states.append(state := {**state, "home": home})
    for site in params["opened"] or ():
        fresh = catalogue.get_world(site).play.start({"seed": phone.get_records_seed(params, site)})
        state = {**state, "apps": {**state["apps"], site: fresh}, "app": site, "opened": [*state["opened"], site]}
        states.append(state)
    return [*states, {**state, "app": ""}] if params["home"] else states
