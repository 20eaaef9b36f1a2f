"""Draw synthetic screens of several kinds, for pretraining and for the general data of CT and SFT."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

from flywheel.agent.actions import Click, Drag, Finished, Hotkey, Type
from flywheel.envs.screens import vocabulary
from flywheel.envs.screens.questions import (
    ask_about_items,
    ask_click,
    ask_name_at,
    ask_text_at,
    draw_typed_text,
    format_answer,
    format_point,
    uniquely_named,
)
from flywheel.envs.screens.scene import (
    SCENE_LEVELS,
    SCENE_SIDE,
    DrawnScene,
    Scene,
    SceneBox,
    SceneItem,
    SceneQuestion,
    extract_texts,
    format_div,
    format_section,
    format_svg,
    load_icons,
    scatter_boxes,
    text_colour,
    vary_colour,
)
from flywheel.utils.errors import BadInput, did_you_mean

# Kinds of screens: plain shapes, blocks with icons, pieces with their outlines.

# The nouns of levels 1 and 2.
FIRST_SHAPES = ("square", "circle", "triangle", "cross", "star", "heart")
FIRST_ICONS = ("star", "heart", "moon", "leaf", "mug", "hat", "shirt", "book")
OUTLINE = 'stroke="#1b1f27" stroke-width="1"'


@cache
def icon_names() -> tuple[str, ...]:
    """Return the names of all icons except symbols."""
    return tuple(name for name in load_icons() if name not in vocabulary.SYMBOLS)


def draw_colour_noun_pairs(rng: random.Random, count: int, level: int, nouns: tuple[str, ...]) -> list[tuple[str, str]]:
    """Draw at most `count` different pairs (colour, one of `nouns`), by `rng`.

    From level 3 on, half of the time few colours and nouns are mixed, so that things differ in one of the two only.
    """
    colours, pool = list(vocabulary.COLOURS), list(nouns)
    if level >= 3 and rng.random() < 0.5:
        colours = rng.sample(colours, max(2, count // 2))
        pool = rng.sample(pool, min(len(pool), max(3, count // 2)))
    every = [(name, noun) for name in colours for noun in pool]
    return rng.sample(every, min(count, len(every)))


def draw_shapes(level: int, count: int, rng: random.Random, coordinates: int) -> DrawnScene:
    """Draw plain shapes of several colours.

    level: 1 to SCENE_LEVELS. count: things on the screen at most. rng: draws everything. coordinates: cells an axis of
    the answers' points. All kinds of screens take these arguments (`draw_scene`).
    """
    smallest, largest = (44, 76) if level == 1 else (34, 60) if count <= 4 else (24, 40)
    boxes = list(scatter_boxes(rng, [(side := rng.uniform(smallest, largest), side) for _ in range(count)]).values())
    nouns = FIRST_SHAPES if level <= 2 else vocabulary.SHAPES + vocabulary.SYMBOLS
    body, items = "", []
    for (name, shape), box in zip(draw_colour_noun_pairs(rng, len(boxes), level, nouns), boxes, strict=False):
        body += format_svg(shape, box, vary_colour(name, rng), OUTLINE)
        items.append(SceneItem(f"{name} {shape}", box, (shape,)))
    return DrawnScene(format_section(rng, body), ask_about_items(rng, "shape", items, coordinates), items)


def draw_blocks(level: int, count: int, rng: random.Random, coordinates: int) -> DrawnScene:
    """Draw coloured blocks with an icon: in a grid or scattered, with or without a label below."""
    nouns = rng.choice((vocabulary.SYMBOLS, icon_names()))
    labelled = nouns is not vocabulary.SYMBOLS and rng.random() < 0.7
    if level <= 2:
        nouns = tuple(noun for noun in nouns if noun in FIRST_ICONS)
    side = rng.uniform(40, 64) if count <= 4 else rng.uniform(36, 56 if count <= 9 else 46)
    boxes = _block_places(count, side, 18 if labelled else 0, rng)
    corner, edge = rng.choice((0, 6, 8)), rng.choice((0, 1.5, 2))
    called = rng.choice(("tile", "card", "block"))
    body, items = "", []
    for (name, noun), box in zip(draw_colour_noun_pairs(rng, len(boxes), level, nouns), boxes, strict=False):
        look = f"background:{vary_colour(name, rng)};border:{edge}px solid #1b1f27;border-radius:{corner}px"
        body += format_div(box, look)
        body += format_svg(noun, box.inset(rng.choice((0.15, 0.2))), text_colour(name))
        if labelled:
            body += format_div(SceneBox(box.x - 12, box.y + box.h + 1, box.w + 24, 17), "", noun)
        items.append(SceneItem(f"{name} {noun}", box, (noun, f"{name} {called}")))
    return DrawnScene(format_section(rng, body), ask_about_items(rng, "block", items, coordinates), items)


def _block_places(count: int, side: float, below: float, rng: random.Random) -> list[SceneBox]:
    """Place squares of at most `side` pixels, with `below` pixels free under each: in a grid, or scattered."""
    if rng.random() < 0.6:
        columns = min(count, rng.choice((2, 3, 3, 4)))
        rows = -(-count // columns)
        side = min(side, (SCENE_SIDE - 12) / columns - 5, (SCENE_SIDE - 12) / rows - 5 - below)
        left, top = (rng.random() * (SCENE_SIDE - 8 - n * (side + g)) for n, g in ((columns, 5), (rows, 5 + below)))
        cells = [(column, row) for row in range(rows) for column in range(columns)]
        if rng.random() < 0.4:
            rng.shuffle(cells)
        return [
            SceneBox(4 + left + column * (side + 5), 4 + top + row * (side + 5 + below), side, side)
            for column, row in cells[:count]
        ]
    return [SceneBox(box.x, box.y, side, side) for box in scatter_boxes(rng, [(side, side + below)] * count).values()]


def draw_outlines(level: int, count: int, rng: random.Random, coordinates: int) -> DrawnScene:
    """Draw coloured pieces, and a dashed outline of each one's shape elsewhere."""
    count = min(count, level, 3)
    side = rng.uniform(36, 56)
    boxes = list(scatter_boxes(rng, [(side, side)] * (2 * count)).values())
    count = len(boxes) // 2
    forms = rng.sample([*vocabulary.SHAPES, "star", "heart", "moon", "drop"], count)
    colours = rng.sample(list(vocabulary.COLOURS), count)
    body, pieces, questions = "", [], []
    dashed = 'stroke="#444c5c" stroke-width="1.6" stroke-dasharray="2.5 1.5"'
    for shape, name, start, end in zip(forms, colours, boxes[:count], boxes[count:], strict=False):
        body += format_svg(shape, end, "none" if rng.random() < 0.7 else "#ffffff88", dashed)
        body += format_svg(shape, start, vary_colour(name, rng), OUTLINE)
        piece, outline = SceneItem(f"{name} {shape}", start), SceneItem(f"{shape} outline", end)
        pieces += [piece, outline]
        where = rng.choice(("its outline", "the outline", f"the {shape} outline"))
        thought = f"I drag the {piece.name} to its outline."
        response = format_answer(thought, Drag(start.centre, end.centre), coordinates)
        verb = rng.choice(("Drag", "Move", "Put"))
        questions.append(SceneQuestion("drag", f"{verb} the {piece.name} into {where}.", response, (start, end)))
    return DrawnScene(
        format_section(rng, body), [*questions, *ask_about_items(rng, "shape", pieces, coordinates, clicks=2)], pieces
    )


