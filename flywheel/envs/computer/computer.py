"""Combine an isolated machine's shell, Python, files, desktop, tools and web site to the computer that a task uses."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flywheel.agent import actions as act
from flywheel.agent.actions import Action
from flywheel.agent.history import truncate_middle
from flywheel.envs.computer import desktop
from flywheel.envs.computer.desktop import Desktop, UnsupportedAction
from flywheel.envs.computer.machine import ComputerSettings, Machine, MachineRefused, TerminalSettings
from flywheel.envs.computer.osworld.runner import run_osworld_steps
from flywheel.envs.computer.task_spec import TOOL_READABLE_FOLDERS, ComputerTaskSpec
from flywheel.utils.errors import EnvError

if TYPE_CHECKING:
    from aiohttp import web

    from flywheel.envs.computer.mcp_tools import McpTools


TASK_SITE_PORT = 8000
_MAX_FORM_BYTES = 2**20  # bytes of one request
_MAX_FORMS = 100
_CONTENT_TYPES = {f".{name}": f"text/{name}" for name in ("html", "csv", "css")}
_CONTENT_TYPES |= {".js": "text/javascript", ".json": "application/json"}


class TaskSite:
    """Serve a task's web site on the host, where no program of the isolated machine can change what it received.

    pages: texts by path; the path / is `index.html`. received: forms posted to /send, each with its texts by field
    name.
    """

    def __init__(self, pages: Mapping[str, str]) -> None:
        self._pages = pages
        self.received: list[dict[str, str]] = []

    async def start(self, socket: Path) -> None:
        """Start serving on the unix socket at the path `socket`."""
        from aiohttp import web  # the import takes a quarter of a second, and most tasks have no site

        application = web.Application(client_max_size=_MAX_FORM_BYTES)
        application.add_routes([web.post("/send", self._send), web.get("/{path:.*}", self._page)])
        self._runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.UnixSite(self._runner, str(socket)).start()

    async def close(self) -> None:
        """Stop serving."""
        await self._runner.cleanup()

    async def _page(self, request: web.Request) -> web.Response:
        from aiohttp import web

        path = request.match_info["path"] or "index.html"
        if path not in self._pages:
            return web.Response(status=404, text="There is no such page.")
        kind = _CONTENT_TYPES.get(Path(path).suffix, "text/plain")
        return web.Response(text=self._pages[path], content_type=kind, headers={"Cache-Control": "no-store"})

    async def _send(self, request: web.Request) -> web.Response:
        from aiohttp import web

        fields = {}
        for name, value in (await request.post()).items():
            fields[name] = value if isinstance(value, str) else value.file.read().decode("utf-8", "replace")
        if len(self.received) < _MAX_FORMS:
            self.received.append(fields)
        return web.Response(text=_THANKS_PAGE, content_type="text/html")


_THANKS_PAGE = "<!doctype html><title>Thank you</title><h1>Thank you</h1><p>It has arrived.</p>"


class WarmPool:
    """Start computers before they are needed: `async with WarmPool(start, count) as warm:`.

    start: starts one computer. count: computers that wait at once; 0: each is started when it is taken. The end of the
    block closes the computers that were not taken.
    """

    def __init__(self, start: Callable[[], Awaitable[Computer]], count: int) -> None:
        self._start, self._count = start, count
        self._waiting: deque[asyncio.Task[Computer]] = deque()

    async def __aenter__(self) -> WarmPool:
        self.fill()
        return self

    async def __aexit__(self, *_: object) -> None:
        waiting, self._count = tuple(self._waiting), 0
        self._waiting.clear()
        for made in await asyncio.gather(*waiting, return_exceptions=True):
            if not isinstance(made, BaseException):
                await made.close()

    async def take(self) -> Computer:
        """Take a waiting computer, or start one where none waits; the caller closes it.

        `fill` replaces it later: to start another one at once would slow down the first steps in this one. Raises
        EnvError where it did not start, EnvTimeout where it was not ready in time.
        """
        if not self._waiting:
            return await self._start()
        taken = self._waiting.popleft()
        try:
            return await taken
        except asyncio.CancelledError:  # the caller has timed out: nobody else would close the computer
            taken.add_done_callback(_close_when_started)
            raise

    def fill(self) -> None:
        """Start computers in the background until `count` of them wait."""
        while len(self._waiting) < self._count:
            self._waiting.append(asyncio.ensure_future(self._start()))


def _close_when_started(taken: asyncio.Task[Computer]) -> None:
    if not taken.cancelled() and taken.exception() is None:
        _closing.add(closing := asyncio.ensure_future(taken.result().close()))
        closing.add_done_callback(_closing.discard)


_closing: set[asyncio.Future] = set()  # the event loop holds its tasks by weak references only


# Keys as the input that an xterm sends for them.

_PLAIN_KEYS = {"Enter": "\r", "Tab": "\t", "Escape": "\x1b", "Backspace": "\x7f", " ": " "}
# CSI sequences: those that end in a letter, and those with a number before `~`.
_LETTER_SEQUENCES = {"ArrowUp": "A", "ArrowDown": "B", "ArrowRight": "C", "ArrowLeft": "D", "End": "F", "Home": "H"}
_LETTER_SEQUENCES |= {"F1": "P", "F2": "Q", "F3": "R", "F4": "S"}
_NUMBER_SEQUENCES = {"Insert": 2, "Delete": 3, "PageUp": 5, "PageDown": 6, "F5": 15, "F6": 17, "F7": 18, "F8": 19}
_NUMBER_SEQUENCES |= {"F9": 20, "F10": 21, "F11": 23, "F12": 24}
_MODIFIER_BITS = {"Shift": 1, "Alt": 2, "Control": 4}
_CONTROL_CHARACTERS = "@abcdefghijklmnopqrstuvwxyz[\\]^_"


def encode_terminal_keys(keys: Sequence[str]) -> str:
    """Encode keys pressed together as an xterm sends them. Raises UnsupportedAction for keys that it lacks."""
    held, pressed = 0, []
    for name in keys:
        key = desktop.find_key_name(name)
        held |= _MODIFIER_BITS.get(key, 0)
        if key not in _MODIFIER_BITS:
            pressed.append(key)
    if len(pressed) != 1:
        raise UnsupportedAction("a terminal takes one key at a time, with ctrl, alt or shift")
    key = pressed[0]
    if key in _LETTER_SEQUENCES:
        return f"\x1b[1;{held + 1}{_LETTER_SEQUENCES[key]}" if held else f"\x1bO{_LETTER_SEQUENCES[key]}"
    if key in _NUMBER_SEQUENCES:
        return f"\x1b[{_NUMBER_SEQUENCES[key]};{held + 1}~" if held else f"\x1b[{_NUMBER_SEQUENCES[key]}~"
    if key == "Tab" and held == _MODIFIER_BITS["Shift"]:
        return "\x1b[Z"
    return ("\x1b" if held & _MODIFIER_BITS["Alt"] else "") + _encode_character(key, held)


def encode_terminal_text(text: str) -> str:
    """Encode a text as terminal input: each line end becomes the key Enter."""
    return text.replace("\r\n", "\n").replace("\n", "\r")


def _encode_character(key: str, held: int) -> str:
    character = _PLAIN_KEYS.get(key, key)
    if len(character) != 1:
        raise UnsupportedAction(f"a terminal has no key {key}")
    if held & _MODIFIER_BITS["Shift"] and character.isalpha():
        character = character.upper()
    if held & _MODIFIER_BITS["Control"]:
        at = _CONTROL_CHARACTERS.find("@" if character == " " else character.lower())
        if at < 0:
            raise UnsupportedAction(f"a terminal has no ctrl with {key}")
        return chr(at)
    return character


SDK_ACTION_TYPES = (act.Terminal, act.RunPython, act.ReadFile, act.WriteFile, act.ListFiles)
_STOP_S = 3.0  # seconds for interrupted code to end
_CONTROL_COMMAND = re.compile(r"C-([a-z@\[\\\]^_])")  # such a command, while a program runs, is Ctrl with the key


class SdkFunctions:
    """Call the functions that an agent has in place of a screen: shell, Python and files of one machine.

    run_s: seconds to wait for a command or code. result_bytes: limit of a result, whose middle is left out beyond it.
    running: whether a command is still running in the shell.
    """

    def __init__(self, machine: Machine, run_s: float, result_bytes: int) -> None:
        self._machine, self._run_s, self._limit = machine, run_s, result_bytes
        self.running = self._asks = False

    async def call(self, action: Action) -> str:
        """Carry out an action of SDK_ACTION_TYPES and return its result, or why it failed, as text for the agent.

        Raises EnvError where the machine is gone, EnvTimeout where it does not answer in time.
        """
        try:
            match action:
                case act.Terminal(command):
                    text = await self._command(command)
                case act.RunPython(code):
                    text = await self._python(code)
                case act.ReadFile(path):
                    text = (await self._file("GET", "read", path, limit=self._limit)).decode("utf-8", "replace")
                case act.WriteFile(path, content):
                    written = await self._file("PUT", "write", path, content=content.encode("utf-8", "replace"))
                    text = f"[{json.loads(written)['bytes']} bytes written]"
                case act.ListFiles(path):
                    text = _format_listing(json.loads(await self._file("GET", "list", path)))
        except MachineRefused as refused:
            text = f"error: {refused.what}"
        return truncate_middle(text, self._limit) or "[nothing]"

    async def keys(self, action: act.Hotkey | act.Type) -> str:
        """Type keys or a text into the program that runs in the shell, and return what it prints then.

        Raises MachineRefused where no program runs, UnsupportedAction for keys that a terminal lacks, EnvError and
        EnvTimeout as `call`.
        """
        typed = isinstance(action, act.Type)
        keys = encode_terminal_text(action.content) if typed else encode_terminal_keys(action.keys)
        return await self._shell("keys", keys=keys.encode("utf-8", "replace").decode())

    async def wait(self) -> str:
        """Wait up to `run_s` seconds for the running command, and return its new output.

        Raises EnvError and EnvTimeout as `call`.
        """
        return await self._shell("read")

    async def look(self) -> str:
        """Return the text that the terminal shows. Raises EnvError and EnvTimeout as `call`."""
        return json.loads(await self._machine.request("GET", "/shell/screen"))["screen"]

    # -- inside -------------------------------------------------------------------------------------------------------
    async def _command(self, command: str) -> str:
        if self.running and (control := _CONTROL_COMMAND.fullmatch(command)):
            return await self._shell("keys", keys=chr(ord(control[1]) & 31))
        if self._asks:  # as in any terminal, the line goes to the program that waits for input
            keys = encode_terminal_text(f"{command}\n")
            return await self._shell("keys", keys=keys.encode("utf-8", "replace").decode())
        return await self._shell("run", command=command, limit=self._limit)

    async def _shell(self, what: str, **given: object) -> str:
        outcome = await self._machine.call(f"/shell/{what}", {"wait_s": self._run_s, **given}, self._run_s)
        self.running, self._asks = outcome["running"], outcome["asks"]
        return truncate_middle(outcome["text"], self._limit) + self._format_status(outcome)

    def _format_status(self, told: dict) -> str:
        """Build a last line with the command's state (waits, runs, exit status); "" where its output says enough."""
        if told["asks"]:
            note = "it waits for keys, and takes a command as a line"
        elif told["running"]:
            note = f"still running after {self._run_s:g} s: wait for it, or end it by C-c"
        elif told["status"] is None:
            note = "the shell has ended; the next command begins a new one"
        elif told["status"] or not told["text"].strip():
            note = f"exit status {told['status']}"
        else:
            return ""
        return ("\n" if told["text"] and not told["text"].endswith("\n") else "") + f"[{note}]"

    async def _python(self, code: str) -> str:
        given = {"code": code, "wait_s": self._run_s, "limit": self._limit}
        outcome = await self._machine.call("/python/run", given, self._run_s + _STOP_S)
        if outcome["lost"]:
            return outcome["text"] + "[Python has ended: what it had computed is lost]"
        if outcome["stopped"]:
            return outcome["text"] + f"[interrupted after {self._run_s:g} s]"
        return outcome["text"]

    async def _file(self, method: str, what: str, path: str, content: bytes | None = None, **query: int) -> bytes:
        path = path.encode("utf-8", "replace").decode()
        return await self._machine.request(method, f"/files/{what}", params={"path": path, **query}, content=content)


