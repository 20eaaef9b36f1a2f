"""Intervals against published values, and the promotion rules."""

from __future__ import annotations

import pytest
from bench_case import student_mean_interval
from hypothesis import given, settings
from hypothesis import strategies as st
from night import examples

from flywheel.config import PromotionSettings
from flywheel.evaluation.gate import (
    EvalResult,
    build_gate_metrics,
    compare_models,
    count_fewest_tasks,
    estimate_error_rates,
    explain_disagreement,
    explain_gate_metrics,
    explain_judgement,
    gate_bounds,
    judge_differences,
    pair_differences,
    parse_gate_metrics,
    simulate_gate,
)
from flywheel.utils.confidence_intervals import (
    bootstrap_mean_interval,
    format_difference,
    newcombe_paired_interval,
    wilson_interval,
)
from flywheel.utils.errors import DataError


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    # Newcombe 1998 (Statistics in Medicine 17:857), table I, method 3.
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson(successes, n, low, high):
    assert wilson_interval(successes, n) == pytest.approx((low, high), abs=5e-5)


def test_the_interval_over_three_runs_is_students():
    """Mean 0.2, deviation 0.1: 4.303 x 0.1 / sqrt(3) to each side."""
    assert student_mean_interval([0.1, 0.2, 0.3]) == (
        pytest.approx(0.2 - 0.24843, abs=1e-5),
        pytest.approx(0.44843, abs=1e-5),
    )
    assert student_mean_interval([0.1]) == (float("-inf"), float("inf"))


@pytest.mark.parametrize(
    ("cells", "low", "high"),
    # Newcombe 1998 (Statistics in Medicine 17:2635), table II, method 10: e, f, g, h of the published cases.
    [((36, 12, 2, 0), 0.0569, 0.3404), ((0, 0, 0, 0), -1.0, 1.0)],
)
def test_newcombe_paired(cells, low, high):
    assert newcombe_paired_interval(*cells) == pytest.approx((low, high), abs=5e-4)


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), min_size=4, max_size=4).filter(any))
def test_newcombe_holds_its_difference_and_mirrors(cells):
    both, gained, lost, neither = cells
    low, high = newcombe_paired_interval(both, gained, lost, neither)
    assert -1 <= low <= (gained - lost) / sum(cells) <= high <= 1
    assert newcombe_paired_interval(both, lost, gained, neither) == pytest.approx((-high, -low))


def test_newcombe_keeps_a_width_where_nothing_differs():
    low, high = newcombe_paired_interval(3, 0, 0, 2)
    assert low < -0.1
    assert high > 0.1


def test_bootstrap_is_seeded_and_close_to_the_normal_interval():
    values = [float(i % 4) for i in range(400)]  # mean 1.5, deviation 1.118: half width 0.1096
    low, high = bootstrap_mean_interval(values, seed=1)
    assert (low, high) == pytest.approx((1.3904, 1.6096), abs=0.01)
    assert bootstrap_mean_interval(values, seed=1) == (low, high)
    assert bootstrap_mean_interval(values, seed=2) != (low, high)
    assert bootstrap_mean_interval([0.5] * 9, seed=1) == (0.5, 0.5)


def results(*outcomes: int) -> list[EvalResult]:
    return [EvalResult(f"k{i}", "games", float(v), bool(v)) for i, v in enumerate(outcomes)]


OLD = results(*[1] * 10 + [0] * 30)
FAR_BETTER = results(*[1] * 30 + [0] * 10)
WORSE = results(*[0] * 40)


