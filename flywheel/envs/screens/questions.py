"""Ask questions about a synthetic screen, with exact answers in the policy's own grammar.

In all functions: rng draws what is asked and its wording; coordinates: cells an axis of the answers' points; items:
what is on the screen.
"""

from __future__ import annotations

import random
from string import ascii_lowercase

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, Click, Drag, Finished, Hotkey, Point, Type
from flywheel.agent.parsing.parser import serialise_action
from flywheel.agent.prompt import format_response
from flywheel.envs.screens import vocabulary
from flywheel.envs.screens.scene import SceneBox, SceneItem, SceneQuestion

# Answers: points and actions as the policy writes them.


def format_point(point: Point, coordinates: int) -> str:
    """Return a point's two numbers as an answer writes them, such as "12 40"."""
    return serialise_action(Click(point), coordinates).split("<point>")[1].split("<")[0]


def format_answer(thought: str, action: Action, coordinates: int) -> str:
    """Return a response with a thought and an action, as the policy writes it."""
    return format_response(thought, serialise_action(action, coordinates))


# Questions on any screen: instructions to press keys, type, scroll, wait, double or right click, and drag.

_KEYS = ("enter", "tab", "esc", "backspace", "delete", "space", "home", "end", "pageup", "pagedown", *vocabulary.KEYS)
_SPOKEN = {"esc": "escape", "ctrl": "control", "pageup": "page up", "pagedown": "page down"}


def ask_gesture(rng: random.Random, named: list[tuple[str, SceneItem]], coordinates: int) -> SceneQuestion:
    """Ask for an action other than a plain click. named: items that may be acted on, each with a unique name."""
    makers = [_keys, _keys, _type, _type, _scroll, _wait]
    if named:
        makers += [_double_click, _right_click] * 2
    if len(named) > 1:
        makers += [_drag] * 2
    return rng.choice(makers)(rng, named, coordinates)


def _double_click(rng: random.Random, named: list[tuple[str, SceneItem]], coordinates: int) -> SceneQuestion:
    name, item = rng.choice(named)
    instruction = rng.choice((f"Double click the {name}.", f"Double click {name}.", f"Click the {name} twice."))
    response = format_answer(f"I double click the {name}.", act.LeftDouble(item.box.centre), coordinates)
    return SceneQuestion("double", instruction, response, (item.box,))


def _right_click(rng: random.Random, named: list[tuple[str, SceneItem]], coordinates: int) -> SceneQuestion:
    name, item = rng.choice(named)
    instruction = rng.choice((f"Right click the {name}.", f"Right click {name}.", f"Open the menu of the {name}."))
    response = format_answer(f"I right click the {name}.", act.RightSingle(item.box.centre), coordinates)
    return SceneQuestion("right", instruction, response, (item.box,))


def _drag(rng: random.Random, named: list[tuple[str, SceneItem]], coordinates: int) -> SceneQuestion:
    (name, item), (other, target) = rng.sample(named, 2)
    if item is target:
        return _double_click(rng, named, coordinates)
    where = rng.choice(("to", "into", "onto"))
    instruction = f"{rng.choice(('Drag', 'Move', 'Put'))} the {name} {where} the {other}."
    drag = Drag(item.box.centre, target.box.centre)
    response = format_answer(f"I drag the {name} to the {other}.", drag, coordinates)
    return SceneQuestion("drag", instruction, response, (item.box, target.box))


def _keys(rng: random.Random, named: list[tuple[str, SceneItem]], coordinates: int) -> SceneQuestion:
    if rng.random() < 0.5:
        keys: tuple[str, ...] = (rng.choice(_KEYS),)
    else:
        held = rng.choice((("ctrl",), ("ctrl",), ("alt",), ("shift",), ("ctrl", "shift")))
        keys = (*held, rng.choice(ascii_lowercase))
    spoken = " ".join(_SPOKEN.get(key, key) for key in keys)
    instruction = rng.choice((f"Press {' '.join(keys)}.", f"Press {spoken}.", f"Press {'+'.join(keys)}."))
    return SceneQuestion("key", instruction, format_answer(f"I press {spoken}.", Hotkey(keys), coordinates))


def _type(rng: random.Random, named: list[tuple[str, SceneItem]], coordinates: int) -> SceneQuestion:
    return ask_typing(draw_typed_text(rng), rng, coordinates)


def ask_typing(text: str, rng: random.Random, coordinates: int) -> SceneQuestion:
    """Ask to type `text`, in a wording drawn by `rng`; the question has the skill `type` and no boxes.

    coordinates: cells an axis of the grid of points, as for other questions; an answer that types has no point.
    """
    instruction = rng.choice((f"Type {text}.", f"Enter {text}.", f'Type "{text}".', f"Write {text}."))
    return SceneQuestion("type", instruction, format_answer(f"I type {text}.", Type(text), coordinates), copied=text)


def draw_typed_text(rng: random.Random) -> str:
    """Draw a text to type: a word, a number, or random letters, which can only be copied from the instruction."""
    number = str(rng.randrange(10 ** rng.randint(1, 4)))
    letters = "".join(rng.choices(ascii_lowercase, k=rng.randint(3, 7)))
    return rng.choice((rng.choice(vocabulary.READING), rng.choice(vocabulary.VALUES), number, letters))


