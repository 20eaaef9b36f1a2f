"""Adapt Terminal-Bench: load tasks of versions 1 and 2, convert its agent Terminus's actions, and score results.

Version 1 has `task.yaml`, version 2 (Harbor) `task.toml`. https://www.tbench.ai,
https://github.com/harbor-framework/harbor
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flywheel.agent import actions as act
from flywheel.agent.actions import Action
from flywheel.evaluation.benchmarks import container_recipe
from flywheel.evaluation.benchmarks.benchmark import (
    AdaptedActions,
    BenchmarkTask,
    OfficialScore,
    RefusedTask,
    TaskResult,
    require_results,
    require_text,
)
from flywheel.evaluation.benchmarks.container_recipe import InstalledPackages
from flywheel.evaluation.headroom import pass_at_k
from flywheel.utils import yaml_text
from flywheel.utils.errors import BadInput
from flywheel.utils.json_text import describe_first_fault, parse_foreign_json

# Exceptions of Harbor's trials after which a reward does not count, and failure modes of version 1's trials in which
# not the agent failed but what it worked in.
_EXCUSED = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
_HARBOR_FAULTS, _TRIAL_FAULTS = frozenset(_EXCUSED["harbor"]), frozenset(_EXCUSED["terminal_bench"])
_REWARD = "reward"
_SUMMARY = re.compile(r"=+\s*short test summary info\s*=+", re.IGNORECASE)
_PASSES = {"PASSED": True, "XFAIL": True, "SKIPPED": True, "FAILED": False, "XPASS": False, "ERROR": False}
_MARKED = {  # parser -> where its block begins and ends, and the text of a block that passed
    "swebench": ("SWEBench results starts here", "SWEBench results ends here", "PASSED"),
    "mlebench": ("MLEBench results starts here", "MLEBench results ends here", "ALL TESTS PASSED"),
    "sweperf": ("SWE-Perf results starts here", "SWE-Perf results ends here", "PASSED"),
}
_WITHOUT_MARKS = "mlebench"  # whose output is the whole text where it has no marks


class _TaskYaml(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)
    instruction: str = Field(min_length=1)
    category: str = "software_engineering"
    parser_name: str = "pytest"
    max_agent_timeout_sec: float = Field(360.0, gt=0)
    max_test_timeout_sec: float = Field(60.0, gt=0)


class _Phase(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)
    timeout_sec: float = Field(600.0, gt=0)
    env: dict[str, str] = {}


class _Environment(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)
    build_timeout_sec: float = Field(600.0, gt=0)
    docker_image: str = ""
    os: str = "linux"
    gpus: int = 0


class _TaskToml(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)
    metadata: dict[str, Any] = {}
    agent: _Phase = _Phase()
    verifier: _Phase = _Phase()
    solution: dict[str, Any] = {}
    environment: _Environment = _Environment()


class TaskFolder(BaseModel):
    """Hold what is needed to build, play and judge one task, of either version.

    folder: of the task. version: 1 or 2. instruction, category: of the task. context: folder that the image is built
    from. recipe: its Dockerfile. services: containers that the task needs. tests: folder of tests. test_script: runs
    them. solution: path of the reference solution; None for none. parser: of the tests' output (version 1). build_s,
    agent_s, test_s: time limits of its phases. variables: environment variables of the phases `test` and `solution`.
    """

    model_config = ConfigDict(frozen=True)
    folder: Path
    version: int
    instruction: str
    category: str
    context: Path
    recipe: Path
    services: int = 1
    tests: Path
    test_script: Path
    solution: Path | None = None
    parser: str = "pytest"
    build_s: float = 600.0
    agent_s: float
    test_s: float
    variables: dict[str, dict[str, str]] = {}
    needs: str = ""  # what else it needs that no machine here has


def read_task_folder(folder: Path) -> TaskFolder:
    """Read the folder of a Terminal-Bench task, of version 2 where it has a task.toml, else of version 1 (task.yaml).

    Raises ValueError, which says what is wrong, for a folder that cannot be read or is no such task.
    """
    try:
        if (folder / "task.toml").is_file():
            return _read_version_2(folder)
        return _read_version_1(folder)
    except ValidationError as error:
        raise ValueError(describe_first_fault(error)) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, yaml.YAMLError) as error:
        raise ValueError(" ".join(str(error).split())[:200]) from None
    except (KeyError, TypeError, AttributeError) as error:  # of a docker-compose.yaml of another form
        raise ValueError(f"docker-compose.yaml does not hold: {error!r}"[:200]) from None


def _read_version_1(folder: Path) -> TaskFolder:
    declared = yaml_text.load_yaml((folder / "task.yaml").read_text(encoding="utf-8"))
    if not isinstance(declared, dict):
        raise ValueError("task.yaml holds no fields")
    said = _TaskYaml.model_validate(declared)
    compose = folder / "docker-compose.yaml"
    services = {"client": {}}
    if compose.is_file():
        services = yaml_text.load_yaml(compose.read_text(encoding="utf-8"))["services"]
    build = services.get("client", {}).get("build", {})
    context = folder / build.get("context", ".") if isinstance(build, dict) else folder / build
    recipe = context / (build.get("dockerfile", "Dockerfile") if isinstance(build, dict) else "Dockerfile")
    solution = next((folder / name for name in ("solution.sh", "solution.yaml") if (folder / name).is_file()), None)
    return TaskFolder(
        folder=folder,
        version=1,
        instruction=said.instruction,
        category=said.category,
        context=context,
        recipe=recipe,
        services=len(services),
        tests=folder / "tests",
        test_script=folder / "run-tests.sh",
        solution=solution,
        parser=said.parser_name,
        agent_s=said.max_agent_timeout_sec,
        test_s=said.max_test_timeout_sec,
        variables={"test": {"TEST_DIR": "/tests"}},
    )


def _read_version_2(folder: Path) -> TaskFolder:
    said = _TaskToml.model_validate(tomllib.loads((folder / "task.toml").read_text(encoding="utf-8")))
    instruction = (folder / "instruction.md").read_text(encoding="utf-8")
    if not instruction.strip():
        raise ValueError("instruction.md is empty")
    context, solution = folder / "environment", folder / "solution" / "solve.sh"
    needs = "Windows" if said.environment.os != "linux" else "a GPU" if said.environment.gpus else ""
    compose = any((context / name).is_file() for name in ("docker-compose.yaml", "docker-compose.yml"))
    solving = said.solution.get("env", {})
    return TaskFolder(
        folder=folder,
        version=2,
        instruction=instruction,
        category=str(said.metadata.get("category", "")),
        context=context,
        recipe=context / "Dockerfile",
        services=2 if compose else 1,
        tests=folder / "tests",
        test_script=folder / "tests" / "test.sh",
        solution=solution if solution.is_file() else None,
        build_s=said.environment.build_timeout_sec,
        agent_s=said.agent.timeout_sec,
        test_s=said.verifier.timeout_sec,
        variables={"test": said.verifier.env, "solution": {name: str(one) for name, one in solving.items()}},
        needs=needs,
    )


def list_task_folders(folder: Path) -> list[Path]:
    """List the folders below `folder` that hold a task of either version, sorted."""
    return sorted({path.parent for name in ("task.toml", "task.yaml") for path in folder.rglob(name)})


def parse_test_output(text: str, parser: str = "pytest") -> dict[str, bool]:
    """Parse what a task's tests printed: test -> whether it passed. parser: a name of version 1's parsers.

    Raises ValueError where the output has no summary, so that nothing is known of the tests, and for another parser.
    """
    if parser == "pytest":
        parts = _SUMMARY.split(text, maxsplit=1)
        if len(parts) < 2:
            raise ValueError("the tests printed no summary")
        return dict(_read_summary_line(line) for line in parts[1].splitlines() if _read_summary_line(line))
    if parser == "swelancer":
        said = text.lower()
        done = "user_tool" in said and "completed" in said
        return {"swelancer_task": "swe lancer success" in said or (done and "swe lancer failure" not in said)}
    if parser not in _MARKED:
        raise ValueError(f"the parser {parser} is not here")
    begins, ends, passes = _MARKED[parser]
    if parser != _WITHOUT_MARKS and not (begins in text and ends in text):
        raise ValueError("the tests printed no result between their markers")
    return {"tests": text.split(begins, 1)[-1].rsplit(ends, 1)[0].strip() == passes}


def _read_summary_line(line: str) -> tuple[str, bool] | None:
    """Read a line such as `FAILED tests/test_a.py::test_b - AssertionError: ...`; None for any other."""
    if line.startswith("FAILED") and " - " in line:
        line = line.rpartition(" - ")[0]
    status, where = (*line.split(maxsplit=1), "", "")[:2]
    where = where.strip().split("::", 1)[-1]
    return (where, _PASSES[status.strip(":")]) if where and status.strip(":") in _PASSES else None


def read_reward(folder: Path) -> dict[str, float]:
    """Read the rewards, by name, that a task's verifier of version 2 left in `folder`: reward.json, else reward.txt.

    A single number is `reward`. Raises ValueError where there is none, or one is no number: none counts then.
    """
    as_json, as_text = folder / "reward.json", folder / "reward.txt"
    if as_json.is_file():
        found = parse_foreign_json(as_json.read_bytes())
        rewards = found if isinstance(found, dict) else {_REWARD: found}
    elif as_text.is_file():
        try:
            rewards = {_REWARD: float(as_text.read_text(encoding="utf-8"))}
        except ValueError:
            raise ValueError("reward.txt holds no number") from None
    else:
        raise ValueError("the verifier wrote no reward")
    for value in rewards.values():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"a reward is no number: {value!r}")
    if not rewards:
        raise ValueError("the verifier wrote no reward")
    return {name: float(value) for name, value in rewards.items()}


class TerminalBench:
    """Adapt Terminal-Bench 1 and 2. installed: packages by which tasks are called playable; None: this machine's."""

    name, title = "terminal-bench", "Terminal-Bench"
    source = "github.com/harbor-framework/terminal-bench-2, or terminal-bench for version 1: a folder a task"
    space = "none: its actions are keystrokes"
    ran = "tasks of both versions that need no network, by reference solution and by nothing, with their own tests"

    def __init__(self, installed: InstalledPackages | None = None) -> None:
        self._installed = installed

    def load_tasks(self, folder: Path) -> Iterator[BenchmarkTask | RefusedTask]:
        """Yield the tasks of both versions below `folder`. Raises BadInput where it has none."""
        paths = list_task_folders(folder)
        if not paths:
            raise BadInput("no task.toml and no task.yaml", where=folder, fix="name a folder of Terminal-Bench's tasks")
        installed = self._installed or container_recipe.list_installed_packages()
        for path in paths:
            try:
                task = read_task_folder(path)
            except ValueError as error:
                yield RefusedTask(path, str(error))
                continue
            yield BenchmarkTask(
                str(path.relative_to(folder)) if path != folder else path.name,
                task.instruction,
                task.category,
                explain_unplayable(task, installed),
                {"version": task.version, "parser": task.parser, "agent_s": task.agent_s, "test_s": task.test_s},
                path,
            )

    def parse_action(self, written: Any, screen: tuple[int, int] | None = None) -> AdaptedActions:
        """Parse an answer of Terminus: an object with `analysis`, `plan`, `commands` and `task_complete`.

        A command that ends in a newline is a line of the shell, C-c and its like are keys, other keystrokes are typed,
        and none are a wait.
        """
        if not isinstance(written, Mapping) or not isinstance(written.get("commands"), list):
            raise ValueError("an answer of Terminus has a list of commands")
        actions: list[Action] = []
        commands: list[dict[str, Any]] = []
        for command in written["commands"]:
            if not isinstance(command, Mapping):
                raise ValueError(f"a command is no object: {command!r}"[:200])
            keys = require_text(command.get("keystrokes"), "keystrokes")
            actions.append(_read_keystrokes(keys))
            commands.append({name: value for name, value in command.items() if name != "keystrokes"})
        extras = {name: value for name, value in written.items() if name not in ("commands", "task_complete")}
        if "task_complete" in written:
            complete = written["task_complete"]
            if complete is True:
                actions.append(act.Finished())
            else:
                extras["task_complete"] = complete
        return AdaptedActions(tuple(actions), extras | {"commands": commands})

    def format_action(self, action: AdaptedActions, screen: tuple[int, int] | None = None) -> dict[str, Any]:
        """Write an answer of Terminus. Raises ValueError for an action that keystrokes cannot do."""
        extras = {name: value for name, value in action.extras.items() if name != "commands"}
        steps = [one for one in action.actions if one != act.Finished()]
        more = action.extras.get("commands", [{} for _ in steps])
        commands = [{"keystrokes": _write_keystrokes(one), **rest} for one, rest in zip(steps, more, strict=True)]
        complete = {"task_complete": True} if len(steps) < len(action.actions) else {}
        return extras | {"commands": commands} | complete

    def read_results(self, folder: Path) -> list[TaskResult]:
        """Read a run of version 1 (`results.json`) or a job of Harbor (`<trial>/result.json`)."""
        if (folder / "results.json").is_file():
            return _read_run(folder / "results.json")
        trials = [path for path in sorted(folder.rglob("result.json")) if "trial_name" in _read_object(path)]
        if not trials:
            raise BadInput(
                "no results.json and no trial's result.json", where=folder, fix="name a run's or job's folder"
            )
        seen: dict[str, int] = {}
        found = []
        for path in trials:
            said = _read_object(path)
            task = str(said.get("task_name", path.parent.name))
            seen[task] = attempt = seen.get(task, -1) + 1
            found.append(_read_trial(said, task, attempt, path))
        return found

    def score_results(self, results: Sequence[TaskResult]) -> OfficialScore:
        """Score as both harnesses do: the mean over all trials, where a fault counts 0, and pass@k as version 1 has it.

        k is 2, 4, 5, 8, 10 and so on, up to the least number of trials that a task has.
        """
        require_results(results, self.title)
        figures = {"accuracy": fmean(one.score or 0.0 for one in results), "trials": float(len(results))}
        tasks: dict[str, list[bool]] = {}
        for one in results:
            tasks.setdefault(one.task, []).append((one.score or 0.0) >= 1.0)
        least = min(map(len, tasks.values()))
        powers = {2**power for power in range(1, least.bit_length()) if 2**power <= least}
        for k in sorted(powers | {k for k in (5, 10) if k <= least}):
            figures[f"pass@{k}"] = fmean(pass_at_k(sum(one), len(one), k) for one in tasks.values())
        return OfficialScore(figures["accuracy"], figures)


