"""Draw the pickers of form controls (selects, colours, dates, suggestions), which a page's screenshot lacks."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from PIL import Image

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, Point
from flywheel.envs.browser.driver.browser_ui import CoverPage
from flywheel.envs.browser.driver.cdp import CdpCommandError, encode_png
from flywheel.envs.browser.driver.input import InputDriver, key_event_fields
from flywheel.envs.browser.driver.page import PICKERS_SCRIPT, BrowserPage, PageGone
from flywheel.envs.keyboard import KEYS
from flywheel.utils.errors import EnvError, EnvTimeout

_CONTROL_SCRIPT = (Path(__file__).parent / "control.js").read_text(encoding="utf-8")
# Controls that show something: the CSS selector that finds them, and the function of control.js that describes one.
PICKER = ("select:open, input:open", "describe")
SUGGESTIONS = ("input[list]:focus", "describe")
COMPLAINT = (":focus:invalid:is(input, select, textarea)", "complain")
_WORLD = "flywheel"
_PICKER_CLOSE_S = 5.0
_MUTE_EVENTS = "function (on) { this.ownerDocument.defaultView.__flywheel__.core.unheard = on; }"


class FormControl:
    """Read and operate one form control of a page, by a script of ours that the page's own scripts cannot reach.

    node: the protocol's backend node id, which stays the same. world, main: object ids of the control in the script's
    own JavaScript context ("isolated world") and in the page's. description: the function of control.js for `describe`.
    Its coroutines raise CdpCommandError where the control's document is gone, EnvError where its script fails or page
    or browser is gone.
    """

    def __init__(self, page: BrowserPage, node: int, world: str, main: str, description: str) -> None:
        self._page, self.node, self._world, self._main, self._description = page, node, world, main, description

    @classmethod
    async def find(cls, page: BrowserPage, what: tuple[str, str]) -> FormControl | None:
        """Find the control of `page` that shows `what` (PICKER, SUGGESTIONS or COMPLAINT); None where there is none."""
        document = await page.send("DOM.getDocument", {"depth": -1, "pierce": True})
        try:
            for root, frame in _iterate_roots(document["root"], page.target):
                asked = {"nodeId": root["nodeId"], "selector": what[0]}
                for found in (await page.send("DOM.querySelectorAll", asked))["nodeIds"]:
                    control = await cls._of(page, found, frame, what[1])
                    if what is not PICKER or await control.ask("open"):
                        return control
        except CdpCommandError:
            pass  # the tree changed meanwhile, and the control is gone
        finally:
            page.post("DOM.disable")
        return None

    @classmethod
    async def _of(cls, page: BrowserPage, node: int, frame: str, description: str) -> FormControl:
        told = await page.send("DOM.describeNode", {"nodeId": node})
        made = await page.send("Page.createIsolatedWorld", {"frameId": frame, "worldName": _WORLD})
        number, world = told["node"]["backendNodeId"], {"executionContextId": made["executionContextId"]}
        own = await page.send("DOM.resolveNode", {"backendNodeId": number, **world})
        main = await page.send("DOM.resolveNode", {"backendNodeId": number})
        return cls(page, number, own["object"]["objectId"], main["object"]["objectId"], description)

    async def ask(self, what: str, *args: Any) -> Any:
        """Call the function `what` of control.js on the control, and return its JSON value."""
        return await self._call(self._world, _CONTROL_SCRIPT, what, *args)

    async def describe(self) -> dict[str, Any] | None:
        """Return what a picker has to show of the control, as control.js describes it; None for nothing."""
        return await self.ask(self._description)

    async def place(self) -> dict[str, float] | None:
        """Return the control's box in the viewport, in pixels: `x`, `y`, `w`, `h`; None where it is not drawn."""
        try:
            quads = (await self._page.send("DOM.getContentQuads", {"backendNodeId": self.node}))["quads"]
        except CdpCommandError:
            quads = []
        if not quads:
            return None
        across, down = [x for quad in quads for x in quad[::2]], [y for quad in quads for y in quad[1::2]]
        left, top = min(across), min(down)
        return {"x": left, "y": top, "w": max(across) - left, "h": max(down) - top}

    async def shut(self) -> None:
        """Close the browser's own picker by Escape, which the page does not receive while the picker is open.

        Raises EnvTimeout where it does not close.
        """
        try:
            async with asyncio.timeout(_PICKER_CLOSE_S):
                while await self.ask("open"):
                    await self._key("rawKeyDown", "Escape")
                    if await self.ask("open"):  # some listen only after their first frame
                        await self._page.draw()
        except TimeoutError:
            raise EnvTimeout("a picker of the browser's does not close", where=self._page.url) from None

    async def pick(self, option: int) -> None:
        """Choose an option of a select by a key press on the one before it, so that the browser makes the events."""
        if await self.ask("ready", option):
            await self._call(self._main, _MUTE_EVENTS, True)
            for kind in ("rawKeyDown", "keyUp"):
                await self._key(kind, "ArrowDown")
            await self._call(self._main, _MUTE_EVENTS, False)
        await self.ask("pick", option)

    async def _key(self, kind: str, name: str) -> None:
        await self._page.send("Input.dispatchKeyEvent", {"type": kind, **key_event_fields(KEYS[name])})

    async def _call(self, on: str, function: str, *args: Any) -> Any:
        call = {"objectId": on, "functionDeclaration": function, "arguments": [{"value": value} for value in args]}
        answer = await self._page.send("Runtime.callFunctionOn", call | {"returnByValue": True})
        if "exceptionDetails" in answer:
            description = answer["exceptionDetails"].get("exception", {}).get("description", "a script error")
            raise EnvError(f"a form control could not be read: {description}", where=self._page.url)
        return answer["result"].get("value")


