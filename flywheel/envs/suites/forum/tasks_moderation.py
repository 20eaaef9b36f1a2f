"""Define the forum's task templates for a moderator: pin, lock and move topics; dismiss reports, delete posts."""

from __future__ import annotations

from flywheel.envs.suites.forum import nav, threads
from flywheel.envs.suites.forum.data import REASONS, Records
from flywheel.envs.suites.forum.texts import BOARDS
from flywheel.envs.suites.screen import Move, Screen, click_and_confirm
from flywheel.envs.suites.site_tasks import Draw, Params, Redraw, SiteTask


# -- topics ------------------------------------------------------------------------------------------------------------
def _draw_watched(d: Draw, **now: bool) -> Params:
    """Draw a topic of a board that the user moderates, whose fields have the values `now`."""
    key, one = d.pick(
        "topics",
        lambda topic: (
            topic["board"] in d.records["_moderates"] and all(topic[name] == value for name, value in now.items())
        ),
    )
    return {"key": key, "title": one["title"]}


def _draw_switch(**now: bool):
    return lambda d: _draw_watched(d, **now)


def _switch(*names: str):
    def change(records: Records, p: Params) -> None:
        for name in names:
            records["topics"][p["key"]][name] = not records["topics"][p["key"]][name]

    return change


def _steps_switch(element: str, said: str):
    return lambda screen, p: nav.click_moderator_action(screen, p["key"], element, said, "I click it.")


def _steps_announce(screen: Screen, p: Params) -> Move | None:
    one = screen.records["topics"][p["key"]]
    for name, element, said in (("pinned", "pin", "I pin it."), ("locked", "lock", "I lock it.")):
        if not one[name]:
            return nav.click_moderator_action(screen, p["key"], element, said, "I click it.")
    return None


def _draw_move(d: Draw) -> Params:
    drawn = _draw_watched(d)
    board = d.rng.choice([name for name in BOARDS if name != d.records["topics"][drawn["key"]]["board"]])
    return {**drawn, "board": board, "name": d.t(BOARDS[board][0])}


def _move(records: Records, p: Params) -> None:
    records["topics"][p["key"]]["board"] = p["board"]


def _steps_move(screen: Screen, p: Params) -> Move | None:
    if screen.query.get("ask") == "move" and screen.page == f"topic/{p['key']}":
        said = {"board": ("I choose the board.",), "confirm": ("I move it.",)}
        return screen.fill({"board": p["board"]}, "confirm", said)
    return nav.click_moderator_action(screen, p["key"], "move", "I look for the menu.", "I click here to move it.")


# -- reports -----------------------------------------------------------------------------------------------------------
def _draw_reported(d: Draw) -> Params:
    """Draw an open report on a post whose author has no other post with an open report."""
    waiting = threads.open_reports(d.records)
    writers = [d.records["posts"][one["on"]]["author"] for _, one in waiting]
    fits = [pair for pair, writer in zip(waiting, writers, strict=True) if writers.count(writer) == 1]
    if not fits:
        raise Redraw
    key, one = d.rng.choice(fits)
    post = d.records["posts"][one["on"]]
    return {
        "key": key,
        "post": one["on"],
        "name": d.records["_users"][post["author"]]["name"],
        "because": d.t(REASONS[one["reason"]]),
    }


def _dismiss(records: Records, p: Params) -> None:
    records["reports"][p["key"]]["state"] = "dismissed"


def _steps_dismiss(screen: Screen, p: Params) -> Move | None:
    return nav.open_forum_page(screen, "reports") or screen.click(f"dismiss {p['key']}", "I leave it.", "It may stay.")


def _remove(records: Records, p: Params) -> None:
    threads.drop(records, p["post"])


def _steps_remove(screen: Screen, p: Params) -> Move | None:
    if screen.records["reports"][p["key"]]["state"] != "open":
        return None
    return nav.open_forum_page(screen, "reports") or click_and_confirm(
        screen, f"remove {p['key']}", "I delete it.", "It must go."
    )


def _draw_spam(d: Draw) -> Params:
    """Draw the open reports for spam, where there are others too."""
    waiting = threads.open_reports(d.records)
    spam = [key for key, one in waiting if one["reason"] == "spam"]
    if not 0 < len(spam) < len(waiting):
        raise Redraw
    return {"keys": spam}


def _remove_spam(records: Records, p: Params) -> None:
    for key in p["keys"]:
        threads.drop(records, records["reports"][key]["on"])


def _steps_spam(screen: Screen, p: Params) -> Move | None:
    left = [key for key in p["keys"] if screen.records["reports"][key]["state"] == "open"]
    return _steps_remove(screen, {"key": left[0]}) if left else None


TASKS = (
    SiteTask(
        "pin",
        "As a moderator, pin the topic “{title}”.",
        {3: 9},
        _draw_switch(pinned=False),
        _steps_switch("pin", "I look for pin."),
        _switch("pinned"),
    ),
    SiteTask(
        "unpin",
        "As a moderator, unpin the topic “{title}”.",
        {3: 9},
        _draw_switch(pinned=True),
        _steps_switch("pin", "I look for the menu."),
        _switch("pinned"),
    ),
    SiteTask(
        "lock",
        "As a moderator, lock the topic “{title}”.",
        {3: 9},
        _draw_switch(locked=False),
        _steps_switch("lock", "I look for the lock."),
        _switch("locked"),
    ),
    SiteTask(
        "announce",
        "As a moderator, pin the topic “{title}” and lock it.",
        {4: 12},
        _draw_switch(pinned=False, locked=False),
        _steps_announce,
        _switch("pinned", "locked"),
    ),
    SiteTask(
        "move", "As a moderator, move the topic “{title}” to the board {name}.", {4: 12}, _draw_move, _steps_move, _move
    ),
    SiteTask(
        "dismiss",
        "As a moderator, leave the post by {name} as it is that was reported as “{because}”.",
        {2: 8},
        _draw_reported,
        _steps_dismiss,
        _dismiss,
    ),
    SiteTask(
        "remove",
        "As a moderator, delete the post by {name} that was reported as “{because}”.",
        {3: 10},
        _draw_reported,
        _steps_remove,
        _remove,
    ),
    SiteTask(
        "remove_spam",
        "As a moderator, delete all posts that were reported as spam; leave the other reports open.",
        {5: 14},
        _draw_spam,
        _steps_spam,
        _remove_spam,
    ),
)
