"""Define the forum's task templates on members, messages and the user's profile."""

from __future__ import annotations

from flywheel.envs.suites.forum import draws, nav, people, threads
from flywheel.envs.suites.forum.data import ME, Records
from flywheel.envs.suites.forum.texts import PLACES, SAID
from flywheel.envs.suites.screen import Move, Screen, click_and_confirm
from flywheel.envs.suites.site_tasks import Draw, Params, Redraw, SiteTask

_SUBJECTS = ("A question", "Your topic", "Next Sunday", "About the garden", "Thank you", "Old records")
_WORDS = (
    "Do you still have time for me?",
    "I will bring the tools.",
    "Where did you learn that?",
    "Send me the list, please.",
    "It was good to meet you.",
)
_SIGNATURES = ("Slow and steady.", "Never without tea.", "Ask the cat.", "Made by hand.", "Out in the rain.")
_SAVE = {"save": ("I save it.", "Now I save.")}


# -- members and the profile -------------------------------------------------------------------------------------------
def _befriend(records: Records, p: Params) -> None:
    records["friends"][p["user"]] = True


def _steps_befriend(screen: Screen, p: Params) -> Move | None:
    return nav.open_member(screen, p["user"]) or screen.click("follow", "I follow them.", "I click follow.")


def _unfriend(records: Records, p: Params) -> None:
    del records["friends"][p["user"]]


def _steps_unfriend(screen: Screen, p: Params) -> Move | None:
    return nav.open_forum_page(screen, "following") or screen.click(
        f"unfollow {p['user']}", "I do not follow them any more."
    )


def _draw_starter(d: Draw) -> Params:
    """Draw a member who began two or three topics."""
    begun: dict[str, list[str]] = {}
    for key, one in d.records["topics"].items():
        begun.setdefault(one["author"], []).append(key)
    fits = [user for user, keys in begun.items() if user != ME and 2 <= len(keys) <= 3]
    if not fits:
        raise Redraw
    user = d.rng.choice(fits)
    return {"user": user, "name": d.records["_users"][user]["name"], "keys": begun[user]}


def _follow_all(records: Records, p: Params) -> None:
    records["followed"] |= dict.fromkeys(p["keys"], True)


def _steps_follow_all(screen: Screen, p: Params) -> Move | None:
    left = [key for key in p["keys"] if key not in screen.records["followed"]]
    if not left:
        return None
    if screen.page == f"topic/{left[0]}":
        return screen.click("follow", "I follow it.", "I click follow.")
    if screen.page == f"member/{p['user']}":
        return screen.click(f"topic {left[0]}", "I open this topic.", "Now this one.")
    return nav.open_member(screen, p["user"])


def _draw_profile(d: Draw) -> Params:
    place = d.rng.choice([one for one in PLACES if one != d.records["profile"]["place"]])
    return {"place": place, "signature": d.rng.choice(_SIGNATURES)}


def _place(records: Records, p: Params) -> None:
    records["profile"]["place"] = p["place"]


def _profile(records: Records, p: Params) -> None:
    records["profile"] |= {"place": p["place"], "signature": p["signature"], "mail_news": False}


def _draw_news(d: Draw) -> Params:
    if not d.records["profile"]["mail_news"]:
        raise Redraw
    return _draw_profile(d)


def _steps_place(screen: Screen, p: Params) -> Move | None:
    return nav.open_top_bar_page(screen, "profile") or screen.fill({"place": p["place"]}, "save", _SAVE)


def _steps_profile(screen: Screen, p: Params) -> Move | None:
    values = {"place": p["place"], "signature": p["signature"], "mail_news": False}
    return nav.open_top_bar_page(screen, "profile") or screen.fill(values, "save", _SAVE)


def _read_all(records: Records, p: Params) -> None:
    for one in records["alerts"].values():
        one["unread"] = False


def _steps_read_all(screen: Screen, p: Params) -> Move | None:
    return nav.open_top_bar_page(screen, "alerts") or screen.click("mark read", "I have seen all of them.")


# -- messages ----------------------------------------------------------------------------------------------------------
def _draw_message(d: Draw) -> Params:
    return {**draws.draw_member(d), "subject": d.rng.choice(_SUBJECTS), "text": d.rng.choice(_WORDS)}


def _message(records: Records, p: Params) -> None:
    records["talks"]["new"] = people.talk(p["user"], p["subject"], p["text"])


