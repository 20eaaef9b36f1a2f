"""Shares of domains and worlds, and tasks that come back by signals: what is drawn, how much, and what is refused."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from night import examples

from flywheel.config import Settings, parse_settings
from flywheel.envs.tasks import drawing, open_levels
from flywheel.envs.tasks.drawing import check_task_settings, draw_training_tasks, make_tasks, task_content
from flywheel.envs.tasks.held_out import is_held_out
from flywheel.training.refresh import find_wanted
from flywheel.utils.errors import BadInput

# Without games, whose levels take a while to find.
DOMAINS = {"sites": ["shop", "settings"], "control": ["control"]}


def chosen(**synthesis) -> Settings:
    raw = {"domains": DOMAINS, "train_tasks": 40, **synthesis}
    weights = {domain: 1 / len(raw["domains"]) for domain in raw["domains"]}
    return parse_settings({"synthesis": raw, "merge": {"weights": weights}}, where="test")


def counted(tasks, *names) -> dict:
    return dict(Counter("/".join(getattr(task, name) for name in names) for task in tasks))


def test_without_shares_the_draw_is_the_one_of_before():
    """The digests are of the draw before there were shares."""
    told = []
    for seed, iteration in ((0, 1), (7, 4)):
        tasks = make_tasks(Settings(seed=seed), iteration, "train")
        told += [[task.domain, task.world, task.template, task.level, task.seed] for task in tasks]
    assert hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16] == "7340acbf2c1f8c97"


@hypothesis_settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=6).filter(any), st.integers(1, 200))
def test_any_prefix_has_the_shares(weights, count):
    dealt = drawing._deal(weights)
    seen = Counter()
    for number in range(1, count + 1):
        seen[next(dealt)] += 1
        for index, weight in enumerate(weights):
            assert abs(seen[index] - number * weight / sum(weights)) < len(weights)
    assert not [index for index, weight in enumerate(weights) if not weight and seen[index]]


def test_domains_and_worlds_have_their_shares_and_the_others_divide_the_rest():
    tasks = make_tasks(chosen(shares={"sites": 0.75, "sites/shop": 0.9}), 1, "train")
    assert counted(tasks, "domain") == {"sites": 30, "control": 10}
    assert counted(tasks, "world") == {"shop": 27, "settings": 3, "control": 10}
    tasks = make_tasks(chosen(shares={"sites/shop": 0.0}), 1, "train")
    assert counted(tasks, "world") == {"settings": 20, "control": 20}


def test_with_shares_the_rules_of_drawing_hold():
    settings = chosen(shares={"control": 0.7}, train_tasks=60)
    drawn = [make_tasks(settings, iteration, "train") for iteration in (1, 2, 3)]
    assert drawn[0] == make_tasks(settings, 1, "train")
    held = make_tasks(settings, 1, "eval")
    assert held == make_tasks(chosen(), 1, "eval")
    contents = [task_content(task) for tasks in (*drawn, held) for task in tasks]
    assert len(set(contents)) == len(contents)
    assert not [task for tasks in drawn for task in tasks if is_held_out(settings, task)]
    same = round(settings.synthesis.fixed_template_fraction * 42)
    slots = [[(task.template, task.level) for task in tasks if task.domain == "control"] for tasks in drawn]
    assert slots[0][:same] == slots[1][:same] == slots[2][:same]
    assert slots[0][same:] != slots[1][same:]


@pytest.mark.parametrize(
    ("shares", "told"),
    [
        ({"site": 0.5}, "site is no domain.*did you mean sites"),
        ({"shop": 0.5}, "shop is no domain.*known are sites, control, sites/shop"),
        ({"sites": 0.5, "control": 0.6}, r"the shares of sites 0.5, control 0.6 sum to 1\.1 .*make it 1 or less"),
        ({"sites": 0.0, "control": 0.0}, r"the shares of sites 0, control 0 sum to 0 .*make it 1"),
        ({"sites/shop": 0.5, "sites/settings": 0.2}, r"sum to 0\.7 .*make it 1"),
        ({"sites": 1.0}, "no task of the domain control would be drawn"),
        ({"sites/shop": 0.001}, "no task of sites/shop would be drawn"),
    ],
)
def test_impossible_shares_are_refused_by_name_before_anything_begins(shares, told):
    with pytest.raises(BadInput, match=told) as refused:
        check_task_settings(chosen(shares=shares), 1, Path())
    assert "synthesis.shares" in str(refused.value)


def test_a_page_that_is_evaluated_alone_has_no_share(tmp_path):
    (tmp_path / "index.html").write_text("<p>page</p>")
    (tmp_path / "lamp.yaml").write_text(
        "name: lamp\ntitle: A lamp\nfolder: .\ninstruction: Look.\nreward: '1'\nsuccess: 1\nmax_steps: 3\n"
        "splits: [eval]\nseeded: false\n"
    )
    settings = chosen(manifests=["lamp.yaml"], shares={"sites/lamp": 0.2})
    with pytest.raises(BadInput, match=r"sites/lamp is no domain.*synthesis\.shares"):
        check_task_settings(settings, 1, tmp_path)


def test_a_source_with_fewer_tasks_than_its_share_asks_for_is_refused(tmp_path):
    (tmp_path / "html").mkdir()
    (tmp_path / "html/index.html").write_text("<p>page</p>")
    (tmp_path / "asked.yaml").write_text(
        "name: asked\ntitle: Questions\nfolder: html\nmax_steps: 3\nseeded: false\nsplits: [train]\n"
        "tasks: {q1: {instruction: 'Which city?', answer: Oslo}, q2: {instruction: 'Which sea?', answer: Kattegat}}\n"
    )
    settings = chosen(manifests=["asked.yaml"], shares={"sites/asked": 0.5})
    with pytest.raises(BadInput, match=r"sites/asked has 2 tasks, and its share asks for 10 .*synthesis\.shares"):
        check_task_settings(settings, 1, tmp_path)
    settings = chosen(manifests=["asked.yaml"], shares={"sites/asked": 0.1})
    check_task_settings(settings, 1, tmp_path)
    tasks = make_tasks(settings, 1, "train", tmp_path)
    assert counted(tasks, "world") == {"shop": 9, "settings": 9, "asked": 2, "control": 20}


# -- tasks that come back --------------------------------------------------------------------------------------------
KIND = ("shop", "buy", 1)


@pytest.mark.parametrize(
    ("outcomes", "reason"),
    [
        ({3: (0, 8)}, "weak"),
        ({3: (1, 8)}, "weak"),
        ({3: (2, 8)}, "mixed"),
        ({3: (7, 8)}, "mixed"),
        ({3: (8, 8)}, None),
        ({1: (6, 8), 2: (0, 8)}, "forgotten"),
        ({1: (4, 8), 3: (2, 8)}, "forgotten"),
        ({1: (4, 8), 2: (0, 8), 3: (3, 8)}, "mixed"),  # it came back
        ({1: (3, 8), 3: (0, 8)}, "weak"),  # it was never solved
        ({1: (0, 8), 3: (8, 8)}, None),
    ],
)
def test_why_a_kind_is_wanted(outcomes, reason):
    found = find_wanted({k: {KIND: counts} for k, counts in outcomes.items()})
    assert found.get(KIND, (None,))[0] == reason


def test_weights_are_known():
    found = find_wanted(
        {
            1: {("w", "fell", 1): (8, 8)},
            2: {("w", "fell", 1): (2, 8), ("w", "never", 1): (0, 8), ("w", "half", 1): (4, 8), ("w", "few", 1): (1, 2)},
        }
    )
    assert found["w", "fell", 1] == ("forgotten", 0.75)
    assert found["w", "never", 1] == ("weak", pytest.approx(9 / 10))
    # 4 E[p (1 - p)] of Beta(a, b) is 4 a b / ((a + b) (a + b + 1)).
    assert found["w", "half", 1] == ("mixed", pytest.approx(4 * 5 * 5 / (10 * 11)))
    assert found["w", "few", 1] == ("mixed", pytest.approx(4 * 2 * 2 / (4 * 5)))


WANTED = {
    ("shop", "add_two", 2): ("weak", 0.9),
    ("shop", "open", 1): ("mixed", 0.9),
    ("settings", "two", 2): ("mixed", 0.3),
    ("shop", "search", 1): ("weak", 1.0),  # held out
    ("control", "nothing", 9): ("weak", 1.0),  # there is no such template any more
}


def test_a_share_of_the_tasks_comes_back_by_its_reasons():
    settings = chosen(refresh=0.4)
    drawn = draw_training_tasks(settings, 3, wanted=WANTED)
    reasons = Counter(reason for _, reason in drawn)
    # 16 of 40 are to come back; half of these are of the domain control, where nothing is wanted.
    assert reasons == {"even": 32, "weak": 4, "mixed": 4}
    assert {task.template for task, reason in drawn if reason == "weak"} == {"add_two"}
    assert counted([task for task, reason in drawn if reason == "mixed"], "template") == {"open": 3, "two": 1}
    assert drawn == draw_training_tasks(settings, 3, wanted=WANTED)
    assert counted([task for task, _ in drawn], "domain") == {"sites": 20, "control": 20}
    tasks = [task for task, _ in drawn]
    contents = {task_content(task) for task in [*tasks, *make_tasks(settings, 3, "eval")]}
    assert len(contents) == len(tasks) + settings.synthesis.eval_tasks
    assert not [task for task in tasks if is_held_out(settings, task)]


def test_the_even_part_is_the_same_whatever_is_wanted():
    settings = chosen(refresh=0.4)
    alone, wanted = (draw_training_tasks(settings, 3, wanted=each) for each in ({}, WANTED))
    assert alone[:24] == wanted[:24]
    assert {reason for _, reason in alone} == {"even"}


def test_levels_that_are_not_open_do_not_come_back():
    settings = chosen(refresh=1.0, level_unlock_success=0.5)
    drawn = draw_training_tasks(settings, 3, opened={}, wanted=WANTED)
    assert {task.level for task, _ in drawn} == {1}
    assert {task.template for task, reason in drawn if reason != "even"} == {"open"}


def test_outcomes_are_kept_of_three_iterations(tmp_path):
    from flywheel.config.workspace import Workspace

    ws = Workspace(tmp_path)
    outcomes = {k: {("w", "a/b", k): (k, 8), KIND: (0, 1_234_567)} for k in range(1, 6)}
    open_levels.write_open_levels(ws, 5, {"shop": 2}, outcomes)
    assert open_levels.read_outcomes(ws, 5) == {k: outcomes[k] for k in (3, 4, 5)}
    assert open_levels.read_open_levels(ws, 5) == {"shop": 2}
    open_levels.write_open_levels(ws, 6, {"shop": 2})
    assert open_levels.read_outcomes(ws, 6) == {}
