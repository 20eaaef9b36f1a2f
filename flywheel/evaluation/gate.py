"""Decide on a promotion by a sequential test on fresh tasks, and choose the best model by its held-out outcomes.

The stages `evaluate` and `promote` do so: does the merged model replace its predecessor, and which is the best so far?
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from flywheel.config import PromotionSettings, Settings
from flywheel.config.workspace import Workspace
from flywheel.rewards.scorer import ScorerSet
from flywheel.store.schema import ALL_DOMAINS, metric_row
from flywheel.utils.confidence_intervals import bootstrap_mean_interval, format_difference, newcombe_paired_interval
from flywheel.utils.errors import DataError
from flywheel.utils.files import write_json

# Anytime-valid evidence about the mean of paired differences: testing by betting.
#
# A gambler who starts with 1 bets on each difference d in [-1, 1] that the mean is above m: the stake u in (0, 1)
# multiplies the capital by 1 + u (d - m) / (1 + m), which is never negative and, if the mean is m or less, never grows
# on average. So by Ville's inequality the capital ever reaches 1/a with a chance of at most a, whatever the
# distribution, and may be looked at after every task: their number need not be fixed before. The capital is the mean
# over stakes from a quarter to three quarters, and the order of the tasks makes no difference (Waudby-Smith and Ramdas
# 2024, Journal of the Royal Statistical Society B 86:1, "Estimating means of bounded random variables by betting"; the
# mixture is Cover's universal portfolio). Any stakes are valid; these have more power with some tens of tasks than all
# of (0, 1) (one equal model in three is promoted within 80 tasks, not one in four), hardly less with a thousand.

_STAKES = 0.25 + 0.5 * (np.arange(32) + 0.5) / 32
_BISECTIONS = 50  # halve [-1, 1] to below what a float can tell


def log_capital_above(differences: Sequence[float] | np.ndarray, mean: float) -> float:
    """Compute the natural logarithm of the capital won by betting that the mean is above `mean`.

    differences: [tasks], each in [-1, 1]; of none it is 0. mean: in (-1, 1).
    """
    gains = np.log1p(_STAKES * ((np.asarray(differences, np.float64)[:, None] - mean) / (1 + mean)))  # (n, stakes)
    return float(_log_mean(gains.sum(axis=0)))


def log_capital_below(differences: Sequence[float] | np.ndarray, mean: float) -> float:
    """Compute the natural logarithm of the capital won by betting that the mean is below `mean`.

    differences, mean: as for `log_capital_above`.
    """
    return log_capital_above(-np.asarray(differences, np.float64), -mean)


def log_capitals_of_counts(counts: np.ndarray, mean: float) -> np.ndarray:
    """Compute `log_capital_above` of many samples of differences -1, 0 and 1, against `mean`: float64 [...].

    counts: how many differences of each value a sample has, [..., 3].
    """
    gains = np.log1p(_STAKES * ((np.array([-1.0, 0.0, 1.0])[:, None] - mean) / (1 + mean)))  # (3, stakes)
    return _log_mean(np.asarray(counts, np.float64) @ gains)


def betting_interval(differences: Sequence[float] | np.ndarray, confidence: float = 0.95) -> tuple[float, float]:
    """Compute the interval (low, high) of the means that neither bet has refuted.

    differences: [tasks], in [-1, 1]. confidence: in (0, 1), the probability with which the intervals of all looks at a
    growing sample hold the true mean.
    """
    data = np.asarray(differences, np.float64)
    refuted = math.log(2 / (1 - confidence))
    return _lowest_unrefuted_mean(data, refuted), -_lowest_unrefuted_mean(-data, refuted)


def _lowest_unrefuted_mean(data: np.ndarray, refuted: float) -> float:
    """Find the least mean that betting above it has not refuted, by bisection: the capital falls as the mean rises."""
    low, high = -1.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if middle > -1 and log_capital_above(data, middle) >= refuted:
            low = middle
        else:
            high = middle
    return low


def _log_mean(logarithms: np.ndarray) -> np.ndarray:
    """Compute the mean of capitals over the stakes (the last axis), from their logarithms and as a logarithm."""
    top = logarithms.max(axis=-1, keepdims=True)
    return np.squeeze(top, -1) + np.log(np.exp(logarithms - top).mean(axis=-1))


# The promotion gate: is the merged model to replace its predecessor? Both play the same fresh tasks, a few at a time,
# until the evidence is enough or the budget is used up: a clear case costs few episodes, a close one many. A rule is
# defined by its errors. `non_inferiority`: a model that is worse by `promotion.margin` or more is promoted with a
# chance of at most `type_i_error`, and an equal one is called worse with a chance of at most `type_ii_error`.
# `superiority`: the same of a model that is not better, and of one that is better by the margin. A model that is
# undecided after `promotion.tasks` tasks is not promoted.

_RUNS = 4000  # simulated runs of the gate, for the error rates
_DIGITS = 12  # decimals of a difference: a rounding error of 1e-18 must decide nothing


@dataclass(frozen=True)
class EvalResult:
    """Hold the result of one evaluated episode. score: the deciding scorer's, 0..1. v: whether it solved the task."""

    task_id: str
    domain: str
    score: float
    v: bool


