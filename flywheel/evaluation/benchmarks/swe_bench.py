"""Adapt SWE-bench: instances, predictions (patches), and reports of its harness. https://github.com/SWE-bench/SWE-bench"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flywheel.agent import actions as act
from flywheel.evaluation.benchmarks.benchmark import (
    AdaptedActions,
    BenchmarkTask,
    OfficialScore,
    RefusedTask,
    TaskResult,
    require_results,
)
from flywheel.utils.errors import BadInput
from flywheel.utils.json_text import describe_first_fault, iter_json_lines, parse_foreign_json

_PASSED, _FAILED = frozenset(["PASSED", "XFAIL"]), frozenset(["FAILED", "ERROR", "SKIPPED"])
_PATCH = "model_patch"
_REPORT = "report.json"


class _Instance(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)
    instance_id: str = Field(min_length=1)
    repo: str
    base_commit: str
    problem_statement: str = Field(min_length=1)
    FAIL_TO_PASS: list[str] | str
    PASS_TO_PASS: list[str] | str


class SweBench:
    """Adapt SWE-bench. An action is a prediction: an object with `instance_id`, `model_name_or_path`, `model_patch`."""

    name, title = "swe-bench", "SWE-bench"
    source = "huggingface.co/datasets/princeton-nlp/SWE-bench_Verified, as Parquet, JSON or JSON lines"
    space = "none: its actions are patches"
    ran = "none: each instance needs its Docker image; grading is compared with swebench's own"

    def load_tasks(self, folder: Path) -> Iterator[BenchmarkTask | RefusedTask]:
        """Yield the instances of all Parquet, JSON and JSON-lines files below `folder`, or of one file. An instance
        that stands in several is yielded once. Raises BadInput where there is none."""
        paths = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*") if _is_data(path))
        seen: set[str] = set()
        found = False
        for path in paths:
            for said in _read_instances(path):
                found = True
                if isinstance(said, RefusedTask):
                    yield said
                    continue
                try:
                    instance = _Instance.model_validate(said)
                    tests = {name: read_tests(said[name]) for name in ("FAIL_TO_PASS", "PASS_TO_PASS")}
                except ValueError as error:
                    why = describe_first_fault(error) if isinstance(error, ValidationError) else str(error)
                    yield RefusedTask(path, why)
                    continue
                if instance.instance_id in seen:
                    continue
                seen.add(instance.instance_id)
                declared = {**tests, "base_commit": instance.base_commit, "version": said.get("version", "")}
                unplayable = "it needs the Docker image of its repository"
                yield BenchmarkTask(
                    instance.instance_id, instance.problem_statement, instance.repo, unplayable, declared, path
                )
        if not found:
            raise BadInput("no instances of SWE-bench", where=folder, fix="name its Parquet or JSON files")

    def parse_action(self, written: Any, screen: tuple[int, int] | None = None) -> AdaptedActions:
        """Parse a prediction: its patch is the answer with which the agent ends; a null one gives no action."""
        if not isinstance(written, Mapping) or _PATCH not in written:
            raise ValueError(f"a prediction has a field {_PATCH}")
        rest = {name: value for name, value in written.items() if name != _PATCH}
        patch = written[_PATCH]
        if patch is None:
            return AdaptedActions((), rest)
        if not isinstance(patch, str):
            raise ValueError(f"{_PATCH} is no text")
        return AdaptedActions((act.Finished(patch),), rest)

    def format_action(self, action: AdaptedActions, screen: tuple[int, int] | None = None) -> dict[str, Any]:
        """Write a prediction."""
        if len(action.actions) > 1 or not all(isinstance(one, act.Finished) for one in action.actions):
            raise ValueError("a prediction of SWE-bench is one patch, which ends the task")
        return {**action.extras, _PATCH: action.actions[0].content if action.actions else None}

    def read_results(self, folder: Path) -> list[TaskResult]:
        """Read a run's report (`<model>.<run>.json`), or its log folders (`<instance>/report.json`).

        An instance in error, and one whose failure the harness lays to the environment (`infra_failure`), is a fault.
        """
        summaries = [path for path in sorted(folder.glob("*.json")) if "resolved_ids" in _read_object(path)]
        if len(summaries) > 1:
            raise BadInput(f"{len(summaries)} reports of runs", where=folder, fix="name a folder with one of them")
        if summaries:
            return _read_summary(_read_object(summaries[0]))
        reports = sorted(folder.rglob(_REPORT))
        logs = {path.parent for path in folder.rglob("run_instance.log")} - {path.parent for path in reports}
        if not reports and not logs:
            raise BadInput("no report", where=folder, fix="name the folder of a run's logs or of its report")
        found = [_read_report(path) for path in reports]
        return found + [TaskResult(path.name, fault="it has no report") for path in sorted(logs)]

    def score_results(self, results: Sequence[TaskResult]) -> OfficialScore:
        """Score as the harness does: the share of resolved instances among all, those in error too."""
        require_results(results, self.title)
        resolved = sum(one.score == 1.0 for one in results)
        figures = {"resolved_instances": float(resolved), "total_instances": float(len(results))}
        return OfficialScore(resolved / len(results), figures)


def read_tests(said: list[str] | str) -> list[str]:
    """Return the tests that FAIL_TO_PASS or PASS_TO_PASS names, a list or JSON text. Raises ValueError for others."""
    found = parse_foreign_json(said.encode()) if isinstance(said, str) else said
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ValueError("its tests are no list of names")
    return found


def grade_instance(
    statuses: Mapping[str, str], fail_to_pass: Sequence[str], pass_to_pass: Sequence[str], *, fail_only: bool = False
) -> dict[str, float]:
    """Grade an instance by the status of each test after the patch, as swebench 5 does.

    statuses: test -> PASSED, FAILED, SKIPPED, ERROR or XFAIL. fail_only: the log names failed tests alone, so that one
    that is not there has passed. Returns `fail_to_pass` and `pass_to_pass`, shares of the tests that passed (a skipped
    one counts for the latter; one whose status is none of those counts for neither), and `resolved`, 1 where both are.
    """

    def share(tests: Sequence[str], passing: frozenset[str]) -> float:
        if fail_only:
            return _ratio(sum(statuses.get(test) != "FAILED" for test in tests), len(tests))
        known = [_find_status(test, statuses) for test in tests]
        good = sum(status in passing for status in known)
        bad = sum(status is None or (status in _FAILED and status not in passing) for status in known)
        return _ratio(good, good + bad)

    first, second = share(fail_to_pass, _PASSED), share(pass_to_pass, _PASSED | {"SKIPPED"})
    return {"fail_to_pass": first, "pass_to_pass": second, "resolved": float(first == 1.0 and second == 1.0)}


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def _find_status(test: str, statuses: Mapping[str, str]) -> str | None:
    """Find a test's status. A name that was cut off within its parameters stands for those that begin with it, where
    they agree on whether they passed."""
    if test in statuses or test.count("[") <= test.count("]"):
        return statuses.get(test)
    alike = [status for name, status in statuses.items() if name.startswith(test)]
    return alike[0] if len({status in _PASSED for status in alike}) == 1 else None


def _is_data(path: Path) -> bool:
    return path.is_file() and path.suffix in (".parquet", ".jsonl", ".json")


def _read_instances(path: Path) -> Iterator[dict[str, Any] | RefusedTask]:
    """Yield the instances of a file; a JSON file that holds no instance is another's, and yields none."""
    try:
        if path.suffix == ".parquet":
            yield from pq.read_table(path).to_pylist()
        elif path.suffix == ".jsonl":
            for _, line in iter_json_lines(path):
                yield parse_foreign_json(line)
        else:
            found = parse_foreign_json(path.read_bytes())
            for one in found if isinstance(found, list) else [found]:
                if isinstance(one, dict) and "instance_id" in one and "problem_statement" in one:
                    yield one
    except (OSError, ValueError, pa.ArrowException) as error:
        yield RefusedTask(path, " ".join(str(error).split())[:200])