@pytest.mark.parametrize(
    ("new", "rule", "verdict"),
    [
        (FAR_BETTER, {"rule": "superiority"}, "pass"),
        (FAR_BETTER, {}, "pass"),
        (OLD, {}, "undecided"),  # alike on 40 tasks: 51 would be needed
        (OLD, {"margin": 0.15}, "pass"),
        (OLD, {"rule": "superiority"}, "fail"),  # not better by the margin
        (WORSE, {}, "fail"),
        (WORSE, {"rule": "superiority"}, "fail"),
        (WORSE, {"rule": "review"}, "fail"),
    ],
)
def test_rules(new, rule, verdict):
    judged = judge_differences(pair_differences(OLD, new), PromotionSettings(**rule))
    assert judged.verdict == verdict
    assert judged.low <= judged.difference <= judged.high
    told = explain_judgement(judged, PromotionSettings(**rule), "the old one")
    assert format_difference(judged.difference, judged.low, judged.high) in told


def test_a_difference_has_as_many_digits_in_words_as_in_tables():
    """As the explorer's pages show it: -0.075 is a little nearer to -0.07."""
    assert format_difference(-0.075, -0.136, 0.1) == "-0.07 [-0.14, +0.10]"
    assert format_difference(0.25) == "+0.25"


@pytest.mark.parametrize(
    ("margin", "rule"),
    [(0.05, "non_inferiority"), (0.1, "non_inferiority"), (0.3, "non_inferiority"), (0.1, "superiority")],
)
def test_the_fewest_tasks_that_can_promote(margin, rule):
    least = count_fewest_tasks(one := PromotionSettings(rule=rule, margin=margin))
    outcome = 1.0 if rule == "superiority" else 0.0
    assert judge_differences([outcome] * least, one).verdict == "pass"
    assert judge_differences([outcome] * (least - 1), one).verdict == "undecided"


@settings(deadline=None, max_examples=examples(30))
@given(st.lists(st.sampled_from([0, 1 / 3, 2 / 3, 1]), min_size=1, max_size=40), st.randoms())
def test_rounding_decides_nothing(shares, random):
    """Three episodes a task: thirds that add up to the same in another order are the same difference, namely 0."""
    old = [EvalResult(f"k{i}", "g", 0.0, j < round(3 * s)) for i, s in enumerate(shares) for j in range(3)]
    new = [EvalResult(f"k{i}", "g", 0.0, j >= 3 - round(3 * s)) for i, s in enumerate(shares) for j in range(3)]
    random.shuffle(new)
    assert pair_differences(old, new) == [0.0] * len(shares)
    assert judge_differences(pair_differences(old, new), PromotionSettings()).difference == 0


@pytest.mark.parametrize("rule", ["non_inferiority", "superiority"])
@pytest.mark.parametrize("discordance", [0.1, 0.3, 0.6])
def test_the_errors_are_as_promised(rule, discordance):
    """However often one looks, and however the models differ (1,000 runs)."""
    promised = PromotionSettings(rule=rule, tasks=300, tasks_per_look=10)
    bad, good = gate_bounds(promised)
    promoted, _ = simulate_gate(promised, bad, discordance, seed=1, runs=1000)
    assert promoted <= promised.type_i_error
    passed, tasks = simulate_gate(promised, good + 0.1, discordance, seed=2, runs=1000)
    assert passed > 0.85
    worse, few = simulate_gate(promised, bad - 0.2, max(discordance, 0.3), seed=3, runs=1000)
    assert worse < 0.005
    assert few < tasks < 250


def test_a_close_case_costs_more_tasks_than_a_clear_one():
    rule = PromotionSettings(tasks=400)
    tasks = [simulate_gate(rule, difference, 0.3, seed=1, runs=500)[1] for difference in (-0.05, 0.0, 0.05, 0.1, 0.2)]
    assert tasks == sorted(tasks, reverse=True)


def test_the_reason_tells_both_error_rates():
    rule = PromotionSettings()
    judged = judge_differences([0.0] * 30 + [1.0] * 8 + [-1.0] * 2, rule)
    rates = estimate_error_rates(rule, 11 / 42)  # one task more of each kind than was seen
    said = explain_judgement(judged, rule, "the model before it")
    assert f"promotes one that is worse by 0.1 in {rates.type_i_error:.1%} of cases" in said
    assert f"keeps an equal one back in {rates.type_ii_error:.1%}" in said
    assert f"of 40 fresh tasks (at most {rule.tasks}) 10 differ, 8 better and 2 worse than the model before it" in said


