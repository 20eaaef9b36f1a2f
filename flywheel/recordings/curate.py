"""Curate ingested recordings (section 2.4.1): executable, not a duplicate, not mere noise.

Faults take a recording out of training; remarks are for the reviewers, who decide.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from flywheel.agent.actions import ParseError
from flywheel.agent.grammar import Grammar, grammar_without_thinking
from flywheel.agent.parsing.parser import parse_response
from flywheel.envs.base import Env, Task
from flywheel.store.schema import Step, Trajectory
from flywheel.utils.errors import EnvError

MAX_IDLE = 0.5  # share of steps that changed nothing, above which a recording is noise


@dataclass(frozen=True)
class Curation:
    """Hold the findings on a recording.

    faults: why the recording must not be used. remarks: what a reviewer should know.
    """

    faults: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def accepted(self) -> bool:
        """Tell whether there are no faults."""
        return not self.faults


def curate_recording(
    trajectory: Trajectory, steps: Sequence[Step], images: Sequence[str], grammar: Grammar | int, max_steps: int
) -> Curation:
    """Check one recording on its own.

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
    """List the numbers of the steps that left the screen unchanged; the last step has no next screen and is never
    listed."""
    return [step.step for step, after in pairwise(steps) if step.image_sha256 == after.image_sha256]


def recording_fingerprint(task: Mapping[str, Any], steps: Sequence[Step]) -> str:
    """Hash a task's content with the actions: equal for two recordings of one task, whoever made them.

    task: row of the table `tasks`. steps: of the recording, in order; only their actions count. Returns the sha256 in
    hex digits.
    """
    content = [task["world"], task["template"], task["params"], [step.action for step in steps]]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


async def replay_recording(env: Env, task: Task, steps: Sequence[Step], grammar: Grammar | int) -> list[str]:
    """Execute the recorded actions in the fresh environment `env`; return how it differs from the recording, [] if not.

    task, steps: of the recording. grammar: of the actions' texts. A failure of the environment is returned too. The
    worlds are deterministic, so each screen must equal the recorded one, byte for byte, and so must the end. Raises
    BadInput for a task that the environment cannot play, DataError for a state that its verifier cannot read.
    """
    try:
        grammar = grammar_without_thinking(grammar)
        result = await env.reset(task, task.seed)
        for number, step in enumerate(steps):
            if result.terminated or result.truncated:
                return [f"the task ends before step {number}"]
            if hashlib.sha256(result.observation.screenshot).hexdigest() != step.image_sha256:
                return [f"the screen before step {number} differs"]
            action = parse_response(step.raw_text, grammar).action
            if isinstance(action, ParseError):
                return [f"step {number} is no action: {action.reason}"]
            result = await env.step(action)
    except EnvError as error:
        return [f"the environment failed: {error}"]
    if steps and bool(steps[-1].terminated) != result.terminated:
        return ["the end differs"]
    return []
