"""Size and shape of the code: files, lines, public names used twice, docstrings of public functions.

The peer is an earlier commit, read from git. The suites of tasks (`envs/suites`, in earlier commits `worlds`) and
the files of shipped third-party pages are content and are left out. A public function is a module-level one whose name
has no underscore at its head; its name is shared where another module has a public function of the same name. Plug-in
entry points that a registry finds by name (`PLUGIN_NAMES`) are not counted as shared.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench_case import BenchCase, emit_case, exit_code

PROJECT = Path(__file__).resolve().parent.parent
BASELINE = "6659744"
CONTENT = (
    "flywheel/envs/suites/",
    "flywheel/envs/browser/pages/third_party/",
    "flywheel/" + "worlds/",  # these two of earlier commits
    "flywheel/" + "sandbox/third_party/",
)
PLUGIN_NAMES = {"main"}
GOALS = {"files": 350, "lines": 60_000, "shared_names": 0.10}


def working_tree() -> Iterator[tuple[str, str]]:
    for path in sorted((PROJECT / "flywheel").rglob("*.py")):
        yield str(path.relative_to(PROJECT)), path.read_text(encoding="utf-8")


def commit(revision: str) -> Iterator[tuple[str, str]]:
    archive = subprocess.run(
        ["git", "-C", PROJECT, "archive", revision, "flywheel"], capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar.getmembers():
            if member.isfile() and member.name.endswith(".py"):
                yield member.name, tar.extractfile(member).read().decode()


def measure(files: Iterator[tuple[str, str]]) -> dict[str, float]:
    """Counts of one tree: files, lines, functions, and the fraction of functions whose name is shared."""
    n_files = n_lines = 0
    functions: list[str] = []
    described = 0
    for name, text in files:
        if name.startswith(CONTENT):
            continue
        n_files += 1
        n_lines += text.count("\n")
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                functions.append(node.name)
                described += ast.get_docstring(node) is not None
    counted = Counter(functions)
    shared = sum(1 for name in functions if counted[name] > 1 and name not in PLUGIN_NAMES)
    return {
        "files": n_files,
        "lines": n_lines,
        "functions": len(functions),
        "shared_names": shared / len(functions),
        "with_docstring": described / len(functions),
    }


def shared_names(files: Iterator[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """Names of public functions that more than one module has, and where."""
    places: dict[str, list[str]] = {}
    for name, text in files:
        if name.startswith(CONTENT):
            continue
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(name)
    return sorted((name, where) for name, where in places.items() if len(where) > 1)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="flywheel bench structure", description=__doc__)
    parser.add_argument("--baseline", default=BASELINE, help="the commit to compare with")
    parser.add_argument("--list", action="store_true", help="list the shared names instead, and where they are")
    options = parser.parse_args(argv)
    if options.list:
        for name, where in shared_names(working_tree()):
            print(f"{name:30} {' '.join(where)}")
        return 0
    ours, peer = measure(working_tree()), measure(commit(options.baseline))
    cases = []
    for case, value in ours.items():
        goal = GOALS.get(case)
        cases.append(
            emit_case(
                BenchCase(
                    "structure",
                    case,
                    "fraction" if isinstance(value, float) else "count",
                    value,
                    peer[case],
                    f"commit {options.baseline}",
                    value / peer[case],
                    goal,
                    goal is None or value <= goal,
                )
            )
        )
    return exit_code(cases)


if __name__ == "__main__":
    raise SystemExit(main())
