"""Serve the pages and forms that write: topics, replies, votes, marks, reports, and what moderators do."""

from __future__ import annotations

import re
from typing import Any

from flywheel.envs.suites.forms import Field, Invalid, Wrong, one_of
from flywheel.envs.suites.forum import threads
from flywheel.envs.suites.forum.data import ME, REASONS
from flywheel.envs.suites.forum.pages import listed, sheet, site
from flywheel.envs.suites.forum.texts import BOARDS
from flywheel.envs.suites.site import Page, Visit

_TAG = re.compile(r"[a-z0-9-]{2,20}")
_MOST_TAGS = 3


def _long_enough(least: int) -> Any:
    return lambda text: "" if len(text) >= least else ("Write {n} characters or more.", {"n": least})


def _tags(text: str) -> Wrong:
    tags = _split(text)
    if len(tags) > _MOST_TAGS:
        return "Three tags at most."
    wrong = next((tag for tag in tags if not _TAG.fullmatch(tag)), None)
    return "Tags are small letters and digits, with commas between them." if wrong is not None else ""


def _split(text: str) -> list[str]:
    return list(dict.fromkeys(tag.strip().removeprefix("#") for tag in text.split(",") if tag.strip()))


_TITLE = Field("title", longest=100, check=_long_enough(6))
_TEXT = Field("text", longest=2000, check=_long_enough(3))


# -- topics ----------------------------------------------------------------------------------------------------------
@site.page("board/<board>/new")
def new_topic(visit: Visit, board: str) -> Page | None:
    if board not in BOARDS:
        return None
    blank = {"title": "", "tags": [], "text": ""}
    return Page.of(
        "write.html",
        heading=visit.t("New topic"),
        action=f"board/{board}/new",
        topic=blank,
        board=board,
        back=f"board/{board}",
        current=f"board/{board}",
    )


@site.form("board/<board>/new")
def begin(visit: Visit, board: str) -> str | None:
    if board not in BOARDS:
        return None
    read = visit.read(_TITLE, Field("tags", required=False, check=_tags), _TEXT)
    _free(visit, read["title"], "")
    visit.notice("Your topic is online.")
    return f"topic/{threads.add_topic(visit.records, board, read['title'], _split(read['tags']), read['text'])}"


def _free(visit: Visit, title: str, key: str) -> None:
    """Check that no topic but `key` has the title. Raises Invalid where one has."""
    for other, one in visit.records["topics"].items():
        if other != key and one["title"].casefold() == title.casefold():
            raise Invalid(title="There is a topic of this title.")


@site.page("topic/<key>/edit")
def edit_topic(visit: Visit, key: str) -> Page | None:
    if (one := _own_topic(visit, key)) is None:
        return None
    return Page.of(
        "write.html",
        heading=visit.t("Edit the topic"),
        action=f"topic/{key}/edit",
        topic=one,
        board=one["board"],
        back=f"topic/{key}",
        current=f"board/{one['board']}",
    )


@site.form("topic/<key>/edit")
def save_topic(visit: Visit, key: str) -> str | None:
    if (one := _own_topic(visit, key)) is None:
        return None
    read = visit.read(_TITLE, Field("tags", required=False, check=_tags), _TEXT)
    _free(visit, read["title"], key)
    one |= {"title": read["title"], "tags": _split(read["tags"]), "text": read["text"]}
    visit.notice("Saved.")
    return f"topic/{key}"


@site.form("topic/<key>/delete")
def delete_topic(visit: Visit, key: str) -> str | None:
    """Delete a topic of the user's own, as long as nobody has replied."""
    if (one := _own_topic(visit, key)) is None or threads.replies(visit.records, key):
        return None
    for collection in ("topics", "votes", "saved", "followed"):
        visit.records[collection].pop(key, None)
    for alert in [name for name, each in visit.records["alerts"].items() if each["topic"] == key]:
        del visit.records["alerts"][alert]
    visit.notice("The topic is deleted.")
    return f"board/{one['board']}"


def _own_topic(visit: Visit, key: str) -> dict[str, Any] | None:
    one = visit.records["topics"].get(key)
    return one if one and one["author"] == ME else None


@site.form("topic/<key>/follow")
def follow(visit: Visit, key: str) -> str | None:
    if key not in visit.records["topics"]:
        return None
    if visit.records["followed"].pop(key, None) is None:
        visit.records["followed"][key] = True
        visit.notice("You follow this topic.")
    else:
        visit.notice("You follow this topic no longer.")
    return "following" if visit.form.get("back") == "following" else f"topic/{key}"


# -- replies ---------------------------------------------------------------------------------------------------------
@site.page("topic/<key>/reply")
def reply(visit: Visit, key: str) -> Page | None:
    one, quote = visit.records["topics"].get(key), visit.query.get("quote", "")
    if one is None or not _may_reply(visit, key):
        return None
    quote = quote if threads.find_post(visit.records, quote) and threads.topic_of(visit.records, quote) == key else ""
    return Page.of(
        "reply.html",
        heading=visit.t("Reply"),
        key=key,
        topic=one,
        quote=quote,
        quoted=threads.find_post(visit.records, quote),
        current=f"board/{one['board']}",
    )


@site.form("topic/<key>/reply")
def send_reply(visit: Visit, key: str) -> str | None:
    if key not in visit.records["topics"] or not _may_reply(visit, key):
        return None
    text, quote = visit.read(_TEXT)["text"], visit.form.get("quote", "")
    known = threads.find_post(visit.records, quote) and threads.topic_of(visit.records, quote) == key
    post = threads.add_reply(visit.records, key, text, quote if known else "")
    visit.notice("Your reply is online.")
    return threads.place(visit.records, post)


