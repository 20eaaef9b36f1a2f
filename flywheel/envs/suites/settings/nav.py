"""Navigate as the expert of the settings: each function returns the next move, or None at the end."""

from __future__ import annotations

from collections.abc import Callable

from flywheel.envs.suites.screen import Move, Screen
from flywheel.envs.suites.settings.data import LEVELS, SWITCHES

_SAID = {
    "network": "I open the network page.",
    "bluetooth": "I open the page of devices.",
    "display": "I open the display page.",
    "sound": "I open the sound page.",
    "apps": "I open the apps.",
    "privacy": "I open the privacy page.",
    "users": "I open the users.",
    "account": "I open the account.",
    "language": "I open the language page.",
    "about": "I open the last page.",
}


def first(*moves: Callable[[], Move | None]) -> Move | None:
    """Return the next move of the first of `moves` that is not done yet; None where all are done."""
    for move in moves:
        if (found := move()) is not None:
            return found
    return None


def reach(screen: Screen, section: str) -> Move | None:
    """Go to the page of a section, through the start page."""
    if screen.page == section:
        return None
    if screen.page == "":
        return screen.click(f"open {section}", _SAID[section])
    return screen.click("home", "I go back to the start.", "Back to all settings.")


def entry(screen: Screen, section: str, element: str, key: str) -> Move | None:
    """Go to the page of an entry of a section (network, device, user). element: its link's name, before the key."""
    if screen.page == f"{section}/{key}":
        return None
    return reach(screen, section) or screen.click(f"{element} {key}", "I open this one.", "I click on it.")


def app(screen: Screen, key: str) -> Move | None:
    """Go to the page of an app, by the search of the list."""
    if screen.page == f"apps/{key}":
        return None
    if (move := reach(screen, "apps")) is not None:
        return move
    if screen.has(f"app {key}"):
        return screen.click(f"app {key}", "I open the app.", "Here it is, I click it.")
    return screen.fill({"find": screen.records["apps"][key]["name"]}, "find button", {"find": ("I type its name.",)})


def confirmed(screen: Screen, button: str, *said: str) -> Move:
    """Press a button that asks for confirmation, and confirm."""
    if screen.has("confirm"):
        return screen.click("confirm", "Yes, I am sure.", "I confirm.")
    return screen.click(button, *said)


def switched(screen: Screen, key: str, on: bool) -> Move | None:
    if screen.records["values"][key] == on:
        return None
    how = "on" if on else "off"
    return reach(screen, SWITCHES[key][0]) or screen.click(f"switch {key}", f"I turn it {how}.", f"I switch it {how}.")


def chosen(screen: Screen, section: str, wanted: dict[str, str]) -> Move | None:
    if all(screen.records["values"][key] == value for key, value in wanted.items()):
        return None
    if (move := reach(screen, section)) is not None:
        return move
    said = {key: ("I open the list and choose.", "I choose from the list.") for key in wanted}
    return screen.fill(wanted, "save", said | {"save": ("I save it.", "Now I save.")})


def levelled(screen: Screen, key: str, value: int) -> Move | None:
    now = screen.records["values"][key]
    if now == value:
        return None
    if (move := reach(screen, LEVELS[key][0])) is not None:
        return move
    if now < value:
        return screen.click(f"{key} up", "A bit more.", "I click plus.")
    return screen.click(f"{key} down", "A bit less.", "I click minus.")
