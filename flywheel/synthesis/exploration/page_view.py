"""Read a page by its accessibility tree: its controls and what they hold, its visible text, and what it stores."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from flywheel.utils.errors import EnvError

# Parts of JavaScript that both the explorer and the rewards read a page by.
READING_PARTS = {
    "address": """const address = () => {
  const at = new URL(location.href), path = decodeURIComponent(at.pathname).replace(/(^|\\/)index\\.html?$/, "$1");
  const pairs = [...at.searchParams].filter((pair) => pair[1] !== "").map((pair) => pair.join("=")).sort();
  return path + (pairs.length ? "?" + pairs.join("&") : "") + decodeURIComponent(at.hash);
};""",
    "stateOf": """const stateOf = (node) => {
  if (!node || !node.checkVisibility()) return null;
  const own = node.matches("[type=checkbox], [type=radio]") ? node.checked
    : node.localName === "select" ? [...node.selectedOptions].map((one) => one.text.trim()).join("|")
    : node.localName === "summary" ? Boolean(node.closest("details")?.open)
    : node.localName === "option" ? node.selected : node.matches("input, textarea") ? node.value
    : node.isContentEditable ? node.innerText : "";
  const said = ["checked", "selected", "expanded", "pressed", "valuenow", "current"]
    .map((name) => [name, node.getAttribute("aria-" + name)]).filter((pair) => pair[1] !== null);
  const marks = /(^|[-_])(selected|checked|opened?|completed?|done|active|current)$/;
  const kept = [...node.classList].filter((name) => marks.test(name) && name !== "ui-state-active").sort();
  if (node.matches(":disabled") || node.closest("[aria-disabled=true]")) kept.push("disabled");
  return [String(own), ...said.map((pair) => pair.join("=")), ...kept].join(", ");
};""",
    "modified": """const modified = () => [...document.querySelectorAll("input, select, textarea")]
  .filter((node) => node.checkVisibility() && (/^(checkbox|radio)$/.test(node.type)
    ? node.checked !== node.defaultChecked
    : node.localName === "select" ? [...node.options].some((one) => one.selected !== one.defaultSelected)
    : node.value !== node.defaultValue)).length;""",
    "spotOf": """const spotOf = (node) => node
  ? [node.offsetLeft, node.offsetTop, node.offsetWidth, node.offsetHeight] : [0, 0, 0, 0];""",
    "textOf": """const textOf = (selector) => [...document.querySelectorAll(selector)]
  .filter((node) => node.checkVisibility({ opacityProperty: true, visibilityProperty: true }))
  .map((node) => node.innerText).join(" ").replace(/\\s+/g, " ").trim();""",
}
_SCRIPT = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
_SCRIPT = _SCRIPT[_SCRIPT.index("function") :].replace("READING_PARTS", "\n".join(READING_PARTS.values()))
_ROLES = """link button checkbox radio textbox searchbox combobox option menuitem menuitemcheckbox menuitemradio
tab switch slider spinbutton treeitem disclosuretriangle popupbutton togglebutton date datetime inputtime gridcell
menulistpopup textfieldwithcombobox"""
CONTROL_ROLES = frozenset(_ROLES.split())
_MAYBE = "a[href], button, input:not([type=hidden]), select, textarea, summary, [role], [contenteditable]"
_LARGE = 4000  # elements of a page whose controls are asked for one by one
_MAX_CONTROLS = 400  # of one page


@dataclass(frozen=True)
class PageControl:
    """Hold one control of a page, as `page_view.js` reads it; boxes in pixels of the viewport.

    name: its accessible name, or another text that says what it is. named: whether it is the former. place: a CSS
    selector. state: what it holds (`stateOf`), None where it cannot tell. signature: the kinds of elements that it lies
    in. scope: the form or dialog whose button sends it, by its selector. off: whether it is disabled. inside: the box
    of the element that it scrolls in.
    """

    role: str
    name: str
    named: bool
    place: str
    tag: str
    type: str
    state: str | None
    signature: str
    value: str
    options: tuple[str, ...]
    chosen: int
    multiple: bool
    href: str
    scope: str
    submits: bool
    required: bool
    low: str
    high: str
    suggests: bool
    heading: str
    off: bool
    box: tuple[float, ...]
    inside: tuple[float, ...]

    @property
    def takes_text(self) -> bool:
        """Tell whether text can be typed into the control."""
        return (
            self.tag == "textarea"
            or self.type in _TEXT_TYPES
            or (self.tag not in ("input", "select") and (self.role in ("textbox", "searchbox")))
        )


_TEXT_TYPES = ("text", "search", "email", "password", "url", "tel", "number", "date")


@dataclass(frozen=True)
class PageView:
    """Hold one look at a page; fields as `page_view.js` reads them.

    address: path, query and fragment in one spelling. regions: visible text by the nearest element with an id. tables:
    cells by the first word of their column. moves: things to drag. top, bottom: pixels that can be scrolled. dialog:
    kind and text of an open dialog of the browser; then there is nothing else.
    """

    url: str = ""
    address: str = ""
    title: str = ""
    heading: str = ""
    controls: tuple[PageControl, ...] = ()
    regions: dict[str, str] = field(default_factory=dict)
    tables: dict[str, list[str]] = field(default_factory=dict)
    local: dict[str, str] = field(default_factory=dict)
    session: dict[str, str] = field(default_factory=dict)
    moves: tuple[dict[str, Any], ...] = ()
    modified: int = 0
    password: bool = False
    frames: int = 0
    size: tuple[int, int] = (1, 1)
    top: float = 0
    bottom: float = 0
    dialog: str = ""

    def key(self, masks: TextMasks | None = None) -> str:
        """Hash the page's state (address, controls, texts, storage), so that equal states have equal keys.

        masks: hide what changes without any action; None: nothing is hidden.
        """
        hide = masks.hide if masks else str
        states = [(one.place, one.role, hide(one.name), one.state) for one in self.controls]
        texts = sorted((place, hide(text)) for place, text in self.regions.items())
        kept = [sorted((key, hide(text)) for key, text in one.items()) for one in (self.local, self.session)]
        told = [self.address, self.dialog, states, texts, kept, [one["spot"] for one in self.moves]]
        return hashlib.sha256(json.dumps(told).encode("utf-8", "replace")).hexdigest()[:16]

    @property
    def text(self) -> str:
        """Return all visible text."""
        return " ".join(self.regions.values())

    @property
    def label(self) -> str:
        """Return what a person would call the page: its title, else its heading, else ""."""
        return self.title or self.heading


class TextMasks:
    """Hide words of a site's texts that change without any action, such as times, once they are learned.

    patterns: regular expressions that Python and JavaScript share, sorted.
    """

    def __init__(self) -> None:
        self.patterns: list[str] = []

    def hide(self, text: str) -> str:
        """Return a text with the learned words hidden."""
        for pattern in self.patterns:
            text = re.sub(pattern, "~", text)
        return text

    def learn(self, one: PageView, other: PageView) -> bool:
        """Learn from two looks at the same state; return whether all that differs is hidden now."""
        for field_name in ("regions", "local", "session"):
            before, after = getattr(one, field_name), getattr(other, field_name)
            for place in before.keys() & after.keys():
                self._learn_text(before[place], after[place])
        return one.key(self) == other.key(self)

    def _learn_text(self, one: str, other: str) -> None:
        before, after = self.hide(one).split(), self.hide(other).split()
        if len(before) != len(after):
            return
        for i, (was, now) in enumerate(zip(before, after, strict=True)):
            if was == now or not re.search(r"\d", was):
                continue
            form = re.sub(r"\d+(?:\\?\.\d+)?", lambda _: r"\d+(?:\.\d+)?", _escape_word(was))
            if re.fullmatch(form, now):
                bare = not re.search(r"[A-Za-z:]", was)  # a number that nothing tells from others
                pattern = f"{_escape_word(before[i - 1])} {form}" if bare and i else form
                self.patterns = sorted({*self.patterns, pattern})


def _escape_word(word: str) -> str:
    return re.sub(r"([.*+?^${}()|[\]\\/])", r"\\\1", word)


async def _list_controls(page: Any, group: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """List role, name and object of a page's controls, by its whole accessibility tree."""
    tree = await page.send("Accessibility.getFullAXTree")
    nodes = [node for node in tree["nodes"] if "backendDOMNodeId" in node and _read_node(node)[0] in CONTROL_ROLES]
    asked = [{"backendNodeId": node["backendDOMNodeId"], **group} for node in nodes[:_MAX_CONTROLS]]
    answers = await asyncio.gather(*(page.send("DOM.resolveNode", one) for one in asked), return_exceptions=True)
    there = zip(nodes, answers, strict=False)
    return [(*_read_node(node), one["object"]["objectId"]) for node, one in there if not isinstance(one, BaseException)]


