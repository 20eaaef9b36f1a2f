"""Read the screen for the expert of a site and build its actions: click an element, or scroll to it first.

An expert decides by the screen alone, so it also completes and corrects what another player has left half done.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from flywheel.agent.actions import Action, Click, Finished, Hotkey, Point, Scroll, Type
from flywheel.envs.suites.messages import Messages
from flywheel.utils.errors import DataError

Move = tuple[str, Action]
_CLICK = ("I click it.", "I click here.", "Now I click this.")
_SCROLL = ("I scroll.", "It is further away, I scroll.", "I look for it.")


class Screen:
    """Read the screen that a state describes. records: of the session. page, query: of the page shown last."""

    def __init__(self, state: Mapping[str, Any], rng: random.Random, t: Messages) -> None:
        self.records: Mapping[str, Any] = state["records"]
        self.page: str = state["page"]
        self.query: Mapping[str, str] = state["query"]
        self.t = t
        self._rng = rng
        self._seen = {element["name"]: element for element in state["elements"]}
        self._beyond = {element["name"]: element for element in state.get("beyond", ())}

    def has(self, name: str) -> bool:
        """Tell whether the page holds the element `name`, in the viewport or beyond it."""
        return name in self._seen or name in self._beyond

    def value(self, name: str) -> str:
        """Return what the field `name` holds; "" where it is not in the viewport."""
        return self._seen.get(name, {}).get("value", "")

    def checked(self, name: str) -> bool:
        """Tell whether the check box or option `name` is ticked; False where it is not in the viewport."""
        return self._seen.get(name, {}).get("checked", False)

    def in_view(self, name: str) -> bool:
        """Tell whether the middle of the element `name` is in the viewport's height: no vertical scroll is needed."""
        element = self._seen.get(name)
        return element is not None and 0 <= element["y"] + element["h"] / 2 < 1

    def above(self, name: str) -> bool:
        """Tell whether the element `name` begins above the viewport."""
        element = self._seen.get(name)
        y = self._beyond[name]["y"] if element is None and name in self._beyond else element and element["y"]
        return y is not None and y < 0

    def middle(self, name: str) -> float:
        """Return the middle of the element `name`: 0 to 1 in the viewport's height, below 0 above it, over 1 below
        it."""
        one = self._seen.get(name) or self._beyond[name]
        return one["y"] + one.get("h", 0) / 2

    def order(self, prefix: str) -> list[str]:
        """List the names of the page's elements that begin with `prefix`, from top to bottom."""
        places = {name: one["y"] for name, one in {**self._beyond, **self._seen}.items() if name.startswith(prefix)}
        return sorted(places, key=places.__getitem__)

    def click(self, name: str, *said: str) -> Move:
        """Click the element `name`, or scroll towards it. said: thoughts to choose from. Raises DataError if it is
        not there."""
        element = self._seen.get(name)
        if element is not None:
            x, y = element["x"] + element["w"] / 2, element["y"] + element["h"] / 2
            if 0 <= x < 1 and 0 <= y < 1:
                return self.say(*(said or _CLICK)), Click(Point(x, y))
        else:
            element = self._beyond.get(name)
            if element is None:
                known = ", ".join([*self._seen, *self._beyond])
                raise DataError(f"no element {name!r} on page {self.page!r}; there are: {known}")
            x, y = element["x"], element["y"]
        direction = "down" if y >= 1 else "up" if y < 0 else "right" if x >= 1 else "left"
        return self.say(*_SCROLL), Scroll(Point(0.5, 0.5), direction)

    def seen(self, name: str) -> Move | None:
        """Scroll until the element `name` is in the viewport, so that it can be read; None where it is.

        Raises DataError as `click`.
        """
        return None if self.in_view(name) else self.click(name)

    def fill(
        self, values: Mapping[str, str | bool], submit: str = "", said: Mapping[str, tuple[str, ...]] | None = None
    ) -> Move:
        """Make the next move that fills in a form, field by field, then clicks `submit` ("": Enter, in the last field).

        values: by field. A text is typed into a text field or selects that option of a `<select>`; True and False tick
        a box or untick it. said: thoughts to choose from, by field and for `submit`. Raises DataError as `click`.
        """
        said = said or {}
        names = list(values)
        for number, (name, wanted) in enumerate(values.items()):
            element = self._seen.get(name)
            if element is None or not 0 <= element["y"] + element["h"] / 2 < 1:
                option = f"{name} {wanted}"
                if self.has(option) and (element is None or element.get("picker")):
                    return self.click(option, *said.get(name, ()))  # the field's list is open, beyond the viewport
                rest = [later for later in (*names[number + 1 :], submit) if self.has(later)]
                if self.above(name) and any(not self.above(later) for later in rest):
                    continue  # it was filled in before scrolling down
                return self.click(name)
            enter = not submit and number == len(names) - 1
            move = self._one(name, element, wanted, said.get(name, ()), enter)
            if move is not None:
                return move
        return self.click(submit, *said.get(submit, ("I click the button.", "Done, I click the button.")))

    def _one(
        self, name: str, element: Mapping[str, Any], wanted: str | bool, said: tuple[str, ...], enter: bool
    ) -> Move | None:
        if isinstance(wanted, bool):
            return None if element["checked"] == wanted else self.click(name, *said)
        value = element.get("value", "")
        if value == wanted and not enter:
            return None
        option = f"{name} {wanted}"
        if element.get("picker"):
            return self.click(option if self.has(option) else name, *said)
        if not element["focused"]:
            return self.click(name, "I click the field.", "First I click the field.", "Into this field.")
        if value and value != wanted and not element.get("selected"):
            return self.say("I mark the old text.", "I select all of it."), Hotkey(("ctrl", "a"))
        if value == wanted:
            return self.say("I press enter.", "And enter."), Hotkey(("enter",))
        if not wanted:
            return self.say("I clear it.", "I take it out."), Hotkey(("delete",))
        text = f"{wanted}\n" if enter else wanted
        return self.say(*(said or ("I type it.", "Now I type it."))), Type(text)

    def answer(self, text: str, *said: str) -> Move:
        """End the episode with the answer `text`. said: thoughts to choose from."""
        return self.say(*(said or ("Here is the answer.", "I have the answer."))), Finished(text)

    def say(self, *variants: str) -> str:
        """Choose one of the `variants` of a thought."""
        return self._rng.choice(variants)


def take_first_move(*moves: Callable[[], Move | None]) -> Move | None:
    """Return the next move of the first of `moves` that is not done yet; None where all are done."""
    for move in moves:
        if (found := move()) is not None:
            return found
    return None


def click_and_confirm(screen: Screen, button: str, *said: str) -> Move:
    """Press a button that asks for confirmation, and confirm; returns the next move.

    button: its name. said: thoughts to choose from. Raises DataError as `Screen.click`.
    """
    if screen.has("confirm"):
        return screen.click("confirm", "Yes, I am sure.", "I confirm.")
    return screen.click(button, *said)