# Kinds with words and numbers to read: on cards, and on boards of number tiles.

NUMBERS_SHARE = 0.4  # of the texts


def draw_texts(level: int, count: int, rng: random.Random, coordinates: int) -> DrawnScene:
    """Draw words and numbers of up to three digits, each on a card of its own colour or on the plain page."""
    count = min(count, 8)
    colours = rng.sample(list(vocabulary.COLOURS), count)
    shown = _different_texts(count, rng)
    size = rng.uniform(14, 24 if count <= 4 else 18)
    plain = rng.random() < 0.25
    sizes = [(0.68 * size * len(text) + rng.uniform(12, 26), size * rng.uniform(1.4, 2.0)) for text in shown]
    body, items = "", []
    for number, box in scatter_boxes(rng, sizes).items():
        text, name = shown[number], colours[number]
        box = SceneBox(box.x, box.y, min(0.68 * size * len(text) + 12, box.w), box.h) if plain else box
        look = _text_look(name, plain, rng)
        if name == "white" and not plain:
            look += ";border:2px solid #8a8f98"
        body += format_div(box, f"{look};font-size:{size:.1f}px", text.capitalize() if rng.random() < 0.5 else text)
        items.append(SceneItem(text, box, () if plain else (f"{name} card",)))
    questions = ask_about_items(rng, "text", items, coordinates, clicks=2)
    return DrawnScene(format_section(rng, body), [*questions, *_ask_reading(rng, items, coordinates)], items)


