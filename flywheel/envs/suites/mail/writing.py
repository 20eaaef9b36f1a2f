"""Serve the pages and forms that write: a new mail, an answer, a forwarded mail, drafts of these."""

from __future__ import annotations

import re
from typing import Any

from flywheel.envs.suites.forms import Field, Invalid, Wrong, email
from flywheel.envs.suites.mail.data import NOW, TODAY
from flywheel.envs.suites.mail.pages import site
from flywheel.envs.suites.site import Page, Records, Visit

KINDS = {"reply": "Reply", "all": "Reply to all", "forward": "Forward"}
_MOST = 20  # receivers of a mail


def blank(records: Records, kind: str, answered: str) -> dict[str, Any]:
    """Return the fields of a new mail. kind: reply, all, forward or "". answered: key of the message that it is
    about."""
    if not answered:
        return {"to": [], "cc": [], "subject": "", "text": "", "kind": "", "answers": ""}
    one, me = records["messages"][answered], records["_me"]["email"]
    to = one["to"] if one["from"] == me else [one["from"]]
    cc = [who for who in (*one["to"], *one["cc"]) if who != me and who not in to] if kind == "all" else []
    bare = re.sub(r"^((Re|Fwd): )+", "", one["subject"])
    if kind == "forward":
        to = []
    return {
        "to": to,
        "cc": cc,
        "subject": f"{'Fwd' if kind == 'forward' else 'Re'}: {bare}",
        "text": "",
        "kind": kind,
        "answers": answered,
    }


def _editor(visit: Visit, heading: str, mail: dict[str, Any], action: str) -> Page:
    about = visit.records["messages"].get(mail["answers"])
    show = {name: ", ".join(mail[name]) for name in ("to", "cc")}
    return Page.of(
        "compose.html",
        heading=heading,
        mail=mail,
        show=show,
        action=action,
        about=about,
        signature=visit.records["settings"]["signature"],
    )


@site.page("compose")
def compose(visit: Visit) -> Page:
    mail = blank(visit.records, "", "") | {"to": [visit.query["to"]] if visit.query.get("to") else []}
    return _editor(visit, visit.t("New mail"), mail, "write/new")


@site.page("<kind>/<key>/write")
def answer(visit: Visit, kind: str, key: str) -> Page | None:
    if kind not in KINDS or key not in visit.records["messages"]:
        return None
    return _editor(visit, visit.t(KINDS[kind]), blank(visit.records, kind, key), f"write/{kind}/{key}")


@site.page("draft/<key>")
def draft(visit: Visit, key: str) -> Page | None:
    if (one := visit.records["drafts"].get(key)) is None:
        return None
    return _editor(visit, visit.t("Draft"), one, f"draft/{key}")


@site.form("write/new")
def write_new(visit: Visit) -> str | None:
    return _finish(visit, "", "", "")


@site.form("write/<kind>/<key>")
def write_answer(visit: Visit, kind: str, key: str) -> str | None:
    if kind not in KINDS or key not in visit.records["messages"]:
        return None
    return _finish(visit, kind, key, "")


@site.form("draft/<key>")
def write_draft(visit: Visit, key: str) -> str | None:
    if (one := visit.records["drafts"].get(key)) is None:
        return None
    return _finish(visit, one["kind"], one["answers"], key)


@site.form("draft/<key>/discard")
def discard(visit: Visit, key: str) -> str | None:
    if visit.records["drafts"].pop(key, None) is None:
        return None
    visit.notice("The draft is gone.")
    return "folder/drafts"


def _finish(visit: Visit, kind: str, answered: str, draft: str) -> str | None:
    """Send what was typed, save it as a draft, or discard it, as the pressed button says."""
    what, records = visit.form.get("do", "send"), visit.records
    if what == "discard":
        records["drafts"].pop(draft, None)
        visit.notice("The draft is gone.")
        return "folder/drafts" if draft else ""
    sending = what == "send"
    fields = visit.read(
        Field("to", required=sending, longest=500),
        Field("cc", required=False, longest=500),
        Field("subject", required=sending),
        Field("text", required=sending, longest=2000),
    )
    mail = {"subject": fields["subject"], "text": fields["text"].replace("\r\n", "\n")}
    mail |= {"kind": kind, "answers": answered}
    wrong: dict[str, Wrong] = {}
    for name in ("to", "cc"):
        mail[name], unknown = people(records, fields[name])
        if unknown and sending:
            wrong[name] = unknown
    if wrong:
        raise Invalid(**wrong)
    records["drafts"].pop(draft, None)
    if sending:
        send(records, mail)
        visit.notice("The mail is sent.")
        thread = records["messages"][answered]["_thread"] if answered in records["messages"] else ""
        return f"thread/{thread}" if thread else ""
    records["_count"] += 1
    records["drafts"][draft or f"d{records['_count']}"] = mail
    visit.notice("The draft is saved.")
    return "folder/drafts"


def people(records: Records, typed: str) -> tuple[list[str], Wrong]:
    """Convert the typed names and addresses to addresses; return also what is wrong with them ("": nothing)."""
    found, wrong = [], ""
    known = {one["name"].casefold(): one["email"] for one in records["contacts"].values()}
    for one in filter(None, (part.strip() for part in re.split(r"[,;，；、]", typed))):
        if one.casefold() in known:
            found.append(known[one.casefold()])
            continue
        found.append(one)
        if "@" not in one:
            wrong = ("There is no contact called {name}.", {"name": one})
        elif email(one):
            wrong = email(one)
    if len(found) > _MOST:
        wrong = "This is too long."
    return list(dict.fromkeys(found)), wrong


def send(records: Records, mail: dict[str, Any]) -> None:
    """Add a mail to the conversation of the message that it answers, or to a new one."""
    records["_count"] += 1
    number, answered = records["_count"], records["messages"].get(mail["answers"])
    thread = answered["_thread"] if answered else f"t{number}"
    if thread not in records["threads"]:
        records["threads"][thread] = {
            "subject": mail["subject"],
            "folder": "sent",
            "unread": False,
            "starred": False,
            "labels": {},
            "_letter": "",
            "_facts": {},
            "_before": "sent",
        }
    records["messages"][f"m{number}"] = {
        "from": records["_me"]["email"],
        "files": answered["files"] if answered and mail["kind"] == "forward" else [],
        **mail,
        "_thread": thread,
        "_day": TODAY,
        "_time": NOW,
        "_signature": records["settings"]["signature"],
    }
