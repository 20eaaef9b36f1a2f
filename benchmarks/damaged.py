"""Damaged inputs of others: records to import, recorded sessions, manifests of pages, pages with them. Each is taken in
or refused.

Each input is a sound one with one to three faults, by a seed: a field of another type, missing, doubled, or of extreme
size; of files also a line or a row that is missing, doubled or cut off; of pages also scripts that throw, lead away or
never end. It is read in this process as `flywheel data import`, `ingest` and `flywheel env page` read it; page_try
opens, resets, reads and plays the page, as `flywheel env page try --no-check` does. A case prints how many were
accepted, how many were refused in one line, and three counts that must be 0: tracebacks (an error of no class of ours,
or of several lines), hangs (over --seconds), silent losses (accepted, and not what the input says; or a sound neighbour
that is not there).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import re
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from bench_case import BenchCase, emit_case, exit_code
from PIL import Image

from flywheel.agent import actions as act
from flywheel.config import SandboxSettings, Settings
from flywheel.envs.browser import page_check
from flywheel.envs.browser.pages.manifest import load_page_manifest
from flywheel.envs.registry import get_task_suite
from flywheel.envs.tasks.drawing import make_task, task_to_row
from flywheel.envs.tasks.page_tasks import make_page_task
from flywheel.recordings.ingest import ingest_session
from flywheel.recordings.session import ScreenFrame, SessionMeta, SessionOutcome, action_to_events, write_session
from flywheel.store.images import image_digest
from flywheel.store.interop import agentnet_tool as tool
from flywheel.store.interop.agentnet import read_agentnet
from flywheel.store.interop.agentnet_bench import read_agentnet_bench
from flywheel.store.interop.demonstration import RefusedRecord, save_demonstration
from flywheel.store.interop.mind2web import read_mind2web
from flywheel.store.interop.openadapt import read_openadapt
from flywheel.store.interop.osworld import read_osworld
from flywheel.utils.errors import FlywheelError

INPUTS = 500  # of each kind
TWICE = "\0twice"  # behind the name of a field that is written a second time
DEEP = "\0deep"  # stands for a list in a list, and so on
SETTINGS = Settings()


class Refused(Exception):
    """The input was refused, with the reason."""


class Hang(BaseException):
    """It took longer than it may."""


# Faults of JSON values.

_OTHER: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 0.5, -0.5, 1e300, 10**30, -(10**30), "", " ", "5.0", "false", "NaN", "x" * 30_000,
    "\u2028", "\x85", "\ufeff", "\x00", "\ud800", "../../../etc/passwd", [], {}, [[]], [None], {"a": None},
    [1] * 3000, ["x"] * 3000, float("nan"), float("inf"), DEEP,
)  # fmt: skip


def places(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """Every place of a JSON value, the value itself left out."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def damage_value(value: Any, rng: random.Random) -> None:
    """Damage one place of a JSON value, in place."""
    found = list(places(value))
    if not found:
        return
    path = rng.choice(found)
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    key, how = path[-1], rng.randrange(8)
    if how < 4:
        holder[key] = deepcopy(rng.choice(_OTHER))
    elif how == 4:
        del holder[key]
    elif how == 5 and isinstance(holder, dict):
        holder[f"{key}{TWICE}"] = deepcopy(rng.choice((holder[key], *_OTHER)))
    elif isinstance(holder, list):
        holder.insert(rng.randrange(len(holder) + 1), deepcopy(holder[key]))
    else:
        holder[rng.choice(("more", str(key).upper(), f"{key}s"))] = deepcopy(holder[key])


def write_json_text(value: Any) -> bytes:
    """Write a value with its doubled and deep fields as JSON, half surrogates as escapes."""
    text = json.dumps(value).replace(json.dumps(TWICE)[1:-1], "")
    return text.replace(json.dumps(DEEP), "[" * 50_000 + "]" * 50_000).encode()


def damage_bytes(data: bytes, rng: random.Random) -> bytes:
    """Cut bytes off, change one, or add some."""
    at, how = rng.randrange(len(data) + 1), rng.randrange(4)
    if how == 0:
        return data[:at]
    if how == 1 and at < len(data):
        return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
    return data + b"\n\n" if how == 2 else b"\xef\xbb\xbf" + data


def picture(colour: str, size: tuple[int, int] = (64, 48), form: str = "png") -> bytes:
    with tempfile.SpooledTemporaryFile() as file:
        Image.new("RGB", size, colour).save(file, form)
        file.seek(0)
        return file.read()


SCREENS = {name: picture(name) for name in ("red", "green", "blue", "white")}
LARGE = picture("white", (5000, 40))


def ingested(folder: Path, recognizer: Any = None) -> Any:
    """What `ingest` makes of a folder; Refused where it sets it aside."""
    made = ingest_session(folder, recognizer, SETTINGS, 1)
    if made.trajectory.status == "invalid":
        raise Refused(made.trajectory.error)
    return made


# Records to import: three trajectories, one of them damaged.

CODES = (
    "pyautogui.click(x=0.5, y=0.25)", "pyautogui.moveTo(x=0.1, y=0.2)\npyautogui.scroll(-3)",
    "pyautogui.write(message='two words')\npyautogui.press('enter')", "computer.terminate(status='success')",
)  # fmt: skip


