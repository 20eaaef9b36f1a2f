"""Navigate as the expert of the mailbox: each function returns the next move, or None at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from flywheel.envs.suites.screen import Move, Screen

SAVE = {"save": ("I save it.", "Now I save.")}  # said of the button of a form
_OPEN = ("I open it.", "Here it is, I open it.", "This is the mail.")


def first(*moves: Callable[[], Move | None]) -> Move | None:
    """Return the first of several things that is not done yet."""
    for move in moves:
        if (found := move()) is not None:
            return found
    return None


def to(screen: Screen, page: str) -> Move | None:
    """To a list or another page that the menu leads to: beside the page, or behind the button with three lines."""
    if screen.page == page:
        return None
    name = page or "inbox"
    for element in (f"go {name}", f"menu {name}"):
        if screen.has(element):
            return screen.click(element, "I go there.", "I click this one.", "Over here.")
    return screen.click("folders", "I open the menu.", "First the menu.")


def listed(screen: Screen, key: str) -> Move | None:
    """To a list that shows a conversation: by the search, or through the pages of trash and spam."""
    if screen.has(f"thread {key}"):
        return None
    thread = screen.records["threads"][key]
    if thread["folder"] in ("trash", "spam"):
        move = to(screen, f"folder/{thread['folder']}")
        return move or screen.click("next page", "It must be on the next page.")
    if screen.page == "" and screen.query.get("page", "1") == "1" and _near(screen, key) and screen.has("next page"):
        return screen.click("next page", "I look at the next page.", "Not here, the next page.")
    return screen.fill({"search": thread["subject"]}, "", {"search": ("I search for it.", "I type the subject.")})


def _near(screen: Screen, key: str) -> bool:
    """Tell whether a mail is young enough to be on the second page; keys are in the order of their days."""
    return key in [name for name, one in screen.records["threads"].items() if one["folder"] == "inbox"][:20]


def searched(screen: Screen, who: str, folder: str) -> Move:
    """To the mails from somebody in a folder, by the search tools."""
    if screen.page != "search":
        return screen.click("search button", "I click the search button.", "I open the search.")
    if not screen.has("search now"):
        return screen.click("narrow", "I need more fields.", "I open the search tools.")
    said = {"from": ("I type the name.",), "in": ("I choose where to look.",)}
    return screen.fill({"from": who, "in": folder}, "search now", said)


def thread(screen: Screen, key: str) -> Move | None:
    """To the page of a conversation."""
    if screen.page == f"thread/{key}":
        return None
    return listed(screen, key) or screen.click(f"thread {key}", *_OPEN)


def more(screen: Screen, element: str, *said: str) -> Move:
    """What lies in the menu "More" of a page."""
    if screen.has(element):
        return screen.click(element, *said)
    return screen.click("more", "I open the menu.", "There is more in here.")


def confirmed(screen: Screen, button: str, *said: str) -> Move:
    """Press a button that asks back, and say yes."""
    if screen.has("confirm"):
        return screen.click("confirm", "Yes, I am sure.", "I confirm.")
    return screen.click(button, *said)


def ticked(screen: Screen, keys: Iterable[str], button: str) -> Move:
    """Tick conversations of the list that is shown, from the top, and press a button of the bar that stays in view.

    What has gone up behind the bar was ticked on the way down.
    """
    for name in screen.order("tick "):
        if name.removeprefix("tick ") not in keys or screen.middle(name) < screen.middle("select all"):
            continue
        if not screen.in_view(name) or not screen.checked(name):
            return screen.click(name, "I select it.", "This one too.", "I tick this mail.")
    return more(screen, button, "Now I click this.", "Done, I click here.")


def contact(screen: Screen, key: str) -> Move | None:
    """To the page of a contact, by the search of the list."""
    if screen.page == f"contacts/{key}":
        return None
    if (move := to(screen, "contacts")) is not None:
        return move
    if screen.has(f"contact {key}"):
        return screen.click(f"contact {key}", "I open this one.", "Here it is.")
    name = screen.records["contacts"][key]["name"]
    return screen.fill({"find": name}, "find button", {"find": ("I type the name.",)})


def compose(screen: Screen) -> Move | None:
    """To the page of a new mail."""
    if screen.page == "compose":
        return None
    return screen.click("compose" if screen.has("compose") else "write", "I write a new mail.", "A new mail.")


def written(screen: Screen, values: dict[str, str], button: str = "send") -> Move:
    """Fill in the mail that is being written, and send it or keep it."""
    said = {
        "to": ("I type who gets it.", "First the address."),
        "cc": ("Somebody gets a copy.",),
        "subject": ("I type the subject.",),
        "text": ("I type the text.", "Now the text."),
        "send": ("I send it.", "Now I send it."),
        "save draft": ("I keep it as a draft.",),
    }
    return screen.fill({name: value for name, value in values.items() if value}, button, said)


def answering(screen: Screen, kind: str, key: str) -> Move | None:
    """From the page of a conversation to its answer: reply, all, forward."""
    last = last_of(screen, key)
    if screen.page == f"{kind}/{last}/write":
        return None
    button = {"reply": "reply", "all": "reply all", "forward": "forward"}[kind]
    said = {"reply": "I answer it.", "all": "I answer all of them.", "forward": "I send it on."}[kind]
    return thread(screen, key) or screen.click(button, said)


def last_of(screen: Screen, key: str) -> str:
    """Return the newest message of a conversation."""
    mine = [
        (one["_day"], one["_time"], int(name[1:]), name)
        for name, one in screen.records["messages"].items()
        if one["_thread"] == key
    ]
    return max(mine)[-1]
