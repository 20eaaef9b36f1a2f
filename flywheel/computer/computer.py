"""A computer: one machine whose home is shared by a shell, Python and files, and by a desktop where it has a screen."""

from __future__ import annotations

import asyncio
import base64
import binascii
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flywheel.agent.actions import NAMES, Action, CallUser, Finished, Hotkey, ToolCall, Type, Wait
from flywheel.computer import browser, functions
from flywheel.computer.desktop import Desktop
from flywheel.computer.desktop_acts import Cannot
from flywheel.computer.functions import Functions
from flywheel.computer.given import Given
from flywheel.computer.machine import GuestRefused, Machine
from flywheel.computer.osworld.steps import carry_out
from flywheel.computer.settings import ComputerSettings, TerminalSettings
from flywheel.computer.site import PORT, Site
from flywheel.computer.tools.named import READABLE
from flywheel.errors import EnvError

if TYPE_CHECKING:
    from flywheel.computer.tools.servers import Tools

_SAID = 300  # characters of a set-up command, and of what it printed, that an error tells


@dataclass(frozen=True)
class Done:
    """What came of an action. note: why it did nothing. result: what a function returned. screenshot: a PNG of the
    screen at rest; None where there is none, or where the task allows functions alone, whose answers are not to be read
    from it. text: what the terminal shows, where keys go there."""

    note: str
    result: str
    screenshot: bytes | None
    text: str


class Computer:
    """Made by `Computer.start`. desktop: None where it has no screen. functions: of its machine. text: what was
    to be read last, its tools included."""

    def __init__(self, machine: Machine, desktop: Desktop | None, chosen: TerminalSettings) -> None:
        self.machine, self.desktop, self._chosen = machine, desktop, chosen
        self.functions = Functions(machine, chosen.run_s, chosen.result_bytes)
        self._given, self._wait_s = Given(), chosen.wait_ms / 1000
        self._tools: Tools | None = None
        self.site: Site | None = None
        self.text = ""

    @classmethod
    async def start(cls, chosen: TerminalSettings) -> Computer:
        """A fresh one; with a screen where the settings have one. Raises EnvError where it does not start."""
        if not isinstance(chosen, ComputerSettings):
            made = cls(await Machine.start(chosen.machine, READABLE), None, chosen)
        else:
            desktop = await Desktop.start(chosen.width, chosen.height, chosen.machine, READABLE)
            desktop.after_ms, desktop.within_ms, desktop.wait_ms = chosen.after_ms, chosen.within_ms, chosen.wait_ms
            made = cls(desktop.machine, desktop, chosen)
        return made

    async def begin(self, given: Given, limit_s: float) -> Done:
        """Its files, its set-up commands, its applications; what is seen then. Raises EnvError where one fails."""
        await self.serve(given)
        for path, text in given.files.items():
            await self.machine.put(path, text.encode("utf-8", "replace"))
        for path, text in given.binary.items():
            await self.machine.put(path, _binary(path, text))
        if given.osworld is not None:
            await carry_out(self, given.osworld.steps)
        for command in given.setup:
            await self._set_up(command, limit_s)
        if given.setup:  # what they printed is not for the agent
            await self._set_up(r"printf '\033[H\033[2J'", limit_s)
        return await self.opened()

    async def serve(self, given: Given) -> None:
        """Its task's site, before anything else."""
        self._given = given
        if given.site:
            self.site = Site(given.site)
            await self.machine.serve(PORT, self.site.start)

    async def opened(self) -> Done:
        """Its applications, its tools; what is seen then. Raises EnvError where one does not start."""
        given = self._given
        if self.desktop is not None:
            await self.desktop.launch(
                [browser.command(*rest) if app == browser.APP else [app, *rest] for app, *rest in given.apps]
            )
        if self._sdk and given.tools:
            # Here, as the SDK takes a second to load, and few tasks have tools.
            from flywheel.computer.tools.servers import Tools

            self._tools = await Tools.start(self.machine, given.tools, self._chosen)
        return await self.seen()

    async def do(self, action: Action) -> Done:
        """Carry out an action, if the task allows it.

        Raises EnvError where the machine is gone, EnvTimeout where it does not answer.
        """
        note, result, screenshot = "", "", None
        if isinstance(action, functions.TYPES):
            if self._sdk:
                result = await self.functions.call(action)
            else:
                note = "this task is to be done on the screen, without functions"
        elif isinstance(action, ToolCall) and self._tools is not None:
            result = await self._tools.call(action)
        elif isinstance(action, Wait) and self._sdk and self.functions.running:
            result = await self.functions.wait()
        elif self._gui:
            note, screenshot = await self.desktop.do(action)
        else:
            note, result = await self._typed(action)
        return await self.seen(note, result, screenshot)

    async def seen(self, note: str = "", result: str = "", screenshot: bytes | None = None) -> Done:
        """What came of an action, with what is seen then. screenshot: where it was taken already."""
        if self._gui and screenshot is None:
            screenshot = await self.desktop.screenshot()
        tools = self._tools.told if self._tools is not None else ""
        shown = "" if self._gui else await self.functions.look()
        self.text = "\n\n".join(filter(None, (tools, shown)))
        return Done(note, result, screenshot, self.text)

    @property
    def tools(self) -> bool:
        """Its task has tools."""
        return self._tools is not None

    async def close(self) -> None:
        try:
            if self._tools is not None:
                await self._tools.close()
        finally:
            await self.machine.close()
            if self.site is not None:
                await self.site.close()

    # -- inside -------------------------------------------------------------------------------------------------------
    @property
    def _gui(self) -> bool:
        return self.desktop is not None and self._given.allowed != "sdk"

    @property
    def _sdk(self) -> bool:
        return self._given.allowed != "gui"

    async def _typed(self, action: Action) -> tuple[str, str]:
        """Of an action without a screen: a note where it did nothing, and what a program answered to keys."""
        if isinstance(action, Wait):
            await asyncio.sleep(self._wait_s)
        if isinstance(action, Wait | Finished | CallUser):
            return "", ""
        if not isinstance(action, Hotkey | Type) or not self._sdk:
            name = NAMES[type(action)]
            return f"a terminal has no {name}" if self.desktop is None else f"no {name}: no screen in this task", ""
        try:
            return "", await self.functions.keys(action)
        except (Cannot, GuestRefused) as refused:
            return getattr(refused, "what", str(refused)), ""

    async def _set_up(self, command: str, limit_s: float) -> None:
        """In the agent's shell, in the home."""
        asked = {"command": f"cd\n{command}", "wait_s": limit_s, "limit": _SAID}
        told = await self.machine.call("/shell/run", asked, limit_s)
        if told["running"] or told["status"] != 0:
            why = "does not end" if told["running"] else f"exit status {told['status']}"
            said = " ".join(told["text"].split())[-_SAID:]
            raise EnvError(f"set-up failed ({why}): {command[:_SAID]!r}: {said}", where="params.setup")


def _binary(path: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise EnvError(f"not base64: {error}", where=f"params.binary, {path}") from None
