"""Call the SDK functions (section 2.1) of one machine: shell, Python, files, and keys of a terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from flywheel.agent.actions import Action, Hotkey, ListFiles, ReadFile, RunPython, Terminal, Type, WriteFile
from flywheel.agent.history import truncate_middle
from flywheel.envs import keyboard
from flywheel.envs.computer.desktop import UnsupportedAction
from flywheel.envs.computer.machine import Machine, MachineRefused

# Keys as a terminal sends them (xterm).

_PLAIN_KEYS = {"Enter": "\r", "Tab": "\t", "Escape": "\x1b", "Backspace": "\x7f", " ": " "}
# CSI: a letter that ends the sequence, or a number ahead of `~`.
_LETTER_SEQUENCES = {"ArrowUp": "A", "ArrowDown": "B", "ArrowRight": "C", "ArrowLeft": "D", "End": "F", "Home": "H"}
_LETTER_SEQUENCES |= {"F1": "P", "F2": "Q", "F3": "R", "F4": "S"}
_NUMBER_SEQUENCES = {
    "Insert": 2,
    "Delete": 3,
    "PageUp": 5,
    "PageDown": 6,
    "F5": 15,
    "F6": 17,
    "F7": 18,
    "F8": 19,
    "F9": 20,
}
_NUMBER_SEQUENCES |= {"F10": 21, "F11": 23, "F12": 24}
_MODIFIER_BITS = {"Shift": 1, "Alt": 2, "Control": 4}
_CONTROL_CHARACTERS = "@abcdefghijklmnopqrstuvwxyz[\\]^_"


def encode_terminal_keys(keys: Sequence[str]) -> str:
    """Encode keys that are pressed together as a terminal sends them. Raises UnsupportedAction for keys it does not
    have."""
    held, pressed = 0, []
    for name in keys:
        found = keyboard.find_key(name)
        if found is None:
            raise UnsupportedAction(f"no key is called {name[:20]!r}")
        held |= _MODIFIER_BITS.get(found.key, 0)
        if found.key not in _MODIFIER_BITS:
            pressed.append(found.key)
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
    """Encode a text as a terminal sends it: its line ends are the key Enter."""
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


# The SDK functions: shell, Python, files; and keys for a program that runs in the shell.
#
# The result of each is a text: what was printed, or in one line why nothing could be done.

SDK_ACTION_TYPES = (Terminal, RunPython, ReadFile, WriteFile, ListFiles)
_STOP_S = 3.0  # that interrupted code has to end in, and to say so
_CONTROL_COMMAND = re.compile(r"C-([a-z@\[\\\]^_])")  # as a command, while a program runs: Ctrl with this key


class SdkFunctions:
    """Call the SDK functions of one machine.

    run_s: seconds that a command or code is waited for. result_bytes: of a result, at most.
    """

    def __init__(self, machine: Machine, run_s: float, result_bytes: int) -> None:
        self._machine, self._run_s, self._limit = machine, run_s, result_bytes
        self.running = self._asks = False

    async def call(self, action: Action) -> str:
        """Carry out one of TYPES. Raises EnvError where the machine is gone, EnvTimeout where it does not answer."""
        try:
            match action:
                case Terminal(command):
                    text = await self._command(command)
                case RunPython(code):
                    text = await self._python(code)
                case ReadFile(path):
                    text = (await self._file("GET", "read", path, limit=self._limit)).decode("utf-8", "replace")
                case WriteFile(path, content):
                    written = await self._file("PUT", "write", path, content=content.encode("utf-8", "replace"))
                    text = f"[{json.loads(written)['bytes']} bytes written]"
                case ListFiles(path):
                    text = _format_listing(json.loads(await self._file("GET", "list", path)))
                case _:
                    raise TypeError(f"not a function: {action!r}")
        except MachineRefused as refused:
            text = f"error: {refused.what}"
        return truncate_middle(text, self._limit) or "[nothing]"

    async def keys(self, action: Hotkey | Type) -> str:
        """Type keys into the program that runs in the shell.

        Raises MachineRefused where there is none, UnsupportedAction for keys that a terminal does not have.
        """
        keys = encode_terminal_text(action.content) if isinstance(action, Type) else encode_terminal_keys(action.keys)
        return await self._shell("keys", keys=keys.encode("utf-8", "replace").decode())

    async def wait(self) -> str:
        """Wait for the command that runs. Raises as `call`."""
        return await self._shell("read")

    async def look(self) -> str:
        """Return what the terminal shows. Raises as `call`."""
        return json.loads(await self._machine.request("GET", "/shell/screen"))["screen"]

    # -- inside -------------------------------------------------------------------------------------------------------
    async def _command(self, command: str) -> str:
        if self._asks:  # as in any terminal, a line is for the program that waits for it
            keys = (
                chr(ord(control[1]) & 31)
                if (control := _CONTROL_COMMAND.fullmatch(command))
                else encode_terminal_text(f"{command}\n")
            )
            return await self._shell("keys", keys=keys.encode("utf-8", "replace").decode())
        if self.running and (control := _CONTROL_COMMAND.fullmatch(command)):
            return await self._shell("keys", keys=chr(ord(control[1]) & 31))
        return await self._shell("run", command=command, limit=self._limit)

    async def _shell(self, what: str, **given: object) -> str:
        outcome = await self._machine.call(f"/shell/{what}", {"wait_s": self._run_s, **given}, self._run_s)
        self.running, self._asks = outcome["running"], outcome["asks"]
        return truncate_middle(outcome["text"], self._limit) + self._ended(outcome)

    def _ended(self, told: dict) -> str:
        """How far the command is, in a line of its own where there is more to tell than what it printed."""
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
