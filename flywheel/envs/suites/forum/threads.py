"""Topics and posts of the forum: their relations, permissions, and the effects of a change."""

from __future__ import annotations

from typing import Any

from flywheel.envs.suites.forum.data import ME, TODAY, Records

POSTS_A_PAGE = 6


def replies(records: Records, topic: str) -> list[tuple[str, dict[str, Any]]]:
    """Replies to a topic, oldest first."""
    return [(key, one) for key, one in records["posts"].items() if one["topic"] == topic]


def counts(records: Records) -> dict[str, int]:
    """Topic -> number of replies."""
    found = dict.fromkeys(records["topics"], 0)
    for one in records["posts"].values():
        found[one["topic"]] = found.get(one["topic"], 0) + 1
    return found


def last_days(records: Records) -> dict[str, str]:
    """Topic -> day of its last post."""
    found = {key: one["day"] for key, one in records["topics"].items()}
    for one in records["posts"].values():
        found[one["topic"]] = max(one["day"], found.get(one["topic"], ""))
    return found


def said(records: Records, key: str) -> dict[str, Any] | None:
    """Return a post or the first one of a topic, by its key."""
    return records["topics"].get(key) or records["posts"].get(key)


def topic_of(records: Records, key: str) -> str:
    """Return the topic of a post, or the topic itself."""
    return records["posts"][key]["topic"] if key in records["posts"] else key


def score(records: Records, key: str) -> int:
    """Votes of others, and the own one."""
    return (said(records, key) or {}).get("_score", 0) + records["votes"].get(key, 0)


def page_of(records: Records, post: str) -> int:
    """Return the page of its topic that a post stands on, from 1; the first post of a topic stands on the first."""
    if post in records["topics"]:
        return 1
    keys = [key for key, _ in replies(records, records["posts"][post]["topic"])]
    return keys.index(post) // POSTS_A_PAGE + 1


def place(records: Records, key: str) -> str:
    """Address of a post, on the right page of its topic."""
    number = page_of(records, key)
    return f"topic/{topic_of(records, key)}{f'?page={number}' if number > 1 else ''}#{key}"


def moderates(records: Records, topic: str) -> bool:
    return records["topics"][topic]["board"] in records["_moderates"]


def fresh(records: Records, collection: str, letter: str) -> str:
    """Return a key for a new entry, which nothing had before."""
    known = (int(key[1:]) for key in records[collection])
    number = records[f"_{collection}"] = max(records.get(f"_{collection}", 0), *known, 0) + 1
    return f"{letter}{number}"


def add_topic(records: Records, board: str, title: str, tags: list[str], text: str) -> str:
    """Add a topic of the user; returns its key."""
    key = fresh(records, "topics", "t")
    records["topics"][key] = {
        "board": board,
        "title": title,
        "text": text,
        "tags": tags,
        "author": ME,
        "day": TODAY,
        "pinned": False,
        "locked": False,
        "_score": 0,
        "_views": 0,
    }
    return key


def add_reply(records: Records, topic: str, text: str, quote: str = "") -> str:
    """Add a reply of the user; returns its key."""
    key = fresh(records, "posts", "p")
    records["posts"][key] = {"topic": topic, "author": ME, "text": text, "day": TODAY, "quote": quote, "_score": 0}
    return key


def vote(records: Records, key: str, way: int) -> None:
    """Vote; the same vote again takes it back."""
    if records["votes"].get(key) == way:
        del records["votes"][key]
    else:
        records["votes"][key] = way


def drop(records: Records, post: str) -> None:
    """Take a post away: with it go votes, marks and open reports."""
    del records["posts"][post]
    records["votes"].pop(post, None)
    records["saved"].pop(post, None)
    for one in records["reports"].values():
        if one["on"] == post and one["state"] == "open":
            one["state"] = "removed"


def open_reports(records: Records) -> list[tuple[str, dict[str, Any]]]:
    """Reports that wait for this moderator."""
    return [
        (key, one)
        for key, one in records["reports"].items()
        if one["state"] == "open" and one["by"] != ME and moderates(records, topic_of(records, one["on"]))
    ]
