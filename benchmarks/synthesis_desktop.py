"""Explore applications of a desktop by AT-SPI, and hold what was found against the hand-made list.

`functions_found` and `trivial` as of the case `general`; each task's script was played twice from a reset before it was
written, and `replayed_twice` is whether it holds twice more. It needs the applications (`apt-get install mousepad
galculator`) and AT-SPI for Python (docs/exploring.md).
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from synthesis_general import GOAL, match_functions, read_hand_list

from flywheel.agent.actions import actions_from_json
from flywheel.envs.computer.backend import COMPUTER_VERIFIERS
from flywheel.envs.computer.computer import Computer, WarmPool
from flywheel.envs.computer.env import ComputerEnv
from flywheel.envs.computer.machine import ComputerSettings
from flywheel.synthesis.exploration import desktop_explorer

# Application -> what its session begins with.
APPS: dict[str, dict[str, Any]] = {
    "mousepad": {
        "files": {"notes.txt": "milk and bread\nthe second line\n"},
        "apps": [["env", "GSETTINGS_BACKEND=keyfile", "mousepad", "notes.txt"]],
        "hidden": [".config/glib-2.0/settings/keyfile"],
    },
    "galculator": {
        "files": {".config/galculator/keep": ""},  # it writes its settings as it ends, where this folder is there
        "apps": [["galculator"]],
        "hidden": [".config/galculator/galculator.conf"],
    },
}


def add_options(parser: Any) -> None:
    """Add the options of this case."""
    parser.add_argument("--apps", nargs="+", choices=APPS, default=list(APPS), help="applications; all where left out")
    parser.add_argument("--app-actions", type=int, default=1000, help="of an exploration (default: %(default)s)")
    parser.add_argument("--app-tasks", type=int, default=15, help="of each, at most (default: %(default)s)")


def run(args: Any) -> dict[str, Any]:
    """Explore the applications; returns the figures of the worst, and of each."""
    figures = {app: asyncio.run(_explore(app, args)) for app in args.apps}
    names = ("functions_found", "replayed_twice", "tasks")
    worst = {name: min(one[name] for one in figures.values()) for name in names}
    trivial = sum(one["trivial"] for one in figures.values())
    met = worst["functions_found"] >= GOAL and worst["replayed_twice"] == 1 and worst["tasks"] > 0 and not trivial
    return {**worst, "trivial": trivial, "met": met, "apps": figures}


async def _explore(app: str, args: Any) -> dict[str, Any]:
    began, source = time.monotonic(), {"world": app, "title": app.title(), "begin": APPS[app]}
    actions, most = (80, 2) if args.quick else (args.app_actions, args.app_tasks)
    given = {"most": most, "actions": actions, "seed": args.seed, "say": lambda line: None}
    found = await desktop_explorer.find_desktop_tasks(source, **given)
    functions = [one.to_json() for one in found.functions]
    rows = read_hand_list(app)
    missing = match_functions(rows, functions)
    held = await _replay(APPS[app], found.tasks)
    told = {
        "functions_found": 1 - len(missing) / len(rows),
        "of": len(rows),
        "missing": missing,
        "functions": len(functions),
        "tasks": len(found.tasks),
        "replayed_twice": sum(held) / len(held) if held else 0.0,
        "trivial": sum(len(proof["actions"]) < 2 for _, proof in found.tasks),
        "instructions": [task["instruction"] for task, _ in found.tasks],
        "counts": dict(sorted(found.counts.items())),
        "seconds": time.monotonic() - began,
    }
    print(json.dumps({"app": app, **told}, ensure_ascii=False), flush=True)
    return told


async def _replay(begin: dict[str, Any], tasks: Any) -> list[bool]:
    """Play each task's script twice more; returns whether both times only its end was rewarded."""
    settings, held = ComputerSettings(warm=0, timeout_s=60), []
    async with WarmPool(lambda: Computer.start(settings), 0) as warm:
        env = ComputerEnv(warm, lambda task: COMPUTER_VERIFIERS[task.verifier], settings.timeout_s)
        walker = desktop_explorer.DesktopWalker(env, {**begin, "allowed": "gui"}, listens=False)
        for task, proof in tasks:
            actions = actions_from_json(json.dumps(proof["actions"]))
            params = {"files": {}, **task["begin"], **task["end"]}
            held.append(all([await desktop_explorer.holds_again(walker, params, actions) for _ in range(2)]))
        await env.close()
    return held
