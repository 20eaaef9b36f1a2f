"""Buttons and links, rows with switches, forms, and pages that mix elements."""

from __future__ import annotations

import random

from flywheel import words
from flywheel.agent.actions import Click, Finished, Type
from flywheel.scenes.answers import act, spot
from flywheel.scenes.gestures import content
from flywheel.scenes.markup import colour, div, icons, ink, page, scatter, svg
from flywheel.scenes.questions import about, click, read_at
from flywheel.scenes.scene import SIDE, Box, Drawn, Item, Question
from flywheel.scenes.shapes import OUTLINE, pairs

LABELS = (*words.BUTTONS, *words.THINGS, *words.PEOPLE)


def buttons(level: int, count: int, rng: random.Random, coordinates: int) -> Drawn:
    """Buttons, or plain links, with a word each."""
    count = min(count, 8)
    pool = {1: words.BUTTONS[:12], 2: words.BUTTONS[:24]}.get(level, LABELS)
    labels = rng.sample(pool, count)
    wide = rng.random() < 0.4
    sizes = [(rng.uniform(150, 200) if wide else 9.5 * len(label) + rng.uniform(14, 30)) for label in labels]
    boxes = scatter(rng, [(w, rng.uniform(24, 40 if count < 5 else 30)) for w in sizes])
    body, items = "", []
    style = rng.choice(("plain", "colour", "colour", "link"))
    for number, box in boxes.items():
        label = labels[number]
        shown = label.capitalize() if rng.random() < 0.6 else label
        body += _link(box, shown, rng) if style == "link" else _button(box, shown, style == "colour", rng)
        items.append(Item(label, box))
    questions = about(rng, "button", items, coordinates)
    called = "link" if style == "link" else "button"
    for item in rng.sample(items, min(2, len(items))):
        questions.append(click(rng, "button", f"{item.name} {called}", item.box, coordinates))
    questions += read_at(rng, items, coordinates)
    return Drawn(page(rng, body), questions, items)


def _button(box: Box, shown: str, coloured: bool, rng: random.Random) -> str:
    name = rng.choice(list(words.COLOURS)) if coloured else "white"
    edge = "border:2px solid #8a8f98" if name == "white" else ""
    return div(box, f"background:{colour(name, rng)};color:{ink(name)};border-radius:6px;{edge}", shown)


def _link(box: Box, shown: str, rng: random.Random) -> str:
    return div(
        box, f"color:{rng.choice(('#1b1f27', '#1a4fc4'))};{rng.choice(('', 'text-decoration:underline'))}", shown
    )


def mixed(level: int, count: int, rng: random.Random, coordinates: int) -> Drawn:
    """Shapes, icons and buttons on one page."""
    count = min(count, 8)
    names = pairs(rng, count, level, words.SHAPES + words.SYMBOLS)
    labels = rng.sample(LABELS, count)
    kinds = [rng.choice(("shape", "button", "icon")) for _ in range(count)]
    sizes = []
    for kind, label in zip(kinds, labels, strict=True):
        side = rng.uniform(28, 44)
        sizes.append(
            (9.5 * len(label) + rng.uniform(14, 30), rng.uniform(24, 32)) if kind == "button" else (side, side)
        )
    body, items = "", []
    for number, box in scatter(rng, sizes).items():
        name, noun = names[number % len(names)]
        if kinds[number] == "button":
            label = labels[number]
            body += _button(box, label.capitalize() if rng.random() < 0.6 else label, rng.random() < 0.5, rng)
            items.append(Item(label, box, (f"{label} button",)))
        elif kinds[number] == "icon":
            body += div(box, f"background:{colour(name, rng)};border-radius:6px")
            inset = box.w * 0.15
            body += svg(noun, Box(box.x + inset, box.y + inset, box.w - 2 * inset, box.h - 2 * inset), ink(name))
            items.append(Item(f"{name} {noun}", box))
        else:
            body += svg(noun, box, colour(name, rng), OUTLINE)
            items.append(Item(f"{name} {noun}", box))
    return Drawn(page(rng, body), about(rng, "mixed", items, coordinates), items)


