"""Imports run one way: flows -> tasks -> flywheel; inside it the command on top, the schema at the bottom."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

# Who may import whom, inside flywheel: a package may import those on its own line and on lines below it.
LAYERS = (
    ("cli",),
    ("commands",),
    ("console", "init", "doctor", "bench", "discard", "standing"),
    ("report",),
    ("preflight", "stages"),
    (
        "recording",
        "training",
        "evaluation",
        "store",
        "rollout",
        "scoring",
        "synthesis",
        "environments",
        "sandbox",
        "worlds",
        "policy",
        "agent",
        "frozen",
        "pipeline",
    ),
    ("reward",),  # what V is: environments ask it, and it knows none of them
    ("language_model", "local_server", "run_lock", "workspace", "settings", "progress"),
    ("schema", "errors", "findings", "secret", "yaml_text"),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


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


def test_inside_flywheel_imports_run_downwards(project):
    for path in modules(project, "flywheel"):
        own = path.relative_to(project / "flywheel").parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        for name in imports(path):
            parts = name.split(".")
            if parts[0] == "flywheel" and len(parts) > 1 and parts[1] in RANK:
                assert RANK[parts[1]] >= RANK[own], f"{path} imports {name}"


@pytest.mark.parametrize("word", ["TODO", "FIXME", "XXX"])
def test_nothing_is_left_undone(project, word):
    for package in ("flywheel", "flows", "tasks"):
        for path in modules(project, package):
            assert word not in path.read_text(encoding="utf-8"), path
