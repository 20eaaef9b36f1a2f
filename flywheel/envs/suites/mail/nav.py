"""Navigate as the expert of the mailbox: each function returns the next move, or None at the end."""

from __future__ import annotations

from collections.abc import Iterable

from flywheel.envs.suites.screen import Move, Screen

SAVE = {"save": ("I save it.", "Now I save.")}  # thoughts for the button of a form
_OPEN = ("I open it.", "Here it is, I open it.", "This is the mail.")


def open_mail_page(screen: Screen, page: str) -> Move | None:
    """Go to a list or another page by the menu, which is beside the page or behind the button with three lines."""
    if screen.page == page:
        return None
    name = page or "inbox"
    for element in (f"go {name}", f"menu {name}"):
        if screen.has(element):
            return screen.click(element, "I go there.", "I click this one.", "Over here.")
    return screen.click("folders", "I open the menu.", "First the menu.")


def show_thread(screen: Screen, key: str) -> Move | None:
    """Go to a list that shows a conversation: by the search, or the next page of the inbox, trash or spam."""
    if screen.has(f"thread {key}"):
        return None
    thread = screen.records["threads"][key]
    if thread["folder"] in ("trash", "spam"):
        move = open_mail_page(screen, f"folder/{thread['folder']}")
        return move or screen.click("next page", "It must be on the next page.")
    if screen.page == "" and screen.query.get("page", "1") == "1" and _near(screen, key) and screen.has("next page"):
        return screen.click("next page", "I look at the next page.", "Not here, the next page.")
    return screen.fill({"search": thread["subject"]}, "", {"search": ("I search for it.", "I type the subject.")})


def _near(screen: Screen, key: str) -> bool:
    """Tell whether a mail is on the first two pages of the inbox; `threads` is in the order of days, newest first."""
    return key in [name for name, one in screen.records["threads"].items() if one["folder"] == "inbox"][:20]


def search_mails(screen: Screen, who: str, folder: str) -> Move:
    """Search for the mails from `who` in `folder`, by the search tools."""
    if screen.page != "search":
        return screen.click("search button", "I click the search button.", "I open the search.")
    if not screen.has("search now"):
        return screen.click("narrow", "I need more fields.", "I open the search tools.")
    said = {"from": ("I type the name.",), "in": ("I choose where to look.",)}
    return screen.fill({"from": who, "in": folder}, "search now", said)


def open_conversation(screen: Screen, key: str) -> Move | None:
    """Go to the page of a conversation."""
    if screen.page == f"thread/{key}":
        return None
    return show_thread(screen, key) or screen.click(f"thread {key}", *_OPEN)


def click_in_more_menu(screen: Screen, element: str, *said: str) -> Move:
    """Click an element of a page, or first open the menu "More" that it is in."""
    if screen.has(element):
        return screen.click(element, *said)
    return screen.click("more", "I open the menu.", "There is more in here.")


def tick_threads(screen: Screen, keys: Iterable[str], button: str) -> Move:
    """Tick conversations of the list that is shown, from the top, then press a button of the bar that stays in view.

    A conversation that has scrolled up behind the bar was ticked before.
    """
    for name in screen.order("tick "):
        if name.removeprefix("tick ") not in keys or screen.middle(name) < screen.middle("select all"):
            continue
        if not screen.in_view(name) or not screen.checked(name):
            return screen.click(name, "I select it.", "This one too.", "I tick this mail.")
    return click_in_more_menu(screen, button, "Now I click this.", "Done, I click here.")


def open_contact(screen: Screen, key: str) -> Move | None:
    """Go to the page of a contact, by the search of the list."""
    if screen.page == f"contacts/{key}":
        return None
    if (move := open_mail_page(screen, "contacts")) is not None:
        return move
    if screen.has(f"contact {key}"):
        return screen.click(f"contact {key}", "I open this one.", "Here it is.")
    name = screen.records["contacts"][key]["name"]
    return screen.fill({"find": name}, "find button", {"find": ("I type the name.",)})


def open_compose_form(screen: Screen) -> Move | None:
    """Go to the page of a new mail."""
    if screen.page == "compose":
        return None
    return screen.click("compose" if screen.has("compose") else "write", "I write a new mail.", "A new mail.")


def fill_mail_form(screen: Screen, values: dict[str, str], button: str = "send") -> Move:
    """Fill in the mail that is being written, and press `button`: send it, or save it as a draft. values: by field."""
    said = {
        "to": ("I type who gets it.", "First the address."),
        "cc": ("Somebody gets a copy.",),
        "subject": ("I type the subject.",),
        "text": ("I type the text.", "Now the text."),
        "send": ("I send it.", "Now I send it."),
        "save draft": ("I keep it as a draft.",),
    }
    return screen.fill({name: value for name, value in values.items() if value}, button, said)


def open_answer_form(screen: Screen, kind: str, key: str) -> Move | None:
    """Go from the page of a conversation to its answer. kind: reply, all or forward."""
    last = find_last_message(screen, key)
    if screen.page == f"{kind}/{last}/write":
        return None
    button = {"reply": "reply", "all": "reply all", "forward": "forward"}[kind]
    said = {"reply": "I answer it.", "all": "I answer all of them.", "forward": "I send it on."}[kind]
    return open_conversation(screen, key) or screen.click(button, said)


def find_last_message(screen: Screen, key: str) -> str:
    """Return the key of the newest message of a conversation."""
    mine = [
        (one["_day"], one["_time"], int(name[1:]), name)
        for name, one in screen.records["messages"].items()
        if one["_thread"] == key
    ]
    return max(mine)[-1]
