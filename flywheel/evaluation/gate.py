"""The promotion gate: is the merged model to replace its predecessor? Paired on the same held-out tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flywheel.errors import DataError
from flywheel.evaluation.intervals import bootstrap_mean, newcombe_paired

Rule = Literal["better", "not_worse", "review", "always"]


@dataclass(frozen=True)
class EvalResult:
    """One held-out episode. score: the verifier's, 0..1. v: whether it reached the task's threshold."""

    task_id: str
    domain: str
    score: float
    v: bool


@dataclass(frozen=True)
class Comparison:
    """difference: mean over tasks of P(V=1), new - old. low, high: its 95% interval. n: tasks compared."""

    difference: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Decision:
    """promote: None where a reviewer decides. reason: one line for people."""

    promote: bool | None
    difference: float
    low: float
    high: float
    reason: str


def compare(old: Sequence[EvalResult], new: Sequence[EvalResult], *, seed: int = 0) -> Comparison:
    """Compare on P(V=1), paired by task. Raises DataError where the two were not evaluated on the same tasks.

    One episode a task: Newcombe's paired interval; several: a bootstrap over tasks (`seed`).
    """
    before, after = _by_task(old), _by_task(new)
    if before.keys() != after.keys() or not before:
        apart = len(before.keys() ^ after.keys())
        raise DataError(
            f"the models were evaluated on different tasks ({apart} of {len(before | after)} differ)",
            where="promotion gate", fix="evaluate both on the same held-out tasks",
        )  # fmt: skip
    pairs = [(_mean(before[task]), _mean(after[task])) for task in sorted(before)]
    difference = _mean([b - a for a, b in pairs])
    if all(a in (0, 1) and b in (0, 1) for a, b in pairs):
        count = {cell: sum(pair == cell for pair in pairs) for cell in ((0, 0), (0, 1), (1, 0), (1, 1))}
        low, high = newcombe_paired(count[1, 1], count[0, 1], count[1, 0], count[0, 0])
    else:
        low, high = bootstrap_mean([b - a for a, b in pairs], seed=seed)
    return Comparison(difference, low, high, len(pairs))


def by_rule(rule: Rule, margin: float, difference: float, low: float, high: float) -> Decision:
    """Apply the promotion rule (`settings.Promotion`) to a difference with its interval."""
    promote, why = _apply(rule, margin, difference, low)
    return Decision(promote, difference, low, high, f"success {difference:+.3f} [{low:+.3f}, {high:+.3f}]: {why}")


def decide(
    old: Sequence[EvalResult], new: Sequence[EvalResult], rule: Rule, margin: float, *, seed: int = 0
) -> Decision:
    """`compare`, then `by_rule`."""
    found = compare(old, new, seed=seed)
    return by_rule(rule, margin, found.difference, found.low, found.high)


def _apply(rule: Rule, margin: float, difference: float, low: float) -> tuple[bool | None, str]:
    match rule:
        case "better":
            return (True, "the interval lies above 0") if low > 0 else (False, "the interval does not lie above 0")
        case "not_worse":
            if difference >= 0 and low > -margin:
                return True, f"not worse: the mean is 0 or more, the lower end above -{margin:g}"
            if difference < 0:
                return False, "the mean is below 0"
            return False, f"the lower end is not above -{margin:g}"
        case "review":
            return None, "a reviewer decides"
        case "always":
            return True, "the rule promotes always"


def _by_task(results: Sequence[EvalResult]) -> dict[str, list[float]]:
    tasks: dict[str, list[float]] = defaultdict(list)
    for result in results:
        tasks[result.task_id].append(float(result.v))
    return dict(tasks)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
