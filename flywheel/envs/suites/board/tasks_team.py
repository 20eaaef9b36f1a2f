"""Define the board's task templates on sprints, members and projects."""

from __future__ import annotations

from typing import Any

from flywheel.envs.suites.board import data, draws, nav, team
from flywheel.envs.suites.screen import Move, Screen, click_and_confirm
from flywheel.envs.suites.site_tasks import Draw, Params, Redraw, SiteTask

Records = dict[str, Any]
_COLUMNS = ("Blocked", "Ready", "On hold", "Approved", "Later", "With the customer")
_GUESTS = ("Maria Silva", "Noah Berg", "Olga Novak", "Peter Lang", "Rosa Marin", "Sam Taylor", "Tina Vogel")
_NEW = {"Office move": "MOV", "Summer fair": "FAIR", "Hiring": "HIRE", "Podcast": "POD", "Annual report": "YEAR"}
_ABOUT = ("A small project for spring", "To be done by summer", "Only for our team", "Asked for by sales")


# -- sprints -----------------------------------------------------------------------------------------------------------
def _draw_start(d: Draw) -> Params:
    drawn = draws.sprint(d, "Planned")
    mine = [one for one in d.records["sprints"].values() if one["project"] == drawn["project"]]
    if any(one["state"] == "Active" for one in mine):
        raise Redraw
    return drawn


def _start(records: Records, p: Params) -> None:
    records["sprints"][p["sprint"]]["state"] = "Active"


def _steps_start(screen: Screen, p: Params) -> Move | None:
    move = nav.open_project(screen, p["project"], "sprints")
    return move or screen.click(f"start {p['sprint']}", "I start it.", "I click start.")


def _steps_finish(screen: Screen, p: Params) -> Move | None:
    if screen.has("confirm"):
        return screen.click("confirm", "Yes, I am sure.", "I confirm.")
    move = nav.open_project(screen, p["project"], "sprints")
    return move or screen.click(f"finish {p['sprint']}", "I end it.", "I click finish.")


def _draw_new_sprint(d: Draw) -> Params:
    name = f"Sprint {d.rng.randint(30, 60)}"
    return {**draws.project(d), "wanted": {"name": name, "start": draws.day(d, 60, 80), "end": draws.day(d, 81, 110)}}


def _new_sprint(records: Records, p: Params) -> None:
    records["sprints"]["new"] = {"project": p["project"], **p["wanted"], "state": "Planned"}


def _steps_new_sprint(screen: Screen, p: Params) -> Move | None:
    if screen.page == f"sprints/{p['project']}/new":
        return screen.fill(p["wanted"], "save", nav.SAID)
    return nav.open_project(screen, p["project"], "sprints") or screen.click("new sprint", "I plan a new one.")


def _draw_join(count: int):
    """Return a draw of `count` backlog cards and a sprint that is planned or, for one card, planned or active."""

    def draw(d: Draw) -> Params:
        drawn = _draw_start(d) if count > 1 else draws.sprint(d, "Planned", "Active")
        open_card = draws.is_open(d)
        cards = draws.cards(
            d, count, lambda one: one["project"] == drawn["project"] and not one["sprint"] and open_card(one)
        )
        titles = {f"title{n}": one["title"] for n, one in enumerate(cards, 1)}
        return {**drawn, **titles, "keys": [one["key"] for one in cards]}

    return draw


def _join(records: Records, p: Params) -> None:
    for key in p["keys"]:
        records["cards"][key]["sprint"] = p["sprint"]


def _steps_join(screen: Screen, p: Params) -> Move | None:
    left = [key for key in p["keys"] if screen.records["cards"][key]["sprint"] != p["sprint"]]
    return nav.edit_card(screen, left[0], {"sprint": p["sprint"]}) if left else None


def _join_and_start(records: Records, p: Params) -> None:
    _join(records, p)
    _start(records, p)


# -- members -----------------------------------------------------------------------------------------------------------
def _draw_invite(d: Draw) -> Params:
    name = d.rng.choice(_GUESTS)
    email = f"{name.split()[0].lower()}{d.rng.randint(1, 99)}@example.com"
    return {"wanted": {"name": name, "email": email}, "role": d.rng.choice(data.ROLES[1:])}


def _invite(records: Records, p: Params) -> None:
    records["members"]["new"] = {**p["wanted"], "role": p["role"]}


def _roled(screen: Screen, role: str) -> Move | None:
    return None if screen.checked(f"role {role}") else screen.click(f"role {role}", "I choose the role.")


