"""Which task comes next: exact chances, levels that rise, a floor for every task, and the same draws from one state."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lamp_env import task as lamp

from flywheel.config import RlSettings
from flywheel.training.rl.curriculum import Curriculum, PastOutcomes, mixed_group_probability
from flywheel.utils.errors import TrainingError

RL = RlSettings(
    group_size=4, curriculum_uniform_fraction=0.2, curriculum_ema_decay=0.7, curriculum_level_up_success=0.6
)
ALWAYS, NEVER, HALF = [True] * 4, [False] * 4, [True, False, True, False]


def make(number: int, world: str = "tiles", level: int = 1):
    return replace(lamp(number), task_id=f"k{number:03d}", world=world, level=level)


def record(curriculum: Curriculum, task_id: str, successes) -> None:
    curriculum.record(task_id, [float(v) for v in successes], successes)


def draws(curriculum: Curriculum, count: int) -> list[str]:
    return [curriculum.next().task_id for _ in range(count)]


def test_the_chance_that_a_group_is_mixed_is_exact():
    """E[p^2] of Beta(1, 1) is 1/3, so two episodes differ with 1/3; of Beta(2, 3), E[p^3] = 4/35, E[q^3] = 2/7."""
    assert mixed_group_probability(1, 1, 2) == pytest.approx(1 / 3, abs=1e-12)
    assert mixed_group_probability(2, 3, 3) == pytest.approx(float(1 - Fraction(4, 35) - Fraction(2, 7)), abs=1e-12)


@pytest.mark.parametrize("p", [0.05, 0.3, 0.5, 0.9])
def test_with_a_known_rate_the_weight_of_a_group_of_two_is_the_frontier_weight(p):
    """Half of 4p(1 - p); of larger groups it is larger, with its top at the same place."""
    sure = 1e9
    assert mixed_group_probability(p * sure, (1 - p) * sure, 2) == pytest.approx(2 * p * (1 - p), rel=1e-6)
    assert mixed_group_probability(p * sure, (1 - p) * sure, 4) == pytest.approx(1 - p**4 - (1 - p) ** 4, rel=1e-6)


@given(a=st.floats(0.01, 50), b=st.floats(0.01, 50), n=st.integers(2, 16))
def test_it_is_a_chance_and_the_same_for_success_and_failure(a, b, n):
    assert 0 <= mixed_group_probability(a, b, n) <= 1
    assert mixed_group_probability(a, b, n) == pytest.approx(mixed_group_probability(b, a, n), abs=1e-9)


def test_without_outcomes_draws_are_rounds_in_an_order_of_the_seed():
    tasks = [make(n) for n in range(7)]
    drawn = draws(Curriculum(tasks, RL, seed=1), 21)
    assert [sorted(drawn[start : start + 7]) for start in (0, 7, 14)] == [sorted(t.task_id for t in tasks)] * 3
    assert drawn == draws(Curriculum(tasks[::-1], RL, seed=1), 21)
    assert drawn != draws(Curriculum(tasks, RL, seed=2), 21)


def test_every_batch_holds_each_kind_by_its_share():
    """Tasks of a kind have like chances, and must not come all together; whatever is learnt of the kinds meanwhile."""
    worlds = ("tiles", "merge", "shapes", "shop", "settings")
    tasks = [make(n, worlds[n % 5]) for n in range(200)]
    curriculum = Curriculum(tasks, RL, seed=1)
    for _ in range(40):
        shares = Counter()
        for name, chance in curriculum.chances().items():
            shares[curriculum._tasks[name].world] += chance
        batch = [curriculum.next() for _ in range(10)]
        counted = Counter(task.world for task in batch)
        assert all(abs(counted[world] - 10 * share) < 2 for world, share in shares.items()), (counted, shares)
        for task in batch:
            record(curriculum, task.task_id, {"merge": NEVER, "shop": ALWAYS}.get(task.world, HALF))
    assert shares["merge"] < 0.1 < 0.2 < shares["tiles"]


def test_tasks_always_or_never_solved_come_less_and_say_so():
    curriculum = Curriculum([make(n) for n in range(6)], RL, seed=0)
    for _ in range(3):
        record(curriculum, "k000", ALWAYS)
        record(curriculum, "k001", NEVER)
        for other in ("k002", "k003", "k004"):
            record(curriculum, other, HALF)
    chance = curriculum.chances()
    assert chance["k000"] < chance["k002"] / 2
    assert chance["k001"] < chance["k002"] / 2
    reasons = {row["task_id"]: row["reason"] for row in curriculum.table()}
    assert reasons == {
        "k000": "always solved",
        "k001": "never solved",
        **dict.fromkeys(("k002", "k003", "k004"), ""),
        "k005": "",
    }
    counted = Counter(draws(curriculum, 600))
    assert all(abs(counted[name] - 600 * share) <= 2 for name, share in chance.items())
    found = curriculum.metrics()
    assert (found["curriculum_always"], found["curriculum_never"]) == (pytest.approx(1 / 6), pytest.approx(1 / 6))
    assert found["curriculum_untried"] == pytest.approx(1 / 6)


def test_a_task_that_is_solved_again_comes_back():
    curriculum = Curriculum([make(n) for n in range(4)], RL, seed=0)
    for _ in range(4):
        record(curriculum, "k000", NEVER)
    low = curriculum.chances()["k000"]
    for _ in range(2):
        record(curriculum, "k000", HALF)
    assert curriculum.chances()["k000"] > 2 * low


def test_levels_open_with_success_and_never_close():
    tasks = [*(make(n) for n in range(3)), *(make(n, level=2) for n in range(3, 6)), make(6, world="merge")]
    curriculum = Curriculum(tasks, RL, seed=0)
    floor = RL.curriculum_uniform_fraction / 7
    assert all(curriculum.chances()[f"k{n:03d}"] == pytest.approx(floor) for n in (3, 4, 5))
    assert {row["reason"] for row in curriculum.table() if row["level"] == 2} == {"level not reached"}
    record(curriculum, "k000", ALWAYS)
    assert curriculum.metrics()["curriculum_level_tiles"] == 1  # one group is too few
    record(curriculum, "k001", ALWAYS)
    found = curriculum.metrics()
    assert (found["curriculum_level_tiles"], found["curriculum_level_merge"]) == (2, 1)
    assert found["curriculum_level"] == 1.5
    assert curriculum.chances()["k003"] > curriculum.chances()["k000"]
    for _ in range(5):
        for name in ("k000", "k001", "k002"):
            record(curriculum, name, NEVER)
    assert curriculum.metrics()["curriculum_level_tiles"] == 2


def test_outcomes_of_earlier_iterations_are_the_prior():
    tasks = [*(make(n) for n in range(3)), *(make(n, level=2) for n in range(3, 5))]
    kind = ("tiles", "lamp", 1)
    outcomes = [("k000", kind, False)] * 40 + [("older", kind, True)] * 90 + [("k001", kind, True)] * 2
    tally = PastOutcomes.of(outcomes)
    assert tally.tasks["k001"] == (2, 2)
    assert tally.kinds[kind] == (92, 132)
    curriculum = Curriculum(tasks, RL, seed=0, prior=tally)
    assert curriculum.metrics()["curriculum_level"] == 2  # 0.70 of level 1's episodes were verified
    row = next(row for row in curriculum.table() if row["task_id"] == "k000")
    assert (row["successes"], row["episodes"], row["reason"]) == (0, 8, "never solved")  # an older policy's: two groups


def test_a_group_of_which_every_environment_crashed_teaches_nothing():
    curriculum = Curriculum([make(n) for n in range(3)], RL, seed=0)
    before = copy.deepcopy(vars(curriculum))
    curriculum.record("k001", [], [])
    assert vars(curriculum) == before


@pytest.mark.parametrize(
    ("task_id", "scores", "successes"),
    [("k009", [1.0], [True]), ("k000", [float("nan")], [False]), ("k000", [1.0, 0.0], [True])],
)
def test_outcomes_that_cannot_be(task_id, scores, successes):
    curriculum = Curriculum([make(0)], RL, seed=0)
    with pytest.raises(TrainingError, match=f"curriculum, task {task_id}"):
        curriculum.record(task_id, scores, successes)


def test_no_tasks_and_the_same_task_twice_are_refused():
    with pytest.raises(TrainingError, match="there are no tasks"):
        Curriculum([], RL, seed=0)
    with pytest.raises(TrainingError, match="two tasks have the same id"):
        Curriculum([make(0), make(0)], RL, seed=0)


OUTCOMES = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 4)), max_size=60)


@given(outcomes=OUTCOMES, floor=st.floats(0.05, 1.0), seed=st.integers(0, 99))
def test_chances_sum_to_one_and_keep_the_floor_and_no_task_is_forgotten(outcomes, floor, seed):
    """The longest wait is that of the floor's share, times what greedy spreading costs: under 1 + ln(tasks)."""
    tasks = [make(n, "tiles" if n % 2 else "merge", 1 + n % 3) for n in range(9)]
    curriculum = Curriculum(tasks, RL.model_copy(update={"curriculum_uniform_fraction": floor}), seed)
    waited = dict.fromkeys((t.task_id for t in tasks), 0)
    pending = list(outcomes)
    for _ in range(int(4 * 9 / floor)):
        chances = curriculum.chances()
        assert sum(chances.values()) == pytest.approx(1)
        assert min(chances.values()) >= floor / 9 - 1e-12
        name = curriculum.next().task_id
        waited = {other: 0 if other == name else wait + 1 for other, wait in waited.items()}
        assert max(waited.values()) <= 3.2 * 9 / floor
        if pending:
            number, won = pending.pop()
            record(curriculum, f"k{number:03d}", [i < won for i in range(4)])


@given(outcomes=OUTCOMES, seed=st.integers(0, 99))
def test_a_run_that_is_made_again_goes_on_with_the_same_draws(outcomes, seed):
    tasks = [make(n, "tiles" if n % 2 else "merge", 1 + n % 3) for n in range(9)]
    whole, resumed = Curriculum(tasks, RL, seed), Curriculum(tasks, RL, seed)
    for one in (whole, resumed):
        for name, won in outcomes:
            one.next()
            record(one, f"k{name:03d}", [i < won for i in range(4)])
    assert draws(whole, 30) == draws(resumed, 30)
    assert whole.table() == resumed.table()
    assert whole.metrics() == resumed.metrics()
