"""Count the files that a trajectory passes on its way from the first environment step to SFT's first optimiser step.

A file counts where at least one of its functions is executed within the stages rollout, score, route and sft: from
the first `step` of an environment until the first step of SFT's optimiser ends. Only Python files of `flywheel/` count,
without the packages `config`, `utils` and `cli` and what an earlier commit had in their place. What a module does when
it is imported does not count; what its process and its threads do, does, whether or not it looks at the trajectory (the
stages' own machinery, the recording in DVC). Other processes, such as the browser, do not. Between route and sft the
stage ct runs uncounted, since sft begins from its model.

Both sides make a workspace of the profile `small` and run the stages by `flywheel stage`, under a profile function. The
peer is an earlier commit; five minutes a side. `--list` prints the files, each below the first stage that enters it.
`suites`: those of the count that are content of the tasks that were drawn.

The second figure is what a reader walks through: 71 files of commit 6659744 that a review named, read by hand from the
first step to the gradient, and the files of today that hold most of their lines. It is counted in a second
(`--walk-alone`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench_case import BenchCase, emit_case, exit_code

PROJECT = Path(__file__).resolve().parent.parent
BASELINE = "6659744"
GOAL = 35
DEADLINE_S = 1800
SUITES = ("flywheel/envs/suites/", "flywheel/" + "worlds/")
TRACER = Path(__file__).with_name("trajectory_path_trace.py")
BEFORE, PATH, BETWEEN = ("ingest", "synthesize"), ("rollout", "score", "route", "sft"), {"sft": "ct"}


@dataclass(frozen=True)
class Layout:
    """Where a tree keeps what this counts.

    begin: a program that begins iteration 1 of the workspace it runs in. environment: the end of the path of the file
    whose class plays browsers. left_out: paths that do not count.
    """

    begin: str
    environment: str
    left_out: tuple[str, ...]


PRESENT = Layout(
    """
from pathlib import Path
from flywheel import config
from flywheel.config.workspace import Workspace
from flywheel.pipeline import iterations
ws = Workspace.find(Path.cwd())
chosen = config.load_settings(ws.params)
iterations.record_base_model(ws, chosen)
iterations.begin_iteration(ws, 1, chosen)
""",
    "envs/browser/env.py",
    ("flywheel/config/", "flywheel/utils/", "flywheel/cli/"),
)
EARLIER = Layout(
    """
from pathlib import Path
from flywheel import settings, turns
from flywheel.store import versioning
from flywheel.workspace import Workspace
ws = Workspace.find(Path.cwd())
chosen = settings.load(ws.params)
turns.found(ws, chosen)
versioning.add_iteration(ws, 1, chosen)
""",
    "sandbox/browser.py",
    tuple(
        f"flywheel/{name}"
        for name in (
            *("settings/", "workspace.py", "identity.py", "run_lock.py", "yaml_text.py"),
            *("commands/", "cli.py", "console.py", "init.py"),
            *("errors.py", "files.py", "findings.py", "progress.py", "memory.py", "intervals.py", "secret.py"),
            *("termination.py", "parent.py", "local_server.py"),
        )
    ),
)


# The files that the review named, in the order of the walk, without `flywheel/` and `.py`.
WALK = Path(__file__).with_name("trajectory_walk.txt").read_text(encoding="utf-8").split()
MIN_CHARACTERS = 25  # of a line that tells files apart


def find_walked_files() -> dict[str, str]:
    """Map each file of the walk at commit 6659744 to the file of today that holds most of its lines and words.

    A line or a word counts by how few files of today have it; words find what was reworded.
    """
    today = {
        str(path.relative_to(PROJECT)): _lines_and_words(path.read_text())
        for path in (PROJECT / "flywheel").rglob("*.py")
    }
    having = Counter(part for parts in today.values() for part in parts)
    found = {}
    for name in WALK:
        earlier = f"flywheel/{name}.py"
        show = ["git", "-C", PROJECT, "show", f"{BASELINE}:{earlier}"]
        parts = _lines_and_words(subprocess.run(show, capture_output=True, text=True, check=True).stdout)

        def likeness(path: str, parts: set[str] = parts) -> float:
            return sum((10 if " " in part else 1) / having[part] for part in parts & today[path])

        found[earlier] = max(today, key=likeness)
    return found


def _lines_and_words(text: str) -> set[str]:
    lines = {stripped for line in text.splitlines() if len(stripped := line.strip()) > MIN_CHARACTERS}
    return lines | set(re.findall(r"\w{5,}", text))


def count_walk(list_files: bool) -> BenchCase:
    """Count the files of today in the review's walk; the peer is its own count, at commit 6659744."""
    walked = find_walked_files()
    if list_files:
        for earlier, now in walked.items():
            print(f"  {earlier:50} {now}")
    ours, peer = len(set(walked.values())), len(WALK)
    return BenchCase(
        "trajectory_path",
        "files of the review's walk",
        "count",
        ours,
        peer,
        f"commit {BASELINE}",
        ours / peer,
        GOAL,
        ours <= GOAL,
        {},
    )


