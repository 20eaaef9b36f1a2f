"""Write stored trajectories as traces of other tools, and read such traces as demonstrations.

A trace is exchanged as a `Demonstration`: what its writer puts into a file, its reader finds there, but for the fields
that `formats.yaml` lists under `exports`. Actions are tool calls, with points in pixels of the step's screen.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, NoReturn

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, ParseError, Point
from flywheel.agent.grammar import NO_SCREEN as NO_SIZE
from flywheel.agent.grammar import Grammar, format_response, pixel_space
from flywheel.agent.parsing.parser import parse_demonstrated_action, parse_response, serialise_action
from flywheel.agent.prompt import screenshot_size
from flywheel.store.interop import demonstration
from flywheel.store.interop.demonstration import (
    DEMONSTRATION_GRAMMAR,
    MAX_CHARACTERS,
    MAX_SCREEN_BYTES,
    NO_SCREEN,
    DemonstratedStep,
    Demonstration,
)
from flywheel.store.interop.exports import ExportedStep, as_plain_json
from flywheel.utils.errors import BadInput
from flywheel.utils.json_text import parse_foreign_json

FLYWHEEL = "flywheel"
MAX_TRACE_BYTES = 512 * 2**20  # most of one JSON text, with the screens in it
# Any grammar's text is read in a space that refuses no number: the columns have the points.
_ANY_TEXT = Grammar("point", pixel_space(10**6, 10**6), functions=True)
_NO_CALL = "it calls no tool"  # why a turn without a tool call has no action
# Columns of a step that the formats have fields for.
_HELD = frozenset({"trajectory_id", "step", "thought", "image_sha256", "observation", "tool_result"})
_FUNCTIONS = act.ToolCall | act.Terminal | act.RunPython | act.ReadFile | act.WriteFile | act.ListFiles | act.Finished
_LONGEST_SIDE = 2**16  # of a stored screen, in pixels
_TOOL_TAG, _TOOL_END = "<tool_call>\n", "\n</tool_call>"


@dataclass(frozen=True)
class Trace:
    """Hold one stored trajectory to export.

    demonstration: its steps and screens, as an import makes them. trajectory: `TRAJECTORY_COLUMNS`, and its weight.
    rows: columns of `steps`, a row a step. score: of its store, 0 to 1; None where there is none.
    """

    demonstration: Demonstration
    trajectory: Mapping[str, Any] = field(default_factory=dict)
    rows: Sequence[Mapping[str, Any]] = ()
    score: float | None = None

    def size(self, place: int) -> tuple[int, int]:
        """Return width and height, in pixels, of the screen that the points of step number `place` count on.

        It is the step's own screen, else the newest before it; NO_SIZE where there is none.
        """
        shown = [step.screen for step in self.demonstration.steps[: place + 1] if step.screen]
        return screenshot_size(self.demonstration.screens[shown[-1]], _LONGEST_SIDE) if shown else NO_SIZE

    def action(self, place: int) -> Action | None:
        """Return the action of step number `place`; None where the step has none that can be learnt."""
        step = self.demonstration.steps[place]
        found = parse_demonstrated_action(step.action, DEMONSTRATION_GRAMMAR)
        return None if step.fault or isinstance(found, ParseError) else found

    def row(self, place: int) -> Mapping[str, Any]:
        """Return the columns of step number `place`; empty where they are not known."""
        return self.rows[place] if self.rows else {}


def iter_traces(steps: Iterable[ExportedStep]) -> Iterator[Trace]:
    """Yield a trace for each trajectory of the exported `steps`, in their order, to be written in a tool's format.

    steps: those of a trajectory follow one another. Raises what `steps` raises.
    """
    for name, group in groupby(steps, lambda one: one.step["trajectory_id"]):
        own = list(group)
        trajectory, score = own[0].trajectory, own[0].score
        screens = {one.step["image_sha256"]: one.screen for one in own if one.screen is not None}
        facts = {"author": trajectory["author"], "agent": trajectory["policy_version"], "result": score}
        told = Demonstration(
            dataset=FLYWHEEL,
            id=name,
            licence=trajectory["licence"] or "",
            instruction=trajectory["instruction"] or "",
            world=trajectory["world"] or "",
            template=trajectory["domain"],
            split="train",
            completed=None if score is None else score == 1,
            steps=tuple(_stored_step(one.step) for one in own),
            facts={name: value for name, value in facts.items() if value is not None},
            screens=screens,
        )
        yield Trace(told, trajectory | {"weight": own[0].weight}, [one.step for one in own], score)


def _stored_step(row: Mapping[str, Any]) -> DemonstratedStep:
    action: Action | ParseError = ParseError(row["parse_error"] or "it has no action")
    if row["action"]:
        text = format_response("", row["action"])
        found = (parse_response(text, grammar).action for grammar in (_ANY_TEXT, DEMONSTRATION_GRAMMAR))
        action = next((one for one in found if isinstance(one, Action)), action)
        names = ("start_point", "end_point") if isinstance(action, act.Drag) else ("point",)
        points = {"x": (row["x"], row["y"]), "x2": (row["x2"], row["y2"])}
        moved = {name: Point(*at) for name, at in zip(names, points.values(), strict=False) if None not in at}
        if hasattr(action, names[0]):
            action = replace(action, **moved)
    fault = action.reason if isinstance(action, ParseError) else row["parse_error"] or ""
    said = row["raw_text"] or row["action"] or "" if fault else serialise_action(action, DEMONSTRATION_GRAMMAR)
    return DemonstratedStep(
        said,
        row["image_sha256"] or NO_SCREEN,
        row["thought"] or "",
        bool(row["misclick"]),
        fault,
        row["observation"],
        row["tool_result"] or "",
    )


def _calls(size: tuple[int, int]) -> Grammar:
    return Grammar("tool_call", pixel_space(*size), "computer", functions=True)


def write_call(action: Action, size: tuple[int, int]) -> tuple[str, dict[str, Any]]:
    """Write an action as a tool call; return its name and its arguments.

    size: width and height of the screen, in pixels, which its points are counted in.
    """
    text = serialise_action(action, _calls(size))
    call = json.loads(text.removeprefix(_TOOL_TAG).removesuffix(_TOOL_END))
    return call["name"], call["arguments"]


def read_call(name: str, arguments: Any, size: tuple[int, int]) -> tuple[str, Action | ParseError]:
    """Read a tool call; return its text and its action, or why there is none that can be learnt.

    arguments: JSON values. size: width and height of the screen, in pixels, which its points are counted in.
    """
    said = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return said, parse_demonstrated_action(said, _calls(size))


def trajectory_columns(trace: Trace) -> dict[str, Any]:
    """Return the columns of a trace's trajectory as JSON values, with who acted (`author`) and the `score`."""
    told = {"author": trace.demonstration.facts.get("author"), "score": trace.score}
    return as_plain_json({**trace.trajectory, **told})


