"""Turn an ingested recording or an imported demonstration into rows of the tables."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from flywheel.agent.actions import Click, Drag, LeftDouble, LeftTriple, ParseError, RightSingle, replace_surrogates
from flywheel.agent.grammar import Grammar, format_response
from flywheel.agent.parsing.parser import action_fields, parse_demonstrated_action
from flywheel.agent.prompt import decode_screenshot
from flywheel.config import Settings
from flywheel.envs.base import Task
from flywheel.envs.tasks.drawing import task_to_row
from flywheel.envs.tasks.held_out import is_held_out
from flywheel.recordings.align import Alignment
from flywheel.recordings.curate import Curation, curate_recording, recording_fingerprint
from flywheel.recordings.session import RecordedSession, load_session_meta
from flywheel.recordings.utterances import Utterance
from flywheel.store.interop import demonstration
from flywheel.store.interop.demonstration import DemonstratedStep, Demonstration, describe_error
from flywheel.store.partitions import table_from_rows
from flywheel.store.schema import Step, Trajectory, record_to_row, session_trajectory_id
from flywheel.utils.errors import BadInput, DataError, FlywheelError

log = logging.getLogger(__name__)
_LONGEST_REASON = 500  # characters
Row = Mapping[str, Any]
UNKNOWN = "unknown"  # task and domain of a recording whose session.json cannot be read


@dataclass(frozen=True)
class IngestedSession:
    """Hold one recording, or imported demonstration, as rows of the tables.

    A corrupt one has a trajectory of status invalid and little else.

    session: name of its folder. thought_rows: rows of `utterances`. review_rows: the result of curation, one row of
    `reviews` (kind curation, reviewer rules). fingerprint: `recording_fingerprint`; "" for a corrupt one.
    candidate_rows: rows of `candidates`.
    """

    session: str
    trajectory: Trajectory
    task_row: Row | None = None
    steps: tuple[Step, ...] = ()
    thought_rows: tuple[Row, ...] = ()
    event_rows: tuple[Row, ...] = ()
    image_rows: tuple[Row, ...] = field(default=(), repr=False)
    review_rows: tuple[Row, ...] = ()
    fingerprint: str = ""
    candidate_rows: tuple[Row, ...] = ()


def session_rows(
    session: RecordedSession,
    utterances: Sequence[Utterance],
    texts: Sequence[str],
    alignment: Alignment,
    recognizer: str,
    refined_by: str,
    settings: Settings,
    iteration: int,
) -> IngestedSession:
    """Make the rows of a session: its trajectory, steps, thoughts, events, screens, task, and the result of curation.

    texts: refined text of each of the `utterances`. alignment: of these with the session's actions. recognizer,
    refined_by: names of the recognizer and the refiner, stored with each thought. settings, iteration: of the iteration
    that ingests it. Raises BadInput for a suite in the settings that does not exist.
    """
    identity = session_trajectory_id(iteration, session.task.task_id, session.meta.session)
    grammar = Grammar.of_settings(settings)
    # An utterance of low confidence is stored and marked, but is not learned from: refined, it reads like any other.
    least = settings.recording.least_confidence
    doubtful = [bool(text) and one.confidence < least for one, text in zip(utterances, texts, strict=True)]
    trusted = ["" if doubt else text for text, doubt in zip(texts, doubtful, strict=True)]
    steps = _steps(session, identity, _thoughts_of(session, trusted, alignment), grammar)
    outcome = session.meta.outcome
    trajectory = replace(
        _trajectory(session.task, session.meta.session, iteration),
        steps=len(steps),
        reward=outcome.reward,
        annotator=session.meta.annotator,
        skill=session.meta.level,
        status="completed" if outcome.terminated else "truncated",
        final_state=json.dumps(outcome.state, sort_keys=True, ensure_ascii=False),
        started_at=session.meta.started_at,
        ended_at=_at(session, session.meta.seconds),
    )
    images = {s.sha256: s for s in session.screens.values()}
    found = curate_recording(trajectory, steps, list(images), grammar, session.task.max_steps)
    if is_held_out(settings, session.task):
        shown = f"{session.task.world}/{session.task.template} is held out for evaluation (synthesis.held_out)"
        found = replace(found, faults=(*found.faults, shown))
    if any(doubtful):
        remark = f"{sum(doubtful)} of {len(texts)} utterances were hardly understood"
        found = replace(found, remarks=(*found.remarks, remark))
    return replace(
        _ingested(session.meta.session, trajectory, task_to_row(session.task), steps, found),
        thought_rows=tuple(_thoughts(identity, utterances, texts, alignment, recognizer, refined_by, doubtful)),
        event_rows=tuple(_events(session, identity)),
        image_rows=tuple(
            {name: value for name, value in vars(screen).items() if name not in ("time_s", "url")}
            for screen in images.values()
        ),
    )


def _ingested(
    session: str, trajectory: Trajectory, task: Row, steps: Sequence[Step], found: Curation
) -> IngestedSession:
    """Make what every recording has; its trajectory is invalid where curation found a fault."""
    if not found.accepted:
        trajectory = replace(trajectory, status="invalid", error="; ".join(found.faults))
    return IngestedSession(
        session,
        trajectory,
        task,
        tuple(steps),
        review_rows=(review_row(trajectory.trajectory_id, found),),
        fingerprint=recording_fingerprint(task, steps),
    )


def _trajectory(task: Task | None, session: str, iteration: int) -> Trajectory:
    """Make the trajectory of a person. task: None where it cannot be read."""
    known = {"world": task.world, "level": task.level, "instruction": task.instruction} if task else {}
    name = task.task_id if task else UNKNOWN
    return Trajectory(
        session_trajectory_id(iteration, name, session),
        name,
        task.domain if task else UNKNOWN,
        source="recording",
        author="human",
        sample=0,
        policy_version="human",
        **known,
    )


def make_invalid_session(folder: Path, error: Exception, iteration: int) -> IngestedSession:
    """Make the rows of a recording that cannot be ingested: an invalid trajectory, and its task where that can be read.

    folder: of the session. error: what reading it raised, stored as the reason. iteration: the one that ingests it.
    Raises `error` itself where it comes from the settings, the disk or a service rather than from the recording.
    """
    if isinstance(error, FlywheelError | OSError) and not isinstance(error, DataError):
        raise error
    foreseen = isinstance(error, DataError)
    reason = error if foreseen else DataError(describe_error(error), where=folder, fix="mend it, or remove it")
    log.warning("recording %s is not used: %s", folder.name, reason, exc_info=None if foreseen else error)
    meta = task = None
    with suppress(Exception):
        meta, task = load_session_meta(folder)
    # The reason is kept for years: a path of this machine would mean nothing by then.
    reason = replace_surrogates(str(reason).replace(str(folder), folder.name))[:_LONGEST_REASON]
    trajectory = replace(
        _trajectory(task, folder.name, iteration), domain=UNKNOWN, status="invalid", error=reason, steps=0
    )
    if meta:
        trajectory = replace(trajectory, annotator=meta.annotator, skill=meta.level)
    review = review_row(trajectory.trajectory_id, Curation((reason,)))
    return IngestedSession(folder.name, trajectory, task_to_row(task) if task else None, review_rows=(review,))


def check_screens(screens: Iterable[Row], settings: Settings, folder: Path) -> None:
    """Check that training can use every screen.

    screens: mappings with sha256, width, height, bytes. settings: policy.max_image_side is the longest side. folder: of
    the recording, for the error. Raises DataError for the first screen that cannot be decoded, is too large or too
    narrow, or has another size than it says.
    """
    for sha256, screen in {screen["sha256"]: screen for screen in screens}.items():
        where = f"{folder / 'screens.parquet'}, screen {sha256[:12]}"
        try:
            size = decode_screenshot(screen["bytes"], settings.policy.max_image_side).size
        except BadInput as error:
            raise DataError(error.what, where=where, fix=error.fix) from None
        if size != (screen["width"], screen["height"]):
            what = f"the screen is {size[0]} x {size[1]} pixels, and said to be {screen['width']} x {screen['height']}"
            raise DataError(what, where=where, fix="write width and height of the picture")


def check_rows(made: IngestedSession, folder: Path) -> IngestedSession:
    """Return `made` if its rows fit their tables; raise DataError else, as it would fail other recordings' rows too.

    folder: of the recording, for the error.
    """
    try:
        table_from_rows("trajectories", [record_to_row("trajectories", made.trajectory)])
        table_from_rows("steps", [record_to_row("steps", step) for step in made.steps])
        table_from_rows("utterances", made.thought_rows)
        table_from_rows("events", made.event_rows)
        table_from_rows("candidates", made.candidate_rows)
    except DataError as error:
        raise DataError(error.what, where=folder, fix="mend it, or remove it") from None
    return made


def _thoughts_of(session: RecordedSession, texts: Sequence[str], alignment: Alignment) -> list[str]:
    """Return the thought of each action: the sentences about it, in order, each once."""
    thoughts: list[list[str]] = [[] for _ in session.actions]
    for text, step in zip(texts, alignment.steps, strict=True):
        if text and text not in thoughts[step]:
            thoughts[step].append(text)
    return [" ".join(sentences) for sentences in thoughts]


def _steps(session: RecordedSession, identity: str, thoughts: Sequence[str], grammar: Grammar) -> list[Step]:
    steps = []
    last = len(session.actions) - 1
    outcome = session.meta.outcome
    slips = _slips(session)
    for number, (recorded, thought) in enumerate(zip(session.actions, thoughts, strict=True)):
        screen = session.screens[recorded.screen]
        done = action_fields(recorded.action, grammar)
        ended = session.actions[number + 1].time_s if number < last else session.meta.seconds
        steps.append(
            Step(
                identity,
                number,
                "human",
                thought,
                raw_text=format_response(thought, done["action"]),
                weight_version="human",
                image_sha256=screen.sha256,
                url=screen.url,
                reward=outcome.reward if number == last else 0.0,
                terminated=number == last and outcome.terminated,
                truncated=number == last and not outcome.terminated,
                started_at=_at(session, recorded.time_s),
                ended_at=_at(session, ended),
                misclick=number in slips,
                **done,
            )
        )
    return steps


_CLICKS = Click | LeftDouble | LeftTriple | RightSingle
_POINTING = _CLICKS | Drag


def _slips(session: RecordedSession) -> set[int]:
    """Return the numbers of clicks on nothing: no element is named under the pointer, and the next screen is the same.

    An unchanged screen is not enough: a button that copies changes nothing visible. Empty where the recorder names no
    elements.
    """
    actions = session.actions
    named = [any(session.events[index].text for index in one.events) for one in actions]
    if not any(name and isinstance(one.action, _POINTING) for name, one in zip(named, actions, strict=True)):
        return set()
    shown = [session.screens[one.screen].sha256 for one in actions]
    idle = [isinstance(one.action, _CLICKS) and not name for one, name in zip(actions, named, strict=True)]
    return {number for number, (before, after) in enumerate(pairwise(shown)) if idle[number] and before == after}


def _thoughts(
    identity: str,
    utterances: Sequence[Utterance],
    texts: Sequence[str],
    alignment: Alignment,
    recognizer: str,
    refined_by: str,
    doubtful: Sequence[bool],
) -> Iterable[dict[str, Any]]:
    """Yield rows of `utterances`, with times on the screen's clock."""
    offset = alignment.offset_s
    for number, (utterance, text) in enumerate(zip(utterances, texts, strict=True)):
        words = [replace(w, start_s=w.start_s + offset, end_s=w.end_s + offset) for w in utterance.words]
        yield {
            "trajectory_id": identity,
            "utterance": number,
            "start_s": utterance.start_s + offset,
            "end_s": utterance.end_s + offset,
            "asr_text": utterance.text,
            "text": text,
            "words": [asdict(word) for word in words],
            "step": alignment.steps[number],
            "alignment_score": alignment.scores[number],
            "recognizer": recognizer,
            "refined_by": refined_by,
            "confidence": utterance.confidence,
            "low_confidence": doubtful[number],
        }


