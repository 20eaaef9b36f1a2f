"""Draw chores that write, change, search and join texts."""

from __future__ import annotations

import random
from typing import Any

from flywheel.agent.actions import Finished, ListFiles, ReadFile, Terminal, WriteFile
from flywheel.envs.suites.chores.family import (
    CHORE_WORDS,
    ChoreFamily,
    ChoreParams,
    ExpertSteps,
    draw_text,
    draw_words,
    step_budgets,
)


def _write(level: int, rng: random.Random) -> dict[str, Any]:
    folder, name, *words = draw_words(rng, 3 + 3 * level)
    path = f"{name}.txt" if level == 1 else f"{folder}/{name}.txt"
    content = "".join(f"{' '.join(words[n * 3 : n * 3 + 3])}\n" for n in range(level))
    lines = " / ".join(content.splitlines())
    return {"files": {}, "wanted": {path: content}, "path": path, "lines": lines}


def _play_write(p: ChoreParams) -> ExpertSteps:
    yield "I write the file.", WriteFile(p["path"], p["wanted"][p["path"]])


def _replace(level: int, rng: random.Random) -> dict[str, Any]:
    old, new, folder, *words = draw_words(rng, 8)
    others = [word for word in CHORE_WORDS if word not in (old, new) and old not in word]
    paths = [f"{words[0]}.txt", f"{words[1]}.txt", f"{folder}/{words[2]}.txt"][:level]
    files = {path: _lines(rng, others, old) for path in paths}
    wanted = {path: content.replace(old, new) for path, content in files.items()}
    where = f"in {paths[0]}" if level == 1 else "in all .txt files" + (", those in folders too" if level == 3 else "")
    stays = {f"{words[3]}.md": f"{old} stays here\n"}
    return {"files": {**files, **stays}, "wanted": wanted, "old": old, "new": new, "where": where}


def _lines(rng: random.Random, others: list[str], word: str) -> str:
    lines = [rng.choices(others, k=5) for _ in range(4)]
    for line in rng.sample(lines, 2):
        line[rng.randrange(5)] = word
    return "".join(" ".join(line) + "\n" for line in lines)


def _play_replace(p: ChoreParams) -> ExpertSteps:
    yield "I see where it stands.", Terminal(f"grep -rn {p['old']} --include='*.txt' .")
    command = f"find . -name '*.txt' -exec sed -i 's/{p['old']}/{p['new']}/g' {{}} +"
    yield "I replace it there.", Terminal(command)


def _find(level: int, rng: random.Random) -> dict[str, Any]:
    word, folder, inner, *titles = draw_words(rng, 6 + 3 * level)
    others = [one for one in CHORE_WORDS if one != word]
    folders = ("", f"{folder}/", f"{folder}/{inner}/")[:level]
    paths = [f"{rng.choice(folders)}{title}.txt" for title in titles]
    files = {path: "".join(" ".join(rng.choices(others, k=5)) + "\n" for _ in range(3)) for path in paths}
    right = rng.choice(paths)
    lines = files[right].splitlines()
    lines[1] = f"{lines[1]} {word}"
    files[right] = "\n".join(lines) + "\n"
    return {"files": files, "answer": right, "word": word}


def _play_find(p: ChoreParams) -> ExpertSteps:
    yield "I search all files.", Terminal(f"grep -rlw {p['word']} *")
    yield "That is the file.", Finished(p["answer"])


def _count(level: int, rng: random.Random) -> dict[str, Any]:
    word, *titles = draw_words(rng, 1 + level)
    files, count = {}, 0
    for title in titles:
        lines = draw_text(rng, 12).replace(word, titles[0]).splitlines()
        chosen = rng.sample(range(12), rng.randint(2, 6))
        files[f"{title}.txt"] = "".join(
            f"{line} {word}\n" if n in chosen else f"{line}\n" for n, line in enumerate(lines)
        )
        count += len(chosen)
    where = f"{titles[0]}.txt have" if level == 1 else "all .txt files together have"
    return {"files": files, "answer": str(count), "word": word, "where": where}


def _play_count(p: ChoreParams) -> ExpertSteps:
    yield "I count them.", Terminal(f"cat *.txt | grep -cw {p['word']}")
    yield "That is the number.", Finished(p["answer"])


def _join(level: int, rng: random.Random) -> dict[str, Any]:
    out, *words = draw_words(rng, 2 + level)
    numbers = [str(n).zfill(2) for n in sorted(rng.sample(range(1, 30), len(words)))]
    files = {f"{number}-{word}.txt": draw_text(rng, 2) for number, word in zip(numbers, words, strict=True)}
    joined = "".join(files[path] for path in sorted(files))
    return {"files": files, "wanted": {f"{out}.md": joined}, "out": f"{out}.md"}


def _play_join(p: ChoreParams) -> ExpertSteps:
    yield "I look at their names.", ListFiles(".")
    yield "I put them together in the order of their numbers.", Terminal(f"cat *.txt > {p['out']}")


def _unique(level: int, rng: random.Random) -> dict[str, Any]:
    """Draw lines to sort (level 1), each to be kept once (2), of several files (3)."""
    out, *titles = draw_words(rng, 4)
    titles = titles[: max(1, level - 1) if level < 3 else 3]
    lines = {title: rng.sample(CHORE_WORDS, 6) for title in titles}
    if level > 1:
        for some in lines.values():
            some += rng.sample(some, 3)
    files = {f"{title}.txt": "".join(f"{line}\n" for line in some) for title, some in lines.items()}
    every = [line for some in lines.values() for line in some]
    wanted = sorted(set(every)) if level > 1 else sorted(every)
    what = "the lines of all .txt files" if level == 3 else f"the lines of {titles[0]}.txt"
    once = ", each of them once," if level > 1 else ""
    result = {f"{out}.list": "".join(f"{line}\n" for line in wanted)}
    return {"files": files, "wanted": result, "out": f"{out}.list", "what": what, "once": once}


def _play_unique(p: ChoreParams) -> ExpertSteps:
    yield "I look at the texts.", ReadFile(next(iter(p["files"])))
    yield "I sort the lines.", Terminal(f"sort {'-u ' if p['once'] else ''}*.txt > {p['out']}")


FAMILIES = {
    "write": ChoreFamily("Write a file {path} with these lines: {lines}", _write, _play_write, step_budgets(4, 6, 6)),
    "replace": ChoreFamily("Replace the word {old} by {new} {where}.", _replace, _play_replace, step_budgets(6, 8, 8)),
    "find": ChoreFamily(
        "Which .txt file has the word {word}? Answer with its path from your home folder.",
        _find, _play_find, step_budgets(6, 8, 8),
    ),
    "count": ChoreFamily("How many lines of {where} the word {word}?", _count, _play_count, step_budgets(6, 6, 6)),
    "join": ChoreFamily(
        "Put the texts that begin with a number one after the other, by their numbers, into {out}.",
        _join, _play_join, step_budgets(6, 6, 8),
    ),
    "unique": ChoreFamily(
        "Write {what}{once} into {out}, in alphabetical order.",
        _unique, _play_unique, step_budgets(6, 6, 8),
    ),
}  # fmt: skip