@dataclass(frozen=True)
class Comparison:
    """Hold a comparison of two models on `n` tasks: the mean of P(V=1), new - old, and its 95% interval."""

    difference: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class GateJudgement:
    """Hold the gate's judgement after the tasks played so far. verdict: undecided asks for more tasks, if there are.

    difference, low, high, n: as `Comparison`; the interval holds at all looks together. passing, failing: logarithms of
    the capital of the bets that the model is good enough, and that it is not. discordance: share of tasks (weighed by
    the square of their difference) on which the two models differ. better, worse: numbers of tasks on which the new one
    is; None where the metrics are of an earlier version.
    """

    verdict: Literal["pass", "fail", "undecided"]
    difference: float
    low: float
    high: float
    n: int
    passing: float
    failing: float
    discordance: float
    better: int | None = None
    worse: int | None = None


@dataclass(frozen=True)
class ErrorRates:
    """Hold a rule's simulated error rates.

    type_i_error: probability that a model that is just too bad is promoted. type_ii_error: that one which is just good
    enough is not, be it called worse or left undecided. tasks: mean number of tasks played by the latter.
    """

    type_i_error: float
    type_ii_error: float
    tasks: float


def solved_share_by_task(results: Sequence[EvalResult]) -> dict[str, float]:
    """Compute the share of solved episodes of each task, in [0, 1], by task id, sorted. results: of one model."""
    by_task: dict[str, list[bool]] = defaultdict(list)
    for result in results:
        by_task[result.task_id].append(result.v)
    return {task: sum(runs) / len(runs) for task, runs in sorted(by_task.items())}


def pair_differences(old: Sequence[EvalResult], new: Sequence[EvalResult]) -> list[float]:
    """Compute the difference in success, new - old, of each task, sorted by task id: [tasks], each in [-1, 1].

    old, new: results of each model. Raises DataError where the two were not evaluated on the same tasks, or on none.
    """
    before, after = solved_share_by_task(old), solved_share_by_task(new)
    if before.keys() != after.keys() or not before:
        apart = len(before.keys() ^ after.keys())
        raise DataError(
            f"the models were evaluated on different tasks ({apart} of {len(before | after)} differ)",
            where="promotion gate",
            fix="evaluate both on the same held-out tasks",
        )
    return [round(after[task] - before[task], _DIGITS) for task in sorted(before)]


def compare_models(old: Sequence[EvalResult], new: Sequence[EvalResult], *, seed: int = 0) -> Comparison:
    """Compare two models' success, paired by task, for a number of tasks that was fixed beforehand.

    old, new: results of each, one or several episodes a task. Where each task ends alike in all its episodes, as with
    one a task, the interval is Newcombe's (1998, method 10), else a bootstrap over tasks, drawn with `seed`. Returns
    the mean difference new - old, its 95% interval and the number of tasks. Raises DataError where the two were not
    evaluated on the same tasks, or on none.
    """
    differences, before = pair_differences(old, new), solved_share_by_task(old)
    if all(value in (-1, 0, 1) for value in differences) and all(share in (0, 1) for share in before.values()):
        solved = sum(share == 1 for share in before.values())
        gained, lost = differences.count(1), differences.count(-1)
        low, high = newcombe_paired_interval(solved - lost, gained, lost, len(differences) - solved - gained)
    else:
        low, high = bootstrap_mean_interval(differences, seed=seed)
    return Comparison(math.fsum(differences) / len(differences), low, high, len(differences))


def gate_bounds(rule: PromotionSettings) -> tuple[float, float]:
    """Return the mean differences that the rule tells apart: (too bad, good enough). rule: block `promotion`."""
    return (0.0, rule.margin) if rule.rule == "superiority" else (-rule.margin, 0.0)


