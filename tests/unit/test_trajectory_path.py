"""Which files `flywheel bench trajectory_path` counts: those whose functions run between the two marks."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

import pytest
import trajectory_path
from trajectory_path_trace import FileTracer

_ENV = """
class Env:
    def reset(self):
        from walked import opening
        opening.open_env()

    def step(self):
        from walked import imported, parsing
        parsing.parse()
"""
_EPISODE = """
def play(env):
    env.reset()
    env.step()
    from walked import after
    after.look()
"""
_FILES = {
    "__init__": "",
    "env": _ENV,
    "opening": "def open_env(): pass",
    "imported": "def register(): pass\nregister()\nclass Body: pass",
    "parsing": "def parse(): pass",
    "episode": _EPISODE,
    "after": "def look(): pass",
}


@pytest.fixture
def walk(tmp_path, monkeypatch):
    """Calls a function under the tracer of a package `walked`; returns the files that count."""
    for name, text in _FILES.items():
        path = tmp_path / "walked" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))

    def traced(function: Callable[[], object], begins: str = "", ends: str = "") -> list[str]:
        tracer, before = FileTracer(tmp_path / "walked", begins, ends), sys.getprofile()
        sys.setprofile(tracer)
        try:
            function()
        finally:
            sys.setprofile(before)
        return sorted(tracer.files)

    yield traced
    for name in [name for name in sys.modules if name.partition(".")[0] == "walked"]:
        del sys.modules[name]


def module(name: str):
    return importlib.import_module(f"walked.{name}")


def test_what_runs_from_the_first_step_on_counts_and_what_went_before_or_is_imported_does_not(walk):
    episode, env = module("episode"), module("env").Env()
    counted = ["after.py", "env.py", "episode.py", "parsing.py"]
    assert walk(lambda: episode.play(env), begins="walked/env.py") == [f"walked/{name}" for name in counted]


def test_without_a_mark_all_that_runs_counts(walk):
    episode, env = module("episode"), module("env").Env()
    counted = ["after.py", "env.py", "episode.py", "opening.py", "parsing.py"]
    assert walk(lambda: episode.play(env)) == [f"walked/{name}" for name in counted]


def test_what_comes_after_the_optimisers_step_does_not_count(walk):
    parsing, after, optim = module("parsing"), module("after"), {}
    exec(compile("def step(): pass", "/x/torch/optim/adamw.py", "exec"), optim)

    def train() -> None:
        parsing.parse()
        optim["step"]()
        after.look()

    assert walk(train, ends="step") == ["walked/parsing.py"]


def test_a_file_belongs_to_the_first_stage_that_enters_it():
    passed = {"rollout": {"a.py": "f", "b.py": "g"}, "sft": {"b.py": "h", "c.py": "i"}}
    assert trajectory_path.list_new_files(passed) == {"rollout": {"a.py": "f", "b.py": "g"}, "sft": {"c.py": "i"}}
