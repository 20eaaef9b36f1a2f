"""Draw chores on settings files in three common formats: ini, JSON, and lines of name = value."""

from __future__ import annotations

import json
import random
from typing import Any

from flywheel.agent.actions import ReadFile, RunPython, Terminal
from flywheel.envs.suites.chores.family import ChoreFamily, ChoreParams, ExpertSteps, draw_words, step_budgets

_KEYS = ("port", "timeout", "workers", "retries", "limit", "interval", "size", "depth")


def _ini(level: int, rng: random.Random) -> dict[str, Any]:
    """Draw a key that is in `level` + 1 sections, of which one is to be changed."""
    path, *sections = draw_words(rng, 2 + level)
    key, *others = rng.sample(_KEYS, 3)
    values = {section: {one: rng.randint(1, 900) for one in (key, *others)} for section in sections[: level + 1]}
    section, new = rng.choice(list(values)), rng.randint(1000, 9000)
    wanted = {name: {**pairs, key: new} if name == section else pairs for name, pairs in values.items()}
    name = f"{path}.ini"
    return {"files": {name: _as_ini(values)}, "wanted": {name: _as_ini(wanted)}, "path": name, "section": section,
            "key": key, "new": new}  # fmt: skip


def _as_ini(values: dict[str, dict[str, int]]) -> str:
    return "\n".join(
        f"[{section}]\n" + "".join(f"{key} = {value}\n" for key, value in pairs.items())
        for section, pairs in values.items()
    )


def _play_ini(p: ChoreParams) -> ExpertSteps:
    yield "I read the settings.", ReadFile(p["path"])
    yield (
        "I change the value in its section alone.",
        Terminal(f"sed -i '/^\\[{p['section']}\\]/,/^\\[/ s/^{p['key']} = .*/{p['key']} = {p['new']}/' {p['path']}"),
    )


def _json(level: int, rng: random.Random) -> dict[str, Any]:
    """Draw a key nested `level` deep."""
    path, *way = draw_words(rng, level)
    key, *others = rng.sample(_KEYS, 4)
    changed = rng.randint(1000, 9000)
    before = {one: rng.randint(1, 900) for one in (key, *others)}
    after = {**before, key: changed}
    for name in reversed(way):
        before, after = {name: before, "version": level}, {name: after, "version": level}
    name = f"{path}.json"
    return {"files": {name: json.dumps(before, indent=2)}, "wanted": {name: json.dumps(after)}, "path": name,
            "way": [*way, key], "dotted": ".".join([*way, key]), "new": changed}  # fmt: skip


def _play_json(p: ChoreParams) -> ExpertSteps:
    yield "I read the settings.", ReadFile(p["path"])
    place = "".join(f"[{name!r}]" for name in p["way"])
    code = f"import json\nvalue = json.load(open({p['path']!r}))\nvalue{place} = {p['new']}\n"
    yield "I change the value.", RunPython(code + f"json.dump(value, open({p['path']!r}, 'w'), indent=2)\n")


def _lines(level: int, rng: random.Random) -> dict[str, Any]:
    """Draw lines to change: one (level 1); one that is commented out (2); that, and a new one to add (3)."""
    path = f"{draw_words(rng, 1)[0]}.conf"
    keys = rng.sample(_KEYS, 5)
    values = {key: rng.randint(1, 900) for key in keys[:4]}
    lines = [f"{key} = {value}" for key, value in values.items()]
    wanted, new, other = list(lines), rng.randint(1000, 9000), rng.randint(1000, 9000)
    if level > 1:
        lines[1] = f"# {lines[1]}"
    wanted[1] = f"{keys[1]} = {new}"
    if level > 2:
        wanted.append(f"{keys[4]} = {other}")
    ask = f"set {keys[1]} to {new}" + (", where it is switched off now" if level > 1 else "")
    ask += f", and add {keys[4]} = {other} as its last line" if level > 2 else ""
    return {"files": {path: "\n".join(lines) + "\n"}, "wanted": {path: "\n".join(wanted) + "\n"}, "path": path,
            "ask": ask, "key": keys[1], "new": new, "added": wanted[4] if level > 2 else ""}  # fmt: skip


def _play_lines(p: ChoreParams) -> ExpertSteps:
    yield "I read the settings.", ReadFile(p["path"])
    command = f"sed -i 's/^#* *{p['key']} = .*/{p['key']} = {p['new']}/' {p['path']}"
    command += f" && echo '{p['added']}' >> {p['path']}" if p["added"] else ""
    yield "I change the line.", Terminal(command)


FAMILIES = {
    "ini": ChoreFamily(
        "In {path}, set {key} of the section {section} to {new}.", _ini, _play_ini, step_budgets(6, 6, 8)
    ),
    "setting": ChoreFamily("In {path}, set {dotted} to {new}.", _json, _play_json, step_budgets(6, 6, 8)),
    "lines": ChoreFamily("In {path}, {ask}.", _lines, _play_lines, step_budgets(6, 6, 8)),
}
