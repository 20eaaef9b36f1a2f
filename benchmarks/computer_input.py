"""Input: each character and click, as a program that has nothing to do with us sees it (`xev`), in order.

Characters are of all planes: ASCII, accents, CJK, emoji, combining marks, Enter and Tab. The same characters by
PyAutoGUI are counted beside.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Iterator, Sequence

import computer_plain as plain
from bench_case import BenchCase

from flywheel.agent.actions import Click, Point, Type
from flywheel.envs.computer.desktop import Desktop
from flywheel.envs.computer.machine import MachineSettings
from flywheel.utils.errors import EnvTimeout

_WIDTH, _HEIGHT = 1280, 720
_SHARE = 0.1  # of the events that are clicks
_LINE = 40  # characters that are typed at once
_LOG = "events.txt"
_XEV = ["sh", "-c", f"exec xev -geometry 1000x600+100+80 -event keyboard -event mouse > {_LOG}"]
_SEEN_S = 60.0
_RANGES = ((0x20, 0x7F), (0xA1, 0x180), (0x391, 0x3A2), (0x410, 0x450), (0x4E00, 0x9FA6), (0x3041, 0x3097))
_RANGES += ((0xAC00, 0xD7A4), (0x1F300, 0x1F650), (0x300, 0x340), (0x5D0, 0x5EB), (0x905, 0x93A))
_KEY = re.compile(r"^(KeyPress|ButtonPress) event.*?(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
_SYMBOL = re.compile(r"keysym 0x([0-9a-f]+)")
_PLACE = re.compile(r"root:\((\d+),(\d+)\)")
_SHIFTS = {0xFFE1, 0xFFE2}  # keys that are pressed along with a character
_ENTER, _TAB = 0xFF0D, 0xFF09
_PYAUTOGUI = """
pyautogui.click(640, 360)
pyautogui.write(json.loads(sys.argv[1]))
print("{}")
"""

Event = str | tuple[int, int]  # a character, or where a click was, in pixels


def cases(options) -> Iterator[BenchCase]:
    plain.needs_pyautogui()
    events = _events(options.events, random.Random(options.seed))
    seen = asyncio.run(_ours(events))
    ours = _alike(events, seen)
    typed = [event for event in events if isinstance(event, str)]
    peer = _alike(typed, _peer(typed)) / len(typed)
    share = ours / len(events)
    extra = {"n": len(events), "clicks": len(events) - len(typed), "seen": len(seen), "goal_of": "ours"}
    name, ratio = "PyAutoGUI, characters alone", share / peer if peer else None
    yield BenchCase("computer", "input_exact", "fraction", share, peer, name, ratio, 1.0, seen == events, extra)


def _events(count: int, rng: random.Random) -> list[Event]:
    def character() -> str:
        return rng.choice("\n\t") if rng.random() < 0.05 else chr(rng.randrange(*rng.choice(_RANGES)))

    def click() -> tuple[int, int]:
        return rng.randrange(150, 1050), rng.randrange(120, 640)

    return [click() if rng.random() < _SHARE else character() for _ in range(count)]


async def _ours(events: Sequence[Event]) -> list[Event]:
    desktop = await Desktop.start(_WIDTH, _HEIGHT, MachineSettings())
    try:
        desktop.after_ms = 0
        await desktop.launch([_XEV])
        await desktop.screenshot()
        for action in _actions(events):
            await desktop.do(action)
        return await asyncio.to_thread(_seen, lambda: desktop.machine.home.read(_LOG, 2**28) or b"", len(events))
    finally:
        await desktop.close()


def _actions(events: Sequence[Event]) -> Iterator[Type | Click]:
    line = ""
    for event in events:
        if isinstance(event, str):
            line += event
        if line and (len(line) == _LINE or not isinstance(event, str)):
            yield Type(line)
            line = ""
        if not isinstance(event, str):
            yield Click(Point((event[0] + 0.5) / _WIDTH, (event[1] + 0.5) / _HEIGHT))
    if line:
        yield Type(line)


def _peer(typed: Sequence[str]) -> list[Event]:
    with plain.desktop(_WIDTH, _HEIGHT, [_XEV]) as (display, home):
        plain.pyautogui(display, _PYAUTOGUI, json.dumps("".join(typed)))
        return [event for event in _read((home / _LOG).read_bytes()) if isinstance(event, str)]


def _seen(read, count: int) -> list[Event]:
    """What the logger wrote, when it is all of it, or nothing more comes."""
    until, before = time.monotonic() + _SEEN_S, -1
    while time.monotonic() < until:
        found = _read(read())
        if len(found) >= count or len(found) == before:
            return found
        before = len(found)
        time.sleep(1.0)
    raise EnvTimeout(f"the logger was still writing after {_SEEN_S:g} s")


def _read(log: bytes) -> list[Event]:
    found: list[Event] = []
    for event in _KEY.finditer(log.decode("utf-8", "replace")):
        if event[1] == "ButtonPress":
            found.append(tuple(int(one) for one in _PLACE.search(event[0]).groups()))
        elif (symbol := int(_SYMBOL.search(event[0])[1], 16)) not in _SHIFTS:
            found.append(_character(symbol))
    return found


def _character(symbol: int) -> str:
    """As X's protocol names characters: Latin-1 by themselves, all others with a bit before."""
    if symbol in (_ENTER, _TAB):
        return "\n" if symbol == _ENTER else "\t"
    return chr(symbol & 0xFFFFFF)


def _alike(wanted: Sequence[Event], seen: Sequence[Event]) -> int:
    """How many arrived, each at its place among those that did."""
    import difflib

    matcher = difflib.SequenceMatcher(None, wanted, seen, autojunk=False)
    return len(wanted) if list(wanted) == list(seen) else sum(block.size for block in matcher.get_matching_blocks())
