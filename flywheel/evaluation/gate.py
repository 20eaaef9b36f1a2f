"""The promotion gate: is the merged model to replace its predecessor?

Both play the same fresh tasks, a few at a time, until the evidence is enough or the budget is used up: a clear case
costs few episodes, a close one many. The rule is told by its errors. For `not_worse`: a model that is worse by
`promotion.margin` or more is promoted with a chance of at most `false_promotion`, and an equal one is called worse with
a chance of at most `false_refusal`. `better` moves both by the margin: one that is not better, one that is better by
the margin. What neither shows within `promotion.tasks` is not promoted. `evidence` has the mathematics.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from flywheel.errors import DataError
from flywheel.evaluation import evidence
from flywheel.intervals import bootstrap_mean, newcombe_paired
from flywheel.settings import Promotion

_RUNS = 4000  # simulated, for the error rates
_DIGITS = 12  # a mean of thirds is rounded: what is left of 1e-18 decides nothing


@dataclass(frozen=True)
class EvalResult:
    """One held-out episode. score: the one that decides, 0..1. v: V = 1 (`reward.verdict`)."""

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
class Judgement:
    """What the tasks played so far say. verdict: pass, fail, or undecided: play on, while there are tasks.

    difference, low, high, n: as `Comparison`; the interval holds at all looks together. passing, failing: logarithms
    of the capital of the bets that the model is good enough, and that it is not. discordance: share of tasks (weighed
    by the square of their difference) on which the two models differ.
    """

    verdict: Literal["pass", "fail", "undecided"]
    difference: float
    low: float
    high: float
    n: int
    passing: float
    failing: float
    discordance: float


@dataclass(frozen=True)
class ErrorRates:
    """false_promotion: chance that a model that is just too bad is promoted. false_refusal: that one which is just
    good enough is not, be it called worse or left undecided. tasks: played on average by the latter."""

    false_promotion: float
    false_refusal: float
    tasks: float


def paired(old: Sequence[EvalResult], new: Sequence[EvalResult]) -> list[float]:
    """Differences of P(V=1), new - old, one a task, by task id.

    Raises DataError where the two were not evaluated on the same tasks.
    """
    before, after = _by_task(old), _by_task(new)
    if before.keys() != after.keys() or not before:
        apart = len(before.keys() ^ after.keys())
        raise DataError(
            f"the models were evaluated on different tasks ({apart} of {len(before | after)} differ)",
            where="promotion gate",
            fix="evaluate both on the same held-out tasks",
        )
    return [round(_mean(after[task]) - _mean(before[task]), _DIGITS) for task in sorted(before)]


def compare(old: Sequence[EvalResult], new: Sequence[EvalResult], *, seed: int = 0) -> Comparison:
    """Compare on P(V=1), paired by task, for a number of tasks that was fixed before.

    One episode a task: Newcombe's paired interval; several: a bootstrap over tasks (`seed`). Raises DataError as
    `paired` does.
    """
    differences, before = paired(old, new), _by_task(old)
    if all(value in (-1, 0, 1) for value in differences) and all(_mean(runs) in (0, 1) for runs in before.values()):
        solved = sum(_mean(runs) == 1 for runs in before.values())
        gained, lost = differences.count(1), differences.count(-1)
        low, high = newcombe_paired(solved - lost, gained, lost, len(differences) - solved - gained)
    else:
        low, high = bootstrap_mean(differences, seed=seed)
    return Comparison(math.fsum(differences) / len(differences), low, high, len(differences))


def bounds(rule: Promotion) -> tuple[float, float]:
    """(too bad, good enough): the mean differences that the rule tells apart."""
    return (0.0, rule.margin) if rule.rule == "better" else (-rule.margin, 0.0)


def judge(differences: Sequence[float], rule: Promotion) -> Judgement:
    """What the differences say by the rule; `review` is told what `not_worse` says."""
    bad, good = bounds(rule)
    passing = evidence.log_capital_above(differences, bad)
    failing = evidence.log_capital_below(differences, good)
    verdict = decide(passing, failing, rule)
    n = len(differences)
    low, high = evidence.interval(differences)
    mean = math.fsum(differences) / n if n else 0.0
    discordance = math.fsum(value * value for value in differences) / n if n else 0.0
    return Judgement(verdict, mean, low, high, n, passing, failing, discordance)


def decide(passing: float, failing: float, rule: Promotion) -> Literal["pass", "fail", "undecided"]:
    """The verdict of two bets, by the logarithms of their capitals."""
    if passing >= -math.log(rule.false_promotion):
        return "pass"
    return "fail" if failing >= -math.log(rule.false_refusal) else "undecided"


def fewest_tasks(rule: Promotion) -> int:
    """Tasks after which a model that does on every task what the other does (`better`: solves every one that the
    other does not) is promoted, no sooner: promotion.tasks must not be less."""
    best = [0.0, 0.0, 1.0] if rule.rule == "better" else [0.0, 1.0, 0.0]
    wanted, n = -math.log(rule.false_promotion), 1
    while evidence.log_capitals_of_counts(np.array(best) * n, bounds(rule)[0]) < wanted:
        n += 1
    return n


def error_rates(rule: Promotion, discordance: float, *, seed: int = 0, runs: int = _RUNS) -> ErrorRates:
    """The rule's error rates, simulated for one episode a task and models that differ on this share of tasks, or on
    the least share that such a difference takes."""
    bad, good = bounds(rule)
    promoted, _ = simulate(rule, bad, max(discordance, abs(bad)), seed, runs)
    passed, tasks = simulate(rule, good, max(discordance, abs(good)), seed + 1, runs)
    return ErrorRates(promoted, 1 - passed, tasks)


def explain(found: Judgement, rule: Promotion, against: str, *, seed: int = 0) -> str:
    """One line for people: what was found, what the rule makes of it, and how often the rule errs."""
    bad, good = bounds(rule)
    said = {"pass": _GOOD[rule.rule == "better"], "fail": _BAD[rule.rule == "better"], "undecided": "not decided"}
    share = (found.discordance * found.n + 1) / (
        found.n + 2
    )  # of a few tasks: no share is nil for having not been seen
    rates = error_rates(rule, share, seed=seed)
    return (
        f"{said[found.verdict].format(margin=f'{rule.margin:g}')} against {against}: success {found.difference:+.3f} "
        f"[{found.low:+.3f}, {found.high:+.3f}] on {found.n} fresh tasks (at most {rule.tasks}); of models like these, "
        f"which differ on {share:.0%} of tasks, this rule promotes one at {bad:+g} in {rates.false_promotion:.1%} of "
        f"cases and keeps one at {good:+g} back in {rates.false_refusal:.1%}"
    )


_GOOD = {False: "not worse by {margin} or more", True: "better"}
_BAD = {False: "worse", True: "not better by {margin} or more"}


def simulate(
    rule: Promotion, difference: float, discordance: float, seed: int = 0, runs: int = _RUNS
) -> tuple[float, float]:
    """(share of runs that promote, mean number of tasks played) of a model whose P(V=1) differs by `difference`, and
    which differs from the other on the share `discordance` of tasks."""
    bad, good = bounds(rule)
    gain, loss = max(discordance + difference, 0) / 2, max(discordance - difference, 0) / 2
    looks = [*range(rule.tasks_per_look, rule.tasks, rule.tasks_per_look), rule.tasks]
    rng = np.random.default_rng(seed)
    steps = np.diff([0, *looks])
    counts = rng.multinomial(steps, [loss, max(1 - gain - loss, 0), gain], size=(runs, len(steps))).cumsum(axis=1)
    passing = evidence.log_capitals_of_counts(counts, bad) >= -math.log(rule.false_promotion)
    failing = evidence.log_capitals_of_counts(counts[..., ::-1], -good) >= -math.log(rule.false_refusal)
    never = len(looks)
    first_pass = np.where(passing.any(axis=1), passing.argmax(axis=1), never)
    first_fail = np.where(failing.any(axis=1), failing.argmax(axis=1), never)
    last = np.minimum(np.minimum(first_pass, first_fail), never - 1)
    promoted = (first_pass < never) & (first_pass <= first_fail)
    return float(promoted.mean()), float(np.array(looks)[last].mean())


def _by_task(results: Sequence[EvalResult]) -> dict[str, list[float]]:
    tasks: dict[str, list[float]] = defaultdict(list)
    for result in results:
        tasks[result.task_id].append(float(result.v))
    return dict(tasks)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
