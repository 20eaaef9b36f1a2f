"""Serve the small edition of the settings: switches, a look page and a user page, as plain HTML forms.

State: `values` (switch -> on, `colour`, `size`, `name`), `page` (path shown last), and the layout: `order`, `colours`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from flywheel.agent.actions import Action, Type
from flywheel.envs.base import Task
from flywheel.envs.suites import changes
from flywheel.envs.suites.steps import click, say

# switch -> (icon, colour), the same in every session, as on a phone
SWITCHES = {
    "wifi": ("wifi", "blue"),
    "sound": ("sound", "orange"),
    "location": ("location", "green"),
    "camera": ("camera", "red"),
    "night": ("moon", "purple"),
    "alarm": ("clock", "pink"),
    "battery": ("battery", "yellow"),
    "alerts": ("bell", "gray"),
}
COLOURS = ("red", "green", "blue", "yellow", "purple", "orange", "pink")
SIZES = ("small", "normal", "large")
PEOPLE = ("anna", "tom", "ben", "mary", "lisa", "kate", "sam", "john")


def draw(template: str, level: int, rng: random.Random) -> dict[str, Any]:
    """Draw four switches in random order and state, four colours, three sizes, and a goal that does not hold yet."""
    order, colours = rng.sample(list(SWITCHES), 4), rng.sample(COLOURS, 4)
    switch, second = rng.sample(order, 2)
    colour, now = rng.sample(colours, 2)
    size, small = rng.sample(SIZES, 2)
    person = rng.choice(PEOPLE)
    values: dict[str, Any] = {name: rng.random() < 0.5 for name in order}
    values |= {switch: template == "turn_off", "colour": now, "size": small, "name": ""}
    if template == "two":
        values[second] = True
    asked: dict[str, Any] = {
        "turn_on": {switch: True},
        "turn_off": {switch: False},
        "colour": {"colour": colour},
        "size": {"size": size},
        "two": {switch: True, second: False},
        "name": {"name": person},
        "switch_and_colour": {switch: True, "colour": colour},
        "three": {switch: True, "colour": colour, "name": person},
    }[template]
    words = {"switch": switch, "second": second, "colour": colour, "size": size, "person": person}
    return {"order": order, "colours": colours, "start": values, "goal": asked, **words}


def start(params: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "values": dict(params["start"]),
        "page": "",
        "order": list(params["order"]),
        "colours": list(params["colours"]),
    }


def view(state: dict[str, Any], path: str, query: Mapping[str, str]) -> tuple[str, dict[str, Any]] | None:
    """Return template and values of the page at `path`; None where there is no such page."""
    values = state["values"]
    match path:
        case "":
            rows = [
                {"name": name, "icon": SWITCHES[name][0], "colour": SWITCHES[name][1], "on": values[name]}
                for name in state["order"]
            ]
            page = "classic/main.html", {"heading": "Settings", "rows": rows}
        case "look":
            page = "classic/look.html", {"heading": "Look", "colours": state["colours"], "sizes": SIZES}
        case "user":
            page = "classic/user.html", {"heading": "User"}
        case _:
            return None
    state["page"] = path
    return page[0], page[1] | {"values": values, "here": path}


def act(state: dict[str, Any], path: str, form: Mapping[str, str]) -> str | None:
    """Handle a posted form and return the page to show next; None where there is no such form."""
    values, value = state["values"], form.get("value", "")
    match path:
        case "switch" if form.get("name") in state["order"]:
            values[form["name"]] = not values[form["name"]]
            return ""
        case "colour" if value in state["colours"]:
            values["colour"] = value
            return "look"
        case "size" if value in SIZES:
            values["size"] = value
            return "look"
        case "name":
            values["name"] = value.strip()
            return "user"
    return None


def next_step(task: Task, state: Mapping[str, Any], rng: random.Random) -> tuple[str, Action] | None:
    """Return the expert's next move towards the first value that differs from the goal; None where none does."""
    target = {**task.params["start"], **task.params["goal"]}
    for name, wanted in target.items():
        if state["values"].get(name) == wanted:
            continue
        page = {"colour": "look", "size": "look", "name": "user"}.get(name, "")
        if state["page"] != page:
            label = page or "main"
            return say(rng, f"I open the {label} page.", f"First I click {label}."), click(state, f"page {label}")
        if name in SWITCHES:
            how = "on" if wanted else "off"
            return say(rng, f"I turn {how} {name}.", f"I click the {name} switch."), click(state, f"switch {name}")
        if name == "name":
            if not any(e["name"] == "name field" and e["focused"] for e in state["elements"]):
                return say(rng, "I click the name field.", "I click the box."), click(state, "name field")
            return say(rng, f"I type {wanted}.", f"Now I type {wanted}."), Type(f"{wanted}\n")
        kind = "color" if name == "colour" else "text"
        return say(rng, f"I click {wanted}.", f"I set the {kind} to {wanted}."), click(state, f"{name} {wanted}")
    return None


def settings_changed(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """Return the share of changes that were asked for and made, among all asked for or made: a verifier."""
    start = params["start"]
    return changes.share_of_values(start, {**start, **params["goal"]}, state["values"])