def _steps_invite(screen: Screen, p: Params) -> Move | None:
    if screen.page != "members/new":
        return nav.open_page_from_menu(screen, "members", "menu members") or screen.click("invite", "I add somebody.")
    if any(screen.has(name) and screen.value(name) != text for name, text in p["wanted"].items()):
        return screen.fill(p["wanted"], "save", nav.SAID)
    return _roled(screen, p["role"]) or screen.click("save", "I send it.", "I click the button.")


def _draw_other(d: Draw) -> Params:
    """Draw a member, other than the user, who leads no project."""
    leads = {one["lead"] for one in d.records["projects"].values()}
    return draws.member(d, lambda key: key != data.ME and key not in leads)


def _draw_role(d: Draw) -> Params:
    drawn = draws.member(d, lambda key: key != data.ME)
    return {**drawn, "role": d.rng.choice(data.ROLES[1:])}


def _role(records: Records, p: Params) -> None:
    records["members"][p["member"]]["role"] = p["role"]


def _member(screen: Screen, key: str) -> Move | None:
    if screen.page == f"members/{key}":
        return None
    return nav.open_page_from_menu(screen, "members", "menu members") or screen.click(
        f"member {key}", "I open this one."
    )


def _steps_role(screen: Screen, p: Params) -> Move | None:
    return _member(screen, p["member"]) or _roled(screen, p["role"]) or screen.click("save", "I save it.")


def _steps_remove(screen: Screen, p: Params) -> Move | None:
    return _member(screen, p["member"]) or click_and_confirm(screen, "remove", "I take this one out.")


def _draw_hand_over(d: Draw) -> Params:
    """Draw a member with exactly two open cards in a project, and another member to take them."""
    drawn = {**draws.project(d), **draws.member(d)}
    other = draws.member(d, lambda key: key != drawn["member"])
    keys = list(data.open_cards(d.records, drawn["project"], drawn["member"]))
    if len(keys) != 2:
        raise Redraw
    return {**drawn, "keys": keys, "other": other["member"], "heir": other["who"]}


def _hand_over(records: Records, p: Params) -> None:
    for key in p["keys"]:
        records["cards"][key]["assignee"] = p["other"]


def _steps_hand_over(screen: Screen, p: Params) -> Move | None:
    """Filter the board to find the cards, then reassign one after the other."""
    cards = screen.records["cards"]
    left = [key for key in p["keys"] if cards[key]["assignee"] != p["other"]]
    if not left:
        return None
    if len(left) == len(p["keys"]) and screen.page in ("", f"board/{p['project']}"):
        move = nav.filter_board(screen, p["project"], {"who": p["member"]})
        if move is not None:
            return move
    return nav.edit_card(screen, left[0], {"assignee": p["other"]})


# -- projects ----------------------------------------------------------------------------------------------------------
def _star(records: Records, p: Params) -> None:
    one = records["projects"][p["project"]]
    one["starred"] = not one["starred"]


def _draw_star(starred: bool):
    def draw(d: Draw) -> Params:
        drawn = draws.project(d)
        if d.records["projects"][drawn["project"]]["starred"] != starred:
            raise Redraw
        return drawn

    return draw


def _steps_star(screen: Screen, p: Params) -> Move | None:
    return nav.open_page_from_menu(screen, "", "home") or screen.click(
        f"star {p['project']}", "I click the star.", "The star."
    )


def _draw_new_project(d: Draw) -> Params:
    name = d.rng.choice(list(_NEW))
    return {"wanted": {"name": name, "tag": _NEW[name], "about": d.rng.choice(_ABOUT)}}


def _new_project(records: Records, p: Params) -> None:
    records["projects"]["new"] = team.fresh_project(**p["wanted"])


def _steps_new_project(screen: Screen, p: Params) -> Move | None:
    if screen.page == "projects/new":
        return screen.fill(p["wanted"], "create", {**nav.SAID, "create": ("I make it.", "I click the button.")})
    return nav.open_page_from_menu(screen, "", "home") or screen.click("new project", "I make a new project.")


def _draw_lead(d: Draw) -> Params:
    return {**draws.project(d), **draws.member(d)}


def _lead(records: Records, p: Params) -> None:
    records["projects"][p["project"]]["lead"] = p["member"]


def _steps_lead(screen: Screen, p: Params) -> Move | None:
    move = nav.open_project(screen, p["project"], "settings")
    said = {**nav.SAID, "lead": ("I choose the person.",)}
    return move or screen.fill({"lead": p["member"]}, "save", said)


def _draw_column(d: Draw) -> Params:
    return {**draws.project(d), "name": d.rng.choice(_COLUMNS)}


