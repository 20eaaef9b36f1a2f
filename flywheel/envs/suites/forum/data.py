"""Generate the data of the forum from a seed: boards with topics and replies, people, messages, reports."""

from __future__ import annotations

import random
from datetime import date, timedelta
from typing import Any

from flywheel.envs.suites.forum import texts
from flywheel.envs.suites.forum.texts import BOARDS, PLACES

Records = dict[str, Any]
TODAY = "2026-01-01"
ME = "u0"
REASONS = {"spam": "Spam", "rude": "Rude", "topic": "Off topic", "other": "Something else"}
_A_BOARD = 11  # topics of a board


def make_records(rng: random.Random, language: str) -> Records:
    """Draw the records of a session. `_users` never change; what the session's user wrote has the author u0."""
    names = rng.sample(texts.PEOPLE, 19)
    users = {f"u{number}": _user(rng, name) for number, name in enumerate(names)}
    records: Records = {
        "_users": users,
        "_moderates": rng.sample(list(BOARDS), 2),
        "topics": {},
        "posts": {},
        "votes": {},
        "followed": {},
        "friends": {},
        "saved": {},
        "talks": {},
        "alerts": {},
        "reports": {},
        "profile": {
            "place": users[ME]["place"],
            "about": users[ME]["about"],
            "signature": "",
            "mail_replies": rng.random() < 0.5,
            "mail_news": rng.random() < 0.5,
        },
    }
    drafts = [(board, *topic) for board in BOARDS for topic in rng.sample(texts.TOPICS[board], _A_BOARD)]
    rng.shuffle(drafts)
    others = [key for key in users if key != ME]
    for number, (board, title, text, tags) in enumerate(drafts, 1):
        begun = rng.randint(2, 90)
        records["topics"][f"t{number}"] = {
            "board": board,
            "title": title,
            "text": text,
            "tags": list(tags),
            "author": ME if number in (5, 17, 29) else rng.choice(others),
            "day": days_ago(begun),
            "pinned": False,
            "locked": False,
            "_score": rng.randint(-2, 40),
            "_views": rng.randint(20, 2000),
        }
        _fill(rng, records, f"t{number}", begun, others)
    _mark(rng, records, others)
    for number, subject in enumerate(rng.sample(list(texts.LETTERS), 5), 1):
        records["talks"][f"m{number}"] = _talk(rng, subject, others[number - 1], number <= 2)
    return records


def days_ago(count: int) -> str:
    return (date.fromisoformat(TODAY) - timedelta(days=count)).isoformat()


def _user(rng: random.Random, name: str) -> dict[str, str]:
    return {
        "name": name,
        "place": rng.choice(PLACES),
        "about": rng.choice(texts.ABOUT),
        "since": days_ago(rng.randint(100, 3000)),
    }


def _fill(rng: random.Random, records: Records, key: str, begun: int, others: list[str]) -> None:
    """Add replies to a topic, few in most, several pages of them in some. begun: days since the topic began."""
    count = rng.randint(8, 15) if rng.random() < 0.14 else rng.randint(0, 4)
    pool = rng.sample((*texts.REPLIES[records["topics"][key]["board"]], *texts.ANYWHERE), count)
    days = sorted((rng.randint(0, begun) for _ in range(count)), reverse=True)
    mine: list[str] = []
    for text, ago in zip(pool, days, strict=True):
        post = f"p{len(records['posts']) + 1}"
        records["posts"][post] = {
            "topic": key,
            "author": rng.choice(others),
            "text": text,
            "day": days_ago(ago),
            "quote": rng.choice(mine) if mine and rng.random() < 0.2 else "",
            "_score": rng.randint(-3, 25),
        }
        mine.append(post)


def _mark(rng: random.Random, records: Records, others: list[str]) -> None:
    """Draw the user's own replies, votes, follows, saved posts and alerts, and reports on the boards they moderate."""
    topics, posts = records["topics"], records["posts"]
    for key in rng.sample([k for k, one in topics.items() if one["author"] != ME and len(_replies(records, k)) > 1], 5):
        posts[rng.choice(_replies(records, key))]["author"] = ME
    for key in rng.sample([k for k, one in posts.items() if one["author"] != ME], 12):
        records["votes"][key] = rng.choice((1, 1, -1))
    ours = [key for key, one in topics.items() if one["author"] == ME]
    free = [key for key in topics if key not in ours]
    for key in rng.sample(free, 5):
        records["followed"][key] = True
    for key in rng.sample(free, 4):
        records["votes"][key] = 1
    for key in rng.sample(free, 3):
        topics[key]["locked"] = True
    for board in BOARDS:
        topics[rng.choice([key for key, one in topics.items() if one["board"] == board])]["pinned"] = True
    records["friends"] = {key: True for key in rng.sample(others, 4)}
    records["saved"] = {key: True for key in rng.sample([k for k, one in posts.items() if one["author"] != ME], 4)}
    for number, key in enumerate((*ours, *rng.sample(free, 2)), 1):
        kind = "reply" if number <= len(ours) else "mention"
        records["alerts"][f"a{number}"] = {"who": rng.choice(others), "topic": key, "kind": kind, "unread": number != 2}
    watched = [k for k, one in topics.items() if one["board"] in records["_moderates"] and not one["locked"]]
    for number, key in enumerate(rng.sample(watched, 4), 1):
        post = f"p{len(posts) + 1}"
        author, by = rng.sample(others, 2)
        posts[post] = {
            "topic": key,
            "author": author,
            "text": texts.RUDE[number - 1],
            "day": days_ago(1),
            "quote": "",
            "_score": -rng.randint(1, 9),
        }
        records["reports"][f"r{number}"] = {
            "on": post,
            "by": by,
            "reason": "spam" if number % 2 else "rude",
            "note": "",
            "state": "open",
        }


def _replies(records: Records, topic: str) -> list[str]:
    return [key for key, one in records["posts"].items() if one["topic"] == topic]


def _talk(rng: random.Random, subject: str, who: str, unread: bool) -> dict[str, Any]:
    facts = {
        "place": rng.choice(PLACES),
        "day": rng.randint(4, 28),
        "price": rng.randint(12, 95),
        "row": rng.randint(3, 11),
        "page": rng.randint(20, 380),
    }
    said, asked = texts.LETTERS[subject]
    letters = [{"from": who, "text": f"{said.format(**facts)} {asked}", "day": days_ago(rng.randint(1, 20))}]
    return {"with": who, "subject": subject, "letters": letters, "_facts": facts, "_unread": unread}
