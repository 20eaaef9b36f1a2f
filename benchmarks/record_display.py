"""A display, a window whose picture tells how often it was clicked, a player of input, and the recorder: what the parts
of `bench record` share."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
from PIL import Image

from flywheel.recordings.recorder.recorder import read_inputs
from flywheel.recordings.selection import UNFINISHED

SIZE = (1280, 720)
CELL, BITS = 20, 16  # of the window: a row of the count's bits, and one of their opposites
_START_S = 90.0
Played = tuple[float, float]  # by time.monotonic: before it was sent, after the server had it


@contextmanager
def open_server(folder: Path, manager: bool = False, virtual: bool = False) -> Iterator[str]:
    """Start Xvnc of `SIZE`; yield its display. manager: openbox is on it. virtual: Xvfb in its place, as mss reads no
    Xvnc."""
    reading, writing = os.pipe()
    options = ["-geometry", "{}x{}".format(*SIZE), "-SecurityTypes", "None", "-rfbport", "-1"]
    socket = folder / f"vnc-{time.monotonic_ns()}.socket"
    command = ["Xvnc", "-displayfd", str(writing), *options, "-rfbunixpath", str(socket)]
    if virtual:
        command = ["Xvfb", "-displayfd", str(writing), "-screen", "0", "{}x{}x24".format(*SIZE)]
    with subprocess.Popen(command, pass_fds=[writing], stderr=subprocess.DEVNULL) as server:
        os.close(writing)
        with os.fdopen(reading) as told:
            name = f":{told.readline().strip()}"
        quiet = {"stderr": subprocess.DEVNULL, "env": os.environ | {"DISPLAY": name}}
        running = subprocess.Popen(["openbox"], **quiet) if manager else None
        try:
            yield name
        finally:
            for process in (running, server):
                if process:
                    process.terminate()


class Window:
    """The window with the code of a count on `name`, 400 pixels wide and high at the upper left."""

    def __init__(self, name: str) -> None:
        command = [sys.executable, __file__, "window", name]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._process.stdout.readline()

    def close(self) -> list[Played]:
        """End it; return when each count was drawn: before, after."""
        self._process.terminate()
        lines = self._process.communicate()[0].splitlines()
        return [(0.0, 0.0), *(tuple(map(float, line.split())) for line in lines)]


def play(name: str, plan: Sequence[tuple], folder: Path) -> list[Played]:
    """Send the inputs of `plan` to the display: (seconds from the start, kind, keycode or button, x, y); kind: key or
    click. A click is a movement, a press and a release; so is a key without the movement."""
    file = folder / "plan.json"
    file.write_text(json.dumps(plan))
    command = [sys.executable, __file__, "play", name, str(file)]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    return [tuple(map(float, line.split())) for line in told.stdout.splitlines()]


@dataclass
class Recording:
    """What a recorder left in `folder`. cpu_s, wall_s: of the recorder while it recorded; peak_mb: its memory."""

    folder: Path
    cpu_s: float = 0.0
    wall_s: float = 0.0
    peak_mb: float = 0.0

    def inputs(self) -> list:
        return read_inputs(self.folder)

    def began_s(self) -> float:
        """When it began, by `time.monotonic`."""
        told = json.loads((self.folder / "about.json").read_text())["started_at"]
        return datetime.fromisoformat(told).timestamp() - (time.time() - time.monotonic())

    def count_on(self, screen: int) -> int:
        """The count on a stored screen; -1 where it is half drawn."""
        return read_count(Image.open(self.folder / "screens" / f"{screen:06d}.png"))


@contextmanager
def recorder(folder: Path, name: str, *words: str, kill: bool = False) -> Iterator[Recording]:
    """Run `flywheel record` on the display, until the block ends; what it leaves is in the `Recording`. kill: it is
    ended by SIGKILL."""
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "flywheel", "record", "Bench.", "--to", str(folder), "--no-speech"]
    log = (folder / "log").open("w+")
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen([*command, "--display", name, *words], stdout=log, stderr=log, env=environment)
    wait_for(lambda: "recording into" in (folder / "log").read_text(), "the recorder", process)
    (left,) = folder.glob(f"*{UNFINISHED}")
    made = Recording(left)
    cpu, begun = cpu_s(process.pid), time.monotonic()
    try:
        yield made
        made.cpu_s, made.wall_s = cpu_s(process.pid) - cpu, time.monotonic() - begun
        made.peak_mb = _peak_mb(process.pid)
        if not kill:
            process.send_signal(signal.SIGINT)
            wait_for(lambda: "look it through" in (folder / "log").read_text(), "the recorder's end", process)
    finally:
        process.kill()
        process.wait()
        log.close()


def wait_for(found, what: str, process: subprocess.Popen | None = None) -> None:
    until = time.monotonic() + _START_S
    while not found():
        if time.monotonic() > until or (process is not None and process.poll() is not None):
            raise RuntimeError(f"{what} did not come")
        time.sleep(0.02)


def cpu_s(pid: int) -> float:
    """CPU seconds of a process, and of the processes that it has."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    tasks = Path(f"/proc/{pid}/task").iterdir()
    children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    own = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return own + sum(cpu_s(child) for child in children if Path(f"/proc/{child}").exists())