def explain_unplayable(task: TaskFolder, installed: InstalledPackages) -> str:
    """Say in a clause why a task cannot be built or judged here; "" where nothing is known to be in the way."""
    if task.needs:
        return f"it needs {task.needs}"
    if task.services > 1:
        return "it needs several containers"
    if not task.recipe.is_file():
        return "it has no Dockerfile"
    if not task.test_script.is_file():
        return f"it has no {task.test_script.name}"
    if not task.tests.is_dir():
        return "it has no tests"
    if task.parser not in ("pytest", "swelancer", *_MARKED):
        return f"its parser {task.parser} is not here"
    recipe = task.recipe.read_text(encoding="utf-8")
    if why := container_recipe.explain_unbuildable(recipe, task.context, installed):
        return f"its image needs {why}"
    if why := container_recipe.explain_script(task.test_script.read_text(encoding="utf-8"), installed):
        return f"its tests need {why}"
    return ""


def explain_unsolvable(task: TaskFolder, installed: InstalledPackages) -> str:
    """Say in a clause why a task's reference solution cannot be run here; "" where nothing is known to be in the way.

    Reasons: there is no solution, it is no shell script, or it needs something that is not among `installed`.
    """
    if task.solution is None:
        return "there is no reference solution"
    if task.solution.suffix != ".sh":
        return "the reference solution is no script"
    why = container_recipe.explain_script(task.solution.read_text(encoding="utf-8", errors="replace"), installed)
    return why and f"the reference solution needs {why}"


