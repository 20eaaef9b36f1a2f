"""Define the file manager's task templates that share and write."""

from __future__ import annotations

from flywheel.envs.suites.files import draws, nav, tree
from flywheel.envs.suites.files.data import RIGHTS, Records
from flywheel.envs.suites.files.pages import shown_day
from flywheel.envs.suites.screen import Move, Screen
from flywheel.envs.suites.site_tasks import Draw, Params, Redraw, SiteTask

_MAY = {"view": "who may look at it but not edit it", "edit": "who may edit it"}


# -- sharing ---------------------------------------------------------------------------------------------------------
def _draw_share(d: Draw) -> Params:
    drawn = draws.draw_file(d)
    right = d.rng.choice(list(RIGHTS))
    person = draws.draw_person(d, d.records["nodes"][drawn["key"]]["shared"])
    return {**drawn, **person, "right": right, "may": d.t(_MAY[right])}


def _share(records: Records, p: Params) -> None:
    records["nodes"][p["key"]]["shared"][p["who"]] = p["right"]


def _steps_share(screen: Screen, p: Params) -> Move | None:
    if (move := nav.open_item(screen, p["key"], "sharing")) is not None:
        return move
    if screen.value("who") != p["mail"] and not screen.above("who"):
        return screen.fill({"who": p["mail"]}, "share", {"who": ("I type the address.",)})
    if not screen.checked(f"right {p['right']}"):
        return screen.click(f"right {p['right']}", "I choose what they may do.", "This is allowed.")
    return screen.click("share", "I share it.", "I click share.")


def _draw_shared(d: Draw) -> Params:
    drawn = draws.draw_file(d, lambda one: one["shared"])
    who = d.rng.choice(list(d.records["nodes"][drawn["key"]]["shared"]))
    right = "view" if d.records["nodes"][drawn["key"]]["shared"][who] == "edit" else "edit"
    words = {"view": "may look at the file “{}” but no longer edit it", "edit": "may also edit the file “{}”"}
    return {
        **drawn,
        "who": who,
        "person": d.records["_people"][who]["name"],
        "right": right,
        "may": d.t(words[right]).format(drawn["name"]),
    }


def _steps_right(screen: Screen, p: Params) -> Move | None:
    move = nav.open_item(screen, p["key"], "sharing")
    return move or screen.click(f"turn {p['who']}", "I change what they may do.", "I click here.")


def _unshare(records: Records, p: Params) -> None:
    del records["nodes"][p["key"]]["shared"][p["who"]]


def _steps_unshare(screen: Screen, p: Params) -> Move | None:
    move = nav.open_item(screen, p["key"], "sharing")
    return move or screen.click(f"remove {p['who']}", "I take this person off.", "I remove them.")


def _draw_private(d: Draw) -> Params:
    """Draw a file that is shared with two or three people."""
    return draws.draw_file(d, lambda one: len(one["shared"]) >= 2)


def _private(records: Records, p: Params) -> None:
    records["nodes"][p["key"]]["shared"] = {}


def _steps_private(screen: Screen, p: Params) -> Move | None:
    left = list(screen.records["nodes"][p["key"]]["shared"])
    return _steps_unshare(screen, {**p, "who": left[0]}) if left else None


def _draw_link(d: Draw) -> Params:
    return draws.draw_file(d, lambda one: not one["link"])


def _link(records: Records, p: Params) -> None:
    records["nodes"][p["key"]]["link"] = True


def _steps_link(screen: Screen, p: Params) -> Move | None:
    return nav.open_item(screen, p["key"], "sharing") or screen.click("link", "I turn the link on.")


def _draw_team(d: Draw) -> Params:
    folder = draws.draw_folder(d, lambda one: not one["shared"])
    one, other = draws.draw_person(d), draws.draw_person(d)
    if one["who"] == other["who"]:
        raise Redraw
    return {
        "key": folder["folder"],
        "title": folder["title"],
        "all": [one, other],
        "one": one["mail"],
        "other": other["mail"],
    }


def _team(records: Records, p: Params) -> None:
    records["nodes"][p["key"]]["shared"] = {one["who"]: "edit" for one in p["all"]}


def _steps_team(screen: Screen, p: Params) -> Move | None:
    done = screen.records["nodes"][p["key"]]["shared"]
    left = [one for one in p["all"] if one["who"] not in done]
    return _steps_share(screen, {"key": p["key"], "right": "edit", **left[0]}) if left else None


# -- writing ---------------------------------------------------------------------------------------------------------
def _text(one: dict) -> bool:
    return one["kind"] == "text"


def _draw_write(d: Draw) -> Params:
    return {**draws.draw_file(d, _text), "text": d.rng.choice(draws.LINES)}