def test_the_reason_tells_what_was_to_be_shown_and_whether_it_is():
    clear, equal = [1.0] * 30 + [0.0] * 10, [0.0] * 10
    worse = [-1.0] * 30
    for rule, differences, words in (
        ("non_inferiority", clear, "to be shown: not worse by 0.1 or more; that is shown;"),
        ("non_inferiority", equal, "not worse by 0.1 or more; that is neither shown nor refuted;"),
        ("non_inferiority", worse, "not worse by 0.1 or more; that is refuted: it is worse;"),
        ("superiority", clear, "to be shown: better; that is shown;"),
        ("superiority", worse, "better; that is refuted: it is better by less than 0.1;"),
    ):
        chosen = PromotionSettings(rule=rule)
        assert words in explain_judgement(judge_differences(differences, chosen), chosen, "the model before it")


def test_what_is_told_is_what_the_metrics_hold():
    """Also of several episodes a task, where no count follows from the mean; and of iterations without the counts."""
    rule = PromotionSettings()
    judged = judge_differences([0.5, -0.25, 0.0, 1.0], rule)
    rows = [{"domain": "all", **row} for row in build_gate_metrics("before", judged)]
    assert parse_gate_metrics(rows, rule) == {"before": judged}
    assert "of 4 fresh tasks (at most 120) 3 differ, 2 better and 1 worse" in explain_gate_metrics(rows, rule)[0]
    earlier = [row for row in rows if row["name"] not in ("gate_better", "gate_worse")]
    assert (
        "of 4 fresh tasks (at most 120) compared with the model before it: success +0.31 ["
        in (explain_gate_metrics(earlier, rule)[0])
    )


@pytest.mark.parametrize(
    ("held_out", "told"),
    [((0.175, 0.028, 0.31), True), ((-0.01, -0.1, 0.1), False), ((0.0, -0.1, 0.1), False), ((-0.9, -0.95, -0.8), True)],
)
def test_where_held_out_and_fresh_tasks_disagree_the_reason_says_so(held_out, told):
    """One rises and the other falls, or their intervals do not meet."""
    rule = PromotionSettings()
    judged = judge_differences([0.0] * 98 + [1.0] * 10 + [-1.0] * 12, rule)
    rows = [{"domain": "all", **row} for row in build_gate_metrics("before", judged)]
    value, low, high = held_out
    held = {"domain": "all", "name": "success_difference", "value": value, "low": low, "high": high, "n": 40}
    said = explain_disagreement([*rows, held, held | {"domain": "games", "value": 1.0}], rule)
    assert bool(said) == told
    assert not told or said.startswith(f"the 40 held-out tasks say otherwise (success {value:+.2f}")
    assert explain_disagreement(rows, rule) == explain_disagreement([held], rule) == ""


def test_pairs_by_task_whatever_the_order():
    assert compare_models(OLD, FAR_BETTER[::-1]) == compare_models(OLD, FAR_BETTER)
    assert compare_models(OLD, FAR_BETTER).difference == 0.5


def test_several_episodes_a_task_are_one_case():
    """Four episodes a task: the interval rests on tasks, not on episodes."""
    old = [EvalResult(f"k{i}", "games", 0.0, False) for i in range(10) for _ in range(4)]
    new = [EvalResult(f"k{i}", "games", 1.0, j < 2) for i in range(10) for j in range(4)]
    assert compare_models(old, new).n == 10
    assert compare_models(old, new).difference == 0.5


@pytest.mark.parametrize("new", [OLD[:-1], [*OLD, EvalResult("other", "games", 1.0, True)], []])
def test_other_tasks_are_refused(new):
    with pytest.raises(DataError, match="different tasks"):
        compare_models(OLD, new)
