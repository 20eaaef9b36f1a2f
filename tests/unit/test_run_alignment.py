"""Runs of one task, aligned by the states that they came to."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.ui.explorer.run_alignment import align_runs
from flywheel.ui.explorer.runs import lay_side_by_side

RUNS = st.lists(st.lists(st.integers(0, 6), max_size=14), max_size=8)


def rows_of(runs) -> list[list[int]]:
    """The level of each state of each run."""
    found = align_runs(runs)
    levels = [[-1] * len(run) for run in runs]
    for state in found.states:
        for run, step in state.places.items():
            levels[run][step] = state.level
    return levels


@given(RUNS)
def test_each_state_of_each_run_is_there_once_and_the_order_is_kept(runs):
    found = align_runs(runs)
    places = [(run, step) for state in found.states for run, step in state.places.items()]
    assert sorted(places) == [(number, step) for number, run in enumerate(runs) for step in range(len(run))]
    for state in found.states:
        assert len({runs[run][step] for run, step in state.places.items()}) == 1, "joined states are equal"
    for levels in rows_of(runs):
        assert all(one < next for one, next in itertools.pairwise(levels))
    assert found.levels == 1 + max((state.level for state in found.states), default=-1)
    assert sorted(found.order) == list(range(len(runs)))


@given(RUNS)
def test_a_common_beginning_is_there_once(runs):
    found = align_runs(runs)
    at = {(run, step): number for number, state in enumerate(found.states) for run, step in state.places.items()}
    for one, other in itertools.combinations(range(len(runs)), 2):
        alike = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(runs[one], runs[other], strict=False))
        for step, _ in enumerate(alike):
            assert at[one, step] == at[other, step]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.integers(1, 6))
def test_equal_runs_are_one_column_of_states(run, times):
    found = align_runs([run] * times)
    assert [state.level for state in found.states] == list(range(len(run)))
    assert all(len(state.places) == times for state in found.states)


@given(
    st.lists(st.integers(0, 50), max_size=6),
    st.lists(st.integers(100, 150), max_size=6),
    st.lists(st.integers(200, 250), min_size=1, max_size=6),
    st.lists(st.integers(300, 350), min_size=1, max_size=6, unique=True),
)
def test_runs_that_part_meet_again_where_their_states_are_equal_again(begin, one, other, end):
    levels = rows_of([[*begin, *one, *end], [*begin, *other, *end]])
    assert levels[0][: len(begin)] == levels[1][: len(begin)] == list(range(len(begin)))
    assert levels[0][-len(end) :] == levels[1][-len(end) :], "they meet at the same rows, whatever lay between"
    assert levels[0][-1] == len(begin) + max(len(one), len(other)) + len(end) - 1


@settings(max_examples=40)
@given(RUNS, st.randoms(use_true_random=False))
def test_runs_with_a_common_beginning_stand_beside_one_another(runs, random):
    runs = [[*run, ("end", number)] for number, run in enumerate(runs)]
    random.shuffle(runs)
    order = align_runs(runs).order
    for depth in range(1, 5):
        seen, last = set(), None
        for run in order:
            begin = tuple(runs[run][:depth])
            assert begin == last or begin not in seen
            seen.add(begin)
            last = begin


def test_waiting_in_one_place_for_longer_is_told_from_being_elsewhere():
    assert rows_of(["abbc", "abbbbc"]) == [[0, 1, 2, 5], [0, 1, 2, 3, 4, 5]]


def test_two_ways_round_share_what_they_can_in_one_order():
    levels = rows_of(["axyb", "ayxb"])
    assert levels[0][0] == levels[1][0] == 0
    assert levels[0][-1] == levels[1][-1] == 4
    assert len({*levels[0][1:3]} & {*levels[1][1:3]}) == 1, "x before y and y before x: one of them is shared"


def test_the_cost_grows_with_the_steps_and_not_with_their_square(monkeypatch):
    """Counted, not timed: what is compared while rows are chosen."""
    from flywheel.ui.explorer import run_alignment

    def count(steps: int) -> int:
        found, choose = 0, run_alignment._choose_joins

        def counted(candidates):
            nonlocal found
            found += sum(1 + len(places) for places in candidates)
            return choose(candidates)

        with monkeypatch.context() as patched:
            patched.setattr(run_alignment, "_choose_joins", counted)
            align_runs([[f"{n % 3 and run}{n}" for n in range(steps)] for run in range(16)])
        return found

    assert count(800) <= 2.1 * count(400)


def run(name: str, **more) -> dict:
    row = {"trajectory_id": name, "iteration": 1, "parent_id": None, "start_step": None, "image_sha256": None}
    return {**row, "final_state": None, "success": None, **more}


def steps(name: str, screens: str, **more) -> list[dict]:
    names = "thought action action_type parse_error x y x2 y2 reward logprob text url weight_version"
    row = dict.fromkeys(names.split()) | {"trajectory_id": name, "author": "model"}
    return [{**row, "step": n, "image_sha256": screen.strip() or None, **more} for n, screen in enumerate(screens)]


def test_forks_meetings_and_ends_are_told():
    rows = [run("one", image_sha256="z", success=True), run("two", image_sha256="z"), run("three", image_sha256="q")]
    seen = {"one": "abc", "two": "abdc", "three": "a"}
    found = lay_side_by_side(rows, {name: steps(name, screens) for name, screens in seen.items()})
    assert [row["trajectory_id"] for row in found["runs"]] == ["one", "two", "three"]
    told = {tuple(map(tuple, state["places"])): state for state in found["states"]}
    fork, meeting, end = told[(0, 1), (1, 1)], told[(0, 2), (1, 3)], told[(0, 3), (1, 4)]
    assert (fork["ways_in"], fork["ways_out"]) == (1, 2)
    assert (meeting["ways_in"], meeting["ways_out"], meeting["level"]) == (2, 1, 3)
    assert (end["ways_in"], end["ways_out"], end["screen"]) == (1, 1, "z")
    assert told[(0, 0), (1, 0), (2, 0)]["ways_out"] == 2


@pytest.mark.parametrize("lost", ["parent", "child"])
def test_a_branch_shares_its_parents_steps_also_where_screens_were_pruned(lost):
    rows = [run("parent"), run("child", parent_id="parent", start_step=2)]
    screens = {"parent": "abc", "child": "abx"} | {lost: "  c" if lost == "parent" else "  x"}
    found = lay_side_by_side(rows, {name: steps(name, text) for name, text in screens.items()})
    shared = [state for state in found["states"] if len(state["places"]) == 2]
    assert [state["level"] for state in shared] == [0, 1]
    assert found["runs"][1]["parent"] == 0


def test_states_without_a_screen_are_compared_by_what_there_was_to_read_and_then_by_address():
    rows = [run("one", final_state="f"), run("two", final_state="f")]
    read = {name: steps(name, "  ", text="terminal") for name in ("one", "two")}
    assert [len(state["places"]) for state in lay_side_by_side(rows, read)["states"]] == [2, 2, 2]
    bare = {name: steps(name, " ") for name in ("one", "two")}
    assert sorted(len(state["places"]) for state in lay_side_by_side(rows, bare)["states"]) == [1, 1, 2]
    site = {name: steps(name, " ", url=f"shop/{name}") for name in ("one", "two")}
    assert sorted(len(state["places"]) for state in lay_side_by_side(rows, site)["states"]) == [1, 1, 2]