def _format_listing(told: dict) -> str:
    lines = []
    for entry in told["entries"]:
        about = {"folder": "/", "link": " (link)", "other": " (no file)"}.get(entry["kind"], f" {entry['bytes']} bytes")
        lines.append(entry["name"].encode("utf-8", "replace").decode() + about)
    if told["more"]:
        lines.append(f"[{told['more']} more]")
    return "\n".join(lines) or "[empty]"


_MAX_ERROR_CHARACTERS = 300  # of a set-up command, and of its output, in an error message


@dataclass(frozen=True)
class ActionOutcome:
    """Hold what a computer shows and returns after an action.

    note: why it did nothing; "": it did. result: what a function returned; "": nothing. screenshot: a PNG of the screen
    at rest; None without a screen, or where the task allows functions alone. text: the tools, and without a screenshot
    what the terminal shows.
    """

    note: str
    result: str
    screenshot: bytes | None
    text: str


class Computer:
    """Control one computer, made by `Computer.start`: a machine whose shell, Python and desktop share one home.

    desktop: None for the back-end `terminal`. tools: the task's MCP servers, or None. site: the task's web site, or
    None. text: the text of the last outcome.
    """

    def __init__(self, machine: Machine, desktop: Desktop | None, chosen: TerminalSettings) -> None:
        self.machine, self.desktop, self._chosen = machine, desktop, chosen
        self.functions = SdkFunctions(machine, chosen.run_s, chosen.result_bytes)
        self._given, self._wait_s = ComputerTaskSpec(), chosen.wait_ms / 1000
        self.tools: McpTools | None = None
        self.site: TaskSite | None = None
        self.text = ""

    @classmethod
    async def start(cls, chosen: TerminalSettings) -> Computer:
        """Start a fresh computer, with a desktop where `chosen` are ComputerSettings.

        Raises EnvError where it does not start, EnvTimeout where it is not ready in time.
        """
        if not isinstance(chosen, ComputerSettings):
            return cls(await Machine.start(chosen.machine, TOOL_READABLE_FOLDERS), None, chosen)
        desktop = await Desktop.start(chosen.width, chosen.height, chosen.machine, TOOL_READABLE_FOLDERS)
        desktop.after_ms, desktop.within_ms, desktop.wait_ms = chosen.after_ms, chosen.within_ms, chosen.wait_ms
        return cls(desktop.machine, desktop, chosen)

    async def begin(self, given: ComputerTaskSpec, limit_s: float) -> ActionOutcome:
        """Set up a task: its site, files, set-up commands, applications and tools; returns the first outcome.

        given: the task. limit_s: seconds for each set-up command. Raises EnvError where one fails, `params.binary` is
        not base64, the machine is gone or refuses a file, and as `open_task`; EnvTimeout where it does not answer;
        OSError as `serve`.
        """
        await self.serve(given)
        for path, text in given.files.items():
            await self.machine.put(path, text.encode("utf-8", "replace"))
        for path, text in given.binary.items():
            await self.machine.put(path, _decode_base64(path, text))
        if given.osworld is not None:
            await run_osworld_steps(self, given.osworld.steps)
        for command in given.setup:
            await self._set_up(command, limit_s)
        if given.setup:  # clears the screen: the agent is not to see what they printed
            await self._set_up(r"printf '\033[H\033[2J'", limit_s)
        return await self.open_task()

    async def serve(self, given: ComputerTaskSpec) -> None:
        """Make `given` the computer's task, and start its web site if it has one.

        Raises EnvError where the machine refuses the site's port or is gone, OSError where the site does not start,
        EnvTimeout where the machine does not answer.
        """
        self._given = given
        if given.site:
            self.site = TaskSite(given.site)
            await self.machine.serve(TASK_SITE_PORT, self.site.start)

    async def open_task(self) -> ActionOutcome:
        """Start the applications and tools of the task (`serve`), and return what is shown then.

        Raises EnvError where an application fails or the machine is gone, EnvTimeout where it does not answer.
        """
        given = self._given
        if self.desktop is not None:
            browser, begin = desktop.BROWSER_APP, desktop.build_browser_command
            await self.desktop.launch([begin(*rest) if app == browser else [app, *rest] for app, *rest in given.apps])
        if self._sdk and given.tools:
            # Imported here: MCP's SDK takes a second to load, and few tasks have tools.
            from flywheel.envs.computer.mcp_tools import McpTools

            self.tools = await McpTools.start(self.machine, given.tools, self._chosen)
        return await self.build_outcome()

    async def do(self, action: Action) -> ActionOutcome:
        """Carry out an action, or note in the outcome that the task does not allow it.

        Raises EnvError where the machine is gone, EnvTimeout where it does not answer in time.
        """
        note, result, screenshot = "", "", None
        if isinstance(action, SDK_ACTION_TYPES):
            if self._sdk:
                result = await self.functions.call(action)
            else:
                note = "this task is to be done on the screen, without functions"
        elif isinstance(action, act.ToolCall) and self.tools is not None:
            result = await self.tools.call(action)
        elif isinstance(action, act.Wait) and self._sdk and self.functions.running:
            result = await self.functions.wait()
        elif self._gui:
            note, screenshot = await self.desktop.do(action)
        else:
            note, result = await self._do_in_terminal(action)
        return await self.build_outcome(note, result, screenshot)

    async def build_outcome(self, note: str = "", result: str = "", screenshot: bytes | None = None) -> ActionOutcome:
        """Build the outcome of an action from what the computer shows.

        note, result: of the action, as in `ActionOutcome`. screenshot: a PNG that was taken already; None takes one
        where the task has a screen. Raises EnvError where the machine is gone, EnvTimeout where it does not answer.
        """
        if self._gui and screenshot is None:
            screenshot = await self.desktop.screenshot()
        tools = self.tools.told if self.tools is not None else ""
        shown = "" if self._gui else await self.functions.look()
        self.text = "\n\n".join(filter(None, (tools, shown)))
        return ActionOutcome(note, result, screenshot, self.text)

    async def close(self) -> None:
        """End tools, machine and web site; may be called twice."""
        try:
            if self.tools is not None:
                await self.tools.close()
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

    async def _do_in_terminal(self, action: Action) -> tuple[str, str]:
        """Carry out an action in the terminal; returns a note where it did nothing, and what the program printed."""
        if isinstance(action, act.Wait):
            await asyncio.sleep(self._wait_s)
        if isinstance(action, act.Wait | act.Finished | act.CallUser):
            return "", ""
        if not isinstance(action, act.Hotkey | act.Type) or not self._sdk:
            name = act.ACTION_NAMES[type(action)]
            return f"a terminal has no {name}" if self.desktop is None else f"no {name}: no screen in this task", ""
        try:
            return "", await self.functions.keys(action)
        except (UnsupportedAction, MachineRefused) as refused:
            return getattr(refused, "what", str(refused)), ""

    async def _set_up(self, command: str, limit_s: float) -> None:
        """Run a set-up command in the agent's shell, in the home. Raises EnvError where it fails or is late."""
        asked = {"command": f"cd\n{command}", "wait_s": limit_s, "limit": _MAX_ERROR_CHARACTERS}
        outcome = await self.machine.call("/shell/run", asked, limit_s)
        if outcome["running"] or outcome["status"] != 0:
            why = "does not end" if outcome["running"] else f"exit status {outcome['status']}"
            output = " ".join(outcome["text"].split())[-_MAX_ERROR_CHARACTERS:]
            raise EnvError(
                f"set-up failed ({why}): {command[:_MAX_ERROR_CHARACTERS]!r}: {output}", where="params.setup"
            )


def _decode_base64(path: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise EnvError(f"not base64: {error}", where=f"params.binary, {path}") from None