async def _ask_for_controls(page: Any, group: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """List the same of a page whose whole tree would take seconds: each element that may be a control is asked for."""
    call = {"expression": f"[...document.querySelectorAll({quote_script(_MAYBE)})].slice(0, {_MAX_CONTROLS})", **group}
    found = await page.send("Runtime.evaluate", call)
    told = await page.send("Runtime.getProperties", {"objectId": found["result"]["objectId"], "ownProperties": True})
    numbers = [one["value"]["objectId"] for one in told["result"] if one["name"].isdigit()]
    asked = [{"objectId": number, "fetchRelatives": False} for number in numbers]
    answers = await asyncio.gather(
        *(page.send("Accessibility.getPartialAXTree", one) for one in asked), return_exceptions=True
    )
    there = zip(numbers, answers, strict=True)
    return [(*_read_node(one["nodes"][0]), number) for number, one in there if not isinstance(one, BaseException)]


def _read_node(node: Mapping[str, Any]) -> tuple[str, str]:
    if node.get("ignored"):
        return "", ""
    name = " ".join(str(node.get("name", {}).get("value", "")).split())
    return str(node.get("role", {}).get("value", "")).lower(), name


async def read_page_view(tab: Any) -> PageView:
    """Read the page that a tab (`BrowserTab`) shows, with 400 controls at most. Raises EnvError where it cannot be."""
    if tab.dialogs.open:
        return PageView(url=tab.url, dialog=str(tab.dialogs.open[0]))
    page = tab.page
    group = {"objectGroup": "flywheel.explorer"}
    window = await page.send("Runtime.evaluate", {"expression": "window", **group})
    if await page.evaluate("document.querySelectorAll('*').length") > _LARGE:
        told = await _ask_for_controls(page, group)
    else:
        told = await _list_controls(page, group)
    controls = [(role, name, number) for role, name, number in told if role in CONTROL_ROLES][:_MAX_CONTROLS]
    arguments = [{"value": [one[:2] for one in controls]}, *({"objectId": one[2]} for one in controls)]
    call = {"functionDeclaration": _SCRIPT, "objectId": window["result"]["objectId"], "arguments": arguments}
    answer = await page.send("Runtime.callFunctionOn", {**call, "returnByValue": True})
    page.post("Runtime.releaseObjectGroup", group)
    if "exceptionDetails" in answer:
        why = answer["exceptionDetails"].get("exception", {}).get("description", "a script error")
        raise EnvError(f"the page could not be read: {why.splitlines()[0]}", where=page.url)
    return make_page_view(answer["result"]["value"])


def make_page_view(raw: dict[str, Any]) -> PageView:
    """Make a view of the object that `page_view.js` returned."""
    known = {one.name for one in dataclasses.fields(PageView)}
    controls = tuple(
        PageControl(**{key: tuple(value) if isinstance(value, list) else value for key, value in one.items()})
        for one in raw["controls"]
    )
    told = {key: value for key, value in raw.items() if key in known}
    return PageView(**(told | {"controls": controls, "moves": tuple(raw["moves"]), "size": tuple(raw["size"])}))


def make_address_kind(url: str) -> str:
    """Return the kind of pages that an address is of: its path with # for numbers, and the names in its query."""
    parts = urlsplit(url)
    names = sorted({key for key, _ in parse_qsl(parts.query, keep_blank_values=True)})
    return re.sub(r"\d+", "#", parts.path) + ("?" + "&".join(names) if names else "")


def quote_script(text: str) -> str:
    """Write a text as a literal of JavaScript."""
    return json.dumps(text, ensure_ascii=False)


async def read_visible_text(tab: Any, place: str) -> str:
    """Read the visible text of the elements of a selector, as a reward does. Raises EnvError."""
    call = f"(() => {{ {READING_PARTS['textOf']}\nreturn textOf({quote_script(place)}); }})()"
    return str(await tab.evaluate(call) or "")
