"""Task synthesis: seeded, even, and with nothing shared between training and evaluation."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from night import examples

from flywheel.config import Settings, SynthesisSettings, parse_settings
from flywheel.envs.suites import catalogue
from flywheel.envs.tasks.drawing import (
    ContentDrawer,
    is_reserved,
    make_task,
    make_tasks,
    task_content,
    task_from_row,
    task_to_row,
)
from flywheel.envs.tasks.held_out import held_out_templates, is_held_out
from flywheel.recordings.synthetic import sessions
from flywheel.rewards.scorers import verifier
from flywheel.store.partitions import table_from_rows
from flywheel.utils.errors import BadInput

# Without games, whose levels take a while to find.
QUICK = {"domains": {"sites": ["shop", "settings"], "control": ["control"]}, "train_tasks": 27, "eval_tasks": 40}
FORTY = SynthesisSettings(train_tasks=40, eval_tasks=40, levels=[1, 2])


def quick(**synthesis) -> Settings:
    weights = {"sites": 0.5, "control": 0.5}
    return parse_settings({"synthesis": {**QUICK, **synthesis}, "merge": {"weights": weights}}, where="test")


def test_the_same_settings_give_the_same_tasks():
    assert make_tasks(Settings(), 3, "train") == make_tasks(Settings(), 3, "train")
    assert make_tasks(Settings(), 0, "eval") == make_tasks(Settings(), 9, "eval")


@hypothesis_settings(max_examples=examples(5), deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 50))
def test_no_train_task_is_an_eval_task_and_iterations_differ(seed, iteration):
    settings = Settings(seed=seed, synthesis=FORTY)
    held_out = make_tasks(settings, iteration, "eval")
    train = make_tasks(settings, iteration, "train")
    later = make_tasks(settings, iteration + 1, "train")
    assert not {task_content(task) for task in train} & {task_content(task) for task in held_out}
    assert not {task.seed for task in train} & {task.seed for task in held_out}
    assert not {task.task_id for task in train} & {task.task_id for task in later}
    for tasks in (held_out, train):
        assert len({task.task_id for task in tasks}) == len({task_content(task) for task in tasks}) == len(tasks) == 40


def test_tasks_spread_evenly():
    tasks = make_tasks(Settings(synthesis=FORTY), 0, "train")
    assert Counter(task.domain for task in tasks) == {"games": 14, "sites": 13, "control": 13}
    worlds = Counter(task.world for task in tasks)
    assert sorted(worlds[name] for name in ("shop", "settings")) == [6, 7]
    assert sorted(worlds[name] for name in ("tiles", "shapes", "merge")) == [4, 5, 5]
    for world in worlds:
        levels = Counter(task.level for task in tasks if task.world == world)
        assert abs(levels[1] - levels[2]) <= 1
    assert {task.template for task in tasks if task.world == "shop"} == {"open", "add", "remove", "add_two", "buy"}


def test_the_iterations_go_through_a_worlds_templates():
    settings = quick(fixed_template_fraction=0)
    drawn = [make_tasks(settings, iteration, "train") for iteration in range(1, 9)]
    control = [[(task.template, task.level) for task in tasks if task.domain == "control"] for tasks in drawn]
    first = [slot for slots in control[:7] for slot in slots]
    templates = set(catalogue.get_world("control").templates) - held_out_templates(
        settings, catalogue.get_world("control")
    )
    assert len(set(first)) == len(first)  # none again before all have come
    assert {template for template, _ in control[7] + first} == templates


def test_a_share_of_the_templates_is_the_same_in_each_iteration():
    drawn = [make_tasks(Settings(), iteration, "train") for iteration in range(1, 9)]
    control = [[(task.template, task.level) for task in tasks if task.domain == "control"] for tasks in drawn]
    same, others = [slots[:6] for slots in control], [slot for slots in control for slot in slots[6:]]
    assert all(slots == same[0] for slots in same)
    assert len({*same[0], *others}) == len(same[0]) + len(others)
    contents = [task_content(task) for tasks in drawn for task in tasks]
    assert len(set(contents)) == len(contents)


# -- held-out templates ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("chosen", [0.15, 0.5, ["settings/two", "shop/open", "control/slider", "control/menu"]])
def test_held_out_templates_are_evaluated_and_never_trained_on(chosen):
    settings = quick(held_out=chosen)
    worlds = ("tiles", "settings", "shop", "control")
    apart = {name: held_out_templates(settings, catalogue.get_world(name)) for name in worlds}
    assert not apart.pop("tiles")  # a game has one template, or a few
    assert all(apart.values())
    for iteration in range(1, 3):
        assert not [task for task in make_tasks(settings, iteration, "train") if is_held_out(settings, task)]
    evaluated = make_tasks(settings, 0, "eval")
    for world, templates in apart.items():
        mine = [task for task in evaluated if task.world == world]
        unseen = [task for task in mine if task.template in templates]
        assert len(mine) // 3 <= len(unseen) < len(mine) / 2
        assert all(is_held_out(settings, task) for task in unseen)


@given(st.floats(0, 0.5), st.integers(0, 9))
def test_a_share_of_templates_is_the_same_for_every_seed(share, seed):
    one, other = (parse_settings({"seed": s, "synthesis": {"held_out": share}}, where="test") for s in (seed, seed + 1))
    for name in ("settings", "control"):
        world = catalogue.get_world(name)
        apart = held_out_templates(one, world)
        assert apart == held_out_templates(other, world)
        asked = [spec for spec in world.templates.values() if {1, 2} & spec.max_steps.keys()]
        assert len(apart) == (max(1, round(share * len(asked))) if share else 0)


def test_nothing_held_out_leaves_all_templates_to_training():
    settings = quick(held_out=[], train_tasks=40)
    assert {"size", "search"} <= {task.template for task in make_tasks(settings, 0, "train")}
    assert not any(is_held_out(settings, task) for task in make_tasks(settings, 0, "eval"))


@pytest.mark.parametrize("held", [0.3, ["settings/two", "control/menu"]])
def test_templates_that_are_left_out_are_asked_by_nobody(held):
    out = {"shop": ["open", "buy"], "control": ["slider"], "settings": ["two"]}
    settings = quick(
        held_out=held,
        excluded_templates=[f"{world}/{name}" for world, names in out.items() for name in names],
        train_tasks=80,
    )
    for split in ("train", "eval"):
        drawn = {(task.world, task.template) for task in make_tasks(settings, 0, split)}
        assert {world for world, _ in drawn} >= out.keys()
        assert not [name for world, names in out.items() for name in names if (world, name) in drawn]
    recorded = itertools.islice(sessions.recorded_tasks(settings), 200)
    assert not [task for task in recorded if task.template in out.get(task.world, ())]


def test_no_shipped_recording_is_of_a_held_out_template(project):
    for path in sorted((project / "recordings").glob("*/session.json")):
        assert not is_held_out(Settings(), task_from_row(json.loads(path.read_text(encoding="utf-8"))["task"])), path


def test_a_task_survives_its_row():
    task = make_tasks(Settings(), 0, "train")[1]
    row = table_from_rows("tasks", [task_to_row(task)]).to_pylist()[0]
    assert task_from_row({**row, "iteration": "000"}) == task


def test_every_slot_of_every_world_makes_a_sound_task():
    for name in catalogue.list_worlds():
        world = catalogue.get_world(name)
        for template, spec in world.templates.items():
            for level, budget in spec.max_steps.items():
                task = make_task(world, template, level, 11, "train")
                assert "{" not in task.instruction
                assert callable(verifier.get_verifier(task))
                assert task.max_steps == budget
                assert task.checksum == world.checksum


@pytest.mark.parametrize(
    ("raw", "part"),
    [
        ({"levels": [9]}, "no level of"),
        ({"domains": {"games": ["nowhere"], "sites": ["shop"], "control": ["control"]}}, "'nowhere'"),
        ({"domains": {"games": ["shop"], "sites": ["shop"], "control": ["control"]}}, "shop twice"),
        ({"excluded_templates": ["moon/crater"]}, "'moon/crater'.*synthesis.excluded_templates.*write world/template"),
        (
            {"excluded_templates": [f"settings/{name}" for name in catalogue.get_world("settings").templates]},
            "no template that is asked",
        ),
        ({"held_out": ["moon/crater"]}, "'moon/crater'.*write world/template"),
        ({"held_out": ["shop/sing"]}, "'shop/sing'.*of world shop.*known are open"),
        ({"held_out": [f"settings/{name}" for name in catalogue.get_world("settings").templates]}, "to train on"),
    ],
)
def test_impossible_settings_are_refused_by_name(raw, part):
    with pytest.raises(BadInput, match=part):
        make_tasks(parse_settings({"synthesis": raw}, where="test"), 0, "train")


def test_an_unknown_split_is_refused():
    with pytest.raises(BadInput, match="'test'"):
        make_tasks(Settings(), 0, "test")


# -- gate tasks ------------------------------------------------------------------------------------------------------
@hypothesis_settings(max_examples=examples(2), deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 200))
def test_no_iteration_trains_on_what_a_gate_asks(seed, iteration):
    """By the content's hash: no history is read, and what one iteration's gate asks another never trains on."""
    settings = Settings(seed=seed, synthesis=FORTY)
    fresh = make_tasks(settings, iteration, "gate")
    assert len(fresh) == settings.promotion.tasks
    assert all(is_reserved(task) and task.split == "eval" for task in fresh)
    assert len({task_content(task) for task in fresh}) == len(fresh)
    for other in (1, iteration, iteration + 1):
        assert not any(is_reserved(task) for task in make_tasks(settings, other, "train"))
    later = {task.task_id for task in make_tasks(settings, iteration + 1, "gate")}
    assert not {task.task_id for task in fresh} & later


def test_a_gate_asks_every_domain_and_held_out_templates_too():
    fresh = make_tasks(Settings(), 3, "gate")
    domains = Counter(task.domain for task in fresh)
    assert max(domains.values()) - min(domains.values()) <= 1
    assert 0.1 < sum(is_held_out(Settings(), task) for task in fresh) / len(fresh) < 0.5


@hypothesis_settings(max_examples=examples(5), deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 1_000))
def test_fresh_contents_are_of_the_same_slot_and_never_held_out(seed, number):
    settings = quick().model_copy(update={"seed": seed})
    kept = {task_content(task) for task in make_tasks(settings, 1, "eval")}
    drawer, again = (ContentDrawer(settings, "rl-sites 1") for _ in range(2))
    for like in make_tasks(settings, 1, "train")[:9]:
        fresh = drawer.draw(like, number)
        assert fresh == again.draw(like, number)
        assert fresh.task_id not in {like.task_id, drawer.draw(like, number + 1).task_id}
        slot = ("domain", "world", "template", "level", "split", "max_steps", "threshold", "verifier", "environment")
        assert all(getattr(fresh, name) == getattr(like, name) for name in slot)
        assert task_content(fresh) not in kept
        assert not is_reserved(fresh)


def test_a_world_with_one_task_for_all_seeds_keeps_it(monkeypatch):
    settings = quick()
    like = next(task for task in make_tasks(settings, 1, "train") if task.world == "control")
    drawer = ContentDrawer(settings, "rl-control 1")
    assert drawer.draw(like, 0) != like
    monkeypatch.setattr(catalogue.BrowserWorld, "once", True)
    assert drawer.draw(like, 0) is like


@pytest.mark.parametrize(
    ("instruction", "what"),
    [
        (
            "Find {colour} in {}.",
            r"'Find \{colour\} in \{\}\.' cannot be filled in: KeyError 'colour'.*, template open",
        ),
        ("Find {", "ValueError .*; `draw` gives items, cart, item; "),
    ],
)
def test_an_instruction_that_names_what_is_not_drawn_is_refused(instruction, what):
    world = catalogue.get_world("shop")
    templates = {"open": world.templates["open"].model_copy(update={"instruction": instruction})}
    with pytest.raises(BadInput, match=what):
        make_task(world.model_copy(update={"templates": templates}), "open", 1, 1, "train")


def test_a_task_without_other_contents_that_may_be_trained_on_keeps_its_own():
    settings = quick()
    drawer = ContentDrawer(settings, "rl-sites 1")
    drawer.fit = lambda task: False
    like = make_tasks(settings, 1, "train")[0]
    assert drawer.draw(like, 3) is like
