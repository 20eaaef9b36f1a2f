"""Write and read trajectories in ATIF, the Agent Trajectory Interchange Format of Harbor and Terminal-Bench.

    TRIAL/agent/trajectory.json     the task, then the agent's steps, with calls and observations
    TRIAL/agent/images/<n>.png      screens, named in observations by their paths
    TRIAL/verifier/reward.txt       the score

https://www.harborframework.com/docs/agents/trajectory-format
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from flywheel.agent.prompt import MAX_SIDE
from flywheel.store.interop import demonstration
from flywheel.store.interop.demonstration import MAX_CHARACTERS, Demonstration, RefusedRecord
from flywheel.store.interop.traces import (
    FLYWHEEL,
    Trace,
    TraceReader,
    folder_name,
    picture_media_type,
    read_json_file,
    read_picture,
    refuse_equal_names,
    step_columns,
    trajectory_columns,
    write_call,
)
from flywheel.utils.files import atomic_folder, write_json, write_text

DATASET = "atif"
VERSION = "ATIF-v1.6"  # the first with images
FILE = "trajectory.json"
_METRICS = {"prompt_tokens": "prompt_tokens", "token_ids": "completion_token_ids", "logprobs": "logprobs"}


def write_atif(traces: Iterable[Trace], folder: Path) -> int:
    """Write trajectories as trial folders of Harbor; return the number of their steps.

    The folder appears only when it is complete, and replaces an existing one. Raises what `traces` raises, BadInput for
    a second trajectory of the same id, OSError or DiskFull where it cannot be written.
    """
    count = 0
    with atomic_folder(folder) as temporary:
        for trace in traces:
            trial = temporary / folder_name(trace.demonstration.id)
            if trial.exists():
                refuse_equal_names(trace.demonstration.id, folder)
            (trial / "agent" / "images").mkdir(parents=True)
            (trial / "verifier").mkdir()
            write_json(trial / "agent" / FILE, _write_trajectory(trace, trial / "agent"))
            if trace.score is not None:
                write_text(trial / "verifier" / "reward.txt", f"{trace.score!r}\n")
            count += len(trace.demonstration.steps)
    return count


def _write_trajectory(trace: Trace, folder: Path) -> dict[str, Any]:
    """Return a trajectory as ATIF's JSON, and write its screens."""
    one = trace.demonstration
    pictures = {}
    for number, (name, encoded) in enumerate(one.screens.items()):
        kind = picture_media_type(encoded)
        path = f"images/{number}.{kind.removeprefix('image/').replace('jpeg', 'jpg')}"
        (folder / path).write_bytes(encoded)
        pictures[name] = {"type": "image", "source": {"media_type": kind, "path": path}}
    steps: list[dict[str, Any]] = []
    agent = one.facts.get("agent")

    def add(**told: Any) -> dict[str, Any]:
        steps.append({"step_id": len(steps) + 1, **{name: value for name, value in told.items() if value is not None}})
        return steps[-1]

    task = [{"type": "text", "text": one.instruction}]
    first = one.steps[0].screen
    add(source="user", message=[*task, pictures[first]] if first else one.instruction)
    for number, step in enumerate(one.steps):
        if step.observation is not None:
            add(source="user", message=step.observation)
        action, extra = trace.action(number), step_columns(trace, number)
        made = add(
            source="agent",
            timestamp=extra.pop("started_at", None),
            model_name=agent,
            message=step.action if action is None else "",
            reasoning_content=step.thought or None,
            metrics={name: extra.pop(column) for column, name in _METRICS.items() if column in extra} or None,
            extra=extra,
        )
        returned = [{"type": "text", "text": step.result}] if step.result and action is not None else []
        after = one.steps[number + 1].screen if number + 1 < len(one.steps) else ""
        content = [*returned, *([pictures[after]] if after else [])]
        result: dict[str, Any] = {"content": content}
        if action is not None:
            name, arguments = write_call(action, trace.size(number))
            call = f"call_{number}"
            made["tool_calls"] = [{"tool_call_id": call, "function_name": name, "arguments": arguments}]
            result["source_call_id"] = call
        if content:
            made["observation"] = {"results": [result]}
    return {
        "schema_version": VERSION,
        "session_id": one.id,
        "agent": {"name": FLYWHEEL, "version": agent or "unknown", **({"model_name": agent} if agent else {})},
        "steps": steps,
        "extra": trajectory_columns(trace),
    }


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class _Source(_Part):
    media_type: str = ""
    path: str