def _text_look(name: str, plain: bool, rng: random.Random) -> str:
    if plain:
        return "color:#1b1f27"
    return f"background:{vary_colour(name, rng)};color:{text_colour(name)};border-radius:4px"


def draw_word_or_number(rng: random.Random) -> str:
    """Draw a word, or a number of up to three digits."""
    number = str(rng.randrange(10 ** rng.randint(1, 3)))
    return number if rng.random() < NUMBERS_SHARE else rng.choice(vocabulary.READING)


def _different_texts(count: int, rng: random.Random) -> list[str]:
    """Draw different texts, the longest first, since they are the hardest to place."""
    found: set[str] = set()
    while len(found) < count:
        found.add(draw_word_or_number(rng))
    return sorted(found, key=lambda text: (-len(text), text))


def _ask_reading(rng: random.Random, items: list[SceneItem], coordinates: int) -> list[SceneQuestion]:
    asked = [(f"What does it say at {format_point(item.box.centre, coordinates)}?", item) for item in items]
    asked += [(f"What does the {card} say?", item) for item in items for card in item.others]
    if len(items) == 1:
        asked.append(("Read the number." if items[0].name.isdigit() else "Read the word.", items[0]))
    chosen = rng.sample(asked, min(6, len(asked)))
    return [SceneQuestion("read", said, item.name, seen=item.box) for said, item in chosen]


def draw_number_board(level: int, count: int, rng: random.Random, coordinates: int) -> DrawnScene:
    """Draw number tiles in a grid; questions ask to read and click them, and to press arrow keys."""
    side = {1: 2, 2: 3}.get(level, 4)
    cell = rng.uniform(34, 200 / side)
    left, top = rng.uniform(4, SCENE_SIDE - 4 - side * cell), rng.uniform(4, SCENE_SIDE - 4 - side * cell)
    values = (2, 4, 8, 16, 32, 64, 128)[: 3 + level]
    body, items, table = "", [], []
    for row in range(side):
        for column in range(side):
            box = SceneBox(left + column * cell, top + row * cell, cell - 4, cell - 4)
            value = rng.choice(values) if rng.random() < 0.5 else 0
            tone = 48 - 4 * values.index(value) if value else 0
            look = f"background:hsl({tone} 80% 62%)" if value else "background:#c8cdd6"
            body += format_div(box, f"{look};border-radius:5px", str(value) if value else "")
            table.append(value)
            if value:
                items.append(SceneItem(str(value), box))
    lines = [" ".join(str(v) for v in table[i * side : (i + 1) * side]) for i in range(side)]
    questions = [SceneQuestion("board", "Read the board.", "; ".join(lines))]
    for name, item in uniquely_named(items)[:2]:
        questions.append(ask_click(rng, "number", name, item.box, coordinates))
    if items:
        questions.append(ask_name_at(rng.choice(items), coordinates))
    for key in rng.sample(vocabulary.KEYS, 2):
        instruction = rng.choice((f"Press the {key} arrow key.", f"Press {key}.", f"Move {key}."))
        response = format_answer(f"I press {key}.", Hotkey((key,)), coordinates)
        questions.append(SceneQuestion("key", instruction, response))
    return DrawnScene(format_section(rng, body), questions, items)


# Sheets crowded with small things in rows: icons, shapes, words and numbers. A model learns to see fastest from them.

GAP = 4


def draw_sheet(level: int, count: int, rng: random.Random, coordinates: int) -> DrawnScene:
    """Draw rows of small things from edge to edge, whatever `level` and `count` are."""
    body, items, texts = "", [], []
    y = rng.uniform(2, 16)
    while True:
        height = rng.uniform(28, 56)
        if y + height > SCENE_SIDE - 2:
            break
        make = _word_row if rng.random() < 0.5 else _picture_row
        drawn, found = make(y, height, rng)
        texts += found if make is _word_row else []
        body, items, y = body + drawn, items + found, y + height + GAP
    questions = ask_about_items(rng, "sheet", items, coordinates, clicks=4)
    return DrawnScene(format_section(rng, body), [*questions, *ask_text_at(rng, texts, coordinates, limit=4)], items)


