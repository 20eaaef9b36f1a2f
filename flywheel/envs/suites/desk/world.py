"""Define the suite `desk`: small tasks on files, in the applications of a desktop."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from flywheel.agent.actions import Action, Hotkey, Type
from flywheel.envs.base import TaskSuite, TaskTemplate, Verifier
from flywheel.envs.suites.chores.verifier import file_matches

# Each begins with a different letter, since the file manager finds a name by its first letters.
_WORDS = ("apple", "bread", "candle", "door", "engine", "flower", "garden", "house", "island", "jacket")
_WORDS += ("kettle", "lemon", "mirror", "needle", "orange", "paper", "river", "silver", "table", "window")
_STEPS = {1: 8, 2: 10, 3: 12}


class DeskSuite(TaskSuite):
    """Hold three templates: write in the text editor, rename in the file manager, type commands in the terminal.

    Params: `files` at the beginning and `wanted` at the end, text by path, folders ending in /; `apps` that are open;
    `allowed`: the screen alone; and what the instruction names.
    """

    environment: ClassVar[str] = "computer"

    def draw(self, template: str, level: int, seed: int) -> dict[str, Any]:
        self.budget(template, level)
        rng = random.Random(f"{self.name} {template} {level} {seed}")
        return _DRAWS[template](level, rng.sample(_WORDS, 12))


def _write(level: int, words: list[str]) -> dict[str, Any]:
    """Draw a line to add at the end of a text of `level` lines."""
    lines = [f"{words[n]} {words[n + 1]}" for n in range(level)]
    line = " ".join(words[5 : 6 + level])
    before = {"notes.txt": "\n".join(lines) + "\n"}
    after = {"notes.txt": "\n".join([*lines, line]) + "\n"}
    return _params(before, after, ["mousepad", "notes.txt"], line=line)


def _rename(level: int, words: list[str]) -> dict[str, Any]:
    """Draw a file to rename, among others from level 2 on."""
    names = [f"{word}.txt" for word in words[: 1 + 2 * (level - 1)]]
    old, new = names[0], f"{words[7]}.txt"
    before = {name: f"{name}\n" for name in names}
    after = {new if name == old else name: text for name, text in before.items()}
    return _params(before, after, ["pcmanfm", "/home/user"], old=old, new=new)


def _sort(level: int, words: list[str]) -> dict[str, Any]:
    """Draw a folder to make, and files to move into it."""
    folder, names = words[0], [f"{word}.txt" for word in words[1 : 1 + level]]
    before = {name: f"{name}\n" for name in names} | {f"{words[8]}.csv": "1\n"}
    moved = {f"{folder}/{name}" if name in names else name: text for name, text in before.items()}
    return _params(before, {f"{folder}/": "", **moved}, ["xterm"], folder=folder)


def _params(before: dict[str, str], wanted: dict[str, str], app: list[str], **named: str) -> dict[str, Any]:
    return {"files": before, "wanted": wanted, "allowed": "gui", "apps": [app], **named}


_DRAWS = {"write": _write, "rename": _rename, "sort": _sort}


def score_desk_files(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """Return 1.0 where the files are as wanted, but for space at the end of lines and of a file.

    Otherwise return half of (changes made - other files changed) / changes asked for, at least 0.
    """
    before, wanted = params["files"], params["wanted"]
    now = {
        path: wanted[path] if file_matches(path, wanted.get(path), text) else text
        for path, text in state["files"].items()
    }
    if now == wanted:
        return 1.0
    paths = before.keys() | wanted.keys() | now.keys()
    asked = {path for path in paths if before.get(path) != wanted.get(path)}
    done = sum(now.get(path) == wanted.get(path) for path in asked)
    spoilt = sum(now.get(path) != wanted.get(path) for path in paths - asked)
    return 0.5 * max(0, done - spoilt) / len(asked)


DESK_VERIFIERS: dict[str, Verifier] = {"files_are": score_desk_files}


def play_desk_task(template: str, params: Mapping[str, Any]) -> Iterator[tuple[str, Action]]:
    """Yield a thought and an action for each step of an expert, by keys alone."""
    yield from _PLAYS[template](params)


def _play_write(params: Mapping[str, Any]) -> Iterator[tuple[str, Action]]:
    yield "I go to the end of the text.", Hotkey(("ctrl", "end"))
    yield "I type the line.", Type(f"{params['line']}\n")
    yield "I save the file.", Hotkey(("ctrl", "s"))


def _play_rename(params: Mapping[str, Any]) -> Iterator[tuple[str, Action]]:
    yield "I find the file by its name.", Type(params["old"][:3])
    yield "It is chosen; I close the search.", Hotkey(("esc",))
    yield "I rename it.", Hotkey(("f2",))
    yield "The whole name is to change.", Hotkey(("ctrl", "a"))
    yield "I type the new name.", Type(f"{params['new']}\n")


def _play_sort(params: Mapping[str, Any]) -> Iterator[tuple[str, Action]]:
    yield "I make the folder.", Type(f"mkdir {params['folder']}\n")
    yield "I move all text files there.", Type(f"mv *.txt {params['folder']}\n")


_PLAYS = {"write": _play_write, "rename": _play_rename, "sort": _play_sort}


def _template(instruction: str) -> TaskTemplate:
    return TaskTemplate(instruction=instruction, verifier="files_are", max_steps=_STEPS)


DESK = DeskSuite(
    name="desk",
    domain="computer",
    templates={
        "write": _template("Add the line '{line}' at the end of notes.txt, and save the file."),
        "rename": _template("Rename the file {old} to {new}."),
        "sort": _template("Make a folder {folder}, and move all text files into it."),
    },
    checksum=hashlib.sha256(Path(__file__).read_bytes()).hexdigest(),
)
