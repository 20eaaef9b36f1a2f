"""Run an agent's commands in one bash, which keeps its folder, variables and background jobs between calls."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import platform
import pty
import re
import secrets
import select
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from idle import ProcessWatch
from server import RequestRefused
from terminal import TerminalEmulator

_MAX_END_BYTES = 8192  # bytes of the sequence that ends an output


class BoundedOutput:
    """Collect a command's output, and keep `limit` bytes of it: half from its beginning and half from its end."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._first, self._last, self._left_out = bytearray(), bytearray(), 0

    def add(self, data: bytes, mark: bytes = b"") -> bytes:
        """Add output. mark: the word in the control sequence (OSC) that ends it.

        Returns the rest of that sequence, b"" until it has come.
        """
        before = len(self._last)
        self._last += data
        told = b""
        if mark and (at := self._last.find(b"\x1b]%s " % mark, max(0, before - _MAX_END_BYTES))) >= 0:
            end = self._last.find(b"\x07", at)
            if end >= 0:
                told = bytes(self._last[at + len(mark) + 3 : end])
                del self._last[at:]
        if len(self._last) > 2 * (self._half + _MAX_END_BYTES):
            self._cut(self._half + _MAX_END_BYTES)  # keeps what may be the beginning of a mark
        return told

    def take(self, shown: Callable[[bytes], str]) -> str:
        """Return the kept output as text, with a line for its missing middle, and drop it. shown: decodes bytes."""
        if len(self._last) > self._half and len(self._first) + len(self._last) > 2 * self._half:
            self._cut(self._half)
        first, last, left_out = bytes(self._first), bytes(self._last), self._left_out
        self._first, self._last, self._left_out = bytearray(), bytearray(), 0
        if not left_out:
            return shown(first + last)
        return f"{shown(first)}\n[... {left_out} bytes left out ...]\n{shown(last)}"

    def _cut(self, keep: int) -> None:
        """Keep the last `keep` bytes as the end; add those before to the beginning, or drop them where that is full."""
        over = len(self._last) - keep
        room = min(over, self._half - len(self._first))
        self._first += self._last[:room]
        self._left_out += over - room
        del self._last[:over]


_MAX_SCROLLBACK_BYTES = 2**16  # bytes that are kept
_RESET_SEQUENCE = b"\x1bc"  # resets a terminal


class Scrollback:
    """Keep the newest output of a terminal for people who watch; a slow watcher misses some, and blocks nobody."""

    def __init__(self) -> None:
        self._kept, self._end = bytearray(), 0  # the newest bytes; number of all bytes so far
        self._changed = threading.Condition()

    def add(self, data: bytes) -> None:
        """Append output, and wake the watchers."""
        with self._changed:
            self._kept += data
            del self._kept[:-_MAX_SCROLLBACK_BYTES]
            self._end += len(data)
            self._changed.notify_all()

    def since(self, place: int, wait_s: float) -> tuple[bytes, int]:
        """Wait up to `wait_s` seconds for output after the byte number `place`; returns (output, the next `place`).

        Where some was missed, a sequence that resets the terminal comes first. Without new output it is b"".
        """
        with self._changed:
            self._changed.wait_for(lambda: self._end > place, wait_s)
            begin = self._end - len(self._kept)
            told = bytes(self._kept[max(0, place - begin) :])
            return (_RESET_SEQUENCE if begin > place else b"") + told, self._end


_READ_CALL = {"x86_64": "0", "aarch64": "63"}.get(platform.machine(), "")  # the system call's number
_LOCAL_MODES = 3  # their index in termios's list


def _run_times_if_waiting(terminal: int, shell: int) -> list[str] | None:
    """Return how long each thread of a terminal's programs has run, if they may wait for keys; None if they do not.

    They do wait if the times are the same a moment later: all threads sleep, and the terminal gives single keys or a
    program reads a line. terminal: descriptor of our end. shell: id of the process that started the programs.
    """
    watched = ProcessWatch([shell])
    ran = watched.look()
    if ran is None:
        return None
    try:
        by_line = termios.tcgetattr(terminal)[_LOCAL_MODES] & termios.ICANON
    except termios.error:
        return None
    return None if by_line and not any(map(_is_reading_terminal, watched.pids)) else ran


