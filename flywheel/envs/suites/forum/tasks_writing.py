"""Define the forum's task templates that write: replies, topics, reports."""

from __future__ import annotations

from typing import Any

from flywheel.envs.suites.forum import draws, nav, threads
from flywheel.envs.suites.forum.data import ME, REASONS, Records
from flywheel.envs.suites.screen import Move, Screen, click_and_confirm
from flywheel.envs.suites.site_tasks import Draw, Params, Redraw, SiteTask

_NEW = (
    ("Blue mold on my lemons", "Can I still use the rest of the crate?"),
    ("A bench for two", "It shall stand in the shade. Which wood lasts?"),
    ("Lost my notebook", "How do you remember what you read?"),
    ("Picture of the month", "Show one, and say why."),
    ("Old violin in the attic", "It has three strings. Is it worth the money?"),
    ("Squeaking door", "Oil did not help. What else is there?"),
    ("First snow", "Who has seen it, and where?"),
)
_TAGS = ("advice", "beginner", "repair", "winter", "talk", "tools", "travel", "wood")


# -- replies -----------------------------------------------------------------------------------------------------------
def _draw_reply(d: Draw) -> Params:
    return {**draws.draw_topic(d, locked=False), "text": draws.saying(d)}


def _reply(records: Records, p: Params) -> None:
    threads.add_reply(records, p["key"], p["text"], p.get("post", ""))


def _steps_reply(screen: Screen, p: Params) -> Move | None:
    if screen.page == f"topic/{p['key']}/reply":
        return screen.fill({"text": p["text"]}, "send", {"text": ("I write the reply.",), "send": ("I send it.",)})
    return nav.open_topic(screen, p["key"]) or screen.click("reply", "I reply.", "I click reply.")


def _draw_quote(d: Draw) -> Params:
    drawn = draws.draw_post(d, lambda key, one: not d.records["topics"][one["topic"]]["locked"])
    return {**drawn, "text": draws.saying(d)}


def _steps_quote(screen: Screen, p: Params) -> Move | None:
    if screen.page == f"topic/{p['key']}/reply":
        return _steps_reply(screen, p)
    return nav.open_post(screen, p["post"]) or screen.click(f"quote {p['post']}", "I quote this one.", "I click quote.")


def _draw_own_reply(d: Draw) -> Params:
    """Draw a reply of the user's that is their only one in its topic."""
    own = [(key, one) for key, one in d.records["posts"].items() if one["author"] == ME]
    topics = [one["topic"] for _, one in own]
    key, one = d.rng.choice(own)
    if topics.count(one["topic"]) > 1:
        raise Redraw
    return {
        "post": key,
        "key": one["topic"],
        "title": d.records["topics"][one["topic"]]["title"],
        "text": draws.saying(d),
    }


def _edit(records: Records, p: Params) -> None:
    records["posts"][p["post"]]["text"] = p["text"]


def _steps_edit(screen: Screen, p: Params) -> Move | None:
    if screen.page == f"post/{p['post']}/edit":
        return screen.fill({"text": p["text"]}, "save", {"text": ("I type the new text.",), "save": ("I save it.",)})
    move = nav.open_forum_tab(screen, "mine", "tab", "replies")
    return move or screen.click(f"edit {p['post']}", "I edit it.", "I change this one.")


def _delete(records: Records, p: Params) -> None:
    threads.drop(records, p["post"])


def _steps_delete(screen: Screen, p: Params) -> Move | None:
    if p["post"] not in screen.records["posts"]:
        return None
    if screen.page == f"topic/{p['key']}":
        return nav.open_post(screen, p["post"]) or click_and_confirm(screen, f"delete {p['post']}", "I delete it.")
    move = nav.open_forum_tab(screen, "mine", "tab", "replies")
    return move or screen.click(f"post {p['post']}", "I open my reply.", "Here is my reply.")


# -- topics ------------------------------------------------------------------------------------------------------------
def _draw_new(d: Draw) -> Params:
    title, text = d.rng.choice(_NEW)
    tags = d.rng.sample(_TAGS, 2 if d.level > 3 else 1)
    return {**draws.draw_board(d), "title": title, "text": text, "tags": tags, "tagged": " and ".join(tags)}


def _new(records: Records, p: Params) -> None:
    threads.add_topic(records, p["board"], p["title"], p["tags"], p["text"])


