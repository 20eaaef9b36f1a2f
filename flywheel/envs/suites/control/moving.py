"""Draw pages of drags: pieces into outlines and boxes, sliders, rows to put in order, lines."""

from __future__ import annotations

from typing import Any

from flywheel.envs.screens import vocabulary
from flywheel.envs.suites.control.sketch import Kind, Sketch, place

Params = dict[str, Any]
_FORMS = ("square", "circle", "triangle", "diamond", "cross", "star", "heart", "moon", "drop", "hexagon")


def _outline(s: Sketch) -> Params:
    """Draw coloured pieces, and elsewhere an outline of each one's shape."""
    count, side = s.of(1, 2, 3), s.of(46, 42, 36)
    places = s.spots([(side, side)] * 2 * count)
    forms, colours = s.some(_FORMS, count), s.some([name for name in vocabulary.COLOURS if name != "white"], count)
    for form, at in zip(forms, places[count:], strict=True):
        s.add("zone", at, icon=form, name=f"{form} outline", say="its outline")
    for form, name, at in zip(forms, colours, places, strict=False):
        s.start[form] = ""
        s.add("piece", at, icon=form, fill=s.paint(name), key=form, name=f"{name} {form}", drag="piece")
    moved = range(s.of(1, 1, 2))
    asked = " and ".join(f"the {colours[number]} {forms[number]}" for number in moved)
    outline = "its outline" if len(moved) == 1 else "their outlines"
    return s.done({forms[number]: f"{forms[number]} outline" for number in moved}, asked=asked, outline=outline)


def _box(s: Sketch) -> Params:
    """Draw things, of which one or two go into boxes."""
    count, boxes = s.of(2, 3, 4), s.of(1, 2, 3)
    colours = s.some(("red", "green", "blue", "purple", "orange"), boxes)
    width = min(90.0, (212 - 8 * boxes) / boxes)
    lower = s.rng.random() < 0.5
    for number, name in enumerate(colours):
        x = (224 - boxes * (width + 8)) / 2 + number * (width + 8) + 4
        at = place(x, 148 if lower else 8, width, 68)
        s.add("zone", at, name=f"{name} box", say=f"the {name} box", fill=s.paint(name), words=name.capitalize())
    nouns = s.some(("mug", "hat", "shirt", "shoe", "lamp", "ball", "bag", "book"), count)
    side = s.of(44, 38, 32)
    for number, noun in enumerate(nouns):
        x = 112 + (number - (count - 1) / 2) * 210 / count - side / 2 + s.rng.uniform(-4, 4)
        y = (62 if lower else 150) + s.rng.uniform(-30, 20 if lower else 16)
        s.start[noun] = ""
        colour_ = s.one(("red", "green", "blue", "purple", "orange", "pink", "yellow"))
        s.add("piece", place(x, y, side, side), icon=noun, fill=s.paint(colour_), key=noun, name=noun, drag="piece")
    goal = {noun: f"{s.one(colours)} box" for noun in nouns[: s.of(1, 1, 2)]}
    asked = " and ".join(f"the {noun} into the {zone}" for noun, zone in goal.items())
    return s.done(goal, asked=asked)


def _slider(s: Sketch) -> Params:
    labels = s.some(("volume", "brightness", "sound", "display"), s.of(1, 1, 2))
    step, low, high = s.of((25, 0, 100), (10, 0, 100), (5, 0, 50))
    goal = {}
    for number, label in enumerate(labels):
        y = s.rng.uniform(60, 130) if len(labels) == 1 else 34 + number * 104
        s.add("ground", place(6, y - 30, 212, 92))
        s.text(place(16, y - 26, 110, 20), label.capitalize())
        s.start[label], goal[label] = s.some(range(low, high + 1, step), 2)
        s.add("shown", place(150, y - 26, 60, 20), key=label)
        about = {
            "key": label,
            "name": f"{label} slider",
            "say": "the slider" if len(labels) == 1 else f"the {label} slider",
        }
        s.add("slider", place(16, y, 192, 24), low=low, high=high, step=step, **about)
        marks = range(low, high + 1, s.of(25, 20, 10))
        for mark in marks:
            x = 28 + (mark - low) / (high - low) * 168
            s.text(place(x - 14, y + 28, 28, 14), str(mark), look="", font=11)
    return s.done(goal, asked=" and ".join(f"the {label} slider to {value}" for label, value in goal.items()))


