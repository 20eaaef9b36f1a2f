"""Navigate as the expert of the encyclopaedia: each function returns the next move, or None at the end."""

from __future__ import annotations

import itertools

from flywheel.envs.suites.encyclopaedia.facts import articles
from flywheel.envs.suites.screen import Move, Screen


def open_article(screen: Screen, key: str) -> Move | None:
    """Go to an article through the search."""
    if screen.page == f"wiki/{key}":
        return None
    if screen.page == "search" and screen.has(f"result {key}"):
        return screen.click(f"result {key}", "I open it.", "Here it is.", "This is the one.")
    return screen.fill({"search": articles()[key].title}, "", {"search": ("I type the name.", "I search for it.")})


def follow_links(screen: Screen, chain: list[str]) -> Move | None:
    """Go from the first article of `chain` (slugs) to its last, by the links."""
    if screen.page == f"wiki/{chain[-1]}" and screen.query.get("tab") != "note":
        return None
    for here, there in itertools.pairwise(chain):
        if screen.page == f"wiki/{here}" and screen.has(f"link {there}"):
            return screen.click(f"link {there}", "I follow this link.", "I go on to the next one.", "I click the link.")
    return open_article(screen, chain[0])


def open_table(screen: Screen, kind: str, only: str = "", sort: str = "", order: str = "up") -> Move | None:
    """Go to the table of a kind, narrow it to the series or continent `only`, and sort it."""
    if screen.page != f"list/{kind}":
        return screen.click(f"menu list/{kind}", "I open this category.", "I go to the category.")
    by = "series" if kind == "elements" else "continent"
    if only and screen.query.get(by) != only:
        return screen.click(f"only {only}", "I want only these.", "I choose the group.")
    if sort and (screen.query.get("sort"), screen.query.get("order")) != (sort, order):
        said = {"sort": ("I open the list and choose.", "I choose the column."), "order": ("I choose the order.",)}
        return screen.fill({"sort": sort, "order": order}, "apply", {**said, "apply": ("I click apply.",)})
    return None


def choose_units(screen: Screen, **wanted: str) -> Move | None:
    """Set the units as wanted, on their page."""
    if all(screen.records["units"][name] == value for name, value in wanted.items()):
        return None
    if screen.page != "settings":
        return screen.click("units", "I open the units.", "I go to the units.")
    for name, value in wanted.items():
        if not screen.checked(f"{name} {value}"):
            return screen.click(f"{name} {value}", "I choose this one.")
    return screen.click("save units", "I save it.", "Now I save.")
