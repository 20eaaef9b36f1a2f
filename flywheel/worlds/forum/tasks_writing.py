"""Task templates of the forum that write, vote and mark."""

from __future__ import annotations

from typing import Any

from flywheel.worlds.forum import draws, nav, threads
from flywheel.worlds.forum.data import ME, REASONS, Records
from flywheel.worlds.screen import Move, Screen
from flywheel.worlds.site_tasks import Draw, Params, Redraw, SiteTask

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


# -- votes and marks -------------------------------------------------------------------------------------------------
def _draw_topic_vote(d: Draw) -> Params:
    drawn = draws.draw_topic(d)
    if drawn["key"] in d.records["votes"]:
        raise Redraw
    return {**drawn, "post": drawn["key"], "way": 1, "what": "up"}


def _draw_vote(d: Draw) -> Params:
    drawn = draws.draw_post(d, lambda key, one: key not in d.records["votes"])
    what = d.rng.choice(("up", "down"))
    return {**drawn, "way": 1 if what == "up" else -1, "what": what}


def _vote(records: Records, p: Params) -> None:
    records["votes"][p["post"]] = p["way"]


def _steps_vote(screen: Screen, p: Params) -> Move | None:
    if screen.records["votes"].get(p["post"]) == p["way"]:
        return None
    return nav.post(screen, p["post"]) or screen.click(f"{p['what']} {p['post']}", f"I vote {p['what']}.")


def _draw_voted(d: Draw) -> Params:
    drawn = draws.draw_post(d, lambda key, one: key in d.records["votes"])
    return {**drawn, "what": "up" if d.records["votes"][drawn["post"]] == 1 else "down"}


def _unvote(records: Records, p: Params) -> None:
    del records["votes"][p["post"]]


def _steps_unvote(screen: Screen, p: Params) -> Move | None:
    return nav.post(screen, p["post"]) or screen.click(f"{p['what']} {p['post']}", "I take my vote back.")


def _draw_many(d: Draw) -> Params:
    """A member with several replies in a topic, none of which has a vote."""
    groups: dict[tuple[str, str], list[str]] = {}
    for key, one in d.records["posts"].items():
        groups.setdefault((one["topic"], one["author"]), []).append(key)
    fits = [
        (pair, keys)
        for pair, keys in groups.items()
        if 2 <= len(keys) <= 3 and pair[1] != ME and not any(key in d.records["votes"] for key in keys)
    ]
    if not fits:
        raise Redraw
    (topic, author), keys = d.rng.choice(fits)
    return {"posts": keys, "title": d.records["topics"][topic]["title"], "name": d.records["_users"][author]["name"]}


def _vote_many(records: Records, p: Params) -> None:
    records["votes"] |= dict.fromkeys(p["posts"], 1)


def _steps_many(screen: Screen, p: Params) -> Move | None:
    left = [key for key in p["posts"] if screen.records["votes"].get(key) != 1]
    return _steps_vote(screen, {"post": left[0], "way": 1, "what": "up"}) if left else None


def _draw_unsaved(d: Draw) -> Params:
    return draws.draw_post(d, lambda key, one: key not in d.records["saved"])


def _save(records: Records, p: Params) -> None:
    records["saved"][p["post"]] = True


def _steps_save(screen: Screen, p: Params) -> Move | None:
    return nav.post(screen, p["post"]) or nav.more(screen, p["post"], "save", "I keep it for later.")


def _draw_saved(d: Draw) -> Params:
    writers = [d.records["posts"][key]["author"] for key in d.records["saved"]]
    fits = [key for key in d.records["saved"] if writers.count(d.records["posts"][key]["author"]) == 1]
    if not fits:
        raise Redraw
    key = d.rng.choice(fits)
    return {"post": key, "author": d.records["_users"][d.records["posts"][key]["author"]]["name"]}


def _unsave(records: Records, p: Params) -> None:
    del records["saved"][p["post"]]


def _steps_unsave(screen: Screen, p: Params) -> Move | None:
    move = nav.tab(screen, "mine", "tab", "saved")
    return move or screen.click(f"unsave {p['post']}", "I remove it.", "I take it off.")


def _draw_free(d: Draw) -> Params:
    drawn = draws.draw_topic(d)
    if drawn["key"] in d.records["followed"]:
        raise Redraw
    return drawn


def _follow(records: Records, p: Params) -> None:
    records["followed"][p["key"]] = True


def _steps_follow(screen: Screen, p: Params) -> Move | None:
    return nav.topic(screen, p["key"]) or screen.click("follow", "I follow it.", "I click follow.")


def _draw_followed(d: Draw) -> Params:
    key = d.rng.choice(list(d.records["followed"]))
    return {"key": key, "title": d.records["topics"][key]["title"]}


def _unfollow(records: Records, p: Params) -> None:
    del records["followed"][p["key"]]


