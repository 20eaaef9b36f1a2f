"""Draw pages of words and keys: fields to fill, texts to correct, copy and select, keys to press."""

from __future__ import annotations

from typing import Any

from flywheel.envs.screens import vocabulary
from flywheel.envs.screens.scene import text_colour
from flywheel.envs.suites.control.sketch import Again, Kind, Sketch, place

Params = dict[str, Any]
_LABELS = ("name", "page", "item", "search", "price", "order")


def _fields(s: Sketch, labels: list[str], values: list[str], *, enter: bool = False) -> None:
    """Add fields one below the other, each under its label."""
    gap = min(70.0, 200 / len(labels))
    top, x = s.rng.uniform(8, 212 - gap * len(labels)), s.rng.uniform(8, 70)
    for number, (label, value) in enumerate(zip(labels, values, strict=True)):
        y = top + number * gap
        s.text(place(x, y, 120, 18), label.capitalize())
        s.field(place(x, y + 20, 130, 28), label, label, value, enter=enter)


def _type(s: Sketch, new: str) -> Params:
    labels = s.some(_LABELS, s.of(1, 2, 3))
    target = s.one(labels)
    values = [s.one(vocabulary.VALUES) if s.level == 3 and label == target else "" for label in labels]
    _fields(s, labels, values)
    return s.done({target: new}, text=new, label=target)


def _word(s: Sketch) -> Params:
    return _type(s, s.one(vocabulary.VALUES))


def _number(s: Sketch) -> Params:
    return _type(s, str(s.rng.randrange(*s.of((2, 10), (10, 100), (100, 1000)))))