def _reorder(s: Sketch) -> Params:
    """Draw rows to drag: one to the top or the bottom, or all into the order of their numbers."""
    count = s.of(3, 5, 5)
    height, top = s.stack(count, low=30, high=38)
    at = place(30, top, 164, count * height)
    if s.level == 3:
        goal = [str(number) for number in range(1, count + 1)]
        now = goal[:]
        for _ in range(2):  # move two rows out of their places
            now.insert(s.rng.randrange(count), now.pop(s.rng.randrange(count)))
        asked = "Drag the rows into the order of their numbers."
    else:
        now = s.some(vocabulary.THINGS, count)
        word, end = s.one(now), s.one(("top", "bottom"))
        rest = [one for one in now if one != word]
        goal = [word, *rest] if end == "top" else [*rest, word]
        asked = f"Drag {word} to the {end}."
    s.start["rows"] = now
    s.add("rows", at, key="rows", name="rows")
    return s.done({"rows": goal}, asked=asked)


def _connect(s: Sketch) -> Params:
    """Draw dots, two of which are to be joined by a line."""
    count, side = s.of(2, 4, 7), s.of(36, 30, 24)
    colours = s.some(("red", "green", "blue", "yellow", "purple", "orange", "black", "pink"), count)
    s.start["line"] = []
    s.add("line", place(0, 0, 224, 224), key="line", fill="#1b1f27", name="line")
    for at, name in zip(s.spots([(side, side)] * count), colours, strict=True):
        s.shape(at, name, "circle", name=f"{name} circle", say=name, drag="ends")
    ends = [f"{name} circle" for name in s.some(colours, 2)]
    said = [name.removesuffix(" circle") for name in ends]
    return s.done({"line": sorted(ends)}, ends=ends, asked=f"from the {said[0]} circle to the {said[1]} circle")


def _sort(s: Sketch) -> Params:
    """Draw pieces of two kinds, each to go into the box with its word."""
    nouns = s.some(("star", "heart", "moon", "drop", "key"), 2)
    many = s.of(2, 3, 4)
    kinds = [nouns[number % 2] for number in range(many)]
    if many > 2:
        s.rng.shuffle(kinds)
    for number, noun in enumerate(nouns):
        s.add(
            "zone", place(8 + number * 106, 130, 102, 86), name=f"{noun} box", say=f"the {noun} box", words=f"{noun}s"
        )
    for number, noun in enumerate(kinds):
        x = 8 + (number + 0.5) * 208 / many - 20 + s.rng.uniform(-4, 4)
        key, name = f"thing {number}", s.one(("red", "green", "blue", "purple", "orange", "pink"))
        s.start[key] = ""
        about = {"key": key, "name": key, "say": f"the {name} {noun}", "drag": "piece"}
        s.add("piece", place(x, s.rng.uniform(12, 70), 40, 40), icon=noun, fill=s.paint(name), **about)
    return s.done({f"thing {number}": f"{noun} box" for number, noun in enumerate(kinds)})


KINDS = (
    Kind("drag_outline", "Drag {asked} into {outline}.", (3, 3, 4), _outline),
    Kind("drag_box", "Drag {asked}.", (3, 3, 4), _box),
    Kind("sort", "Drag each piece into its box.", (4, 5, 6), _sort),
    Kind("slider", "Drag {asked}.", (3, 3, 4), _slider),
    Kind("reorder", "{asked}", (3, 3, 5), _reorder),
    Kind("connect", "Draw a line {asked}.", (3, 3, 3), _connect),
)
