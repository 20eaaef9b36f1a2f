"""Correct the model's failed episodes: restore the state before a mistake, and let the task's solver go on from there.

The mistake is the first one, or the first one from the step on that the model was least sure of. What follows is a
demonstration from a state that the model itself came to (DAgger, Ross et al. 2011; the takeover of live annotation,
UI-TARS-2 report, section 2.3, with a solver in the person's place). Only the solver's steps are learnt; those of the
model before them are context. A state is restored by carrying out the steps before it again from the reset:
environments are deterministic, and each screen is compared with the stored one.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

from flywheel.agent.actions import Action, ParseError, Point
from flywheel.agent.grammar import format_response
from flywheel.agent.parsing.parser import action_fields, parse_response
from flywheel.config import PolicySettings, Settings
from flywheel.envs import registry
from flywheel.envs.base import Env, Observation, Task, apply_verifier
from flywheel.envs.registry import EnvProvider
from flywheel.rollout.episode import Episode, final_state_json, keep_screen, observation_grammar, observation_text
from flywheel.rollout.solvers import NEAR, SOLVER, Solver, TaskSolvers
from flywheel.store.schema import Step, make_trajectory_id
from flywheel.utils.errors import DataError, EnvError

log = logging.getLogger(__name__)

SOURCE = "correction"  # of the trajectories


@dataclass(frozen=True)
class CorrectionResult:
    """Hold the outcome of one correction.

    episode: the corrected one; None where there is none, and then `reason` says why. solver_calls, env_steps: numbers
    of what it took, resets not counted.
    """

    episode: Episode | None
    reason: str
    solver_calls: int
    env_steps: int


NO_MISTAKE = "no mistake"
NO_LOGPROBS = "its steps have no log-probabilities"
FROM_THE_RESET = "its solver knows the way from the reset alone"


def choose_failures(
    tasks: Mapping[str, Task], episodes: Sequence[Episode], per_task: int, solvers: TaskSolvers
) -> list[Episode]:
    """Choose the failed episodes to correct: at most `per_task` of each task that has a solver.

    Those of the first trajectory_ids are taken; the result has the episodes of one task side by side. tasks: of the
    episodes, by task_id. Failed is an episode that has steps, did not crash and does not solve its task by the world's
    verifier. Of a task's episodes that took the same actions one is chosen. solvers: of the tasks. Raises KeyError for
    an episode of none of the `tasks`, BadInput for a verifier that does not exist, DataError for a final state that it
    cannot read.
    """
    chosen: dict[str, list[Episode]] = defaultdict(list)
    for episode in sorted(episodes, key=lambda one: one.id):
        task, own = tasks[episode.trajectory.task_id], chosen[episode.trajectory.task_id]
        known = [[step.action for step in earlier.steps] for earlier in own]
        other = [step.action for step in episode.steps] not in known
        if len(own) < per_task and other and solvers.has(task) and _failed(task, episode):
            own.append(episode)
    return [episode for own in chosen.values() for episode in own]


def _failed(task: Task, episode: Episode) -> bool:
    if episode.trajectory.status == "crashed" or not episode.steps:
        return False
    verifier = registry.find_backend(task.environment).verifier(task)
    state = json.loads(episode.trajectory.final_state or "null") or {}
    score = apply_verifier(verifier, task.verifier, task.params, state, f"trajectory {episode.id}")
    return score < task.threshold


def find_least_sure_step(episode: Episode) -> int | None:
    """Find the step of `episode` that the model was least sure of, as an index in its steps.

    It is the first with the lowest mean log-probability of its tokens; None where no step has log-probabilities.
    """
    means = {number: fmean(step.logprobs) for number, step in enumerate(episode.steps) if step.logprobs}
    return min(means, key=lambda number: means[number], default=None)


@dataclass
class CorrectionStats:
    """Hold the counts of a rollout's corrections. tried: those that were begun. corrected: those that gave an episode.
    solver_calls, env_steps: in all, resets not counted. without: why there is no corrected episode -> how often."""

    tried: int = 0
    corrected: int = 0
    solver_calls: int = 0
    env_steps: int = 0
    without: dict[str, int] = field(default_factory=dict)

    def add(self, result: CorrectionResult) -> None:
        """Count one more `result`."""
        self.tried += 1
        self.corrected += result.episode is not None
        self.solver_calls += result.solver_calls
        self.env_steps += result.env_steps
        if result.episode is None:
            self.without[result.reason] = self.without.get(result.reason, 0) + 1


async def correct_failures(
    tasks: Mapping[str, Task],
    failed: Sequence[Episode],
    environments: EnvProvider,
    settings: Settings,
    solvers: TaskSolvers,
    *,
    iteration: int,
    seed: int,
) -> tuple[list[Episode], CorrectionStats]:
    """Let solvers go on from a mistake in failed episodes; return the corrected episodes and the counts.

    The episodes come sorted by trajectory_id. All are played at once, as far as environments are lent. failed: of tasks
    that have a solver (`choose_failures`). tasks: by task_id. environments: lends one for each correction. settings: of
    the rollout; `rollout.corrections_at` says at which mistake. solvers: of the tasks. iteration: of the new rows.
    seed: varies the solver's wording. An environment that fails costs its own correction alone. Raises KeyError for an
    episode of none of the `tasks`, LookupError for a task without a solver, BadInput for an environment that is not
    known or that refuses its task.
    """
    at, stats = settings.rollout.corrections_at, CorrectionStats()

    async def attempt(episode: Episode, first: int) -> CorrectionResult:
        task = tasks[episode.trajectory.task_id]
        solver = solvers.find(task, seed)
        if solver is None:
            raise LookupError(f"task {task.task_id} has no solver")
        if first and not solver.from_any_state:
            return CorrectionResult(None, FROM_THE_RESET, 0, 0)
        try:
            async with environments.env(task) as env:
                return await correct_episode(
                    env, task, episode, settings.policy, solver, iteration=iteration, first=first
                )
        except EnvError as error:
            log.warning("the correction of %s failed: %s", episode.id, error)
            return CorrectionResult(None, "its environment failed", 0, 0)

    async def correct(episode: Episode) -> list[CorrectionResult]:
        results = [] if at == "least_sure" else [await attempt(episode, 0)]
        if at == "first_mistake":
            return results
        least_sure = find_least_sure_step(episode)
        if least_sure is None:
            return [*results, CorrectionResult(None, NO_LOGPROBS, 0, 0)]
        taken_over = [one.episode.trajectory.start_step for one in results if one.episode]
        if any(step >= least_sure for step in taken_over):
            return results  # the first mistake is the first one from the least sure step on, too
        return [*results, await attempt(episode, least_sure)]

    results = [one for own in await asyncio.gather(*(correct(episode) for episode in failed)) for one in own]
    for result in results:
        stats.add(result)
    made = [result.episode for result in results if result.episode is not None]
    return sorted(made, key=lambda episode: episode.id), stats


async def correct_episode(
    env: Env, task: Task, failed: Episode, policy: PolicySettings, solver: Solver, *, iteration: int, first: int = 0
) -> CorrectionResult:
    """Replay a failed episode up to a mistake and let the solver of its task go on from there.

    A mistake is a step that does not do what the solver does in the same state, or whose text held no action. env:
    leased for `task`. failed: the episode. policy: block `policy`, as of the rollout. solver: of `task`. iteration: of
    the new rows. first: the step from which on mistakes count; those before it are repeated, and the solver is not
    asked about them; 0 for a solver that knows the way from the reset alone. The episode ends where the environment
    says so, or where the task's step budget is spent; whether it is solved, scorers decide. Where the replay shows
    another screen, a solver that knows the way from the reset takes over there, since the steps before were its own;
    with another solver there is no episode. There is none either where the model made no mistake that the solver sees,
    or the solver knows no way on. Raises EnvError and EnvTimeout where the environment fails.
    """
    parent, steps = failed.trajectory, failed.steps
    name = "-".join([SOURCE, parent.trajectory_id, *([str(first)] if first else [])])
    identity = make_trajectory_id(iteration, task.task_id, parent.sample or 0, name)
    result = await env.reset(task, task.seed)
    made: list[Step] = []
    images: dict[str, bytes] = {}
    calls = played = 0
    handed_over = False

    def outcome(reason: str, episode: Episode | None = None) -> CorrectionResult:
        return CorrectionResult(episode, reason, calls, played)

    while not (result.terminated or result.truncated) and len(made) < task.max_steps:
        seen, state, number = result.observation, result.info["state"], len(made)
        if not handed_over and number == len(steps):
            return outcome(NO_MISTAKE)
        begun = datetime.now(UTC)
        try:
            if not handed_over:
                handed_over = not _is_same_screen(steps[number], seen)
                if handed_over and solver.from_any_state:
                    return outcome("its replay shows another screen")
                own = _stored_action(steps[number], seen, policy)
            if number >= first:
                calls += 1
                thought, action = await solver.next_step(env, number, state)
                handed_over = handed_over or not does_the_same(own, action, state.get("elements", ()), solver.near)
        except DataError:
            return outcome("the solver knows no way on")
        if not handed_over:
            made.append(replace(steps[number], trajectory_id=identity))
            if not isinstance(own, ParseError):  # else the environment did not notice the step
                result, played = await env.step(own), played + 1
            continue
        before, result, played = result, await env.step(action), played + 1
        done = action_fields(action, observation_grammar(policy, seen))
        made.append(
            Step(
                identity,
                number,
                SOLVER,
                thought,
                raw_text=format_response(thought, done["action"]),
                image_sha256=keep_screen(seen, images),
                url=seen.url,
                observation=observation_text(seen),
                tool_result=result.info.get("note") or result.info.get("result") or None,
                reward=result.reward,
                state_score=before.info.get("score"),
                terminated=bool(result.terminated),
                truncated=bool(result.truncated),
                started_at=begun,
                ended_at=datetime.now(UTC),
                **done,
            )
        )
    if not handed_over:
        return outcome(NO_MISTAKE)
    if not result.terminated:
        made[-1] = replace(made[-1], truncated=True)
    trajectory = replace(
        parent,
        trajectory_id=identity,
        source=SOURCE,
        author=SOLVER,
        status="completed" if result.terminated else "truncated",
        error=None,
        steps=len(made),
        reward=sum(step.reward or 0.0 for step in made),
        final_state=final_state_json(result),
        final_image_sha256=keep_screen(result.observation, images),
        started_at=made[0].started_at,
        ended_at=made[-1].ended_at,
        parent_id=parent.trajectory_id,
        start_step=next(step.step for step in made if step.author == SOLVER),
    )
    return outcome("", Episode(trajectory, tuple(made), images))


def does_the_same(
    one: Action | ParseError, expert: Action, elements: Sequence[Mapping[str, Any]], near: float = NEAR
) -> bool:
    """Tell whether the action `one` does the same as the expert's: equal verb and words, on the same elements.

    elements: of the state, each with x, y, w and h as fractions of the screen. Where the expert's point is on none, a
    point less than `near` from it is the same, a fraction of the screen, both ways together.
    """
    if type(one) is not type(expert):
        return False
    for name, value in vars(expert).items():
        other = getattr(one, name)
        if isinstance(value, Point):
            if not _same_place(other, value, elements, near):
                return False
        elif other != value:
            return False
    return True


def _same_place(one: Point, expert: Point, elements: Sequence[Mapping[str, Any]], near: float) -> bool:
    def holds(element: Mapping[str, Any], point: Point) -> bool:
        return 0 <= point.x - element["x"] <= element["w"] and 0 <= point.y - element["y"] <= element["h"]

    under = [element for element in elements if holds(element, expert)]
    if not under:
        return abs(one.x - expert.x) + abs(one.y - expert.y) < near
    return holds(min(under, key=lambda element: element["w"] * element["h"]), one)


def _stored_action(step: Step, seen: Observation, policy: PolicySettings) -> Action | ParseError:
    """Parse the action of a stored step, as the rollout did. seen: what it was chosen on."""
    return parse_response(step.raw_text or "", observation_grammar(policy, seen)).action


def _is_same_screen(step: Step, seen: Observation) -> bool:
    sha256 = None if seen.screenshot is None else hashlib.sha256(seen.screenshot).hexdigest()
    return sha256 == step.image_sha256
