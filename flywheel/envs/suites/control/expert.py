"""Play all control pages as an expert: read the items of the page and make the next step towards the goal.

Each call plans from the state alone, so the expert finds its way from any state: it opens what is hidden, scrolls to
what is out of view, and corrects what was changed by mistake.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from flywheel.agent.actions import (
    Action,
    Click,
    Drag,
    Hotkey,
    LeftDouble,
    Point,
    Press,
    Release,
    RightSingle,
    Scroll,
    Type,
    Wait,
)
from flywheel.envs.suites.control.sketch import Item, days
from flywheel.envs.suites.number_words import cardinal
from flywheel.envs.suites.steps import say, spot, where
from flywheel.utils.errors import DataError

Move = tuple[str, Action]
_HANDS: dict[str, Callable[[Point], Action]] = {"click": Click, "double": LeftDouble, "right": RightSingle}
_DOES = {"click": "click", "double": "double click", "right": "right click"}


def step(params: Mapping[str, Any], state: Mapping[str, Any], rng: random.Random) -> Move | None:
    """Return thought and action; None where the page is over. Raises DataError for a page with no way to its goal."""
    if state["terminated"]:
        return None
    return _Expert(params, state, rng).next()


class _Expert:
    def __init__(self, params: Mapping[str, Any], state: Mapping[str, Any], rng: random.Random) -> None:
        self.params, self.state, self.rng = params, state, rng
        self.values = {**state["view"], **state["values"]}
        self.boxes = {
            inner["name"]: one for one in params["items"] for inner in one.get("items", ()) if "name" in inner
        }
        self.items: list[Item] = []
        for one in params["items"]:
            inner = days(one) if one["kind"] == "month" else one.get("items", ())
            self.items += [one, *inner]

    def next(self) -> Move:
        wanted = {**self.params["start"], **self.params["goal"]}
        for key, value in wanted.items():
            if _text(self.values[key]) != _text(value):
                return self.reach(key, value)
        if self.params["end"] != "submit":
            return self.say("I wait."), Wait()
        for item in self.items:
            if item.get("click", [""])[0] == "submit":
                return self.perform(item, "click")
        return self.say("I press enter.", "Now enter."), Hotkey(("enter",))

    def say(self, *variants: str) -> str:
        return say(self.rng, *variants)

    # -- one value ------------------------------------------------------------------------------------------------
    def reach(self, key: str, value: Any) -> Move:
        special = {
            "pressed": self.press_next,
            "selected": self.select,
            "line": self.connect,
            "focus": self.tab,
            "col": self.walk,
            "row": self.walk,
        }
        if self.params.get("hold"):
            return self.hold()
        if key in special:
            return special[key](key, value)
        ways = {"field": self.write, "slider": self.slide, "piece": self.put, "rows": self.reorder}
        for item in self.items:
            if item.get("key") == key and item["kind"] in ways:
                return ways[item["kind"]](item, value)
        for item in self.items:
            for how in _HANDS:
                if how in item and self.leads(item[how], key, value):
                    return self.perform(item, how)
        raise DataError(f"nothing on this page makes {key} {value!r}", where="world control")

    def leads(self, effect: list, key: str, value: Any) -> bool:
        operation, named, *given = effect
        if named != key:
            return False
        if operation == "add":
            return (value > self.values[key]) == (given[0] > 0)
        if operation == "next":
            return given[0] == self.values[key] + 1
        return operation == "toggle" or given[:1] == [value]

    def perform(self, item: Item, how: str) -> Move:
        """Make the gesture `how` on an item, or the move that has to come first: wait, open or scroll."""
        if item.get("after", 0) > self.state["ticks"]:
            return self.say("I wait.", "I wait for it."), Wait()
        if item.get("when"):
            key, wanted = item["when"]
            wanted = wanted if isinstance(wanted, list) else [wanted]
            if self.values[key] not in wanted:
                return self.open(key, wanted)
        if (scroll := self.scroll(item)) is not None:
            return scroll
        thing, does = item.get("say") or f"the {item['name']}", _DOES[how]
        if item.get("says"):
            return self.say(*item["says"]), _HANDS[how](self.at(item))
        return self.say(f"I {does} {thing}.", f"Now I {does} {thing}."), _HANDS[how](self.at(item))

    def open(self, key: str, wanted: list) -> Move:
        if isinstance(wanted[0], int | float) and key in self.params["view"]:  # one of several pages: step towards it
            for item in self.items:
                for how in _HANDS:
                    if how in item and item[how][1:2] == [key] and self.leads(item[how], key, wanted[0]):
                        return self.perform(item, how)
        for value in wanted:
            for item in self.items:
                for how in _HANDS:
                    if how in item and item[how][0] in ("show", "fold") and item[how][1:3] == [key, value]:
                        return self.perform(item, how)
        raise DataError(f"nothing on this page opens {wanted}", where="world control")

    def at(self, item: Item) -> Point:
        if item["name"] in self.boxes or item["kind"] == "spot":
            return where(self.state, item["name"])
        x, y, w, h = item["box"]
        return spot(self.state, x + w / 2, y + h / 2)

    def scroll(self, item: Item) -> Move | None:
        holder = self.boxes.get(item["name"])
        if holder is None:
            return None
        height, top = holder["box"][3], item["box"][1] - self.state["scroll"].get(holder["name"], 0)
        if 0 <= top + item["box"][3] / 2 <= height - 4:
            return None
        way = "down" if top > 0 else "up"
        x, y, w, h = holder["box"]
        return self.say(f"I scroll {way}.", f"Now I scroll {way}."), Scroll(spot(self.state, x + w / 2, y + h / 2), way)

    # -- fields and keys --------------------------------------------------------------------------------------------
    def write(self, item: Item, value: str) -> Move:
        paste = next((one for one in self.items if one.get("click") == ["paste", item["key"]]), None)
        if self.params.get("source") or paste:
            if self.state["clipboard"] != value:
                return self.copy(value)
            if paste:
                return self.perform(paste, "click")
        if self.state["focus"] != item["key"]:
            if "first" in self.params and self.values[self.params["first"][0]] != self.params["first"][1]:
                return self.open(self.params["first"][0], self.params["first"][1:])  # read what is to be typed
            return self.perform(item, "click")
        now = self.values[item["key"]]
        if self.params.get("source") and not now:
            return self.say("I paste it.", "Now I paste."), Hotkey(("ctrl", "v"))
        if now and value.startswith(now):
            value = value[len(now) :]
        elif now and now.startswith(value) and len(now) - len(value) <= 3:
            return self.say("I delete the last letter.", "One letter less."), Hotkey(("backspace",))
        elif now and self.state["caret"] != [0, len(now)]:
            return self.say("I select the old text.", "I select all of it."), Hotkey(("ctrl", "a"))
        said = cardinal(int(value)) if value.isdigit() and value[0] != "0" else value if value.isalpha() else "it"
        return self.say(f"I type {said}.", f"Now I type {said}."), Type(value)

    def copy(self, value: str) -> Move:
        for one in self.items:
            if one.get("click", [""])[0] == "copy":
                return self.perform(one, "click")
        if self.values["selected"] != value:
            return self.select("selected", value)
        return self.say("I copy it.", "Now I copy."), Hotkey(("ctrl", "c"))

    def press_next(self, key: str, value: list[str]) -> Move:
        keys = value[len(self.values[key])]
        return self.say(f"I press {_keys(keys)}.", f"Now {_keys(keys)}."), Hotkey(tuple(keys.split("+")))

    def tab(self, key: str, value: str) -> Move:
        return self.say("I press tab.", "Now tab."), Hotkey(("tab",))

    def walk(self, key: str, value: int) -> Move:
        away = value - self.values[key]
        way = ("right" if away > 0 else "left") if key == "col" else ("down" if away > 0 else "up")
        return self.say(f"I press {way}.", f"Now {way}."), Hotkey((way,))

    def hold(self) -> Move:
        bar = next(item for item in self.items if item["kind"] == "bar")
        key = self.params["hold"]
        if not self.state["held"]:
            return self.say(f"I hold the {key} key.", f"I press {key} and hold it."), Press(key)
        if self.values["bar"] > bar["goal"][0]:
            return self.say("I let go.", "Now I let it go."), Release(key)
        return self.say("I wait.", "I hold it on."), Wait()

    # -- drags ------------------------------------------------------------------------------------------------------
    def drag(self, start: tuple[float, float], end: tuple[float, float], *variants: str) -> Move:
        return self.say(*variants), Drag(spot(self.state, *start), spot(self.state, *end))

    def slide(self, item: Item, value: int) -> Move:
        def at(number: int) -> tuple[float, float]:
            x, y, w, h = item["box"]
            return x + h / 2 + (number - item["low"]) / (item["high"] - item["low"]) * (w - h), y + h / 2

        said = f"I drag {item['say']} to {cardinal(value)}."
        return self.drag(at(self.values[item["key"]]), at(value), said, f"I move it to {cardinal(value)}.")

    def put(self, item: Item, value: str) -> Move:
        zones = {one["name"]: one for one in self.items if one["kind"] == "zone"}
        zone, now = zones[value], zones.get(self.values[item["key"]])
        thing, goal = item.get("say") or f"the {item['name']}", zone["say"]
        start = _middle(now["box"] if now else item["box"])
        return self.drag(start, _middle(zone["box"]), f"I drag {thing} to {goal}.", f"I put {thing} into {goal}.")

    def reorder(self, item: Item, value: list[str]) -> Move:
        now = self.values[item["key"]]
        x, y, w, h = item["box"]
        moves = []
        for word in now:
            rest = [one for one in now if one != word]
            target = min((_apart([*rest[:n], word, *rest[n:]], value), n) for n in range(len(now)))
            moves.append((target[0], now.index(word), target[1]))
        _, source, goal = min(moves)

        def at(row: int) -> tuple[float, float]:
            return x + w / 2, y + (row + 0.5) * h / len(now)

        way, said = "up" if goal < source else "down", now[source]
        said = cardinal(int(said)) if said.isdigit() else said
        return self.drag(at(source), at(goal), f"I drag the {said} row {way}.", f"I move {said} {way}.")

    def connect(self, key: str, value: list[str]) -> Move:
        ends = [next(one for one in self.items if one.get("name") == name) for name in self.params["ends"]]
        said = f"I drag from {ends[0]['say']} to {ends[1]['say']}."
        return self.drag(_middle(ends[0]["box"]), _middle(ends[1]["box"]), said, "I draw the line.")

    def select(self, key: str, value: str) -> Move:
        text = next(one["list"] for one in self.items if one["kind"] == "words")
        asked = value.split(" ")
        first = next(n for n in range(len(text)) if text[n : n + len(asked)] == asked)
        start = where(self.state, f"word {first}")
        if len(asked) == 1:
            word = "the word" if self.params.get("source") else value
            return self.say(f"I double click {word}.", f"I select {word}."), LeftDouble(start)
        end = where(self.state, f"word {first + len(asked) - 1}")
        return self.say(f"I select from {asked[0]} to {asked[-1]}.", "I drag over the words."), Drag(start, end)


def _text(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value


def _apart(one: list[str], other: list[str]) -> int:
    """Count the pairs that are in another order in `one` than in `other`."""
    place = {word: number for number, word in enumerate(other)}
    order = [place[word] for word in one]
    return sum(order[i] > order[j] for i in range(len(order)) for j in range(i + 1, len(order)))


def _middle(box: list[float]) -> tuple[float, float]:
    return box[0] + box[2] / 2, box[1] + box[3] / 2


def _keys(keys: str) -> str:
    spoken = {"ctrl": "control", "esc": "escape"}
    return " ".join(spoken.get(key, key) for key in keys.split("+"))
