"""Dialogs of a session's pages: alert, confirm, prompt, and the question before a page is left.

The script that asks stands still in its process until it is answered, and all that was under way in the page with it:
it can neither be drawn nor read, and its time stands still. So what a step was doing is held up (`through`), the dialog
is shown over the last screen (`cover.py`), and the step that answers it goes on with what was held up.

A dialog that opens while its page is being drawn would hold up every page of the browser, which draws one at a time.
So it is answered at once: an alert is shown all the same, since closing it gives the page nothing; others are cancelled
and noted.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from flywheel.agent.actions import NAMES, Action, CallUser, Finished, Navigate, NavigateBack, Wait
from flywheel.errors import EnvError
from flywheel.sandbox.cover import Cover
from flywheel.sandbox.inputs import InputDriver
from flywheel.sandbox.notes import Notes
from flywheel.sandbox.page import Page, unheard

_HTML = (Path(__file__).parent / "dialog.html").read_text(encoding="utf-8")
_MAX_MESSAGE, _MAX_DEFAULT = 10_000, 2000  # characters that are shown
_MAX_TOLD = 100  # characters of a message in a note
_LEAVE = "Changes you made may not be saved."
_MAX_CLOSED = 100  # at the end of an episode
T = TypeVar("T")
_inside: ContextVar[bool] = ContextVar("inside", default=False)  # this task is what a dialog would hold up


class Session(Protocol):
    """What dialogs want of their tab."""

    hands: InputDriver
    clipboard: str
    screen: bytes  # the last one
    notes: Notes

    @property
    def size(self) -> tuple[int, int]: ...


@dataclass(eq=False)
class Dialog:
    """page: whose script asks. answered: the script goes on already, and the dialog is only shown."""

    page: Page
    kind: str  # alert, confirm, prompt, beforeunload
    message: str
    default: str
    answered: bool

    def __str__(self) -> str:
        return f'{self.kind} "{self.message[:_MAX_TOLD]}"' if self.message else self.kind

    @property
    def question(self) -> str:
        """The call that fills in `dialog.html`."""
        asked = (self.kind, "This page says", self.message[:_MAX_MESSAGE], self.default[:_MAX_DEFAULT], "OK")
        if self.kind == "beforeunload":
            asked = (self.kind, "Leave site?", _LEAVE, "", "Leave")
        return f"ask({', '.join(map(json.dumps, asked))})"


class Dialogs:
    """Of one tab. `open`: those that wait for an answer, the first one is shown."""

    def __init__(self, session: Session, cover: Cover) -> None:
        self._session, self._cover = session, cover
        self.open: list[Dialog] = []
        self._blocked: asyncio.Future[None] | None = None  # done as soon as a script waits for an answer
        self._held: asyncio.Task[Any] | None = None  # what the dialogs hold up
        self._shown: Dialog | None = None
        self._seen = False  # the policy has had a look at it

    @property
    def blocking(self) -> bool:
        """A script waits, and its page with it."""
        return any(not dialog.answered for dialog in self.open)

    # -- what pages tell ------------------------------------------------------------------------------------------
    def opens(self, page: Page, params: Mapping[str, Any], drawing: bool) -> None:
        """drawing: the page is being drawn."""
        dialog = Dialog(page, params["type"], params.get("message", ""), params.get("defaultPrompt", ""), drawing)
        if drawing:
            page.post("Page.handleJavaScriptDialog", {"accept": dialog.kind == "alert"})
            if dialog.kind != "alert" or self.open:
                how = "closed" if dialog.kind == "alert" else "cancelled"
                self._session.notes.add(f"{dialog}: {how} unseen, since it opened while the page was being drawn")
                return
        self.open.append(dialog)
        if self.blocking and self._blocked is not None and not self._blocked.done():
            self._blocked.set_result(None)

    def closes(self, page: Page) -> None:
        """The script of a page goes on."""
        for dialog in self.open:
            if dialog.page is page and not dialog.answered:
                self.open.remove(dialog)
                return

    def forget(self, page: Page | None = None) -> None:
        """A page is gone, or all are: nothing waits any more."""
        self.open = [dialog for dialog in self.open if page is not None and dialog.page is not page]
        if page is None:
            held, self._held, self._shown = self._held, None, None
            if held is not None:
                held.cancel()
            self._cover.close()

    # -- what is held up ------------------------------------------------------------------------------------------
    async def through(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Finish what was held up, then do some work; None where a dialog opens, which then holds it up.

        A part of such work is held up with it."""
        if _inside.get():
            return await work
        held, self._blocked = self._held, asyncio.get_running_loop().create_future()
        if self.blocking:
            self._blocked.set_result(None)
        self._held = task = asyncio.ensure_future(_after(held, work))
        try:
            await asyncio.wait([task, self._blocked], return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            task.cancel()
            raise
        if not task.done():
            task.add_done_callback(unheard)
            return None
        self._held = None
        return task.result()

    # -- what the policy sees and does ----------------------------------------------------------------------------
    async def look(self) -> dict[str, Any]:
        """What is seen of the first one, as of a page."""
        dialog = self.open[0]
        await self._show()
        seen = await self._cover.page.observe(0)
        return {"elements": seen["elements"], "dialog": {"kind": dialog.kind, "message": dialog.message[:_MAX_MESSAGE]}}

    async def shot(self) -> bytes:
        await self._show()
        self._seen = True
        return await self._cover.shot()

    async def do(self, action: Action) -> str:
        """Carry out an action on the first one; "" or why nothing was done."""
        dialog = self.open[0]
        if isinstance(action, Wait | Finished | CallUser):
            return ""
        if self._shown is not dialog or not self._seen:
            return f"not done, since a dialog had opened: {dialog}"
        waits = f"a dialog waits for an answer: {dialog}"
        if isinstance(action, Navigate | NavigateBack):
            return f"{NAMES[type(action)]} was not done: {waits}"
        page = self._cover.page
        before = await page.evaluate("likeness()")
        note = await self._cover.do(action, self._session)
        answer = await page.evaluate("answer")
        if answer is not None:
            await self._answer(dialog, answer)
        elif not note and before == await page.evaluate("likeness()"):
            note = waits
        return note

    async def close(self) -> None:
        """Close all, as at the end of an episode: an alert is closed, the rest is cancelled."""
        closed = 0
        while self.open:
            dialog = self.open[0]
            if closed == _MAX_CLOSED:
                raise EnvError(f"the page opens dialogs without end: {dialog}", where="the end of the episode")
            closed += 1
            self._session.notes.add(f"{dialog}: {'closed' if dialog.kind == 'alert' else 'cancelled'} at the end")
            await self._answer(dialog, {"accept": dialog.kind == "alert"})

    async def _show(self) -> None:
        dialog = self.open[0]
        if self._shown is not dialog:
            session = self._session
            await self._cover.show(_HTML, session.screen, session.size, dialog.question)
            self._shown, self._seen = dialog, False

    async def _answer(self, dialog: Dialog, answer: Mapping[str, Any]) -> None:
        """The script goes on, until what was held up is done or asks again."""
        if not dialog.answered:
            await dialog.page.send("Page.handleJavaScriptDialog", answer)
        if dialog.kind == "beforeunload" and not answer["accept"]:
            dialog.page.stay()
        if dialog in self.open:
            self.open.remove(dialog)
        await self.through(_nothing())


async def _after(held: asyncio.Task[Any] | None, work: Coroutine[Any, Any, T]) -> T:
    _inside.set(True)
    try:
        if held is not None:
            await held
    except BaseException:
        work.close()
        raise
    return await work


async def _nothing() -> None:
    """What is held up is all there is to do."""
