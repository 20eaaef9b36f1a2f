"""Navigate as the expert of the settings: each function returns the next move, or None at the end."""

from __future__ import annotations

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


def open_section(screen: Screen, section: str) -> Move | None:
    """Go to the page of a section, through the start page."""
    if screen.page == section:
        return None
    if screen.page == "":
        return screen.click(f"open {section}", _SAID[section])
    return screen.click("home", "I go back to the start.", "Back to all settings.")


def open_entry(screen: Screen, section: str, element: str, key: str) -> Move | None:
    """Go to the page of an entry of a section (network, device, user). element: its link's name, before the key."""
    if screen.page == f"{section}/{key}":
        return None
    return open_section(screen, section) or screen.click(f"{element} {key}", "I open this one.", "I click on it.")


def open_app(screen: Screen, key: str) -> Move | None:
    """Go to the page of an app, by the search of the list."""
    if screen.page == f"apps/{key}":
        return None
    if (move := open_section(screen, "apps")) is not None:
        return move
    if screen.has(f"app {key}"):
        return screen.click(f"app {key}", "I open the app.", "Here it is, I click it.")
    return screen.fill({"find": screen.records["apps"][key]["name"]}, "find button", {"find": ("I type its name.",)})


def set_switch(screen: Screen, key: str, on: bool) -> Move | None:
    if screen.records["values"][key] == on:
        return None
    how = "on" if on else "off"
    return open_section(screen, SWITCHES[key][0]) or screen.click(
        f"switch {key}", f"I turn it {how}.", f"I switch it {how}."
    )


def choose_options(screen: Screen, section: str, wanted: dict[str, str]) -> Move | None:
    if all(screen.records["values"][key] == value for key, value in wanted.items()):
        return None
    if (move := open_section(screen, section)) is not None:
        return move
    said = {key: ("I open the list and choose.", "I choose from the list.") for key in wanted}
    return screen.fill(wanted, "save", said | {"save": ("I save it.", "Now I save.")})


def set_level(screen: Screen, key: str, value: int) -> Move | None:
    now = screen.records["values"][key]
    if now == value:
        return None
    if (move := open_section(screen, LEVELS[key][0])) is not None:
        return move
    if now < value:
        return screen.click(f"{key} up", "A bit more.", "I click plus.")
    return screen.click(f"{key} down", "A bit less.", "I click minus.")