def step_columns(trace: Trace, place: int) -> dict[str, Any]:
    """Return, as JSON values, the columns of step number `place` that trace formats have no field for.

    `tool_result` is one of them where the step has no action: nothing is called that returns it.
    """
    step = trace.demonstration.steps[place]
    told = {name: one for name, one in trace.row(place).items() if one is not None and name not in _HELD}
    told |= {"misclick": step.slip} | ({"parse_error": step.fault} if step.fault else {})
    return as_plain_json(told | ({"tool_result": step.result} if step.result and not trace.action(place) else {}))


class TraceReader:
    """Hold what was read of a conversation so far, and make steps of it in order: what is seen, done and returned.

    max_side: longest side of a screen, in pixels. instruction: the task; None before it is told. size: width and height
    of the newest screen, in pixels. steps, screens: what was collected.
    """

    def __init__(self, max_side: int) -> None:
        self.instruction: str | None = None
        self.steps: list[DemonstratedStep] = []
        self.screens: dict[str, bytes] = {}
        self._max_side = max_side
        self._screen, self._text = NO_SCREEN, None
        self.size = NO_SIZE

    def see(self, encoded: bytes) -> None:
        """Take a picture as the screen of the next step. Raises ValueError for one that training would refuse."""
        self._screen = demonstration.check_screen(encoded, f"the screen of step {len(self.steps)}", self._max_side)
        self.screens[self._screen] = encoded
        self.size = screenshot_size(encoded, self._max_side)

    def hear(self, text: str) -> None:
        """Take a text of the user: the first before any step is the instruction, others are read by the next step."""
        if self.instruction is None and not self.steps:
            self.instruction = text
            return
        self._text = text if self._text is None else f"{self._text}\n{text}"

    def call(self, name: str, arguments: Any, thought: str, extra: Mapping[str, Any]) -> None:
        """Take a tool call as the next step.

        name, arguments: of the call. thought: before it. extra: as `step_columns`. Raises ValueError for a text that is
        too long.
        """
        self.act(*read_call(name, arguments, self.size), thought, extra)

    def say(self, said: str, thought: str, extra: Mapping[str, Any]) -> None:
        """Take a turn without a tool call as the next step, which has no action that can be learnt.

        said: its text. thought: before it. extra: as `step_columns`. Raises as `act`.
        """
        why = extra.get("parse_error")
        self.act(said, ParseError(why if isinstance(why, str) and why else _NO_CALL), thought, extra)

    def act(self, said: str, action: Action | ParseError, thought: str, extra: Mapping[str, Any]) -> None:
        """Take an action as the next step.

        said: its text. thought: before it. extra: as `step_columns`. Raises ValueError for a text that is too long.
        """
        if long := next((one for one in (said, thought) if len(one) > MAX_CHARACTERS), ""):
            raise ValueError(f"step {len(self.steps)}: a text of {len(long)} characters, at most {MAX_CHARACTERS}")
        if self._text is None and not self.screens and isinstance(action, _FUNCTIONS):
            self._text = ""  # an agent without a screen reads what its functions return
        seen = self._screen or (NO_SCREEN if self._text is None else "text")
        step = demonstration.make_demonstrated_step(action, said, seen, thought)
        text = step.observation if self._text is None else self._text
        result = extra.get("tool_result") if isinstance(extra.get("tool_result"), str) else ""
        slip = extra.get("misclick") is True
        self.steps.append(replace(step, screen=self._screen, slip=slip, observation=text, result=result))
        self._screen, self._text = NO_SCREEN, None

    def hear_result(self, text: str) -> None:
        """Take a text as part of what the last step returned. Raises ValueError where there is no step."""
        if not self.steps:
            raise ValueError("something is returned before the first step")
        step = self.steps[-1]
        self.steps[-1] = replace(step, result=f"{step.result}\n{text}" if step.result else text)

    def finish(self, score: float | None, extra: Mapping[str, Any], agent: str, id_: str, **told: Any) -> Demonstration:
        """Make the demonstration of all that was taken.

        score: 0 to 1; None where it is not said. extra: as `trajectory_columns`. agent: who acted. id_: of the source.
        told: further fields of `Demonstration`. Raises ValueError where there is no instruction or step, or the score
        is none.
        """
        if self.instruction is None or len(self.instruction) > MAX_CHARACTERS:
            raise ValueError(f"its instruction is missing, or longer than {MAX_CHARACTERS} characters")
        if not self.steps:
            raise ValueError("it has no actions")
        if score is not None and not 0 <= score <= 1:
            raise ValueError(f"not a score from 0 to 1: {score}")
        author = "human" if extra.get("author") == "human" else "model"
        facts = {"author": author, "agent": agent[:MAX_CHARACTERS], "result": score}
        return Demonstration(
            id=act.replace_surrogates(id_),  # messages name it
            instruction=self.instruction,
            template="trace",
            completed=None if score is None else score == 1,
            steps=tuple(self.steps),
            facts={name: value for name, value in facts.items() if value not in (None, "")},
            screens={name: self.screens[name] for step in self.steps if (name := step.screen)},
            **told,
        )


