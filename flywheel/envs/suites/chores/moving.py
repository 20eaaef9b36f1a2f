"""Draw chores that move, rename, copy and remove files."""

from __future__ import annotations

import random
from pathlib import PurePosixPath
from typing import Any

from flywheel.agent.actions import ListFiles, RunPython, Terminal
from flywheel.envs.suites.chores.family import (
    ChoreFamily,
    ChoreParams,
    ExpertSteps,
    draw_text,
    draw_words,
    join_with_and,
    step_budgets,
)

_KINDS = ("txt", "csv", "md", "log", "json")


def _kept(files: dict[str, str], moved: dict[str, str | None]) -> dict[str, str | None]:
    """Return the `wanted` of files that get new paths: each content at its new path, None at the old one."""
    gone = {old: None for old, new in moved.items() if new != old}
    return {**gone, **{new: files[old] for old, new in moved.items() if new is not None}}


def _move(level: int, rng: random.Random) -> dict[str, Any]:
    folder, *words = draw_words(rng, 2 + 3 * level)
    files = {f"{word}.txt": draw_text(rng, 2) for word in words}
    chosen = sorted(files)[:level]
    wanted = _kept(files, {path: f"{folder}/{path}" for path in chosen})
    return {"files": {f"{folder}/": "", **files}, "wanted": wanted, "folder": folder, "chosen": join_with_and(chosen)}


def _play_move(p: ChoreParams) -> ExpertSteps:
    yield "I look at what is there.", ListFiles(".")
    chosen = [path for path, content in p["wanted"].items() if content is None]
    yield "I move what is asked for.", Terminal(f"mv {' '.join(chosen)} {p['folder']}/")


def _rename(level: int, rng: random.Random) -> dict[str, Any]:
    words = draw_words(rng, 8)
    old, new = rng.sample(_KINDS[:4], 2)
    other = next(kind for kind in _KINDS if kind not in (old, new))
    folders = ["", "", f"{words[6]}/"][:level] if level > 1 else [""]
    files = {f"{folder}{word}.{old}": draw_text(rng, 2) for folder, word in zip(folders * 2, words, strict=False)}
    if level == 1:
        files = dict([next(iter(files.items()))])
    moved = {path: str(PurePosixPath(path).with_suffix(f".{new}")) for path in files}
    stays = {f"{words[7]}.{other}": draw_text(rng, 2)}
    return {"files": {**files, **stays}, "wanted": _kept(files, moved), "old": old, "new": new}


def _play_rename(p: ChoreParams) -> ExpertSteps:
    yield "I look at the files, those in folders too.", Terminal("find . -type f")
    command = f"find . -name '*.{p['old']}' -exec sh -c 'mv \"$1\" \"${{1%.{p['old']}}}.{p['new']}\"' _ {{}} \\;"
    yield "I change the ending of each of them.", Terminal(command)


def _sort(level: int, rng: random.Random) -> dict[str, Any]:
    kinds = rng.sample(_KINDS[:4], 1 + level)
    words = draw_words(rng, 2 * len(kinds))
    files = {f"{word}.{kinds[n % len(kinds)]}": draw_text(rng, 2) for n, word in enumerate(words)}
    moved = {path: f"{path.rpartition('.')[2]}/{path}" for path in files}
    return {"files": files, "wanted": _kept(files, moved)}


def _play_sort(p: ChoreParams) -> ExpertSteps:
    yield "I look at the files.", ListFiles(".")
    yield (
        "I make a folder for each ending and move the files.",
        Terminal('for f in *.*; do mkdir -p "${f##*.}" && mv "$f" "${f##*.}/"; done'),
    )


def _remove(level: int, rng: random.Random) -> dict[str, Any]:
    words, kind = draw_words(rng, 8), rng.choice(("tmp", "bak", "old"))
    folders = ("", f"{words[6]}/", f"{words[6]}/{words[7]}/")[:level]
    files, gone = {}, {}
    for number, folder in enumerate(folders):
        gone[f"{folder}{words[number]}.{kind}"] = None
        files[f"{folder}{words[number]}.txt"] = draw_text(rng, 2)
    files |= dict.fromkeys(gone, "x\n") | {f"{words[5]}{kind}.txt": draw_text(rng, 1)}
    return {"files": files, "wanted": gone, "kind": kind}


def _play_remove(p: ChoreParams) -> ExpertSteps:
    yield "I see which there are.", Terminal(f"find . -name '*.{p['kind']}'")
    yield "I remove these.", Terminal(f"find . -name '*.{p['kind']}' -delete")


def _copy(level: int, rng: random.Random) -> dict[str, Any]:
    old, new, inner, *words = draw_words(rng, 7)
    paths = [f"{old}/{words[0]}.txt", f"{old}/{inner}/{words[1]}.txt", f"{old}/{inner}/{words[2]}.csv"][:level]
    files = {path: draw_text(rng, 2) for path in paths}
    wanted = {path.replace(old, new, 1): content for path, content in files.items()}
    return {"files": files, "wanted": wanted, "old": old, "new": new}


def _play_copy(p: ChoreParams) -> ExpertSteps:
    yield "I copy the folder with all that lies in it.", Terminal(f"cp -r {p['old']} {p['new']}")


def _same(level: int, rng: random.Random) -> dict[str, Any]:
    words = sorted(draw_words(rng, 3 + 2 * level))
    originals = words[:2]
    contents = {word: draw_text(rng, 3) for word in originals}
    files, gone = {}, {}
    for number, word in enumerate(words):
        copy = number >= 2 and number % 2 == 0
        files[f"{word}.txt"] = contents[originals[number // 2 % 2]] if copy else contents.get(word, draw_text(rng, 3))
        if copy:
            gone[f"{word}.txt"] = None
    return {"files": files, "wanted": gone}


def _play_same(p: ChoreParams) -> ExpertSteps:
    yield "I see which files say the same.", Terminal("md5sum *.txt | sort")
    code = (
        "from pathlib import Path\nseen = set()\nfor path in sorted(Path('.').glob('*.txt')):\n"
        "    data = path.read_bytes()\n    if data in seen:\n        path.unlink()\n        print('removed', path)\n"
        "    seen.add(data)\n"
    )
    yield "I keep the first of each by name and remove the others.", RunPython(code)


FAMILIES = {
    "move": ChoreFamily("Move {chosen} into the folder {folder}.", _move, _play_move, step_budgets(6, 6, 8)),
    "rename": ChoreFamily(
        "Each file that ends in .{old}, in whatever folder, is to end in .{new} instead.",
        _rename, _play_rename, step_budgets(6, 8, 10),
    ),
    "sort": ChoreFamily(
        "Put each file into a folder that is named as its ending: a.txt into the folder txt, and so on.",
        _sort, _play_sort, step_budgets(8, 10, 12),
    ),
    "remove": ChoreFamily(
        "Remove all files that end in .{kind}, those in folders too.", _remove, _play_remove, step_budgets(6, 6, 8)
    ),
    "copy": ChoreFamily(
        "Make a copy of the folder {old}, and call it {new}.",
        _copy, _play_copy, step_budgets(6, 6, 6),
    ),
    "same": ChoreFamily(
        "Of the files that say the same, keep the one whose name comes first and remove the others.",
        _same, _play_same, step_budgets(8, 10, 12),
    ),
}  # fmt: skip
