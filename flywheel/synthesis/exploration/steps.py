"""Play a script's steps on a page by mouse and keys; each finds its control when it is played."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urljoin

from flywheel.agent.actions import Action, Click, Drag, Hotkey, Navigate, Point, Scroll, Type, TypeAt, Wait
from flywheel.envs.base import StepResult
from flywheel.synthesis.exploration.page_view import PageControl, PageView, read_page_view
from flywheel.utils.errors import EnvError

_SCROLLS = 15  # until a control must be in the viewport
_RESTS = 6  # waits until a page must be at rest
_SLIDE_KEYS = 3
_EDGE = 0.002  # of the viewport: a point at its very edge is outside


class ControlMissing(EnvError):
    """Signal that the page does not show the control of a script's step."""


@dataclass(frozen=True)
class ScriptStep:
    """Hold one step of a script that is played on a page.

    do: click, type, choose, slide, drag or accept (the browser's own dialog). role, name, place: of the control. text:
    what is typed or chosen, or where a thing is dragged. enter: whether the Enter key follows. heading: under which the
    control stands. named: whether the name is its accessible name. href: where a link leads. before: the control's
    state before the step.
    """

    do: str
    role: str = ""
    name: str = ""
    place: str = ""
    text: str = ""
    enter: bool = False
    heading: str = ""
    named: bool = True
    href: str = ""
    before: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are not empty, as a task's proof keeps them."""
        return {key: value for key, value in asdict(self).items() if value not in ("", False) or key == "do"}

    @classmethod
    def of(cls, do: str, control: PageControl, text: str = "", enter: bool = False) -> ScriptStep:
        """Make the step that does `do` to a control, with `text` and Enter as of the class."""
        about = (control.role, control.name, control.place, text, enter, control.heading, control.named, control.href)
        return cls(do, *about, control.state or "")


def find_control(view: PageView, step: ScriptStep) -> PageControl:
    """Find a step's control in a view, by its name at its place, or else by the name alone. Raises ControlMissing."""
    named = [one for one in view.controls if (one.role, one.name) == (step.role, step.name) and not one.off]
    found = next((one for one in named if one.place == step.place), None) or (named[0] if len(named) == 1 else None)
    if found is None:
        raise ControlMissing(f"there is no {step.role} {step.name!r}", where=view.address)
    return found


async def play_step(
    env: Any, step: ScriptStep, view: PageView, *, jumps: bool = False
) -> tuple[PageView, list[Action], StepResult]:
    """Play one step from the page that `view` shows; return the page at rest after it, the actions, the last result.

    env: an environment of a browser (`PageLease`). jumps: go to the address of a link that one would have to scroll to,
    which is quicker to explore by. A choice that is not among the control's options leaves it as it is. At rest is a
    page that a wait does not change; six waits at most. Raises ControlMissing where the page shows no such control,
    dialog or thing to drag, or 15 scrolls do not reach it, and EnvError as the environment does.
    """
    done: list[Action] = []
    result: StepResult | None = None

    async def act(action: Action) -> StepResult:
        done.append(action)
        return await env.step(action)

    if view.dialog or step.do == "accept":
        if not view.dialog:
            raise ControlMissing("no dialog is open", where=view.address)
        if step.text:
            result = await act(Type(step.text))
        result = await act(Hotkey(("enter",)))
        return await _rest(env, act, result, done)
    if step.do == "drag":
        move = next((one for one in view.moves if (one["name"], one["place"]) == (step.name, step.place)), None)
        if move is None:
            raise ControlMissing(f"there is no {step.name!r} to drag", where=view.address)
        result = await act(Drag(Point(*move["start"]), Point(*move["end"])))
        return await _rest(env, act, result, done)
    control = find_control(view, step)
    if jumps and step.do == "click" and control.href.startswith("/") and _find_way(control, view) is not None:
        result = await act(Navigate(urljoin(view.url, control.href)))
        return await _rest(env, act, result, done)
    for _ in range(_SCROLLS):
        way = _find_way(control, view)
        if way is None:
            break
        await act(way)
        view = await read_page_view(env.tab)
        control = find_control(view, step)
    else:
        raise ControlMissing(f"the {step.role} {step.name!r} cannot be scrolled to", where=view.address)
    at = _middle(control, view)
    match step.do:
        case "type":
            end = "\n" if step.enter else ""
            result = await act(TypeAt(at, step.text + end, clear=bool(control.value)))
        case "choose":
            by = control.options.index(step.text) - control.chosen if step.text in control.options else 0
            await act(Click(at))
            for _ in range(abs(by)):
                await act(Hotkey(("down" if by > 0 else "up",)))
            result = await act(Hotkey(("enter",)))
        case "slide":
            await act(Click(at))
            for _ in range(_SLIDE_KEYS):
                result = await act(Hotkey(("right",)))
        case _:
            result = await act(Click(at))
    return await _rest(env, act, result, done)


