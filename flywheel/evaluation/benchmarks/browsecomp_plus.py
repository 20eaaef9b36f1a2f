"""Adapt BrowseComp-Plus: load its decrypted queries, convert calls of its tools, and score its judged runs.

https://github.com/texttron/BrowseComp-Plus
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from flywheel.agent import actions as act
from flywheel.evaluation.benchmarks.benchmark import (
    AdaptedActions,
    BenchmarkTask,
    OfficialScore,
    RefusedTask,
    TaskResult,
    require_results,
    require_text,
)
from flywheel.utils.errors import BadInput
from flywheel.utils.json_text import iter_json_lines, parse_foreign_json

_TOOLS = ("search", "get_document", "local_knowledge_base_retrieval")
_BIN = 100  # judged answers in a bin of the calibration error
_EVALUATED = "_eval.json"
_CORRECT = [
    re.compile(form + r"\s*(yes|no)", re.IGNORECASE) for form in (r"\*\*correct:\*\*", r"\*\*correct\*\*:", "correct:")
]
_CONFIDENCE = [
    re.compile(form + r"\s*(\d+(?:\.\d+)?)\s*%?", re.IGNORECASE)
    for form in (r"\*\*confidence:\*\*", r"\*\*confidence\*\*:", "confidence:")
]


class BrowseCompPlus:
    """Adapt BrowseComp-Plus. An action is a call of `search` or `get_document`, or the text of the answer."""

    name, title = "browsecomp-plus", "BrowseComp-Plus"
    source = "huggingface.co/datasets/Tevatron/browsecomp-plus, decrypted by its own script; or topics-qrels"
    space = "none: its actions are calls and texts"
    ran = "none: its corpus and its judge, Qwen3-32B, are not here"

    def load_tasks(self, folder: Path) -> Iterator[BenchmarkTask | RefusedTask]:
        """Yield the queries of the decrypted JSON lines, or of queries.tsv. Raises BadInput where there are none."""
        lines, tables = sorted(folder.rglob("*.jsonl")), sorted(folder.rglob("queries.tsv"))
        if not lines and not tables:
            fix = "run its scripts_build_index/decrypt_dataset.py, and name the folder that it wrote"
            raise BadInput("no decrypted queries", where=folder, fix=fix)
        for path in lines or tables:
            yield from (_read_lines if lines else _read_table)(path)

    def parse_action(self, written: Any, screen: tuple[int, int] | None = None) -> AdaptedActions:
        """Parse a call (`type`, `name`, `arguments`, as OpenAI's responses have it), or a text, which ends the task."""
        if isinstance(written, str):
            return AdaptedActions((act.Finished(written),))
        if not isinstance(written, Mapping) or written.get("type") != "function_call":
            raise ValueError("an action of BrowseComp-Plus is a function call or a text")
        name, arguments = (require_text(written.get(field), field) for field in ("name", "arguments"))
        if name not in _TOOLS:
            raise ValueError(f"BrowseComp-Plus has no tool {name}")
        call = act.ToolCall(name, arguments)
        extras = {field: value for field, value in written.items() if field not in ("type", "name")}
        if call.arguments == arguments:
            extras.pop("arguments")
        return AdaptedActions((call,), extras)

    def format_action(self, action: AdaptedActions, screen: tuple[int, int] | None = None) -> Any:
        """Write a call or a text. Raises ValueError for another action."""
        match action.actions:
            case (act.Finished(content),):
                return content
            case (act.ToolCall(tool, arguments),) if tool in _TOOLS:
                return {"type": "function_call", "name": tool, "arguments": arguments, **action.extras}
        raise ValueError("BrowseComp-Plus has calls of its tools and answers alone")

    def read_results(self, folder: Path) -> list[TaskResult]:
        """Read the judged runs, `*_eval.json`. A completed answer that the judge did not judge is a fault; one that the
        agent did not complete is wrong."""
        paths = sorted(folder.rglob(f"*{_EVALUATED}"))
        if not paths:
            raise BadInput(f"no *{_EVALUATED}", where=folder, fix="run its scripts_evaluation/evaluate_run.py")
        return [_read_judged(path) for path in paths]

    def score_results(self, results: Sequence[TaskResult]) -> OfficialScore:
        """Score as `evaluate_run.py` does: accuracy, calibration error and recall of evidence documents, as fractions.

        A run that was not judged counts as wrong.
        """
        require_results(results, self.title)
        accuracy = fmean(one.score or 0.0 for one in results)
        recalls = [one.parts["recall"] for one in results if "recall" in one.parts]
        judged = [one for one in results if one.score is not None and "confidence" in one.parts]
        error = calibration_error([one.parts["confidence"] for one in judged], [one.score for one in judged])
        figures = {"accuracy": accuracy, "calibration_error": error}
        return OfficialScore(accuracy, figures | ({"recall": fmean(recalls)} if recalls else {}))


def parse_judgement(text: str) -> dict[str, Any]:
    """Parse what the judge said: `correct` (a truth value; None where it does not say) and `confidence` (0 to 100)."""
    correct = next((found[1] for form in _CORRECT if (found := form.search(text))), None)
    confidence = next((float(found[1]) for form in _CONFIDENCE if (found := form.search(text))), None)
    return {
        "correct": None if correct is None else correct.lower() == "yes",
        "confidence": None if confidence is None else min(confidence, 100.0),
    }


def calibration_error(confidences: Sequence[float], correct: Sequence[float]) -> float:
    """Compute the calibration error of judged answers as `evaluate_run.py` does, as a fraction.

    It is the root of the weighted mean square, over bins of 100 answers by confidence, of mean confidence less
    accuracy. confidences: 0 to 100. correct: 0 or 1 of each. The last bin does not count there, so that fewer than 200
    answers give 0.
    """
    if len(confidences) < _BIN:
        return 0.0
    order = np.argsort(np.asarray(confidences) / 100).tolist()  # as there: ties fall as they do by this very sort
    total = 0.0
    for start in range(0, (len(order) // _BIN - 1) * _BIN, _BIN):
        chosen = order[start : start + _BIN]
        apart = fmean(confidences[place] / 100 for place in chosen) - fmean(correct[place] for place in chosen)
        total += _BIN / len(order) * apart**2
    return math.sqrt(total)


def _read_lines(path: Path) -> Iterator[BenchmarkTask | RefusedTask]:
    for number, line in iter_json_lines(path):
        try:
            said = parse_foreign_json(line)
            task, query = str(said["query_id"]), require_text(said["query"], "query")
        except (ValueError, KeyError, TypeError) as error:
            yield RefusedTask(path, f"line {number}: {error}")
            continue
        yield _make_task(task, query, {name: said[name] for name in ("answer",) if name in said}, path)


def _read_table(path: Path) -> Iterator[BenchmarkTask | RefusedTask]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        task, tab, query = line.partition("\t")
        yield _make_task(task, query, {}, path) if tab and query else RefusedTask(path, f"line {number}: no query")


def _make_task(task: str, query: str, declared: Mapping[str, Any], path: Path) -> BenchmarkTask:
    return BenchmarkTask(task, query, "", "it needs the benchmark's corpus and a judge", declared, path)


def _read_judged(path: Path) -> TaskResult:
    try:
        said = json.loads(path.read_bytes())
        task, judged = str(said["query_id"]), said.get("judge_result") or {}
        completed = bool(said.get("is_completed")) and bool(said.get("response"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"no judged run: {error}", where=path, fix="judge the run again") from None
    parts = {}
    recall = (said.get("retrieval") or {}).get("recall")
    if isinstance(recall, int | float):
        parts["recall"] = float(recall)
    if completed and (judged.get("parse_error") or judged.get("correct") is None):
        return TaskResult(task, fault="the judge gave no judgement", parts=parts)
    if isinstance(judged.get("confidence"), int | float):
        parts["confidence"] = float(judged["confidence"])
    return TaskResult(task, score=float(bool(judged.get("correct"))), parts=parts)
