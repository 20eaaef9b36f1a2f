"""Seconds from typing a command to its answer, beside an earlier commit, by turns.

Each command runs as a new process. `run` is timed to its first line, in a fresh workspace, and then stopped. The
peer is a worktree of an earlier commit with the same interpreter; each side has a workspace made by its own code. The
figure is the median over the repetitions, the ratio ours / peer.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from flywheel.cli.bench import BenchCase, emit_case, exit_code

PROJECT = Path(__file__).resolve().parent.parent
BASELINE = "6659744"
GOAL = 0.5
COMMANDS = {"--help": ["--help"], "status": ["status"], "query": ["query", "select count(*) from trajectories"]}
DEADLINE_S = 300


class Side:
    """One checkout and its workspace."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder
        self.workspace = folder / "workspace"

    def command(self, words: Sequence[str]) -> list[str]:
        return [sys.executable, "-P", "-c", "from flywheel.cli import main; main()", *words]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.root)}

    def make_workspace(self, name: str = "workspace") -> Path:
        target = self.folder / name
        self.check(["init", str(target), "--profile", "small"], self.folder)
        return target

    def check(self, words: Sequence[str], cwd: Path) -> None:
        done = subprocess.run(
            self.command(words), cwd=cwd, env=self.environment(), capture_output=True, text=True, timeout=DEADLINE_S
        )
        if done.returncode:
            raise RuntimeError(f"{self.root}: flywheel {' '.join(words)}: {done.stderr[-500:]}")

    def answer_s(self, words: Sequence[str]) -> float:
        began = time.perf_counter()
        self.check(words, self.workspace)
        return time.perf_counter() - began

    def first_line_s(self, name: str) -> float:
        """From typing `flywheel run` in a workspace that has no iteration to its first line."""
        workspace = self.make_workspace(name)
        began = time.perf_counter()
        process = subprocess.Popen(
            self.command(["run"]),
            cwd=workspace,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            line = process.stdout.readline()
            took = time.perf_counter() - began
            if not line.strip():
                raise RuntimeError(f"{self.root}: flywheel run printed nothing")
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
        return took


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="flywheel bench startup", description=__doc__)
    parser.add_argument("--baseline", default=BASELINE, help="the commit to compare with")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--commands", nargs="*", default=[*COMMANDS, "run"])
    options = parser.parse_args(argv)
    cases = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tree = folder / "baseline"
        subprocess.run(
            ["git", "-C", PROJECT, "worktree", "add", "--quiet", "--detach", tree, options.baseline], check=True
        )
        try:
            for name in ("ours", "peer"):
                (folder / name).mkdir()
            sides = {"ours": Side(PROJECT, folder / "ours"), "peer": Side(tree, folder / "peer")}
            for side in sides.values():
                side.make_workspace()
            for command in options.commands:
                seconds: dict[str, list[float]] = {name: [] for name in sides}
                for repetition in range(-1, options.repetitions):  # the first warms the caches and is not counted
                    for name, side in sides.items():
                        if command == "run":
                            took = side.first_line_s(f"run-{repetition}")
                        else:
                            took = side.answer_s(COMMANDS[command])
                        if repetition >= 0:
                            seconds[name].append(took)
                ours, peer = median(seconds["ours"]), median(seconds["peer"])
                cases.append(
                    emit_case(
                        BenchCase(
                            "startup",
                            command,
                            "s",
                            ours,
                            peer,
                            f"commit {options.baseline}",
                            ours / peer,
                            GOAL,
                            ours / peer <= GOAL,
                            {"n": options.repetitions, "ours_range": [min(seconds["ours"]), max(seconds["ours"])]},
                        )
                    )
                )
        finally:
            subprocess.run(["git", "-C", PROJECT, "worktree", "remove", "--force", tree], check=True)
    return exit_code(cases)


if __name__ == "__main__":
    raise SystemExit(main())
