"""Score end states of OSWorld tasks by flywheel's judge, or by desktop-env's own getters and metrics.

Runs in the environment of `make osworld`: python benchmarks/osworld_judging.py QUESTIONS WAY SCORES. QUESTIONS is JSON:
a list of objects with `task`, `state`, `home` (folder), `metrics` and `conj` (ours), `example` (the task file) and
`golds` (paths by name in OSWorld's cache). WAY is ours or theirs. SCORES is written: JSON lines of `task`, `state`,
`score`, `why`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import io
import json
import os
import shutil
import sys
import sysconfig
import tempfile
import types
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_HOME = "/home/user"


def judge_all() -> None:
    questions, way, scores = json.loads(Path(sys.argv[1]).read_text()), sys.argv[2], Path(sys.argv[3])
    ask = _ask_ours if way == "ours" else _Theirs().ask
    with scores.open("w") as file:
        for one in questions:
            with contextlib.redirect_stdout(io.StringIO()):
                score, why = ask(one)
            print(
                json.dumps({"task": one["task"], "state": one["state"], "score": score, "why": why}),
                file=file,
                flush=True,
            )


def _ask_ours(one: dict[str, Any]) -> tuple[float, str]:
    sys.path.insert(0, str(ROOT))
    from flywheel.envs.computer.osworld.judge import combine_scores, judge_metric

    metrics = one["metrics"]
    try:
        judged = [judge_metric(metric, one["home"]) for metric in metrics]
    except Exception as error:  # in the sandbox an error of the judge: no score
        return -1.0, f"{type(error).__name__}: {error}"
    return combine_scores([score for score, _ in judged], one["conj"]), "; ".join(why for _, why in judged if why)


# Their own functions. Packages that getters of live sites import, and that are not installed, are empty here.


class _Empty(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Exception,), {})


class _EmptyFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    names = ("playwright", "pydrive", "easyocr", "dashscope", "google", "openai", "tiktoken", "groq", "torch")

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.split(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        return _Empty(spec.name)

    def exec_module(self, module: Any) -> None:
        module.__path__ = []


class _Controller:
    """Answer desktop-env's getters from a folder that stands for the home."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def get_file(self, path: str) -> bytes | None:
        place = self._home / path.replace("~", _HOME).removeprefix(f"{_HOME}/")
        return place.read_bytes() if place.is_file() else None

    def execute_python_command(self, command: str) -> dict[str, str]:
        said = io.StringIO()
        kept = os.environ.get("HOME", "")
        os.environ["HOME"] = _HOME
        try:
            with contextlib.redirect_stdout(said):
                exec(command, {})
        finally:
            os.environ["HOME"] = kept
        return {"output": said.getvalue()}


class _Theirs:
    def __init__(self) -> None:
        sys.meta_path.append(_EmptyFinder())
        package = types.ModuleType("desktop_env")  # its own imports what starts virtual machines
        package.__path__ = [str(Path(sysconfig.get_paths()["purelib"], "desktop_env"))]
        sys.modules["desktop_env"] = package
        self._metrics = importlib.import_module("desktop_env.evaluators.metrics")
        self._getters = [
            importlib.import_module(f"desktop_env.evaluators.getters.{name}")
            for name in ("file", "impress", "vlc", "gimp", "chrome", "misc", "general")
        ]

    def ask(self, one: dict[str, Any]) -> tuple[float, str]:
        evaluator = json.loads(Path(one["example"]).read_text())["evaluator"]
        with tempfile.TemporaryDirectory() as folder:
            for name, path in one["golds"].items():
                shutil.copy(path, Path(folder, name))
            env = types.SimpleNamespace(
                cache_dir=folder, vm_platform="Linux", vm_machine="x86_64", controller=_Controller(Path(one["home"]))
            )
            try:
                return self._evaluate(env, evaluator), ""
            except Exception as error:  # the official harness records no score: 0
                return 0.0, f"{type(error).__name__}: {error}"

    def _evaluate(self, env: Any, evaluator: dict[str, Any]) -> float:
        """Evaluate as `DesktopEnv.evaluate` does: `and` is 0 where one is, else the mean; `or` is 1 where one is."""
        several = isinstance(evaluator["func"], list)
        funcs = evaluator["func"] if several else [evaluator["func"]]
        sides = [evaluator.get(side) or None for side in ("result", "expected", "options")]
        results, wanted, options = (
            (side if isinstance(side, list) else [None] * len(funcs)) if several else [side] for side in sides
        )
        scores, conj = [], evaluator.get("conj", "and")
        for func, result, expected, chosen in zip(funcs, results, wanted, options, strict=True):
            judged = getattr(self._metrics, func)
            try:
                found = self._get(env, result)
            except FileNotFoundError:
                if conj == "and":
                    return 0.0
                continue
            given = (self._get(env, expected),) if expected else ()
            scores.append(float(judged(found, *given, **(chosen or {}))))
            if conj == "and" and scores[-1] == 0:
                return 0.0
            if conj == "or" and scores[-1] == 1:
                return 1.0
        return max(scores) if conj == "or" else sum(scores) / len(scores)

    def _get(self, env: Any, said: dict[str, Any]) -> Any:
        name = f"get_{said['type']}"
        return next(getattr(one, name) for one in self._getters if hasattr(one, name))(env, said)


if __name__ == "__main__":
    judge_all()