def _events(session: RecordedSession, identity: str) -> Iterable[dict[str, Any]]:
    step_of = {index: step for step, one in enumerate(session.actions) for index in one.events}
    for number, event in enumerate(session.events):
        row = {**vars(event), "key": event.key or None, "text": event.text or None, "step": step_of[number]}
        del row["screen"]
        yield {"trajectory_id": identity, "event": number, **row}


def review_row(identity: str, found: Curation) -> dict[str, Any]:
    """Make the row of `reviews` for what curation `found`: `comment` lists its faults, then its remarks; `at` is now.

    identity: the trajectory's id.
    """
    decision = "accept" if found.accepted else "reject"
    return decision_row(identity, "curation", "rules", decision, "; ".join((*found.faults, *found.remarks)))


def decision_row(subject: str, kind: str, reviewer: str, decision: str, comment: str) -> dict[str, Any]:
    """Make a row of `reviews` for what a program decided now. subject: the trajectory's id. kind: of the review, such
    as curation. reviewer: the program's name. decision: such as accept or reject."""
    named = {"subject": subject, "kind": kind, "reviewer": reviewer, "decision": decision}
    return named | {"comment": comment, "at": datetime.now(UTC)}


def _at(session: RecordedSession, seconds: float) -> datetime:
    return session.meta.started_at + timedelta(seconds=seconds)