def _is_reading_terminal(pid: int) -> bool:
    """Return whether a process is inside a call that reads from a terminal."""
    try:
        with open(f"/proc/{pid}/syscall") as file:  # noqa: PTH123 - runs very often
            call = file.read().split()
        return call[0] == _READ_CALL and os.readlink(f"/proc/{pid}/fd/{int(call[1], 16)}").startswith("/dev/pts/")  # noqa: PTH115
    except (OSError, IndexError, ValueError):
        return False


# Commands run on a terminal of their own, so that programs can ask for keys. The shell reads commands from a pipe that
# they do not inherit. It marks a command's end on the terminal by a sequence that terminals do not show, with a random
# word, so that all output of the command precedes the mark. Output is always read, and the middle of a long one
# dropped, so that no command blocks on printing.

ROWS, COLUMNS = 24, 80
_CHUNK = 2**16
_MAX_COMMAND_CHARACTERS = 2**17  # characters of a command: bash reads them one by one
_MAX_LINE_BYTES = 1024  # bytes that a terminal takes at once
_TYPE_S = 1.0
_LOOK_S, _LOOKS = 0.04, 12  # seconds between two looks whether a program waits for keys; looks at a silent one
_LOOP_SCRIPT = Path(__file__).with_name("shell_loop.sh")
_BASH_COMMAND = ("bash", "--noprofile", "--norc", "-c", 'eval "$(<"$1")"', "bash")  # bash's errors name no file of ours
_MAX_DRAWN_BYTES = 2**16  # newest bytes of output that are drawn on the screen
# Colours, cursor movements, titles; then other control characters.
_CONTROL_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]|\x1b[ -/]*[0-~]"
)
_BACKSPACE = re.compile(r"[^\x08]?\x08")  # as programs write bold letters
_UNPRINTED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True)
class ShellOutput:
    """Hold what a call of the shell returns: the command's new output, and whether it still runs.

    text: printed since the last call; of a full-screen program, what the screen shows. running: the command has not
    ended. asks: it waits for keys. status: its exit status; None while it runs, or where the shell itself has ended and
    a new one takes its place. folder: the shell's working folder.
    """

    text: str
    running: bool = False
    asks: bool = False
    status: int | None = None
    folder: str = ""


class ShellBusy(RequestRefused):
    """Signal that the shell takes no command, since one is still running."""


