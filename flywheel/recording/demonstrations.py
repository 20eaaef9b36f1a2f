"""A demonstration of another data set as rows of the tables: as a recording's, with where it is from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from flywheel.agent.actions import ParseError
from flywheel.agent.grammar import Grammar, response_text
from flywheel.agent.parser import parse
from flywheel.agent.step_fields import of_action
from flywheel.errors import DataError
from flywheel.exchange import demonstration
from flywheel.exchange.demonstration import DemonstratedStep, Demonstration
from flywheel.recording.curate import Curation, fingerprint
from flywheel.recording.rows import IngestedSession, corrupt_rows, review_row
from flywheel.settings import Settings
from flywheel.trajectory import Step, Trajectory, session_id

DOMAIN = "imported"


def demonstration_rows(folder: Path, settings: Settings, iteration: int) -> IngestedSession:
    """One that cannot be read, or has no step to learn from, gives a trajectory of status invalid with the reason."""
    try:
        one, images = demonstration.load(folder)
    except DataError as error:
        return corrupt_rows(folder, error, iteration)
    task = _task(one)
    identity = session_id(iteration, task["task_id"], folder.name)
    grammar = Grammar.of_settings(settings)
    steps = [_step(one, number, identity, grammar) for number in range(len(one.steps))]
    found = _curated(one, steps, {row["sha256"] for row in images})
    trajectory = Trajectory(
        identity,
        task["task_id"],
        DOMAIN,
        world=one.world,
        level=1,
        instruction=one.instruction,
        source="import",
        author="human",
        sample=0,
        policy_version="human",
        status="truncated" if one.completed is False else "completed",
        steps=len(steps),
        reward=None if one.completed is None else float(one.completed),
        origin=one.origin,
        licence=one.licence,
    )
    if not found.accepted:
        trajectory = replace(trajectory, status="invalid", error="; ".join(found.faults))
    return IngestedSession(
        session=folder.name,
        trajectory=trajectory,
        task_row=task,
        steps=tuple(steps),
        image_rows=tuple(images),
        review_rows=(review_row(identity, found),),
        fingerprint=fingerprint(task, steps),
    )


def _task(one: Demonstration) -> dict:
    """A row of `tasks`. It has no verifier: nobody plays it here."""
    facts = {**one.facts, "origin": one.origin}
    return {
        "task_id": one.origin,
        "domain": DOMAIN,
        "world": one.world,
        "template": one.template,
        "level": 1,
        "seed": one.seed,
        "instruction": one.instruction,
        "params": json.dumps(facts, sort_keys=True, ensure_ascii=False),
        "max_steps": len(one.steps),
        "split": one.split,
    }


def _step(one: Demonstration, number: int, identity: str, grammar: Grammar) -> Step:
    step, last = one.steps[number], number == len(one.steps) - 1
    done, fault = _done(step, grammar)
    return Step(
        identity,
        number,
        "human",
        step.thought,
        raw_text=response_text(step.thought, done.get("action", step.action)),
        parse_error=fault or None,
        weight_version="human",
        image_sha256=step.screen or None,
        observation=step.observation,
        tool_result=step.result or None,
        reward=float(bool(one.completed)) if last else 0.0,
        terminated=last and one.completed is not False,
        truncated=last and one.completed is False,
        slip=step.slip,
        **done,
    )


def _done(step: DemonstratedStep, grammar: Grammar) -> tuple[dict, str]:
    if step.fault:
        return {}, step.fault
    action = parse(f"Action: {step.action}", demonstration.GRAMMAR).action
    if isinstance(action, ParseError):
        return {}, action.reason
    return of_action(action, grammar), ""


def _seen(step: Step, screens: set[str]) -> bool:
    """Whether what was seen is there; where nothing was, what was read."""
    return step.image_sha256 in screens if step.image_sha256 else step.observation is not None


def _curated(one: Demonstration, steps: list[Step], screens: set[str]) -> Curation:
    faults = [f"step {step.step} has no screen" for step in steps if not _seen(step, screens)][:1]
    unlearnt = [step for step in steps if step.parse_error or step.slip]
    if len(unlearnt) == len(steps):
        faults.append("no step that can be learnt")
    if not one.instruction.strip():
        faults.append("no instruction")
    remarks = [f"step {step.step} is not learnt: {step.parse_error or 'a slip'}" for step in unlearnt[:8]]
    return Curation(tuple(faults), tuple(remarks))