def _picture_row(y: float, height: float, rng: random.Random) -> tuple[str, list[SceneItem]]:
    body, items = "", []
    x = rng.uniform(2, 14)
    while x + height < SCENE_SIDE - 2:
        box = SceneBox(x, y, height, height)
        name = rng.choice(list(vocabulary.COLOURS))
        noun = rng.choice((*vocabulary.SHAPES, *vocabulary.SYMBOLS, *icon_names()))
        if rng.random() < 0.5:
            body += format_svg(noun, box, vary_colour(name, rng), OUTLINE)
        else:
            body += format_div(box, f"background:{vary_colour(name, rng)};border-radius:{rng.choice((0, 6))}px;")
            body += format_svg(noun, box.inset(0.12), text_colour(name))
        items.append(SceneItem(f"{name} {noun}", box))
        x += height + GAP + rng.uniform(0, 12)
    return body, items


def _word_row(y: float, height: float, rng: random.Random) -> tuple[str, list[SceneItem]]:
    body, items = "", []
    x, size = rng.uniform(2, 14), rng.uniform(14, min(24, height * 0.7))
    plain = rng.random() < 0.4
    while True:
        text = draw_word_or_number(rng)
        width = 0.64 * size * len(text) + rng.uniform(8, 18)
        if x + width > SCENE_SIDE - 2:
            return body, items
        box, name = SceneBox(x, y, width, height), rng.choice(list(vocabulary.COLOURS))
        look = _text_look(name, plain, rng)
        shown = text.capitalize() if rng.random() < 0.5 else text
        body += format_div(box, f"{look};font-size:{size:.1f}px;overflow:hidden", shown)
        items.append(SceneItem(text, box))
        x += width + GAP


# Kinds with buttons and links, rows with switches, forms, and mixed elements.

LABELS = (*vocabulary.BUTTONS, *vocabulary.THINGS, *vocabulary.PEOPLE)


def draw_buttons(level: int, count: int, rng: random.Random, coordinates: int) -> DrawnScene:
    """Draw at most eight buttons, or plain links, with a label each."""
    count = min(count, 8)
    pool = {1: vocabulary.BUTTONS[:12], 2: vocabulary.BUTTONS[:24]}.get(level, LABELS)
    labels = rng.sample(pool, count)
    wide = rng.random() < 0.4
    sizes = [(rng.uniform(150, 200) if wide else 9.5 * len(label) + rng.uniform(14, 30)) for label in labels]
    boxes = scatter_boxes(rng, [(w, rng.uniform(24, 40 if count < 5 else 30)) for w in sizes])
    body, items = "", []
    style = rng.choice(("plain", "colour", "colour", "link"))
    for number, box in boxes.items():
        label = labels[number]
        shown = label.capitalize() if rng.random() < 0.6 else label
        body += _link(box, shown, rng) if style == "link" else _button(box, shown, style == "colour", rng)
        items.append(SceneItem(label, box))
    questions = ask_about_items(rng, "button", items, coordinates)
    called = "link" if style == "link" else "button"
    for item in rng.sample(items, min(2, len(items))):
        questions.append(ask_click(rng, "button", f"{item.name} {called}", item.box, coordinates))
    questions += ask_text_at(rng, items, coordinates)
    return DrawnScene(format_section(rng, body), questions, items)


def _button(box: SceneBox, shown: str, coloured: bool, rng: random.Random) -> str:
    name = rng.choice(list(vocabulary.COLOURS)) if coloured else "white"
    edge = "border:2px solid #8a8f98" if name == "white" else ""
    look = f"background:{vary_colour(name, rng)};color:{text_colour(name)};border-radius:6px;{edge}"
    return format_div(box, look, shown)


def _link(box: SceneBox, shown: str, rng: random.Random) -> str:
    look = f"color:{rng.choice(('#1b1f27', '#1a4fc4'))};{rng.choice(('', 'text-decoration:underline'))}"
    return format_div(box, look, shown)


