"""Write and read traces of `verifiers` (Prime Intellect), a library of RL environments.

    traces.jsonl   an episode a line, with a trace for each of its agents: the messages as a graph, rewards (0.2 and on)
    results.jsonl  a rollout a line, `prompt` and `completion`: `RolloutOutput` of `GenerateOutputs` (0.1, read alone)

https://github.com/PrimeIntellect-ai/verifiers
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from flywheel.agent.prompt import MAX_SIDE
from flywheel.store.interop.demonstration import MAX_CHARACTERS, Demonstration, RefusedRecord
from flywheel.store.interop.traces import (
    FLYWHEEL,
    MAX_TRACE_BYTES,
    Trace,
    TraceReader,
    picture_media_type,
    read_data_uri,
    read_json_file,
    step_columns,
    trajectory_columns,
    write_call,
)
from flywheel.utils.errors import BadInput
from flywheel.utils.files import atomic_folder
from flywheel.utils.json_text import parse_foreign_json

DATASET = "verifiers"
FILE = "traces.jsonl"
RESULTS_FILE = "results.jsonl"
_VERSION = "0.4.0"  # of the package whose records are written
_FIX = f"name a {FILE} or {RESULTS_FILE} of verifiers, or a folder of them"


def write_verifiers(traces: Iterable[Trace], folder: Path) -> int:
    """Write trajectories for the library verifiers, to `folder/traces.jsonl`; return the number of their steps.

    The folder appears only when it is complete, and replaces an existing one. Memory holds one trajectory. Raises what
    `traces` raises, ValueError for a number that is not finite, OSError where it cannot be written.
    """
    count = 0
    with atomic_folder(folder) as temporary, (temporary / FILE).open("w", encoding="utf-8") as file:
        for trace in traces:
            file.write(json.dumps(_write_episode(trace), allow_nan=False) + "\n")
            count += len(trace.demonstration.steps)
    return count


def _write_episode(trace: Trace) -> dict[str, Any]:
    one = trace.demonstration
    task = {"type": "TaskData", "data": {"id": one.id, "name": one.world or None, "prompt": one.instruction}}
    nodes: list[dict[str, Any]] = []

    def add(when: Any = None, sampled: bool = False, **message: Any) -> None:
        parent = len(nodes) - 1 if nodes else None
        nodes.append({"parent": parent, "message": message, "sampled": sampled, "timestamp": when or 0.0})

    def picture(name: str) -> dict[str, Any]:
        encoded = one.screens[name]
        url = f"data:{picture_media_type(encoded)};base64,{base64.b64encode(encoded).decode()}"
        return {"type": "image_url", "image_url": {"url": url}}

    told, calls, agent = [], [], one.facts.get("agent")
    add(role="user", content=one.instruction)
    for number, step in enumerate(one.steps):
        started = trace.row(number).get("started_at")
        when = started.timestamp() if started is not None else None
        if step.screen:
            add(when, role="user", content=[picture(step.screen)])
        if step.observation is not None:
            add(when, role="user", content=step.observation)
        action = trace.action(number)
        made: dict[str, Any] = {"role": "assistant", "content": step.action if action is None else None}
        if step.thought:
            made["reasoning_content"] = step.thought
        name, call = "", f"call_{number}"
        if action is not None:
            name, arguments = write_call(action, trace.size(number))
            written = json.dumps(arguments, ensure_ascii=False)
            made["tool_calls"] = [{"id": call, "type": "function", "name": name, "arguments": written}]
        add(when, sampled=True, **made)
        calls.append({"node": len(nodes) - 1, "model": agent, "finish_reason": "tool_calls" if name else "stop"})
        told.append(step_columns(trace, number))
        if name:
            add(when, role="tool", tool_call_id=call, name=name, content=step.result)
    return {
        "id": one.id,
        "env": {"id": FLYWHEEL, "name": one.world or None},
        "task": task,
        "ok": True,
        "traces": [
            {
                "version": 1,
                "id": one.id,
                "verifiers": {"version": _VERSION},
                "task": task,
                "agent": {"config": {"model": agent}, "name": FLYWHEEL},
                "nodes": nodes,
                "calls": calls,
                "rewards": {} if trace.score is None else {FLYWHEEL: {"score": trace.score, "weight": 1.0}},
                "info": {FLYWHEEL: {"trajectory": trajectory_columns(trace), "steps": told}},
                "is_completed": True,
                "ok": True,
            }
        ],
    }


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class _ImageUrl(_Part):
    url: str


class _Content(_Part):
    type: str
    text: str = ""
    image_url: _ImageUrl | None = None


class _Function(_Part):
    name: str
    arguments: str | dict[str, Any] = ""


class _Call(_Part):
    id: str = ""
    name: str = ""
    arguments: str | dict[str, Any] = ""
    function: _Function | None = None  # where chat completions have the name

    def read(self) -> tuple[str, Any]:
        """Return name and arguments, the latter as text where they are no JSON."""
        named = self.function or self
        if isinstance(named.arguments, str):
            try:
                return named.name, parse_foreign_json(named.arguments.encode())
            except ValueError:
                return named.name, named.arguments
        return named.name, named.arguments


class _Message(_Part):
    role: Literal["system", "developer", "user", "assistant", "tool", "text"]
    content: str | list[_Content] | None = None
    reasoning_content: str | None = None
    tool_calls: list[_Call | str] | None = None
    tool_call_id: str | None = None

    def parts(self) -> list[_Content]:
        if isinstance(self.content, list):
            return self.content
        return [_Content(type="text", text=self.content)] if self.content is not None else []

    def calls(self) -> list[_Call]:
        """The calls; those of 0.1's records are JSON in a text."""
        return [_Call.model_validate_json(one) if isinstance(one, str) else one for one in self.tool_calls or ()]


