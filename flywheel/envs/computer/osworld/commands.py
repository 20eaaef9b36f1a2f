"""Check whether a machine has what the commands of OSWorld's tasks need: programs, rights, a screen, the internet."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import yaml

from flywheel.envs.computer.bwrap import MACHINE_HOME, PROGRAM_PATH, list_written_folders

# Reasons why a task of OSWorld cannot be played here.

NEEDS_INTERNET_FILE = "a file of the internet, of which no copy is given"
NEEDS_INTERNET = "the internet"
NEEDS_PROGRAM = "a program that is not installed"
NEEDS_ROOT = "the rights of root"
NEEDS_SYSTEM_SERVICE = "GNOME or a service of the system"
NEEDS_SCREEN = "a screen, which the kind terminal has not"
NEEDS_STEP = "a step of set-up that is not carried out here"
NEEDS_GETTER = "a getter that is not here"
NEEDS_METRIC = "a metric that is not here"
NEEDS_PLACE_OUTSIDE_HOME = "a place outside of the home"
NEEDS_LARGE_FILES = "files that are too large"
NEEDS_ACCOUNT = "an account of Google"
RUNS_AGENTS_CODE = "a metric that runs what the agent wrote where its verdict is made"
LEFT_OUT_BY_MANIFEST = "left out by the manifest"
NEEDS_WHOLE_FILE = "a whole task file"


class MalformedTask(Exception):
    """Signal that OSWorld's task file is wrong; the message names the field and its fault."""


class UnsupportedTask(Exception):
    """Signal that an OSWorld task cannot be played here. reason: what it needs, one of `NEEDS_*`. detail: which one."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason, self.detail = reason, " ".join(detail.split())[:120]
        super().__init__(f"{self.reason}: {self.detail}")


OsworldCommand = str | list[str]
PROGRAMS = yaml.safe_load(Path(__file__).with_name("programs.yaml").read_text(encoding="utf-8"))
_ROOT_PROGRAMS, _SYSTEM_PROGRAMS, _SHELL_BUILTINS, _PREFIX_WORDS, _WRITERS, _COPIERS = (
    frozenset(PROGRAMS[name].split()) for name in ("root", "system", "builtins", "prefixes", "writers", "copiers")
)
# Programs of OSWorld's machine for which another of a desktop's here is run.
STAND_INS: dict[str, str] = PROGRAMS["stand_ins"]
_SHELLS, _FINDERS = ("sh", "bash", "dash", "zsh"), ("which", "command", "type", "whereis")
_SHELL_SIGNS = "();<>|&\n"
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_ARITHMETIC = re.compile(r"\$\(\((?:[^()]|\([^()]*\))*\)\)")
REMOTE_ADDRESS = re.compile(r"(https?|ftp)://(?!localhost|127\.|0\.0\.0\.0)")
_QUOTED_PROGRAM = re.compile(r"""["'](?:/[\w/]*/)?(\w[\w-]*)""")  # a program's name in code of another language
WRITABLE_FOLDERS = (MACHINE_HOME, *list_written_folders())  # that can be written in a machine


def check_command(command: OsworldCommand, shell: bool, screen: bool, judges: bool = False) -> None:
    """Check that a machine has what a command, and each command that it starts, needs. Raises UnsupportedTask if not.

    shell: whether a shell interprets it. screen: whether the machine has one. judges: whether its output judges the
    task.
    """
    text = command if isinstance(command, str) else shlex.join(command)
    for words in _list_commands(text if shell or isinstance(command, str) else command, shell):
        check_program(words[0])
        _check_arguments(words, judges)
    if "DBUS_SESSION_BUS_ADDRESS" in text:
        raise UnsupportedTask(NEEDS_SYSTEM_SERVICE, "the session's D-Bus")
    if found := REMOTE_ADDRESS.search(text):
        raise UnsupportedTask(NEEDS_INTERNET, text[found.start() :].split()[0])
    if not screen and ("pyautogui" in text or "xdotool" in text or "wmctrl" in text):
        raise UnsupportedTask(NEEDS_SCREEN, text)


def check_program(program: str) -> None:
    """Check that a machine has a program, and that its user may run it. Raises UnsupportedTask if not."""
    program = str(STAND_INS.get(PurePosixPath(program).name, program))
    if program in _ROOT_PROGRAMS:
        raise UnsupportedTask(NEEDS_ROOT, program)
    if program in _SYSTEM_PROGRAMS:
        raise UnsupportedTask(NEEDS_SYSTEM_SERVICE, program)
    looked_for = "/" not in program or program.startswith(("/usr/", "/bin/"))
    if looked_for and program not in _SHELL_BUILTINS and shutil.which(program, path=PROGRAM_PATH) is None:
        raise UnsupportedTask(NEEDS_PROGRAM, program)


