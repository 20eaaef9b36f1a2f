"""General screens as drawn scenes: HTML for Chromium, and what can be asked of each with its answer.

Every scene is 224 x 224, with all geometry chosen here, so the answers are exact. The layouts are generic (shapes,
blocks with icons, buttons, rows of settings, forms, outlines, numbers); the worlds' tasks and pages are not used.
"""

from __future__ import annotations

import html
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from flywheel.agent.actions import Action, Click, Drag, Finished, Hotkey, Point, Type
from flywheel.agent.parser import serialise
from flywheel.agent.prompt import response_text
from flywheel.synthesis import words

SIDE = 224
LEVELS = 4


@dataclass(frozen=True)
class Box:
    """In pixels of the scene."""

    x: float
    y: float
    w: float
    h: float

    @property
    def centre(self) -> Point:
        return Point((self.x + self.w / 2) / SIDE, (self.y + self.h / 2) / SIDE)

    def holds(self, point: Point) -> bool:
        return self.x <= point.x * SIDE <= self.x + self.w and self.y <= point.y * SIDE <= self.y + self.h

    def overlaps(self, other: Box, gap: float = 4) -> bool:
        return (
            self.x < other.x + other.w + gap and other.x < self.x + self.w + gap
            and self.y < other.y + other.h + gap and other.y < self.y + self.h + gap
        )  # fmt: skip


@dataclass(frozen=True)
class Question:
    """skill: what it tests. boxes: where a click (the first) and the end of a drag (the second) must lie."""

    skill: str
    instruction: str
    response: str
    boxes: tuple[Box, ...] = ()


@dataclass(frozen=True)
class Scene:
    """shown: what can be seen, by name, and where."""

    kind: str
    level: int
    html: str
    questions: tuple[Question, ...]
    shown: tuple[tuple[str, Box], ...]


@dataclass(frozen=True)
class _Item:
    """Something that can be clicked: what it may be called (the fullest name first), and where it is."""

    name: str
    box: Box
    others: tuple[str, ...] = ()


def draw(kind: str, level: int, rng: random.Random, coordinates: int) -> Scene:
    """A scene of `kind` (a key of KINDS); levels 1 to LEVELS hold more, and more alike, elements."""
    scene_html, questions, items = KINDS[kind](level, rng, coordinates)
    return Scene(kind, level, scene_html, tuple(questions), tuple((item.name, item.box) for item in items))


# Pieces of HTML.


@cache
def _icons() -> dict[str, str]:
    return json.loads(files("flywheel.worlds").joinpath("shared/look.json").read_text())["icons"]


_PATHS = {
    "square": "M2 2h20v20H2z", "circle": "M12 2a10 10 0 1 0 .01 0z", "triangle": "M12 2l11 20H1z",
    "diamond": "M12 1l10 11-10 11L2 12z", "cross": "M9 2h6v7h7v6h-7v7H9v-7H2V9h7z",
    "ring": "M12 2a10 10 0 1 0 .01 0zM12 7a5 5 0 1 1-.01 0z", "hexagon": "M7 3h10l5 9-5 9H7l-5-9z",
    "bar": "M1 8h22v8H1z", "arrow": "M2 9h10V3l10 9-10 9v-6H2z",
}  # fmt: skip


def _path(name: str) -> str:
    return _PATHS.get(name) or _icons()[name]


def _svg(name: str, box: Box, fill: str, extra: str = "") -> str:
    place = f"left:{box.x:.1f}px;top:{box.y:.1f}px;width:{box.w:.1f}px;height:{box.h:.1f}px"
    return (
        f'<svg viewBox="0 0 24 24" style="{place}">'
        f'<path d="{_path(name)}" fill="{fill}" fill-rule="evenodd" {extra}/></svg>'
    )


def _div(box: Box, style: str, text: str = "") -> str:
    return (
        f'<div style="left:{box.x:.1f}px;top:{box.y:.1f}px;width:{box.w:.1f}px;height:{box.h:.1f}px;{style}">'
        f"{html.escape(text)}</div>"
    )


def _page(rng: random.Random, body: str, background: str = "") -> str:
    background = background or rng.choice(("#eef1f6", "#dfe6f2", "#ffffff", "#f3efe6", "#cfd6e0", "#e4eee4"))
    weight = rng.choice(("bold", "bold", "normal"))
    family = rng.choice(("Liberation Sans", "Liberation Sans", "DejaVu Sans"))
    return f"<section style=\"background:{background};font:{weight} 15px '{family}'\">{body}</section>"


