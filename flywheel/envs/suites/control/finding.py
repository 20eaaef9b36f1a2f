"""Draw pages on which something has to be opened, turned to, scrolled to, answered or waited for before its use."""

from __future__ import annotations

from typing import Any

from flywheel.envs.screens import vocabulary
from flywheel.envs.screens.scene import text_colour
from flywheel.envs.suites.control.sketch import Item, Kind, Sketch, place, wide
from flywheel.envs.suites.number_words import cardinal

Params = dict[str, Any]
_MENUS = ("edit", "open", "share", "print", "help", "search")
_ENTRIES = ("save", "copy", "paste", "undo", "delete", "send", "close", "reset", "add", "play")
_PLACES = ("mail", "music", "photos", "maps", "calendar", "storage", "power", "network")
_PICTURES = ("mug", "hat", "shirt", "shoe", "lamp", "ball", "bag", "book", "star", "heart", "moon", "key", "leaf")


def _rows_of(s: Sketch, labels: list[str], width: float, height: float) -> list[Item]:
    """Return coloured cards with these `labels`, one below the other, for the inside of a scroller."""
    rows = []
    for number, label in enumerate(labels):
        name = s.one(("red", "green", "blue", "yellow", "purple", "orange"))
        about = {
            "words": label.capitalize(),
            "name": label,
            "say": label,
            "fill": s.paint(name),
            "ink": text_colour(name),
        }
        rows.append({"kind": "card", "box": place(6, 4 + number * height, width, height - 4), "look": "item", **about})
    return rows


def _scroll_page(s: Sketch) -> Params:
    """Draw a list longer than the page."""
    height, count = s.of(44, 36, 30), s.of(8, 14, 24)
    labels = s.some(vocabulary.THINGS, count)
    rows = _rows_of(s, labels, 212, height)
    s.add("scroller", place(0, 0, 224, 224), name="list", height=count * height + 4, items=rows)
    hidden = [row for row in rows if row["box"][1] > 224]
    return s.pick(rows, target=s.one(hidden))


def _scroll_box(s: Sketch) -> Params:
    """Draw a list in a scrolling box; much longer at the last level."""
    height, count = 30, s.of(9, 14, 20)
    x, y = s.rng.uniform(8, 60), s.rng.uniform(34, 60)
    label = s.one(("item", "page", "order", "name"))
    s.text(place(x, y - 22, 120, 20), label.capitalize())
    rows = _rows_of(s, s.some(vocabulary.THINGS, count), 138, height)
    s.add("scroller", place(x, y, 150, 150), name="list", height=count * height + 4, items=rows)
    return s.pick(rows, target=s.one([row for row in rows if row["box"][1] > 160]))