def _write(records: Records, p: Params) -> None:
    tree.write(records, p["key"], p["text"])


def _type(screen: Screen, p: Params) -> Move:
    said = {"text": ("I type the text.", "I write it."), "save": ("I save it.", "Now I save.")}
    return screen.fill({"text": p["text"]}, "save", said)


def _steps_write(screen: Screen, p: Params) -> Move | None:
    if screen.page == f"item/{p['key']}/edit":
        return _type(screen, p)
    return nav.open_item(screen, p["key"]) or screen.click("edit", "I edit it.", "I click edit.")


def _draw_shared_note(d: Draw) -> Params:
    """Draw a text of somebody else that the user may edit."""
    key, one = d.pick("nodes", lambda one: one["shared"].get("me") == "edit" and _text(one))
    return {"key": key, "name": one["name"], "text": d.rng.choice(draws.LINES)}


def _steps_shared_note(screen: Screen, p: Params) -> Move | None:
    if screen.page in (f"item/{p['key']}", f"item/{p['key']}/edit"):
        return _steps_write(screen, p)
    return nav.open_files_page(screen, "shared") or screen.click(f"more {p['key']}", "Here it is.", "I open it.")


def _draw_new_text(d: Draw) -> Params:
    name = f"{d.rng.choice(('list', 'idea', 'memo', 'report', 'song'))} {d.rng.randint(2, 99)}.txt"
    return {**draws.draw_folder(d), "new": name, "text": d.rng.choice(draws.LINES)}


def _new_text(records: Records, p: Params) -> None:
    tree.write(records, tree.make(records, p["new"], p["folder"], "text"), p["text"])


def _steps_new_text(screen: Screen, p: Params) -> Move | None:
    """Make the file, then write in the editor that opens."""
    inside = tree.children(screen.records, p["folder"])
    made = next((key for key, one in inside if one["name"] == p["new"]), None)
    if made is not None:
        return _steps_write(screen, {"key": made, "text": p["text"]})
    if screen.page == f"folder/{p['folder']}" and screen.query.get("ask") == "text":
        return screen.fill({"name": p["new"]}, "make", {"name": ("I type the name.",), "make": ("I make it.",)})
    if (move := nav.open_folder(screen, p["folder"])) is not None:
        return move
    return screen.click("new text" if screen.has("new text") else "new", "I make a new text.", "I click new.")


def _draw_version(d: Draw) -> Params:
    drawn = draws.draw_file(d, lambda one: one.get("versions"))
    versions = d.records["nodes"][drawn["key"]]["versions"]
    number = d.rng.randrange(len(versions))
    return {**drawn, "number": number, "day": shown_day(versions[number]["day"])}


def _version(records: Records, p: Params) -> None:
    tree.write(records, p["key"], records["nodes"][p["key"]]["versions"][p["number"]]["text"])


def _steps_version(screen: Screen, p: Params) -> Move | None:
    move = nav.open_item(screen, p["key"], "versions")
    return move or screen.click(f"version {p['number']}", "I bring this version back.")


TASKS = (
    SiteTask("share", "Share the file “{name}” with {mail}, {may}.", {4: 14}, _draw_share, _steps_share, _share),
    SiteTask("right", "Change the sharing so that {person} {may}.", {3: 10}, _draw_shared, _steps_right, _share),
    SiteTask(
        "unshare", "Share the file “{name}” no longer with {person}.", {3: 10}, _draw_shared, _steps_unshare, _unshare
    ),
    SiteTask(
        "private",
        "Share the file “{name}” with nobody any more; leave its link as it is.",
        {4: 12},
        _draw_private,
        _steps_private,
        _private,
    ),
    SiteTask("link", "Let anyone with the link look at the file “{name}”.", {3: 12}, _draw_link, _steps_link, _link),
    SiteTask(
        "team",
        "Share the folder {title} with {one} and {other}; both may edit it.",
        {5: 22},
        _draw_team,
        _steps_team,
        _team,
    ),
    SiteTask(
        "write",
        "Replace the whole text of the file “{name}” with: “{text}”",
        {3: 14},
        _draw_write,
        _steps_write,
        _write,
    ),
    SiteTask(
        "write_shared",
        "Others share the file “{name}” with you. Replace its whole text with: “{text}”",
        {3: 13},
        _draw_shared_note,
        _steps_shared_note,
        _write,
    ),
    SiteTask(
        "new_text",
        "Make a text file “{new}” in the folder {title}, with the text “{text}”",
        {4: 18},
        _draw_new_text,
        _steps_new_text,
        _new_text,
    ),
    SiteTask(
        "version",
        "Bring back the version of {day} of the file “{name}”.",
        {3: 10},
        _draw_version,
        _steps_version,
        _version,
    ),
)