def _add_column(records: Records, p: Params) -> None:
    records["projects"][p["project"]]["columns"].insert(-1, p["name"])


def _steps_add_column(screen: Screen, p: Params) -> Move | None:
    move = nav.open_project(screen, p["project"], "settings")
    said = {"column": ("I type the name.",), "add column": ("I add it.",)}
    return move or screen.fill({"column": p["name"]}, "add column", said)


def _draw_rename_column(d: Draw) -> Params:
    drawn = _draw_column(d)
    columns = d.records["projects"][drawn["project"]]["columns"]
    place = d.rng.randrange(len(columns))
    return {**drawn, "place": place, "before": columns[place]}


def _rename_column(records: Records, p: Params) -> None:
    records["projects"][p["project"]]["columns"][p["place"]] = p["name"]
    for card in records["cards"].values():
        if (card["project"], card["column"]) == (p["project"], p["before"]):
            card["column"] = p["name"]


def _steps_rename_column(screen: Screen, p: Params) -> Move | None:
    move = nav.open_project(screen, p["project"], "settings")
    return move or screen.fill({f"column{p['place']}": p["name"]}, "save columns", {"save columns": ("I save it.",)})


def _shelve(records: Records, p: Params) -> None:
    records["projects"][p["project"]]["archived"] = True


def _steps_shelve(screen: Screen, p: Params) -> Move | None:
    move = nav.open_project(screen, p["project"], "settings")
    return move or click_and_confirm(screen, "archive", "I put it away.")


TASKS = (
    SiteTask("star", "Star the project “{where}”.", {1: 3}, _draw_star(False), _steps_star, _star),
    SiteTask("unstar", "Take the star off the project “{where}”.", {1: 3}, _draw_star(True), _steps_star, _star),
    SiteTask("start_sprint", "Start “{name}” of the project “{where}”.", {2: 7}, _draw_start, _steps_start, _start),
    SiteTask(
        "finish_sprint",
        "Finish “{name}” of the project “{where}”.",
        {3: 8},
        lambda d: draws.sprint(d, "Active"),
        _steps_finish,
        lambda records, p: team.finish_sprint(records, p["sprint"]),
    ),
    SiteTask(
        "new_sprint",
        "Plan a new sprint in the project “{where}”: “{wanted[name]}”, from {wanted[start]} to {wanted[end]}.",
        {4: 16},
        _draw_new_sprint,
        _steps_new_sprint,
        _new_sprint,
    ),
    SiteTask("join", "Put the card “{title1}” into “{name}”.", {3: 14}, _draw_join(1), _steps_join, _join),
    SiteTask(
        "plan",
        "Put the cards “{title1}” and “{title2}” into “{name}”, then start it.",
        {5: 32},
        _draw_join(2),
        lambda s, p: _steps_join(s, p) or _steps_start(s, p),
        _join_and_start,
    ),
    SiteTask(
        "invite", "Invite {wanted[name]}, {wanted[email]}, as {role}.", {3: 14}, _draw_invite, _steps_invite, _invite
    ),
    SiteTask("role", "Change the role of {who} to {role}.", {2: 8}, _draw_role, _steps_role, _role),
    SiteTask(
        "remove",
        "Remove the member {who}.",
        {3: 8},
        _draw_other,
        _steps_remove,
        lambda records, p: team.remove_member(records, p["member"]),
    ),
    SiteTask(
        "hand_over",
        "Give all open cards of {who} in the project “{where}” to {heir}.",
        {5: 32},
        _draw_hand_over,
        _steps_hand_over,
        _hand_over,
    ),
    SiteTask(
        "new_project",
        "Create the project “{wanted[name]}” with the key {wanted[tag]}; what it is about: “{wanted[about]}”.",
        {4: 14},
        _draw_new_project,
        _steps_new_project,
        _new_project,
    ),
    SiteTask("lead", "Make {who} the lead of the project “{where}”.", {3: 10}, _draw_lead, _steps_lead, _lead),
    SiteTask(
        "add_column",
        "Add the column “{name}” to the board of the project “{where}”.",
        {3: 12},
        _draw_column,
        _steps_add_column,
        _add_column,
    ),
    SiteTask(
        "rename_column",
        "Rename the column “{before}” of the project “{where}” to “{name}”.",
        {4: 14},
        _draw_rename_column,
        _steps_rename_column,
        _rename_column,
    ),
    SiteTask("shelve", "Archive the project “{where}”.", {3: 10}, draws.project, _steps_shelve, _shelve),
)
