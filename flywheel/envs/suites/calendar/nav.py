"""Navigate as the expert of the calendar: each function returns the next move, or None at the end."""

from __future__ import annotations

from flywheel.envs.suites.screen import Move, Screen

_MENU = {
    "invitations": "I look at the invitations.",
    "free": "I look for free time.",
    "calendars": "I open the calendars.",
    "settings": "I open the settings.",
}
SAID = {
    "title": ("I type the title.",),
    "day": ("I type the day.",),
    "start": ("I type when it begins.",),
    "end": ("I type when it ends.",),
    "place": ("I type the place.",),
    "guests": ("I type who comes.",),
    "calendar": ("I choose the calendar.",),
    "repeat": ("I choose how often.",),
    "until": ("I type the last day.",),
    "remind": ("I choose the reminder.",),
    "all_day": ("It takes all day.",),
    "notes": ("I type the note.",),
    "save": ("I save it.", "Now I save."),
}


def open_menu_page(screen: Screen, page: str) -> Move | None:
    """Go to a page by the menu, which is beside the page or behind the button with three lines."""
    if screen.page == page:
        return None
    for element in (f"go {page}", f"menu {page}"):
        if screen.has(element):
            return screen.click(element, _MENU[page])
    return screen.click("pages", "I open the menu.", "First the menu.")


def open_month(screen: Screen, wanted: str) -> Move | None:
    """Go to the view of the month `wanted` (YYYY-MM): from the start page, one arrow click per month."""
    here = screen.records["_today"][:7] if screen.page == "" else screen.page.removeprefix("month/")
    if screen.page != "" and not screen.page.startswith("month/"):
        return screen.click("home", "Back to the month.", "I go to the month.")
    if here == wanted:
        return None
    if here < wanted:
        return screen.click("later", "The next month.", "Later than that.")
    return screen.click("earlier", "The month before.", "Earlier than that.")


def open_day(screen: Screen, wanted: str) -> Move | None:
    """Go to the view of the day `wanted` (YYYY-MM-DD)."""
    if screen.page == f"day/{wanted}":
        return None
    if screen.page.startswith("week/") and screen.has(f"day {wanted}"):
        return screen.click(f"day {wanted}", "I open this day.", "That day.")
    return open_month(screen, wanted[:7]) or screen.click(f"day {wanted}", "I open this day.", "That is the day.")


def open_view(screen: Screen, name: str, wanted: str) -> Move | None:
    """Go to the view `name` of the day `wanted`, through its day view."""
    if screen.page.startswith(f"{name}/"):
        return None
    return open_day(screen, wanted) or screen.click(f"view {name}", "I change the view.", "I want to see more.")


def open_event(screen: Screen, key: str) -> Move | None:
    """Go to the page of an event: click it where it is shown, else search for its title."""
    if screen.page == f"event/{key}":
        return None
    if screen.has(f"found {key}"):
        return screen.click(f"found {key}", "I open it.", "Here it is.", "This is the one.")
    on = screen.records["events"][key]["day"]
    if screen.has(f"event {key} {on}"):
        return screen.click(f"event {key} {on}", "I open it.", "Here it is.", "I see it.")
    said = {"search": ("I search for it.", "I type what I look for.")}
    return screen.fill({"search": screen.records["events"][key]["title"]}, "", said)


def open_occurrence(screen: Screen, key: str, on: str) -> Move | None:
    """Go to the page of the event of a series that is on the day `on`, through that day's view."""
    if screen.page == f"event/{key}" and screen.query.get("day", "") == on:
        return None
    return open_day(screen, on) or screen.click(f"event {key} {on}", "I open it.", "Here it is.")


def open_new_form(screen: Screen, on: str) -> Move | None:
    """Go to the form of a new event, from the view of the day `on`, which fills in the date."""
    if screen.page == "new":
        return None
    return open_day(screen, on) or click_new_event(screen)


def click_new_event(screen: Screen) -> Move:
    """Click the button that opens the form of a new event."""
    return screen.click("new event" if screen.has("new event") else "add", "I make a new event.", "A new one.")


def open_edit_form(screen: Screen, key: str) -> Move | None:
    """Go to the edit form of an event that does not repeat, or of its whole series."""
    if screen.page == f"event/{key}/edit":
        return None
    if (move := open_event(screen, key)) is not None:
        return move
    if screen.has("edit all"):
        return screen.click("edit all", "All of them.", "The whole series.")
    return screen.click("edit", "I change it.", "I click edit.")


def fill_event_form(screen: Screen, values: dict[str, str | bool]) -> Move:
    """Fill in the form of an event in the order of its fields, and save it. values: by field, only those to set."""
    order = (
        "title",
        "day",
        "calendar",
        "start",
        "end",
        "all_day",
        "place",
        "repeat",
        "until",
        "remind",
        "guests",
        "notes",
    )
    return screen.fill({name: values[name] for name in order if name in values}, "save", SAID)


def delete_event(screen: Screen, key: str) -> Move | None:
    """Delete an event, or the whole of its series."""
    if key not in screen.records["events"]:
        return None
    for button in ("confirm", "delete all"):
        if screen.has(button):
            return screen.click(button, "Yes, I am sure.", "All of it.")
    return open_event(screen, key) or screen.click("delete", "I delete it.", "Away with it.")
