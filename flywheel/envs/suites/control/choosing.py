"""Draw pages of settings: switches, check boxes, radio buttons, colours, lists, numbers by steps, stars, days."""

from __future__ import annotations

import calendar
from typing import Any

from flywheel.envs.screens import vocabulary
from flywheel.envs.suites.control.sketch import Kind, Sketch, place, wide
from flywheel.envs.suites.number_words import cardinal, ordinal

Params = dict[str, Any]
_SETTINGS = (
    "sound",
    "display",
    "battery",
    "location",
    "camera",
    "privacy",
    "language",
    "alarm",
    "music",
    "mail",
    "maps",
)
_SIZES = {"text": ("small", "large", "big"), "page": ("top", "middle", "bottom"), "list": ("first", "last", "none")}
_MONTHS = tuple(calendar.month_name[1:])


def _toggle(s: Sketch) -> Params:
    labels = s.some(_SETTINGS, s.of(3, 5, 6))
    height, top = s.stack(len(labels), low=30, high=44)
    right = s.rng.random() < 0.85
    for number, label in enumerate(labels):
        y = top + number * height
        s.add("ground", place(3, y, 218, height - 3))
        s.text(place(12 if right else 62, y, 130, height - 3), label.capitalize(), labels=f"switch {label}")
        s.start[label] = s.rng.random() < 0.5
        at = place(174 if right else 10, y + (height - 3) / 2 - 10, 38, 20)
        s.add("switch", at, key=label, name=f"switch {label}", click=["toggle", label])
    changed = s.some(labels, s.of(1, 1, 2))
    goal = {label: not s.start[label] for label in changed}
    how = {label: "on" if on else "off" for label, on in goal.items()}
    for item in s.items:
        if item.get("key") in how:
            item["says"] = [f"I turn {how[item['key']]} {item['key']}.", f"I click the {item['key']} switch."]
    asked = " and ".join(f"turn {on} {label}" for label, on in how.items())
    return s.done(goal, asked=asked.capitalize())


def _check(s: Sketch) -> Params:
    """Draw check boxes, and a button that submits them."""
    labels = s.some(vocabulary.THINGS, s.of(3, 5, 6))
    height = min(34, 168 / len(labels))
    s.add("ground", place(10, 8, 204, len(labels) * height + 46))
    for number, label in enumerate(labels):
        y = 12 + number * height
        s.start[label] = s.level == 3 and s.rng.random() < 0.3
        at = place(20, y + height / 2 - 10, 20, 20)
        s.add("box", at, key=label, name=f"box {label}", say=f"the {label} box", click=["toggle", label])
        s.text(place(50, y, 140, height), label.capitalize(), labels=f"box {label}")
    s.button(place(20, 14 + len(labels) * height, 84, 30), "submit", s.accent, click=["submit"])
    chosen = s.some(labels, s.of(1, 2, 3))
    goal = {label: label in chosen for label in labels}
    listed = " and ".join([", ".join(chosen[:-1]), chosen[-1]] if len(chosen) > 1 else chosen)
    return s.done(goal, "submit", asked=listed)


def _radio(s: Sketch) -> Params:
    labels = s.some(vocabulary.THINGS, s.of(3, 5, 6))
    height = min(34, 168 / len(labels))
    s.add("ground", place(10, 8, 204, len(labels) * height + 46))
    s.start["choice"] = labels[0]
    for number, label in enumerate(labels):
        y = 12 + number * height
        at = place(20, y + height / 2 - 10, 20, 20)
        about = {"key": "choice", "value": label, "name": f"radio {label}", "click": ["set", "choice", label]}
        s.add("dot", at, **about, says=[f"I pick {label}.", f"I click {label}."])
        s.text(place(50, y, 140, height), label.capitalize(), labels=f"radio {label}")
    s.button(place(20, 14 + len(labels) * height, 60, 30), "ok", s.accent, click=["submit"])
    goal = s.one(labels[1:])
    return s.done({"choice": goal}, "submit", target=goal)