class _Node(_Part):
    parent: int | None = None
    message: _Message


class _Reward(_Part):
    score: float
    weight: float = 1.0


class _Task(_Part):
    data: dict[str, Any] = Field(default_factory=dict)


class _Config(_Part):
    model: str | None = None


class _Agent(_Part):
    config: _Config = _Config()
    name: str = ""


class _Error(_Part):
    type: str = ""
    message: str = ""


class _Trace(_Part):
    id: str
    task: _Task = _Task()
    agent: _Agent = _Agent()
    nodes: list[_Node]
    rewards: dict[str, _Reward | None] = Field(default_factory=dict)
    info: dict[str, Any] = Field(default_factory=dict)
    ok: bool = False
    errors: list[_Error] = Field(default_factory=list)


class _Env(_Part):
    id: str = ""
    name: str | None = None


class _Episode(_Part):
    id: str
    env: _Env = _Env()
    traces: list[dict[str, Any]]


class _Rollout(_Part):
    example_id: int | str = 0
    prompt: str | list[_Message] | None = None
    completion: str | list[_Message] | None = None
    reward: float | int | None = None
    info: Any = None
    error: Any = None


class _Metadata(_Part):
    env_id: str = ""
    model: str = ""


@dataclass(frozen=True)
class _Conversation:
    """Hold what is read of either form. extra: `trajectory_columns` and, a turn each, `step_columns`."""

    id: str
    world: str
    agent: str
    messages: Sequence[_Message]
    score: float | None
    instruction: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


def read_verifiers(
    paths: Sequence[Path], split: str = "eval", licence: str = "", max_side: int = MAX_SIDE
) -> Iterator[Demonstration | RefusedRecord]:
    """Yield each trace as a demonstration, or as a RefusedRecord that says why it is none.

    paths: `traces.jsonl`, `results.jsonl`, or folders with such files at any depth. split: "eval" for tasks of a
    benchmark, which are never trained on, or "train". licence: stored with each demonstration. max_side: longest side
    of a screen, in pixels (policy.max_image_side). It is a generator; it raises BadInput for a path that is missing or
    has none when it comes to it.
    """
    for path in paths:
        files = sorted(one for name in (FILE, RESULTS_FILE) for one in path.rglob(name)) if path.is_dir() else [path]
        if not files or not files[0].is_file():
            raise BadInput("there is no such file" if files else "it holds no traces", where=path, fix=_FIX)
        for file in files:
            for place, line in enumerate(_lines(file), 1):
                where = f"{file.name} line {place}"
                try:
                    if line is None:
                        raise ValueError(f"longer than {MAX_TRACE_BYTES // 2**20} MiB")
                    found = list(_conversations(parse_foreign_json(line), file, place))
                except Exception as error:  # any error concerns this line only
                    yield RefusedRecord.from_error(where, error)
                    continue
                for number, read in enumerate(found):
                    try:
                        yield _demonstration(read(), split, licence, max_side)
                    except Exception as error:
                        yield RefusedRecord.from_error(f"{where} trace {number}" if len(found) > 1 else where, error)


def _lines(file: Path) -> Iterator[bytes | None]:
    """Yield the lines that are not blank, None in place of one that is too long."""
    with file.open("rb") as opened:
        while line := opened.readline(MAX_TRACE_BYTES + 1):
            if len(line) > MAX_TRACE_BYTES:
                while line and not line.endswith(b"\n"):
                    line = opened.readline(MAX_TRACE_BYTES)
                yield None
            elif line.strip():
                yield line


