"""Write and read eval logs of Inspect: `.eval` (a zip with a JSON file a sample) and `.json`.

    header.json     the log without its samples
    summaries.json  a line about each sample
    samples/<id>_epoch_<n>.json

A sample is a conversation: the task and the screen from the user, then an assistant's tool calls, each answered by what
it returned and the screen after it. https://inspect.aisi.org.uk/eval-logs.html
"""

from __future__ import annotations

import base64
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
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
    refuse_equal_names,
    step_columns,
    trajectory_columns,
    write_call,
)
from flywheel.utils.errors import BadInput
from flywheel.utils.files import atomic_folder
from flywheel.utils.json_text import parse_foreign_json

DATASET = "inspect"
FILE = "traces.eval"
_ATTACHED = "attachment://"
_GRADES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
_HEADER = "header.json"
_ZSTD = 93  # the compression of Inspect's zips, which Python's zipfile knows from 3.14 on


def write_inspect(traces: Iterable[Trace], folder: Path, title: str) -> int:
    """Write trajectories as one eval log of Inspect, with a sample for each; return the number of their steps.

    folder: of the log, `traces.eval`; it appears only when it is complete, and replaces an existing one. title: of the
    log's task. Memory holds one trajectory. Raises what `traces` raises, BadInput for a second trajectory of the same
    id, OSError where it cannot be written.
    """
    count, told, models, named = 0, [], set(), set()
    now = datetime.now(UTC).isoformat()
    with atomic_folder(folder) as temporary, zipfile.ZipFile(temporary / FILE, "w", zipfile.ZIP_DEFLATED) as log:
        for trace in traces:
            sample = _write_sample(trace)
            if sample["id"] in named:
                refuse_equal_names(sample["id"], folder)
            named.add(sample["id"])
            log.writestr(f"samples/{sample['id']}_epoch_1.json", json.dumps(sample, allow_nan=False))
            summary = {name: sample[name] for name in ("id", "epoch", "input", "target", "metadata")}
            scores = {name: {"value": score["value"]} for name, score in sample["scores"].items()}
            told.append(summary | {"metadata": {}, "scores": scores, "completed": True})
            models.add(sample["output"]["model"])
            count += len(trace.demonstration.steps)
        names = [one["id"] for one in told]
        spec = {
            "eval_id": title,
            "run_id": title,
            "created": now,
            "task": title,
            "task_id": title,
            "task_version": 0,
            "dataset": {"name": title, "samples": len(names), "sample_ids": names},
            "model": models.pop() if len(models) == 1 else f"{FLYWHEEL}/several",
            "config": {},
        }
        values = [score["value"] for one in told for score in one["scores"].values()]
        mean = {"mean": {"name": "mean", "value": sum(values) / len(values)}} if values else {}
        results = {
            "total_samples": len(names),
            "completed_samples": len(names),
            "scores": [{"name": FLYWHEEL, "scorer": FLYWHEEL, "metrics": mean}],
        }
        stats = {"started_at": now, "completed_at": now}
        header = {"version": 2, "status": "success", "eval": spec, "results": results, "stats": stats}
        log.writestr(_HEADER, json.dumps(header, allow_nan=False))
        log.writestr("summaries.json", json.dumps(told, allow_nan=False))
    return count


def _write_sample(trace: Trace) -> dict[str, Any]:
    one = trace.demonstration
    model = f"{FLYWHEEL}/{one.facts.get('agent', '')}"
    messages: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": one.instruction}]}]
    for number, step in enumerate(one.steps):
        if step.screen:
            shown = {"type": "image", "image": f"{_ATTACHED}{step.screen}", "detail": "auto"}
            if messages[-1]["role"] == "assistant":
                messages.append({"role": "user", "content": []})
            messages[-1]["content"].append(shown)
        if step.observation is not None:
            messages.append({"role": "user", "content": step.observation})
        action = trace.action(number)
        thought = [{"type": "reasoning", "reasoning": step.thought}] if step.thought else []
        said = [{"type": "text", "text": step.action}] if action is None else []
        message = {"role": "assistant", "content": [*thought, *said], "model": model, "source": "generate"}
        message["metadata"] = step_columns(trace, number)
        messages.append(message)
        returned: list[dict[str, Any]] = [{"type": "text", "text": step.result}] if step.result else []
        if action is not None:
            name, arguments = write_call(action, trace.size(number))
            message["tool_calls"] = [{"id": f"call_{number}", "function": name, "arguments": arguments}]
            messages.append({"role": "tool", "content": returned, "tool_call_id": f"call_{number}", "function": name})
    return {
        "id": one.id,
        "epoch": 1,
        "input": one.instruction,
        "target": "",
        "messages": messages,
        "output": {"model": model, "choices": []},
        "scores": {} if trace.score is None else {FLYWHEEL: {"value": trace.score}},
        "metadata": trajectory_columns(trace),
        "attachments": {
            name: f"data:{picture_media_type(encoded)};base64,{base64.b64encode(encoded).decode()}"
            for name, encoded in one.screens.items()
        },
    }


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class _Call(_Part):
    id: str
    function: str
    arguments: dict[str, Any]


class _Content(_Part):
    type: str
    text: str = ""
    reasoning: str = ""
    image: str = ""


class _Message(_Part):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[_Content] = ""
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    metadata: dict[str, Any] | None = None

    @property
    def parts(self) -> list[_Content]:
        """The content as parts; one that is a text alone as one part."""
        whole = self.content
        return [_Content(type="text", text=whole)] if isinstance(whole, str) else whole


class _Score(_Part):
    value: Any = None


