"""A shell that lives on between commands: folder, variables and background jobs stay.

Commands run on a terminal of their own, so that programs that ask for keys find some. A command comes by a pipe that it
does not see; its end is told on the terminal by a word that changes with each command, in a sequence that terminals do
not show, so all that it printed stands before it. What a command prints is always read, and of much the middle is left
out: it ends however much it is.
"""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import pty
import re
import secrets
import select
import struct
import subprocess
import termios
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from foreground import asking
from kept import Kept
from tape import Tape
from terminal import Terminal

ROWS, COLUMNS = 24, 80
_CHUNK = 2**16
_MOST = 2**17  # characters of a command: bash reads them one by one
_LINE = 1024  # bytes that a terminal takes at once
_TYPE_S = 1.0
_LOOK_S, _LOOKS = 0.04, 12  # between looks at a program that may wait for keys; so many where it says nothing
_LOOP = Path(__file__).with_name("shell_loop.sh")
_BASH = ("bash", "--noprofile", "--norc", "-c", 'eval "$(<"$1")"', "bash")  # its errors name no file of ours
_SHOWN = 2**16  # bytes, of what was printed last, that the terminal is drawn from
# Colours, cursor movements, titles; then what else is no text.
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]|\x1b[ -/]*[0-~]")
_BACK = re.compile(r"[^\x08]?\x08")  # as programs write bold letters
_UNPRINTED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True)
class Printed:
    """What a command printed so far: since it began, or since it was last asked; where it fills the screen, what is
    seen there.

    running: it has not ended. asks: it waits for keys. status: of the command, where it has ended; None where the shell
    itself did, and a new one takes its place. folder: where the shell stands.
    """

    text: str
    running: bool = False
    asks: bool = False
    status: int | None = None
    folder: str = ""


class Busy(Exception):
    """A command is still running."""


class Idle(Exception):
    """No command is running."""


class Shell:
    """One bash on one terminal. environment, folder: of each new one."""

    def __init__(self, folder: str, environment: dict[str, str]) -> None:
        self._folder, self._environment = folder, environment
        self._screen = Terminal(ROWS, COLUMNS)
        self._screen.feed(_prompt(folder, folder))
        self.tape = Tape()  # all that its terminal is told
        self.tape.add(_prompt(folder, folder).encode("utf-8", "replace"))
        self._bash: _Bash | None = None
        self._alone = threading.Lock()

    def run(self, command: str, wait_s: float, limit: int) -> Printed:
        """Begin a command and wait for its end, or for wait_s: it goes on then.

        limit: bytes of what it prints that are kept. Raises Busy while another one runs, ValueError for one that is
        too long.
        """
        if len(command) > _MOST:
            raise ValueError(f"a command has {_MOST} characters at most: write a file, and run that")
        with self._alone:
            bash = self._ready()
            bash.begin(command, limit)
            return bash.wait(wait_s)

    def quietly(self, command: str, wait_s: float) -> bool:
        """Run a command of which nothing is shown; a shell begins where there is none. False where it did not end in
        time. It must print nothing. Raises Busy as `run`."""
        with self._alone:
            bash = self._ready()
            bash.begin(command, 0, shown=False)
            bash.wait(wait_s)
            if not bash.running:
                return True
            bash.type(b"\x03")  # it was not asked for by who works here
            bash.wait(wait_s)
            return False

    @property
    def begun(self) -> bool:
        """There is one that holds what commands have left in it."""
        return self._bash is not None and not self._bash.over

    def read(self, wait_s: float) -> Printed:
        """What was printed since, until the command ends or wait_s is over."""
        with self._alone:
            if self._bash is None:
                return Printed("", folder=self._folder)
            return self._bash.wait(wait_s)

    def look(self) -> str:
        """What the terminal shows. What was printed is still there to be read."""
        return self._screen.text if self._bash is None else self._bash.look()

    def keys(self, text: str, wait_s: float) -> Printed:
        """Type into the program that is running; what it prints then. Raises Idle where there is none."""
        if self._bash is None or not self._bash.running:
            raise Idle("no program is running that would take keys: run a command")
        self._bash.type(text.encode("utf-8", "replace"))
        return self.read(wait_s)

    def type(self, data: bytes) -> None:
        """Keys of somebody who watches; without a program that runs they go nowhere."""
        if (bash := self._bash) is not None and bash.running:
            bash.type(data)

    def _ready(self) -> _Bash:
        if self._bash is not None and self._bash.running:
            raise Busy("a command is still running: wait for it, or end it by C-c")
        if not self.begun:
            self.close()
            self._bash = _Bash(self._folder, self._environment, self._screen, self.tape)
        return self._bash

    def close(self) -> None:
        """End the shell; what runs in its terminal hears of it."""
        if self._bash is not None:
            self._bash.close()
            self._bash = None


def in_terminal(slave: int, *command: str) -> list[str]:
    """For the first process of a session: it becomes the command, and the terminal the session's own, which is given to
    that process if it opens it (Linux). To ask for it between fork and exec would be to run Python there, where locks
    may be held by threads that are no more."""
    return ["/bin/sh", "-c", 'exec <>"$0"; exec "$@"', os.ttyname(slave), *command]


