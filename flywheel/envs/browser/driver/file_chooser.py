"""Open a list of the session's files for `<input type=file>`, drawn over the page.

A browser's own chooser would show the machine's disk. This one shows what the task's manifest gives (`files`) and what
the session has downloaded, and nothing else can be given: a name is looked up among those, never made into a path.
While it is open it takes the mouse and the keys, as a browser's does, and page time goes on.
"""

from __future__ import annotations

import contextlib
import io
import mimetypes
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, Point
from flywheel.envs.browser.driver.cdp import CdpCommandError
from flywheel.envs.browser.driver.page import BrowserPage

_MAX_FILES = 200  # files
_ASKED_S = 1.0  # for the browser to say which input wants a file
_ROW, _EDGE = 20, 6  # pixels
_INK, _PAPER, _BAR, _CHOSEN = "#202124", "#ffffff", "#e8eaed", "#c2dbff"
_PARTIAL_DOWNLOAD = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(\.\w+)?")  # a download, until it has come
_QUOTED = re.compile(r'"([^"]*)"')


class FileChooser:
    """Show a list of the session's files.

    width, height: the viewport in pixels. The rows of its list are at the same places for the same files.
    """

    def __init__(self, width: int, height: int) -> None:
        self._width, self._height = width, height
        self._asked: tuple[BrowserPage, Mapping[str, Any]] | None = (
            None  # by which page, and what the browser says of it
        )
        self._page: BrowserPage | None = None
        self._document = 0  # of the page, by its number
        self._input = 0  # the protocol's number of the node
        self._many = False
        self._files: dict[str, Path] = {}
        self._listed: list[str] = []  # those that the input accepts
        self._chosen: list[str] = []
        self._first = 0  # the row that is shown first
        self._typed = ""

    @property
    def open(self) -> bool:
        """Whether it is open: it ends with the document that asked."""
        return self._page is not None and not self._page.gone and self._page.arrivals == self._document

    def asked(self, page: BrowserPage, params: Mapping[str, Any]) -> None:
        """Hear that an input of a page wants a file, by the event `Page.fileChooserOpened`."""
        self._asked = (page, params)
        page.wake()

    async def appear(self, page: BrowserPage, folders: list[Path]) -> str:
        """Open it over a page that asked for a file; gives what there is to note.

        "" where nobody pressed anything: the browser refuses such a page its file, and says nothing.
        """
        with contextlib.suppress(TimeoutError):
            await page.until(lambda: self._asked is not None, _ASKED_S)
        asked, self._asked = self._asked, None
        return await self._show(*asked, folders) if asked is not None else ""

    async def _show(self, page: BrowserPage, params: Mapping[str, Any], folders: list[Path]) -> str:
        if "backendNodeId" not in params:
            return "a chooser of files without an input of the page: refused"
        self.close()
        self._page, self._document, self._input = page, page.arrivals, params["backendNodeId"]
        self._many = params["mode"] == "selectMultiple"
        self._files = list_session_files(folders)
        accept = await self._accepted(page)
        self._listed = [name for name in self._files if accepts_file(accept, name)]
        what = "files" if self._many else "a file"
        names = ", ".join(self._listed[:10]) + ("..." if len(self._listed) > 10 else "")
        if not self._listed:
            return "the page asks for a file, and the session has none that it takes: Escape closes the list"
        return f"the page asks for {what}: click one of the list ({names}), or type its name and a line end"

    def close(self) -> None:
        self._page, self._chosen, self._typed, self._first = None, [], "", 0

    async def do(self, action: Action) -> str:
        """Carry out an action on the list; "" or why nothing was done."""
        match action:
            case act.Click(point) | act.LeftDouble(point):
                return await self._click(point)
            case act.Scroll(_, "up" | "down" as way):
                step = self._rows if way == "down" else -self._rows
                self._first = max(min(self._first + step, len(self._listed) - self._rows), 0)
                return ""
            case act.Type(content):
                self._typed += content.rstrip("\n")
                return await self._submit() if content.endswith("\n") else ""
            case act.Hotkey(("enter",) | ("return",)):
                return await self._submit()
            case act.Hotkey(("esc",) | ("escape",)):
                page, number = self._page, self._input
                self.close()
                with contextlib.suppress(CdpCommandError):  # the node is gone
                    await _send_cancel_event(page, number)
                return ""
            case act.Hotkey(("backspace",)):
                self._typed = self._typed[:-1]
                return ""
            case act.Wait() | act.Finished() | act.CallUser() | act.Hover():
                return ""
        return "a list of files is open: choose one of them, or press Escape"

    # -- choosing -------------------------------------------------------------------------------------------------
    @property
    def _rows(self) -> int:
        return max((self._height - 2 * _EDGE) // _ROW - 2, 1)  # but for the title and the line of buttons

    async def _click(self, point: Point) -> str:
        if not (0 <= point.x < 1 and 0 <= point.y < 1):
            return "the point is outside the viewport"
        line = int((point.y * self._height - _EDGE) // _ROW)
        if line == self._rows + 1:  # the buttons: half of the line each
            return await self.do(act.Hotkey(("esc",))) if point.x >= 0.5 else await self._submit()
        row = line - 1 + self._first
        if not (1 <= line <= self._rows and row < len(self._listed)):
            return "there is no file"
        name = self._listed[row]
        if not self._many:
            return await self._give([name])
        self._chosen = [one for one in self._chosen if one != name] + [name] * (name not in self._chosen)
        return ""

    async def _submit(self) -> str:
        names = _QUOTED.findall(self._typed) or ([self._typed.strip()] if self._typed.strip() else self._chosen)
        self._typed = ""
        if not names:
            return "no file is chosen"
        if missing := [name for name in names if name not in self._files]:
            return f"the session has no file {missing[0][:80]!r}"
        if len(names) > 1 and not self._many:
            return "the page asks for one file"
        return await self._give(names)

    async def _give(self, names: list[str]) -> str:
        page, files = self._page, [str(self._files[name]) for name in names]
        self.close()
        try:
            await page.send("DOM.setFileInputFiles", {"files": files, "backendNodeId": self._input})
        except CdpCommandError:  # the node is gone
            return "the page wants no file any more"
        return ""

    async def _accepted(self, page: BrowserPage) -> str:
        node = await page.send("DOM.resolveNode", {"backendNodeId": self._input})
        found = {"objectId": node["object"]["objectId"], "functionDeclaration": "function () { return this.accept }"}
        return (await page.send("Runtime.callFunctionOn", found))["result"].get("value") or ""

    # -- drawing --------------------------------------------------------------------------------------------------
    def drawn(self, screen: bytes) -> bytes:
        """Draw the list over the screen (PNG)."""
        picture = Image.open(io.BytesIO(screen)).convert("RGB")
        pen, font = ImageDraw.Draw(picture), ImageFont.load_default(13)
        left, right = _EDGE, self._width - _EDGE

        def line(number: int, text: str, ground: str) -> None:
            top = _EDGE + number * _ROW
            pen.rectangle((left, top, right - 1, top + _ROW - 1), ground)
            pen.text((left + 6, top + 2), _fit_text(text, font, right - left - 12), _INK, font)

        line(0, f"File name: {self._typed}" if self._typed else "Open files" if self._many else "Open file", _BAR)
        for number in range(self._rows):
            row = self._first + number
            name = self._listed[row] if row < len(self._listed) else ""
            line(number + 1, name, _CHOSEN if name in self._chosen else _PAPER)
        line(self._rows + 1, "Open", _BAR)
        pen.text((self._width / 2 + 6, _EDGE + (self._rows + 1) * _ROW + 2), "Cancel", _INK, font)
        pen.rectangle((left, _EDGE, right - 1, _EDGE + (self._rows + 2) * _ROW - 1), outline=_INK)
        kept = io.BytesIO()
        picture.save(kept, "PNG", compress_level=1)
        return kept.getvalue()


def list_session_files(folders: list[Path]) -> dict[str, Path]:
    """List the files below some folders by their names. No link is followed."""
    found: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            real = path.resolve()
            inside = real.is_relative_to(folder.resolve()) and not path.is_symlink()
            there = real.is_file() and not _PARTIAL_DOWNLOAD.fullmatch(path.name)
            if inside and there and len(found) < _MAX_FILES:
                found.setdefault(path.relative_to(folder).as_posix(), real)
    return found


def accepts_file(accept: str, name: str) -> bool:
    """Tell whether an input with this `accept` lists a file: by its suffix, or by the type of that suffix."""
    kinds = [kind.strip().lower() for kind in accept.split(",") if kind.strip()]
    guessed = mimetypes.guess_type(name)[0] or ""
    return not kinds or any(
        name.lower().endswith(kind) if kind.startswith(".") else guessed.startswith(kind.removesuffix("*"))
        for kind in kinds
    )


async def _send_cancel_event(page: BrowserPage, number: int) -> None:
    """The input hears of it, as it does of a browser's own chooser."""
    node = await page.send("DOM.resolveNode", {"backendNodeId": number})
    tell = "function () { this.dispatchEvent(new Event('cancel', {bubbles: true})) }"
    await page.send("Runtime.callFunctionOn", {"objectId": node["object"]["objectId"], "functionDeclaration": tell})


def _fit_text(text: str, font: Any, width: float) -> str:
    while text and font.getlength(text) > width:
        text = text[:-1]
    return text