IMPORTED_DOMAIN = "imported"
HUMAN = "human"  # author and policy of a demonstration that does not say that it is an agent's


def demonstration_rows(folder: Path, settings: Settings, iteration: int) -> IngestedSession:
    """Make the rows of the imported demonstration in `folder`.

    settings, iteration: of the iteration that ingests it. One that cannot be read, or has no step to learn from, gives
    a trajectory of status invalid with the reason. Raises as `make_invalid_session`.
    """
    try:
        return check_rows(_demonstration_rows(folder, settings, iteration), folder)
    except Exception as error:
        return make_invalid_session(folder, error, iteration)


def _demonstration_rows(folder: Path, settings: Settings, iteration: int) -> IngestedSession:
    one, images = demonstration.load_demonstration(folder)
    check_screens(images, settings, folder)
    task = _task(one)
    identity = session_trajectory_id(iteration, task["task_id"], folder.name)
    grammar = Grammar.of_settings(settings)
    steps = [_step(one, number, identity, grammar) for number in range(len(one.steps))]
    found = _curated(one, steps, {row["sha256"] for row in images})
    trajectory = Trajectory(
        identity,
        task["task_id"],
        IMPORTED_DOMAIN,
        world=one.world,
        level=1,
        instruction=one.instruction,
        source="import",
        author=one.facts.get("author", HUMAN),
        sample=0,
        policy_version=one.facts.get("agent", HUMAN),
        status="truncated" if one.completed is False else "completed",
        steps=len(steps),
        reward=None if one.completed is None else float(one.completed),
        origin=one.origin,
        licence=one.licence,
    )
    return replace(_ingested(folder.name, trajectory, task, steps, found), image_rows=tuple(images))


