"""Correct the model's failed episodes by the worlds' solvers: the state before a mistake is restored, and the solver
goes on from there. The mistake is the first one, or the first one from the step on that the model was least sure of.

What follows is a demonstration from a state that the model itself came to (DAgger, Ross et al. 2011; the takeover of
live annotation, section 2.3, with a solver in the person's place). Only the solver's steps are learnt; those of the
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

from flywheel.agent.actions import Action, Finished, ParseError, Point
from flywheel.agent.grammar import format_response
from flywheel.agent.parsing.parser import action_fields, parse_response
from flywheel.config import PolicySettings, Settings
from flywheel.envs import registry
from flywheel.envs.base import Env, Observation, Task, apply_verifier
from flywheel.envs.registry import EnvProvider
from flywheel.envs.suites import catalogue
from flywheel.envs.suites.oracle import next_expert_step
from flywheel.rollout.episode import Episode, final_state_json, keep_screen, observation_grammar, observation_text
from flywheel.rollout.starts import SOLVER
from flywheel.store.schema import Step, make_trajectory_id
from flywheel.utils.errors import DataError, EnvError

log = logging.getLogger(__name__)

SOURCE = "correction"  # of the trajectories
NEAR = 0.06  # of the screen, both ways together: as far may a click be from the solver's where no element is named


@dataclass(frozen=True)
class CorrectionResult:
    """Hold the outcome of one correction.

    episode: the corrected one; None where there is none, and then `reason` says why. solver_calls, env_steps: what it
    took, resets not counted.
    """

    episode: Episode | None
    reason: str
    solver_calls: int
    env_steps: int


NO_MISTAKE = "no mistake"
NO_LOGPROBS = "its steps have no log-probabilities"


def has_solver(task: Task) -> bool:
    """Tell whether the task's world has a solver, which chooses the right action in any state."""
    return task.environment == catalogue.BrowserWorld.environment and task.world in catalogue.list_worlds()


def choose_failures(tasks: Mapping[str, Task], episodes: Sequence[Episode], per_task: int) -> list[Episode]:
    """Choose the failed episodes to correct, up to `per_task` of each task whose world has a solver, by trajectory_id.

    tasks: of the episodes, by id. Failed is what ended and does not solve its task by the world's verifier. Of episodes
    that took the same steps one is enough. Raises KeyError for an episode of none of the `tasks`, BadInput for a
    verifier that does not exist, DataError for a final state that it cannot read.
    """
    chosen: dict[str, list[Episode]] = defaultdict(list)
    for episode in sorted(episodes, key=lambda one: one.id):
        task, own = tasks[episode.trajectory.task_id], chosen[episode.trajectory.task_id]
        known = [[step.action for step in earlier.steps] for earlier in own]
        other = [step.action for step in episode.steps] not in known
        if len(own) < per_task and other and has_solver(task) and _failed(task, episode):
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
    """Find the step of `episode` whose answer had the lowest mean log-probability of its tokens, by its place in the
    list of steps; of equal ones the first. None where no step has log-probabilities."""
    means = {number: fmean(step.logprobs) for number, step in enumerate(episode.steps) if step.logprobs}
    return min(means, key=lambda number: means[number], default=None)


@dataclass
class CorrectionStats:
    """Count what corrections took and brought. tried: corrections that were begun. corrected: those that gave an
    episode. solver_calls, env_steps: in all, resets not counted. without: why there is no correction -> how often."""

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
    *,
    iteration: int,
    seed: int,
) -> tuple[list[Episode], CorrectionStats]:
    """Correct the `failed` episodes, all at once as far as environments are lent; return the corrected ones, sorted by
    trajectory_id, and what it took.

    tasks: by task_id. environments: lends one for each episode. settings: of the rollout; `rollout.corrections_at`
    says at which mistake. iteration: of the new rows. seed: varies the solver's wording. An environment that fails
    costs its own correction alone. Raises KeyError for an episode of none of the `tasks`, BadInput for an environment
    that is not known or that refuses its task.
    """
    at, stats = settings.rollout.corrections_at, CorrectionStats()

    async def attempt(episode: Episode, first: int) -> CorrectionResult:
        task = tasks[episode.trajectory.task_id]
        try:
            async with environments.env(task) as env:
                return await correct_episode(
                    env, task, episode, settings.policy, iteration=iteration, seed=seed, first=first
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
    env: Env, task: Task, failed: Episode, policy: PolicySettings, *, iteration: int, seed: int, first: int = 0
) -> CorrectionResult:
    """Replay a failed episode up to a mistake and let the solver of its world go on from there.

    A mistake is a step that does not do what the solver does in the same state, or whose text held no action. env:
    leased for `task`. failed: the episode. policy: block `policy`, as of the rollout. iteration: of the new rows. seed:
    varies the solver's wording. first: the step from which on mistakes count; those before it are repeated, and the
    solver is not asked about them. The episode ends where the environment says so, or where the task's step budget
    is spent; whether it is solved, scorers decide. There is no episode where the replay shows another screen, the model
    made no mistake that the solver sees, or the solver knows no way on. Raises EnvError and EnvTimeout where the
    environment fails.
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
                _check_same_screen(steps[number], seen)
                own = _stored_action(steps[number], seen, policy)
            if number >= first:
                calls += 1
                thought, action = next_expert_step(task, state, seed) or ("I am done.", Finished())
                handed_over = handed_over or not does_the_same(own, action, state.get("elements", ()))
        except ReplayDiffers:
            return outcome("its replay shows another screen")
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


def does_the_same(one: Action | ParseError, expert: Action, elements: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether the action `one` does what the expert's does: the same verb, on the same elements, with the same
    words.

    elements: of the state, each with x, y, w and h as fractions of the screen.
    """
    if type(one) is not type(expert):
        return False
    for name, value in vars(expert).items():
        other = getattr(one, name)
        if isinstance(value, Point):
            if not _same_place(other, value, elements):
                return False
        elif other != value:
            return False
    return True


def _same_place(one: Point, expert: Point, elements: Sequence[Mapping[str, Any]]) -> bool:
    def holds(element: Mapping[str, Any], point: Point) -> bool:
        return 0 <= point.x - element["x"] <= element["w"] and 0 <= point.y - element["y"] <= element["h"]

    under = [element for element in elements if holds(element, expert)]
    if not under:
        return abs(one.x - expert.x) + abs(one.y - expert.y) < NEAR
    return holds(min(under, key=lambda element: element["w"] * element["h"]), one)


class ReplayDiffers(DataError):
    """Signal that a step that was carried out again does not show the screen that was stored."""


def _stored_action(step: Step, seen: Observation, policy: PolicySettings) -> Action | ParseError:
    """Parse the action of a stored step, as the rollout did. seen: what it was chosen on."""
    return parse_response(step.raw_text or "", observation_grammar(policy, seen)).action


def _check_same_screen(step: Step, seen: Observation) -> None:
    sha256 = None if seen.screenshot is None else hashlib.sha256(seen.screenshot).hexdigest()
    if sha256 != step.image_sha256:
        raise ReplayDiffers(
            f"step {step.step} was chosen on screen {str(step.image_sha256)[:12]}, and its replay shows "
            f"{str(sha256)[:12]}",
            where=f"trajectory {step.trajectory_id}",
            fix="its environment is not deterministic, or has changed since",
        )