def _may_reply(visit: Visit, key: str) -> bool:
    return not visit.records["topics"][key]["locked"] or threads.moderates(visit.records, key)


@site.page("post/<key>/edit")
def edit_post(visit: Visit, key: str) -> Page | None:
    if (one := _own_post(visit, key)) is None:
        return None
    return Page.of(
        "edit.html", heading=visit.t("Edit your reply"), key=key, post=one, topic=visit.records["topics"][one["topic"]]
    )


@site.form("post/<key>/edit")
def save_post(visit: Visit, key: str) -> str | None:
    if (one := _own_post(visit, key)) is None:
        return None
    one["text"] = visit.read(_TEXT)["text"]
    visit.notice("Saved.")
    return threads.place(visit.records, key)


@site.form("post/<key>/delete")
def delete_post(visit: Visit, key: str) -> str | None:
    """Delete a reply of the user's own or, as a moderator of its board, any."""
    one = visit.records["posts"].get(key)
    if one is None or not (one["author"] == ME or threads.moderates(visit.records, one["topic"])):
        return None
    threads.drop(visit.records, key)
    visit.notice("The reply is deleted.")
    return "reports" if visit.form.get("back") == "reports" else f"topic/{one['topic']}"


def _own_post(visit: Visit, key: str) -> dict[str, Any] | None:
    one = visit.records["posts"].get(key)
    return one if one and one["author"] == ME else None


@site.page("mine")
def mine(visit: Visit) -> Page:
    tab = visit.option("tab", ("topics", "replies", "saved"))
    topics, posts = visit.records["topics"], visit.records["posts"]
    rows = listed(visit, [key for key, one in topics.items() if one["author"] == ME], "new")
    chosen = {"replies": [key for key, one in posts.items() if one["author"] == ME], "saved": visit.records["saved"]}
    written = [
        (
            key,
            threads.find_post(visit.records, key),
            threads.place(visit.records, key),
            topics[threads.topic_of(visit.records, key)]["title"],
        )
        for key in chosen.get(tab, ())
    ]
    return Page.of("mine.html", heading=visit.t("My posts"), tab=tab, topics=rows, written=written)


# -- votes, marks, reports ---------------------------------------------------------------------------------------------
@site.page("say/<key>/report")
def report(visit: Visit, key: str) -> Page | None:
    one = threads.find_post(visit.records, key)
    if one is None or one["author"] == ME:
        return None
    return Page.of(
        "report.html",
        heading=visit.t("Report this post"),
        key=key,
        post=one,
        back=threads.place(visit.records, key),
        options=list(REASONS.items()),
    )


@site.form("say/<key>/report")
def send_report(visit: Visit, key: str) -> str | None:
    one = threads.find_post(visit.records, key)
    if one is None or one["author"] == ME:
        return None
    read = visit.read(Field("reason", check=one_of(REASONS)), Field("note", required=False, longest=300))
    if read["reason"] == "other" and not read["note"]:
        raise Invalid(note="Say what is wrong with it.")
    name = threads.fresh(visit.records, "reports", "r")
    visit.records["reports"][name] = {
        "on": key,
        "by": ME,
        "reason": read["reason"],
        "note": read["note"],
        "state": "open",
    }
    visit.notice("Thank you, a moderator will look at it.")
    return threads.place(visit.records, key)


@site.form("say/<key>/<what>")
def mark(visit: Visit, key: str, what: str) -> str | None:
    """Vote a post or topic up or down, or save it or undo that."""
    one = threads.find_post(visit.records, key)
    if one is None or what not in ("up", "down", "save") or (one["author"] == ME and what != "save"):
        return None
    if what != "save":
        threads.vote(visit.records, key, 1 if what == "up" else -1)
    elif visit.records["saved"].pop(key, None) is None:
        visit.records["saved"][key] = True
        visit.notice("It is among your saved posts.")
    return "mine?tab=saved" if visit.form.get("back") == "saved" else threads.place(visit.records, key)


# -- moderators --------------------------------------------------------------------------------------------------------
@site.form("topic/<key>/<what>/switch")
def switch(visit: Visit, key: str, what: str) -> str | None:
    if what not in ("pinned", "locked") or key not in visit.records["topics"] or not _moderator(visit, key):
        return None
    visit.records["topics"][key][what] = not visit.records["topics"][key][what]
    return f"topic/{key}"


@site.form("topic/<key>/move")
def move(visit: Visit, key: str) -> str | None:
    if key not in visit.records["topics"] or not _moderator(visit, key):
        return None
    visit.records["topics"][key]["board"] = board = visit.read(Field("board", check=one_of(BOARDS)))["board"]
    visit.notice("The topic is now in {board}.", board=visit.t(BOARDS[board][0]))
    return f"topic/{key}"


def _moderator(visit: Visit, key: str) -> bool:
    return threads.moderates(visit.records, key)


@site.page("reports")
def reports(visit: Visit) -> Page:
    tab = visit.option("tab", ("open", "closed"))
    rows = threads.open_reports(visit.records)
    closed = [(key, one) for key, one in visit.records["reports"].items() if one["by"] != ME and one["state"] != "open"]
    return Page.of(
        "reports.html",
        heading=visit.t("Reports"),
        tab=tab,
        ask=visit.query.get("ask", ""),
        topic_of=lambda key: threads.topic_of(visit.records, key),
        place=lambda key: threads.place(visit.records, key),
        said=lambda key: threads.find_post(visit.records, key),
        **sheet(visit, rows if tab == "open" else closed, 5),
    )


@site.form("reports/<key>/dismiss")
def dismiss(visit: Visit, key: str) -> str | None:
    if key not in dict(threads.open_reports(visit.records)):
        return None
    visit.records["reports"][key]["state"] = "dismissed"
    visit.notice("The report is closed.")
    return "reports"
