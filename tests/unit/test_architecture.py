"""Imports run one way: flows -> tasks -> flywheel; inside it the command on top, the schema at the bottom."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

# Who may import whom, inside flywheel: each those after it. A package within a package may have a place of its own.
ORDER = (
    # what is typed
    "cli",
    "commands",
    "play",
    "doctor",
    "checkup",
    "due",
    "turns",
    "preflight",
    "standing",
    "init",
    "discard",
    "explorer",
    "upkeep",
    "console",
    "bench",
    # what is made of the parts below
    "report",
    "cluster",
    "stages",
    "recording",
    "training",
    "evaluation",
    "scoring",
    "rollout",
    "manager",
    "environments.kinds",
    "synthesis",
    # where it is done
    "computer",
    "phone",
    "sandbox",
    "worlds",
    "environments",
    "scenes",
    "words",
    "exchange",
    # what is kept of it
    "store",
    "dedup",
    "reward",
    "policy",
    "agent",
    "language_model",
    "endpoint",
    # what all of them stand on
    "run_lock",
    "identity",
    "workspace",
    "settings",
    "memory",
    "progress",
    "local_server",
    "secret",
    "files",
    "parent",
    "termination",
    "schema",
    "trajectory",
    "intervals",
    "yaml_text",
    "findings",
    "errors",
    "guest",
)
RANK = {name: rank for rank, name in enumerate(ORDER)}


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def modules(project: Path, package: str) -> list[Path]:
    return sorted((project / package).rglob("*.py"))


def test_the_domain_knows_nothing_of_prefect(project):
    for path in modules(project, "flywheel"):
        if path.parent.name != "commands":
            roots = {name.partition(".")[0] for name in imports(path)}
            assert not roots & {"prefect", "flows", "tasks"}, path


def test_tasks_do_not_know_flows(project):
    for path in modules(project, "tasks"):
        assert "flows" not in {name.partition(".")[0] for name in imports(path)}, path


def place(name: str) -> str | None:
    """Of a module of flywheel, the longest of its names that has a place; None for what is none of its modules."""
    parts = name.split(".")[1:] if name.startswith("flywheel.") else []
    return next((".".join(parts[:n]) for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in RANK), None)


def test_inside_flywheel_imports_run_downwards(project):
    for path in modules(project, "flywheel"):
        name = ".".join(path.relative_to(project).with_suffix("").parts).removesuffix(".__init__")
        if name == "flywheel":
            continue
        own = place(name)
        assert own is not None, f"{path} has no place in the order"
        for imported in imports(path):
            other = place(imported)
            assert other is None or RANK[other] >= RANK[own], f"{path} imports {imported}"


def test_the_order_names_what_is_there(project):
    for name in ORDER:
        path = project / "flywheel" / name.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").is_file(), name


@pytest.mark.parametrize("word", ["TODO", "FIXME", "XXX"])
def test_nothing_is_left_undone(project, word):
    for package in ("flywheel", "flows", "tasks"):
        for path in modules(project, package):
            assert word not in path.read_text(encoding="utf-8"), path
