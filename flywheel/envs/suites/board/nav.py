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


def open_page_from_menu(screen: Screen, page: str, element: str) -> Move | None:
    """Go to a page by the menu's `element`."""
    return None if screen.page == page else screen.click(element, "I go there.", "I open this page.")


def open_project(screen: Screen, key: str, tab: str = "board") -> Move | None:
    """Go to the page `tab` of a project, through the start page."""
    if screen.page == f"{tab}/{key}":
        return None
    if screen.has(f"tab {tab}/{key}"):
        return screen.click(f"tab {tab}/{key}", _TABS[tab])
    if screen.has(f"project {key}"):
        return screen.click(f"project {key}", "I open the project.", "This project.")
    return screen.click("home", "I go to the start.", "Back to the projects.")


def open_card(screen: Screen, key: str) -> Move | None:
    """Go to the page of a card: click it where it is shown, else search for its title."""
    if screen.page == f"card/{key}":
        return None
    if screen.has(f"card {key}"):
        return screen.click(f"card {key}", "I open the card.", "Here it is.", "This is the card.")
    title = screen.records["cards"][key]["title"]
    return screen.fill({"search": title}, "", {"search": ("I search for the card.", "I type its title.")})


def open_column(screen: Screen, key: str, column: str) -> Move | None:
    """Go to a column of a board; a small screen shows one at a time."""
    if (move := open_project(screen, key)) is not None:
        return move
    if screen.has(f"column {column}") and screen.query.get("column") != column:
        return screen.click(f"column {column}", "I look at this column.", "I open the column.")
    return None


def open_card_on_board(screen: Screen, key: str) -> Move | None:
    """Go to the page of a card, through its board."""
    if screen.page == f"card/{key}":
        return None
    one = screen.records["cards"][key]
    return open_column(screen, one["project"], one["column"]) or screen.click(
        f"card {key}", "I open the card.", "Here it is."
    )


def edit_card(screen: Screen, key: str, wanted: Mapping[str, str | bool]) -> Move:
    """Change fields of a card in its form. wanted: values by field."""
    if screen.page == f"card/{key}/edit":
        return screen.fill(wanted, "save", SAID)
    return open_card(screen, key) or screen.click("edit", "I edit it.", "I click edit.")


def move_card(screen: Screen, key: str, column: str) -> Move:
    """Move a card to another column, on its page."""
    move = open_card(screen, key)
    said = {**SAID, "move": ("I move it.", "Now I click move.")}
    return move or screen.fill({"column": column}, "move", said)


def open_sorted_list(screen: Screen, key: str, sort: str) -> Move | None:
    """Go to the list of a project and sort it; a second click on a column's head reverses the order."""
    if (move := open_project(screen, key, "list")) is not None:
        return move
    if screen.query.get("sort") == sort:
        return None
    return screen.click(f"sort {sort.lstrip('-')}", "I sort the list.", "I click the head of the column.")


def filter_board(screen: Screen, key: str, wanted: Mapping[str, str]) -> Move | None:
    """Go to a board and set its filters, which are beside it, or in a dialog on a small screen."""
    if (move := open_project(screen, key)) is not None:
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
