"""Damaged inputs of others: records to import, recorded sessions, manifests of pages. Each is taken in or refused.

Each input is a sound one with one to three faults, by a seed: a field of another type, missing, doubled, or of extreme
size; of files also a line or a row that is missing, doubled or cut off. It is read in this process as `flywheel data
import`, `ingest` and `flywheel env page` read it. A case prints how many were accepted, how many were refused in one
line, and three counts that must be 0: tracebacks (an error of no class of ours, or of several lines), hangs (over
--seconds), silent losses (accepted, and not what the input says; or a sound neighbour that is not there).
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from bench_case import BenchCase, emit_case, exit_code
from PIL import Image

from flywheel.agent import actions as act
from flywheel.config import Settings
from flywheel.envs.browser.pages.manifest import load_page_manifest
from flywheel.envs.registry import get_task_suite
from flywheel.envs.tasks.drawing import make_task, task_to_row
from flywheel.recordings.ingest import ingest_session
from flywheel.recordings.session import ScreenFrame, SessionMeta, SessionOutcome, action_to_events, write_session
from flywheel.store.images import image_digest
from flywheel.store.interop.agentnet import read_agentnet
from flywheel.store.interop.demonstration import RefusedRecord, save_demonstration
from flywheel.store.interop.mind2web import read_mind2web
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
    lost([step.image_sha256 for step in made.steps] != [step.screen for step in one.steps], "screens of steps")
    for step, said in zip(made.steps, one.steps, strict=True):
        lost(not (step.action_type or step.parse_error), "a step that is neither learnt nor told")
        lost(step.action_type == "type" and not re.search(r"write|type\(", said.action), "a text of nowhere")


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
    task = {**told["task"], "params": json.loads(told["task"]["params"])}
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


def cases(inputs: int, seed: int, seconds: float, folder: Path, only: str = "") -> Iterator[BenchCase]:
    """Yield a case for each kind of input. inputs: of each. seconds: from which on one hangs. folder: to work in."""
    sound = sound_session(folder / "sound" / "a-session")
    kinds = {"agentnet": agentnet, "mind2web": mind2web, "session": partial(session, sound), "manifest": manifest}
    for name, read in kinds.items():
        if only not in ("", name):
            continue
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
    parser.add_argument("--only", choices=["agentnet", "mind2web", "session", "manifest"], default="", help="one kind")
    options = parser.parse_args(argv)
    logging.disable(logging.WARNING)
    try:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = cases(options.inputs, options.seed, options.seconds, Path(folder), options.only)
            return exit_code([emit_case(case) for case in made])
    finally:
        logging.disable(logging.NOTSET)


if __name__ == "__main__":
    sys.exit(main())
