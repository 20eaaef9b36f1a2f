"""Instructions for every verb of the action grammar but a plain click: what is said is done at once, on any screen."""

from __future__ import annotations

import random
from string import ascii_lowercase

from flywheel import words
from flywheel.agent.actions import Drag, Hotkey, LeftDouble, Point, RightSingle, Scroll, Type, Wait
from flywheel.scenes.answers import act
from flywheel.scenes.scene import Item, Question

_KEYS = ("enter", "tab", "esc", "backspace", "delete", "space", "home", "end", "pageup", "pagedown", *words.KEYS)
_SPOKEN = {"esc": "escape", "ctrl": "control", "pageup": "page up", "pagedown": "page down"}


def gesture(rng: random.Random, named: list[tuple[str, Item]], coordinates: int) -> Question:
    """One of them. named: what may be meant, each by a name that means it alone."""
    makers = [_keys, _keys, _type, _type, _scroll, _wait]
    if named:
        makers += [_double_click, _right_click] * 2
    if len(named) > 1:
        makers += [_drag] * 2
    return rng.choice(makers)(rng, named, coordinates)


def _double_click(rng: random.Random, named: list[tuple[str, Item]], coordinates: int) -> Question:
    name, item = rng.choice(named)
    said = rng.choice((f"Double click the {name}.", f"Double click {name}.", f"Click the {name} twice."))
    response = act(f"I double click the {name}.", LeftDouble(item.box.centre), coordinates)
    return Question("double", said, response, (item.box,))


def _right_click(rng: random.Random, named: list[tuple[str, Item]], coordinates: int) -> Question:
    name, item = rng.choice(named)
    said = rng.choice((f"Right click the {name}.", f"Right click {name}.", f"Open the menu of the {name}."))
    response = act(f"I right click the {name}.", RightSingle(item.box.centre), coordinates)
    return Question("right", said, response, (item.box,))


def _drag(rng: random.Random, named: list[tuple[str, Item]], coordinates: int) -> Question:
    (name, item), (other, target) = rng.sample(named, 2)
    if item is target:
        return _double_click(rng, named, coordinates)
    where = rng.choice(("to", "into", "onto"))
    said = f"{rng.choice(('Drag', 'Move', 'Put'))} the {name} {where} the {other}."
    response = act(f"I drag the {name} to the {other}.", Drag(item.box.centre, target.box.centre), coordinates)
    return Question("drag", said, response, (item.box, target.box))


def _keys(rng: random.Random, named: list[tuple[str, Item]], coordinates: int) -> Question:
    if rng.random() < 0.5:
        keys: tuple[str, ...] = (rng.choice(_KEYS),)
    else:
        held = rng.choice((("ctrl",), ("ctrl",), ("alt",), ("shift",), ("ctrl", "shift")))
        keys = (*held, rng.choice(ascii_lowercase))
    spoken = " ".join(_SPOKEN.get(key, key) for key in keys)
    said = rng.choice((f"Press {' '.join(keys)}.", f"Press {spoken}.", f"Press {'+'.join(keys)}."))
    return Question("key", said, act(f"I press {spoken}.", Hotkey(keys), coordinates))


def _type(rng: random.Random, named: list[tuple[str, Item]], coordinates: int) -> Question:
    return typing(content(rng), rng, coordinates)


def typing(text: str, rng: random.Random, coordinates: int) -> Question:
    said = rng.choice((f"Type {text}.", f"Enter {text}.", f'Type "{text}".', f"Write {text}."))
    return Question("type", said, act(f"I type {text}.", Type(text), coordinates), copied=text)


def content(rng: random.Random) -> str:
    """What is typed: a word, a number, or letters that are no word, which can only be copied from the instruction."""
    number = str(rng.randrange(10 ** rng.randint(1, 4)))
    letters = "".join(rng.choices(ascii_lowercase, k=rng.randint(3, 7)))
    return rng.choice((rng.choice(words.READING), rng.choice(words.VALUES), number, letters))


def _scroll(rng: random.Random, named: list[tuple[str, Item]], coordinates: int) -> Question:
    way = rng.choice(("up", "down", "down", "left", "right"))
    said = rng.choice((f"Scroll {way}.", f"Move the page {way}.", f"Scroll the page {way}."))
    return Question("scroll", said, act(f"I scroll {way}.", Scroll(Point(0.5, 0.5), way), coordinates))


def _wait(rng: random.Random, named: list[tuple[str, Item]], coordinates: int) -> Question:
    shown = {name for name, _ in named}
    name = rng.choice([label for label in words.BUTTONS if label not in shown])
    return Question("wait", f"Wait for the {name} button.", act(f"I wait for the {name} button.", Wait(), coordinates))