def judge_differences(differences: Sequence[float], rule: PromotionSettings) -> GateJudgement:
    """Judge paired differences by the promotion rule: pass, fail or undecided, with the evidence.

    differences: new - old of each task, [tasks], each in [-1, 1], in the order played; of none the verdict is
    `undecided`, the interval -1 to 1 and the rest 0. rule: block `promotion`; under `rule: review` the verdict is the
    one of `non_inferiority`, for a person to read.
    """
    bad, good = gate_bounds(rule)
    passing, failing = log_capital_above(differences, bad), log_capital_below(differences, good)
    verdict, n = decide_gate(passing, failing, rule), len(differences)
    low, high = betting_interval(differences)
    mean = math.fsum(differences) / n if n else 0.0
    discordance = math.fsum(value * value for value in differences) / n if n else 0.0
    better, worse = sum(value > 0 for value in differences), sum(value < 0 for value in differences)
    return GateJudgement(verdict, mean, low, high, n, passing, failing, discordance, better, worse)


def decide_gate(passing: float, failing: float, rule: PromotionSettings) -> Literal["pass", "fail", "undecided"]:
    """Decide whether the evidence of the two bets is enough: pass, fail or undecided.

    passing, failing: natural logarithms of the capital of the bet that the model is good enough, and that it is not.
    rule: block `promotion`.
    """
    if passing >= -math.log(rule.type_i_error):
        return "pass"
    return "fail" if failing >= -math.log(rule.type_ii_error) else "undecided"


def count_fewest_tasks(rule: PromotionSettings) -> int:
    """Count the tasks after which the best possible result is promoted; `promotion.tasks` must not be less.

    rule: block `promotion`. The best result is that both models do the same on every task; under `rule: superiority`,
    that the new one solves every task and the old one none.
    """
    best = [0.0, 0.0, 1.0] if rule.rule == "superiority" else [0.0, 1.0, 0.0]
    wanted, n = -math.log(rule.type_i_error), 1
    while log_capitals_of_counts(np.array(best) * n, gate_bounds(rule)[0]) < wanted:
        n += 1
    return n


def estimate_error_rates(rule: PromotionSettings, discordance: float, *, seed: int = 0) -> ErrorRates:
    """Simulate the error rates of `rule`, block `promotion`, for one episode a task, by 4,000 runs each.

    discordance: share of tasks on which the models differ, raised to the least that such a difference takes. seed: of
    the simulation.
    """
    bad, good = gate_bounds(rule)
    promoted, _ = simulate_gate(rule, bad, max(discordance, abs(bad)), seed)
    passed, tasks = simulate_gate(rule, good, max(discordance, abs(good)), seed + 1)
    return ErrorRates(promoted, 1 - passed, tasks)


def explain_judgement(found: GateJudgement, rule: PromotionSettings, against: str) -> str:
    """Explain a judgement in a line of plain words: what was found, whether that was enough, how often the test errs.

    rule: block `promotion`. against: the model that it was compared with, in words.
    """
    superiority, margin = rule.rule == "superiority", f"{rule.margin:g}"
    wanted = "better" if superiority else f"not worse by {margin} or more"
    refuted = f"better by less than {margin}" if superiority else "worse"
    verdict = {"pass": "shown", "fail": f"refuted: it is {refuted}", "undecided": "neither shown nor refuted"}
    differ = f"compared with {against}"
    if found.better is not None and found.worse is not None:
        differ = f"{found.better + found.worse} differ, {found.better} better and {found.worse} worse than {against}"
    success = format_difference(found.difference, found.low, found.high)
    share = (found.discordance * found.n + 1) / (found.n + 2)  # smoothed: a few tasks may not show it
    rates = estimate_error_rates(rule, share)
    too_bad = "one that is no better" if superiority else f"one that is worse by {margin}"
    good = f"one that is better by {margin}" if superiority else "an equal one"
    return (
        f"of {found.n} fresh tasks (at most {rule.tasks}) {differ}: success {success}; to be shown: {wanted}; "
        f"that is {verdict[found.verdict]}; of models that differ as often, this test promotes {too_bad} in "
        f"{rates.type_i_error:.1%} of cases and keeps {good} back in {rates.type_ii_error:.1%}"
    )


def explain_disagreement(rows: Iterable[Mapping[str, Any]], rule: PromotionSettings) -> str:
    """Explain why held-out and fresh tasks say different things of the same two models; "" where they do not.

    rows: of the table `metrics` of one iteration. rule: block `promotion`. They disagree where one rises and the other
    falls, or where their intervals do not meet; "" also where `rows` have no result of one of them. Raises KeyError as
    `parse_gate_metrics`.
    """
    rows = list(rows)
    fresh = parse_gate_metrics(rows, rule).get("before")
    named = (row for row in rows if row["name"] == "success_difference" and row["domain"] == ALL_DOMAINS)
    held_out = next(named, None)
    if fresh is None or held_out is None or held_out["value"] is None:
        return ""
    low, high = (held_out[end] if held_out[end] is not None else held_out["value"] for end in ("low", "high"))
    if held_out["value"] * fresh.difference >= 0 and low <= fresh.high and fresh.low <= high:
        return ""
    success = format_difference(held_out["value"], low, high)
    return (
        f"the {held_out['n']} held-out tasks say otherwise (success {success}): they are another set, the same in "
        "every iteration, on which the curve of success is drawn and the best model is chosen; the fresh ones were "
        "drawn for this decision alone, and decide"
    )