def _steps_new(screen: Screen, p: Params) -> Move | None:
    if screen.page == f"board/{p['board']}/new":
        values = {"title": p["title"], "tags": ", ".join(p["tags"]), "text": p["text"]}
        said = {
            "title": ("I type the title.",),
            "tags": ("I type what it is about.",),
            "text": ("I write the text.",),
            "publish": ("I send it.", "All is there, I click the button."),
        }
        return screen.fill(values, "publish", said)
    return nav.open_board(screen, p["board"]) or screen.click("new topic", "I begin a new topic.", "I click new topic.")


def _draw_own_topic(d: Draw) -> Params:
    drawn = draws.draw_topic(d, author=ME)
    return {**drawn, "new": d.rng.choice(_NEW)[0], "tags": d.rng.sample(_TAGS, 2)}


def _draw_retag(d: Draw) -> Params:
    drawn = _draw_own_topic(d)
    return {**drawn, "tagged": " and ".join(drawn["tags"])}


def _retitle(records: Records, p: Params) -> None:
    records["topics"][p["key"]]["title"] = p["new"]


def _retag(records: Records, p: Params) -> None:
    records["topics"][p["key"]]["tags"] = p["tags"]


def _steps_rewrite(values: Any):
    def steps(screen: Screen, p: Params) -> Move | None:
        if screen.page == f"topic/{p['key']}/edit":
            return screen.fill(values(p), "publish", {"publish": ("I save it.",)})
        if screen.page == f"topic/{p['key']}":
            return screen.click("edit topic", "I edit it.", "I click edit.")
        return nav.open_forum_page(screen, "mine") or screen.click(f"topic {p['key']}", "I open my topic.")

    return steps


# -- reports -----------------------------------------------------------------------------------------------------------
def _draw_report(d: Draw) -> Params:
    reason = d.rng.choice(("spam", "rude", "topic"))
    note = d.rng.choice(("Please have a look.", "The second time this week.", "I think it is a bot."))
    return {**draws.draw_post(d), "reason": reason, "because": d.t(REASONS[reason]), "note": note}


def _report(records: Records, p: Params) -> None:
    records["reports"]["new"] = {"on": p["post"], "by": ME, "reason": p["reason"], "note": p["note"], "state": "open"}


def _steps_report(screen: Screen, p: Params) -> Move | None:
    if screen.page == f"say/{p['post']}/report":
        reason = f"reason {p['reason']}"
        if not screen.checked(reason) and not screen.above(reason):
            return screen.click(reason, "I choose the reason.", "This is the reason.")
        return screen.fill({"note": p["note"]}, "send", {"note": ("I type the note.",), "send": ("I send it.",)})
    return nav.open_post(screen, p["post"]) or nav.click_post_action(screen, p["post"], "report", "I report it.")


TASKS = (
    SiteTask("reply", "Reply to the topic “{title}”: “{text}”", {3: 11}, _draw_reply, _steps_reply, _reply),
    SiteTask(
        "quote",
        "In the topic “{title}”, answer the reply by {author} with a quote of it: “{text}”",
        {4: 18},
        _draw_quote,
        _steps_quote,
        _reply,
    ),
    SiteTask(
        "edit_reply",
        "Change your reply in the topic “{title}” to: “{text}”",
        {3: 13},
        _draw_own_reply,
        _steps_edit,
        _edit,
    ),
    SiteTask(
        "delete_reply", "Delete your reply in the topic “{title}”.", {3: 13}, _draw_own_reply, _steps_delete, _delete
    ),
    SiteTask(
        "new_topic",
        "Begin a topic in the board {name} with the title “{title}”, the tags {tagged} and the text “{text}”",
        {4: 17, 5: 17},
        _draw_new,
        _steps_new,
        _new,
    ),
    SiteTask(
        "new_tagged",
        "Begin a topic in the board {name}: title “{title}”, tag {tagged}, text “{text}”",
        {3: 17},
        _draw_new,
        _steps_new,
        _new,
    ),
    SiteTask(
        "retitle",
        "Change the title of your topic “{title}” to “{new}”.",
        {3: 12},
        _draw_own_topic,
        _steps_rewrite(lambda p: {"title": p["new"]}),
        _retitle,
    ),
    SiteTask(
        "retag",
        "Give your topic “{title}” the tags {tagged}, and no other.",
        {4: 12},
        _draw_retag,
        _steps_rewrite(lambda p: {"tags": ", ".join(p["tags"])}),
        _retag,
    ),
    SiteTask(
        "report",
        "In the topic “{title}”, report the reply by {author} for the reason “{because}”, with the note “{note}”",
        {4: 20},
        _draw_report,
        _steps_report,
        _report,
    ),
)
