"""Turn a trajectory into frames: each screen with its action drawn on it."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import duckdb

from flywheel.store.catalog import database

_FINAL = """
SELECT i.bytes AS screen, i.format FROM trajectories t
    JOIN images i ON (i.iteration, i.sha256) = (t.iteration, t.final_image_sha256)
WHERE t.trajectory_id = $id LIMIT 1
"""
_ACCEPTED = """
SELECT step, annotator FROM candidates
WHERE trajectory_id = $id AND iteration = $iteration AND decision = 'accepted'
"""
_ANNOTATOR = "SELECT annotator FROM trajectories WHERE trajectory_id = $id AND iteration = $iteration LIMIT 1"
_QUOTED = re.compile(r"(?:content|key|direction)='((?:[^'\\]|\\.)*)'")


@dataclass(frozen=True)
class ReplayFrame:
    """Hold one step for display.

    screen: data URI or "". read: text of the observation; None without one. width, height: of the screen, in pixels.
    overlay: SVG over the screen. kind: name of the action. action: in a few words; raw: as the model wrote it. said:
    transcribed utterances; unsure: those of low confidence, with the confidence. error: the parse error, or "". by: who
    chose the step (`describe_authors`); None: all steps are by one author.
    """

    number: int
    screen: str
    read: str | None
    width: int
    height: int
    overlay: str
    kind: str
    action: str
    raw: str
    thought: str
    said: str
    unsure: str
    reward: float
    error: str
    by: str | None = None


@dataclass(frozen=True)
class Replay:
    """Hold one trajectory for display.

    facts: row of the macro `lineage_of`. frames: its first steps. more: number of steps after them. final: data URI of
    the screen after the last action; "" where it is not stored.
    """

    trajectory_id: str
    facts: dict[str, Any]
    frames: tuple[ReplayFrame, ...]
    more: int = 0
    final: str = ""


def load_replay(connection: duckdb.DuckDBPyConnection, trajectory_id: str, limit: int | None = None) -> Replay | None:
    """Load a trajectory with its first `limit` steps (None: all); None where there is no such trajectory.

    connection: to the catalogue. Raises as `run_query`.
    """
    found = database.query_rows(connection, "FROM lineage_of($id)", {"id": trajectory_id})
    if not found:
        return None
    steps = database.query_rows(connection, "FROM replay($id)", {"id": trajectory_id})
    columns = "step, asr_text, confidence, low_confidence"
    spoken = f"SELECT {columns} FROM utterances WHERE trajectory_id = $id ORDER BY utterance"
    said: dict[int, list[dict[str, Any]]] = {}
    for row in database.query_rows(connection, spoken, {"id": trajectory_id}):
        said.setdefault(row["step"], []).append(row)
    by = describe_authors(connection, found[0], steps)
    frames = tuple(build_frame(row, said.get(row["step"], []), by.get(row["step"])) for row in steps[:limit])
    after = database.query_rows(connection, _FINAL, {"id": trajectory_id})
    return Replay(trajectory_id, found[0], frames, len(steps) - len(frames), _data_uri(after[0]) if after else "")


def _data_uri(row: dict[str, Any]) -> str:
    """Return a row's screen as a data URI; "" where it has none."""
    if not row.get("screen"):
        return ""
    return f"data:image/{row['format'] or 'png'};base64,{base64.b64encode(row['screen']).decode()}"


def build_frame(row: dict[str, Any], said: Sequence[dict[str, Any]] = (), by: str | None = None) -> ReplayFrame:
    """Build a frame from a row of the macro `replay`. said: rows of the step's utterances. by: who chose the step."""
    width, height = row.get("width") or 224, row.get("height") or 224
    return ReplayFrame(
        number=row["step"],
        screen=_data_uri(row),
        read=row.get("observation"),
        width=width,
        height=height,
        overlay=draw_action_overlay(row, width, height),
        kind=row["action_type"] or "no action",
        action=describe_action(row),
        raw=row["raw_text"] or row["action"] or "",
        thought=row["thought"] or "",
        said=" … ".join(one["asr_text"] for one in said if one["asr_text"] and not one["low_confidence"]),
        unsure=" … ".join(f"{one['asr_text']} ({one['confidence']:.2f})" for one in said if one["low_confidence"]),
        reward=row["reward"] or 0.0,
        error=row["parse_error"] or "",
        by=by,
    )


def describe_authors(
    connection: duckdb.DuckDBPyConnection, facts: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]
) -> dict[int, str]:
    """Describe who chose each step of a trajectory, by the step's number, in a few words; {} for a single author.

    connection: to the catalogue. facts: `trajectory_id` and `iteration`. steps: rows of the table `steps`. Of an
    annotated rollout a step is a person's own, one of the model's that a person accepted, or the model's alone. Raises
    as `run_query`.
    """
    asked = {"id": facts["trajectory_id"], "iteration": facts["iteration"]}
    accepted = {row["step"]: row["annotator"] for row in database.query_rows(connection, _ACCEPTED, asked)}
    if not accepted and len({row["author"] for row in steps}) < 2:
        return {}
    (found,) = database.query_rows(connection, _ANNOTATOR, asked)

    def describe(row: Mapping[str, Any]) -> str:
        if row["author"] == "human":
            return f"by {found['annotator'] or 'a person'}"
        if who := accepted.get(row["step"]):
            return f"the model's, accepted by {who}"
        return "the model alone" if row["author"] == "model" else f"by the {row['author']}"

    return {row["step"]: describe(row) for row in steps}


