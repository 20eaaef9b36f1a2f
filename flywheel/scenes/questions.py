"""What is asked of scenes, in the words and the action grammar of the policy."""

from __future__ import annotations

import random

from flywheel.agent.actions import Click, Finished
from flywheel.scenes.answers import act, spot
from flywheel.scenes.gestures import gesture
from flywheel.scenes.scene import Box, Item, Question

VERBS = ("click", "click", "click", "open", "pick", "take", "select")


def click(rng: random.Random, skill: str, name: str, box: Box, coordinates: int) -> Question:
    verb = rng.choice(VERBS)
    response = act(f"I {verb} the {name}.", Click(box.centre), coordinates)
    return Question(skill, f"{verb.capitalize()} the {name}.", response, (box,))


def unique(items: list[Item]) -> list[tuple[str, Item]]:
    """Names that mean one item only."""
    called: dict[str, list[Item]] = {}
    for item in items:
        for name in (item.name, *item.others):
            called.setdefault(name, []).append(item)
    return [(name, found[0]) for name, found in called.items() if len(found) == 1]


def describe(items: list[Item], coordinates: int, limit: int = 8) -> Question:
    """The dense description, row by row: it teaches to see the whole screen."""
    listed = sorted(items, key=lambda item: (int((item.box.y + item.box.h / 2) // 32), item.box.x))[:limit]
    text = "; ".join(f"{item.name} {spot(item.box.centre, coordinates)}" for item in listed)
    return Question("describe", "Describe the screen.", text or "empty", tuple(item.box for item in listed))


def ask_at(item: Item, coordinates: int) -> Question:
    return Question("ask", f"What is at {spot(item.box.centre, coordinates)}?", item.name, seen=item.box)


def read_at(rng: random.Random, items: list[Item], coordinates: int, limit: int = 2) -> list[Question]:
    """Some of the words and numbers, asked for by where they are."""
    chosen = rng.sample(items, min(limit, len(items)))
    said = [f"What does it say at {spot(item.box.centre, coordinates)}?" for item in chosen]
    return [Question("read", ask, item.name, seen=item.box) for ask, item in zip(said, chosen, strict=True)]


def several(rng: random.Random, items: list[Item], coordinates: int) -> Question:
    """Two or three sub-steps, of which the memory says that some are done."""
    chosen = rng.sample(items, min(len(items), rng.randint(2, 3)))
    verb = rng.choice(VERBS)
    if len(chosen) == 2 or rng.random() < 0.5:
        said = " and ".join(f"the {item.name}" for item in chosen)
    else:
        said = ", then ".join(f"the {item.name}" for item in chosen)
    done = rng.randint(0, len(chosen))
    text = f"{verb.capitalize()} {said}."
    if done:
        text += "\nDone: " + " ".join(f"I {verb} the {item.name}." for item in chosen[:done])
    if done == len(chosen):
        return Question("steps", text, act("I am done.", Finished(), coordinates))
    target = chosen[done]
    response = act(f"I {verb} the {target.name}.", Click(target.box.centre), coordinates)
    return Question("steps", text, response, (target.box,))


def about(rng: random.Random, skill: str, items: list[Item], coordinates: int, clicks: int = 5) -> list[Question]:
    """The questions that every screen of clickable things has."""
    questions = [describe(items, coordinates)]
    named = unique(items)
    for name, item in rng.sample(named, min(clicks, len(named))):
        questions.append(click(rng, skill, name, item.box, coordinates))
    if items:
        questions.append(ask_at(rng.choice(items), coordinates))
    whole = [item for item in items if (item.name, item) in named]
    if len(whole) > 1 and rng.random() < 0.5:
        questions.append(several(rng, whole, coordinates))
    questions += [gesture(rng, named, coordinates) for _ in range(2)]
    return questions
