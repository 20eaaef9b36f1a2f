"""Read and change topics and posts of the forum: their relations, permissions, and the effects of a change."""

from __future__ import annotations

from typing import Any

from flywheel.envs.suites.forum.data import ME, TODAY, Records

POSTS_A_PAGE = 6


def replies(records: Records, topic: str) -> list[tuple[str, dict[str, Any]]]:
    """List the replies to a topic, (key, post) each, oldest first."""
    return [(key, one) for key, one in records["posts"].items() if one["topic"] == topic]


def counts(records: Records) -> dict[str, int]:
    """Count the replies of each topic."""
    found = dict.fromkeys(records["topics"], 0)
    for one in records["posts"].values():
        found[one["topic"]] = found.get(one["topic"], 0) + 1
    return found


def last_days(records: Records) -> dict[str, str]:
    """Map each topic to the day of its last post."""
    found = {key: one["day"] for key, one in records["topics"].items()}
    for one in records["posts"].values():
        found[one["topic"]] = max(one["day"], found.get(one["topic"], ""))
    return found


def find_post(records: Records, key: str) -> dict[str, Any] | None:
    """Return the reply or topic `key`; None where there is none."""
    return records["topics"].get(key) or records["posts"].get(key)


def topic_of(records: Records, key: str) -> str:
    """Return the key of a post's topic, or that of the topic itself."""
    return records["posts"][key]["topic"] if key in records["posts"] else key


def score(records: Records, key: str) -> int:
    """Return the votes of a post: those of others and the user's own."""
    return (find_post(records, key) or {}).get("_score", 0) + records["votes"].get(key, 0)


def page_of(records: Records, post: str) -> int:
    """Return the page of its topic that a post is on, from 1; a topic's own text is on the first."""
    if post in records["topics"]:
        return 1
    keys = [key for key, _ in replies(records, records["posts"][post]["topic"])]
    return keys.index(post) // POSTS_A_PAGE + 1


def place(records: Records, key: str) -> str:
    """Return the address of a post, on the right page of its topic."""
    number = page_of(records, key)
    return f"topic/{topic_of(records, key)}{f'?page={number}' if number > 1 else ''}#{key}"


def moderates(records: Records, topic: str) -> bool:
    return records["topics"][topic]["board"] in records["_moderates"]


def fresh(records: Records, collection: str, letter: str) -> str:
    """Return a key for a new entry, which no entry has had before."""
    known = (int(key[1:]) for key in records[collection])
    number = records[f"_{collection}"] = max(records.get(f"_{collection}", 0), *known, 0) + 1
    return f"{letter}{number}"


def add_topic(records: Records, board: str, title: str, tags: list[str], text: str) -> str:
    """Add a topic of the user's; return its key."""
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
    """Add a reply of the user's; return its key."""
    key = fresh(records, "posts", "p")
    records["posts"][key] = {"topic": topic, "author": ME, "text": text, "day": TODAY, "quote": quote, "_score": 0}
    return key


def vote(records: Records, key: str, way: int) -> None:
    """Vote on a post, `way` 1 or -1; the same vote again takes it back."""
    if records["votes"].get(key) == way:
        del records["votes"][key]
    else:
        records["votes"][key] = way


def drop(records: Records, post: str) -> None:
    """Delete a reply with the user's vote and mark on it, and close the open reports on it."""
    del records["posts"][post]
    records["votes"].pop(post, None)
    records["saved"].pop(post, None)
    for one in records["reports"].values():
        if one["on"] == post and one["state"] == "open":
            one["state"] = "removed"


def open_reports(records: Records) -> list[tuple[str, dict[str, Any]]]:
    """List the open reports of others on the boards that the user moderates, (key, report) each."""
    return [
        (key, one)
        for key, one in records["reports"].items()
        if one["state"] == "open" and one["by"] != ME and moderates(records, topic_of(records, one["on"]))
    ]