def draw_mixed(level: int, count: int, rng: random.Random, coordinates: int) -> DrawnScene:
    """Draw shapes, icons and buttons on one page."""
    count = min(count, 8)
    names = draw_colour_noun_pairs(rng, count, level, vocabulary.SHAPES + vocabulary.SYMBOLS)
    labels = rng.sample(LABELS, count)
    kinds = [rng.choice(("shape", "button", "icon")) for _ in range(count)]
    sizes = []
    for kind, label in zip(kinds, labels, strict=True):
        side = rng.uniform(28, 44)
        size = (9.5 * len(label) + rng.uniform(14, 30), rng.uniform(24, 32)) if kind == "button" else (side, side)
        sizes.append(size)
    body, items = "", []
    for number, box in scatter_boxes(rng, sizes).items():
        name, noun = names[number % len(names)]
        if kinds[number] == "button":
            label = labels[number]
            body += _button(box, label.capitalize() if rng.random() < 0.6 else label, rng.random() < 0.5, rng)
            items.append(SceneItem(label, box, (f"{label} button",)))
        elif kinds[number] == "icon":
            body += format_div(box, f"background:{vary_colour(name, rng)};border-radius:6px")
            body += format_svg(noun, box.inset(0.15), text_colour(name))
            items.append(SceneItem(f"{name} {noun}", box))
        else:
            body += format_svg(noun, box, vary_colour(name, rng), OUTLINE)
            items.append(SceneItem(f"{name} {noun}", box))
    return DrawnScene(format_section(rng, body), ask_about_items(rng, "mixed", items, coordinates), items)


def draw_settings_rows(level: int, count: int, rng: random.Random, coordinates: int) -> DrawnScene:
    """Draw at most six settings, each with its switch."""
    count = min(count, 6)
    single = tuple(word for word in vocabulary.SETTINGS if " " not in word)
    labels = rng.sample(single[:10] if level == 1 else vocabulary.SETTINGS, count)
    height = rng.uniform(28, min(44, 210 / count))
    top = rng.uniform(2, 220 - count * height)
    right = rng.random() < 0.85
    accent = rng.choice(("green", "blue", "purple", "orange"))
    with_icon = rng.random() < 0.6
    body, items, states, seen = "", [], [], []
    for number, label in enumerate(labels):
        y = top + number * height
        on = rng.random() < 0.5
        body += format_div(SceneBox(3, y, 218, height - 3), "background:#fff;border-radius:6px")
        x = 8.0 if right else 62.0
        if with_icon:
            icon = label if label in load_icons() else rng.choice(list(vocabulary.SYMBOLS))
            body += format_svg(icon, SceneBox(x, y + height / 2 - 11, 19, 19), "#2b3245")
            x += 24
        body += format_div(SceneBox(x, y, 130, height - 3), "justify-content:flex-start", label.capitalize())
        toggle = SceneBox(176 if right else 10, y + (height - 3) / 2 - 10, 38, 20)
        body += format_div(toggle, f"background:{vary_colour(accent, rng) if on else '#b4b8bf'};border-radius:10px")
        knob = SceneBox(toggle.x + (20 if on else 2), toggle.y + 2, 16, 16)
        body += format_div(knob, "background:#fff;border-radius:8px")
        items.append(SceneItem(label, toggle))
        states.append(on)
        seen += [
            SceneItem(label, SceneBox(x, y, 120, height - 3)),
            SceneItem(label, toggle),
            SceneItem("on" if on else "off", toggle),
        ]
    return DrawnScene(format_section(rng, body), _ask_switches(rng, items, states, coordinates), items, seen)


def _ask_switches(
    rng: random.Random, items: list[SceneItem], states: list[bool], coordinates: int
) -> list[SceneQuestion]:
    switches = list(zip(items, states, strict=True))
    listed = "; ".join(
        f"{item.name} {'on' if on else 'off'} {format_point(item.box.centre, coordinates)}" for item, on in switches
    )
    questions = [SceneQuestion("describe", "Describe the screen.", listed, tuple(item.box for item in items))]
    for item, on in rng.sample(switches, min(4, len(switches))):
        way = "off" if on else "on"
        if rng.random() < 0.2:  # it has the wanted state already
            done = format_answer("I am done.", Finished(), coordinates)
            questions.append(SceneQuestion("done", f"Turn {'on' if on else 'off'} {item.name}.", done, seen=item.box))
        else:
            action = format_answer(f"I turn {way} {item.name}.", Click(item.box.centre), coordinates)
            questions.append(SceneQuestion("toggle", f"Turn {way} {item.name}.", action, (item.box,)))
        state = "on" if on else "off"
        questions.append(SceneQuestion("ask", f"Is {item.name} on or off?", state, seen=item.box))
    return questions


