"""Serve the lists and conversations of the mailbox, and actions on one or many conversations."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flywheel.envs.suites.forms import Invalid
from flywheel.envs.suites.mail.data import FOLDERS, TODAY, make_records
from flywheel.envs.suites.site import Page, Records, Site, Visit, site_address

A_PAGE = 10
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_ICONS = {
    "inbox": "M3 4h18v16H3zM5 6v8h4l1 2h4l1-2h4V6z",
    "starred": "M12 2l3 7h7l-5.700 4.400L18.500 21 12 16.600 5.500 21l2.200-7.600L2 9h7z",
    "sent": "M2 3l20 9-20 9 3-8 9-1-9-1z",
    "drafts": "M3 17v4h4L19 9l-4-4zM16 4l4 4 2-2-4-4z",
    "archive": "M3 3h18v5H3zM4 9h16v12H4zM9 12v2h6v-2z",
    "spam": "M8 2h8l6 6v8l-6 6H8l-6-6V8zM11 6v8h2V6zM11 16v2h2v-2z",
    "trash": "M9 2h6v2h5v2H4V4h5zM5 8h14l-1 14H6z",
}
_LIST = re.compile(r"([a-z]+(/[a-z0-9]+)?)?(\?[\w=&%+.\-]*)?", re.ASCII)  # an address of a list, to go back to
# action on a conversation -> notice shown after it
_DONE = {
    "archive": "Moved to the archive.",
    "trash": "Moved to the trash.",
    "spam": "Moved to spam.",
    "inbox": "Moved to the inbox.",
    "erase": "Deleted forever.",
    "star": "Starred.",
    "unstar": "The star is gone.",
    "read": "Marked as read.",
    "unread": "Marked as unread.",
}


def folder_path(folder: str) -> str:
    return "" if folder == "inbox" else f"folder/{folder}"


def _common(visit: Visit) -> dict[str, Any]:
    records = visit.records
    fresh = sum(one["unread"] for one in records["threads"].values() if one["folder"] == "inbox")
    counts = {"inbox": fresh, "drafts": len(records["drafts"])}
    return {
        "accent": "#b3261e",
        "accent_soft": "#fbe4e1",
        "me": records["_me"],
        "labels": records["labels"],
        "folders": [
            (folder_path(key), visit.t(title), counts.get(key) or "", _ICONS[key]) for key, title in FOLDERS.items()
        ],
        "name_of": lambda one: name_of(records, one),
        "written": lambda one: written(visit, one),
        "back": back(visit.query.get("list", "")),
        "icons": _ICONS,
    }


site = Site(Path(__file__).parent, make_records, common=_common)


# -- what a list and a conversation are made of -----------------------------------------------------------------------
def name_of(records: Records, who: str) -> str:
    """Return the name for an address: that of the contacts, or the sender's own."""
    for one in records["contacts"].values():
        if one["email"] == who:
            return one["name"]
    return records["_people"].get(who, who)


def written(visit: Visit, message: dict[str, Any]) -> str:
    """Format when a message was written: its time if today, else its day."""
    _, month, day = message["_day"].split("-")
    if message["_day"] == TODAY:
        return message["_time"]
    if visit.t.language == "zh":
        return f"{int(month)}月{int(day)}日"
    return f"{_MONTHS[int(month) - 1]} {int(day)}"


def messages_of(records: Records, key: str) -> dict[str, dict[str, Any]]:
    """Return the messages of a conversation by key, oldest first."""
    mine = [(name, one) for name, one in records["messages"].items() if one["_thread"] == key]
    return dict(sorted(mine, key=lambda item: (item[1]["_day"], item[1]["_time"], int(item[0][1:]))))


def listed(records: Records, folder: str) -> list[str]:
    """List the keys of the conversations of a folder or view; those in "sent" have a message of the user's own."""
    threads, me = records["threads"], records["_me"]["email"]
    if folder == "sent":
        sent = {one["_thread"] for one in records["messages"].values() if one["from"] == me}
        return [key for key, one in threads.items() if key in sent and one["folder"] not in ("trash", "spam")]
    if folder == "starred":
        return [key for key, one in threads.items() if one["starred"] and one["folder"] not in ("trash", "spam")]
    return [key for key, one in threads.items() if one["folder"] == folder]


