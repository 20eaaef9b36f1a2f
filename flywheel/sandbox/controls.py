"""One native form control of a page: found, asked what its picker shows, and told what was chosen.

It is spoken to in a world of our own, in which nothing that the page has replaced counts. The tree is searched by the
protocol, which sees through frames and closed shadow trees.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flywheel.errors import EnvError, EnvTimeout
from flywheel.sandbox.cdp import CommandError
from flywheel.sandbox.keyboard import KEYS
from flywheel.sandbox.page import Page

_SCRIPT = (Path(__file__).parent / "control.js").read_text(encoding="utf-8")
# What a control shows beside itself: how it is found, and who describes it (control.js).
PICKER = ("select:open, input:open", "describe")
SUGGESTIONS = ("input[list]:focus", "describe")
COMPLAINT = (":focus:invalid:is(input, select, textarea)", "complain")
_WORLD = "flywheel"
_CLOSE_S = 5.0
_UNHEARD = "function (on) { this.ownerDocument.defaultView.__flywheel__.core.unheard = on; }"


class Control:
    """node: the protocol's lasting number of it. Of two controls that are the same one, the nodes are."""

    def __init__(self, page: Page, node: int, world: str, main: str, description: str) -> None:
        self._page, self.node, self._world, self._main, self._description = page, node, world, main, description

    @classmethod
    async def find(cls, page: Page, what: tuple[str, str]) -> Control | None:
        """The control that shows PICKER, SUGGESTIONS or COMPLAINT; None: there is none."""
        document = await page.send("DOM.getDocument", {"depth": -1, "pierce": True})
        try:
            for root, frame in _roots(document["root"], page.target):
                asked = {"nodeId": root["nodeId"], "selector": what[0]}
                for found in (await page.send("DOM.querySelectorAll", asked))["nodeIds"]:
                    control = await cls._of(page, found, frame, what[1])
                    if what is not PICKER or await control.ask("open"):
                        return control
        except CommandError:
            pass  # the tree changed under our hands: there is none that stays
        finally:
            page.post("DOM.disable")
        return None

    @classmethod
    async def _of(cls, page: Page, node: int, frame: str, description: str) -> Control:
        told = await page.send("DOM.describeNode", {"nodeId": node})
        made = await page.send("Page.createIsolatedWorld", {"frameId": frame, "worldName": _WORLD})
        number = told["node"]["backendNodeId"]
        own = await page.send(
            "DOM.resolveNode", {"backendNodeId": number, "executionContextId": made["executionContextId"]}
        )
        main = await page.send("DOM.resolveNode", {"backendNodeId": number})
        return cls(page, number, own["object"]["objectId"], main["object"]["objectId"], description)

    async def ask(self, what: str, *args: Any) -> Any:
        """A function of control.js. Raises CommandError where the control's document is gone."""
        return await self._call(self._world, _SCRIPT, what, *args)

    async def describe(self) -> dict[str, Any] | None:
        """What is to be shown of it; None: nothing."""
        return await self.ask(self._description)

    async def place(self) -> dict[str, float] | None:
        """The box around it in the viewport, whatever frames and transforms it is in; None: it is not drawn."""
        try:
            quads = (await self._page.send("DOM.getContentQuads", {"backendNodeId": self.node}))["quads"]
        except CommandError:
            return None
        across, down = [x for quad in quads for x in quad[::2]], [y for quad in quads for y in quad[1::2]]
        if not quads:
            return None
        left, top = min(across), min(down)
        return {"x": left, "y": top, "w": max(across) - left, "h": max(down) - top}

    async def shut(self) -> None:
        """Close the browser's own picker. Escape goes to that one, as long as it is open; the page hears nothing."""
        try:
            async with asyncio.timeout(_CLOSE_S):
                while await self.ask("open"):
                    await self._key("rawKeyDown", "Escape")
                    if await self.ask("open"):  # some listen only after their first frame
                        await self._page.draw()
        except TimeoutError:
            raise EnvTimeout("a picker of the browser's does not close", where=self._page.url) from None

    async def pick(self, option: int) -> None:
        """Choose an option of a select: by a key from the one before it, so that the events are the browser's own."""
        if await self.ask("ready", option):
            await self._call(self._main, _UNHEARD, True)
            for kind in ("rawKeyDown", "keyUp"):
                await self._key(kind, "ArrowDown")
            await self._call(self._main, _UNHEARD, False)
        await self.ask("pick", option)

    async def _key(self, kind: str, name: str) -> None:
        key = KEYS[name]
        await self._page.send(
            "Input.dispatchKeyEvent",
            {"type": kind, "key": key.key, "code": key.code, "windowsVirtualKeyCode": key.number},
        )

    async def _call(self, on: str, function: str, *args: Any) -> Any:
        answer = await self._page.send(
            "Runtime.callFunctionOn",
            {
                "objectId": on,
                "functionDeclaration": function,
                "returnByValue": True,
                "arguments": [{"value": value} for value in args],
            },
        )
        if "exceptionDetails" in answer:
            told = answer["exceptionDetails"].get("exception", {}).get("description", "a script error")
            raise EnvError(f"a form control could not be read: {told}", where=self._page.url)
        return answer["result"].get("value")


def _roots(node: Mapping[str, Any], frame: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Documents and shadow trees below a node, each with the frame that it is in."""
    left = [(node, frame)]
    while left:
        one, frame = left.pop()
        if one["nodeName"] == "#document" or one.get("shadowRootType", "user-agent") != "user-agent":
            yield one, frame
        if "contentDocument" in one:
            left.append((one["contentDocument"], one["frameId"]))
        left += [(child, frame) for child in (*one.get("children", ()), *one.get("shadowRoots", ()))]
