"""Navigate as the expert of the board: each function returns the next move, or None at the end."""

from __future__ import annotations

from collections.abc import Mapping

from flywheel.envs.suites.screen import Move, Screen

_TABS = {
    "board": "I look at the board.",
    "list": "I open the list.",
    "sprints": "I look at the plan.",
    "report": "I open the report.",
    "settings": "I open the settings.",
}
SAID = {
    "title": ("I type the title.",),
    "due": ("I type the day.",),
    "assignee": ("I choose the person.",),
    "priority": ("I choose how urgent it is.",),
    "column": ("I choose the column.",),
    "save": ("I save it.", "Now I save."),
    "sprint": ("I choose from the list.",),
    "name": ("I type the name.",),
    "email": ("I type the address.",),
    "start": ("I type the first day.",),
    "end": ("I type the last day.",),
}


def to(screen: Screen, page: str, element: str) -> Move | None:
    """To a page that the menu leads to."""
    return None if screen.page == page else screen.click(element, "I go there.", "I open this page.")


def project(screen: Screen, key: str, tab: str = "board") -> Move | None:
    """To one of the pages of a project, by the start page."""
    if screen.page == f"{tab}/{key}":
        return None
    if screen.has(f"tab {tab}/{key}"):
        return screen.click(f"tab {tab}/{key}", _TABS[tab])
    if screen.has(f"project {key}"):
        return screen.click(f"project {key}", "I open the project.", "This project.")
    return screen.click("home", "I go to the start.", "Back to the projects.")


def card(screen: Screen, key: str) -> Move | None:
    """To the page of a card, by the search."""
    if screen.page == f"card/{key}":
        return None
    if screen.has(f"card {key}"):
        return screen.click(f"card {key}", "I open the card.", "Here it is.", "This is the card.")
    title = screen.records["cards"][key]["title"]
    return screen.fill({"search": title}, "", {"search": ("I search for the card.", "I type its title.")})


def lane(screen: Screen, key: str, column: str) -> Move | None:
    """To a column of a board; a small screen shows one at a time."""
    if (move := project(screen, key)) is not None:
        return move
    if screen.has(f"column {column}") and screen.query.get("column") != column:
        return screen.click(f"column {column}", "I look at this column.", "I open the column.")
    return None


def on_board(screen: Screen, key: str) -> Move | None:
    """To the page of a card, by the board."""
    if screen.page == f"card/{key}":
        return None
    one = screen.records["cards"][key]
    return lane(screen, one["project"], one["column"]) or screen.click(f"card {key}", "I open the card.", "Here it is.")


def edited(screen: Screen, key: str, wanted: Mapping[str, str | bool]) -> Move:
    """Change fields of a card."""
    if screen.page == f"card/{key}/edit":
        return screen.fill(wanted, "save", SAID)
    return card(screen, key) or screen.click("edit", "I edit it.", "I click edit.")


def moved(screen: Screen, key: str, column: str) -> Move:
    """Put a card into another column."""
    move = card(screen, key)
    said = {**SAID, "move": ("I move it.", "Now I click move.")}
    return move or screen.fill({"column": column}, "move", said)


def listed(screen: Screen, key: str, sort: str) -> Move | None:
    """To the list of a project, sorted: a second click on a head turns the order around."""
    if (move := project(screen, key, "list")) is not None:
        return move
    if screen.query.get("sort") == sort:
        return None
    return screen.click(f"sort {sort.lstrip('-')}", "I sort the list.", "I click the head of the column.")


def filtered(screen: Screen, key: str, wanted: Mapping[str, str]) -> Move | None:
    """Return a board by its filters: beside it, or on a small screen in a dialog."""
    if (move := project(screen, key)) is not None:
        return move
    if all(screen.query.get(name) == value for name, value in wanted.items()):
        return None
    said = ("I open the list and choose.", "I choose from the list.")
    if screen.has("show"):
        fields = {f"pick {name}": value for name, value in wanted.items()}
        return screen.fill(fields, "show", dict.fromkeys(fields, said) | {"show": ("I click show.",)})
    if screen.has("filter"):
        return screen.click("filter", "I open the filter.")
    return screen.fill(wanted, "apply", dict.fromkeys(wanted, said) | {"apply": ("I click apply.",)})


def confirmed(screen: Screen, button: str, *said: str) -> Move:
    """Press a button that asks back, and say yes."""
    if screen.has("confirm"):
        return screen.click("confirm", "Yes, I am sure.", "I confirm.")
    return screen.click(button, *said)
