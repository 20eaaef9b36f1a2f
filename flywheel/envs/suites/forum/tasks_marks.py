"""Define the forum's task templates that vote, save and follow."""

from __future__ import annotations

from flywheel.envs.suites.forum import draws, nav, threads
from flywheel.envs.suites.forum.data import ME, Records
from flywheel.envs.suites.screen import Move, Screen
from flywheel.envs.suites.site_tasks import Draw, Params, Redraw, SiteTask


# -- votes -------------------------------------------------------------------------------------------------------------
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
    return nav.open_post(screen, p["post"]) or screen.click(f"{p['what']} {p['post']}", f"I vote {p['what']}.")


def _draw_voted(d: Draw) -> Params:
    drawn = draws.draw_post(d, lambda key, one: key in d.records["votes"])
    return {**drawn, "what": "up" if d.records["votes"][drawn["post"]] == 1 else "down"}


def _unvote(records: Records, p: Params) -> None:
    del records["votes"][p["post"]]


def _steps_unvote(screen: Screen, p: Params) -> Move | None:
    return nav.open_post(screen, p["post"]) or screen.click(f"{p['what']} {p['post']}", "I take my vote back.")


def _draw_many(d: Draw) -> Params:
    """Draw a member with two or three replies in a topic, none of which the user has voted on."""
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


# -- saved posts -------------------------------------------------------------------------------------------------------
def _draw_unsaved(d: Draw) -> Params:
    return draws.draw_post(d, lambda key, one: key not in d.records["saved"])


def _save(records: Records, p: Params) -> None:
    records["saved"][p["post"]] = True


def _steps_save(screen: Screen, p: Params) -> Move | None:
    return nav.open_post(screen, p["post"]) or nav.click_post_action(screen, p["post"], "save", "I keep it for later.")


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
    move = nav.open_forum_tab(screen, "mine", "tab", "saved")
    return move or screen.click(f"unsave {p['post']}", "I remove it.", "I take it off.")


# -- followed topics ---------------------------------------------------------------------------------------------------
def _draw_free(d: Draw) -> Params:
    drawn = draws.draw_topic(d)
    if drawn["key"] in d.records["followed"]:
        raise Redraw
    return drawn


def _follow(records: Records, p: Params) -> None:
    records["followed"][p["key"]] = True


def _steps_follow(screen: Screen, p: Params) -> Move | None:
    return nav.open_topic(screen, p["key"]) or screen.click("follow", "I follow it.", "I click follow.")


def _draw_followed(d: Draw) -> Params:
    key = d.rng.choice(list(d.records["followed"]))
    return {"key": key, "title": d.records["topics"][key]["title"]}


def _unfollow(records: Records, p: Params) -> None:
    del records["followed"][p["key"]]


def _steps_unfollow(screen: Screen, p: Params) -> Move | None:
    return nav.open_forum_page(screen, "following") or screen.click(
        f"unfollow {p['key']}", "I do not follow it any more."
    )


def _draw_pair(d: Draw) -> Params:
    one, other, number = _draw_free(d), _draw_free(d), threads.counts(d.records)
    if number[one["key"]] == number[other["key"]]:
        raise Redraw
    best = max((one["key"], other["key"]), key=number.__getitem__)
    return {"key": best, "both": [one["key"], other["key"]], "one": one["title"], "other": other["title"]}


def _steps_pair(screen: Screen, p: Params) -> Move | None:
    """Open the topic with fewer replies, then the other one, and follow that.

    What was seen of the first is no longer on the screen, so the one to follow comes last.
    """
    worse = next(key for key in p["both"] if key != p["key"])
    if screen.page in (f"topic/{worse}", f"topic/{p['key']}") or screen.query.get("q") == _title(screen, p["key"]):
        return _steps_follow(screen, p)
    return nav.open_topic(screen, worse)


def _title(screen: Screen, key: str) -> str:
    return screen.records["topics"][key]["title"]


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
)