def back(path: str) -> str:
    """Return where a conversation's "back" leads: the list `path` that it was opened from; "" (inbox) if that is
    none."""
    return path if _LIST.fullmatch(path) and not path.startswith("thread") else ""


def _rows(visit: Visit, keys: Iterable[str]) -> list[dict[str, Any]]:
    """Return the rows of a list of conversations, in the order that the settings say."""
    records, me, rows = visit.records, visit.records["_me"]["email"], []
    for key in keys:
        inside = list(messages_of(records, key).values())
        thread, last = records["threads"][key], inside[-1]
        if all(one["from"] == me for one in inside):
            who = visit.t("To: {names}", names=", ".join(name_of(records, one) for one in last["to"]))
        else:
            names = [visit.t("me") if one["from"] == me else name_of(records, one["from"]) for one in inside]
            who = ", ".join(dict.fromkeys(names))
        rows.append(
            {
                "key": key,
                "who": who,
                "count": len(inside),
                "when": written(visit, last),
                "text": last["text"],
                "files": any(one["files"] for one in inside),
                "at": (last["_day"], last["_time"]),
                **thread,
            }
        )
    return sorted(rows, key=lambda row: row["at"], reverse=records["settings"]["sort"] == "newest")


def _list(visit: Visit, heading: str, keys: Iterable[str], kind: str, **values: Any) -> Page:
    rows = _rows(visit, keys)
    count = max(1, -(-len(rows) // A_PAGE))
    number = visit.number("page", 1, 1, count)
    first = (number - 1) * A_PAGE
    shown = rows[first : first + A_PAGE]
    span = visit.t("{a}-{b} of {n}", a=first + 1, b=first + len(shown), n=len(rows)) if rows else ""
    return Page.of(
        "list.html",
        heading=heading,
        rows=shown,
        span=span,
        number=number,
        count=count,
        kind=kind,
        all=visit.query.get("all") == "1",
        ask=visit.query.get("ask"),
        **{"sought": {}, **values},
    )


@site.page("")
def inbox(visit: Visit) -> Page:
    return _list(visit, visit.t("Inbox"), listed(visit.records, "inbox"), "inbox")


@site.page("folder/<folder>")
def folder(visit: Visit, folder: str) -> Page | None:
    if folder == "drafts":
        return Page.of("drafts.html", heading=visit.t("Drafts"), drafts=visit.records["drafts"])
    if folder not in FOLDERS or folder == "inbox":
        return None
    return _list(visit, visit.t(FOLDERS[folder]), listed(visit.records, folder), folder)


@site.page("label/<key>")
def label(visit: Visit, key: str) -> Page | None:
    if (one := visit.records["labels"].get(key)) is None:
        return None
    threads = visit.records["threads"].items()
    keys = [name for name, thread in threads if key in thread["labels"] and thread["folder"] not in ("trash", "spam")]
    return _list(visit, one["name"], keys, "label")


@site.page("search")
def search(visit: Visit) -> Page:
    """Show the conversations that contain every word, those of trash and spam only if `in` names them.

    The query's `from`, `subject`, `file` and `in` narrow it.
    """
    asked = {name: visit.query.get(name, "") for name in ("q", "from", "subject", "in", "file")}
    wanted = visit.option("in", ("", *(one for one in FOLDERS if one not in ("drafts", "starred"))))
    records, keys = visit.records, []
    for key in listed(records, wanted) if wanted else records["threads"]:
        thread, inside = records["threads"][key], messages_of(records, key).values()
        if not wanted and thread["folder"] in ("trash", "spam"):
            continue
        said = " ".join(f"{one['text']} {_sender(records, one)}" for one in inside)
        if (
            _holds(asked["q"], f"{thread['subject']} {said}")
            and _holds(asked["subject"], thread["subject"])
            and any(_holds(asked["from"], _sender(records, one)) for one in inside)
            and (not asked["file"] or any(one["files"] for one in inside))
        ):
            keys.append(key)
    folders = [("", visit.t("All mail"))]
    folders += [(key, visit.t(title)) for key, title in FOLDERS.items() if key not in ("drafts", "starred")]
    return _list(
        visit,
        visit.t("Search results"),
        keys,
        "search",
        sought=asked,
        within=folders,
        narrow=visit.query.get("narrow") or any(asked[name] for name in asked if name != "q"),
    )


def _sender(records: Records, message: dict[str, Any]) -> str:
    return f"{message['from']} {name_of(records, message['from'])}"


def _holds(words: str, text: str) -> bool:
    return all(word in text.casefold() for word in words.casefold().split())


@site.page("thread/<key>")
def thread(visit: Visit, key: str) -> Page | None:
    if (one := visit.records["threads"].get(key)) is None:
        return None
    inside = messages_of(visit.records, key)
    return Page.of(
        "thread.html",
        heading=one["subject"],
        key=key,
        thread=one,
        messages=inside,
        last=list(inside)[-1],
        ask=visit.query.get("ask"),
        folder_name=visit.t(FOLDERS[one["folder"]]),
    )


# -- forms -------------------------------------------------------------------------------------------------------------
@site.form("open/<key>")
def open_thread(visit: Visit, key: str) -> str | None:
    """Open a conversation. A form, not a page, since it marks the conversation as read."""
    if (one := visit.records["threads"].get(key)) is None:
        return None
    one["unread"] = False
    return site_address(f"thread/{key}", list=back(visit.form.get("_at", "")))


@site.form("thread/<key>/labels")
def put_labels(visit: Visit, key: str) -> str | None:
    if (one := visit.records["threads"].get(key)) is None:
        return None
    one["labels"] = {name: True for name in visit.records["labels"] if visit.form.get(f"label_{name}")}
    visit.notice("The labels are saved.")
    return site_address(f"thread/{key}", list=back(visit.form.get("list", "")))


@site.form("thread/<key>/<what>")
def act_on(visit: Visit, key: str, what: str) -> str | None:
    if key not in visit.records["threads"] or what not in _DONE:
        return None
    act(visit.records, key, what)
    visit.notice(_DONE[what])
    start = back(visit.form.get("list", ""))
    return site_address(f"thread/{key}", list=start) if visit.form.get("stay") else start


def act(records: Records, key: str, what: str) -> None:
    """Do one of the actions of `_DONE` to a conversation. erase: deletes its messages too."""
    thread = records["threads"][key]
    if what in ("star", "unstar"):
        thread["starred"] = what == "star"
    elif what in ("read", "unread"):
        thread["unread"] = what == "unread"
    elif what == "erase":
        del records["threads"][key]
        for name in list(messages_of(records, key)):
            del records["messages"][name]
    else:
        thread["folder"] = what


@site.form("bulk")
def bulk(visit: Visit) -> str | None:
    """Do one action to all conversations that are ticked; `label l1` gives them the label l1."""
    records, what = visit.records, visit.form.get("do", "")
    labelled = what.removeprefix("label ") if what.startswith("label ") else ""
    if what not in _DONE and labelled not in records["labels"]:
        return None
    keys = [key for key in records["threads"] if visit.form.get(f"t_{key}")]
    if not keys:
        raise Invalid(bulk="Select some mails first.")
    for key in keys:
        if labelled:
            records["threads"][key]["labels"][labelled] = True
        else:
            act(records, key, what)
    visit.notice("{n} selected: done.", n=len(keys))
    return back(visit.form.get("list", ""))


@site.form("empty/<folder>")
def empty(visit: Visit, folder: str) -> str | None:
    if folder not in ("trash", "spam"):
        return None
    for key in listed(visit.records, folder):
        act(visit.records, key, "erase")
    visit.notice("It is empty now.")
    return f"folder/{folder}"