class _Sample(_Part):
    id: str | int
    epoch: int = 1
    input: str | list[_Message]
    messages: list[_Message] = Field(min_length=1)
    scores: dict[str, _Score] | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    attachments: dict[str, str] = Field(default_factory=dict)


class _Spec(_Part):
    eval_id: str = ""  # older logs have none
    task_id: str = ""
    task: str = ""
    model: str = ""


class _Header(_Part):
    eval: _Spec
    samples: list[dict[str, Any]] | None = None


def read_inspect(
    files: Sequence[Path], split: str = "eval", licence: str = "", max_side: int = MAX_SIDE
) -> Iterator[Demonstration | RefusedRecord]:
    """Yield each sample of the logs as a demonstration, or as a RefusedRecord that says why it is none.

    files: logs, `.eval` or `.json`. split: "eval" for tasks of a benchmark, which are never trained on, or "train".
    licence: stored with each demonstration. max_side: longest side of a screen, in pixels (policy.max_image_side). It
    is a generator; it raises BadInput for a file that is missing or no log when it comes to it.
    """
    for file in files:
        if not file.is_file():
            raise BadInput("there is no such file", where=file, fix="name a log of Inspect, .eval or .json")
        told = {"licence": licence, "split": split}
        with ExitStack() as opened:
            try:
                spec, samples = _open_log(file, opened)
            except Exception as error:  # of zipfile, of a compression, of JSON
                why = RefusedRecord.from_error("", error).why
                raise BadInput(f"not a log of Inspect: {why}", where=file, fix="name a whole .eval or .json") from None
            for name, read in samples.items():
                try:
                    yield _demonstration(_Sample.model_validate(read()), spec, max_side, told)
                except Exception as error:  # any error concerns this sample only
                    yield RefusedRecord.from_error(f"{file.name} {name[:100]}", error)


def _open_log(file: Path, opened: ExitStack) -> tuple[_Spec, dict[str, Callable[[], Any]]]:
    """Return what a log says of itself, and for each of its samples, by name, a function that reads it while `opened`
    is."""
    if not zipfile.is_zipfile(file):
        log = _Header.model_validate(read_json_file(file))
        return log.eval, {f"sample {place}": partial(dict, one) for place, one in enumerate(log.samples or [])}
    archive = opened.enter_context(zipfile.ZipFile(file))
    names = sorted(name for name in archive.namelist() if name.startswith("samples/") and name.endswith(".json"))
    spec = _Header.model_validate(_read_member(archive, _HEADER)).eval
    return spec, {name: partial(_read_member, archive, name) for name in names}


def _read_member(archive: zipfile.ZipFile, name: str) -> Any:
    entry = archive.getinfo(name)
    if entry.file_size > MAX_TRACE_BYTES:
        raise ValueError(f"{name[:100]} is larger than {MAX_TRACE_BYTES // 2**20} MiB")
    if entry.compress_type != _ZSTD:
        return parse_foreign_json(archive.read(name))
    archive.fp.seek(entry.header_offset + 26)  # of a member's own header, the lengths of its name and its extra field
    archive.fp.seek(sum(struct.unpack("<2H", archive.fp.read(4))), io.SEEK_CUR)
    content = pa.decompress(archive.fp.read(entry.compress_size), entry.file_size, "zstd", asbytes=True)
    if zlib.crc32(content) != entry.CRC:
        raise ValueError(f"{name[:100]} is damaged: its checksum differs")
    return parse_foreign_json(content)


def _demonstration(sample: _Sample, spec: _Spec, max_side: int, told: Mapping[str, str]) -> Demonstration:
    def text(value: str) -> str:
        return sample.attachments.get(value.removeprefix(_ATTACHED), value) if value.startswith(_ATTACHED) else value

    reader = TraceReader(max_side)
    if isinstance(sample.input, str) and all(message.role != "user" for message in sample.messages):
        reader.hear(text(sample.input))
    answers = {one.tool_call_id: one for one in sample.messages if one.role == "tool"}
    for message in sample.messages:
        for part in message.parts if message.role == "user" else ():
            if part.type == "image":
                reader.see(read_data_uri(text(part.image)))
            elif part.type == "text":
                reader.hear(text(part.text))
        if message.role != "assistant":
            continue
        thought = "\n".join(text(part.reasoning) for part in message.parts if part.type == "reasoning")
        said = "\n".join(text(part.text) for part in message.parts if part.type == "text")
        calls, meta = message.tool_calls or [], message.metadata or {}
        if not calls:
            reader.say(said, thought, meta)
        for place, call in enumerate(calls):
            told_first = "" if place else thought or said
            arguments = {name: text(one) if isinstance(one, str) else one for name, one in call.arguments.items()}
            reader.call(call.function, arguments, told_first, meta)
            for part in answers[call.id].parts if call.id in answers else ():
                if part.type == "image":
                    reader.see(read_data_uri(text(part.image)))
                elif part.type == "text" and part.text:
                    reader.hear_result(text(part.text))
    return reader.finish(
        _read_score(sample.scores or {}),
        sample.metadata,
        spec.model.removeprefix(f"{FLYWHEEL}/"),
        dataset=DATASET,
        id_=f"{spec.eval_id or spec.task_id}/{sample.id}/{sample.epoch}",
        world=spec.task[:MAX_CHARACTERS],
        **told,
    )


def _read_score(scores: Mapping[str, _Score]) -> float | None:
    """Return the first score that is a number, a grade or a truth value; None where there is none."""
    for one in scores.values():
        value = _GRADES.get(one.value, one.value) if isinstance(one.value, str) else one.value
        if isinstance(value, int | float):
            return float(value)
    return None
