"""Navigate as the expert of the file manager: each function returns the next move, or None at the end."""

from __future__ import annotations

from flywheel.envs.suites.files import tree
from flywheel.envs.suites.files.data import ROOT
from flywheel.envs.suites.files.pages import A_PAGE, home_of
from flywheel.envs.suites.screen import Move, Screen


def open_files_page(screen: Screen, page: str) -> Move | None:
    """Go to a page of the menu."""
    if screen.page == page:
        return None
    return screen.click(f"menu {page or 'start'}", "I open this page.", "I look in the menu.", "I click the menu.")


def open_folder(screen: Screen, key: str) -> Move | None:
    """Go to a folder, down from the top."""
    if screen.page == home_of(key):
        return None
    way = tree.path(screen.records, key)
    here = screen.page.removeprefix("folder/")
    if screen.page == "" or (screen.page.startswith("folder/") and here in way):
        inner = way[way.index(here) + 1] if here in way else way[0]
        return click_row_element(
            screen, inner, "open", "I open the folder.", "I go into this folder.", "Here is the folder."
        )
    if screen.has(f"crumb folder/{way[-2]}" if len(way) > 1 else "crumb start"):
        return screen.click(f"crumb folder/{way[-2]}" if len(way) > 1 else "crumb start", "One folder up.", "I go up.")
    return open_files_page(screen, "")


def click_row_element(screen: Screen, key: str, element: str, *said: str) -> Move:
    """Click the `element` of a row of the folder that is shown, which may be on its next page."""
    if screen.has(f"{element} {key}") or not screen.has("next page"):
        return screen.click(f"{element} {key}", *said)
    return screen.click("next page", "I look at the next page.", "It is on the next page.")


def open_sorted_folder(screen: Screen, key: str, sort: str) -> Move | None:
    """Go to a folder and sort it, by a column's head, or by the sort menu of a small screen."""
    if (move := open_folder(screen, key)) is not None:
        return move
    if screen.query.get("sort", "name") == sort:
        return None
    if screen.has(f"sort {sort}"):
        return screen.click(f"sort {sort}", "I choose the order.", "In this order.")
    name = "sort menu" if screen.has("sort menu") else f"sort {sort.lstrip('-')}"
    return screen.click(name, "I sort the list.", "I change the order.")


def open_item(screen: Screen, key: str, tab: str = "") -> Move | None:
    """Go to the page of a file or folder through the search, then to its `tab`."""
    if screen.page == f"item/{key}":
        if not tab or screen.query.get("tab") == tab:
            return None
        return screen.click(f"tab item/{key}?tab={tab}", "I open the other tab.", "I click this tab.")
    if screen.page == "search" and screen.has(f"more {key}"):
        return screen.click(f"more {key}", "Here it is.", "I open it.", "I have found it.")
    name = screen.records["nodes"][key]["name"]
    return screen.fill({"search": name}, "", {"search": ("I search for it.", "I type its name.")})


def click_item_action(screen: Screen, key: str, element: str, *said: str) -> Move:
    """Click an element of a file's or folder's page, or open the menu that it is in."""
    if (move := open_item(screen, key)) is not None:
        return move
    return screen.click(element if screen.has(element) else "actions", *said)


def choose_target_folder(screen: Screen, target: str, *said: str) -> Move | None:
    """Go to the folder `target` and choose it, on a page that asks for a place; None on any other page."""
    if not screen.page.startswith("place/"):
        return None
    here = screen.page.removeprefix("place/")
    if here == target:
        return screen.click("here", *(said or ("Here it shall go.", "This is the place.")))
    way = [ROOT, *tree.path(screen.records, target)]
    if here in way:
        return screen.click(f"into {way[way.index(here) + 1]}", "I open this folder.", "Into this folder.")
    shared = next(key for key in reversed(way) if key == ROOT or screen.has(f"crumb place/{key}"))
    return screen.click(f"crumb place/{shared}", "I go up.", "I go back to the top.")


def tick_files(screen: Screen, keys: list[str], button: str, *said: str) -> Move:
    """Tick these files of the folder that is shown, from the top down, and press a button below them."""
    shown = [name for name in screen.order("pick ") if name.removeprefix("pick ") in keys]
    for name in shown:
        if not screen.in_view(name) and screen.above(name):
            continue  # it was ticked before scrolling down
        if not screen.checked(name):
            return screen.click(name, "I tick this one.", "I tick the box.", "This one, too.")
    return screen.click(button, *said)


def fits_one_page(records: dict, folder_key: str) -> bool:
    """Tell whether a folder is shown on one page."""
    return len(tree.children(records, folder_key)) <= A_PAGE
