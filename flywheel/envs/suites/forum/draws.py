"""Draw what several task templates of the forum need."""

from __future__ import annotations

from typing import Any

from flywheel.envs.suites.forum import threads
from flywheel.envs.suites.forum.data import ME, Records
from flywheel.envs.suites.forum.texts import BOARDS
from flywheel.envs.suites.site_tasks import Draw, Params, Redraw

SAYINGS = (
    "I had the same trouble last year.",
    "Try it with warm water first.",
    "Yes, it works, but take your time.",
    "Ask me again in a week.",
    "My sister knows all about this.",
    "It cost me ten dollars.",
    "Better late than never.",
    "I would wait until spring.",
    "That is a great idea!",
    "Has anybody tried the blue one?",
)


def draw_topic(d: Draw, **wanted: Any) -> Params:
    """Draw a topic of another member or, where fields are `wanted`, any topic that has their values."""
    key, one = d.pick(
        "topics", lambda t: all(t[name] == value for name, value in wanted.items()) if wanted else t["author"] != ME
    )
    return {"key": key, "title": one["title"]}


def draw_board(d: Draw) -> Params:
    board = d.rng.choice(list(BOARDS))
    return {"board": board, "name": d.t(BOARDS[board][0])}


def draw_post(d: Draw, fits: Any = lambda key, one: True) -> Params:
    """Draw a reply that `fits`, whose author, not the user, has no other reply in its topic and did not begin it."""
    records = d.records
    found = []
    for key, one in records["posts"].items():
        topic = records["topics"][one["topic"]]
        alone = sum(other["author"] == one["author"] for _, other in threads.replies(records, one["topic"])) == 1
        if one["author"] not in (ME, topic["author"]) and alone and fits(key, one):
            found.append(key)
    if not found:
        raise Redraw
    key = d.rng.choice(found)
    one = records["posts"][key]
    return {
        "post": key,
        "author": records["_users"][one["author"]]["name"],
        "key": one["topic"],
        "title": records["topics"][one["topic"]]["title"],
    }


def draw_member(d: Draw, friend: bool | None = None) -> Params:
    """Draw another member. friend: whether the user follows them; None: either."""
    friends = d.records["friends"]
    keys = [key for key in d.records["_users"] if key != ME and friend in (None, key in friends)]
    key = d.rng.choice(keys)
    return {"user": key, "name": d.records["_users"][key]["name"]}


def saying(d: Draw) -> str:
    return d.rng.choice(SAYINGS)


def topics_of(records: Records, board: str) -> list[str]:
    return [key for key, one in records["topics"].items() if one["board"] == board]


def most(records: Records, keys: list[str], measure: Any) -> str:
    """Return the key for which the measure is largest. Raises Redraw where it is not one alone."""
    ranked = sorted(keys, key=measure)
    if not ranked or (len(ranked) > 1 and measure(ranked[-1]) == measure(ranked[-2])):
        raise Redraw
    return ranked[-1]
