"""One of each kind of form control of a page, operated by mouse and keys as a person would.

Controls are drawn by the browser itself, with pickers of their own: what they do to a session cannot be seen from the
page's script. So each is tried, and the session, its browser and another session in it must be as well as before.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flywheel.agent.actions import Action, Click, Hotkey, Point, Type
from flywheel.environments.env import Task
from flywheel.errors import FlywheelError
from flywheel.sandbox.pool import BrowserPool
from flywheel.sandbox.trial_neighbour import Neighbour

_MOST = 20  # kinds of one page
# Nodes below a root, in open shadow trees too, and what lies on top of one in its own tree.
BELOW = """const below = (root, what) => [...root.querySelectorAll(what), ...[...root.querySelectorAll("*")].flatMap(
  (host) => host.shadowRoot ? below(host.shadowRoot, what) : [])];
const topOf = (node, x, y) => node.getRootNode().elementFromPoint(x, y);
"""
# kind -> its first control that can be operated; what one is, and what it holds now.
_SCRIPT = f"""{BELOW}const skipped = new Set(["hidden", "submit", "button", "reset", "image"]);
const kindOf = (node) => node.matches("select") ? (node.multiple || node.size > 1 ? "select (list)" : "select")
  : node.matches("textarea") ? "textarea" : node.matches("details") ? "details"
  : node.matches("input") ? `input of type ${{node.type}}` : "editable text";
const all = () => below(document, "input, select, textarea, details, [contenteditable]").filter((node) =>
  !node.disabled && !node.readOnly && !skipped.has(node.type)
  && (node.isContentEditable || !node.matches("[contenteditable]"))
  && node.checkVisibility({{ opacityProperty: true, visibilityProperty: true }}));
const heldBy = (node) => node.matches("details") ? node.open : node.matches("[type=checkbox], [type=radio]")
  ? node.checked : node.matches("select") ? [...node.options].map((one) => one.selected)
  : "value" in node ? node.value : node.textContent;
const first = (kind) => all().find((node) => kindOf(node) === kind
  && !(node.type === "radio" && node.checked) && !(node.matches("select") && node.options.length < 2));
"""
_KINDS = f"(() => {{ {_SCRIPT} return [...new Set(all().map(kindOf))].filter((kind) => first(kind)); }})()"
_PLACE = f"""((kind) => {{ {_SCRIPT}
const node = window.__tried__ = first(kind);
if (!node) return null;
node.scrollIntoView({{ block: "center", inline: "center" }});
const box = (node.matches("details") && node.querySelector("summary") || node).getBoundingClientRect();
const top = topOf(node, box.x + box.width / 2, box.y + box.height / 2);
const covered = !top || !(node.contains(top) || top.contains(node));
return {{ covered, held: heldBy(node), x: box.x / innerWidth, y: box.y / innerHeight,
  w: box.width / innerWidth, h: box.height / innerHeight }};
}})"""
_HELD = f"(() => {{ {_SCRIPT} return window.__tried__?.isConnected ? heldBy(window.__tried__) : null; }})()"


@dataclass(frozen=True)
class Tried:
    """What came of one control. harm: what broke, "" where nothing did. changed: it took another value."""

    kind: str
    harm: str = ""
    changed: bool = True


async def try_controls(pool: BrowserPool, task: Task) -> list[Tried]:
    """Try one control of each kind, each in a session of its own beside a quiet one in the same browser."""
    async with pool.env() as env:
        await env.reset(task, task.seed)
        kinds = (await env.tab.evaluate(_KINDS))[:_MOST]
    found = []
    async with Neighbour(pool, task) as neighbour:
        for kind in kinds:
            tried = await _try(pool, task, kind)
            if harm := await neighbour.harm():
                tried = Tried(kind, tried.harm or harm)
            found.append(tried)
    return found


async def _try(pool: BrowserPool, task: Task, kind: str) -> Tried:
    try:
        async with pool.env() as env:
            await env.reset(task, task.seed)
            return Tried(kind, changed=await operate(env, kind))
    except FlywheelError as error:
        return Tried(kind, harm=error.what)


async def operate(env: Any, kind: str) -> bool:
    """Operate the first control of a kind; whether it took another value, where that can be told. Raises EnvError
    where the session breaks."""
    place = await env.tab.evaluate(f"{_PLACE}({json.dumps(kind)})")
    if place is None or place["covered"]:
        return True  # it is not there any more, or something lies over it, which is the page's own matter
    for action in _actions(kind, place):
        if (await env.step(action)).terminated:
            return True
    if kind in _UNTOLD:
        return True
    return await env.tab.evaluate(_HELD) != place["held"]


def _actions(kind: str, place: dict[str, float]) -> Sequence[Action]:
    def at(across: float) -> Click:
        x, y = place["x"] + across * place["w"], place["y"] + place["h"] / 2
        return Click(Point(min(max(x, 0.0), 0.999), min(max(y, 0.0), 0.999)))

    if kind.startswith("select"):
        return at(0.5), Hotkey(("down",)), Hotkey(("enter",))
    if kind in _TYPED:
        typed = [Type(text) if text != "tab" else Hotkey(("tab",)) for text in _TYPED[kind]]
        return at(0.1), *typed, at(0.95), Hotkey(("esc",))
    if kind in ("input of type checkbox", "input of type radio", "details"):
        return (at(0.5),)
    if kind == "input of type range":
        return at(0.2), at(0.8)
    if kind in _UNTOLD:
        return at(0.5), Hotkey(("esc",))
    return at(0.5), Type("1")


# The parts of a date are fields of their own; the last one's end is at the picker's button.
_TYPED = {
    "input of type date": ("01022026",),
    "input of type time": ("0102AM",),
    "input of type month": ("01", "2026"),
    "input of type week": ("01", "2026"),
    "input of type datetime-local": ("01022026", "tab", "0102AM"),
}
_UNTOLD = ("input of type file", "input of type color")  # a picker, from which nothing is chosen here
