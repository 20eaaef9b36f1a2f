"""Serve the pages and forms of sprints, members and projects."""

from __future__ import annotations

from flywheel.envs.suites.board import data
from flywheel.envs.suites.board.data import FRESH, ME, ROLES
from flywheel.envs.suites.board.pages import people, project_page, site
from flywheel.envs.suites.forms import Field, Invalid, day, email, one_of
from flywheel.envs.suites.site import Page, Visit

COLUMNS = 6  # most columns of a board
_DATES = (Field("name", longest=40), Field("start", check=day), Field("end", check=day))


# -- sprints -----------------------------------------------------------------------------------------------------------
def _in_sprint(visit: Visit, sprint: str) -> dict[str, data.Card]:
    cards = data.cards_of(visit.records, visit.records["sprints"][sprint]["project"])
    return {key: card for key, card in cards.items() if card["sprint"] == sprint}


@site.page("sprints/<key>")
def sprints(visit: Visit, key: str) -> Page | None:
    rows = []
    for name, sprint in visit.records["sprints"].items():
        if sprint["project"] == key:
            cards = _in_sprint(visit, name).values()
            points = sum(card["points"] for card in cards)
            over = sum(card["points"] for card in cards if data.is_done(visit.records, card))
            rows.append((name, sprint, len(cards), points, over / points if points else 0.0))
    return project_page(visit, "sprints.html", key, rows=rows)


@site.page("sprints/<key>/new")
def new_sprint(visit: Visit, key: str) -> Page | None:
    empty = {"name": "", "start": "", "end": ""}
    return project_page(
        visit, "sprint_form.html", key, heading=visit.t("New sprint"), sprint=empty, target=f"sprints/{key}"
    )


@site.page("sprint/<key>")
def one_sprint(visit: Visit, key: str) -> Page | None:
    if (sprint := visit.records["sprints"].get(key)) is None:
        return None
    cards = _in_sprint(visit, key)
    return project_page(
        visit,
        "sprint.html",
        sprint["project"],
        heading=sprint["name"],
        name=key,
        sprint=sprint,
        cards=cards,
        points=sum(card["points"] for card in cards.values()),
        ask=visit.query.get("ask"),
    )


@site.page("sprint/<key>/edit")
def edit_sprint(visit: Visit, key: str) -> Page | None:
    if (sprint := visit.records["sprints"].get(key)) is None:
        return None
    return project_page(
        visit,
        "sprint_form.html",
        sprint["project"],
        heading=visit.t("Edit the sprint"),
        sprint=sprint,
        target=f"sprint/{key}",
    )


def _dates(visit: Visit) -> dict[str, str]:
    values = visit.read(*_DATES)
    if values["end"] <= values["start"]:
        raise Invalid(end="The end comes after the start.")
    return values


@site.form("sprints/<key>")
def create_sprint(visit: Visit, key: str) -> str | None:
    if key not in visit.records["projects"]:
        return None
    values = _dates(visit)
    name = f"s{data.fresh(visit.records)}"
    visit.records["sprints"][name] = {"project": key, **values, "state": "Planned"}
    visit.notice("{name} is planned.", name=values["name"])
    return f"sprints/{key}"


@site.form("sprint/<key>")
def save_sprint(visit: Visit, key: str) -> str | None:
    if (sprint := visit.records["sprints"].get(key)) is None:
        return None
    sprint |= _dates(visit)
    visit.notice("Saved.")
    return f"sprint/{key}"


@site.form("sprint/<key>/start")
def start(visit: Visit, key: str) -> str | None:
    sprint = visit.records["sprints"].get(key)
    if sprint is None or sprint["state"] != "Planned":
        return None
    others = [one for one in visit.records["sprints"].values() if one["project"] == sprint["project"]]
    if any(one["state"] == "Active" for one in others):
        visit.notice("Another sprint is still running: finish it first.")
    else:
        sprint["state"] = "Active"
        visit.notice("{name} has begun.", name=sprint["name"])
    return f"sprints/{sprint['project']}"


@site.form("sprint/<key>/finish")
def finish(visit: Visit, key: str) -> str | None:
    sprint = visit.records["sprints"].get(key)
    if sprint is None or sprint["state"] != "Active":
        return None
    finish_sprint(visit.records, key)
    visit.notice("{name} is over.", name=sprint["name"])
    return f"sprints/{sprint['project']}"


def finish_sprint(records: data.Records, key: str) -> None:
    """End a sprint; its cards that are not done go back to the backlog."""
    records["sprints"][key]["state"] = "Done"
    for card in records["cards"].values():
        if card["sprint"] == key and not data.is_done(records, card):
            card["sprint"] = ""


# -- members -----------------------------------------------------------------------------------------------------------
@site.page("members")
def members(visit: Visit) -> Page:
    load = {
        key: sum(len(data.open_cards(visit.records, project, key)) for project in visit.records["projects"])
        for key in visit.records["members"]
    }
    return Page.of("members.html", heading=visit.t("Members"), load=load)


@site.page("members/<key>")
def member(visit: Visit, key: str) -> Page | None:
    one = {"name": "", "email": "", "role": "Member"} if key == "new" else visit.records["members"].get(key)
    if one is None:
        return None
    return Page.of(
        "member.html",
        heading=visit.t("Invite somebody") if key == "new" else one["name"],
        key=key,
        member=one,
        roles=[(role, visit.t(role)) for role in ROLES],
        leads=_leads(visit, key),
        ask=visit.query.get("ask"),
    )


