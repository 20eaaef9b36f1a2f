"""Which programs a command of a task's starts, as far as its words tell, and whether a machine has them."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import PurePosixPath

from flywheel.computer.osworld.unfit import ONLINE, PROGRAM, ROOT, SCREEN, SYSTEM, Unfit
from flywheel.computer.walls import PATHS

Command = str | list[str]
_ROOT = {"sudo", "su", "pkexec", "useradd", "adduser", "chpasswd", "apt", "apt-get", "dpkg", "snap"}
_SYSTEM = {"gsettings", "dconf", "timedatectl", "systemctl", "hostnamectl", "nmcli", "bluetoothctl", "pactl"}
_SYSTEM |= {"pulseaudio", "amixer", "service", "loginctl", "journalctl", "gnome-extensions", "gnome-control-center"}
_BUILT_IN = {
    "[", "[[", ":", ".", "alias", "bg", "break", "cd", "command", "continue", "declare", "echo", "eval", "exec", "exit",
    "export", "false", "fg", "jobs", "kill", "let", "local", "printf", "pwd", "read", "readonly", "return", "set",
    "shift", "source", "test", "trap", "true", "type", "ulimit", "umask", "unset", "wait", "function", "for", "case",
    "select",
}  # fmt: skip
_BEFORE = {"if", "then", "elif", "else", "while", "until", "do", "!", "{", "}", "fi", "done", "esac", "in", "time"}
_BEFORE |= {"env", "nohup", "setsid", "xargs"}  # the next word is a program's too
_SIGNS = "();<>|&\n"
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_ELSEWHERE = re.compile(r"(https?|ftp)://(?!localhost|127\.|0\.0\.0\.0)")


# Applications that a task says it is done in, by how their names begin there, and their programs.
_APPLICATIONS = {
    "chrome": "google-chrome", "google": "google-chrome", "browser": "google-chrome", "gimp": "gimp",
    "libreoffice": "libreoffice", "calc": "libreoffice", "writer": "libreoffice", "impress": "libreoffice",
    "excel": "libreoffice", "thunderbird": "thunderbird", "vlc": "vlc", "vscode": "code", "vs_code": "code",
    "picard": "picard",
}  # fmt: skip


def applications(names: list[str]) -> None:
    """Raises Unfit where an application is not installed that a task is to be done in."""
    for name in names:
        for begins, program in _APPLICATIONS.items():
            if name.lower().startswith(begins):
                _has(program)


def look(command: Command, shell: bool, screen: bool) -> None:
    """Raises Unfit where a machine lacks what the command needs. screen: whether it has one."""
    text = command if isinstance(command, str) else shlex.join(command)
    for program in _programs(text if shell or isinstance(command, str) else command, shell):
        _has(program)
    if "DBUS_SESSION_BUS_ADDRESS" in text:
        raise Unfit(SYSTEM, "the session's D-Bus")
    if found := _ELSEWHERE.search(text):
        raise Unfit(ONLINE, text[found.start() :].split()[0])
    if not screen and ("pyautogui" in text or "xdotool" in text or "wmctrl" in text):
        raise Unfit(SCREEN, text)


def _has(program: str) -> None:
    if program in _ROOT:
        raise Unfit(ROOT, program)
    if program in _SYSTEM:
        raise Unfit(SYSTEM, program)
    if "/" not in program and program not in _BUILT_IN and shutil.which(program, path=PATHS) is None:
        raise Unfit(PROGRAM, program)


def _programs(command: Command, shell: bool) -> Iterator[str]:
    """The first word of each command of a shell's text; of words, or a text that no shell takes, the first."""
    if not shell:
        words = shlex.split(command) if isinstance(command, str) else command
        if words[0] != "python":  # for which OSWorld's server takes its own
            yield words[0]
        if PurePosixPath(words[0]).name in ("sh", "bash", "dash") and words[1:2] == ["-c"] and len(words) > 2:
            yield from _programs(words[2], True)
        return
    lexer = shlex.shlex(command, posix=True, punctuation_chars=_SIGNS)
    lexer.whitespace, lexer.commenters, lexer.whitespace_split = " \t\r", "", True
    try:
        words = list(lexer)
    except ValueError:  # quotes over quotes: the shell will tell
        return
    begins = True
    for word in words:
        if word and set(word) <= set(_SIGNS):
            begins = not set(word) <= {"<", ">"} and (word != ">&")
        elif begins and not (_ASSIGNMENT.match(word) or word in _BEFORE):
            begins = False
            if not word.startswith(("$", "~", "`", "-")):
                yield word