def _write(screen: Screen, p: Params, to: str) -> Move:
    said = {
        "to": ("I type the name.",),
        "subject": ("I type the subject.",),
        "text": ("I write the message.",),
        "send": ("I send it.", "I click send."),
    }
    return screen.fill({"to": to, "subject": p["subject"], "text": p["text"]}, "send", said)


def _steps_message(screen: Screen, p: Params) -> Move | None:
    if screen.page == "messages/new":
        return _write(screen, p, p["name"])
    return nav.open_top_bar_page(screen, "messages") or screen.click("new message", "I write a new message.")


def _draw_praise(d: Draw) -> Params:
    """Draw a board whose topic of most votes another member began, and a message to that member."""
    drawn = draws.draw_board(d)
    keys = draws.topics_of(d.records, drawn["board"])
    key = draws.most(d.records, keys, lambda topic: threads.score(d.records, topic))
    user = d.records["topics"][key]["author"]
    if user == ME:
        raise Redraw
    return {**drawn, "key": key, "user": user, "subject": d.rng.choice(_SUBJECTS), "text": d.rng.choice(_WORDS)}


def _steps_praise(screen: Screen, p: Params) -> Move | None:
    if screen.page == "messages/new":
        return _write(screen, p, screen.records["_users"][p["user"]]["name"])
    if screen.page == f"member/{p['user']}":
        return screen.click("write", "I write to them.", "I click message.")
    if screen.page == f"topic/{p['key']}":
        name = "by" if screen.has(f"by {p['key']}") else "author"
        return screen.click(f"{name} {p['key']}", "I click the name.", "This is who began it.")
    move = nav.open_board(screen, p["board"], "score")
    return move or screen.click(f"topic {p['key']}", "This one has most votes.", "I compare, and open this one.")


def _draw_talk(d: Draw) -> Params:
    key, one = d.pick("talks")
    return {
        "key": key,
        "subject": one["subject"],
        "name": d.records["_users"][one["with"]]["name"],
        "text": d.rng.choice(SAID),
    }


def _answer(records: Records, p: Params) -> None:
    records["talks"][p["key"]]["letters"].append(people.letter(p["text"]))


def _steps_answer(screen: Screen, p: Params) -> Move | None:
    said = {"text": ("I write the answer.",), "send": ("I send it.", "I click send.")}
    return nav.open_talk(screen, p["key"]) or screen.fill({"text": p["text"]}, "send", said)


def _delete_talk(records: Records, p: Params) -> None:
    del records["talks"][p["key"]]


def _steps_delete_talk(screen: Screen, p: Params) -> Move | None:
    if p["key"] not in screen.records["talks"]:
        return None
    return nav.open_talk(screen, p["key"]) or click_and_confirm(screen, "delete", "I delete them.")


TASKS = (
    SiteTask(
        "follow_member",
        "Follow the member {name}.",
        {2: 9},
        lambda d: draws.draw_member(d, False),
        _steps_befriend,
        _befriend,
    ),
    SiteTask(
        "unfollow_member",
        "Stop following the member {name}.",
        {1: 6},
        lambda d: draws.draw_member(d, True),
        _steps_unfriend,
        _unfriend,
    ),
    SiteTask(
        "follow_all", "Follow all topics that {name} began.", {5: 24}, _draw_starter, _steps_follow_all, _follow_all
    ),
    SiteTask("place", "Change the place in your profile to {place}.", {2: 8}, _draw_profile, _steps_place, _place),
    SiteTask(
        "profile",
        "In your profile, set the place {place} and the signature “{signature}”, and get no more news "
        "of the forum by mail.",
        {4: 15},
        _draw_news,
        _steps_profile,
        _profile,
    ),
    SiteTask("read_alerts", "Mark all alerts as read.", {1: 4}, lambda d: {}, _steps_read_all, _read_all),
    SiteTask(
        "message",
        "Send {name} a new message with the subject “{subject}”: “{text}”",
        {4: 15},
        _draw_message,
        _steps_message,
        _message,
    ),
    SiteTask(
        "praise",
        "Find the topic of the board {name} that has most votes, and send whoever began it a new "
        "message with the subject “{subject}”: “{text}”",
        {5: 20},
        _draw_praise,
        _steps_praise,
        _message,
    ),
    SiteTask(
        "answer", "Answer the message “{subject}” from {name}: “{text}”", {3: 11}, _draw_talk, _steps_answer, _answer
    ),
    SiteTask(
        "delete_talk",
        "Delete the messages with {name} on “{subject}”.",
        {2: 7},
        _draw_talk,
        _steps_delete_talk,
        _delete_talk,
    ),
)