_CONTROL_KEY = re.compile(r"C-([a-z])")


def _read_keystrokes(keys: str) -> Action:
    if not keys:
        return act.Wait()
    if found := _CONTROL_KEY.fullmatch(keys):
        return act.Hotkey(("ctrl", found[1]))
    if keys.endswith("\n") and keys.count("\n") == 1:
        return act.Terminal(keys[:-1])
    return act.Type(keys)


def _write_keystrokes(action: Action) -> str:
    match action:
        case act.Wait():
            return ""
        case act.Hotkey(("ctrl", key)) if len(key) == 1 and "a" <= key <= "z":
            return f"C-{key}"
        case act.Terminal(command) if "\n" not in command:
            return f"{command}\n"
        case act.Type(content) if _read_keystrokes(content) == action:
            return content
    raise ValueError(f"Terminus has no keystrokes for {action}")


def _read_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BadInput(f"no JSON: {error}", where=path, fix="let the harness finish, or remove the file") from None
    if not isinstance(found, dict):
        raise BadInput("it holds no object", where=path, fix="name the folder of a run")
    return found


def _read_run(path: Path) -> list[TaskResult]:
    """Read version 1's results. A trial without `is_resolved` did not come to its tests' end: unresolved there, and a
    fault where not the agent was the reason."""
    attempts: dict[str, int] = {}
    found = []
    for trial in _read_object(path).get("results", []):
        task, mode = str(trial["task_id"]), str(trial.get("failure_mode", "unset"))
        attempts[task] = attempts.get(task, -1) + 1
        passed = trial.get("is_resolved")
        fault = mode if passed is None and mode in _TRIAL_FAULTS else ""
        tests = {name: float(how == "passed") for name, how in (trial.get("parser_results") or {}).items()}
        score = None if fault else float(bool(passed))
        found.append(TaskResult(task, attempts[task], 0, score, fault, parts=tests))
    return found


def _read_trial(said: Mapping[str, Any], task: str, attempt: int, path: Path) -> TaskResult:
    """Read a trial of Harbor. Its reward does not count after some exceptions, and is missing after others."""
    happened = [said.get("exception_info"), *(one.get("exception_info") for one in said.get("step_results") or [])]
    names = [str(one.get("exception_type")) for one in happened if one]
    faults = [name for name in names if name in _HARBOR_FAULTS]
    rewards = (said.get("verifier_result") or {}).get("rewards") or {}
    if not rewards and not faults:
        faults = names or ["the verifier gave no reward"]
    if faults:
        return TaskResult(task, attempt, 0, None, faults[0])
    if any(isinstance(one, bool) or not isinstance(one, int | float) for one in rewards.values()):
        raise BadInput(f"a reward is no number: {rewards}", where=path, fix="run the trial again")
    score = rewards.get(_REWARD, next(iter(rewards.values())))
    return TaskResult(task, attempt, 0, float(score), parts={name: float(one) for name, one in rewards.items()})
