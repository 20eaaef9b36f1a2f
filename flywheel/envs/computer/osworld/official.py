"""Find and load the metric functions of desktop-env, OSWorld's own package, in a virtual environment of its own.

`make osworld` makes that environment. Its functions run inside a checker's sandbox (docs/computer.md#tasks-of-osworld).
"""

from __future__ import annotations

import ast
import functools
import importlib
import os
import sys
import sysconfig
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

ENVIRONMENT_IN_CHECKER = "/opt/osworld"
_PACKAGES = ("desktop_env", "desktop_env.evaluators", "desktop_env.evaluators.metrics")
_OWN_ROOT = Path(__file__).resolve().parents[4]  # of a checkout, where `make osworld` works
ENVIRONMENT_NAME = ".venv-osworld"

# They run what the agent wrote inside the process that makes the verdict: an agent could write its own.
RUN_AGENTS_CODE = frozenset({
    "check_python_file_by_test_suite", "check_python_file_by_gold_file", "check_gnome_favorite_apps",
})  # fmt: skip
NEED_WEIGHTS = frozenset({"compare_image_text"})  # of easyocr


def find_environment() -> Path | None:
    """Return the folder of the virtual environment with desktop-env; None where `make osworld` has not made it."""
    folder = _OWN_ROOT / ENVIRONMENT_NAME
    return folder if _find_metrics(folder) is not None else None


@functools.cache
def list_functions() -> dict[str, str]:
    """Return the names of desktop-env's metric functions, each with its module; {} where it is not installed."""
    folder = find_environment()
    metrics = folder and _find_metrics(folder)
    if not metrics:
        return {}
    found = ast.parse((metrics / "__init__.py").read_text(encoding="utf-8")).body
    imports = [one for one in found if isinstance(one, ast.ImportFrom) and one.level == 1 and one.module]
    return {name.name: one.module for one in imports for name in one.names if one.module.isidentifier()}


def _find_metrics(folder: Path) -> Path | None:
    return next(iter(folder.glob("lib/python3*/site-packages/desktop_env/evaluators/metrics")), None)


def load_function(module: str, name: str) -> Callable[..., Any]:
    """Load the metric function `name` of a `module` of desktop-env; only the Python of that environment may call this.

    Its packages import all that OSWorld has, models of languages and pictures too: only `module` is imported here.
    """
    os.environ.setdefault("NUMBA_CACHE_DIR", "/tmp")  # the environment itself is read-only
    root = Path(sysconfig.get_paths()["purelib"])
    for package in _PACKAGES:
        if package not in sys.modules:
            made = types.ModuleType(package)
            made.__path__ = [str(root.joinpath(*package.split(".")))]
            sys.modules[package] = made
    sys.modules.setdefault("easyocr", types.ModuleType("easyocr"))  # 2 GB with what it needs, for one metric
    return getattr(importlib.import_module(f"{_PACKAGES[-1]}.{module}"), name)