def _check_arguments(words: list[str], judges: bool) -> None:
    """Check a command's paths: it can write those that it writes, and an agent can change those that it judges by.

    Programs that a judging command looks for must be installed, since an agent cannot install them.
    """
    name, given = PurePosixPath(words[0]).name, [word for word in words[1:] if not word.startswith("-")]
    if judges and name in _FINDERS:
        for program in given:
            check_program(program)
    known = (*WRITABLE_FOLDERS, "/dev", "/proc")
    paths = given if judges or name in _WRITERS else given[-1:] if name in _COPIERS else []
    for path in paths:
        if path.startswith("/") and not any(PurePosixPath(path).is_relative_to(one) for one in known):
            raise UnsupportedTask(NEEDS_PLACE_OUTSIDE_HOME, path)


def _list_commands(command: OsworldCommand, shell: bool) -> Iterator[list[str]]:
    """Yield the words of each command that `command` runs, those in substitutions and behind wrappers included.

    shell: a shell interprets it. A redirection to a file (`> FILE`) is yielded as `tee FILE`.
    """
    if not shell:
        words = shlex.split(command) if isinstance(command, str) else list(command)
        if words[0] == "python":  # OSWorld's server runs its own Python
            words[0] = "python3"
        yield from _unwrap_command(words)
        return
    command = _ARITHMETIC.sub("0", command)
    for inner in _list_substitutions(command):
        yield from _list_commands(inner, True)
    lexer = shlex.shlex(command, posix=True, punctuation_chars=_SHELL_SIGNS)
    lexer.whitespace, lexer.commenters, lexer.whitespace_split = " \t\r", "", True
    try:
        words = list(lexer)
    except ValueError:  # quotes that shlex cannot parse: not checked
        return
    simple: list[str] = []
    sign = ""  # of a redirection, whose file is the next word
    for word in (*words, ";"):
        if word and set(word) <= set(_SHELL_SIGNS):
            sign = word if {"<", ">"} & set(word) else ""
            if sign and simple and simple[-1].isdigit():
                simple.pop()  # a descriptor's number
            if not sign:
                yield from _unwrap_command(simple)
                simple = []
        elif sign:
            if ">" in sign and word not in ("-", "1", "2"):
                yield ["tee", word]
            sign = ""
        else:
            simple.append(word)


def _list_substitutions(text: str) -> Iterator[str]:
    """Yield the texts in `$( )` and backquotes (the outermost of nested ones), but not those in single quotes."""
    place, quoted = 0, False
    while place < len(text):
        letter = text[place]
        end = -1
        if letter == "\\":
            place += 2
            continue
        if letter == '"':
            quoted = not quoted
        elif letter == "'" and not quoted:
            end = text.find("'", place + 1)
            place = len(text) if end < 0 else end + 1
            continue
        elif letter == "`":
            end = text.find("`", place + 1)
        elif text.startswith("$(", place):
            place += 1
            depth = 0
            for end in range(place, len(text)):
                depth += {"(": 1, ")": -1}.get(text[end], 0)
                if not depth:
                    break
        if end > place:
            yield text[place + 1 : end]
            place = end
        place += 1


def _unwrap_command(words: list[str]) -> Iterator[list[str]]:
    """Yield a command's words, then those of each command that it starts."""
    while words and (_ASSIGNMENT.match(words[0]) or words[0] in _PREFIX_WORDS):
        words = words[1:]
    if not words or words[0].startswith(("$", "~", "`", "-")):
        return
    yield words
    name, rest = PurePosixPath(words[0]).name, words[1:]
    if name in PROGRAMS["wrappers"]:
        operands, *valued = str(PROGRAMS["wrappers"][name]).split()
        while rest and (rest[0].startswith("-") or _ASSIGNMENT.match(rest[0])):
            rest = rest[2 if rest[0] in valued else 1 :]
        yield from _unwrap_command(rest[int(operands) :])
    elif name in _SHELLS:
        at = next((at for at, word in enumerate(rest) if re.fullmatch(r"-\w*c", word)), len(rest))
        for text in rest[at + 1 : at + 2]:
            yield from _list_commands(text, True)
    elif name == "eval":
        yield from _list_commands(" ".join(rest), True)
    elif name == "find":
        for at, word in enumerate(rest):
            if word in ("-exec", "-execdir"):
                yield from _unwrap_command(rest[at + 1 :])
    elif {"-c", "-e"} & set(rest):  # code of another language may start system programs too
        for program in _QUOTED_PROGRAM.findall(" ".join(rest)):
            if program in _SYSTEM_PROGRAMS - {"service"}:
                yield [program]