def draw_form(level: int, count: int, rng: random.Random, coordinates: int) -> DrawnScene:
    """Draw a field, empty or filled, with or without focus, and a button to the right of it."""
    label = rng.choice(("search", "name", "search", "page", "item"))
    button = rng.choice(("go", "search", "ok", "send", "save"))
    wide = 9 * len(button) + 10
    width = rng.uniform(85, min(130, SCENE_SIDE - 42 - wide))
    y = rng.uniform(6, 160)
    field = SceneBox(rng.uniform(6, 30), y + 20, width, rng.uniform(24, 32))
    focus = rng.random() < 0.6
    value = rng.choice(("", "", rng.choice(vocabulary.VALUES)))
    edge = "border:3px solid #1e6fe0;" if focus else "border:2px solid #8a8f98;"
    body = format_div(SceneBox(field.x, y, 100, 19), "justify-content:flex-start", label.capitalize())
    look = f"background:#fff;{edge}border-radius:5px;justify-content:flex-start;padding-left:5px"
    body += format_div(field, look, value)
    submit = SceneBox(field.x + width + 8, field.y, wide, field.h)
    name = rng.choice(("green", "blue", "orange", "black"))
    body += format_div(submit, f"background:{vary_colour(name, rng)};color:#fff;border-radius:5px", button.capitalize())
    items = [SceneItem(f"{label} field", field, ("field",)), SceneItem(f"{button} button", submit, ("button",))]
    questions = ask_about_items(rng, "field", items, coordinates, clicks=2)
    word = draw_typed_text(rng)
    instruction = rng.choice((f'Type "{word}".', f"Type {word} in the field.", f"Type {word} in the {label} field."))
    if label == "search" and rng.random() < 0.5:
        instruction = f"Search for {word}."
    if value:
        questions.append(SceneQuestion("read", f"What is in the {label} field?", value, seen=field))
    elif focus:
        response = format_answer(f"I type {word}.", Type(word), coordinates)
        questions.append(SceneQuestion("type", instruction, response, seen=field))
    else:
        response = format_answer(f"I click the {label} field.", Click(field.centre), coordinates)
        questions.append(SceneQuestion("field", instruction, response, (field,)))
    shown = [*items, SceneItem(value, field)] if value else items
    return DrawnScene(format_section(rng, body), questions, items, shown)


# All kinds of screens. They are generic: the suites' tasks and pages are not used.

ELEMENT_COUNTS = ((1, 2), (2, 4), (4, 6), (6, 10))  # fewest and most things on a screen of each level

# (level, count, rng, coordinates) -> the drawn scene; see `draw_shapes` for the arguments
SCENE_KINDS: dict[str, Callable[[int, int, random.Random, int], DrawnScene]] = {
    "shapes": draw_shapes,
    "blocks": draw_blocks,
    "buttons": draw_buttons,
    "rows": draw_settings_rows,
    "form": draw_form,
    "outlines": draw_outlines,
    "numbers": draw_number_board,
    "texts": draw_texts,
    "mixed": draw_mixed,
    "sheet": draw_sheet,
}


def draw_scene(kind: str, level: int, rng: random.Random, coordinates: int, count: int | None = None) -> Scene:
    """Draw a scene: a synthetic screen as HTML, with questions about it and their exact answers.

    kind: a key of SCENE_KINDS. level: 1 to SCENE_LEVELS; a higher one has more, and more similar, elements. rng: draws
    everything. coordinates: cells an axis; answers' points are whole numbers from 0 to coordinates - 1. count: elements
    at most, at least 1, in place of the level's own number; some kinds have fewer, or a number of their own. Raises
    BadInput for another kind, level or count.
    """
    if kind not in SCENE_KINDS:
        raise BadInput(f"no kind of scene is called {kind!r}", where="kind", fix=did_you_mean(kind, SCENE_KINDS))
    if not 1 <= level <= SCENE_LEVELS:
        raise BadInput(f"no scene has the level {level}", where="level", fix=f"use 1 to {SCENE_LEVELS}")
    if count is not None and count < 1:
        raise BadInput(f"no scene holds {count} elements", where="count", fix="use 1 or more")
    drawn = SCENE_KINDS[kind](level, count or rng.randint(*ELEMENT_COUNTS[level - 1]), rng, coordinates)
    shown = tuple((item.name, item.box) for item in drawn.shown or drawn.items)
    return Scene(
        kind, level, drawn.html, tuple(drawn.questions), shown, tuple(extract_texts(drawn.html)), len(drawn.items)
    )
