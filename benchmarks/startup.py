"""CPU seconds from typing a command to its answer, beside an earlier commit, by turns.

Each command runs as a new process in a workspace that has an iteration. `run` is measured to its first line, with what
the processes that it began have taken by then, in a copy of the workspace, and then stopped. The peer is a worktree of
an earlier commit with the same interpreter; each side's workspace is made by its own code. CPU seconds are those of
user and kernel: a machine that is busy with other work changes them less than the time on the clock. The figure is the
median over the repetitions, the ratio ours / peer.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import psutil
from bench_case import BenchCase, emit_case, exit_code

PROJECT = Path(__file__).resolve().parent.parent
BASELINE = "6659744"
GOAL = 0.5
COMMANDS = {"help": ["--help"], "status": ["status"], "query": ["query", "select count(*) from trajectories"]}
DEADLINE_S = 1800  # an iteration on a busy machine


class Side:
    """One checkout and its workspace with an iteration, which is made where it is not there."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder
        self.workspace = folder / "workspace"
        folder.mkdir(parents=True, exist_ok=True)
        if not self.workspace.exists():
            making = folder / "making"
            shutil.rmtree(making, ignore_errors=True)
            self.check(["init", str(making), "--profile", "small"], folder)
            self.check(["run", "--iteration", "1"], making)
            making.rename(self.workspace)

    def start(self, words: Sequence[str], cwd: Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", "from flywheel.cli import main; main()", *words],
            cwd=cwd,
            # Compiled once, also where a container forbids it: both sides are measured as they are installed.
            env={**os.environ, "PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": ""},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def check(self, words: Sequence[str], cwd: Path) -> None:
        with self.start(words, cwd) as process:
            said, _ = process.communicate(timeout=DEADLINE_S)
        if process.returncode:
            raise RuntimeError(f"{self.root}: flywheel {' '.join(words)}: {said[-500:]}")

    def answer_cpu_s(self, words: Sequence[str]) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.check(words, self.workspace)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def first_line_cpu_s(self) -> float:
        """Of `flywheel run`, which goes on with the next iteration."""
        with tempfile.TemporaryDirectory(dir=self.folder) as temporary:
            workspace = shutil.copytree(self.workspace, Path(temporary) / "workspace", symlinks=True)
            with self.start(["run"], workspace) as process, _interrupted(process):
                line = process.stdout.readline()
                took = _tree_cpu_s(process.pid)
                if " run " not in line and " prefect " not in line:
                    raise RuntimeError(f"{self.root}: the first line of flywheel run is {line!r}")
        return took


@contextlib.contextmanager
def _interrupted(process: subprocess.Popen[str]) -> Iterator[None]:
    """At the end of the block as by Ctrl-C; killed where that is of no use."""
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _tree_cpu_s(pid: int) -> float:
    """What a process and those it began have taken so far, those that have ended among them."""
    process = psutil.Process(pid)
    total = 0.0
    for one in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="flywheel bench startup", description=__doc__)
    parser.add_argument("--baseline", default=BASELINE, help="the commit to compare with")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--commands", nargs="*", default=[*COMMANDS, "run"])
    parser.add_argument("--workspaces", type=Path, help="a folder that keeps both workspaces for the next time")
    options = parser.parse_args(argv)
    cases = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.workspaces or Path(temporary)).resolve()
        tree = Path(temporary) / "baseline"
        subprocess.run(
            ["git", "-C", PROJECT, "worktree", "add", "--quiet", "--detach", tree, options.baseline], check=True
        )
        try:
            sides = {"ours": Side(PROJECT, folder / "ours"), "peer": Side(tree, folder / "peer")}
            for command in options.commands:
                seconds: dict[str, list[float]] = {name: [] for name in sides}
                for repetition in range(-1, options.repetitions):  # the first warms the caches and is not counted
                    for name, side in sides.items():
                        took = side.first_line_cpu_s() if command == "run" else side.answer_cpu_s(COMMANDS[command])
                        if repetition >= 0:
                            seconds[name].append(took)
                ours, peer = median(seconds["ours"]), median(seconds["peer"])
                cases.append(
                    emit_case(
                        BenchCase(
                            "startup",
                            command,
                            "CPU s",
                            ours,
                            peer,
                            f"commit {options.baseline}",
                            ours / peer,
                            GOAL,
                            ours / peer <= GOAL,
                            {
                                "n": options.repetitions,
                                "ours_values": sorted(seconds["ours"]),
                                "peer_values": sorted(seconds["peer"]),
                            },
                        )
                    )
                )
        finally:
            subprocess.run(["git", "-C", PROJECT, "worktree", "remove", "--force", tree], check=True)
    return exit_code(cases)


if __name__ == "__main__":
    raise SystemExit(main())