def describe_action(row: dict[str, Any]) -> str:
    """Describe an action in a few words: `click at 24%, 67%`, `type "blue mug"`. row: of the table `steps`."""
    kind = (row["action_type"] or "no action").replace("_", " ")
    quoted = _QUOTED.search(row["action"] or "")
    text = quoted.group(1).replace("\\n", " ⏎").replace("\\'", "'") if quoted else ""
    if row["action_type"] == "scroll":
        return f"{kind} {text}"
    if row["action_type"] in ("hotkey", "press", "release"):
        return f"{kind} {' + '.join(text.split())}"
    if row["x2"] is not None and row["x"] is not None:
        return f"{kind} from {_format_point(row['x'], row['y'])} to {_format_point(row['x2'], row['y2'])}"
    if row["x"] is not None:
        return f"{kind} at {_format_point(row['x'], row['y'])}"
    return f"{kind} “{text}”" if text else kind


def draw_action_overlay(row: dict[str, Any], width: int, height: int) -> str:
    """Draw an action over its screen, as SVG: a marker for a click, an arrow for a drag or scroll, a badge for text.

    row: of the table `steps`. width, height: of the screen, in pixels. Keys, and a step without an action, have a badge
    too.
    """
    kind = row["action_type"]
    unit = width / 100
    drawn = ""
    if row["x"] is not None and row["y"] is not None:
        x, y = row["x"] * width, row["y"] * height
        if kind == "drag" and row["x2"] is not None:
            drawn = _draw_arrow(x, y, row["x2"] * width, row["y2"] * height, unit)
        elif kind == "scroll":
            dx, dy = {"up": (0, -1), "left": (-1, 0), "right": (1, 0)}.get(_direction(row), (0, 1))
            drawn = _draw_arrow(x - 9 * dx * unit, y - 9 * dy * unit, x + 9 * dx * unit, y + 9 * dy * unit, unit)
        else:
            drawn = _draw_target(x, y, unit, rings={"left_double": 2, "left_triple": 3}.get(kind, 1))
            if kind in ("right_single", "hover"):
                drawn += _draw_badge(kind.removesuffix("_single"), x, y - 9 * unit, width, unit)
    elif kind:
        drawn = _draw_badge(describe_action(row), width / 2, height - 7 * unit, width, unit)
    elif row["parse_error"]:
        drawn = _draw_badge("no action", width / 2, height - 7 * unit, width, unit, tone="bad")
    return f'<svg class="overlay" viewBox="0 0 {width} {height}" aria-hidden="true">{drawn}</svg>'


def _direction(row: dict[str, Any]) -> str:
    quoted = re.search(r"direction='(\w+)'", row["action"] or "")
    return quoted.group(1) if quoted else "down"


def _format_point(x: float, y: float | None) -> str:
    return f"{100 * x:.0f}%, {100 * (y or 0):.0f}%"


def _draw_target(x: float, y: float, unit: float, rings: int) -> str:
    circles = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{(5 + 3.2 * n) * unit:.1f}"/>' for n in range(rings))
    return (
        f'<g class="mark" stroke-width="{1.1 * unit:.1f}">{circles}</g>'
        f'<circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="{1.2 * unit:.1f}"/>'
    )


def _draw_arrow(x: float, y: float, x2: float, y2: float, unit: float) -> str:
    length = max(((x2 - x) ** 2 + (y2 - y) ** 2) ** 0.5, 1e-6)
    ux, uy = (x2 - x) / length, (y2 - y) / length
    head = 5 * unit
    left = (x2 - head * ux - 0.6 * head * uy, y2 - head * uy + 0.6 * head * ux)
    right = (x2 - head * ux + 0.6 * head * uy, y2 - head * uy - 0.6 * head * ux)
    tip = f"M{left[0]:.1f} {left[1]:.1f}L{x2:.1f} {y2:.1f}L{right[0]:.1f} {right[1]:.1f}"
    return (
        f'<path class="mark" stroke-width="{1.8 * unit:.1f}" d="M{x:.1f} {y:.1f}L{x2:.1f} {y2:.1f}{tip}"/>'
        f'<circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="{1.8 * unit:.1f}"/>'
    )


def _draw_badge(text: str, x: float, y: float, width: float, unit: float, tone: str = "") -> str:
    text = text if len(text) <= 26 else text[:25] + "…"
    size = 5.4 * unit
    wide = min(0.62 * size * len(text) + 7 * unit, width - 2 * unit)
    left = min(max(x - wide / 2, unit), width - wide - unit)
    box = f'x="{left:.1f}" y="{y - 5 * unit:.1f}" width="{wide:.1f}" height="{10 * unit:.1f}" rx="{2.5 * unit:.1f}"'
    words = f'x="{left + wide / 2:.1f}" y="{y + 0.36 * size:.1f}" font-size="{size:.1f}" text-anchor="middle"'
    return f'<g class="badge {tone}"><rect {box}/><text {words}>{escape(text)}</text></g>'