def simulate_gate(
    rule: PromotionSettings, difference: float, discordance: float, seed: int = 0, runs: int = _RUNS
) -> tuple[float, float]:
    """Simulate the gate `runs` times; return (share of runs that promote, mean number of tasks played).

    rule: block `promotion`. difference: of the two models' P(V=1), new - old. discordance: share of tasks on which they
    differ. seed: of the draws.
    """
    bad, good = gate_bounds(rule)
    gain, loss = max(discordance + difference, 0) / 2, max(discordance - difference, 0) / 2
    looks = [*range(rule.tasks_per_look, rule.tasks, rule.tasks_per_look), rule.tasks]
    rng = np.random.default_rng(seed)
    steps = np.diff([0, *looks])
    counts = rng.multinomial(steps, [loss, max(1 - gain - loss, 0), gain], size=(runs, len(steps))).cumsum(axis=1)
    passing = log_capitals_of_counts(counts, bad) >= -math.log(rule.type_i_error)
    failing = log_capitals_of_counts(counts[..., ::-1], -good) >= -math.log(rule.type_ii_error)
    never = len(looks)
    first_pass = np.where(passing.any(axis=1), passing.argmax(axis=1), never)
    first_fail = np.where(failing.any(axis=1), failing.argmax(axis=1), never)
    last = np.minimum(np.minimum(first_pass, first_fail), never - 1)
    promoted = (first_pass < never) & (first_pass <= first_fail)
    return float(promoted.mean()), float(np.array(looks)[last].mean())


# Judgements as rows of the table `metrics`, and back.

_METRIC_SUFFIX = {"before": "", "best": "_best"}  # of the figures' names, by rival
_BASELINE_NAMES = {"before": "the model before it", "best": "the best model so far"}


def build_gate_metrics(rival: str, judged: GateJudgement) -> list[dict[str, Any]]:
    """Build the rows of the table `metrics` that hold a judgement; `parse_gate_metrics` reads it back.

    rival: whom the new model was compared with: `before`, the one before it, or `best`, whose figures' names end in
    `_best`; KeyError for another. judged: what `judge_differences` gave. Returns gate_difference with its interval,
    gate_passing, gate_failing, gate_discordance, gate_better and gate_worse, each with the number of tasks; nothing is
    written.
    """
    end = _METRIC_SUFFIX[rival]
    interval = {"low": judged.low, "high": judged.high, "n": judged.n}
    rows = [metric_row(f"gate_difference{end}", judged.difference, **interval)]
    for name in ("passing", "failing", "discordance", "better", "worse"):
        rows.append(metric_row(f"gate_{name}{end}", getattr(judged, name), n=judged.n))
    return rows


def parse_gate_metrics(rows: Iterable[Mapping[str, Any]], rule: PromotionSettings) -> dict[str, GateJudgement]:
    """Read the gate's judgements back from an iteration's metrics, and decide again by `rule`.

    rows: of one iteration, of the table `metrics`. rule: block `promotion`. Returns a judgement for each model that the
    new one was compared with: `before`, `best`; {} where the gate did not run. Raises KeyError where rows of a
    judgement are missing.
    """
    by_name = {row["name"]: row for row in rows if row["domain"] == ALL_DOMAINS}
    found = {}
    for rival, end in _METRIC_SUFFIX.items():
        row = by_name.get(f"gate_difference{end}")
        if row is not None:
            bets = [by_name[f"gate_{name}{end}"]["value"] for name in ("passing", "failing", "discordance")]
            verdict, interval = decide_gate(*bets[:2], rule), (row["low"], row["high"])
            counts = (by_name.get(f"gate_{name}{end}") for name in ("better", "worse"))
            differing = [None if one is None else int(one["value"]) for one in counts]
            found[rival] = GateJudgement(verdict, row["value"], *interval, row["n"], *bets, *differing)
    return found