def _steps_unfollow(screen: Screen, p: Params) -> Move | None:
    return nav.menu(screen, "following") or screen.click(f"unfollow {p['key']}", "I do not follow it any more.")


def _draw_pair(d: Draw) -> Params:
    one, other, number = _draw_free(d), _draw_free(d), threads.counts(d.records)
    if number[one["key"]] == number[other["key"]]:
        raise Redraw
    best = max((one["key"], other["key"]), key=number.__getitem__)
    return {"key": best, "both": [one["key"], other["key"]], "one": one["title"], "other": other["title"]}


def _steps_pair(screen: Screen, p: Params) -> Move | None:
    """Look at one, then at the other; what was seen of the first is on the screen no more, so the better comes last."""
    worse = next(key for key in p["both"] if key != p["key"])
    if screen.page in (f"topic/{worse}", f"topic/{p['key']}") or screen.query.get("q") == _title(screen, p["key"]):
        return _steps_follow(screen, p)
    return nav.topic(screen, worse)


def _title(screen: Screen, key: str) -> str:
    return screen.records["topics"][key]["title"]


# -- writing ---------------------------------------------------------------------------------------------------------
def _draw_reply(d: Draw) -> Params:
    return {**draws.draw_topic(d, locked=False), "text": draws.saying(d)}


def _reply(records: Records, p: Params) -> None:
    threads.add_reply(records, p["key"], p["text"], p.get("post", ""))


def _steps_reply(screen: Screen, p: Params) -> Move | None:
    if screen.page == f"topic/{p['key']}/reply":
        return screen.fill({"text": p["text"]}, "send", {"text": ("I write the reply.",), "send": ("I send it.",)})
    return nav.topic(screen, p["key"]) or screen.click("reply", "I reply.", "I click reply.")


def _draw_quote(d: Draw) -> Params:
    drawn = draws.draw_post(d, lambda key, one: not d.records["topics"][one["topic"]]["locked"])
    return {**drawn, "text": draws.saying(d)}


def _steps_quote(screen: Screen, p: Params) -> Move | None:
    if screen.page == f"topic/{p['key']}/reply":
        return _steps_reply(screen, p)
    return nav.post(screen, p["post"]) or screen.click(f"quote {p['post']}", "I quote this one.", "I click quote.")


def _draw_own_reply(d: Draw) -> Params:
    """In a topic with no other own reply."""
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
    move = nav.tab(screen, "mine", "tab", "replies")
    return move or screen.click(f"edit {p['post']}", "I edit it.", "I change this one.")


def _delete(records: Records, p: Params) -> None:
    threads.drop(records, p["post"])


def _steps_delete(screen: Screen, p: Params) -> Move | None:
    if p["post"] not in screen.records["posts"]:
        return None
    if screen.page == f"topic/{p['key']}":
        return nav.post(screen, p["post"]) or nav.confirmed(screen, f"delete {p['post']}", "I delete it.")
    move = nav.tab(screen, "mine", "tab", "replies")
    return move or screen.click(f"post {p['post']}", "I open my reply.", "Here is my reply.")


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
    return nav.board(screen, p["board"]) or screen.click("new topic", "I begin a new topic.", "I click new topic.")


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
        return nav.menu(screen, "mine") or screen.click(f"topic {p['key']}", "I open my topic.")

    return steps


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
    return nav.post(screen, p["post"]) or nav.more(screen, p["post"], "report", "I report it.")


TASKS = (
    SiteTask(
        "vote_topic", "Vote up the first post of the topic “{title}”.", {2: 9}, _draw_topic_vote, _steps_vote, _vote
    ),
    SiteTask(
        "vote", "In the topic “{title}”, vote {what} the reply by {author}.", {3: 16}, _draw_vote, _steps_vote, _vote
    ),
    SiteTask(
        "unvote",
        "In the topic “{title}”, take back your vote on the reply by {author}.",
        {3: 17},
        _draw_voted,
        _steps_unvote,
        _unvote,
    ),
    SiteTask(
        "vote_all",
        "In the topic “{title}”, vote up every reply by {name}.",
        {5: 22},
        _draw_many,
        _steps_many,
        _vote_many,
    ),
    SiteTask(
        "save",
        "In the topic “{title}”, save the reply by {author} for later.",
        {3: 16},
        _draw_unsaved,
        _steps_save,
        _save,
    ),
    SiteTask(
        "unsave", "Take the post by {author} off the list of saved posts.", {2: 7}, _draw_saved, _steps_unsave, _unsave
    ),
    SiteTask("follow", "Follow the topic “{title}”.", {2: 8}, _draw_free, _steps_follow, _follow),
    SiteTask("unfollow", "Stop following the topic “{title}”.", {1: 5}, _draw_followed, _steps_unfollow, _unfollow),
    SiteTask(
        "follow_larger",
        "Follow the one of these two topics that has more replies: “{one}” or “{other}”.",
        {4: 14},
        _draw_pair,
        _steps_pair,
        _follow,
    ),
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