def trace_stages(root: Path, layout: Layout, folder: Path) -> dict[str, dict[str, str]]:
    """Run the stages of one tree; returns stage -> {file: the first of its functions}."""
    workspace = folder / "workspace"
    command = [sys.executable, "-P", "-c", "from flywheel.cli import main; main()"]
    check(root, [*command, "init", str(workspace), "--profile", "small"], folder)
    check(root, [sys.executable, "-P", "-c", layout.begin], workspace)
    for stage in BEFORE:
        check(root, [*command, "stage", stage, "--iteration", "1"], workspace)
    passed = {}
    for stage in PATH:
        if stage in BETWEEN:
            check(root, [*command, "stage", BETWEEN[stage], "--iteration", "1"], workspace)
        out = folder / f"{stage}.json"
        marks = [layout.environment if stage == "rollout" else "", "step" if stage == "sft" else ""]
        words = [str(TRACER), str(out), *marks, "stage", stage, "--iteration", "1"]
        check(root, [sys.executable, "-P", *words], workspace)
        files = dict(json.loads(out.read_text(encoding="utf-8")))
        passed[stage] = {file: first for file, first in files.items() if not file.startswith(layout.left_out)}
    return passed


def check(root: Path, command: Sequence[str], cwd: Path) -> None:
    """Raises RuntimeError, with its last words, where the command fails."""
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=DEADLINE_S)
    if done.returncode:
        said = (done.stderr + done.stdout)[-800:]
        raise RuntimeError(f"{root}: {' '.join(command[3:])[:80]}: {said}")


def list_new_files(passed: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Stage -> the files that no stage before it has entered."""
    known: set[str] = set()
    result = {}
    for stage, files in passed.items():
        result[stage] = {file: first for file, first in files.items() if file not in known}
        known |= files.keys()
    return result


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="flywheel bench trajectory_path", description=__doc__.partition("\n")[0])
    parser.add_argument("--baseline", default=BASELINE, help="the commit to compare with; empty: none")
    parser.add_argument("--list", action="store_true", help="print the files too, by the stage that enters them first")
    parser.add_argument("--walk-alone", action="store_true", help="print the second figure alone")
    options = parser.parse_args(argv)
    walk = emit_case(count_walk(options.list))
    if options.walk_alone:
        return exit_code([walk])
    sides = {}
    with tempfile.TemporaryDirectory() as temporary:
        (Path(temporary) / "ours").mkdir()
        sides["ours"] = list_new_files(trace_stages(PROJECT, PRESENT, Path(temporary) / "ours"))
        if options.baseline:
            tree = Path(temporary) / "baseline"
            git = ["git", "-C", PROJECT, "worktree"]
            subprocess.run([*git, "add", "--quiet", "--detach", tree, options.baseline], check=True)
            try:
                (Path(temporary) / "peer").mkdir()
                sides["peer"] = list_new_files(trace_stages(tree, EARLIER, Path(temporary) / "peer"))
            finally:
                subprocess.run([*git, "remove", "--force", tree], check=True)
    if options.list:
        for side, stages in sides.items():
            for stage, files in stages.items():
                print(f"{side}, {stage}: {len(files)} files")
                for file, first in files.items():
                    print(f"  {file:60} {first}")
    counts = {side: sum(map(len, stages.values())) for side, stages in sides.items()}
    ours, peer = counts["ours"], counts.get("peer")
    extra = {f"{side}_by_stage": {stage: len(files) for stage, files in sides[side].items()} for side in sides}
    for side, stages in sides.items():
        files = [file for files in stages.values() for file in files]
        extra[f"{side}_suites"] = sum(file.startswith(SUITES) for file in files)
        extra[f"{side}_by_package"] = dict(Counter(file.split("/")[1].removesuffix(".py") for file in files))
    case = BenchCase(
        "trajectory_path",
        "files from rollout to gradient",
        "count",
        ours,
        peer,
        f"commit {options.baseline}" if peer else "",
        ours / peer if peer else None,
        GOAL,
        ours <= GOAL,
        extra,
    )
    return exit_code([walk, emit_case(case)])


if __name__ == "__main__":
    raise SystemExit(main())