async def _rest(
    env: Any, act: Any, result: StepResult, done: list[Action]
) -> tuple[PageView, list[Action], StepResult]:
    """Wait until the page is at rest; the waits that were needed are among `done`."""
    view = await read_page_view(env.tab)
    for _ in range(_RESTS):
        if view.dialog or result.terminated or result.truncated:
            break
        result = await act(Wait())
        last, view = view, await read_page_view(env.tab)
        if view.key() == last.key():
            done.pop()  # it was at rest before
            break
    return view, done, result


def _middle(control: PageControl, view: PageView) -> Point:
    x, y, w, h = control.box
    width, height = view.size
    return Point(*(min(max(at, _EDGE), 1 - _EDGE) for at in ((x + w / 2) / width, (y + h / 2) / height)))


def _find_way(control: PageControl, view: PageView) -> Scroll | None:
    """Return the scroll that brings a control nearer; None where its middle can be pressed."""
    x, y, w, h = control.box
    width, height = view.size
    middle, at = y + h / 2, (0.5, 0.5)
    low, high = 0.0, float(height)
    if control.inside:
        ix, iy, iw, ih = control.inside
        if iy < height and iy + ih > 0:
            low, high = max(low, iy), min(high, iy + ih)
            at = ((max(ix, 0) + min(ix + iw, width)) / 2 / width, (low + high) / 2 / height)
    if middle >= high - 2:
        return Scroll(Point(*at), "down")
    if middle <= low + 2:
        return Scroll(Point(*at), "up")
    if not -2 <= x + w / 2 <= width + 2:
        return Scroll(Point(*at), "right" if x > 0 else "left")
    return None


# What is typed into a field: what its name and kind ask for, a cell of the table column of that name, else a word.

_SAMPLES = (
    (r"e-?mail", ("ada@example.org", "ben@example.org")),
    (r"pass(word|wort)", ("secret123",)),
    (r"phone|tel", ("5550143",)),
    (r"url|link|website", ("https://example.org/",)),
    (r"zip|postal", ("10115",)),
    (r"city|town", ("Lisbon", "Oslo")),
    (r"user|login|first ?name|full ?name|^name\b|author|owner", ("Ada", "Ben", "Chen")),
    (r"title|subject|summary|display", ("Spring plans", "Garden notes", "Winter list")),
    (r"todo|task|item|done", ("Water the plants", "Call the bank")),
    (r"desc|note|comment|message|body|text", ("Bring two copies.", "Ready by noon.")),
    (r"colou?r", ("#336699",)),
    (r"\bid\b|number|count|quantity|amount|price|size|age", ("3", "7", "12")),
)
_WORDS = ("maple", "river", "amber", "cedar", "linen")


def choose_text(control: PageControl, view: PageView, seed: int, column: str = "") -> str:
    """Choose a text to type into a field of the page `view`, the same for the same arguments.

    seed: of the choice. column: of a table on the page, whose cells are likely to be right; "": the column that the
    field's name names.
    """
    rng = random.Random(f"{seed} {control.place} {control.name}")
    name = control.name.lower()
    if control.type in ("number", "range") or control.role == "spinbutton":
        low, high = (
            float(text) if re.fullmatch(r"-?\d+(\.\d+)?", text) else fallback
            for text, fallback in ((control.low, 1.0), (control.high, 9.0))
        )
        return str(int(min(max(low + 2, low), high)))
    if control.type == "date":
        return "03142026"
    if re.search(r"\bsql\b", name):
        return "select 1"
    words = re.findall(r"[a-z]+", name)
    for key in (column.lower(), *words):
        if cells := [cell for cell in view.tables.get(key, ()) if 0 < len(cell) <= 40]:
            return rng.choice(cells)
    searches = (
        control.role == "searchbox" or control.type == "search" or re.search(r"search|query|find|filter|^q$", name)
    )
    if searches and (there := _distinct_words(view.text)):
        return rng.choice(there)
    for pattern, samples in _SAMPLES:
        if re.search(pattern, name) or (control.type != "text" and re.search(pattern, control.type)):
            return rng.choice(samples)
    return rng.choice(_WORDS)


def _distinct_words(text: str) -> Sequence[str]:
    words = [word.lower() for word in re.findall(r"[A-Za-z]{5,12}", text)]
    return sorted({word for word in words if 1 < words.count(word) <= 6})[:50]