def _search(s: Sketch) -> Params:
    """Draw a search field with a button; at the last level it holds a text already."""
    word = s.one(vocabulary.THINGS)
    y, x = s.rng.uniform(20, 170), s.rng.uniform(6, 20)
    s.text(place(x, y - 20, 100, 18), "Search")
    s.field(place(x, y, 128, 30), "search", "search", s.one(vocabulary.PEOPLE) if s.level == 3 else "", enter=True)
    s.button(place(x + 134, y, 48, 30), "go", s.accent, click=["submit"])
    for number, label in enumerate(s.some(vocabulary.THINGS, s.of(0, 3, 5))):
        at = place(x + 6 + number % 3 * 66, (y + 50 if y < 100 else 10) + number // 3 * 30, 60, 24)
        s.add("card", at, fill="#ffffff", ink="#444c5c", words=label, font=12)
    return s.done({"search": word}, "submit", target=word)


def _form(s: Sketch) -> Params:
    labels = ["name", *s.some(("page", "item", "order"), s.of(1, 1, 2))]
    new = [
        s.one(vocabulary.PEOPLE),
        *(str(s.rng.randint(2, 99)) if label == "page" else s.one(vocabulary.THINGS) for label in labels[1:]),
    ]
    gap, x = s.of(66, 66, 54), s.rng.uniform(8, 70)
    filled = [new[0], ""] if s.level == 1 else [""] * len(labels)  # values at the start
    for number, (label, value) in enumerate(zip(labels, filled, strict=True)):
        s.text(place(x, 8 + number * gap, 120, 18), label.capitalize())
        s.field(place(x, 28 + number * gap, 130, 28), label, label, value, enter=True)
    s.button(place(x, 14 + len(labels) * gap, 80, 30), "send", s.accent, click=["submit"])
    asked = " and ".join(f"{value} in the {label} field" for label, value in zip(labels, new, strict=True))
    return s.done(dict(zip(labels, new, strict=True)), "submit", asked=asked)


def _backspace(s: Sketch) -> Params:
    """Draw a field with letters too many at its end; it has the focus, except at the last level."""
    word, many = s.one([word for word in vocabulary.THINGS if len(word) > 3]), s.of(2, 3, 3)
    extra = "".join(s.one("abdegilmnorstu") for _ in range(many))
    s.text(place(30, s.rng.uniform(10, 60), 150, 18), "Name")
    s.field(place(s.rng.uniform(8, 60), s.rng.uniform(84, 170), 150, 32), "name", "name", word + extra)
    s.view["focused"] = "name" if s.level < 3 else ""
    return s.done({"name": word}, target=word)


def _press(s: Sketch, pool: tuple[str, ...], count: int) -> Params:
    asked = s.some(pool, count)
    s.start["pressed"] = []
    names = [" ".join(key.replace("+", " ").split()) for key in asked]
    x, y = s.rng.uniform(24, 60), s.rng.uniform(40, 120)
    s.add("ground", place(x - 14, y - 30, 160, 96))
    s.text(place(x, y - 26, 130, 20), "Keys", font=13)
    width = 40 if count == 3 else 62
    for number in range(count):  # boxes that show the keys pressed so far
        s.add("key", place(x + number * (width + 6), y, width, 36), index=number)
    return s.done({"pressed": asked}, "list", listens=True, asked=", then ".join(names))


def _arrows(s: Sketch) -> Params:
    return _press(
        s,
        s.of(vocabulary.KEYS, (*vocabulary.KEYS, "enter", "space"), (*vocabulary.KEYS, "enter", "space", "tab", "esc")),
        s.of(2, 3, 3),
    )


def _hotkey(s: Sketch) -> Params:
    simple = tuple(f"ctrl+{letter}" for letter in "abcdfghklmopsuxyz")
    harder = (*(f"ctrl+shift+{letter}" for letter in "abdefghks"), *(f"alt+{letter}" for letter in "abdeghks"))
    return _press(s, s.of(simple, simple, harder), s.of(1, 2, 2))


def _tab(s: Sketch) -> Params:
    """Draw fields that the keyboard alone reaches: the mouse does nothing."""
    labels = s.some(_LABELS, s.of(3, 4, 4))
    _fields(s, labels, [""] * len(labels))
    s.start["focus"], s.view["focused"] = labels[0], labels[0]
    target = labels[s.of(1, 2, 3)]
    return s.done({"focus": target}, target=target, keys_only=True)


def _copy_word(s: Sketch) -> Params:
    """Draw words on cards, one of which is to be typed."""
    count = s.of(1, 3, 4)
    shown = [
        s.one(vocabulary.READING) if s.level < 3 or number else str(s.rng.randint(10, 999)) for number in range(count)
    ]
    if len(set(shown)) < count:
        raise Again
    colours = s.some(vocabulary.COLOURS, count)
    height = s.of(40, 34, 28)
    for number, (text, name) in enumerate(zip(shown, colours, strict=True)):
        at = place(s.rng.uniform(8, 60), 8 + number * (height + 4), 140, height)
        look = "framed" if name in ("white", "gray") else ""
        s.add("card", at, words=text, fill=s.paint(name), ink=text_colour(name), look=look, font=s.of(20, 18, 16))
    y = s.rng.uniform(24 + count * (height + 4), 180)
    s.field(place(s.rng.uniform(8, 70), y, 140, 30), "text", "text")
    target = s.rng.randrange(count)
    return s.done({"text": shown[target]}, target=f"{colours[target]} card")


def _copy_paste(s: Sketch) -> Params:
    """Draw a random code to copy and paste, by buttons (level 1) or by keys."""
    code = "".join(s.one("abcdefghkmnprstuvwxyz") for _ in range(s.of(6, 8, 8)))
    s.start["text"] = ""
    if s.level == 1:
        x, y = s.rng.uniform(6, 16), s.rng.uniform(20, 60)
        s.view["code"] = code
        s.add("shown", place(x, y, 120, 30), key="code", fill="#ffffff", ink="#1b1f27", look="card framed")
        s.button(place(x + 128, y, 66, 30), "copy", s.accent, click=["copy", "code"])
        y += s.rng.uniform(60, 90)
        s.field(place(x, y, 120, 30), "text", "text")
        s.button(place(x + 128, y, 66, 30), "paste", s.accent, click=["paste", "text"])
        return s.done({"text": code}, source="the code")
    text = s.some(vocabulary.THINGS, s.of(3, 3, 9))
    text.insert(s.rng.randrange(len(text) + 1), code)
    s.add("ground", place(8, 8, 208, s.of(60, 66, 120)))
    s.add("words", place(18, 12, 188, 100), list=text)
    s.view["selected"] = ""
    s.field(place(s.rng.uniform(8, 70), s.rng.uniform(s.of(90, 90, 140), 184), 140, 30), "text", "text")
    return s.done({"text": code}, source=code, marks=True)


def _select(s: Sketch) -> Params:
    """Draw a text of which one word, or several neighbouring ones, are to be selected."""
    text = s.some([word for word in vocabulary.READING if len(word) > 2], s.of(6, 12, 20))
    s.add("ground", place(8, 8, 208, 208))
    s.add("words", place(18, 14, 188, 196), list=text)
    s.start["selected"] = ""
    first = s.rng.randrange(len(text))
    last = first if s.level == 1 else min(len(text) - 1, first + s.rng.randint(1, s.of(1, 3, 5)))
    target = " ".join(text[first : last + 1])
    asked = f"the word {text[first]}" if first == last else f"from {text[first]} to {text[last]}"
    return s.done({"selected": target}, asked=asked, marks=True)


def _marker(s: Sketch) -> Params:
    """Draw a board of squares with a marker that the arrow keys move."""
    cells = s.of(4, 6, 8)
    side = 200 / cells
    x = y = 12.0
    away = s.of((2, 3), (4, 6), (6, 9))
    col, row, goal_col, goal_row = (s.rng.randrange(cells) for _ in range(4))
    if not away[0] <= abs(col - goal_col) + abs(row - goal_row) <= away[1]:
        raise Again
    for number in range(cells * cells):
        s.add("cell", place(x + number % cells * side, y + number // cells * side, side, side))
    sign, name = s.one(("star", "heart", "house", "key")), s.one(("red", "green", "purple", "orange"))
    at = place(x + goal_col * side + 3, y + goal_row * side + 3, side - 6, side - 6)
    s.add("shape", at, icon=sign, fill=s.paint(name))
    s.start |= {"col": col, "row": row}
    dot = s.one([other for other in ("blue", "black", "pink") if other != name])
    s.add("marker", place(x, y, 200, 200), icon="circle", fill=s.paint(dot), side=round(side, 2))
    steps = {"left": ["col", -1], "right": ["col", 1], "up": ["row", -1], "down": ["row", 1]}
    keys = {key: ["add", axis, by, 0, cells - 1] for key, (axis, by) in steps.items()}
    return s.done({"col": goal_col, "row": goal_row}, keys=keys, dot=dot, sign=sign)


def _hold(s: Sketch) -> Params:
    """Draw a bar that grows by a unit each 100 ms while a key is held; it must end in the coloured part."""
    key = s.one(vocabulary.KEYS if s.level > 1 else ("right",))
    most, width = 20, s.of(8, 6, 5)
    low = s.rng.randint(4, most - width - 2)
    name = s.one(("green", "orange", "pink", "yellow"))
    s.view["bar"], s.start["picked"] = 0, ""
    y = s.rng.uniform(60, 140)
    s.text(place(12, y - 34, 200, 24), f"Hold {key}", look="")
    s.add("bar", place(12, y, 200, s.of(40, 32, 26)), key="bar", most=most, goal=[low, low + width], fill=s.paint(name))
    return s.done({"picked": "in"}, "pick", hold=key, ticks=400, most=most, colour=name)


KINDS = (
    Kind("type_word", "Type {text} in the {label} field.", (4, 4, 5), _word),
    Kind("type_number", "Type {text} in the {label} field.", (4, 4, 5), _number),
    Kind("search", "Search for {target}.", (4, 4, 5), _search),
    Kind("form", "Type {asked}, then click send.", (5, 7, 9), _form),
    Kind("backspace", "Delete letters until the field says {target}.", (4, 5, 6), _backspace),
    Kind("press_keys", "Press {asked}.", (3, 4, 4), _arrows),
    Kind("hotkeys", "Press {asked}.", (2, 3, 3), _hotkey),
    Kind("tab", "Press tab until you are in the {target} field.", (2, 3, 4), _tab),
    Kind("copy_word", "Type the word on the {target} in the field.", (4, 4, 4), _copy_word),
    Kind("copy_paste", "Copy {source} and paste it in the field.", (4, 6, 6), _copy_paste),
    Kind("select", "Select {asked}.", (2, 2, 3), _select),
    Kind("move_marker", "Move the {dot} circle to the {sign}.", (5, 8, 12), _marker),
    Kind("hold_key", "Hold the {hold} key until the bar is in the {colour} part, then let go.", (12, 12, 12), _hold),
)
