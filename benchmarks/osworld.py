"""Measure how much of OSWorld is played here, whether its judges agree with desktop-env's, and what a desktop costs.

`flywheel bench osworld EXAMPLES`: EXAMPLES is OSWorld's `evaluation_examples` with `test_all.json`. It needs what
`make osworld` installs. OSWorld's own files cannot be downloaded where there is no internet, so scripts make start
files and solutions of the same names and kinds (`osworld_cases.py`). JSON lines: tasks read, `playable` (each step,
getter, metric and application is here, whether or not their files are), `made` (tasks with made files), `start_scores`
and `solved_scores` by both judges, `agree` on all states, then real episodes: scores, memory, steps a second.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flywheel.agent.actions import Action, Finished, Hotkey, Terminal, Type, Wait
from flywheel.config import parse_settings
from flywheel.envs import registry
from flywheel.envs.base import Task
from flywheel.envs.computer.checker import CHECKER_FOLDER, CHECKER_HOME
from flywheel.envs.computer.osworld import commands, official, runner, suite
from flywheel.envs.computer.osworld.conversion import read_example
from flywheel.envs.computer.osworld.judge import METRICS
from flywheel.envs.registry import open_environments
from flywheel.envs.tasks.drawing import make_task
from flywheel.utils.confidence_intervals import wilson_interval

HERE = Path(__file__).parent
_SCREEN = {"width": 1920, "height": 1080}
_SECONDS = 300.0  # for a task's set-up, and for its judging: other work may share the machine


def main(argv: Sequence[str] | None = None) -> int:
    asked = _parse_arguments(argv)
    environment = official.find_environment()
    if environment is None:
        sys.exit("desktop-env is not installed: make osworld")
    python = environment / "bin/python"
    listed = asked.examples / "test_all.json"
    _tell_read(suite.list_task_files(listed))
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "made")
        limit = [str(asked.tasks)] if asked.tasks else []
        make = [python, HERE / "osworld_cases.py", asked.examples / "examples", made, *limit]
        subprocess.run(make, check=True, stdout=sys.stderr)
        tasks = _read_with_files(listed, made / "cache")
        questions = _list_questions(tasks, asked.examples / "examples", made, Path(folder))
        _tell_judged(_ask_both(python, questions))
        if asked.episodes:
            asyncio.run(_play(asked.examples, made, tasks, asked.episodes))
    return 0


def _parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="flywheel bench osworld", description=__doc__.split("\n\n")[0])
    parser.add_argument("examples", type=Path, help="OSWorld's evaluation_examples")
    parser.add_argument("--tasks", type=int, default=0, help="tasks with made files, drawn by a seed; 0: all")
    parser.add_argument("--episodes", type=int, default=8, help="tasks that are played in desktops; 0: none")
    asked = parser.parse_args(argv)
    if not (asked.examples / "test_all.json").is_file():
        parser.error(f"there is no test_all.json in {asked.examples}")
    return asked


def _tell(**line: Any) -> None:
    print(json.dumps(line), flush=True)


# What is read and could be played.


def _tell_read(paths: list[Path]) -> None:
    played, left_out, reasons = suite.read_task_files(paths, None, True, suite.OsworldFiles(tasks=["."]))
    without_files = reasons.pop(commands.NEEDS_INTERNET_FILE, 0)
    _tell(metric="read", value=len(paths) - reasons.get(commands.NEEDS_WHOLE_FILE, 0), of=len(paths))
    _tell(metric="playable", value=len(played) + without_files, without_their_files=len(played), left_out=reasons)
    domains: dict[str, Counter[str]] = {}
    for path in paths:
        name = f"{path.parent.name}_{path.stem}"
        why = left_out.get(name, "").partition(":")[0]
        ready = not why or why == commands.NEEDS_INTERNET_FILE
        domains.setdefault(path.parent.name, Counter())["playable" if ready else why] += 1
    _tell(metric="by_domain", value={domain: dict(found.most_common()) for domain, found in domains.items()})


def _read_with_files(listed: Path, cache: Path) -> dict[str, dict[str, Any]]:
    said = suite.OsworldFiles(tasks=["."], seconds=_SECONDS, files_mb=64)
    return suite.read_task_files(suite.list_task_files(listed), cache, True, said)[0]


# Both judges on the same ends.


def _list_questions(tasks: dict[str, Any], examples: Path, made: Path, folder: Path) -> list[dict[str, Any]]:
    """List the ends of the made tasks that can be played, for `osworld_judging.py`."""
    questions, lost = [], []
    for place in sorted((made / "states").iterdir()):
        domain, _, stem = place.name.rpartition("_")
        if place.name not in tasks:
            lost.append(place.name)
            continue
        task = tasks[place.name]["osworld"]
        files = folder / "gold" / place.name
        files.mkdir(parents=True)
        for name, content in task["gold"].items():
            (files / name).write_bytes(base64.b64decode(content))
        example = examples / domain / f"{stem}.json"
        golds = _list_golds(example, made / "cache" / read_example(example).id)
        for state in sorted(place.iterdir()):
            metrics = [
                {**one, **{side: _place_here(one[side], state, files) for side in ("result", "expected")}}
                for one in task["metrics"]
            ]
            told = {"task": place.name, "state": state.name, "home": str(state), "metrics": metrics}
            questions.append({**told, "conj": task["conj"], "example": str(example), "golds": golds})
    _tell(metric="made", value=len({one["task"] for one in questions}), states=len(questions), not_playable=lost)
    return questions


def _place_here(entry: dict[str, Any], home: Path, files: Path) -> dict[str, Any]:
    """Return a metric's entry with paths of this machine in place of those of the judge's sandbox."""

    def here(path: str) -> str:
        return path.replace(CHECKER_HOME, str(home), 1).replace(CHECKER_FOLDER, str(files), 1)

    placed = runner.place_in_checker(entry, {})
    if "slide_part" in placed:
        return {"slide_part": {**placed["slide_part"], "file": here(placed["slide_part"]["file"])}}
    paths = {name: here(placed[name]) for name in ("file", "tree", "last_row") if name in placed}
    several = {"files": [here(path) for path in placed["files"]]} if "files" in placed else {}
    return {**placed, **paths, **several}


def _list_golds(example: Path, cache: Path) -> dict[str, str]:
    expected = json.loads(example.read_text())["evaluator"].get("expected") or {}
    found = {}
    for one in expected if isinstance(expected, list) else [expected]:
        if one and one.get("type") == "cloud_file":
            many = isinstance(one["path"], list)
            pairs = zip(one["dest"], one["path"], strict=True) if many else [(one["dest"], one["path"])]
            found |= {dest: str(cache / f"{uuid.uuid5(uuid.NAMESPACE_URL, url)}_{dest}") for dest, url in pairs}
    return found


def _as_own(metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the metrics as flywheel's own judge them where their packages are there; [] where one cannot."""
    for metric in metrics:
        known = METRICS.get(metric["func"])
        if known is None or known.unable(metric["expected"].get("value") or {}, metric["options"]):
            return []
    return [{**metric, "module": ""} for metric in metrics]