class _Bash:
    """The process, its terminal, and the thread that reads what is printed there. screen: where it is shown. tape:
    where all of it is told."""

    def __init__(self, folder: str, environment: dict[str, str], screen: Terminal, tape: Tape) -> None:
        self._terminal, slave = pty.openpty()
        self._modes = termios.tcgetattr(slave)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        theirs, self._commands = os.pipe()
        try:
            self._process = subprocess.Popen(
                in_terminal(slave, *_BASH, str(_LOOP), str(theirs)),
                stdin=slave, stdout=slave, stderr=slave, cwd=folder,
                env={**environment, "TERM": "xterm", "PAGER": "cat"},
                pass_fds=(theirs,), start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(slave)
            os.close(theirs)
        self._screen, self._tape, self._unseen = screen, tape, bytearray()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._mark, self._kept, self._folder, self._begins = b"", Kept(0), folder, folder
        self._status: int | None = None
        self._changed = threading.Condition()
        self.over = False
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def running(self) -> bool:
        """Whether a command is."""
        return bool(self._mark)

    def begin(self, command: str, limit: int, shown: bool = True) -> None:
        """shown: on the terminal, as it is typed there."""
        command = command.replace("\0", "").encode("utf-8", "replace").decode()
        with self._changed:
            self._mark, self._kept, self._status = secrets.token_hex(8).encode(), Kept(limit), None
            self._draw()
            with contextlib.suppress(termios.error):  # a program that crashed may have left others
                termios.tcsetattr(self._terminal, termios.TCSANOW, self._modes)
            typed_in = command.rstrip("\n")[-_SHOWN:].replace("\n", "\r\n> ") + "\r\n" if shown else "\r\x1b[K"
            self._screen.feed(typed_in)  # a prompt that comes again stands where it stood
            self._tape.add(typed_in.encode())
        message = b"%s\0%s\0" % (self._mark, command.encode())
        with contextlib.suppress(BrokenPipeError):  # the shell has just gone, which `_read` tells
            while message:
                message = message[os.write(self._commands, message) :]

    def type(self, data: bytes) -> None:
        if not self.over:
            typed(self._terminal, data)

    def wait(self, wait_s: float) -> Printed:
        """Until the command has ended, waits for keys, or wait_s is over."""
        until, before, alike, asks = time.monotonic() + wait_s, None, 0, False
        with self._changed:
            while self._mark and (left := until - time.monotonic()) > 0:
                self._changed.wait_for(lambda: not self._mark, min(left, _LOOK_S))
                now = asking(self._terminal, self._process.pid) if self._mark and not self._readable() else None
                alike = alike + 1 if now is not None and now == before else 0
                before = now
                # One that has said nothing yet may be about to.
                if alike and (alike == _LOOKS or plain(bytes(self._unseen)).strip()):
                    asks = True
                    break
            self._draw()
            text = self._kept.taken(plain)
            if self._screen.full_screen:
                text = self._screen.text
            return Printed(text, self.running, asks, self._status, self._folder)

    def look(self) -> str:
        with self._changed:
            self._draw()
            return self._screen.text

    def _draw(self) -> None:
        self._screen.feed(self._decoder.decode(self._unseen))
        self._unseen.clear()

    def _readable(self) -> bool:
        """Something was printed that is not read yet."""
        return bool(select.select([self._terminal], [], [], 0)[0])

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
                    # Where the shell alone is gone, what it had begun may hold the terminal for ever.
                    data = os.read(self._terminal, _CHUNK) if self._terminal in ready else b""
                except OSError:
                    data = b""
                self._unseen += data
                self._tape.add(data)
                del self._unseen[:-_SHOWN]
                if ended := self._kept.add(data, self._mark):
                    status, _, folder = ended.partition(b" ")
                    self._mark, self._status, self._folder = b"", int(status), folder.decode("utf-8", "replace")
                if not data:
                    self._mark, self._folder, self.over = b"", self._begins, True
                if ended or not data:
                    prompt = _prompt(self._folder, self._begins).encode("utf-8", "replace")
                    self._unseen += prompt
                    self._tape.add(prompt)
                    self._changed.notify_all()
                if not data:
                    os.close(self._terminal)
                    os.close(shell)
                    return


def typed(terminal: int, data: bytes) -> None:
    """What a program does not take within a second is lost."""
    with contextlib.suppress(OSError):
        while data and select.select([], [terminal], [], _TYPE_S)[1]:
            data = data[os.write(terminal, data[:_LINE]) :]


def _prompt(folder: str, home: str) -> str:
    """It ends whatever a program has left open: a sequence, a charset, a screen of its own. (By 1047: 1049 would move
    the cursor of a watcher's terminal.)"""
    at = "~" + folder[len(home) :] if folder == home or folder.startswith(f"{home}/") else folder
    return f"\x07\x1b(B\x1b[?1047l{at}$ "


def plain(data: bytes) -> str:
    """What a terminal would show of it, line by line, without colours and movements."""
    text = _CONTROL.sub("", data.decode("utf-8", "replace")).replace("\r\n", "\n")
    lines = []
    for line in text.split("\n"):
        line = line.rstrip("\r").rpartition("\r")[2]  # a progress bar goes over its line again and again
        lines.append(_UNPRINTED.sub("", _BACK.sub("", line)))
    return "\n".join(lines)