def _tabs(s: Sketch) -> Params:
    """Draw tabs with things on them."""
    count, things = s.of(2, 3, 4), s.of(1, 3, 5)
    labels = s.some([label for label in _PLACES if len(label) <= 24 // count], count)
    s.view["tab"] = labels[0]
    width = 212 / count
    for number, label in enumerate(labels):
        at = place(6 + number * width, 10, width - 2, 30)
        s.add(
            "tab", at, words=label.capitalize(), name=f"{label} tab", click=["show", "tab", label], lit=["tab", label]
        )
    s.add("ground", place(6, 40, 212, 176), fill="#ffffff")
    drawn: list[Item] = []
    for label in labels:
        for cell, noun in zip(s.rng.sample(range(6), things), s.some(_PICTURES, things), strict=True):
            name = s.one(("red", "green", "blue", "purple", "orange", "black"))
            at = place(20 + cell % 3 * 66, 54 + cell // 3 * 80, 52, 52)
            named = {"name": f"{label} {noun}", "say": f"the {name} {noun}", "when": ["tab", label]}
            drawn.append(s.block(at, name, noun, **named))
    target = s.one([item for item in drawn if item["when"][1] != labels[0]])
    tab, noun = target["when"][1], target["icon"]
    return s.pick(drawn, target=target, asked=f"Open the {tab} tab and click the {noun}")


def _accordion(s: Sketch) -> Params:
    """Draw sections that fold, of which one is open at a time."""
    labels = s.some(_PLACES, s.of(3, 4, 4))
    inner = s.of(1, 2, 3)
    folded, space = 30, 36
    s.view["part"] = ""
    drawn: list[Item] = []
    things = iter(s.some(vocabulary.THINGS, len(labels) * inner))
    for number, label in enumerate(labels):
        for opened in ("", *labels):  # where this head stands depends on which part is open
            after = opened and labels.index(opened) < number
            y = 6 + number * (folded + 3) + (space if after else 0)
            about = {"words": label.capitalize(), "name": f"{label} part", "look": "start framed"}
            at, when = place(8, y, 208, folded), ["part", opened]
            s.add("button", at, fill="#ffffff", ink="#1b1f27", click=["fold", "part", label], when=when, **about)
            s.add("shape", place(192, y + 9, 12, 12), icon="down", fill="#444c5c", bare=True, when=when)
        y = 6 + (number + 1) * (folded + 3)
        for place_ in range(inner):
            thing = next(things)
            at = place(12 + place_ * 68, y, 66 if inner > 1 else 120, space - 4)
            about = {"words": thing, "name": thing, "say": thing, "when": ["part", label], "part": label}
            name = s.one(("green", "blue", "purple", "orange"))
            drawn.append(
                s.add("card", at, fill=s.paint(name), ink=text_colour(name), font=13 if inner > 1 else 15, **about)
            )
    target = s.one(drawn)
    return s.pick(drawn, target=target, asked=f"Open the {target['part']} part and click {target['name']}")


def _menu(s: Sketch) -> Params:
    """Draw a bar of menus; at the last level some entries open another menu."""
    heads = s.some([one for one in _MENUS if len(one) <= 5], s.of(2, 3, 3))
    entries = s.of(2, 4, 4)
    s.view["open"], s.start["picked"] = "", ""
    s.add("ground", place(0, 0, 224, 34), look="", fill="#ffffff")
    pool = iter(s.some(_ENTRIES, 10) + s.some(vocabulary.THINGS, 20))
    leaves = []
    for number, head in enumerate(heads):
        x = 4 + number * 72
        about = {"name": f"{head} menu", "click": ["fold", "open", head]}
        s.add("button", place(x, 3, 68, 28), words=head.capitalize(), fill="#dfe3ea", ink="#1b1f27", **about)
    for number, head in enumerate(heads):
        x = min(4 + number * 72, 104) if s.level < 3 else (4, 90, 90)[number]
        more = next(pool) if s.level == 3 else ""
        shown = ["open", [head, f"{head} more"]] if more else ["open", head]
        s.add("ground", place(x, 34, 110, entries * 27 + 6), look="raised", when=shown)
        for row in range(entries):
            at = place(x + 3, 37 + row * 27, 104, 26)
            if more and row == entries - 1:
                about = {
                    "words": f"{more} >",
                    "name": f"{more} more",
                    "say": more,
                    "click": ["show", "open", f"{head} more"],
                }
                s.add("card", at, fill="#ffffff", ink="#1b1f27", look="start button", when=shown, **about)
                side = x + 110 if x < 60 else x - 84
                s.add("ground", place(side, 37 + row * 27 - 30, 84, 60), look="raised", when=["open", f"{head} more"])
                for inner in range(2):
                    word = next(pool)
                    spot = place(side + 3, 37 + row * 27 - 27 + inner * 27, 78, 26)
                    leaves.append((_entry(s, spot, word, when=["open", f"{head} more"]), (head, more, word)))
            else:
                word = next(pool)
                leaves.append((_entry(s, at, word, when=shown), (head, word)))
    deep = [leaf for leaf in leaves if len(leaf[1]) == s.of(2, 2, 3)]
    target, way = s.one(deep)
    asked = f"Open the {way[0]} menu{f', then {way[1]},' if len(way) > 2 else ''} and click {way[-1]}"
    for item, _ in leaves:
        item["click"] = ["set", "picked", item["name"]]
    return s.done({"picked": target["name"]}, "pick", asked=asked)


def _entry(s: Sketch, at: list[float], word: str, **fields: Any) -> Item:
    about = {"words": word, "name": f"{word} entry", "say": word, "look": "start button"}
    return s.add("card", at, fill="#ffffff", ink="#1b1f27", **{**about, **fields})


def _context(s: Sketch) -> Params:
    """Draw things that each have a menu of their own, opened by a right click."""
    count, entries = s.of(2, 4, 6), s.of(2, 3, 4)
    nouns, names = s.some(_PICTURES[:8], count), s.some(vocabulary.COLOURS, count)
    labels = s.some([one for one in _ENTRIES if len(one) < 6], entries)
    s.view["open"], s.start["picked"] = "", ""
    places = s.grid(count, 2 if count < 6 else 3, s.of(56, 50, 44), s.of(30, 26, 20))
    for at, noun, name in zip(places, nouns, names, strict=True):
        s.block(at, name, noun, name=noun, right=["show", "open", noun])
    for at, noun in zip(places, nouns, strict=True):
        x, y = min(at[0] + at[2] / 2, 136), min(at[1] + at[3] / 2, 216 - entries * 26)
        s.add("ground", place(x, y, 84, entries * 25 + 6), look="raised", when=["open", noun])
        for row, label in enumerate(labels):
            about = {"name": f"{noun} {label}", "click": ["set", "picked", f"{noun} {label}"], "when": ["open", noun]}
            _entry(s, place(x + 3, y + 3 + row * 25, 78, 24), label, **about)
    noun, label = s.one(nouns), s.one(labels)
    return s.done({"picked": f"{noun} {label}"}, "pick", noun=noun, label=label)


def _dialog(s: Sketch) -> Params:
    """Draw a dialog over the page: to close, to answer, or (last level) to open first."""
    nouns = s.some(vocabulary.THINGS, 3)
    s.view["dialog"], s.start["picked"] = "" if s.level == 3 else nouns[0], ""
    for number, noun in enumerate(nouns):
        y = 12 + number * 66
        s.add("ground", place(8, y, 208, 56))
        s.text(place(18, y, 100, 56), noun.capitalize())
        at = place(132, y + 13, 74, 30)
        about = {"name": f"delete {noun}", "say": f"delete beside {noun}"}
        s.button(at, "delete", "red", **{**about, "click": ["show", "dialog", noun]})
    for noun in nouns if s.level == 3 else nouns[:1]:
        shown = {"when": ["dialog", noun]}
        top = s.rng.uniform(30, 80)
        s.add("ground", place(0, 0, 224, 224), look="shade", name="shade", click=["show", "dialog", noun], **shown)
        s.add("ground", place(22, top, 180, 104), look="raised", **shown)
        s.text(place(34, top + 12, 140, 20), f"Delete {noun}?", **shown)
        s.add(
            "block",
            place(172, top + 8, 22, 22),
            icon="cancel",
            fill="#e8ebf0",
            ink="#1b1f27",
            name=f"{noun} cross",
            **shown,
        )
        s.items[-1] |= {"click": ["set", "picked", f"{noun} cross"], "say": "the cross"}
        for number, answer in enumerate(s.some(("yes", "no"), 2)):
            about = {"name": f"{noun} {answer}", "click": ["set", "picked", f"{noun} {answer}"]}
            s.button(
                place(36 + number * 82, top + 58, 70, 32),
                answer,
                s.one(("white", "blue", "green")),
                **{**about, **shown},
            )
    if s.level == 1:
        s.start["picked"], how = "", s.one(("cross", "cross", "yes", "no"))
        asked = "Close the box with the cross" if how == "cross" else f"Click {how} in the box"
        return s.done({"picked": f"{nouns[0]} {how}"}, "pick", asked=asked)
    if s.level == 2:
        how = s.one(("yes", "no", "cross"))
        asked = {
            "yes": f"Say yes: delete {nouns[0]}",
            "no": f"Say no: keep {nouns[0]}",
            "cross": "Close the box with the cross",
        }
        return s.done({"picked": f"{nouns[0]} {how}"}, "pick", asked=asked[how])
    noun = s.one(nouns)
    return s.done({"picked": f"{noun} yes"}, "pick", asked=f"Delete {noun} and say yes")


def _pages(s: Sketch) -> Params:
    """Draw a list in pages, with page numbers below; at the last level with arrows alone."""
    count, rows = s.of(2, 4, 5), s.of(2, 3, 4)
    labels = s.some(vocabulary.THINGS, count * rows)
    s.view["page"] = 1
    drawn: list[Item] = []
    height = 168 / rows
    for number, label in enumerate(labels):
        page, row = number // rows + 1, number % rows
        name = s.one(("red", "green", "blue", "purple", "orange"))
        at = place(10, 8 + row * height, 204, height - 6)
        about = {"words": label.capitalize(), "name": label, "say": label, "when": ["page", page], "look": "item"}
        drawn.append(s.add("card", at, fill=s.paint(name), ink=text_colour(name), **about))
    if s.level < 3:
        for page in range(1, count + 1):
            x = 112 + (page - 1 - count / 2) * 38
            about = {
                "name": f"page {page}",
                "say": f"page {cardinal(page)}",
                "click": ["show", "page", page],
                "lit": ["page", page],
            }
            s.add(
                "button",
                place(x + 3, 186, 32, 30),
                words=str(page),
                fill="#ffffff",
                ink="#1b1f27",
                look="framed",
                **about,
            )
    else:
        for sign, by, x in (("previous", -1, 40), ("next", 1, 152)):
            about = {"name": f"{sign} page", "click": ["add", "page", by, 1, count]}
            s.add("button", place(x, 186, 34, 30), words="<" if by < 0 else ">", fill=s.look["accent"], **about)
        s.add("shown", place(80, 186, 66, 30), key="page")
    target = s.one(drawn[rows : s.of(4, 12, 12)])
    return s.pick(drawn, target=target, page=target["when"][1])


def _info(s: Sketch) -> Params:
    """Draw words, each with a sign that shows a number on a click; one of the numbers is to be typed."""
    labels = s.some(vocabulary.THINGS, s.of(2, 3, 4))
    numbers = s.some(range(*s.of((2, 10), (10, 100), (10, 100))), len(labels))
    s.view["open"], s.start["number"] = "", ""
    height = 34
    for number, label in enumerate(labels):
        y = 6 + number * (height + 4)
        s.add("ground", place(6, y, 212, height))
        s.text(place(14, y, 110, height), label.capitalize())
        about = {"name": f"sign {label}", "say": f"the sign beside {label}", "click": ["fold", "open", label]}
        s.add("card", place(178, y + 5, 26, 24), words="?", fill=s.look["accent"], look="item", **about)
    y = 6 + len(labels) * (height + 4) + 22
    s.text(place(14, y - 20, 100, 18), "Number")
    s.field(place(14, y, 120, 28), "number", "number")
    for number, (label, value) in enumerate(zip(labels, numbers, strict=True)):
        at = place(124, 6 + number * (height + 4) + 3, 48, 28)
        s.add("ground", at, look="raised", when=["open", label], fill="#fff7d6")
        s.text(at, str(value), when=["open", label], look="")
    target = s.rng.randrange(len(labels))
    return s.done({"number": str(numbers[target])}, label=labels[target], first=["open", labels[target]])


def _wait(s: Sketch) -> Params:
    """Draw a button that appears after a while, among others that are not the target."""
    ticks = s.rng.randint(*s.of((5, 8), (8, 14), (10, 20)))
    labels = s.words(s.of(1, 3, 5))
    places = s.spots([(wide(label), 30) for label in labels])
    buttons = []
    for number, (label, at) in enumerate(zip(labels, places, strict=True)):
        fill = s.one(("blue", "green", "orange", "purple"))
        buttons.append(s.button(at, label, fill, **({"after": ticks} if number == 0 else {})))
    return s.pick(buttons, target=buttons[0], label=labels[0], ticks=ticks)


KINDS = (
    Kind("scroll_page", "Scroll down and click {target}.", (4, 6, 9), _scroll_page),
    Kind("scroll_box", "Scroll in the list and click {target}.", (4, 6, 8), _scroll_box),
    Kind("tabs", "{asked}.", (3, 3, 3), _tabs),
    Kind("accordion", "{asked}.", (3, 3, 3), _accordion),
    Kind("menu", "{asked}.", (3, 3, 4), _menu),
    Kind("context_menu", "Right click the {noun} and click {label}.", (3, 3, 3), _context),
    Kind("dialog", "{asked}.", (2, 2, 3), _dialog),
    Kind("pages", "Go to page {page} and click {target}.", (3, 3, 6), _pages),
    Kind("info", "Click the sign beside {label} and type its number in the field.", (4, 5, 5), _info),
    Kind("wait", "Wait for the {label} button, then click it.", (6, 9, 12), _wait),
)