def _ask_both(python: Path, questions: list[dict[str, Any]]) -> dict[str, dict[tuple[str, str], tuple[float, str]]]:
    scores: dict[str, dict[tuple[str, str], tuple[float, str]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        asked = Path(folder, "questions.json")
        by_own = [{**one, "metrics": found} for one in questions if (found := _as_own(one["metrics"]))]
        for way, chosen in (("ours", questions), ("theirs", questions), ("own", by_own)):
            asked.write_text(json.dumps(chosen))
            told = Path(folder, way)
            command = [python, HERE / "osworld_judging.py", asked, "theirs" if way == "theirs" else "ours", told]
            quiet = {**os.environ, "PYTHONWARNINGS": "ignore"}
            ended = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True, env=quiet)
            if ended.returncode:
                sys.exit(f"{way}: {ended.stderr[-2000:]}")
            lines = map(json.loads, told.read_text().splitlines())
            scores[way] = {(one["task"], one["state"]): (one["score"], one["why"]) for one in lines}
    return scores


def _tell_judged(scores: dict[str, dict[tuple[str, str], tuple[float, str]]]) -> None:
    ours, theirs = ({key: score for key, (score, _) in scores[way].items()} for way in ("ours", "theirs"))
    for state, right in (("start", 0.0), ("solved", 1.0)):
        of = [key for key in ours if key[1] == state]
        wrong = {key[0]: [ours[key], theirs[key]] for key in of if (ours[key], theirs[key]) != (right, right)}
        mean = [statistics.fmean(side[key] for key in of) for side in (ours, theirs)]
        _tell(metric=f"{state}_scores", ours=mean[0], theirs=mean[1], tasks=len(of), otherwise=wrong)
    differing = {
        " ".join(key): {"ours": scores["ours"][key], "theirs": scores["theirs"][key]}
        for key in ours if abs(ours[key] - theirs[key]) > 1e-9
    }  # fmt: skip
    low, high = wilson_interval(len(ours) - len(differing), len(ours))
    _tell(
        metric="agree", value=1 - len(differing) / len(ours), low=low, high=high, states=len(ours), differing=differing
    )
    own = {key: score for key, (score, _) in scores["own"].items()}
    unlike = {" ".join(key): [own[key], theirs[key]] for key in own if abs(own[key] - theirs[key]) > 1e-9}
    low, high = wilson_interval(len(own) - len(unlike), len(own))
    _tell(metric="agree_of_own_metrics", value=1 - len(unlike) / len(own), low=low, high=high, states=len(own),
          tasks=len({task for task, _ in own}), differing=unlike)  # fmt: skip
    weak = [" ".join(key) for key in theirs if key[1] not in ("start", "solved") and theirs[key] == 1.0]
    _tell(metric="wrong_ends_that_pass", value=len(weak), which=weak)


# Episodes in desktops.

_SOLVED_BY_KEYS: dict[str, list[Action]] = {
    # a name box, a value: as a person does it in LibreOffice Calc
    "libreoffice_calc_1e8df695": [
        Hotkey(("ctrl", "home")), *(Hotkey(("right",)) for _ in range(3)), Type("Profit\n=B2-C2\n"),
        *(Type(f"=B{row}-C{row}\n") for row in range(3, 10)),
    ],
    "libreoffice_calc_abed40dc": [
        Hotkey(("ctrl", "home")), Hotkey(("right",)), Hotkey(("down",)), Type("Ann\nBen\nCleo\nDan\n"),
    ],
    "libreoffice_calc_01b269ae": [
        Hotkey(("ctrl", "home")), Hotkey(("down",)), Hotkey(("down",)), Type("one\n"), Hotkey(("down",)), Type("two\n"),
    ],
    "libreoffice_writer_3ef2b351": [Hotkey(("ctrl", "home")), Hotkey(("ctrl", "e"))],
}  # fmt: skip


_END_PROGRAMS = (
    "pkill 'chrome|thunderbird|gimp|vlc'; n=0; "
    "while pgrep 'chrome|thunderbird|gimp|vlc' >/dev/null && [ $n -lt 40 ]; do sleep 0.2; n=$((n+1)); done"
)


async def _play(examples: Path, made: Path, tasks: dict[str, Any], count: int) -> None:
    """Play tasks in real desktops, twice each: doing nothing, and to the solved state."""
    chosen = _choose_episodes(tasks, made, count)
    manifest = made / "world.json"
    listing: dict[str, list[str]] = {}
    for name in chosen:
        domain, _, stem = name.rpartition("_")
        listing.setdefault(domain, []).append(stem)
    (made / "examples").symlink_to((examples / "examples").resolve())
    (made / "list.json").write_text(json.dumps(listing))
    said = {"tasks": ["list.json"], "files": "cache", "seconds": _SECONDS, "files_mb": 64, "max_steps": 60}
    manifest.write_text(json.dumps({"kind": "computer", "world": "osworld", "osworld": said}))
    kind = {**_SCREEN, "timeout_s": _SECONDS + 60, "warm": 0, "places": 1, "within_ms": 1000.0}
    settings = parse_settings(
        {"sandbox": {"kinds": {"computer": kind}}, "synthesis": {"worlds": [str(manifest)]}}, where="benchmark"
    )
    registry.load_external_suites(settings, made)
    world = registry.get_task_suite("osworld")
    memory, seconds, n_steps = [], 0.0, 0
    scores: dict[str, list[float]] = {"start": [], "solved": []}
    for name in chosen:
        task = make_task(world, name, 1, 1, "eval")
        async with open_environments(settings, [task]) as environments:
            for state, actions in (("start", []), ("solved", _solve(name, made))):
                begun = time.perf_counter()
                told = await _play_once(environments, task, [*actions, Finished("")])
                memory.append(told["memory_gib"])
                seconds, n_steps = seconds + told["steps_s"], n_steps + told["steps"]
                scores[state].append(told["score"])
                _tell(metric="episode", task=name, state=state, whole_s=time.perf_counter() - begun, **told)
    _tell(metric="episodes", value=len(chosen), start=scores["start"], solved=scores["solved"])
    _tell(metric="memory_a_desktop_gib", value=max(memory), median=statistics.median(memory))
    _tell(metric="steps_per_second", value=n_steps / seconds, steps=n_steps)


def _choose_episodes(tasks: dict[str, Any], made: Path, count: int) -> list[str]:
    """Choose tasks over all applications in turn: first those that are solved by keys."""
    there = [place.name for place in sorted((made / "states").iterdir()) if place.name in tasks]
    by_keys = [name for name in there if _keys_of(name)]
    rest: dict[str, list[str]] = {}
    for name in there:
        if name not in by_keys:
            rest.setdefault(name.rpartition("_")[0], []).append(name)
    turns = [
        names[turn] for turn in range(max(map(len, rest.values()))) for names in rest.values() if turn < len(names)
    ]
    n_keys = min(len(by_keys), (count + 1) // 2)
    return [*by_keys[:n_keys], *turns][:count]


def _keys_of(name: str) -> list[Action]:
    return next((keys for start, keys in _SOLVED_BY_KEYS.items() if name.startswith(start)), [])


def _solve(name: str, made: Path) -> list[Action]:
    """Return the actions that bring a task to its solved state: keys where there are some, else its files are put."""
    if keys := _keys_of(name):
        return keys
    home = made / "states" / name / "solved"
    # what runs would write its settings over those that are put
    actions: list[Action] = (
        [Terminal(_END_PROGRAMS)] if name.startswith(("chrome", "thunderbird", "gimp", "vlc")) else []
    )
    for path in sorted(one for one in home.rglob("*") if one.is_file() and one.suffix != ".absent"):
        text = base64.b64encode(path.read_bytes()).decode()
        place = f"/home/user/{path.relative_to(home)}"
        actions.append(Terminal(f"mkdir -p '{Path(place).parent}'; base64 -d > '{place}' <<'END'\n{text}\nEND"))
    return actions


async def _play_once(environments: Any, task: Task, actions: list[Action]) -> dict[str, Any]:
    async with environments.env(task) as env:
        begun = time.perf_counter()
        await env.reset(task, 1)
        reset_s = time.perf_counter() - begun
        await env.step(Wait())
        memory = env._computer.machine.memory
        begun = time.perf_counter()
        for action in actions[:-1]:
            await env.step(action)
        steps_s = time.perf_counter() - begun
        last = await env.step(actions[-1])
        return {
            "score": last.reward, "reason": last.info["state"]["checked"]["reason"], "reset_s": reset_s,
            "steps": len(actions) - 1, "steps_s": steps_s, "memory_gib": memory / 2**30,
        }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
