"""Begin RL's episodes within a known success, some steps before its end, where the policy's chances are about even.

The steps up to there are carried out again from the task's beginning, as environments are deterministic; that they led
to the same place, the screen before the start says. Each episode of a group does so: a few steps cost no more than the
restore of a checkpoint.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from flywheel.agent.actions import ParseError
from flywheel.agent.grammar import Grammar, format_response, grammar_without_thinking
from flywheel.agent.parsing.parser import action_fields, parse_response
from flywheel.config import PolicySettings
from flywheel.envs.base import Env, StepResult, Task
from flywheel.rollout.episode import CHOSEN_FIELDS, BoundCall, PrefixStep, observation_grammar, observation_text
from flywheel.rollout.solvers import SOLVER
from flywheel.store.schema import Step
from flywheel.utils.errors import EnvError

# Columns of `steps` that repeating stored steps needs.
STORED_FIELDS = ("trajectory_id", "step", "image_sha256", "observation", "state_score", "memory", *CHOSEN_FIELDS)


@dataclass(frozen=True)
class KnownSuccess:
    """Hold a successful trajectory that episodes can begin within. source: where it comes from, a value of
    rl.start_sources. steps: all of it, in order."""

    trajectory_id: str
    source: str
    task: Task
    steps: tuple[Step, ...] = field(repr=False)


@dataclass(frozen=True)
class RestoredStart:
    """Hold where the episodes of a group begin: `depth` steps before the end of `success`. success: None: of what the
    suite's solver does, which is known once it was played."""

    success: KnownSuccess | None
    depth: int

    @property
    def parent_id(self) -> str | None:
        """Return the id of the trajectory that the start lies in; None for what the solver does."""
        return self.success.trajectory_id if self.success else None


class StartMismatch(Exception):
    """Signal that the start of a group cannot be reached, with the reason in words. It is no failure: the group begins
    at the task's beginning."""


class SharedStart:
    """Bring the episodes of one group to their start (an `EpisodeStart`), for one event loop.

    proven: whether an episode of the group has begun there before. Then a difference is a failure of the environment.
    """

    def __init__(self, start: RestoredStart, task: Task, policy: PolicySettings, *, proven: bool = False) -> None:
        """Take a start that no episode has reached yet. start, task: of the group. policy: block `policy`, for the
        grammar of stored actions."""
        self.parent_id = start.parent_id
        self._start, self._task, self._policy, self._proven = start, task, policy, proven
        self._lock = asyncio.Lock()
        self._fault = ""
        self._prefix: list[PrefixStep] | None = None
        self._reached: tuple[str | None, ...] = ()

    async def begin(self, env: Env, bound: BoundCall) -> tuple[Sequence[PrefixStep], StepResult]:
        """Bring `env` to the start; return the steps repeated to reach it, and the result to go on from.

        bound: awaits each call of the environment within its time limit (`BoundCall`). Raises StartMismatch where there
        is no such start, EnvError where the environment fails, or does not come to where it came before.
        """
        async with self._lock:
            if self._fault:
                raise StartMismatch(self._fault)
            if self._prefix is None:
                try:
                    return await self._prove(env, bound)
                except StartMismatch as mismatch:
                    if self._proven:
                        raise self._fails(str(mismatch)) from None
                    self._fault = str(mismatch)
                    raise
        return self._prefix, await self._again(env, bound, self._prefix)

    async def _prove(self, env: Env, bound: BoundCall) -> tuple[Sequence[PrefixStep], StepResult]:
        success = self._start.success
        steps = success.steps if success else await self._solve(env, bound)
        first = max(0, len(steps) - self._start.depth)
        prefix, result = await self._carry_out(env, bound, steps[:first])
        known = steps[first]
        seen = _fingerprint(result)
        if known.image_sha256 is not None and seen[0] != known.image_sha256:
            raise StartMismatch("the screen differs")
        if known.image_sha256 is None and known.observation is not None and seen[1] != known.observation:
            raise StartMismatch("the text to read differs")
        score = result.info.get("score")
        if None not in (known.state_score, score) and score != known.state_score:
            raise StartMismatch("the state's score differs")
        self._prefix, self._reached, self._proven = prefix, seen, True
        return prefix, result

    async def _again(self, env: Env, bound: BoundCall, prefix: list[PrefixStep]) -> StepResult:
        try:
            _, result = await self._carry_out(env, bound, [one.known for one in prefix])
        except StartMismatch as mismatch:
            raise self._fails(str(mismatch)) from None
        if _fingerprint(result) != self._reached:
            raise self._fails("the screen differs")
        return result

    async def _carry_out(
        self, env: Env, bound: BoundCall, steps: Sequence[Step]
    ) -> tuple[list[PrefixStep], StepResult]:
        result = await bound(env.reset(self._task, self._task.seed))
        prefix = []
        for step in steps:
            _check_not_over(result)
            after = None
            if step.action is not None:  # else its text held none, and the environment did not notice
                action = parse_response(format_response("", step.action), self._grammar(result)).action
                if isinstance(action, ParseError):
                    raise StartMismatch("an action cannot be read")
                after = await bound(env.step(action))
            prefix.append(PrefixStep(result, step, after))
            result = after or result
        _check_not_over(result)
        return prefix, result

    async def _solve(self, env: Env, bound: BoundCall) -> list[Step]:
        """Let the suite's solver play the task; return its steps."""
        from flywheel.envs.suites.oracle import demonstrate_task  # imports browser suites, which most runs do not need

        task = self._task
        shown = await bound(demonstrate_task(env, task, task.seed), times=task.max_steps + 2)
        if not shown or shown[-1][2].info.get("score", 0.0) < task.threshold:
            raise StartMismatch("the solver does not solve it")
        steps, seen = [], None
        for number, (thought, action, result) in enumerate(shown):
            done = action_fields(action, self._grammar(result))
            said = {"thought": thought, "raw_text": format_response(thought, done["action"])}
            screen, text = _fingerprint(seen) if seen else (None, None)
            steps.append(Step("", number, SOLVER, **said, image_sha256=screen, observation=text, **done))
            seen = result
        return steps

    def _grammar(self, result: StepResult) -> Grammar:
        return grammar_without_thinking(observation_grammar(self._policy, result.observation))

    def _fails(self, why: str) -> EnvError:
        return EnvError(f"a group's start was reached before, and now it is not: {why}", where=self._task.task_id)


def _check_not_over(result: StepResult) -> None:
    if result.terminated or result.truncated:
        raise StartMismatch("the task is over before the start")


def _fingerprint(result: StepResult) -> tuple[str | None, str | None]:
    """Return the sha256 of the screen and the text to read; None for what there is not."""
    screen = result.observation.screenshot
    return None if screen is None else hashlib.sha256(screen).hexdigest(), observation_text(result.observation)