def rows(level: int, count: int, rng: random.Random, coordinates: int) -> Drawn:
    """Settings, each with its switch."""
    count = min(count, 6)
    single = tuple(word for word in words.SETTINGS if " " not in word)
    labels = rng.sample(single[:10] if level == 1 else words.SETTINGS, count)
    height = rng.uniform(28, min(44, 210 / count))
    top = rng.uniform(2, 220 - count * height)
    right = rng.random() < 0.85
    accent = rng.choice(("green", "blue", "purple", "orange"))
    with_icon = rng.random() < 0.6
    body, items, states, seen = "", [], [], []
    for number, label in enumerate(labels):
        y = top + number * height
        on = rng.random() < 0.5
        body += div(Box(3, y, 218, height - 3), "background:#fff;border-radius:6px")
        x = 8.0 if right else 62.0
        if with_icon:
            icon = label if label in icons() else rng.choice(list(words.SYMBOLS))
            body += svg(icon, Box(x, y + height / 2 - 11, 19, 19), "#2b3245")
            x += 24
        body += div(Box(x, y, 130, height - 3), "justify-content:flex-start", label.capitalize())
        toggle = Box(176 if right else 10, y + (height - 3) / 2 - 10, 38, 20)
        body += div(toggle, f"background:{colour(accent, rng) if on else '#b4b8bf'};border-radius:10px")
        body += div(Box(toggle.x + (20 if on else 2), toggle.y + 2, 16, 16), "background:#fff;border-radius:8px")
        items.append(Item(label, toggle))
        states.append(on)
        seen += [Item(label, Box(x, y, 120, height - 3)), Item(label, toggle), Item("on" if on else "off", toggle)]
    return Drawn(page(rng, body), _switching(rng, items, states, coordinates), items, seen)


def _switching(rng: random.Random, items: list[Item], states: list[bool], coordinates: int) -> list[Question]:
    switches = list(zip(items, states, strict=True))
    listed = "; ".join(
        f"{item.name} {'on' if on else 'off'} {spot(item.box.centre, coordinates)}" for item, on in switches
    )
    questions = [Question("describe", "Describe the screen.", listed, tuple(item.box for item in items))]
    for item, on in rng.sample(switches, min(4, len(switches))):
        way = "off" if on else "on"
        if rng.random() < 0.2:  # it is so already
            done = act("I am done.", Finished(), coordinates)
            questions.append(Question("done", f"Turn {'on' if on else 'off'} {item.name}.", done, seen=item.box))
        else:
            action = act(f"I turn {way} {item.name}.", Click(item.box.centre), coordinates)
            questions.append(Question("toggle", f"Turn {way} {item.name}.", action, (item.box,)))
        state = "on" if on else "off"
        questions.append(Question("ask", f"Is {item.name} on or off?", state, seen=item.box))
    return questions


def form(level: int, count: int, rng: random.Random, coordinates: int) -> Drawn:
    """A field, empty or filled, with or without focus, and a button beside or below it."""
    label = rng.choice(("search", "name", "search", "page", "item"))
    button = rng.choice(("go", "search", "ok", "send", "save"))
    wide = 9 * len(button) + 10
    width = rng.uniform(85, min(130, SIDE - 42 - wide))
    y = rng.uniform(6, 160)
    field = Box(rng.uniform(6, 30), y + 20, width, rng.uniform(24, 32))
    focus = rng.random() < 0.6
    value = rng.choice(("", "", rng.choice(words.VALUES)))
    edge = "border:3px solid #1e6fe0;" if focus else "border:2px solid #8a8f98;"
    body = div(Box(field.x, y, 100, 19), "justify-content:flex-start", label.capitalize())
    body += div(field, f"background:#fff;{edge}border-radius:5px;justify-content:flex-start;padding-left:5px", value)
    submit = Box(field.x + width + 8, field.y, wide, field.h)
    name = rng.choice(("green", "blue", "orange", "black"))
    body += div(submit, f"background:{colour(name, rng)};color:#fff;border-radius:5px", button.capitalize())
    items = [Item(f"{label} field", field, ("field",)), Item(f"{button} button", submit, ("button",))]
    questions = about(rng, "field", items, coordinates, clicks=2)
    word = content(rng)
    said = rng.choice((f'Type "{word}".', f"Type {word} in the field.", f"Type {word} in the {label} field."))
    if label == "search" and rng.random() < 0.5:
        said = f"Search for {word}."
    if value:
        questions.append(Question("read", f"What is in the {label} field?", value, seen=field))
    elif focus:
        questions.append(Question("type", said, act(f"I type {word}.", Type(word), coordinates), seen=field))
    else:
        response = act(f"I click the {label} field.", Click(field.centre), coordinates)
        questions.append(Question("field", said, response, (field,)))
    return Drawn(page(rng, body), questions, items, [*items, *([Item(value, field)] if value else [])])
