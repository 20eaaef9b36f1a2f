"""A long stream of events: lost, out of order, wrong in time; CPU and memory. With --peer, openadapt-capture on the
same stream."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from bench_case import BenchCase
from record_display import Played, Window, cpu_s, machine, open_server, play, recorder, wait_for

GOAL_MS = 5.0
CORE = 0.15  # of a core, with a person's pace
_PEER_S = 200  # that the peer's end is waited for
_KEYS = range(24, 34)  # keycodes of q to p
LETTERS = dict(zip(_KEYS, "qwertyuiop", strict=True))
_PEER = """
import json, sys
from openadapt_capture.capture import CaptureSession
from openadapt_capture.recorder import Recorder
if __name__ == "__main__":
    what = {"capture_video": False, "capture_images": True, "capture_audio": False}
    with Recorder(sys.argv[1], task_description="bench", **what) as going:
        going.wait_for_ready()
        print("ready", flush=True)
        sys.stdin.readline()
    rows = []
    for one in CaptureSession.load(sys.argv[1]).raw_events():
        rows.append([type(one).__name__, one.timestamp, getattr(one, "x", 0), getattr(one, "y", 0),
                     getattr(one, "key_char", None) or getattr(one, "key_name", None)])
    with open(sys.argv[2], "w") as file:
        json.dump(rows, file)
"""


def cases(options: Any) -> Iterator[BenchCase]:
    yield from _stream(options)
    yield _pace(options)


def plan_of(events: int, rate: int) -> list[tuple]:
    """Three keys and a click, again and again, of two events each. Which key and where tells the order."""
    plan = []
    for n in range(events // 2):
        click = n % 4 == 3
        detail = 1 if click else _KEYS[n // 4 % 10 if n % 2 else n % 10]
        plan.append((2 * n / rate, "click" if click else "key", detail, 500 + n % 700, 20 + n // 700 % 600))
    return plan


def _stream(options: Any) -> Iterator[BenchCase]:
    folder = options.folder / "input"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    plan = plan_of(options.events, options.rate)
    virtual = bool(options.peer)
    with open_server(folder, virtual=virtual) as name, recorder(folder / "made", name, "--keep-text") as made:
        played = play(name, plan, folder)
    downs = [one for one in made.inputs() if one.kind in ("press", "key_down")]
    ups = sum(one.kind in ("release", "key_up") for one in made.inputs())
    told = [("click", one.x, one.y) if one.kind == "press" else ("key", one.key) for one in downs]
    sent = [("click", x, y) if kind == "click" else ("key", LETTERS[detail]) for _, kind, detail, x, y in plan]
    began = made.began_s()
    found = _compare(sent, told, played, [one.time_s + began for one in downs])
    found["lost"] += len(plan) - ups
    rate = options.events / (played[-1][1] - played[0][0])
    extra = {"n": options.events, "rate": rate, "cpu": made.cpu_s / made.wall_s, "peak_mb": made.peak_mb} | machine()
    met = found["lost"] + found["out_of_order"] == 0 and found["error_ms"] <= GOAL_MS
    theirs: dict[str, Any] = {}
    if options.peer:
        theirs = _peer(options, folder, plan, sent)
    yield BenchCase("record", "events_lost", "events", found["lost"], theirs.get("lost"), "openadapt-capture 1.3",
                    None, 0, met, found | extra | {"peer_" + key: value for key, value in theirs.items()})  # fmt: skip


def _compare(sent: Sequence, told: Sequence, played: Sequence[Played], times: Sequence[float]) -> dict[str, Any]:
    """Lost: sent and not told, by walking along both; time errors: to the span of its sending."""
    lost = at = 0
    errors = []
    for number, one in enumerate(sent):
        if at < len(told) and told[at] == one:
            before, after = played[number]
            errors.append(max(before - times[at], times[at] - after, 0.0) * 1000)
            at += 1
        else:
            lost += 1
    disorder = sum(b < a for a, b in pairwise(times))
    p95, worst = (float(np.percentile(errors, q)) for q in (95, 100)) if errors else (float("inf"),) * 2
    return {"lost": lost, "out_of_order": disorder, "error_ms": p95, "error_ms_max": worst}


def _peer(options: Any, folder: Path, plan: Sequence[tuple], sent: Sequence) -> dict[str, Any]:
    """The same stream, recorded by the peer with an image an action; what it says of itself where it fails."""
    (folder / "peer.py").write_text(_PEER)
    told = (folder / "told.json").resolve()
    command = [options.peer, str(folder / "peer.py"), str((folder / "theirs").resolve()), str(told)]
    with open_server(folder, virtual=True) as name, (folder / "peer.log").open("w+") as log:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"DISPLAY": name}
        what = {"stdin": subprocess.PIPE, "stdout": log, "stderr": log, "text": True, "env": environment}
        process = subprocess.Popen(command, **what)
        try:
            wait_for(lambda: _is_ready(folder, name, plan), "the peer", process)
            cpu, begun = cpu_s(process.pid), time.monotonic()
            played = play(name, plan, folder)
            core = (cpu_s(process.pid) - cpu) / (time.monotonic() - begun)
            begun = time.monotonic()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate("\n", timeout=_PEER_S)
            ended = time.monotonic() - begun
        finally:
            process.kill()
            process.wait()
    if not told.is_file():
        lines = [line for line in (folder / "peer.log").read_text().splitlines() if line.strip()]
        return {"cpu": core, "lost": len(plan), "fault": (lines or ["nothing"])[-1][:200]}
    apart = time.time() - time.monotonic()
    begun = played[0][0] + apart
    rows = [
        row for row in json.loads(told.read_text()) if row[0] in ("KeyDownEvent", "MouseDownEvent") and row[1] >= begun
    ]
    codes = {f"keycode_{code}": letter for code, letter in LETTERS.items()}  # a key whose text it does not know
    textless = sum(row[4] in codes for row in rows)
    seen = [
        ("key", codes.get(row[4], row[4])) if row[0] == "KeyDownEvent" else ("click", row[2], row[3]) for row in rows
    ]
    found = _compare(sent, seen, played, [row[1] - apart for row in rows])
    return {**found, "keys_without_text": textless, "cpu": core, "ending_s": ended}


def _is_ready(folder: Path, name: str, plan: Sequence[tuple]) -> bool:
    """Whether the peer is, which it is after its first screen, which it reads at a click."""
    play(name, [(0.2, *plan[3][1:])], folder)
    return "ready" in [line.strip() for line in (folder / "peer.log").read_text().splitlines()]


def _pace(options: Any) -> BenchCase:
    """A person's pace at 1280x720: two clicks a second that each change the screen, and keys."""
    folder = options.folder / "pace"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    plan = [(n / 6, "click" if n % 3 == 0 else "key", 1 if n % 3 == 0 else _KEYS[n % 10], 50 + n % 300, 100)
            for n in range(6 * 30)]  # fmt: skip
    with open_server(folder) as name:
        window = Window(name)
        with recorder(folder / "made", name, "--keep-text") as made:
            play(name, plan, folder)
        window.close()
    core = made.cpu_s / made.wall_s
    extra = {"seconds": made.wall_s, "peak_mb": made.peak_mb} | machine()
    return BenchCase("record", "core", "fraction", core, None, "", None, CORE, core <= CORE, extra)