def _colour(name: str, rng: random.Random) -> str:
    """The named colour, a little off, so that no exact value is learnt."""
    value = words.COLOURS[name]
    channels = (int(value[i : i + 2], 16) + rng.randint(-12, 12) for i in (1, 3, 5))
    return "#" + "".join(f"{min(255, max(0, channel)):02x}" for channel in channels)


def _ink(colour: str) -> str:
    return "#222222" if colour in ("yellow", "white") else "#ffffff"


def _scatter(rng: random.Random, sizes: list[tuple[float, float]], area: Box) -> list[Box]:
    """Places that do not overlap; what finds none is left out."""
    placed: list[Box] = []
    for w, h in sizes:
        for _ in range(60):
            box = Box(area.x + rng.random() * (area.w - w), area.y + rng.random() * (area.h - h), w, h)
            if not any(box.overlaps(other) for other in placed):
                placed.append(box)
                break
    return placed


_ALL = Box(4, 4, SIDE - 8, SIDE - 8)


def _count(level: int, rng: random.Random) -> int:
    return rng.randint(*((1, 2), (2, 4), (4, 6), (6, 12))[level - 1])


def _names(rng: random.Random, count: int, level: int, nouns: tuple[str, ...]) -> list[tuple[str, str]]:
    """`count` different (colour, noun) pairs; from level 3 on they share colours and nouns."""
    colours, pool = list(words.COLOURS), list(nouns)
    if level >= 3 and rng.random() < 0.5:
        colours = rng.sample(colours, max(2, count // 2))
        pool = rng.sample(pool, min(len(pool), max(3, count // 2)))
    pairs = [(colour, noun) for colour in colours for noun in pool]
    return rng.sample(pairs, min(count, len(pairs)))


# Questions.


def _spot(point: Point, coordinates: int) -> str:
    return serialise(Click(point), coordinates).split("<point>")[1].split("<")[0]


def _act(thought: str, action: Action, coordinates: int) -> str:
    return response_text(thought, serialise(action, coordinates))


_VERBS = ("click", "click", "click", "open", "pick", "take", "select")


def _click(rng: random.Random, skill: str, name: str, box: Box, coordinates: int, said: str = "") -> Question:
    verb = rng.choice(_VERBS)
    said = said or f"{verb.capitalize()} the {name}."
    return Question(skill, said, _act(f"I {verb} the {name}.", Click(box.centre), coordinates), (box,))


def _unique(items: list[_Item]) -> list[tuple[str, _Item]]:
    """Names that mean one item only."""
    seen: dict[str, list[_Item]] = {}
    for item in items:
        for name in (item.name, *item.others):
            seen.setdefault(name, []).append(item)
    return [(name, found[0]) for name, found in seen.items() if len(found) == 1]


def _raster(items: list[_Item]) -> list[_Item]:
    return sorted(items, key=lambda item: (int((item.box.y + item.box.h / 2) // 32), item.box.x))


def _describe(items: list[_Item], coordinates: int, limit: int = 8) -> Question:
    """The dense description, row by row: it teaches to see the whole screen."""
    listed = [f"{item.name} {_spot(item.box.centre, coordinates)}" for item in _raster(items)[:limit]]
    return Question("describe", "Describe the screen.", "; ".join(listed) or "empty")


def _ask_at(item: _Item, coordinates: int) -> Question:
    return Question("ask", f"What is at {_spot(item.box.centre, coordinates)}?", item.name)


def _several(rng: random.Random, items: list[_Item], coordinates: int) -> Question:
    """Two or three sub-steps, of which the memory says that some are done."""
    chosen = rng.sample(items, min(len(items), rng.randint(2, 3)))
    verb = rng.choice(_VERBS)
    if len(chosen) == 2 or rng.random() < 0.5:
        said = " and ".join(f"the {item.name}" for item in chosen)
    else:
        said = ", then ".join(f"the {item.name}" for item in chosen)
    done = rng.randint(0, len(chosen))
    text = f"{verb.capitalize()} {said}."
    if done:
        text += "\nDone: " + " ".join(f"I {verb} the {item.name}." for item in chosen[:done])
    if done == len(chosen):
        return Question("steps", text, _act("I am done.", Finished(), coordinates))
    target = chosen[done]
    action = _act(f"I {verb} the {target.name}.", Click(target.box.centre), coordinates)
    return Question("steps", text, action, (target.box,))


def _about(rng: random.Random, skill: str, items: list[_Item], coordinates: int, clicks: int = 5) -> list[Question]:
    """The questions that every screen of clickable things has."""
    questions = [_describe(items, coordinates)]
    unique = _unique(items)
    for name, item in rng.sample(unique, min(clicks, len(unique))):
        questions.append(_click(rng, skill, name, item.box, coordinates))
    if items:
        questions.append(_ask_at(rng.choice(items), coordinates))
    named = [item for item in items if (item.name, item) in unique]
    if len(named) > 1 and rng.random() < 0.5:
        questions.append(_several(rng, named, coordinates))
    return questions


# The nouns of levels 1 and 2.
_FIRST_SHAPES = ("square", "circle", "triangle", "cross", "star", "heart")
_FIRST_ICONS = ("star", "heart", "moon", "leaf", "mug", "hat", "shirt", "book")


# Kinds of scenes: (level, rng, coordinates) -> HTML, questions, and what is shown.

_Drawn = tuple[str, list[Question], list[_Item]]


def _shapes(level: int, rng: random.Random, coordinates: int) -> _Drawn:
    count = _count(level, rng)
    smallest, largest = (44, 76) if level == 1 else (34, 60) if count <= 4 else (24, 40)
    sizes = [(side := rng.uniform(smallest, largest), side) for _ in range(count)]
    boxes = _scatter(rng, sizes, _ALL)
    nouns = _FIRST_SHAPES if level <= 2 else words.SHAPES + words.SYMBOLS
    pairs = _names(rng, len(boxes), level, nouns)
    body, items = "", []
    for (colour, shape), box in zip(pairs, boxes, strict=False):
        body += _svg(shape, box, _colour(colour, rng), 'stroke="#1b1f27" stroke-width="1"')
        items.append(_Item(f"{colour} {shape}", box, (shape,)))
    return _page(rng, body), _about(rng, "shape", items, coordinates), items


def _blocks(level: int, rng: random.Random, coordinates: int) -> _Drawn:
    """Coloured blocks with an icon: in a grid or scattered, with or without a label below."""
    count = _count(level, rng)
    nouns = rng.choice((words.SYMBOLS, _things()))
    labelled = nouns is not words.SYMBOLS and rng.random() < 0.7
    if level <= 2:
        nouns = tuple(noun for noun in nouns if noun in _FIRST_ICONS)
    side = rng.uniform(40, 64) if count <= 4 else rng.uniform(36, 56 if count <= 9 else 46)
    below = 18 if labelled else 0
    if rng.random() < 0.6:
        columns = min(count, rng.choice((2, 3, 3, 4)))
        rows = -(-count // columns)
        side = min(side, (SIDE - 12) / columns - 5, (SIDE - 12) / rows - 5 - below)
        left, top = (rng.random() * (SIDE - 8 - n * (side + g)) for n, g in ((columns, 5), (rows, 5 + below)))
        cells = [(column, row) for row in range(rows) for column in range(columns)]
        if rng.random() < 0.4:
            rng.shuffle(cells)
        boxes = [
            Box(4 + left + column * (side + 5), 4 + top + row * (side + 5 + below), side, side)
            for column, row in cells[:count]
        ]
    else:
        places = _scatter(rng, [(side, side + below)] * count, _ALL)
        boxes = [Box(box.x, box.y, side, side) for box in places]
    pairs = _names(rng, len(boxes), level, nouns)
    body, items = "", []
    corner, edge = rng.choice((0, 6, 8)), rng.choice((0, 1.5, 2))
    called = rng.choice(("tile", "card", "block"))
    for (colour, noun), box in zip(pairs, boxes, strict=False):
        body += _div(box, f"background:{_colour(colour, rng)};border:{edge}px solid #1b1f27;border-radius:{corner}px")
        inset = box.w * rng.choice((0.15, 0.2))
        body += _svg(noun, Box(box.x + inset, box.y + inset, box.w - 2 * inset, box.h - 2 * inset), _ink(colour))
        if labelled:
            body += _div(Box(box.x - 12, box.y + box.h + 1, box.w + 24, 17), "", noun)
        items.append(_Item(f"{colour} {noun}", box, (noun, f"{colour} {called}")))
    return _page(rng, body), _about(rng, "block", items, coordinates), items


@cache
def _things() -> tuple[str, ...]:
    return tuple(name for name in _icons() if name not in words.SYMBOLS)


def _buttons(level: int, rng: random.Random, coordinates: int) -> _Drawn:
    count = min(_count(level, rng), 8)
    pool = {1: words.BUTTONS[:12], 2: words.BUTTONS[:24]}.get(level, (*words.BUTTONS, *words.THINGS, *words.PEOPLE))
    labels = rng.sample(pool, count)
    wide = rng.random() < 0.4
    sizes = [(rng.uniform(150, 200) if wide else 9.5 * len(label) + rng.uniform(14, 30), 30.0) for label in labels]
    boxes = _scatter(rng, [(w, rng.uniform(24, 40 if count < 5 else 30)) for w, _ in sizes], _ALL)
    body, items = "", []
    style = rng.choice(("plain", "colour", "colour"))
    for label, box in zip(labels, boxes, strict=False):
        colour = rng.choice(list(words.COLOURS)) if style == "colour" else "white"
        shown = label.capitalize() if rng.random() < 0.6 else label
        look = f"background:{_colour(colour, rng)};color:{_ink(colour)};border-radius:6px;"
        body += _div(box, look + ("border:2px solid #8a8f98" if colour == "white" else ""), shown)
        items.append(_Item(label, box))
    page = _page(rng, body)
    questions = _about(rng, "button", items, coordinates)
    for item in rng.sample(items, min(2, len(items))):
        questions.append(_click(rng, "button", f"{item.name} button", item.box, coordinates))
    return page, questions, items


def _rows(level: int, rng: random.Random, coordinates: int) -> _Drawn:
    count = min(_count(level, rng), 6)
    single = tuple(word for word in words.SETTINGS if " " not in word)
    labels = rng.sample(single[:10] if level == 1 else words.SETTINGS, count)
    height = rng.uniform(28, min(44, 210 / count))
    top = rng.uniform(2, SIDE - 4 - count * height)
    right = rng.random() < 0.85
    accent = rng.choice(("green", "blue", "purple", "orange"))
    with_icon = rng.random() < 0.6
    body, items, states, seen = "", [], [], []
    for number, label in enumerate(labels):
        y = top + number * height
        on = rng.random() < 0.5
        body += _div(Box(3, y, 218, height - 3), "background:#fff;border-radius:6px")
        x = 8.0 if right else 62.0
        if with_icon:
            icon = label if label in _icons() else rng.choice(list(words.SYMBOLS))
            body += _svg(icon, Box(x, y + height / 2 - 11, 19, 19), "#2b3245")
            x += 24
        body += _div(Box(x, y, 130, height - 3), "justify-content:flex-start", label.capitalize())
        toggle = Box(176 if right else 10, y + (height - 3) / 2 - 10, 38, 20)
        track = _colour(accent, rng) if on else "#b4b8bf"
        body += _div(toggle, f"background:{track};border-radius:10px")
        body += _div(Box(toggle.x + (20 if on else 2), toggle.y + 2, 16, 16), "background:#fff;border-radius:8px")
        items.append(_Item(label, toggle))
        states.append(on)
        seen += [_Item(label, Box(x, y, 120, height - 3)), _Item("on" if on else "off", toggle)]
    questions = [
        Question("describe", "Describe the screen.", "; ".join(
            f"{item.name} {'on' if on else 'off'} {_spot(item.box.centre, coordinates)}"
            for item, on in zip(items, states, strict=True)
        ))
    ]  # fmt: skip
    for item, on in rng.sample(list(zip(items, states, strict=True)), min(4, count)):
        way = "off" if on else "on"
        if rng.random() < 0.2:  # it is so already
            done = _act("I am done.", Finished(), coordinates)
            questions.append(Question("done", f"Turn {'on' if on else 'off'} {item.name}.", done))
        else:
            action = _act(f"I turn {way} {item.name}.", Click(item.box.centre), coordinates)
            questions.append(Question("toggle", f"Turn {way} {item.name}.", action, (item.box,)))
        questions.append(Question("ask", f"Is {item.name} on or off?", "on" if on else "off"))
    return _page(rng, body), questions, seen


def _form(level: int, rng: random.Random, coordinates: int) -> _Drawn:
    """A field, empty or filled, with or without focus, and a button beside or below it."""
    label = rng.choice(("search", "name", "search", "page", "item"))
    button = rng.choice(("go", "search", "ok", "send", "save"))
    width = rng.uniform(90, 130)
    y = rng.uniform(6, 160)
    field = Box(rng.uniform(6, 30), y + 20, width, rng.uniform(24, 32))
    focus = rng.random() < 0.6
    value = rng.choice(("", "", rng.choice((*words.THINGS, *words.PEOPLE, *words.COLOURS))))
    edge = "border:3px solid #1e6fe0;" if focus else "border:2px solid #8a8f98;"
    body = _div(Box(field.x, y, 100, 19), "justify-content:flex-start", label.capitalize())
    body += _div(field, f"background:#fff;{edge}border-radius:5px;justify-content:flex-start;padding-left:5px", value)
    submit = Box(field.x + width + 8, field.y, 46, field.h)
    colour = rng.choice(("green", "blue", "orange", "black"))
    body += _div(submit, f"background:{_colour(colour, rng)};color:#fff;border-radius:5px", button.capitalize())
    items = [_Item(f"{label} field", field, ("field",)), _Item(f"{button} button", submit, ("button",))]
    questions = _about(rng, "field", items, coordinates, clicks=2)
    word = rng.choice((*words.THINGS, *words.PEOPLE, *words.COLOURS))
    said = f'Type "{word}".' if rng.random() < 0.5 else f"Type {word} in the field."
    if label == "search" and rng.random() < 0.5:
        said = f"Search for {word}."
    if value:
        questions.append(Question("ask", f"What is in the {label} field?", value))
    elif focus:
        typed = _act(f"I type {word}.", Type(word), coordinates)
        questions.append(Question("type", said, typed))
    else:
        questions.append(
            Question("field", said, _act(f"I click the {label} field.", Click(field.centre), coordinates), (field,))
        )
    return _page(rng, body), questions, [*items, *([_Item(value, field)] if value else [])]


def _outlines(level: int, rng: random.Random, coordinates: int) -> _Drawn:
    """Coloured pieces, and a dashed outline of each one's shape elsewhere."""
    count = min(level, 3)
    side = rng.uniform(36, 56)
    boxes = _scatter(rng, [(side, side)] * (2 * count), _ALL)
    count = len(boxes) // 2
    shapes = rng.sample([*_PATHS, "star", "heart", "moon", "drop"], count)
    colours = rng.sample(list(words.COLOURS), count)
    body, pieces, questions = "", [], []
    dashed = 'stroke="#444c5c" stroke-width="1.6" stroke-dasharray="2.5 1.5"'
    for shape, colour, start, end in zip(shapes, colours, boxes[:count], boxes[count:], strict=False):
        body += _svg(shape, end, "none" if rng.random() < 0.7 else "#ffffff88", dashed)
        body += _svg(shape, start, _colour(colour, rng), 'stroke="#1b1f27" stroke-width="1"')
        piece, outline = _Item(f"{colour} {shape}", start), _Item(f"{shape} outline", end)
        pieces += [piece, outline]
        where = rng.choice(("its outline", "the outline", f"the {shape} outline"))
        drag = Drag(start.centre, end.centre)
        action = _act(f"I drag the {piece.name} to its outline.", drag, coordinates)
        verb = rng.choice(("Drag", "Move", "Put"))
        questions.append(Question("drag", f"{verb} the {piece.name} into {where}.", action, (start, end)))
    return _page(rng, body), [*questions, *_about(rng, "shape", pieces, coordinates, clicks=2)], pieces


def _numbers(level: int, rng: random.Random, coordinates: int) -> _Drawn:
    """Number tiles in a grid; keys are pressed as named."""
    side = {1: 2, 2: 3}.get(level, 4)
    cell = rng.uniform(34, 200 / side)
    left, top = rng.uniform(4, SIDE - 4 - side * cell), rng.uniform(4, SIDE - 4 - side * cell)
    values = (2, 4, 8, 16, 32, 64, 128)[: 3 + level]
    body, items, table = "", [], []
    for row in range(side):
        for column in range(side):
            box = Box(left + column * cell, top + row * cell, cell - 4, cell - 4)
            value = rng.choice(values) if rng.random() < 0.5 else 0
            tone = 48 - 4 * values.index(value) if value else 0
            look = f"background:hsl({tone} 80% 62%)" if value else "background:#c8cdd6"
            body += _div(box, f"{look};border-radius:5px", str(value) if value else "")
            table.append(value)
            if value:
                items.append(_Item(str(value), box))
    rows = [" ".join(str(v) for v in table[i * side : (i + 1) * side]) for i in range(side)]
    questions = [Question("read", "Read the board.", "; ".join(rows))]
    for name, item in _unique(items)[:2]:
        questions.append(_click(rng, "number", name, item.box, coordinates))
    if items:
        questions.append(_ask_at(rng.choice(items), coordinates))
    for key in rng.sample(words.KEYS, 2):
        said = rng.choice((f"Press the {key} arrow key.", f"Press {key}.", f"Move {key}."))
        questions.append(Question("key", said, _act(f"I press {key}.", Hotkey((key,)), coordinates)))
    return _page(rng, body), questions, items


KINDS: dict[str, Callable[[int, random.Random, int], _Drawn]] = {
    "shapes": _shapes, "blocks": _blocks, "buttons": _buttons, "rows": _rows, "form": _form, "outlines": _outlines,
    "numbers": _numbers,
}  # fmt: skip