def _read_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BadInput(f"no JSON: {error}", where=path, fix="let the harness finish, or remove the file") from None
    return found if isinstance(found, dict) else {}


def _read_summary(said: Mapping[str, Any]) -> list[TaskResult]:
    resolved, broken = set(said["resolved_ids"]), set(said.get("infra_failure_ids", ()))
    reasons = said.get("failure_reasons", {})
    found = []
    for name in sorted({*resolved, *said.get("unresolved_ids", ()), *said.get("empty_patch_ids", ())}):
        fault = reasons.get(name, "the environment") if name in broken and name not in resolved else ""
        found.append(TaskResult(name, score=None if fault else float(name in resolved), fault=fault))
    found += [TaskResult(name, fault=reasons.get(name, "in error")) for name in sorted(said.get("error_ids", ()))]
    return found + [TaskResult(name, fault="no prediction") for name in sorted(said.get("incomplete_ids", ()))]


def _read_report(path: Path) -> TaskResult:
    name = path.parent.name
    try:
        said = parse_foreign_json(path.read_bytes())[name]
    except (ValueError, KeyError, TypeError):
        return TaskResult(name, fault="its report is damaged")
    if said.get("infra_failure") and not said.get("resolved"):
        return TaskResult(name, fault=str(said.get("infra_failure_reason", "the environment")))
    parts = {}
    if tests := said.get("tests_status"):
        for kind in ("FAIL_TO_PASS", "PASS_TO_PASS"):
            good, bad = (len(tests[kind][how]) for how in ("success", "failure"))
            parts[kind.lower()] = _ratio(good, good + bad)
        if bool(said["resolved"]) != all(share == 1.0 for share in parts.values()):
            raise BadInput("`resolved` and its tests disagree", where=path, fix="grade the instance again")
    return TaskResult(name, score=float(bool(said.get("resolved"))), parts=parts)