class _Content(_Part):
    type: str
    text: str | None = None
    source: _Source | None = None


class _Call(_Part):
    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]


class _Result(_Part):
    source_call_id: str | None = None
    content: str | list[_Content] | None = None


class _Observation(_Part):
    results: list[_Result]


class _Step(_Part):
    source: Literal["system", "user", "agent"]
    message: str | list[_Content]
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None
    observation: _Observation | None = None
    is_copied_context: bool | None = None
    extra: dict[str, Any] | None = None


class _Agent(_Part):
    name: str
    model_name: str | None = None


class _Trajectory(_Part):
    schema_version: str = Field(pattern=r"^ATIF-v1\.\d{1,3}$")
    trajectory_id: str | None = None
    session_id: str | None = None
    agent: _Agent
    steps: list[_Step] = Field(min_length=1)
    extra: dict[str, Any] | None = None


def read_atif(
    folders: Sequence[Path], split: str = "eval", licence: str = "", max_side: int = MAX_SIDE
) -> Iterator[Demonstration | RefusedRecord]:
    """Yield each `trajectory.json` as a demonstration, or as a RefusedRecord that says why it is none.

    folders: with trajectories in them, at any depth. split: "eval" for tasks of a benchmark, which are never trained
    on, or "train". licence: stored with each demonstration. max_side: longest side of a screen, in pixels
    (policy.max_image_side). It is a generator; it raises BadInput for a folder that is missing or has none when it
    comes to it.
    """
    yield from demonstration.read_folders(
        folders, FILE, "name a folder of Harbor's jobs", lambda one: _demonstration(one, split, licence, max_side)
    )


def _demonstration(folder: Path, split: str, licence: str, max_side: int) -> Demonstration:
    told = _Trajectory.model_validate(read_json_file(folder / FILE))
    reader = TraceReader(max_side)

    def take(content: str | list[_Content] | None, hear: Any) -> None:
        for part in [_Content(type="text", text=content)] if isinstance(content, str) else content or ():
            if part.type == "image" and part.source is not None:
                reader.see(read_picture(folder, part.source.path))
            elif part.text is not None:
                hear(part.text)

    for step in told.steps:
        if step.is_copied_context or step.source == "system":
            continue
        if step.source == "user":
            take(step.message, reader.hear)
            continue
        said = [step.message] if isinstance(step.message, str) else [part.text or "" for part in step.message]
        message, extra = "\n".join(said), step.extra or {}
        calls, results = step.tool_calls or [], step.observation.results if step.observation else []
        if not calls:
            reader.say(message, step.reasoning_content or "", extra)
        known = {call.tool_call_id for call in calls}
        for place, call in enumerate(calls):
            thought = "" if place else step.reasoning_content or message
            reader.call(call.function_name, call.arguments, thought, extra)
            for one in results:
                if one.source_call_id == call.tool_call_id:
                    take(one.content, reader.hear_result)
        for one in results:
            if one.source_call_id not in known:
                take(one.content, reader.hear_result)
    reward = folder.parent / "verifier" / "reward.txt"
    return reader.finish(
        float(reward.open("rb").read(100)) if reward.is_file() else None,
        told.extra or {},
        told.agent.model_name or told.agent.name,
        dataset=DATASET,
        id_=told.trajectory_id or told.session_id or "/".join(folder.parts[-3:]),
        licence=licence,
        split=split,
        world=told.agent.name[:MAX_CHARACTERS],
    )
