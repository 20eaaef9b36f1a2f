"""Curate ingested recordings: their actions can be executed, and they are not mere noise (report, section 2.4.1).

Faults take a recording out of training; remarks are for the reviewers, who decide.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from flywheel.agent.actions import ParseError
from flywheel.agent.grammar import Grammar, grammar_without_thinking
from flywheel.agent.parsing.parser import parse_response
from flywheel.config import Settings
from flywheel.envs.base import Env, Task
from flywheel.envs.registry import list_task_suites, open_environments
from flywheel.store.schema import Step, Trajectory
from flywheel.utils.errors import EnvError

MAX_IDLE = 0.5  # share of steps that changed nothing, above which a recording is noise


@dataclass(frozen=True)
class Curation:
    """Hold what curation found in a recording. faults: why it must not be used. remarks: what reviewers should know."""

    faults: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def accepted(self) -> bool:
        """Tell whether there are no faults."""
        return not self.faults


def curate_recording(
    trajectory: Trajectory, steps: Sequence[Step], images: Sequence[str], grammar: Grammar | int, max_steps: int
) -> Curation:
    """Check one recording for faults that keep it out of training, and for what reviewers should know.

    trajectory, steps: of the recording. images: sha256 of the recorded screens. grammar: of the actions' texts; an int
    is the size of a grid. max_steps: that the task allows the agent.
    """
    faults, remarks = find_unexecutable_steps(steps, images, grammar), []
    if trajectory.status == "truncated":
        remarks.append("the annotator did not reach an end")
    if len(steps) > max_steps:
        remarks.append(f"{len(steps)} steps, where the task allows the agent {max_steps}")
    idle = find_idle_steps(steps)
    if steps and len(idle) / len(steps) > MAX_IDLE:
        faults.append(f"noise: {len(idle)} of {len(steps)} steps changed nothing")
    elif idle:
        remarks.append(f"steps that changed nothing: {', '.join(map(str, idle))}")
    silent = sum(not step.thought for step in steps)
    if silent:
        remarks.append(f"{silent} of {len(steps)} steps have no thought")
    return Curation(tuple(faults), tuple(remarks))


def find_unexecutable_steps(steps: Sequence[Step], images: Sequence[str], grammar: Grammar | int) -> list[str]:
    """List the reasons why the steps cannot be executed or learned from; [] where they can.

    images, grammar: as for `curate_recording`.
    """
    if not steps:
        return ["no actions"]
    faults, known, grammar = [], set(images), grammar_without_thinking(grammar)
    for number, step in enumerate(steps):
        if step.step != number:
            faults.append(f"step {number} is missing")
            break
        parsed = parse_response(step.raw_text, grammar)
        if isinstance(parsed.action, ParseError):
            faults.append(f"step {number} is no action: {parsed.action.reason}")
        if step.image_sha256 not in known:
            faults.append(f"step {number} has no screen")
        if step.terminated and number + 1 < len(steps):
            faults.append(f"step {number} ended the task, yet actions follow")
    return faults


def find_idle_steps(steps: Sequence[Step]) -> list[int]:
    """List the numbers of the steps that left the screen unchanged, but for the last step, which has no next screen."""
    return [step.step for step, after in pairwise(steps) if step.image_sha256 == after.image_sha256]


def recording_fingerprint(task: Mapping[str, Any], steps: Sequence[Step]) -> str:
    """Hash a recording's task and actions: equal for two of the same task and actions, whoever made them.

    task: row of the table `tasks`; KeyError where it lacks world, template or params. steps: of the recording, in
    order; only their actions count. Returns the sha256 in 64 hex digits.
    """
    content = [task["world"], task["template"], task["params"], [step.action for step in steps]]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


@dataclass(frozen=True)
class ReplayVerdict:
    """Hold the outcome of playing a recording again. decision: `same`, `differs` (from `step` on), or `not replayable`,
    which says nothing of the recording. detail: why, in words; "" where it is the same."""

    decision: Literal["same", "differs", "not replayable"]
    detail: str = ""
    step: int | None = None


async def replay_recording(env: Env, task: Task, steps: Sequence[Step], grammar: Grammar | int) -> ReplayVerdict:
    """Execute the recorded actions in the fresh environment `env`, and compare what it shows with the recording.

    task, steps: of the recording. grammar: of the actions' texts. The worlds are deterministic, so each screen must
    equal the recorded one, byte for byte, and so must the end. Raises BadInput for a task that the environment cannot
    play, DataError for a state that its verifier cannot read.
    """
    grammar = grammar_without_thinking(grammar)

    def differs(what: str, step: int) -> ReplayVerdict:
        return ReplayVerdict("differs", what, step)

    try:
        result = await env.reset(task, task.seed)
        for number, step in enumerate(steps):
            if result.terminated or result.truncated:
                return differs(f"the task ends before step {number}", number)
            if hashlib.sha256(result.observation.screenshot or b"").hexdigest() != step.image_sha256:
                return differs(f"the screen before step {number} differs", number)
            action = parse_response(step.raw_text, grammar).action
            if isinstance(action, ParseError):
                return differs(f"step {number} is no action: {action.reason}", number)
            result = await env.step(action)
    except EnvError as error:
        return ReplayVerdict("not replayable", f"the environment failed: {error}")
    if steps and bool(steps[-1].terminated) != result.terminated:
        return differs(f"the end differs, after step {len(steps) - 1}", len(steps) - 1)
    return ReplayVerdict("same")


Recording = tuple[Task, Sequence[Step], tuple[int, int]]


async def replay_recordings(settings: Settings, root: Path, recordings: Sequence[Recording]) -> list[ReplayVerdict]:
    """Play recordings again from the beginning of their tasks, and return a verdict for each, in order.

    As many are played at once as `sandbox.pages`. root: of the workspace. recordings: of each its task, its steps, and
    (width, height) of its screens in pixels. One whose world (task suite) is not here, or whose screens have another
    size than the sandbox's, is `not replayable`. Raises as `open_environments` and `replay_recording`.
    """
    verdicts = [_find_replay_obstacle(settings, task, size) for task, _, size in recordings]
    playable = [one[0] for one, obstacle in zip(recordings, verdicts, strict=True) if obstacle is None]
    if not playable:
        return verdicts
    grammar, turn = Grammar.of_settings(settings), asyncio.Semaphore(settings.sandbox.pages)
    async with open_environments(settings, playable, root) as environments:

        async def play(one: Recording, obstacle: ReplayVerdict | None) -> ReplayVerdict:
            if obstacle is not None:
                return obstacle
            async with turn, environments.env(one[0]) as env:
                return await replay_recording(env, one[0], one[1], grammar)

        return await asyncio.gather(*map(play, recordings, verdicts))


def _find_replay_obstacle(settings: Settings, task: Task, size: tuple[int, int]) -> ReplayVerdict | None:
    own = (settings.sandbox.width, settings.sandbox.height)
    if task.world not in list_task_suites():
        return ReplayVerdict("not replayable", f"there is no world {task.world} here")
    if size != own:
        what = f"it was recorded at {size[0]} x {size[1]} pixels, and the sandbox has {own[0]} x {own[1]}"
        return ReplayVerdict("not replayable", what)
    return None