def read_picture(folder: Path, name: str) -> bytes:
    """Read the picture file that a trace names.

    folder: of the trace. name: path of the picture there. Raises ValueError where that leads out of the folder, and for
    a file that is missing or too large.
    """
    root = folder.resolve()
    path = (root / name).resolve() if name and "\0" not in name else root
    if "://" in name or not path.is_relative_to(root) or path == root:
        raise ValueError(f"{name[:80]!r} is no file below its folder")
    if not path.is_file():
        raise ValueError(f"its screen {name[:80]} is not there")
    if path.stat().st_size > MAX_SCREEN_BYTES:
        raise ValueError(f"its screen {name[:80]} is larger than {MAX_SCREEN_BYTES // 2**20} MiB")
    return path.read_bytes()


def read_data_uri(uri: str) -> bytes:
    """Read the picture in a data URI. Raises ValueError for another address, and for one that is too large."""
    head, _, data = uri.partition(",")
    if not head.startswith("data:image/") or not head.endswith(";base64"):
        raise ValueError(f"a screen is no data URI of an image: {uri[:40]!r}")
    if len(data) > MAX_SCREEN_BYTES * 4 // 3:
        raise ValueError(f"a screen is larger than {MAX_SCREEN_BYTES // 2**20} MiB")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("a screen is not base64") from None


def refuse_equal_names(id_: str, folder: Path) -> NoReturn:
    """Raise BadInput for a second trajectory that would take the place of the first.

    id_: what both are called. folder: that is written.
    """
    raise BadInput(f"two trajectories are called {id_[:200]}", where=folder, fix="give each an id of its own")


def folder_name(text: str) -> str:
    """Return a name that a folder may have: `text` itself where it is one, else its letters and a hash of it."""
    plain = re.sub(r"[^\w.-]+", "_", text)[:100].strip(".")
    return text if plain == text and text else f"{plain}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def read_json_file(path: Path) -> Any:
    """Read a JSON file of at most MAX_TRACE_BYTES. Raises ValueError for a larger one and for what is not JSON."""
    if path.stat().st_size > MAX_TRACE_BYTES:
        raise ValueError(f"larger than {MAX_TRACE_BYTES // 2**20} MiB")
    return parse_foreign_json(path.read_bytes())


def picture_media_type(encoded: bytes) -> str:
    """Return the media type of a picture by its first bytes; `image/png` where no other type has them."""
    known = {b"\xff\xd8\xff": "image/jpeg", b"RIFF": "image/webp", b"GIF8": "image/gif"}
    return next((name for magic, name in known.items() if encoded.startswith(magic)), "image/png")