def _swatch(s: Sketch) -> Params:
    """Draw colours to choose from, for one thing or for two."""
    count, keys = s.of(4, 6, 8), s.of(("page",), ("page",), ("page", "text"))
    goal = {}
    for number, key in enumerate(keys):
        y = 30 + 104 * number + s.rng.uniform(-6, 6)
        s.add("ground", place(6, y - 22, 212, 96))
        s.text(place(16, y - 18, 120, 20), f"Color of the {key}")
        colours = s.some(vocabulary.COLOURS, count)
        s.start[key], goal[key] = s.some(colours, 2)
        for place_, name in enumerate(colours):
            at = place(18 + place_ % 6 * 32, y + 8 + place_ // 6 * 32, 24, 24)
            about = {"name": f"{key} {name}", "click": ["set", key, name], "lit": [key, name]}
            s.add("card", at, fill=s.paint(name), look="framed" if name == "white" else "", **about)
            s.items[-1]["says"] = [f"I click {name}.", f"I set the color to {name}."]
    asked = " and ".join(f"the color of the {key} to {name}" for key, name in goal.items())
    return s.done(goal, asked=asked)


def _drop_down(s: Sketch) -> Params:
    """Draw a list that opens on a click; at the last level two of them."""
    keys = s.of(("item",), ("item",), ("item", "name"))
    goal, later = {}, []
    for number, key in enumerate(keys):
        pool = vocabulary.PEOPLE if key == "name" else vocabulary.THINGS
        options = s.some(pool, s.of(3, 5, 3))
        x, y = s.rng.uniform(10, 60), s.of(26, 26, 24) + 88 * number
        s.start[key], goal[key] = s.some(options, 2)
        s.text(place(x, y - 20, 100, 18), key.capitalize())
        opens = {"name": f"{key} list", "say": f"the {key} list", "click": ["fold", "open", key]}
        s.add(
            "shown", place(x, y, 130, 28), key=key, fill="#ffffff", ink="#1b1f27", look="start button framed", **opens
        )
        s.add("shape", place(x + 108, y + 8, 12, 12), icon="down", fill="#444c5c", bare=True, name=f"{key} arrow")
        s.items[-1]["click"] = opens["click"]
        later.append((key, options, x, y))
    s.view["open"] = ""
    for key, options, x, y in later:
        shown = {"when": ["open", key]}
        s.add("ground", place(x, y + 28, 130, len(options) * 25 + 4), look="raised", **shown)
        for row, option in enumerate(options):
            at = place(x + 2, y + 30 + row * 25, 126, 25)
            about = {"name": f"{key} {option}", "click": ["set", key, option], "words": option, "look": "start button"}
            about["says"] = [f"I pick {option}.", f"I click {option}."]
            s.add("card", at, fill="#ffffff", ink="#1b1f27", **about, **shown)
    asked = " and ".join(f"{option} in the {key} list" for key, option in goal.items())
    return s.done(goal, asked=asked)


def _stepper(s: Sketch) -> Params:
    """Draw a number between a minus and a plus; at the last level two of them."""
    keys = s.of(("items",), ("items",), ("items", "pages"))
    goal = {}
    for number, key in enumerate(keys):
        x, y = s.rng.uniform(16, 60), 40 + 96 * number + s.rng.uniform(-10, 10)
        s.add("ground", place(x - 10, y - 26, 160, 72))
        s.text(place(x, y - 22, 120, 20), key.capitalize())
        s.start[key] = s.rng.randint(3, 6)
        goal[key] = s.start[key] + s.one((-1, 1)) * s.rng.randint(*s.of((3, 3), (3, 5), (2, 3)))
        goal[key] = max(0, goal[key])
        for at, sign, by in ((x, "minus", -1), (x + 100, "plus", 1)):
            about = {"name": f"{key} {sign}", "say": f"the {sign} sign", "click": ["add", key, by, 0, 20]}
            s.add("block", place(at, y, 34, 34), icon=sign, fill=s.look["accent"], ink="#ffffff", **about)
        s.add("shown", place(x + 38, y, 58, 34), key=key, font=22)
    return s.done(goal, asked=" and ".join(f"{key} to {value}" for key, value in goal.items()))


def _rating(s: Sketch) -> Params:
    labels = s.some(vocabulary.THINGS, s.of(1, 2, 3))
    goal = {}
    for number, label in enumerate(labels):
        y = s.of(80, 30, 16) + number * s.of(0, 92, 68)
        s.add("ground", place(16, y - 6, 192, 60))
        s.text(place(26, y, 120, 18), label.capitalize())
        s.start[label] = 0
        for star in range(1, 6):
            at = place(24 + (star - 1) * 34, y + 20, 28, 28)
            about = {"key": label, "value": star, "name": f"{label} star {star}", "click": ["set", label, star]}
            said = [f"I click the {ordinal(star)} star.", f"I give it {cardinal(star)}."]
            s.add("rating", at, **about, says=said)
    for label in s.some(labels, s.of(1, 1, 2)):
        goal[label] = s.rng.randint(2, 5)
    return s.done(goal, asked=" and ".join(f"{label} {value} stars" for label, value in goal.items()))


def _date(s: Sketch) -> Params:
    """Draw a month of days; from level 2 on, the wanted month is one or two months away."""
    first = s.rng.randint(3, 8)
    away = s.of(0, s.one((-1, 1)), s.one((-2, 2)))
    wanted = first + away
    day = s.rng.randint(1, 28)
    s.view["month"], s.start["picked"] = first, ""
    s.add("ground", place(8, 8, 208, 208))
    for sign, by, x in (("previous", -1, 14), ("next", 1, 182)):
        about = {"name": f"{sign} month", "click": ["add", "month", by, first - 2, first + 2]}
        s.add("button", place(x, 13, 28, 26), words="<" if by < 0 else ">", fill=s.look["accent"], **about)
    for month in range(first - 2, first + 3):
        when = {"when": ["month", month]}
        s.text(place(44, 13, 136, 26), f"{_MONTHS[month - 1]} 2026", look="", **when)
        before, days = calendar.monthrange(2026, month)
        about = {"month": _MONTHS[month - 1].lower(), "before": before, "days": days}
        s.add("month", place(14, 62, 194, 150), **about, **when)
    for column, letter in enumerate("MTWTFSS"):
        s.text(place(14 + column * 28, 43, 26, 16), letter, look="", font=12)
    target = f"{_MONTHS[wanted - 1].lower()} {day}"
    return s.done({"picked": target}, "pick", target=target.capitalize())


def _tabs_of_size(s: Sketch) -> Params:
    """Draw rows of joined buttons, of which one button is chosen; a row for one to three things."""
    keys = s.of(("text",), ("text", "page"), ("text", "page", "list"))
    goal = {}
    for number, key in enumerate(keys):
        y = s.of(90, 50, 32) + number * s.of(0, 92, 68)
        options = s.some(_SIZES[key], 3)
        s.text(place(14, y - 20, 100, 18), key.capitalize())
        s.start[key], other = s.some(options, 2)
        x = 12.0
        for option in options:
            w = min(66.0, wide(option, 12))
            about = {"name": f"{key} {option}", "click": ["set", key, option], "lit": [key, option]}
            s.add("button", place(x, y, w, 28), words=option, fill="#ffffff", ink="#1b1f27", look="framed", **about)
            s.items[-1]["says"] = [f"I click {option}.", f"I set the {key} to {option}."]
            x += w + 4
        goal[key] = other
    kept = s.some(list(goal), s.of(1, 1, 2))
    goal = {key: goal[key] for key in kept}
    return s.done(goal, asked=" and ".join(f"the {key} to {option}" for key, option in goal.items()))


KINDS = (
    Kind("toggle", "{asked}.", (3, 3, 4), _toggle),
    Kind("check_boxes", "Check only {asked}, then click submit.", (3, 4, 7), _check),
    Kind("radio", "Pick {target}, then click ok.", (3, 3, 3), _radio),
    Kind("swatch", "Set {asked}.", (2, 2, 4), _swatch),
    Kind("drop_down", "Select {asked}.", (4, 4, 6), _drop_down),
    Kind("stepper", "Set the number of {asked}.", (5, 7, 9), _stepper),
    Kind("rating", "Give {asked}.", (2, 2, 4), _rating),
    Kind("date", "Click {target}.", (2, 3, 4), _date),
    Kind("size", "Set {asked}.", (2, 2, 4), _tabs_of_size),
)
