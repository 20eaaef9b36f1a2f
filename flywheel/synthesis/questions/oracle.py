"""Play a question's proof in the browser, for tests and benchmarks: click from page to page, and give the answer."""

from __future__ import annotations

from typing import Any

from flywheel.agent.actions import Action, Finished
from flywheel.envs.base import StepResult
from flywheel.rollout.solvers import BrowsingSolver
from flywheel.utils.errors import DataError, EnvError

_STEPS = 1000  # at most


async def play_proof(env: Any, way: list[str], answer: str) -> tuple[StepResult, list[Action]]:
    """Play a question's proof after the reset, by ordinary actions; a script in the page finds its links.

    env: a browser's. way: addresses of the proof's pages, the first of which is open. answer: scrolled to and given.
    Returns the last step's result, and the actions. Raises EnvError where a link of the way, or the answer, is not to
    be seen on its page, or the steps are used up before it is said, and as the environment does.
    """
    solver, done = BrowsingSolver(way, answer), []
    while len(done) < _STEPS:
        try:
            _, action = await solver.next_step(env, len(done), {})
        except DataError as error:
            raise EnvError(error.what, where=way[-1]) from None
        done.append(action)
        result = await env.step(action)
        if isinstance(action, Finished):
            return result, done
        if result.terminated or result.truncated:
            break
    raise EnvError(f"its {len(done)} steps are used up", where=way[-1])
