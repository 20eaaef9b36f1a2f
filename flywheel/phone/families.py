"""The families of phone tasks: what each draws at a level. Most are tasks of the sites, told as one does on a phone."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flywheel.phone import parts
from flywheel.phone.apps import APPS
from flywheel.phone.parts import Part, drawn

Of = tuple[str, str, int]  # a site, one of its templates, the site's own level
Drawn = dict[str, Any]
# Tasks of the sites that change something, by the phone's level.
CHANGES: dict[int, tuple[Of, ...]] = {
    1: (("board", "star", 1), ("mail", "star", 1), ("calendar", "hide", 1), ("encyclopaedia", "save", 1),
        ("files", "restore", 1), ("forum", "unfollow", 1)),
    2: (("board", "archive", 2), ("board", "move", 2), ("mail", "archive", 2), ("mail", "delete", 2),
        ("calendar", "answer", 2), ("calendar", "delete", 2), ("encyclopaedia", "note", 2), ("files", "star", 2),
        ("forum", "follow", 2)),
    3: (("board", "comment", 3), ("board", "create", 3), ("mail", "write", 3), ("mail", "reply", 3),
        ("calendar", "create_whole", 3), ("files", "rename", 3), ("forum", "reply", 3)),
}  # fmt: skip
# Those of the application whose icon is on the second screen.
SETTINGS: dict[int, tuple[Of, ...]] = {
    1: (("settings", "switch_on", 3), ("settings", "switch_off", 3)),
    2: (("settings", "level", 3),),
    3: (("settings", "level", 4), ("settings", "region", 4)),
}
# Those that ask something.
QUESTIONS: dict[int, tuple[Of, ...]] = {
    1: (("encyclopaedia", "fact", 1), ("encyclopaedia", "symbol", 1)),
    2: (("board", "when", 2), ("mail", "question", 2), ("calendar", "begin", 2), ("forum", "replies", 2)),
    3: (("board", "load", 3), ("mail", "sender", 3), ("calendar", "guests", 3)),
}


@dataclass(frozen=True)
class Family:
    """draw(level, rng): `instruction`, and those params of `parts.score` that are not as in most tasks. budgets: steps
    by level."""

    draw: Callable[[int, random.Random], Drawn]
    budgets: Mapping[int, int]


_HOME = " Go back to the home screen at the end."


def _in(part: Part) -> str:
    return f"in the application {APPS[part['site']].name}: {part['params']['instruction']}"


def _look_up(part: Part) -> str:
    """Without the words on how to answer."""
    question = part["params"]["instruction"].rpartition("? ")[0]
    return f"Look up in the application {APPS[part['site']].name}: {question}?"


def _first(text: str) -> str:
    return text[:1].upper() + text[1:]


def _pick(pools: Mapping[int, Sequence[Of]], level: int, rng: random.Random) -> Part:
    return drawn(*rng.choice(pools[level]), rng)


def _told(text: str, *steps: Part, home: bool = False) -> Drawn:
    return {"parts": list(steps), "home": home, "instruction": text + (_HOME if home else "")}


def _errand(pools: Mapping[int, Sequence[Of]]) -> Callable[[int, random.Random], Drawn]:
    """One task in one application; at the higher levels one goes home when it is done."""

    def draw(level: int, rng: random.Random) -> Drawn:
        part = _pick(pools, level, rng)
        return _told(_first(_in(part)), part, home=level > 1)

    return draw


def _question(level: int, rng: random.Random) -> Drawn:
    part = _pick(QUESTIONS, level, rng)
    return _told(_first(_in(part)), part)


def _several(level: int, rng: random.Random) -> Drawn:
    """Tasks in two applications, or three."""
    steps: dict[str, Part] = {}
    for pool in {1: (1, 1), 2: (1, 2), 3: (1, 1, 2)}[level]:
        rest = [one for one in CHANGES[pool] if one[0] not in steps]
        site, template, own = rng.choice(rest)
        steps[site] = drawn(site, template, own, rng)
    return _told(_first(" Then, ".join(_in(one) for one in steps.values())), *steps.values())


def _to_board(level: int, rng: random.Random) -> Drawn:
    """What a mail says becomes the title of a card."""
    asked = drawn("mail", *(("sender", 3) if level == 3 else ("question", 2)), rng, read=True)
    written = drawn("board", "create", 3, rng)
    wanted = written["params"]["wanted"]
    wanted["title"] = parts.answer(asked)
    text = (
        f"{_look_up(asked)} Then, in the application Board, in the project “{written['params']['where']}”, create a "
        f"card in the column “{wanted['column']}” whose title is that alone, a number in digits."
    )
    return _told(text, asked, written, home=level > 1)


def _to_calendar(level: int, rng: random.Random) -> Drawn:
    """What the almanac says becomes an event."""
    asked = drawn("encyclopaedia", "symbol" if level == 1 else "fact", 1, rng, read=True)
    written = drawn("calendar", "create_whole", 3, rng)
    written["params"]["wanted"]["title"] = written["params"]["title"] = parts.answer(asked)
    text = (
        f"{_look_up(asked)} Then, in the application Calendar, make an event that takes all day on "
        f"{written['params']['when']} and whose title is that alone."
    )
    return _told(text, asked, written, home=level > 2)


def _removed(level: int, rng: random.Random) -> Drawn:
    """Icons are taken off the home screen."""
    gone = rng.sample(sorted(APPS), level)
    names = " and ".join(APPS[site].name for site in gone)
    icons = "the icon" if level == 1 else "the icons"
    return {"removed": sorted(gone), "home": True, "instruction": f"Take {icons} of {names} off the home screen."}


def _rounds(level: int, rng: random.Random) -> Drawn:
    """Applications are opened one after the other."""
    order = rng.sample(sorted(APPS), level + 2)
    names = ", then ".join(APPS[site].name for site in order)
    return {"opened": order, "home": True, "instruction": f"Open {names}.{_HOME}"}


FAMILIES: dict[str, Family] = {
    "errand": Family(_errand(CHANGES), {1: 12, 2: 18, 3: 26}),
    "setting": Family(_errand(SETTINGS), {1: 10, 2: 12, 3: 18}),
    "question": Family(_question, {1: 12, 2: 16, 3: 16}),
    "several": Family(_several, {1: 18, 2: 26, 3: 30}),
    "mail_to_board": Family(_to_board, {1: 26, 2: 28, 3: 28}),
    "almanac_to_calendar": Family(_to_calendar, {1: 22, 2: 26, 3: 28}),
    "icons": Family(_removed, {1: 6, 2: 10, 3: 14}),
    "rounds": Family(_rounds, {1: 12, 2: 15, 3: 18}),
}
