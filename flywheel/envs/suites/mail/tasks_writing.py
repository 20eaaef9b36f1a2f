"""Define the mailbox's task templates that write, answer and forward mails, and those on drafts."""

from __future__ import annotations

from typing import Any

from flywheel.envs.suites.mail import draws, nav
from flywheel.envs.suites.mail.draws import KEPT, SEEN, Records
from flywheel.envs.suites.mail.pages import act, messages_of
from flywheel.envs.suites.mail.writing import blank, send
from flywheel.envs.suites.screen import Move, Screen
from flywheel.envs.suites.site_tasks import Draw, Params, Redraw, SiteTask


# -- new mails ---------------------------------------------------------------------------------------------------------
def _draw_new(d: Draw) -> Params:
    _, address = draws.stranger(d)
    return {"to": address, "addresses": [address], "subject": draws.subject(d), "text": draws.text(d)}


def _draw_to_contact(d: Draw) -> Params:
    _, one = draws.contact(d)
    drawn = _draw_new(d) | {"to": one["name"], "addresses": [one["email"]]}
    if d.level > 4:
        _, other = draws.contact(d, one["name"])
        drawn |= {"cc": other["name"], "copies": [other["email"]]}
    return drawn


def _send_new(records: Records, p: Params) -> None:
    send(records, _mail(p))


def _mail(p: Params) -> dict[str, Any]:
    return {
        "to": p["addresses"],
        "cc": p.get("copies", []),
        "subject": p["subject"],
        "text": p["text"],
        "kind": "",
        "answers": "",
    }


def _typed(p: Params) -> dict[str, str]:
    return {"to": p["to"], "cc": p.get("cc", ""), "subject": p["subject"], "text": p["text"]}


def _steps_new(button: str = "send"):
    def steps(screen: Screen, p: Params) -> Move | None:
        return nav.open_compose_form(screen) or nav.fill_mail_form(screen, _typed(p), button)

    return steps


def _steps_from_contact(screen: Screen, p: Params) -> Move | None:
    """Write from the page of the contact, which fills in the address."""
    if screen.page == "compose" and screen.query.get("to") == p["addresses"][0]:
        return nav.fill_mail_form(screen, {"subject": p["subject"], "text": p["text"]})
    return nav.open_contact(screen, p["contact"]) or screen.click("write to", "I write to this one.")


def _draw_from_contact(d: Draw) -> Params:
    key, one = draws.contact(d)
    return _draw_new(d) | {"to": one["name"], "contact": key, "addresses": [one["email"]]}


def _keep_new(records: Records, p: Params) -> None:
    records["drafts"]["new"] = _mail(p)


# -- answers -----------------------------------------------------------------------------------------------------------
def _answerable(d: Draw, kind: str) -> Params:
    """Draw a conversation whose last message is not the user's own; for the kind `all`, one with copies to others."""
    me, fits = d.records["_me"]["email"], {}
    for key, one in d.records["threads"].items():
        last, message = list(messages_of(d.records, key).items())[-1]
        if one["folder"] in KEPT and message["from"] != me and (message["cc"] or kind != "all"):
            fits[key] = last
    if not fits:
        raise Redraw
    key = d.rng.choice(list(fits))
    subject = d.records["threads"][key]["subject"]
    return {"key": key, "subject": subject, "last": fits[key], "text": draws.text(d), "kind": kind}


def _draw_answer(kind: str):
    return lambda d: _answerable(d, kind)


def _draw_forward(d: Draw) -> Params:
    _, one = draws.contact(d)
    return _answerable(d, "forward") | {"to": one["name"], "addresses": [one["email"]]}


def _answer(records: Records, p: Params) -> None:
    mail = blank(records, p["kind"], p["last"]) | {"text": p["text"]}
    send(records, mail | ({"to": p["addresses"]} if "addresses" in p else {}))


def _steps_answer(screen: Screen, p: Params) -> Move | None:
    values = {"to": p["to"]} if "to" in p else {}
    return nav.open_answer_form(screen, p["kind"], p["key"]) or nav.fill_mail_form(screen, values | {"text": p["text"]})


def _sent(screen: Screen, p: Params) -> bool:
    mine = screen.records["_me"]["email"]
    return any(one["from"] == mine and one["answers"] == p["last"] for one in screen.records["messages"].values())


def _answer_and_archive(records: Records, p: Params) -> None:
    _answer(records, p)
    act(records, p["key"], "archive")


def _draw_answer_inbox(d: Draw) -> Params:
    drawn = _answerable(d, "reply")
    if d.records["threads"][drawn["key"]]["folder"] != "inbox":
        raise Redraw
    return drawn


def _steps_answer_and_archive(screen: Screen, p: Params) -> Move | None:
    if not _sent(screen, p):
        return _steps_answer(screen, p)
    return nav.open_conversation(screen, p["key"]) or screen.click("archive", "Now into the archive.", "I put it away.")


def _forward_and_star(records: Records, p: Params) -> None:
    _answer(records, p)
    act(records, p["key"], "star")


def _draw_forward_star(d: Draw) -> Params:
    drawn = _draw_forward(d)
    if d.records["threads"][drawn["key"]]["starred"]:
        raise Redraw
    return drawn