def explain_gate_metrics(rows: Iterable[Mapping[str, Any]], rule: PromotionSettings) -> list[str]:
    """Explain each judgement of the gate in an iteration's metrics, in a line each, as `explain_judgement` does.

    rows, rule: as for `parse_gate_metrics`, whose KeyError passes. [] where the gate did not run.
    """
    return [
        explain_judgement(found, rule, _BASELINE_NAMES[rival])
        for rival, found in parse_gate_metrics(rows, rule).items()
    ]


# `iterations/NNN/held_out.json` says what the models of an evaluation did on the tasks that are the same in all
# iterations: {"about": key, "models": {digest: {task_id: share of its episodes that were solved}}}. The next iteration
# reads it, so that only the new model has to play them; the key names the settings under which it was measured. The
# best model so far is the promoted one with the highest success there; the newest of those that are equal. Which one
# that is rests on few tasks and may be a matter of luck; the comparison with it is made on other tasks.

SolvedShares = dict[str, float]  # task_id -> share of the episodes that were solved


def held_out_key(settings: Settings, task_ids: Sequence[str]) -> str:
    """Hash all that an outcome on held-out tasks depends on besides the model, to 16 hexadecimal digits.

    Of the `settings` seed, the blocks policy, language_model, sandbox and evaluation, and the scorers with their
    versions and threshold count. task_ids: of the held-out tasks. Raises BadInput as `ScorerSet`.
    """
    blocks = (settings.policy, settings.language_model, settings.sandbox, settings.evaluation)
    judged = [ScorerSet(settings).versions, settings.routing.threshold]
    content = [settings.seed, [block.model_dump(mode="json") for block in blocks], judged, sorted(task_ids)]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def read_comparable_outcomes(ws: Workspace, iteration: int, about: str) -> dict[str, SolvedShares]:
    """Read an iteration's outcomes as `read_held_out_outcomes` does; {} where they were measured under other settings.

    about: key of the settings now (`held_out_key`). Raises DataError as `read_held_out_outcomes`.
    """
    return read_held_out_outcomes(ws, iteration) if _load_outcomes(ws, ws.held_out(iteration))["about"] == about else {}


def read_held_out_outcomes(ws: Workspace, iteration: int) -> dict[str, SolvedShares]:
    """Read the held-out outcomes that an iteration recorded: digest of a model -> share of solved episodes by task.

    Raises DataError for a file that is missing or cannot be read.
    """
    return _load_outcomes(ws, ws.held_out(iteration))["models"]


def _load_outcomes(ws: Workspace, path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        models = {name: {task: float(share) for task, share in found.items()} for name, found in raw["models"].items()}
        return {"about": str(raw["about"]), "models": models}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(
            f"not the outcomes of an evaluation: {error!r}", where=ws.relative(path), fix="restore it from git"
        ) from error


def write_outcomes(ws: Workspace, iteration: int, about: str, models: Mapping[str, SolvedShares]) -> None:
    """Write what models did on an iteration's held-out tasks to its `held_out.json`, which is replaced.

    about: key of the settings that they were measured under (`held_out_key`). models: outcomes by the model's digest,
    as `read_held_out_outcomes` returns them. Raises DiskFull.
    """
    write_json(ws.held_out(iteration), {"about": about, "models": dict(models)})


def mean_success(outcome: SolvedShares) -> float:
    """Compute the mean success over the tasks of `outcome`, in [0, 1], each of the same weight; 0 where it has none."""
    return math.fsum(outcome.values()) / len(outcome) if outcome else 0.0


def get_best_model(promotion: Mapping[str, Any]) -> dict[str, Any]:
    """Return the best model so far as {"model", "digest"}: the `best` of a promotion, else the promoted model.

    promotion: an iteration's, of `read_promotion`. Raises KeyError where it has neither.
    """
    return dict(promotion.get("best") or {name: promotion[name] for name in ("model", "digest")})


def choose_best_model(
    before: Mapping[str, Any], newest: Mapping[str, Any], promoted: bool, outcomes: Mapping[str, SolvedShares]
) -> dict[str, Any]:
    """Choose the best model after a promotion was decided, as {"model", "digest"}.

    before: what the iteration before recorded of its promotion. newest: the model that this iteration made, with
    `model` and `digest`. promoted: whether it was. outcomes: by digest, the share of solved episodes by task. A
    promoted model is the best where its mean success is not below that of the best before, or one of the two is not in
    `outcomes`; else the best before stays. Raises KeyError where a model lacks `model` or `digest`.
    """
    old = get_best_model(before)
    mine, theirs = outcomes.get(newest["digest"]), outcomes.get(old["digest"])
    if promoted and (theirs is None or mine is None or round(mean_success(mine) - mean_success(theirs), 12) >= 0):
        return {name: newest[name] for name in ("model", "digest")}
    return old