def _peak_mb(pid: int) -> float:
    line = next(one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def read_count(picture: Image.Image) -> int:
    """Read the count that the window shows; -1 where it is half drawn."""
    grey = np.asarray(picture.convert("L"))[CELL // 2 : 2 * CELL : CELL, CELL // 2 : BITS * CELL : CELL] > 127
    if (grey[0] == grey[1]).any():
        return -1
    return int(sum(1 << bit for bit in np.flatnonzero(grey[0])))


def machine() -> dict[str, object]:
    """What figures depend on here."""
    return {"load": round(os.getloadavg()[0], 1), "cores": os.cpu_count(), "date": time.strftime("%Y-%m-%d")}


# The two programs on the display.


def _window(name: str) -> None:
    from Xlib import X
    from Xlib.display import Display

    display = Display(name)
    screen = display.screen()
    window = screen.root.create_window(0, 0, 400, 400, 0, screen.root_depth, X.InputOutput, override_redirect=1,
                                       event_mask=X.ButtonPressMask | X.ExposureMask)  # fmt: skip
    pens = [window.create_gc(foreground=colour) for colour in (0x000000, 0xFFFFFF)]
    window.map()
    count = -1
    while True:
        if display.next_event().type == X.ButtonPress or count < 0:
            count += 1
        before = time.monotonic()
        cells = [(bit, row) for bit in range(BITS) for row in (0, 1)]
        for on, pen in enumerate(pens):
            there = [cell for cell in cells if (count >> cell[0] & 1) ^ cell[1] == on]
            window.poly_fill_rectangle(pen, [(bit * CELL, row * CELL, CELL, CELL) for bit, row in there])
        display.sync()
        print(before, time.monotonic(), flush=True)


def _play(name: str, file: str) -> None:
    from Xlib import X
    from Xlib.display import Display
    from Xlib.ext import xtest

    display = Display(name)
    display.sync()
    begun = time.monotonic() + 0.1
    said = []
    for at, kind, detail, x, y in json.loads(Path(file).read_text()):
        time.sleep(max(0.0, begun + at - time.monotonic()))
        down, up = (X.KeyPress, X.KeyRelease) if kind == "key" else (X.ButtonPress, X.ButtonRelease)
        before = time.monotonic()
        if kind != "key":
            xtest.fake_input(display, X.MotionNotify, x=x, y=y)
        xtest.fake_input(display, down, detail)
        xtest.fake_input(display, up, detail)
        display.sync()
        said.append(f"{before} {time.monotonic()}")
    print("\n".join(said))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt, BrokenPipeError):
        {"window": _window, "play": _play}[sys.argv[1]](*sys.argv[2:])
