"""Serve the pages and forms of a card: fields, checklist, comments, moving and archiving."""

from __future__ import annotations

from typing import Any

from flywheel.envs.suites.board import data
from flywheel.envs.suites.board.data import LABELS, ME, POINTS, PRIORITIES, TODAY
from flywheel.envs.suites.board.pages import people, site
from flywheel.envs.suites.forms import Field, day, one_of
from flywheel.envs.suites.site import Page, Visit, site_address


def _card(visit: Visit, key: str) -> data.Card | None:
    return visit.records["cards"].get(key)


def _columns(visit: Visit, project: str) -> list[tuple[str, str]]:
    return [(column, column) for column in visit.records["projects"][project]["columns"]]


# -- pages -------------------------------------------------------------------------------------------------------------
@site.page("card/<key>")
def card(visit: Visit, key: str) -> Page | None:
    if (one := _card(visit, key)) is None:
        return None
    records = visit.records
    said = {name: comment for name, comment in records["comments"].items() if comment["card"] == key}
    return Page.of(
        "card.html",
        heading=one["title"],
        key=key,
        card=one,
        project=records["projects"][one["project"]],
        sprint=records["sprints"].get(one["sprint"]),
        comments=said,
        columns=_columns(visit, one["project"]),
        ask=visit.query.get("ask"),
    )


@site.page("card/<key>/edit")
def edit(visit: Visit, key: str) -> Page | None:
    one = _card(visit, key)
    return None if one is None else _form(visit, visit.t("Edit the card"), one, f"card/{key}")


@site.page("new/<project>")
def new(visit: Visit, project: str) -> Page | None:
    if (one := visit.records["projects"].get(project)) is None:
        return None
    column = visit.option("column", one["columns"])
    return _form(visit, visit.t("New card"), data.blank(project, column), f"new/{project}")


def _form(visit: Visit, heading: str, card: data.Card, target: str) -> Page:
    project = card["project"]
    sprints = [(key, one["name"]) for key, one in visit.records["sprints"].items() if _may_join(visit, key, card)]
    return Page.of(
        "edit.html",
        heading=heading,
        card=card,
        target=target,
        project=visit.records["projects"][project],
        columns=_columns(visit, project),
        people=people(visit, ("", visit.t("Nobody"))),
        priorities=[(one, visit.t(one)) for one in PRIORITIES],
        points=[(str(one), str(one)) for one in POINTS],
        sprints=[("", visit.t("None (backlog)")), *sprints],
    )


def _may_join(visit: Visit, key: str, card: data.Card) -> bool:
    """Tell whether a card may be in a sprint: one of its project that is not over, or the one that it is in already."""
    sprint = visit.records["sprints"][key]
    return sprint["project"] == card["project"] and (sprint["state"] != "Done" or card["sprint"] == key)


# -- forms -------------------------------------------------------------------------------------------------------------
def _read(visit: Visit, card: data.Card) -> dict[str, Any]:
    """Read and check the fields of the form of a card."""
    records = visit.records
    sprints = [key for key in records["sprints"] if _may_join(visit, key, card)]
    values = visit.read(
        Field("title", longest=120),
        Field("text", required=False, longest=2000),
        Field("column", check=one_of(records["projects"][card["project"]]["columns"])),
        Field("assignee", required=False, check=one_of(records["members"])),
        Field("priority", check=one_of(PRIORITIES)),
        Field("due", required=False, check=day),
        Field("points", check=one_of(map(str, POINTS))),
        Field("sprint", required=False, check=one_of(sprints)),
    )
    labels = [label for label in LABELS if f"label_{label}" in visit.form]
    return {**values, "points": int(values["points"]), "labels": labels}


@site.form("new/<project>")
def create(visit: Visit, project: str) -> str | None:
    if (one := visit.records["projects"].get(project)) is None:
        return None
    card = data.blank(project, one["columns"][0])
    card |= _read(visit, card)
    data.add_card(visit.records, card)
    visit.notice("“{title}” is created.", title=card["title"])
    return site_address(f"board/{project}", column=card["column"])


@site.form("card/<key>")
def save(visit: Visit, key: str) -> str | None:
    if (one := _card(visit, key)) is None:
        return None
    values = _read(visit, one)
    if values["column"] != one["column"]:
        one["_place"] = data.fresh(visit.records)
    one |= values
    visit.notice("Saved.")
    return f"card/{key}"


@site.form("card/<key>/move")
def move(visit: Visit, key: str) -> str | None:
    if (one := _card(visit, key)) is None:
        return None
    column = visit.read(Field("column", check=one_of(visit.records["projects"][one["project"]]["columns"])))["column"]
    _put(visit, one, column)
    return f"card/{key}"


@site.form("card/<key>/next")
def move_on(visit: Visit, key: str) -> str | None:
    """Move a card one column to the right, from the board."""
    if (one := _card(visit, key)) is None:
        return None
    columns = visit.records["projects"][one["project"]]["columns"]
    before = one["column"]
    _put(visit, one, columns[min(columns.index(before) + 1, len(columns) - 1)])
    return site_address(f"board/{one['project']}", column=before)


def _put(visit: Visit, card: data.Card, column: str) -> None:
    if card["column"] != column:
        card |= {"column": column, "_place": data.fresh(visit.records)}
        visit.notice("{name} is now in “{column}”.", name=data.tag(visit.records, card), column=column)


@site.form("card/<key>/archive")
def archive(visit: Visit, key: str) -> str | None:
    if (one := _card(visit, key)) is None:
        return None
    one["archived"] = True
    visit.notice("{name} is archived.", name=data.tag(visit.records, one))
    return f"board/{one['project']}"


@site.form("card/<key>/restore")
def restore(visit: Visit, key: str) -> str | None:
    if (one := _card(visit, key)) is None:
        return None
    one |= {"archived": False, "_place": data.fresh(visit.records)}
    visit.notice("{name} is back on the board.", name=data.tag(visit.records, one))
    return f"card/{key}"


@site.form("card/<key>/comment")
def comment(visit: Visit, key: str) -> str | None:
    if _card(visit, key) is None:
        return None
    text = visit.read(Field("comment", longest=1000))["comment"]
    name = f"n{data.fresh(visit.records)}"
    visit.records["comments"][name] = {"card": key, "by": ME, "day": TODAY, "text": text}
    return f"card/{key}"


@site.form("comment/<key>/delete")
def unsay(visit: Visit, key: str) -> str | None:
    """Delete a comment of the user's own."""
    one = visit.records["comments"].get(key)
    if one is None or one["by"] != ME:
        return None
    del visit.records["comments"][key]
    visit.notice("The comment is deleted.")
    return f"card/{one['card']}"


@site.form("card/<key>/step")
def add_step(visit: Visit, key: str) -> str | None:
    if _card(visit, key) is None:
        return None
    text = visit.read(Field("step", longest=120))["step"]
    visit.records["steps"][f"t{data.fresh(visit.records)}"] = {"card": key, "text": text, "done": False}
    return f"card/{key}"


@site.form("step/<key>/<what>")
def change_step(visit: Visit, key: str, what: str) -> str | None:
    one = visit.records["steps"].get(key)
    if one is None or what not in ("tick", "remove"):
        return None
    if what == "tick":
        one["done"] = not one["done"]
    else:
        del visit.records["steps"][key]
    return f"card/{one['card']}"
