"""Serve the pages and forms of members, the user's profile, messages, alerts and followed topics."""

from __future__ import annotations

from typing import Any

from flywheel.envs.suites.forms import Field, Invalid
from flywheel.envs.suites.forum import threads
from flywheel.envs.suites.forum.data import ME, TODAY
from flywheel.envs.suites.forum.pages import listed, sheet, site
from flywheel.envs.suites.site import Page, Visit, site_address

_A_PAGE = 8
_TEXT = Field("text", longest=2000)


# -- members -----------------------------------------------------------------------------------------------------------
@site.page("members")
def members(visit: Visit) -> Page:
    sort = visit.option("sort", ("name", "-name", "posts", "-posts", "since", "-since"))
    wanted, written = visit.query.get("q", "").casefold(), _written(visit)
    rows = [
        {"key": key, "name": one["name"], "place": one["place"], "since": one["since"], "posts": written[key]}
        for key, one in visit.records["_users"].items()
        if wanted in one["name"].casefold()
    ]
    rows.sort(key=lambda row: row[sort.lstrip("-")], reverse=sort.startswith("-"))
    return Page.of(
        "members.html",
        heading=visit.t("Members"),
        sort=sort,
        asked=visit.query.get("q", ""),
        **sheet(visit, rows, _A_PAGE),
    )


def _written(visit: Visit) -> dict[str, int]:
    """Count the topics and replies of each member."""
    number = dict.fromkeys(visit.records["_users"], 0)
    for one in (*visit.records["topics"].values(), *visit.records["posts"].values()):
        number[one["author"]] += 1
    return number


@site.page("member/<key>")
def member(visit: Visit, key: str) -> Page | None:
    if (one := visit.records["_users"].get(key)) is None:
        return None
    records, tab = visit.records, visit.option("tab", ("topics", "replies"))
    posts = [
        (post, each["text"], threads.place(records, post), records["topics"][each["topic"]]["title"])
        for post, each in records["posts"].items()
        if each["author"] == key
    ]
    begun = listed(visit, [topic for topic, each in records["topics"].items() if each["author"] == key], "new")
    return Page.of(
        "member.html",
        heading=one["name"],
        key=key,
        member=one,
        tab=tab,
        posts=posts,
        topics=begun,
        friend=key in records["friends"],
        profile=records["profile"] if key == ME else one,
    )


@site.form("member/<key>/follow")
def follow_member(visit: Visit, key: str) -> str | None:
    if key not in visit.records["_users"] or key == ME:
        return None
    if visit.records["friends"].pop(key, None) is None:
        visit.records["friends"][key] = True
        visit.notice("You follow {name}.", name=visit.records["_users"][key]["name"])
    return "following" if visit.form.get("back") == "following" else f"member/{key}"


@site.page("following")
def following(visit: Visit) -> Page:
    rows = listed(visit, [key for key in visit.records["followed"] if key in visit.records["topics"]], "active")
    return Page.of("following.html", heading=visit.t("Following"), rows=rows, friends=list(visit.records["friends"]))


# -- the own profile ---------------------------------------------------------------------------------------------------
@site.page("profile")
def profile(visit: Visit) -> Page:
    return Page.of("profile.html", heading=visit.t("Your profile"), profile=visit.records["profile"])


@site.form("profile")
def save_profile(visit: Visit) -> str:
    read = visit.read(
        Field("place", required=False, longest=60),
        Field("about", required=False, longest=300),
        Field("signature", required=False, longest=80),
    )
    boxes = {name: name in visit.form for name in ("mail_replies", "mail_news")}
    visit.records["profile"] |= {**read, **boxes}
    visit.notice("Saved.")
    return "profile"


@site.page("alerts")
def alerts(visit: Visit) -> Page:
    return Page.of("alerts.html", heading=visit.t("Alerts"), alerts=visit.records["alerts"])


@site.form("alerts/read")
def read_alerts(visit: Visit) -> str:
    for one in visit.records["alerts"].values():
        one["unread"] = False
    return "alerts"


# -- messages ----------------------------------------------------------------------------------------------------------
@site.page("messages")
def messages(visit: Visit) -> Page:
    return Page.of("messages.html", heading=visit.t("Messages"), talks=visit.records["talks"])


@site.page("messages/new")
def new_message(visit: Visit) -> Page:
    to = visit.records["_users"].get(visit.query.get("to", ""), {"name": ""})["name"]
    return Page.of("message.html", heading=visit.t("New message"), to=to, current="messages")


@site.form("messages/new")
def send_message(visit: Visit) -> str:
    read = visit.read(Field("to", longest=40), Field("subject", longest=80), _TEXT)
    names = {one["name"].casefold(): key for key, one in visit.records["_users"].items() if key != ME}
    if (to := names.get(read["to"].casefold().removeprefix("@"))) is None:
        raise Invalid(to="Nobody here has this name.")
    key = threads.fresh(visit.records, "talks", "m")
    visit.records["talks"][key] = talk(to, read["subject"], read["text"])
    visit.notice("Your message is sent.")
    return f"messages/{key}"


def talk(to: str, subject: str, text: str) -> dict[str, Any]:
    """Return the record of a new exchange of messages."""
    return {"with": to, "subject": subject, "letters": [letter(text)]}


def letter(text: str) -> dict[str, str]:
    """Return the record of a message of the user's."""
    return {"from": ME, "text": text, "day": TODAY}


@site.page("messages/<key>")
def message(visit: Visit, key: str) -> Page | None:
    if (one := visit.records["talks"].get(key)) is None:
        return None
    return Page.of("talk.html", heading=one["subject"], key=key, talk=one, ask=visit.query.get("ask", ""))


@site.form("messages/<key>/answer")
def answer(visit: Visit, key: str) -> str | None:
    if (one := visit.records["talks"].get(key)) is None:
        return None
    one["letters"].append(letter(visit.read(_TEXT)["text"]))
    visit.notice("Your message is sent.")
    return site_address(f"messages/{key}")


@site.form("messages/<key>/delete")
def delete_talk(visit: Visit, key: str) -> str | None:
    if visit.records["talks"].pop(key, None) is None:
        return None
    visit.notice("The messages are deleted.")
    return "messages"