def _conversations(record: Any, file: Path, place: int) -> Iterator[Any]:
    """Yield, for each conversation of a record, a function that reads it."""
    if not isinstance(record, dict) or not record.keys() & {"traces", "nodes", "completion"}:
        raise ValueError("neither an episode (traces), a trace (nodes) nor a rollout (completion) of verifiers")
    if "traces" in record:
        episode = _Episode.model_validate(record)
        for one in episode.traces:
            yield partial(_read_trace, one, episode.id, episode.env)
    elif "nodes" in record:
        yield partial(_read_trace, record, "", _Env())
    else:
        yield partial(_read_rollout, record, file, place)


def _read_trace(record: Any, episode: str, env: _Env) -> _Conversation:
    trace = _Trace.model_validate(record)
    rewards = [one.score * one.weight for one in trace.rewards.values() if one is not None]
    failed = bool(trace.errors) and not trace.ok  # its rewards say nothing of the agent
    data, own = trace.task.data, trace.info.get(FLYWHEEL)
    prompt = data.get("prompt")
    return _Conversation(
        trace.id if episode in ("", trace.id) else f"{episode}/{trace.id}",
        env.name or env.id,
        trace.agent.config.model or ("" if isinstance(own, dict) else trace.agent.name),
        _last_branch(trace.nodes),
        sum(rewards) if rewards and not failed else None,
        prompt if isinstance(prompt, str) else "",
        own if isinstance(own, dict) else {},
    )


def _last_branch(nodes: Sequence[_Node]) -> list[_Message]:
    """Return the messages from a root to the last leaf, as `Trace.messages` has them. Raises ValueError for parents
    that are no graph."""
    messages: list[_Message] = []
    place: int | None = len(nodes) - 1 if nodes else None  # no later node can have it as a parent
    while place is not None:
        messages.append(nodes[place].message)
        parent = nodes[place].parent
        if parent is not None and not 0 <= parent < place:
            raise ValueError(f"nodes[{place}].parent: {parent} is no earlier node")
        place = parent
    return messages[::-1]


def _read_rollout(record: Any, file: Path, place: int) -> _Conversation:
    rollout = _Rollout.model_validate(record)
    beside = file.with_name("metadata.json")
    about = _Metadata.model_validate(read_json_file(beside)) if beside.is_file() else _Metadata()
    messages: list[_Message] = []
    for role, said in (("user", rollout.prompt), ("assistant", rollout.completion)):
        messages += [_Message(role=role, content=said)] if isinstance(said, str) else said or []
    score = None if rollout.reward is None or rollout.error is not None else float(rollout.reward)
    name = "/".join([*file.resolve().parts[-3:-1], str(rollout.example_id), str(place)])
    return _Conversation(name, about.env_id, about.model, messages, score)


def _demonstration(read: _Conversation, split: str, licence: str, max_side: int) -> Demonstration:
    reader = TraceReader(max_side)
    if read.instruction and all(message.role != "user" for message in read.messages):
        reader.hear(read.instruction)
    columns = read.extra.get("steps")
    turns = iter(columns if isinstance(columns, list) else ())

    def take(message: _Message, hear: Any) -> None:
        for part in message.parts():
            if part.type == "image_url" and part.image_url is not None:
                reader.see(read_data_uri(part.image_url.url))
            elif part.type == "text" and (part.text or hear != reader.hear_result):
                hear(part.text)

    for place, message in enumerate(read.messages):
        if message.role == "user":
            take(message, reader.hear)
        if message.role not in ("assistant", "text"):
            continue
        said = "\n".join(part.text for part in message.parts() if part.type == "text")
        thought, calls = message.reasoning_content or "", message.calls()
        told = next(turns, {})
        extra = told if isinstance(told, dict) else {}
        if not calls:
            reader.say(said, thought, extra)
        answers = _answers(read.messages[place + 1 :])
        for number, call in enumerate(calls):
            reader.call(*call.read(), "" if number else thought or said, extra)
            if call.id in answers:
                take(answers[call.id], reader.hear_result)
    columns = read.extra.get("trajectory")
    return reader.finish(
        read.score,
        columns if isinstance(columns, dict) else {},
        read.agent,
        dataset=DATASET,
        id_=read.id,
        world=read.world[:MAX_CHARACTERS],
        licence=licence,
        split=split,
    )


def _answers(following: Sequence[_Message]) -> dict[str | None, _Message]:
    """Return the results that come right after a turn, by their call: ids may come again in a later turn."""
    found: dict[str | None, _Message] = {}
    for message in following:
        if message.role == "assistant":
            break
        if message.role == "tool":
            found.setdefault(message.tool_call_id, message)
    return found
