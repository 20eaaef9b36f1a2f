"""Python within shell scripts and build files names what exists: no linter looks there."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [
    *(path for path in sorted((ROOT / "scripts").iterdir()) if path.is_file()),
    ROOT / "Makefile",
    ROOT / "Dockerfile",
    ROOT / ".ci/run",
]
_IMPORT = re.compile(r"\bfrom ((?:flywheel|flows|tasks|benchmarks)[\w.]*) import ([\w, ]+)")
IMPORTS = [
    pytest.param(module, name.strip(), id=f"{path.name}:{module}.{name.strip()}")
    for path in FILES
    for module, names in _IMPORT.findall(path.read_text())
    for name in names.split(",")
]


def test_there_are_imports_to_look_at():
    assert IMPORTS


@pytest.mark.parametrize(("module", "name"), IMPORTS)
def test_an_import_in_a_script_resolves(module: str, name: str):
    assert hasattr(importlib.import_module(module), name)


def test_modules_that_scripts_run_exist():
    modules = {name for path in FILES for name in re.findall(r"-m ((?:flywheel|flows|tasks)[\w.]*)", path.read_text())}
    missing = [name for name in sorted(modules) if importlib.util.find_spec(name) is None]
    assert missing == []
