"""Read AgentNetBench (OpenCUA): tasks with the right action of each step, a JSON file each, and a folder of screens.

    {"task_id", "high_level_task_description", "steps": [{"step_num", "image", "ground_truth_actions", ...}]}

Points are fractions. `ground_truth_actions` is what counts as right; `action`, what the recorded person did, may be
another. It is a benchmark, so its tasks are evaluation tasks. https://github.com/xlang-ai/OpenCUA
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from flywheel.agent.actions import ParseError
from flywheel.agent.parsing.parser import parse_demonstrated_action
from flywheel.agent.prompt import MAX_SIDE
from flywheel.store.interop import demonstration
from flywheel.store.interop.agentnet import ScreenArchive
from flywheel.store.interop.demonstration import (
    DEMONSTRATION_GRAMMAR,
    MAX_CHARACTERS,
    DemonstratedStep,
    Demonstration,
    RefusedRecord,
)
from flywheel.utils.errors import BadInput
from flywheel.utils.json_text import parse_foreign_json

DATASET, LICENCE = "agentnetbench", "mit"
NOT_HELD = demonstration.FORMATS["not_held"][DATASET]
_PARAMETERS = {"text": "message", "content": "message"}  # AgentNetBench's names -> PyAutoGUI's
_Text = Annotated[str, Field(max_length=MAX_CHARACTERS)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class _Position(_Part):
    x: float
    y: float


class _Right(_Part):
    type: Annotated[str, Field(pattern=r"^[A-Za-z]{1,20}$")]
    params: dict[_Text, Any] = Field(default_factory=dict)


class _Monologue(_Part):
    thought: _Text | None = None


class _BenchStep(_Part):
    step_num: int | None = Field(default=None, ge=0, lt=2**31)
    image: _Text
    action: _Text | None = None
    inner_monologue: _Monologue | None = None
    ground_truth_actions: list[_Right] = Field(min_length=1)


class _Trajectory(_Part):
    task_id: Annotated[_Text, Field(min_length=1)]
    high_level_task_description: _Text
    user_task_description: _Text | None = None
    steps: list[_BenchStep] = Field(min_length=1)


def read_agentnet_bench(
    paths: Sequence[Path], images: Path, licence: str = LICENCE, max_side: int = MAX_SIDE
) -> Iterator[Demonstration | RefusedRecord]:
    """Yield each file of AgentNetBench as a demonstration of an evaluation task, or as a RefusedRecord with the reason.

    paths: JSON files, or folders of them. images: zip or folder with the screens. licence: stored with each
    demonstration. max_side: longest side of a screen, in pixels (policy.max_image_side). It is a generator; at the
    first record it raises BadInput where a file or `images` is missing, or there is no file in any folder, DataError
    where the zip is damaged.
    """
    files = [file for path in paths for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
    if not files or not all(file.is_file() for file in files):
        where = next((file for file in (files or paths) if not file.is_file()), "")
        raise BadInput("no such JSON file", where=where, fix="name the benchmark's .json files, or their folder")
    with ScreenArchive(images) as picture:
        for file in files:
            try:
                record = _Trajectory.model_validate(parse_foreign_json(file.read_bytes()))
                yield _demonstration(record, picture, licence, max_side)
            except Exception as error:  # any error concerns this record only
                yield RefusedRecord.from_error(file.name, error)


def _demonstration(record: _Trajectory, picture: Any, licence: str, max_side: int) -> Demonstration:
    screens: dict[str, bytes] = {}
    made: list[DemonstratedStep] = []
    others: dict[str, str] = {}
    numbered = [(place if step.step_num is None else step.step_num, step) for place, step in enumerate(record.steps)]
    numbered.sort(key=lambda one: one[0])
    missing = demonstration.find_missing_steps([number for number, _ in numbered])
    for number, step in numbered:
        encoded = picture(step.image, record.task_id)
        screen = demonstration.check_screen(encoded, f"its screen {step.image}", max_side)
        screens[screen] = encoded
        code = _write_code(step.ground_truth_actions)
        right = parse_demonstrated_action(code, DEMONSTRATION_GRAMMAR)
        if step.action is not None and parse_demonstrated_action(step.action, DEMONSTRATION_GRAMMAR) != right:
            others[str(number)] = step.action
        thought = step.inner_monologue.thought if step.inner_monologue else None
        fault = right.reason if isinstance(right, ParseError) else ""
        made.append(DemonstratedStep(code, screen, thought or "", fault=fault))
    facts = {"user_task_description": record.user_task_description, "other_actions": others, "missing_steps": missing}
    return Demonstration(
        dataset=DATASET,
        id=record.task_id,
        licence=licence,
        instruction=record.high_level_task_description,
        world=DATASET,
        template="desktop",
        split="eval",
        completed=None,
        steps=tuple(made),
        facts={name: value for name, value in facts.items() if value},
        screens=screens,
    )


def _write_code(actions: Sequence[_Right]) -> str:
    """Write the right actions of a step as code, in the form of AgentNet's."""
    calls: list[str] = []
    for one in actions:
        given = {_PARAMETERS.get(name, name): value for name, value in one.params.items()}
        if "position" in given:
            point = _Position.model_validate(given.pop("position"))
            given |= {"x": point.x, "y": point.y}
        amount = [repr(given.pop(name)) for name in ("amount",) if name in given]
        written = ", ".join([*amount, *(f"{name}={value!r}" for name, value in given.items())])
        if amount and calls and calls[-1] == f"pyautogui.moveTo({', '.join(written.split(', ')[1:])})":
            calls.pop()  # the scroll has that place itself
        calls.append(f"{'computer' if one.type == 'terminate' else 'pyautogui'}.{one.type}({written})")
    return "\n".join(calls)