class Shell:
    """Run commands in one bash on a terminal of its own; a bash that has ended is replaced by a new one.

    folder, environment: of each new bash. tape: all output of the terminal, for people who watch.
    """

    def __init__(self, folder: str, environment: dict[str, str]) -> None:
        self._folder, self._environment = folder, environment
        self._screen = TerminalEmulator(ROWS, COLUMNS)
        self._screen.feed(_shell_prompt(folder, folder))
        self.tape = Scrollback()  # all output of its terminal
        self.tape.add(_shell_prompt(folder, folder).encode("utf-8", "replace"))
        self._bash: _BashProcess | None = None
        self._alone = threading.Lock()

    def run(self, command: str, wait_s: float, limit: int) -> ShellOutput:
        """Start a command and wait up to `wait_s` seconds until it ends or waits for keys; it goes on after that.

        limit: bytes of output that are kept. Raises ShellBusy while another command runs, RequestRefused for a command
        that is too long.
        """
        if len(command) > (most := _MAX_COMMAND_CHARACTERS):
            raise RequestRefused(f"a command has {most} characters at most: write a file, and run that")
        with self._alone:
            bash = self._ready()
            bash.begin(command, limit)
            return bash.wait(wait_s)

    def quietly(self, command: str, wait_s: float) -> bool:
        """Run a command of our own without showing it; False where it does not end in `wait_s` seconds.

        It gets Ctrl-C then. Raises ShellBusy as `run`.
        """
        with self._alone:
            bash = self._ready()
            bash.begin(command, 0, shown=False)
            bash.wait(wait_s)
            if not bash.running:
                return True
            bash.type(b"\x03")  # Ctrl-C: the user of this shell did not start it
            bash.wait(wait_s)
            return False

    @property
    def begun(self) -> bool:
        """Tell whether a bash is alive, which holds what commands have left in it."""
        return self._bash is not None and not self._bash.over

    def read(self, wait_s: float) -> ShellOutput:
        """Wait for the running command, `wait_s` seconds at most, and return its new output; none where none runs."""
        with self._alone:
            if self._bash is None:
                return ShellOutput("", folder=self._folder)
            return self._bash.wait(wait_s)

    def look(self) -> str:
        """Return the text that the terminal shows; `read` still returns output that is part of it."""
        return self._screen.text if self._bash is None else self._bash.look()

    def keys(self, text: str, wait_s: float) -> ShellOutput:
        """Type a text into the running program, and return what it prints within `wait_s` seconds.

        Raises RequestRefused where no program runs.
        """
        if self._bash is None or not self._bash.running:
            raise RequestRefused("no program is running that would take keys: run a command", 409)
        self._bash.type(text.encode("utf-8", "replace"))
        return self.read(wait_s)

    def type(self, data: bytes) -> None:
        """Type a watcher's keys into the running program; without one they are dropped."""
        if (bash := self._bash) is not None and bash.running:
            bash.type(data)

    def _ready(self) -> _BashProcess:
        if self._bash is not None and self._bash.running:
            raise ShellBusy("a command is still running: wait for it, or end it by C-c", 409)
        if not self.begun:
            self.close()
            self._bash = _BashProcess(self._folder, self._environment, self._screen, self.tape)
        return self._bash

    def close(self) -> None:
        """Kill the bash; the programs of its terminal get the signal SIGHUP."""
        if self._bash is not None:
            self._bash.close()
            self._bash = None


def build_terminal_command(slave: int, *command: str) -> list[str]:
    """Build the command that runs `command` with a terminal as its controlling one, in a new process session.

    slave: descriptor of the terminal's slave end. A shell opens it: Python code between fork and exec could wait for
    locks that are held by threads which do not exist there.
    """
    return ["/bin/sh", "-c", 'exec <>"$0"; exec "$@"', os.ttyname(slave), *command]