def _task(one: Demonstration) -> dict:
    """Make a row of `tasks`. It has no verifier, since the task is never played here."""
    facts = {**one.facts, "origin": one.origin}
    return {
        "task_id": one.origin,
        "domain": IMPORTED_DOMAIN,
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
        one.facts.get("author", HUMAN),
        step.thought,
        raw_text=format_response(step.thought, done.get("action", step.action)),
        parse_error=fault or None,
        weight_version=one.facts.get("agent", HUMAN),
        image_sha256=step.screen or None,
        observation=step.observation,
        tool_result=step.result or None,
        reward=float(bool(one.completed)) if last else 0.0,
        terminated=last and one.completed is not False,
        truncated=last and one.completed is False,
        misclick=step.slip,
        **done,
    )


def _done(step: DemonstratedStep, grammar: Grammar) -> tuple[dict, str]:
    if step.fault:
        return {}, step.fault
    action = parse_demonstrated_action(step.action, demonstration.DEMONSTRATION_GRAMMAR)
    if isinstance(action, ParseError):
        return {}, action.reason
    return action_fields(action, grammar), ""


def _curated(one: Demonstration, steps: list[Step], screens: set[str]) -> Curation:
    # A step needs its screen or, where there was none, the text that was read.
    seen = (step.image_sha256 in screens if step.image_sha256 else step.observation is not None for step in steps)
    faults = [f"step {step.step} has no screen" for step, there in zip(steps, seen, strict=True) if not there][:1]
    unlearnt = [step for step in steps if step.parse_error or step.misclick]
    if len(unlearnt) == len(steps):
        faults.append("no step that can be learnt")
    if not one.instruction.strip():
        faults.append("no instruction")
    remarks = [f"step {step.step} is not learnt: {step.parse_error or 'a slip'}" for step in unlearnt[:8]]
    if missing := one.facts.get("missing_steps"):
        remarks.append(
            f"the data set has no step {', '.join(map(str, missing))}: what it led to is seen, not what it was"
        )
    return Curation(tuple(faults), tuple(remarks))
