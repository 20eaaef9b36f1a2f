"""Draw pages with one place to point at (by colour, shape, word, number, order, size, side), and other clicks."""

from __future__ import annotations

from typing import Any

from flywheel.envs.screens import vocabulary
from flywheel.envs.screens.layouts import FIRST_ICONS, icon_names
from flywheel.envs.screens.scene import text_colour
from flywheel.envs.suites.control.sketch import Again, Item, Kind, Sketch, place, wide
from flywheel.envs.suites.number_words import cardinal, ordinal

Params = dict[str, Any]


def _shapes(s: Sketch, count: int, side: float) -> list[Item]:
    places = s.spots([(side, side)] * count)
    return [s.shape(at, *name) for at, name in zip(places, s.pairs(count), strict=True)]


def _blocks(s: Sketch, count: int) -> list[Item]:
    columns = s.one((2, 3)) if count <= 6 else s.one((3, 4))
    rows = -(-count // columns)
    side = min(s.rng.uniform(40, 60), (SIDE_ROOM - 6 * columns) / columns, (SIDE_ROOM - 6 * rows) / rows)
    places = s.grid(count, columns, side)
    return [s.block(at, *name) for at, name in zip(places, s.pairs(count, icons=True), strict=True)]


SIDE_ROOM = 212


def _shape(s: Sketch) -> Params:
    return s.pick(_shapes(s, s.of(4, 6, 9), s.of(46, 36, 25)))


def _block(s: Sketch) -> Params:
    return s.pick(_blocks(s, s.of(4, 8, 12)))


def _color(s: Sketch) -> Params:
    """Draw cards of different colours with nothing on them."""
    count = s.of(4, 6, 9)
    sizes = [(s.rng.uniform(34, 56), s.rng.uniform(26, 44)) for _ in range(count)]
    cards = []
    for at, name in zip(s.spots(sizes), s.some(vocabulary.COLOURS, count), strict=True):
        look = "framed" if name in ("white", "gray") else ""
        cards.append(s.add("card", at, fill=s.paint(name), look=look, name=f"{name} card"))
    return s.pick(cards)


def _small(s: Sketch) -> Params:
    return s.pick(_shapes(s, s.of(4, 6, 8), s.of(18, 13, 9)))


def _largest(s: Sketch) -> Params:
    count, ratio = s.of(3, 4, 6), s.of(1.6, 1.4, 1.22)
    name, noun = s.one(("red", "green", "blue", "purple", "orange")), s.one(("circle", "square", "star", "heart"))
    sides = [min(80, s.of(22, 20, 20) * ratio**number) for number in range(count)]
    drawn = [
        s.shape(at, name, noun, name=f"{noun} {number}")
        for number, at in enumerate(s.spots([(side, side) for side in sides[::-1]]))
    ]
    which = s.one(("largest", "smallest"))
    target = drawn[0] if which == "largest" else drawn[-1]
    target["say"] = f"the {which} {noun}"
    return s.pick(drawn, target=target, target_words=f"{which} {noun}")


_SIDES = {
    "left": (30, 112),
    "right": (194, 112),
    "top": (112, 30),
    "bottom": (112, 194),
    "top left": (30, 30),
    "top right": (194, 30),
    "bottom left": (30, 194),
    "bottom right": (194, 194),
    "middle": (112, 112),
}


def _side(s: Sketch) -> Params:
    """Draw things that look the same and differ only by where they are."""
    chosen = s.of(s.one((("left", "right"), ("top", "bottom"))), ("left", "right", "top", "bottom"), tuple(_SIDES))
    name, noun, side = s.one(("red", "green", "blue", "purple")), s.one(("circle", "star", "square")), s.of(44, 38, 30)
    drawn = []
    for where in chosen:
        x, y = (axis + s.rng.uniform(-9, 9) for axis in _SIDES[where])
        said = f"the {where} {noun}" if where != "middle" else f"the {noun} in the middle"
        drawn.append(
            s.shape(place(x - side / 2, y - side / 2, side, side), name, noun, name=f"{where} {noun}", say=said)
        )
    return s.pick(drawn)


def _word(s: Sketch) -> Params:
    labels = s.words(s.of(4, 6, 8))
    fills = [s.one(("white", "blue", "green", "orange", "purple", "red")) for _ in labels]
    sizes = [(wide(label), s.of(30, 27, 23)) for label in labels]
    return s.pick([s.button(at, label, fill) for at, label, fill in zip(s.spots(sizes), labels, fills, strict=True)])


def _number(s: Sketch) -> Params:
    count, side = s.of(4, 9, 12), s.of(46, 44, 44)
    low, high = s.of((0, 9), (10, 99), (100, 999))
    numbers = s.some(range(low, high + 1), count)
    cards = []
    for at, number in zip(s.grid(count, s.of(2, 3, 4), side, s.of(10, 8, 6)), numbers, strict=True):
        name = s.one(list(vocabulary.COLOURS))
        look = "framed" if name in ("white", "gray") else ""
        about = {"words": str(number), "name": str(number), "say": f"the number {cardinal(number)}", "look": look}
        cards.append(s.add("card", at, fill=s.paint(name), ink=text_colour(name), font=s.of(24, 20, 18), **about))
    return s.pick(cards)


def _row(s: Sketch) -> Params:
    labels = s.words(s.of(4, 6, 8))
    height, top = s.stack(len(labels), low=24, high=s.of(40, 32, 26))
    rows = []
    for number, label in enumerate(labels):
        at = place(24, top + number * height, 176, height - 3)
        named = {"name": f"{ordinal(number + 1)} row", "look": "framed start"}
        rows.append(s.add("card", at, fill="#ffffff", ink="#1b1f27", words=label.capitalize(), **named))
    target = s.rng.randrange(len(rows))
    if target == len(rows) - 1 and s.level > 1:
        return s.pick(rows, target=rows[-1], ordinal="last")
    return s.pick(rows, target=rows[target], ordinal=ordinal(target + 1))


def _cell(s: Sketch) -> Params:
    side = s.of(3, 4, 6)
    size = s.of(46, 40, 30)
    left, top = s.rng.uniform(26, 216 - side * size), s.rng.uniform(26, 216 - side * size)
    cells = []
    for number in range(side) if s.level < 3 else ():
        s.text(place(left + number * size, top - 20, size, 18), str(number + 1), look="")
        s.text(place(left - 20, top + number * size, 18, size), str(number + 1), look="")
    for row in range(side):
        for col in range(side):
            said = f"row {cardinal(row + 1)} column {cardinal(col + 1)}"
            at = place(left + col * size, top + row * size, size, size)
            cells.append(s.add("cell", at, name=f"row {row + 1} column {col + 1}", say=said))
    return s.pick(cells)


def _beside(s: Sketch) -> Params:
    """Draw the same sign beside every word."""
    labels, sign = s.some(vocabulary.THINGS, s.of(3, 5, 6)), s.one(("star", "heart", "bell", "key", "leaf"))
    height, top = s.stack(len(labels), low=30, high=42)
    right, name = s.rng.random() < 0.7, s.one(("red", "green", "blue", "purple", "orange"))
    signs = []
    for number, label in enumerate(labels):
        y = top + number * height
        s.add("ground", place(6, y, 212, height - 4))
        s.text(place(14 if right else 56, y, 120, height - 4), label.capitalize())
        at = place(180 if right else 14, y + (height - 4) / 2 - 12, 24, 24)
        signs.append(
            s.shape(at, name, sign, name=f"{sign} beside {label}", say=f"the {sign} beside {label}", bare=True)
        )
    return s.pick(signs)


def _link(s: Sketch) -> Params:
    """Draw a text of which some words are links."""
    text = s.some([word for word in vocabulary.READING if word not in vocabulary.COLOURS], s.of(8, 14, 20))
    places = s.rng.sample(range(len(text)), s.of(2, 4, 6))
    s.add("ground", place(8, 8, 208, 208))
    s.add("words", place(18, 14, 188, 196), list=text, links=sorted(places))
    number = s.one(places)
    links = [{"name": f"word {n}"} for n in places]  # the text lays them out, the expert finds them by name
    s.items += [{"kind": "spot", "box": [0, 0, 0, 0], "name": one["name"]} for one in links]
    for item in s.items[2:]:
        item["click"] = ["set", "picked", item["name"]]
        item["say"] = f"the {text[int(item['name'][5:])]} link"
    s.start["picked"] = ""
    return s.done({"picked": f"word {number}"}, "pick", target=text[number])


def _labelled(s: Sketch, count: int) -> list[Item]:
    """Draw things with their names below, as on a desktop."""
    nouns = s.some(FIRST_ICONS if s.level == 1 else icon_names(), count)
    columns = s.of(2, 3, 4)
    side = s.of(48, 40, 32)
    rows, names = -(-count // columns), s.some(vocabulary.COLOURS, min(count, 10))
    gap_x, gap_y = 216 / columns, 216 / rows
    drawn = []
    for number, noun in enumerate(nouns):
        x, y = 4 + (number % columns + 0.5) * gap_x - side / 2, 4 + (number // columns + 0.5) * gap_y - side / 2 - 8
        x += s.rng.uniform(-1, 1) * (gap_x - side - 8) / 3
        s.text(
            place(x - 14, y + side + 2, side + 28, 16), noun.capitalize(), look="", font=s.of(15, 14, 11), labels=noun
        )
        item = s.block(place(x, y, side, side), names[number % 10], noun, name=noun)
        drawn.append(item)
    return drawn


def _double(s: Sketch) -> Params:
    return s.pick(_labelled(s, s.of(4, 6, 12)), "double")


def _right(s: Sketch) -> Params:
    return s.pick(_labelled(s, s.of(4, 6, 12)), "right")


def _all(s: Sketch) -> Params:
    """Draw things of which all of one shape are to be clicked, and no other."""
    count, many = s.of(5, 7, 10), s.of(2, 3, 4)
    nouns = s.some(("square", "circle", "triangle", "star", "heart"), 3)
    colours = s.some(vocabulary.COLOURS, count)
    kinds = [nouns[0]] * many + [s.one(nouns[1:]) for _ in range(count - many)]
    side = s.of(38, 32, 26)
    for number, (at, name, noun) in enumerate(zip(s.spots([(side, side)] * count), colours, kinds, strict=True)):
        key = f"thing {number}"
        s.start[key] = False
        s.shape(at, name, noun, click=["toggle", key], lit=[key, True])
    return s.done({f"thing {number}": True for number in range(many)}, target=f"{nouns[0]}s")


def _order(s: Sketch) -> Params:
    count, side = s.of(3, 4, 6), s.of(42, 36, 30)
    s.start["count"] = 0
    name = s.one(("red", "green", "blue", "purple", "orange", "black"))
    fill = s.paint(name)
    for number, at in enumerate(s.spots([(side, side)] * count), start=1):
        key = {"words": str(number), "name": str(number), "say": f"number {cardinal(number)}", "font": s.of(22, 20, 17)}
        s.add("card", at, fill=fill, ink="#ffffff", click=["next", "count", number], **key)
    return s.done({"count": count})


def _link_checked(s: Sketch) -> Params:
    params = _link(s)
    if len(set(params["items"][1]["list"])) < len(params["items"][1]["list"]):
        raise Again
    return params


KINDS = (
    Kind("click_shape", "Click the {target}.", (2, 2, 2), _shape),
    Kind("click_block", "Click the {target}.", (2, 2, 2), _block),
    Kind("click_color", "Click the {target}.", (2, 2, 2), _color),
    Kind("click_small", "Click the {target}.", (3, 3, 3), _small),
    Kind("click_largest", "Click the {target_words}.", (2, 2, 2), _largest),
    Kind("click_side", "Click the {target}.", (2, 2, 2), _side),
    Kind("click_word", "Click the {target}.", (2, 2, 2), _word),
    Kind("click_number", "Click the number {target}.", (2, 2, 2), _number),
    Kind("click_row", "Click the {ordinal} row.", (2, 2, 2), _row),
    Kind("click_cell", "Click {target}.", (2, 2, 2), _cell),
    Kind("click_beside", "Click the {target}.", (2, 2, 2), _beside),
    Kind("click_link", "Click the {target} link.", (2, 2, 2), _link_checked),
    Kind("click_all", "Click all the {target}.", (4, 5, 6), _all),
    Kind("click_order", "Click the numbers in order.", (5, 6, 9), _order),
    Kind("double_click", "Double click the {target}.", (2, 2, 2), _double),
    Kind("right_click", "Right click the {target}.", (2, 2, 2), _right),
)