def _iterate_roots(node: Mapping[str, Any], frame: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Iterate over the documents and shadow trees below a node, each with the id of its frame."""
    left = [(node, frame)]
    while left:
        one, frame = left.pop()
        if one["nodeName"] == "#document" or one.get("shadowRootType", "user-agent") != "user-agent":
            yield one, frame
        if "contentDocument" in one:
            left.append((one["contentDocument"], one["frameId"]))
        left += [(child, frame) for child in (*one.get("children", ()), *one.get("shadowRoots", ()))]


_KEY_ACTIONS = act.Hotkey | act.Press | act.Release | act.Type
_SUGGESTIONS, _COMPLAINT, _PICKER = 1, 2, 3  # what the page reports (`picking` in native_controls.js)
_CONTROL_QUERIES = {_SUGGESTIONS: SUGGESTIONS, _COMPLAINT: COMPLAINT}
_IDLE_ACTIONS = act.Wait | act.Finished | act.CallUser  # no mouse and no keys
_SUGGESTION_KEYS = ("up", "down", "enter", "return", "esc", "escape")  # keys for the suggestions, not for their field
_SUGGESTING_KEYS = ("up", "down", "backspace")  # keys that open suggestions


class FormPickers:
    """Imitate what the browser opens at form controls: pickers, suggestions and complaints; one at a time.

    The browser would draw each in a window of its own, which no screenshot on command shows and our mouse cannot reach.
    That window is closed as soon as it opens, and a picker of ours is shown over the page (`scripts/pickers`). overlay:
    the cover that shows it. Its coroutines raise EnvError where a script fails, a browser's picker does not close, or
    page or browser is gone.
    """

    def __init__(self, overlay: CoverPage) -> None:
        self.overlay = overlay
        self._page: BrowserPage | None = None  # the page of the control
        self._control: FormControl | None = None
        self._model: dict[str, Any] = {}
        self._left = 0  # node of the control whose picker the last action closed: it must not reopen
        self._changed = False  # a "change" event is due; a colour gets it when the picker closes
        self._asks = False  # after the last action a field may show its suggestions

    @property
    def open(self) -> bool:
        """Tell whether a picker, a list of suggestions or a complaint is open."""
        return self._control is not None

    # -- actions ------------------------------------------------------------------------------------------------------
    async def take(self, action: Action, hands: InputDriver, page: BrowserPage, size: tuple[int, int]) -> str | None:
        """Carry out an action on the open picker and return its note; None where the action is meant for the page.

        size: of the viewport, in pixels.
        """
        self._left, self._asks = 0, False
        if self._control is None or page is not self._page or not await self._meant(action, size):
            self._asks = _asks_for_suggestions(action)
            stays = _IDLE_ACTIONS if self._model.get("kind") == "bubble" else _IDLE_ACTIONS | _KEY_ACTIONS
            if self._control is not None and not isinstance(action, stays):
                self._left = self._control.node
                await self._close()
            return None
        if isinstance(action, act.Scroll):
            way = {"up": -1, "down": 1}.get(action.direction, 0)
            await self.call("pickers.scroll", action.point.x * size[0], action.point.y * size[1], way)
            return ""
        note = await hands.do(action, self.overlay.page, (), "")
        await self._obey(action, hands)
        return note

    async def _meant(self, action: Action, size: tuple[int, int]) -> bool:
        """Tell whether an action is for the picker: a mouse action on it, or keys that do not go to its field."""
        if self._model["kind"] == "bubble":
            return False
        points = [value for value in vars(action).values() if isinstance(value, Point)]
        if points:
            box = await self.call("pickers.box")
            x, y = points[0].x * size[0], points[0].y * size[1]
            return box["x"] <= x < box["x"] + box["w"] and box["y"] <= y < box["y"] + box["h"]
        if self._model["kind"] != "suggestions":
            return isinstance(action, _KEY_ACTIONS)
        return _single_key(action) in _SUGGESTION_KEYS

    async def _obey(self, action: Action, hands: InputDriver) -> None:
        """Pass the choice in the picker on to the page, and close the picker where it is done."""
        told, control, page = await self.call("pickers.take"), self._control, self._page
        kind = self._model["kind"]
        try:
            if told["value"] is not None and kind == "list":
                await self._close()
                await control.pick(told["value"])
            elif told["value"] is not None and await control.ask("choose", told["value"]):
                await control.ask("tell", "input")
                self._changed = True
                if kind != "color":
                    await self._settle()
        except CdpCommandError:
            await self._close()  # the page took the control away
        if told["over"]:
            await self._close()
        if told["on"]:
            await hands.do(action, page, (), "")  # Tab goes on from the control

    async def _settle(self) -> None:
        if self._changed:
            self._changed = False
            await self._control.ask("tell", "change")

    async def _close(self) -> None:
        if self._control is not None:
            with contextlib.suppress(CdpCommandError, PageGone):
                await self._settle()
            self._control = self._page = None
            if self.overlay.there:
                await self.call("pickers.hide")

    # -- looking ------------------------------------------------------------------------------------------------------
    async def look(self, page: BrowserPage, seen: Mapping[str, Any], size: tuple[int, int]) -> None:
        """Replace a picker that the browser has opened by one of ours, and update the open one from its control.

        seen: what `BrowserPage.observe` returned. size: of the viewport, in pixels.
        """
        picking = seen.get("picking", 0)
        found = await FormControl.find(page, PICKER) if picking == _PICKER else None
        if self._control is not None and (page is not self._page or found is not None):
            await self._close()
        if self._control is not None:
            await self._follow(seen, picking)
        if self._control is None and (picking == _COMPLAINT or (picking == _SUGGESTIONS and self._asks)):
            found = await FormControl.find(page, _CONTROL_QUERIES[picking])
        if found is not None:
            with contextlib.suppress(CdpCommandError):  # its document was left meanwhile
                if picking == _PICKER:
                    await found.shut()
                if found.node != self._left or picking == _COMPLAINT:
                    await self._show(page, found, seen, size)
        self._asks = False

    async def _show(
        self, page: BrowserPage, control: FormControl, seen: Mapping[str, Any], size: tuple[int, int]
    ) -> None:
        model, anchor = await control.describe(), await control.place()
        if model is None or anchor is None or (model["kind"] == "suggestions" and not model["rows"]):
            return
        if await self.overlay.open(size):
            await self.overlay.page.evaluate(PICKERS_SCRIPT)
        self._page, self._control, self._changed = page, control, False
        await self._draw(model, anchor, seen)
        await self.overlay.page.draw()  # a document takes no input before it is drawn

    async def _follow(self, seen: Mapping[str, Any], picking: int) -> None:
        try:
            model, anchor = await self._control.describe(), await self._control.place()
        except CdpCommandError:
            model = anchor = None
        kind = model["kind"] if model is not None else ""
        over = kind == "bubble" and picking != _COMPLAINT
        over |= kind == "suggestions" and (picking != _SUGGESTIONS or not model["rows"])
        if model is None or anchor is None or over:
            await self._close()
        else:
            await self._draw(model, anchor, seen)

    async def _draw(self, model: dict[str, Any], anchor: dict[str, float], seen: Mapping[str, Any]) -> None:
        now = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=seen.get("date", 0))
        self._model = model | {"today": f"{now:%Y-%m-%d}", "now": f"{now:%H:%M}"}
        await self.call("pickers.show", self._model, anchor)

    async def draw_over(self, shot: bytes) -> bytes:
        """Draw the open picker, if there is one, over a page's picture (PNG); returns a PNG."""
        if self._control is None:
            return shot
        box = await self.call("pickers.box")  # in pixels
        shots = (shot, await self.overlay.page.screenshot())
        under, over = (Image.open(io.BytesIO(png)).convert("RGB") for png in shots)
        corner = (max(box["x"], 0), max(box["y"], 0))
        under.paste(over.crop((*corner, box["x"] + box["w"], box["y"] + box["h"])), corner)
        return encode_png(under)

    async def call(self, function: str, *args: Any) -> Any:
        """Call the function named `function` of the pickers' script in the cover, and return its JSON value."""
        return await self.overlay.page.evaluate(f"{function}({', '.join(map(json.dumps, args))})")

    def forget(self) -> None:
        """Forget the open picker and close its cover: the session is over."""
        self.overlay.close()
        self._page = self._control = None
        self._left, self._changed, self._asks = 0, False, False


def _single_key(action: Action) -> str:
    """Return the one key that an action presses, in lower case; "" for other actions."""
    keys = action.keys if isinstance(action, act.Hotkey) else (getattr(action, "key", ""),)
    return keys[0].lower() if len(keys) == 1 else ""


def _asks_for_suggestions(action: Action) -> bool:
    """Tell whether a field with suggestions shows them after this action."""
    return (
        isinstance(action, act.Click | act.LeftDouble | act.LeftTriple | act.Type)
        or _single_key(action) in _SUGGESTING_KEYS
    )