def _leads(visit: Visit, key: str) -> list[str]:
    return [one["name"] for one in visit.records["projects"].values() if one["lead"] == key]


@site.form("members/<key>")
def save_member(visit: Visit, key: str) -> str | None:
    members = visit.records["members"]
    if key != "new" and key not in members:
        return None
    role = Field("role", check=one_of(ROLES))
    if key != "new":
        members[key] |= visit.read(role)
        visit.notice("Saved.")
        return "members"
    values = visit.read(Field("name", longest=60), Field("email", check=email), role)
    if any(one["email"] == values["email"] for one in members.values()):
        raise Invalid(email="This address belongs to a member already.")
    members[f"m{data.fresh(visit.records)}"] = {**values, "_colour": "#5b6b12"}
    visit.notice("{name} is invited.", name=values["name"])
    return "members"


@site.form("members/<key>/remove")
def remove(visit: Visit, key: str) -> str | None:
    if key == ME or key not in visit.records["members"]:
        return None
    if leads := _leads(visit, key):
        raise Invalid(role=("Find another lead for “{name}” first.", {"name": leads[0]}))
    visit.notice("{name} is no longer a member.", name=visit.records["members"][key]["name"])
    remove_member(visit.records, key)
    return "members"


def remove_member(records: data.Records, key: str) -> None:
    """Delete a member and unassign their cards; their comments stay."""
    del records["members"][key]
    for card in records["cards"].values():
        if card["assignee"] == key:
            card["assignee"] = ""


# -- projects ----------------------------------------------------------------------------------------------------------
@site.page("projects/new")
def new_project(visit: Visit) -> Page:
    return Page.of("project_new.html", heading=visit.t("New project"))


@site.form("projects/new")
def create_project(visit: Visit) -> str:
    values = visit.read(Field("name", longest=40), Field("tag", longest=4), Field("about", required=False))
    values["tag"] = values["tag"].upper()
    if not values["tag"].isalpha():
        raise Invalid(tag="Letters alone, such as WEB.")
    if any(one["tag"] == values["tag"] for one in visit.records["projects"].values()):
        raise Invalid(tag="Another project has this key.")
    key = f"p{data.fresh(visit.records)}"
    visit.records["projects"][key] = fresh_project(**values)
    return f"board/{key}"


def fresh_project(name: str, tag: str, about: str) -> dict:
    return {
        "name": name,
        "tag": tag,
        "about": about,
        "lead": ME,
        "starred": False,
        "archived": False,
        "columns": list(FRESH),
        "_cards": 0,
    }


@site.page("settings/<key>")
def settings(visit: Visit, key: str) -> Page | None:
    return project_page(visit, "settings.html", key, people=people(visit), ask=visit.query.get("ask"))


@site.form("settings/<key>")
def save_project(visit: Visit, key: str) -> str | None:
    if (one := visit.records["projects"].get(key)) is None:
        return None
    one |= visit.read(
        Field("name", longest=40), Field("about", required=False), Field("lead", check=one_of(visit.records["members"]))
    )
    visit.notice("Saved.")
    return f"settings/{key}"


@site.form("settings/<key>/columns")
def save_columns(visit: Visit, key: str) -> str | None:
    """Save all columns at once: rename them, or remove those whose field is empty and that hold no card."""
    if (one := visit.records["projects"].get(key)) is None:
        return None
    fields = [f"column{n}" for n in range(len(one["columns"]))]
    values = visit.read(*(Field(name, required=False, longest=30) for name in fields))
    kept = [values[name] for name in fields if values[name]]
    for before, name in zip(one["columns"], fields, strict=True):
        cards = [c for c in visit.records["cards"].values() if c["project"] == key and c["column"] == before]
        if kept.count(values[name]) > 1:
            raise Invalid(**{name: "Another column is called so."})
        if not values[name] and (cards or len(kept) < 2):
            raise Invalid(**{name: "There are cards in this column."} if cards else {name: "A board has two columns."})
    renamed = dict(zip(one["columns"], (values[name] for name in fields), strict=True))
    for card in visit.records["cards"].values():
        if card["project"] == key:
            card["column"] = renamed[card["column"]]
    one["columns"] = kept
    visit.notice("Saved.")
    return f"settings/{key}"


@site.form("settings/<key>/add")
def add_column(visit: Visit, key: str) -> str | None:
    if (one := visit.records["projects"].get(key)) is None:
        return None
    name = visit.read(Field("column", longest=30))["column"]
    if name in one["columns"]:
        raise Invalid(column="Another column is called so.")
    if len(one["columns"]) >= COLUMNS:
        raise Invalid(column="A board has six columns at most.")
    one["columns"].insert(len(one["columns"]) - 1, name)
    visit.notice("Saved.")
    return f"settings/{key}"


@site.form("settings/<key>/<what>")
def shelve(visit: Visit, key: str, what: str) -> str | None:
    one = visit.records["projects"].get(key)
    if one is None or what not in ("archive", "restore"):
        return None
    one["archived"] = what == "archive"
    visit.notice("{name} is archived." if one["archived"] else "{name} is back.", name=one["name"])
    return ""