class _BashProcess:
    def __init__(self, folder: str, environment: dict[str, str], screen: TerminalEmulator, tape: Scrollback) -> None:
        self._terminal, slave = pty.openpty()
        self._modes = termios.tcgetattr(slave)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        theirs, self._commands = os.pipe()
        try:
            self._process = subprocess.Popen(
                build_terminal_command(slave, *_BASH_COMMAND, str(_LOOP_SCRIPT), str(theirs)),
                stdin=slave, stdout=slave, stderr=slave, cwd=folder,
                env={**environment, "TERM": "xterm", "PAGER": "cat"},
                pass_fds=(theirs,), start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(slave)
            os.close(theirs)
        self._screen, self._tape, self._unseen = screen, tape, bytearray()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._mark, self._kept, self._folder, self._begins = b"", BoundedOutput(0), folder, folder
        self._status: int | None = None
        self._changed = threading.Condition()
        self.over = False
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def running(self) -> bool:
        """Return whether a command is running."""
        return bool(self._mark)

    def begin(self, command: str, limit: int, shown: bool = True) -> None:
        """Send a command to the shell. limit: bytes of output that are kept. shown: show it as if it were typed."""
        command = command.replace("\0", "").encode("utf-8", "replace").decode()
        with self._changed:
            self._mark, self._kept, self._status = secrets.token_hex(8).encode(), BoundedOutput(limit), None
            self._draw()
            with contextlib.suppress(termios.error):  # a program that crashed may have left other modes
                termios.tcsetattr(self._terminal, termios.TCSANOW, self._modes)
            typed_in = "\r\x1b[K"  # the next prompt replaces the one shown
            if shown:
                typed_in = command.rstrip("\n")[-_MAX_DRAWN_BYTES:].replace("\n", "\r\n> ") + "\r\n"
            self._screen.feed(typed_in)
            self._tape.add(typed_in.encode())
        message = b"%s\0%s\0" % (self._mark, command.encode())
        with contextlib.suppress(BrokenPipeError):  # the shell has just ended, which `_read` finds
            while message:
                message = message[os.write(self._commands, message) :]

    def type(self, data: bytes) -> None:
        if not self.over:
            type_into_terminal(self._terminal, data)

    def wait(self, wait_s: float) -> ShellOutput:
        """Wait until the command ends or asks for keys, `wait_s` seconds at most; returns its new output."""
        until, before, alike, asks = time.monotonic() + wait_s, None, 0, False
        with self._changed:
            while self._mark and (left := until - time.monotonic()) > 0:
                self._changed.wait_for(lambda: not self._mark, min(left, _LOOK_S))
                quiet = self._mark and not select.select([self._terminal], [], [], 0)[0]  # nothing printed is unread
                now = _run_times_if_waiting(self._terminal, self._process.pid) if quiet else None
                alike = alike + 1 if now is not None and now == before else 0
                before = now
                # A program that has printed nothing yet may be about to.
                if alike and (alike == _LOOKS or strip_control_sequences(bytes(self._unseen)).strip()):
                    asks = True
                    break
            self._draw()
            text = self._kept.take(strip_control_sequences)
            if self._screen.full_screen:
                text = self._screen.text
            return ShellOutput(text, self.running, asks, self._status, self._folder)

    def look(self) -> str:
        with self._changed:
            self._draw()
            return self._screen.text

    def _draw(self) -> None:
        self._screen.feed(self._decoder.decode(self._unseen))
        self._unseen.clear()

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._commands)

    def _read(self) -> None:
        shell = os.pidfd_open(self._process.pid)
        while True:
            ready = select.select([self._terminal, shell], [], [])[0]
            with self._changed:
                try:
                    # Where only the shell has ended, programs that it started may hold the terminal open for ever.
                    data = os.read(self._terminal, _CHUNK) if self._terminal in ready else b""
                except OSError:
                    data = b""
                self._unseen += data
                self._tape.add(data)
                del self._unseen[:-_MAX_DRAWN_BYTES]
                if ended := self._kept.add(data, self._mark):
                    status, _, folder = ended.partition(b" ")
                    self._mark, self._status, self._folder = b"", int(status), folder.decode("utf-8", "replace")
                if not data:
                    self._mark, self._folder, self.over = b"", self._begins, True
                if ended or not data:
                    prompt = _shell_prompt(self._folder, self._begins).encode("utf-8", "replace")
                    self._unseen += prompt
                    self._tape.add(prompt)
                    self._changed.notify_all()
                if not data:
                    os.close(self._terminal)
                    os.close(shell)
                    return


def type_into_terminal(terminal: int, data: bytes) -> None:
    """Write data to our end of a terminal, as if it were typed; what programs do not take within a second is lost.

    terminal: its descriptor.
    """
    with contextlib.suppress(OSError):
        while data and select.select([], [terminal], [], _TYPE_S)[1]:
            data = data[os.write(terminal, data[:_MAX_LINE_BYTES]) :]


def _shell_prompt(folder: str, home: str) -> str:
    """Build the prompt, after sequences that end what a program has left open: a string, a charset, the second screen.

    The last is ended by 1047, since 1049 would move a watcher's cursor.
    """
    at = "~" + folder[len(home) :] if folder == home or folder.startswith(f"{home}/") else folder
    return f"\x07\x1b(B\x1b[?1047l{at}$ "


def strip_control_sequences(data: bytes) -> str:
    """Return the plain text of a terminal's output, without colours and cursor movements, as its lines end up."""
    text = _CONTROL_SEQUENCE.sub("", data.decode("utf-8", "replace")).replace("\r\n", "\n")
    lines = []
    for line in text.split("\n"):
        line = line.rstrip("\r").rpartition("\r")[2]  # a progress bar overwrites its line again and again
        lines.append(_UNPRINTED.sub("", _BACKSPACE.sub("", line)))
    return "\n".join(lines)