def _steps_forward_and_star(screen: Screen, p: Params) -> Move | None:
    if not _sent(screen, p):
        return _steps_answer(screen, p)
    return nav.open_conversation(screen, p["key"]) or screen.click(
        f"star {p['key']}", "And now the star.", "I star it."
    )


# -- drafts ------------------------------------------------------------------------------------------------------------
def _draw_draft(d: Draw) -> Params:
    key, one = d.pick("drafts")
    if sum(other["subject"] == one["subject"] for other in d.records["drafts"].values()) > 1:
        raise Redraw
    return {"key": key, "subject": one["subject"], "text": draws.text(d)}


def _send_draft(records: Records, p: Params) -> None:
    mail = records["drafts"].pop(p["key"])
    send(records, mail | ({"text": p["text"]} if "new" in p else {}))


def _draft(screen: Screen, key: str) -> Move | None:
    if screen.page == f"draft/{key}":
        return None
    return nav.open_mail_page(screen, "folder/drafts") or screen.click(f"draft {key}", "I open the draft.")


def _steps_send_draft(screen: Screen, p: Params) -> Move | None:
    if (move := _draft(screen, p["key"])) is not None:
        return move
    if "new" in p:
        return nav.fill_mail_form(screen, {"text": p["text"]})
    return screen.click("send", "I send it.", "Now I send it.")


def _steps_discard(screen: Screen, p: Params) -> Move | None:
    return nav.open_mail_page(screen, "folder/drafts") or screen.click(
        f"discard {p['key']}", "I throw it away.", "Away with it."
    )


TASKS = (
    SiteTask(
        "write",
        "Send a mail to {to} with the subject “{subject}” and the text “{text}”",
        {3: 13},
        _draw_new,
        _steps_new(),
        _send_new,
        zh="给{to}发一封邮件，主题是“{subject}”，正文是“{text}”",
    ),
    SiteTask(
        "write_contact",
        "Send a mail to your contact {to}: subject “{subject}”, text “{text}”",
        {3: 14},
        _draw_from_contact,
        _steps_from_contact,
        _send_new,
        zh="给联系人{to}发一封邮件：主题“{subject}”，正文“{text}”",
    ),
    SiteTask(
        "write_copy",
        "Send a mail to your contact {to}, with a copy to {cc}: subject “{subject}”, text “{text}”",
        {5: 16},
        _draw_to_contact,
        _steps_new(),
        _send_new,
        zh="给联系人{to}发邮件并抄送{cc}：主题“{subject}”，正文“{text}”",
    ),
    SiteTask(
        "draft",
        "Save a draft to {to} with the subject “{subject}” and the text “{text}” Do not send it.",
        {4: 13},
        _draw_new,
        _steps_new("save draft"),
        _keep_new,
        zh="存一封给{to}的草稿，主题是“{subject}”，正文是“{text}” 不要发送。",
    ),
    SiteTask(
        "reply",
        "Reply to the mail “{subject}” with “{text}”",
        {3: 15},
        _draw_answer("reply"),
        _steps_answer,
        _answer,
        ignore=SEEN,
        zh="回复邮件“{subject}”：“{text}”",
    ),
    SiteTask(
        "reply_all",
        "Reply to all who got the mail “{subject}” with “{text}”",
        {4: 15},
        _draw_answer("all"),
        _steps_answer,
        _answer,
        ignore=SEEN,
        zh="回复邮件“{subject}”的所有人：“{text}”",
    ),
    SiteTask(
        "forward",
        "Forward the mail “{subject}” to {to} with the text “{text}”",
        {4: 18},
        _draw_forward,
        _steps_answer,
        _answer,
        ignore=SEEN,
        zh="把邮件“{subject}”转发给{to}，正文是“{text}”",
    ),
    SiteTask(
        "reply_archive",
        "Reply to the mail “{subject}” with “{text}”, then move it to the archive.",
        {5: 18},
        _draw_answer_inbox,
        _steps_answer_and_archive,
        _answer_and_archive,
        ignore=SEEN,
        zh="回复邮件“{subject}”：“{text}”，然后将它归档。",
    ),
    SiteTask(
        "forward_star",
        "Forward the mail “{subject}” to {to} with the text “{text}”, and star it.",
        {5: 21},
        _draw_forward_star,
        _steps_forward_and_star,
        _forward_and_star,
        ignore=SEEN,
        zh="把邮件“{subject}”转发给{to}，正文是“{text}”，并加星标。",
    ),
    SiteTask(
        "send_draft",
        "Send the draft “{subject}” as it is.",
        {2: 8},
        _draw_draft,
        _steps_send_draft,
        _send_draft,
        zh="直接发送草稿“{subject}”。",
    ),
    SiteTask(
        "finish_draft",
        "Change the text of the draft “{subject}” to “{text}” and send it.",
        {4: 13},
        lambda d: _draw_draft(d) | {"new": True},
        _steps_send_draft,
        _send_draft,
        zh="把草稿“{subject}”的正文改为“{text}”并发送。",
    ),
    SiteTask(
        "discard_draft",
        "Throw away the draft “{subject}”.",
        {2: 7},
        _draw_draft,
        _steps_discard,
        lambda records, p: records["drafts"].pop(p["key"]) and None,
        zh="删除草稿“{subject}”。",
    ),
)