def _scroll(rng: random.Random, named: list[tuple[str, SceneItem]], coordinates: int) -> SceneQuestion:
    way = rng.choice(("up", "down", "down", "left", "right"))
    instruction = rng.choice((f"Scroll {way}.", f"Move the page {way}.", f"Scroll the page {way}."))
    response = format_answer(f"I scroll {way}.", act.Scroll(Point(0.5, 0.5), way), coordinates)
    return SceneQuestion("scroll", instruction, response)


def _wait(rng: random.Random, named: list[tuple[str, SceneItem]], coordinates: int) -> SceneQuestion:
    shown = {name for name, _ in named}
    name = rng.choice([label for label in vocabulary.BUTTONS if label not in shown])
    response = format_answer(f"I wait for the {name} button.", act.Wait(), coordinates)
    return SceneQuestion("wait", f"Wait for the {name} button.", response)


# Questions about a scene's elements.

CLICK_VERBS = ("click", "click", "click", "open", "pick", "take", "select")


def ask_click(rng: random.Random, skill: str, name: str, box: SceneBox, coordinates: int) -> SceneQuestion:
    """Ask to click the thing called `name`, which is at `box`. skill: what the question tests."""
    verb = rng.choice(CLICK_VERBS)
    response = format_answer(f"I {verb} the {name}.", Click(box.centre), coordinates)
    return SceneQuestion(skill, f"{verb.capitalize()} the {name}.", response, (box,))


def uniquely_named(items: list[SceneItem]) -> list[tuple[str, SceneItem]]:
    """List (name, item) for each name that belongs to one item only, so that a question may use it."""
    called: dict[str, list[SceneItem]] = {}
    for item in items:
        for name in (item.name, *item.others):
            called.setdefault(name, []).append(item)
    return [(name, found[0]) for name, found in called.items() if len(found) == 1]


def ask_description(items: list[SceneItem], coordinates: int) -> SceneQuestion:
    """Ask for a description of the screen, row by row, eight items at most, which teaches to see all of the screen."""
    listed = sorted(items, key=lambda item: (int((item.box.y + item.box.h / 2) // 32), item.box.x))[:8]
    text = "; ".join(f"{item.name} {format_point(item.box.centre, coordinates)}" for item in listed)
    return SceneQuestion("describe", "Describe the screen.", text or "empty", tuple(item.box for item in listed))


def ask_name_at(item: SceneItem, coordinates: int) -> SceneQuestion:
    """Ask what is at the point in the centre of `item`; the answer is its name."""
    return SceneQuestion("ask", f"What is at {format_point(item.box.centre, coordinates)}?", item.name, seen=item.box)


def ask_text_at(rng: random.Random, items: list[SceneItem], coordinates: int, limit: int = 2) -> list[SceneQuestion]:
    """Ask what the text at a point says, for at most `limit` of the `items`, which are words and numbers."""
    chosen = rng.sample(items, min(limit, len(items)))
    asks = [f"What does it say at {format_point(item.box.centre, coordinates)}?" for item in chosen]
    return [SceneQuestion("read", ask, item.name, seen=item.box) for ask, item in zip(asks, chosen, strict=True)]


def ask_several_steps(rng: random.Random, items: list[SceneItem], coordinates: int) -> SceneQuestion:
    """Ask for the next of two or three clicks in turn; the instruction tells which are done: none, some or all."""
    chosen = rng.sample(items, min(len(items), rng.randint(2, 3)))
    verb = rng.choice(CLICK_VERBS)
    joint = " and " if len(chosen) == 2 or rng.random() < 0.5 else ", then "
    named = joint.join(f"the {item.name}" for item in chosen)
    done = rng.randint(0, len(chosen))
    text = f"{verb.capitalize()} {named}."
    if done:
        text += "\nDone: " + " ".join(f"I {verb} the {item.name}." for item in chosen[:done])
    if done == len(chosen):
        return SceneQuestion("steps", text, format_answer("I am done.", Finished(), coordinates))
    target = chosen[done]
    response = format_answer(f"I {verb} the {target.name}.", Click(target.box.centre), coordinates)
    return SceneQuestion("steps", text, response, (target.box,))


def ask_about_items(
    rng: random.Random, skill: str, items: list[SceneItem], coordinates: int, clicks: int = 5
) -> list[SceneQuestion]:
    """Ask the questions that every screen of clickable `items` has: to describe, click, name, take steps, gesture.

    skill: what the plain clicks test. clicks: their number at most.
    """
    questions = [ask_description(items, coordinates)]
    named = uniquely_named(items)
    for name, item in rng.sample(named, min(clicks, len(named))):
        questions.append(ask_click(rng, skill, name, item.box, coordinates))
    if items:
        questions.append(ask_name_at(rng.choice(items), coordinates))
    whole = [item for item in items if (item.name, item) in named]
    if len(whole) > 1 and rng.random() < 0.5:
        questions.append(ask_several_steps(rng, whole, coordinates))
    questions += [ask_gesture(rng, named, coordinates) for _ in range(2)]
    return questions