def agentnet(folder: Path, rng: random.Random) -> None:
    """AgentNet's JSON lines and their folder of screens."""
    records, images = [], folder / "images"
    for number in range(3):
        (images / f"t{number}").mkdir(parents=True)
        for k, colour in enumerate(("red", "green", "blue", "white")):
            (images / f"t{number}" / f"{k}.png").write_bytes(SCREENS[colour])
        steps = [
            {"index": k, "image": f"t{number}/{k}.png", "value": {"thought": f"I do {k}.", "code": code}}
            for k, code in enumerate(CODES)
        ]
        told = {"task_id": f"task-{number}", "instruction": "sort it", "task_completed": True, "task_difficulty": 3}
        records.append({**told, "traj": steps})
    chosen = rng.randrange(3)
    for _ in range(rng.randint(1, 3)):
        damage_value(records[chosen], rng)
    lines = [write_json_text(record) for record in records]
    if rng.random() < 0.2:
        lines[chosen] = damage_bytes(lines[chosen], rng)
    elif rng.random() < 0.1:
        rng.choice(list((images / f"t{chosen}").glob("*.png"))).write_bytes(
            rng.choice((b"", b"none", SCREENS["red"][:40], LARGE))
        )
    (folder / "data.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    told = list(read_agentnet(folder / "data.jsonl", images))
    wrote = [line for line in (folder / "data.jsonl").read_bytes().split(b"\n") if line.strip(b" \t\r\n\xef\xbb\xbf")]
    lost(len(told) != len(wrote), f"{len(wrote)} records, {len(told)} told")
    _imported(
        folder,
        told,
        [partial(_same_agentnet, line, images) for line in wrote],
        {f"task-{number}" for number in range(3) if number != chosen},
    )


def _imported(folder: Path, told: Sequence[Any], checks: Sequence[Callable], sound: set[str]) -> None:
    """Save and ingest what was read. sound: ids of the records that are not damaged. Raises Refused with the reason of
    the first that is refused."""
    refused = ""
    for one, check in zip(told, checks, strict=True):
        try:
            if isinstance(one, RefusedRecord):
                raise Refused(one.why)
            save_demonstration(one, folder / "recordings")
            check(one, ingested(folder / "recordings" / one.name))
            sound.discard(one.id)
        except (FlywheelError, Refused) as error:
            refused = refused or str(error) or "\n"
    lost(sound, f"sound neighbours: {refused}")
    if refused:
        raise Refused(refused)


def lost(condition: object, what: str) -> None:
    if condition:
        raise AssertionError(what)


def _same_agentnet(line: bytes, images: Path, one: Any, made: Any) -> None:
    record = json.loads(line.decode("utf-8-sig"))
    steps = sorted(record["traj"], key=lambda step: step["index"])
    lost(one.id != str(record["task_id"]), "the id")
    lost(one.instruction != (record.get("instruction") or record.get("natural_language_task") or ""), "the instruction")
    lost(one.completed is not record.get("task_completed"), "done or not")
    lost([step.action for step in one.steps] != [step["value"]["code"] for step in steps], "codes")
    lost([step.thought for step in one.steps] != [step["value"].get("thought") or "" for step in steps], "thoughts")
    seen = [image_digest((images / step["image"]).read_bytes()) for step in steps]
    lost([step.screen for step in one.steps] != seen, "screens")
    numbers = [step["index"] for step in steps]
    holes = sorted(set(range(numbers[0], numbers[-1])) - set(numbers))[:100]
    lost(one.facts.get("missing_steps", []) != holes, "missing steps")
    _same_steps(one, made)


def _same_steps(one: Any, made: Any) -> None:
    lost(len(made.steps) != len(one.steps), "steps")
    lost([step.image_sha256 or "" for step in made.steps] != [step.screen for step in one.steps], "screens of steps")
    for step, said in zip(made.steps, one.steps, strict=True):
        lost(not (step.action_type or step.parse_error), "a step that is neither learnt nor told")
        lost(step.action_type == "type" and not re.search(r"write|type\(", said.action), "a text of nowhere")


def three_folders(root: Path, write: Callable[[Path, int], None]) -> list[Path]:
    """Three records, a folder each."""
    for number in range(3):
        (root / f"t{number}").mkdir(parents=True)
        write(root / f"t{number}", number)
    return [root / f"t{number}" for number in range(3)]


def damage_file(path: Path, rng: random.Random) -> None:
    """Damage a file of JSON, or of JSON lines: one to three faults in values, or bytes or a line."""
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    how = rng.randrange(8)
    if how == 0:
        path.write_bytes(damage_bytes(path.read_bytes(), rng))
    elif how == 1:
        path.unlink()
    else:
        for _ in range(rng.randint(1, 3)):
            damage_value(lines, rng)
        path.write_bytes(b"\n".join(map(write_json_text, lines)) + b"\n")


def osworld(folder: Path, rng: random.Random) -> None:
    """OSWorld's result folders, with their screens, scores and task configs."""

    def write(task: Path, number: int) -> None:
        names = [f"step_{k}_{number}.png" for k in range(1, 5)]
        for name, colour in zip(["step_0.png", *names], (*SCREENS, "red"), strict=True):
            (task / name).write_bytes(SCREENS[colour])
        actions = (
            "pyautogui.click(32, 12)", {"action_type": "CLICK", "parameters": {"x": 16, "y": 24, "num_clicks": 2}},
            {"action_type": "tool_use", "command": "pyautogui.write('two words')\npyautogui.press('enter')"}, "DONE",
        )  # fmt: skip
        lines = [
            {"step_num": k, "action_timestamp": f"{number}{k}", "action": action, "response": f"Thought: I do {k}.",
             "reward": 0, "done": False, "info": {}, "screenshot_file": name}
            for k, (action, name) in enumerate(zip(actions, names, strict=True), 1)
        ]  # fmt: skip
        (task / "traj.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
        (task / "result.txt").write_text("1.0\n")
        (task / f"{task.name}.json").write_text(json.dumps({"id": task.name, "instruction": "sort it", "config": []}))

    folders = three_folders(folder / "results" / "gpt" / "os", write)
    chosen = rng.choice(folders)
    name = rng.choice(["traj.jsonl"] * 4 + ["result.txt", "step_0.png", "step_2_1.png", f"{chosen.name}.json"])
    path = chosen / name if (chosen / name).is_file() else chosen / "traj.jsonl"
    if path.suffix == ".png":
        path.write_bytes(rng.choice((b"", b"none", SCREENS["red"][:40], LARGE)))
    elif path.suffix == ".txt":
        path.write_text(rng.choice(("", "2", "nan", "x" * 9, "0.5", "-1", "True")))
    else:
        damage_file(path, rng)
    found = [one for one in folders if (one / "traj.jsonl").is_file()]
    told = list(read_osworld([folder / "results"]))
    lost(len(told) != len(found), f"{len(found)} folders, {len(told)} told")
    sound = {f"gpt/os/{one.name}@{one.name[1:]}1" for one in folders if one != chosen}
    _imported(folder, told, [partial(_same_osworld, one) for one in found], sound)


def _same_osworld(task: Path, one: Any, made: Any) -> None:
    lines = [json.loads(line) for line in (task / "traj.jsonl").read_text("utf-8-sig").splitlines() if line.strip()]
    acted = [line for line in lines if line.get("action") is not None]
    lost(len(one.steps) != len(acted), "steps")
    score = float((task / "result.txt").read_text().replace("True", "1"))
    lost(one.completed is not (score == 1) or one.facts["result"] != score, "done or not")
    config = task / f"{task.name}.json"
    said = next((line["instruction"] for line in lines if line.get("instruction")), None)
    lost(one.instruction != (said or json.loads(config.read_text("utf-8-sig"))["instruction"]), "the instruction")
    named = ["step_0.png", *(line.get("screenshot_file") for line in acted)]
    for number, step in enumerate(one.steps):
        kept = named[number] is not None and named[number] not in named[number + 1 :]
        seen = image_digest((task / named[number]).read_bytes()) if kept else ""
        lost(step.screen != seen, f"the screen of step {number}")
        lost(not seen and not step.fault, "a step is learnt without its screen")
    _same_steps(one, made)


def agentnet_bench(folder: Path, rng: random.Random) -> None:
    """AgentNetBench's JSON files and their screens."""
    right = (
        ("click", {"position": {"x": 0.25, "y": 0.5}}), ("write", {"text": "two words\n"}),
        ("hotkey", {"keys": ["ctrl", "c"]}), ("terminate", {"status": "success"}),
    )  # fmt: skip

    def write(task: Path, number: int) -> None:
        for k, colour in enumerate(SCREENS):
            (task / f"{number}_{k}.png").write_bytes(SCREENS[colour])
        steps = [
            {"step_num": k, "image": f"{number}_{k}.png", "inner_monologue": {"thought": f"I do {k}."},
             "ground_truth_actions": [{"type": kind, "params": params, "metadata": {}}]}
            for k, (kind, params) in enumerate(right)
        ]  # fmt: skip
        told = {"task_id": f"task-{number}", "high_level_task_description": "sort it", "steps": steps}
        (task / f"{number}.json").write_text(json.dumps(told))

    folders = three_folders(folder / "bench", write)
    chosen = rng.randrange(3)
    files = [one / f"{number}.json" for number, one in enumerate(folders)]
    damage_file(files[chosen], rng)
    files = [file for file in files if file.is_file()]
    told = list(read_agentnet_bench(files, folder / "bench"))
    lost(len(told) != len(files), f"{len(files)} files, {len(told)} told")
    sound = {f"task-{number}" for number in range(3) if number != chosen}
    _imported(folder, told, [partial(_same_bench, file) for file in files], sound)


def _same_bench(file: Path, one: Any, made: Any) -> None:
    record = json.loads(file.read_text("utf-8-sig"))
    steps = record["steps"]
    numbers = [k if step.get("step_num") is None else step["step_num"] for k, step in enumerate(steps)]
    steps = [step for _, step in sorted(zip(numbers, steps, strict=True), key=lambda pair: pair[0])]
    lost((one.id, one.instruction) != (record["task_id"], record["high_level_task_description"]), "what it is")
    lost(one.split != "eval", "an evaluation task")
    thoughts = [(step.get("inner_monologue") or {}).get("thought") or "" for step in steps]
    lost([step.thought for step in one.steps] != thoughts, "thoughts")
    seen = [image_digest(next(file.parent.parent.rglob(step["image"])).read_bytes()) for step in steps]
    lost([step.screen for step in one.steps] != seen, "screens")
    for step, said in zip(one.steps, steps, strict=True):
        for right in said["ground_truth_actions"]:
            lost(f".{right['type']}(" not in step.action, "an action that counts as right")
    _same_steps(one, made)


_CLICK = {"action": "click", "x": 32, "y": 24, "button": "left"}
_HAND = (
    {**_CLICK, "pressed": True}, {**_CLICK, "pressed": False},
    *({"action": kind, "name": name} for name in "ab" for kind in ("press", "release")),
    {"action": "press", "name": "ctrl_l"}, {"action": "press", "name": "C"}, {"action": "release", "name": "C"},
    {"action": "release", "name": "ctrl_l"}, {"action": "scroll", "x": 32, "y": 24, "dx": 0, "dy": -1},
    {**_CLICK, "pressed": True}, {**_CLICK, "x": 50, "pressed": False},
)  # fmt: skip


def _frames(path: Path, times: Sequence[float]) -> list[bytes]:
    return [SCREENS["red"]] * len(times)


def agentnet_tool(folder: Path, rng: random.Random) -> None:
    """Sessions of AgentNetTool; the video itself is not read."""

    def write(session: Path, number: int) -> None:
        lines = [{"time_stamp": 100 + k, **event, "event_idx": k} for k, event in enumerate(_HAND)]
        (session / "events.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
        told = {"system": "Linux", "screen_width": 64, "screen_height": 48, "video_start_timestamp": 99.0}
        (session / "metadata.json").write_text(json.dumps(told))
        (session / "task_name.json").write_text(json.dumps({"task_name": "sort it", "description": ""}))
        (session / "video.mp4").write_bytes(b"")

    folders = three_folders(folder / "sessions", write)
    chosen = rng.choice(folders)
    damage_file(chosen / rng.choice(("events.jsonl",) * 4 + ("metadata.json", "task_name.json")), rng)
    found = [one for one in folders if (one / "events.jsonl").is_file()]
    with mock.patch.object(tool, "read_frames", _frames):
        told = list(tool.read_agentnet_tool([folder / "sessions"]))
    lost(len(told) != len(found), f"{len(found)} sessions, {len(told)} told")
    checks = [partial(_same_tool, one) for one in found]
    _imported(folder, told, checks, {one.name for one in folders if one != chosen})


def _same_tool(session: Path, one: Any, made: Any) -> None:
    task = json.loads((session / "task_name.json").read_text("utf-8-sig"))
    lost(one.instruction != task["task_name"], "the instruction")
    lines = (session / "events.jsonl").read_text("utf-8-sig").splitlines()
    _same_hand([json.loads(line) for line in lines if line.strip()], one, made)


def _same_hand(events: Sequence[dict], one: Any, made: Any) -> None:
    """Whether each press of a button is in a step, and what was typed is typed, where it was."""
    said = [step.action for step in one.steps]
    pressed = sum(event["action"] == "click" and bool(event["pressed"]) for event in events)
    hits = re.compile(
        r"(\d+) times .* click |(left_double)|^(?:click|right_single|drag)\(|( button goes down|click at|drag at)"
    )
    found = [hits.search(text) for text in said]
    lost(pressed != sum(int(hit[1] or 0) or 1 + bool(hit[2]) for hit in found if hit), f"{pressed} buttons: {said}")
    held = any(event["action"] == "press" and len(str(event.get("name"))) > 1 for event in events)
    typed = sorted(event["name"] for event in events if event["action"] == "press" and len(event["name"]) == 1)
    if not held:
        wrote = "".join(step.action[14:-2] for step in made.steps if step.action_type == "type")
        lost(len(typed) != len(wrote.replace("\\", "")), f"{typed} typed: {wrote}")
    _same_steps(one, made)


def openadapt(folder: Path, rng: random.Random) -> None:
    """Captures of openadapt-capture, with pictures in their databases."""

    def write(session: Path, number: int) -> None:
        columns = {
            "recording": "timestamp, monitor_width, monitor_height, platform, task_description, config",
            "action_event": "id, name, timestamp, source_ordinal, mouse_x, mouse_y, mouse_dx, mouse_dy, "
            "mouse_button_name, mouse_pressed, key_name, key_char",
            "screenshot": "timestamp, png_data",
        }
        rows: dict[str, list[tuple]] = {
            "recording": [(100.0 + number, 64, 48, "linux", "sort it", '{"capture_desktop": {"viewport": [64, 48]}}')],
            "screenshot": [(99.0, SCREENS["red"])],
            "action_event": [
                (k, event["action"], 100.0 + k, k, event.get("x"), event.get("y"), event.get("dx"), event.get("dy"),
                 event.get("button"), event.get("pressed"), *_key(event.get("name")))
                for k, event in enumerate(_HAND, 1)
            ],
        }  # fmt: skip
        if number == chosen:
            table = rng.choice([*["action_event"] * 4, "recording", "screenshot"])
            for _ in range(rng.randint(1, 3)):
                row = rng.randrange(len(rows[table]))
                values = [*rows[table][row]]
                values[rng.randrange(len(values))] = rng.choice(
                    (None, 0, 1, -1, 0.5, 1e300, "", "x" * 30_000, "ctrl", "click", b"\xff", "left", 10**15)
                )
                rows[table][row] = tuple(values)
        with closing(sqlite3.connect(session / "recording.db")) as database:
            for table, names in columns.items():
                database.execute(f"CREATE TABLE {table} ({names})")
                marks = ", ".join("?" * len(rows[table][0]))
                database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows[table])
            database.commit()
        if number == chosen and rng.random() < 0.15:
            path = session / "recording.db"
            path.write_bytes(damage_bytes(path.read_bytes(), rng))

    chosen = rng.randrange(3)
    folders = three_folders(folder / "captures", write)
    told = list(read_openadapt([folder / "captures"]))
    lost(len(told) != 3, f"3 captures, {len(told)} told")
    sound = {f"t{number}@{100.0 + number}" for number in range(3) if number != chosen}
    _imported(folder, told, [partial(_same_capture, one) for one in folders], sound)


def _key(name: str | None) -> tuple[str | None, str | None]:
    return (None, name) if name and len(name) == 1 else (name, None)


def _same_capture(session: Path, one: Any, made: Any) -> None:
    with closing(sqlite3.connect(session / "recording.db")) as database:
        database.row_factory = sqlite3.Row
        (recording,) = database.execute("SELECT * FROM recording")
        rows = [dict(row) for row in database.execute("SELECT * FROM action_event")]
    lost(one.instruction != (recording["task_description"] or ""), "the instruction")
    events = [
        {"action": row["name"], "pressed": row["mouse_pressed"], "name": row["key_name"] or row["key_char"] or ""}
        for row in rows
    ]
    _same_hand(events, one, made)


def mind2web(folder: Path, rng: random.Random) -> None:
    """Rows of Multimodal-Mind2Web: three tasks of three actions."""
    rows = []
    for number in range(3):
        for k, (op, value) in enumerate((("CLICK", ""), ("TYPE", "two words"), ("SELECT", "blue"))):
            box = {"bounding_box_rect": "10,10,20,8"}
            target = {"attributes": json.dumps(box), "is_original_target": True, "is_top_level_target": True}
            rows.append({
                "annotation_id": f"task-{number}", "confirmed_task": f"sort {number}", "website": "shop",
                "domain": "Shopping", "subdomain": "Goods", "target_action_index": str(k),
                "operation": json.dumps({"op": op, "original_op": op, "value": value}),
                "pos_candidates": [json.dumps(target)], "target_action_reprs": f"[button] Go -> {op}",
                "screenshot": {"bytes": SCREENS["red" if k else "blue"], "path": f"{k}.png"},
            })  # fmt: skip
    chosen = rng.choice(rows)
    sound = {f"task-{number}" for number in range(3)} - {chosen["annotation_id"]}
    for _ in range(rng.randint(1, 2)):
        name = rng.choice([*chosen])
        how = rng.randrange(6)
        if name in ("operation", "pos_candidates") and how < 4:
            value = json.loads(chosen["operation"] if name == "operation" else chosen["pos_candidates"][0])
            damage_value(value, rng)
            text = write_json_text(value).decode()
            chosen[name] = text if name == "operation" else [text]
        elif name == "screenshot":
            data = rng.choice((None, b"", b"none", LARGE, SCREENS["red"][:60]))
            chosen[name] = rng.choice((None, {"bytes": data, "path": ""}, {"bytes": data, "path": None}))
        elif how == 4:
            rows.append(dict(chosen))
        elif how == 5 and chosen in rows:
            rows.remove(chosen)
        elif name == "pos_candidates":
            chosen[name] = rng.choice((None, [], ["{"], ["[]"], ["null"], [chosen[name][0]] * 2))
        else:
            chosen[name] = rng.choice((None, "", "x" * 30_000, "-1", "1e9", "task-0", "\u2028", "Go", "2"))
    path = folder / "train-00000-of-00001.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    told = list(read_mind2web([path]))
    names = list(dict.fromkeys(row["annotation_id"] for row in rows))
    lost(len(told) != len(names), f"{len(names)} tasks, {len(told)} told")
    checks = [partial(_same_mind2web, [row for row in rows if row["annotation_id"] == name]) for name in names]
    _imported(folder, told, checks, sound - {chosen["annotation_id"]})


def _same_mind2web(rows: list[dict], one: Any, made: Any) -> None:
    rows = sorted(rows, key=lambda row: int(row["target_action_index"]))
    numbers = [int(row["target_action_index"]) for row in rows]
    lost(len(set(numbers)) < len(numbers), "an action that comes twice")
    lost(any(row["confirmed_task"] != one.instruction for row in rows), "the instruction")
    lost(one.template != "/".join(rows[0][name] for name in ("domain", "subdomain", "website")), "where it was done")
    operations = [json.loads(row["operation"]) for row in rows]
    typed = [told.get("value") or "" for told in operations if told["op"] == "TYPE"]
    placed = [step for step in one.steps if "no place" not in step.fault]
    wrote = [step.content for step in map(_read_back, one.steps) if isinstance(step, act.Type)]
    lost(len(placed) == len(one.steps) and wrote != typed, "what was typed")
    seen = {image_digest(row["screenshot"]["bytes"]) for row in rows}
    lost({step.screen for step in one.steps} != seen, "screens")
    holes = sorted(set(range(numbers[0], numbers[-1])) - set(numbers))[:100]
    lost(one.facts.get("missing_steps", []) != holes, "missing actions")
    _same_steps(one, made)


def _read_back(step: Any) -> Any:
    from flywheel.agent.parsing.parser import parse_demonstrated_action
    from flywheel.store.interop.demonstration import DEMONSTRATION_GRAMMAR

    return parse_demonstrated_action(step.action, DEMONSTRATION_GRAMMAR)


# Recorded sessions.


class Deaf:
    """Hears nothing: what is said is not what is damaged here."""

    name, whole = "deaf", True

    def recognize(self, samples, rate, deadline_s=60.0):
        return ()


def sound_session(folder: Path) -> Path:
    """Write the session that is damaged: five events, four screens, four seconds of a room."""
    import numpy as np

    rng = np.random.default_rng(7)
    room = rng.normal(0, 0.01, 64_000).astype(np.float32)
    task = task_to_row(make_task(get_task_suite("tiles"), "clear", 1, 2**31, "train"))
    spot = act.Point(0.5, 0.25)
    done = (act.Click(spot), act.Drag(spot, act.Point(0.1, 0.1)), act.Type("two words"), act.Finished("done"))
    events = [event for k, one in enumerate(done) for event in action_to_events(one, 0.5 + k, k, "a tile")]
    screens = [
        ScreenFrame(float(k), image_digest(SCREENS[name]), "/", 64, 48, "png", SCREENS[name])
        for k, name in enumerate(("red", "green", "blue", "white"))
    ]
    outcome = SessionOutcome(terminated=True, reward=1.0, state={"won": True})
    meta = SessionMeta(
        session=folder.name, annotator="ann", level="expert", task=task, width=64, height=48, audio="speech.wav",
        sync_s=0.0, started_at="2026-11-02T09:00:00+00:00", seconds=4.0, outcome=outcome,
    )  # fmt: skip
    write_session(folder, meta, events, screens, room)
    return folder


def session(sound: Path, folder: Path, rng: random.Random) -> None:
    """A session with damage in one of its files."""
    path = Path(shutil.copytree(sound, folder / sound.name))
    meta, events, screens = path / "session.json", path / "events.jsonl", path / "screens.parquet"
    for _ in range(rng.randint(1, 2)):
        how = rng.randrange(20)
        if events.is_dir():
            break
        if how < 7 and meta.is_file():
            _damage_json(meta, rng)
        elif how < 14 and events.is_file():
            _damage_lines(events, rng)
        elif how < 17 and screens.is_file():
            _damage_rows(screens, rng)
        elif how == 17:
            rng.choice(list(path.iterdir())).unlink()
            (path / "speech.wav").touch()
        elif how == 18:
            chosen = rng.choice(list(path.iterdir()))
            chosen.write_bytes(damage_bytes(chosen.read_bytes(), rng))
        else:
            for name in ("events.jsonl", "speech.wav"):
                if rng.random() < 0.3:
                    (path / name).unlink(missing_ok=True)
                    (path / name).mkdir()
    made = ingested(path, Deaf())
    told = json.loads(meta.read_text(encoding="utf-8-sig"))
    lines = [json.loads(line) for line in events.read_text(encoding="utf-8-sig").split("\n") if line.strip()]
    rows = {row["screen"]: row["sha256"] for row in pq.read_table(screens).to_pylist()}
    lost(len(made.event_rows) != len(lines), "events")
    for row, line in zip(made.event_rows, lines, strict=True):
        for name in ("time_s", "kind", "x", "y", "key", "text"):
            lost((row[name] or "") != (line.get(name) or ""), f"the event's {name}")
    begun = [line["screen"] for line in lines if line["kind"] != "drop" and line.get("screen") is not None]
    lost([step.image_sha256 for step in made.steps] != [rows[number] for number in begun], "screens")
    late = {"source": "templates", "verifier_kill_rate": None}  # columns that earlier sessions lack
    task = {**late, **told["task"], "params": json.loads(told["task"]["params"])}
    lost({**made.task_row, "params": json.loads(made.task_row["params"])} !=
         {name: task[name] for name in made.task_row}, "the task")  # fmt: skip
    outcome = told["outcome"]
    lost(made.trajectory.reward != outcome["reward"], "the reward")
    lost((made.trajectory.status == "completed") is not outcome["terminated"], "the end")
    lost(json.loads(made.trajectory.final_state) != outcome["state"], "the state")


def _damage_json(path: Path, rng: random.Random) -> None:
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError):  # damaged before
        return
    if isinstance(value, dict):
        damage_value(value, rng)
        path.write_bytes(write_json_text(value))


def _damage_lines(path: Path, rng: random.Random) -> None:
    lines = [line for line in path.read_bytes().split(b"\n") if line.strip()]
    if not lines:
        return
    at, how = rng.randrange(len(lines)), rng.randrange(8)
    if how == 0:
        lines.insert(at, lines[rng.randrange(len(lines))])
    elif how == 1:
        del lines[at]
    elif how == 2:
        lines.insert(at, rng.choice((b"", b"  ", b"null", b"[]", b"{}", b'"x"', b"\r")))
    else:
        try:
            value = json.loads(lines[at])
        except (ValueError, RecursionError):
            return
        if isinstance(value, dict):
            damage_value(value, rng)
            lines[at] = write_json_text(value)
    ending = rng.choice((b"\n", b"\n", b"\r\n", b"\n\n"))
    path.write_bytes(ending.join(lines) + ending)


def _damage_rows(path: Path, rng: random.Random) -> None:
    table = pq.read_table(path)
    rows = table.to_pylist()
    at, how = rng.randrange(len(rows)), rng.randrange(6)
    if how == 0:
        rows.append(
            {**rows[at], **rng.choice(({}, {"bytes": SCREENS["white"], "sha256": image_digest(SCREENS["white"])}))}
        )
    elif how == 1:
        del rows[at]
    elif how == 2:
        data = rng.choice((b"", b"none", LARGE, SCREENS["red"][:60], SCREENS["red"][:-30]))
        rows[at] |= {"bytes": data, "sha256": image_digest(data)}
    elif how == 3:
        pq.write_table(table.drop_columns([rng.choice(table.schema.names)]), path)
        return
    else:
        name = rng.choice([*rows[at]])
        rows[at][name] = None if rng.random() < 0.5 else rows[(at + 1) % len(rows)][name]
    pq.write_table(pa.Table.from_pylist(rows, table.schema), path)


# Manifests of pages.

MANIFEST = {
    "name": "a-page", "title": "A page", "folder": "site", "start": "index.html?level={variant}",
    "alias": {"/a.js": "/b.js"}, "variants": ["one", "two"], "ready": "window.ready", "reset": {"parameter": "seed"},
    "seeded": True, "splits": ["train", "eval"], "instruction": "Do {variant}.", "reward": "window.score",
    "success": 1.0, "floor": 0.0, "end": "window.over", "state": {"moves": "window.moves"},
    "origins": ["https://example.org"], "viewport": [640, 480], "max_steps": 20, "level": 1, "step_ms": 100,
    "exact": True, "settle_ms": 100,
}  # fmt: skip
SERVED = {
    "name": "a-server", "title": "A server", "instruction": {"expression": "window.told"}, "success": "window.most",
    "server": {"command": ["python", "serve.py", "{port}"], "folder": "site", "setup": [["true"]],
               "packages": ["flask==3.0"], "environment": {"MODE": "test"}, "ready": "/up", "start_s": 30,
               "read_s": 5, "memory_mb": 512, "reads": ["/usr/share"]},
    "login": {"address": "/login", "fill": {"#name": "ann"}, "submit": "#go", "done": "window.user"},
    "reward": {"sqlite": "shop.db", "query": "select 1"}, "end": {"command": ["true"]}, "files": "site",
    "state": {"rows": {"address": "/rows", "value": "length"}}, "max_steps": 20, "reset": "reload", "follow": True,
}  # fmt: skip


def manifest(folder: Path, rng: random.Random) -> None:
    """A manifest of a page in a folder or of a server, as YAML or JSON."""
    (folder / "site").mkdir()
    (folder / "site" / "index.html").write_text("<p>")
    value = deepcopy(rng.choice((MANIFEST, SERVED)))
    for _ in range(rng.randint(1, 3)):
        damage_value(value, rng)
    path = folder / rng.choice(("page.yaml", "page.json"))
    text = write_json_text(value)  # which YAML reads too
    path.write_bytes(damage_bytes(text, rng) if rng.random() < 0.15 else text)
    made = load_page_manifest(path)
    raw = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    lost(TWICE in json.dumps(value), "a field that stands twice")
    got = made.model_dump(mode="json")
    for name, said in raw.items():
        lost(
            name not in got or not _same(said, got[name]), f"{name}: {str(said)[:60]} became {str(got.get(name))[:60]}"
        )


TRIED = {
    "name": "a-counter", "title": "A counter", "folder": "site", "start": "index.html?level={variant}",
    "variants": ["one", "two"], "ready": "!!window.game", "reset": "game.start(seed)",
    "instruction": "Click {variant}.", "reward": "game.clicks", "success": 3, "floor": 0.0, "end": "game.clicks > 3",
    "state": {"clicks": "game.clicks", "seed": "game.seed"}, "viewport": [320, 240], "max_steps": 6, "step_ms": 0,
    "settle_ms": 0,
}  # fmt: skip
PAGE = (
    "<script>var game = {clicks: 0, start(seed) { this.seed = seed; }}</script>"
    "<button onclick='game.clicks += 1' style='position:fixed;inset:0'>more</button>"
)
_PAGES = (
    "", "\xff", PAGE[:60], PAGE[60:], "<script>while (true);</script>", "<script>throw 1</script>" + PAGE,
    "<script>alert(1)</script>" + PAGE, PAGE.replace("0, start", "NaN, start"), PAGE.replace("0, start", "'0', start"),
    PAGE.replace("this.seed = seed", "while (true)"), PAGE.replace("this.seed = seed", "throw 1"),
    PAGE.replace("this.seed = seed", "return new Promise(() => {})"), PAGE.replace("clicks += 1", "clicks = {}"),
    PAGE.replace("game.clicks += 1", "location = 'https://example.org'"), PAGE + "<script>close()</script>",
    PAGE.replace("game.clicks += 1", "document.documentElement.remove()"), PAGE + "<script>location = 'x'</script>",
)  # fmt: skip
_EXPRESSIONS = (
    "game", "null", "NaN", "true", "0", "'1'", "[]", "game.seed", "game.none.none", "game.clicks / 0", "-game.clicks",
    "{", "throw 1", "while (true);", "seed", "variant", "document", "window", "Symbol()", "10n ** 400n", "() => 1",
    "new Promise(() => {})", "Promise.reject(null)", "(() => { throw null })()", "location.href = '/none'", "alert(1)",
    "document.body.remove()", "'x'.repeat(1e8)", "Array(1e6).fill({})", "\u2028", "({a: 1, toString: null})",
)  # fmt: skip
_FEW = Settings(sandbox=SandboxSettings(browsers=1, pages=1, timeout_s=5.0))


def page_try(runner: asyncio.Runner, folder: Path, rng: random.Random) -> None:
    """A page in a folder with its manifest: one of them is damaged. runner: of the loop in which browsers run."""
    value, page, how = deepcopy(TRIED), PAGE, rng.random()
    if how < 0.2:
        page = rng.choice(_PAGES)
    elif how < 0.5:
        holder = rng.choice((value, value, value["state"]))
        name = rng.choice([*holder] if holder is value["state"] else ("ready", "reset", "reward", "success", "end"))
        holder[name] = rng.choice(_EXPRESSIONS)
    else:
        for _ in range(rng.randint(1, 2)):
            damage_value(value, rng)
    (folder / "site").mkdir()
    (folder / "site" / "index.html").write_text(page, encoding="latin-1")
    (folder / "page.json").write_bytes(write_json_text(value))
    made, said = load_page_manifest(folder / "page.json"), {}
    task = make_page_task(made, rng.choice(made.variants), 3, "eval")
    picture = folder / "screen.png"
    result = runner.run(page_check.check_page(made, task, _FEW, picture, said.__setitem__, check=False))
    if not result.ok:
        raise Refused("; ".join(result.wrong))
    lost("dialog" not in said and said["instruction"] != task.instruction, "the instruction")
    lost("dialog" not in said and {f"state.{name}" for name in made.state} - said.keys(), "values of the state")
    lost("random play" not in said, "the play")
    with Image.open(picture) as seen:
        lost(made.viewport and seen.size != made.viewport, "the viewport")


def _same(said: Any, got: Any) -> bool:
    """Whether a value is as it was written, but for its kind of number and for one that stands for a list of one."""
    if isinstance(said, dict) and isinstance(got, dict):
        return said.keys() <= got.keys() and all(_same(said[name], got[name]) for name in said)
    if isinstance(said, list) and isinstance(got, list):
        return len(said) == len(got) and all(map(_same, said, got))
    if isinstance(got, list):
        return len(got) == 1 and _same(said, got[0])
    if isinstance(got, bool):  # YAML's and pydantic's words for it
        return got is (str(said).lower() in ("true", "yes", "on", "1", "1.0", "y", "t"))
    if isinstance(got, int | float) and isinstance(said, str):
        return float(said) == got
    if isinstance(got, str) and isinstance(said, str):
        return said == got or said.strip().rstrip("/") == got.strip().rstrip("/")
    return said == got


# Running.

KINDS: dict[str, Callable] = {
    "agentnet": agentnet, "mind2web": mind2web, "osworld": osworld, "agentnettool": agentnet_tool,
    "openadapt": openadapt, "agentnetbench": agentnet_bench, "session": session, "manifest": manifest,
    "page_try": page_try,
}  # fmt: skip


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def outcome(read: Callable[[Path, random.Random], None], seed: str, folder: Path, seconds: float) -> tuple[str, str]:
    """Say what became of one input, and why. read: makes and reads it in `folder`, raises AssertionError for a loss."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        with _deadline(seconds):
            read(folder, random.Random(seed))
    except (FlywheelError, Refused) as error:
        told = str(error)
        return ("refused", told) if told.strip() and "\n" not in told else ("tracebacks", f"several lines: {told}")
    except AssertionError as error:
        return "silent_losses", str(error)
    except Hang:
        return "hangs", ""
    except Exception as error:
        return "tracebacks", f"{type(error).__name__}: {error}"
    return "accepted", ""


def cases(
    inputs: int, seed: int, seconds: float, folder: Path, kinds: Sequence[str] = (*KINDS,)
) -> Iterator[BenchCase]:
    """Yield a case for each of `kinds`. inputs: of each. seconds: from which on one hangs. folder: to work in."""
    sound = sound_session(folder / "sound" / "a-session")
    with asyncio.Runner() as runner:
        shared = {"session": sound, "page_try": runner}
        readers = {name: partial(KINDS[name], shared[name]) if name in shared else KINDS[name] for name in kinds}
        yield from _cases(readers, inputs, seed, seconds, folder)


def _cases(
    readers: Mapping[str, Callable], inputs: int, seed: int, seconds: float, folder: Path
) -> Iterator[BenchCase]:
    for name, read in readers.items():
        found: Counter[str] = Counter()
        bad, began = {}, time.monotonic()
        for number in range(inputs):
            what, why = outcome(read, f"{seed} {name} {number}", folder / "input", seconds)
            found[what] += 1
            if what not in ("accepted", "refused"):
                bad.setdefault(f"{what} {number}", why[:200])
        counts = {what: found[what] for what in ("accepted", "refused", "tracebacks", "hangs", "silent_losses")}
        wrong = sum([*counts.values()][2:])
        yield BenchCase(
            "damaged", name, "inputs", wrong, None, "", None, 0, wrong == 0,
            {"inputs": inputs, **counts, "seed": seed, "seconds": round(time.monotonic() - began, 1), "examples": bad},
        )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=INPUTS, help="of each kind (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the faults (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="from which on one hangs (default %(default)s)")
    parser.add_argument("--only", choices=KINDS, help="one kind")
    options = parser.parse_args(argv)
    logging.disable(logging.WARNING)
    try:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = cases(
                options.inputs,
                options.seed,
                options.seconds,
                Path(folder),
                [options.only] if options.only else [*KINDS],
            )
            return exit_code([emit_case(case) for case in made])
    finally:
        logging.disable(logging.NOTSET)


if __name__ == "__main__":
    sys.exit(main())
