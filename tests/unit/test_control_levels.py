"""The small pages for grounding and control as they are drawn, without a browser: of every kind, at every level."""

from __future__ import annotations

import json

import pytest

from flywheel.envs.suites import catalogue, levels
from flywheel.envs.suites.control.sketch import LEVELS
from flywheel.envs.suites.control.world import FAMILIES, KINDS
from flywheel.envs.suites.number_words import cardinal, ordinal
from flywheel.envs.tasks.drawing import make_task
from flywheel.rewards.scorers import verifier
from flywheel.utils.errors import BadInput

WORLD = catalogue.get_world("control")


def task_of(template: str, level: int = 1, seed: int = 3):
    return make_task(WORLD, template, level, seed, "train")


def test_there_are_pages_of_every_kind():
    assert len(KINDS) >= 30
    assert sum(len(family.KINDS) for family in FAMILIES) == len(KINDS)  # no name twice
    assert (WORLD.kind, WORLD.domain) == ("page", "control")
    first = [next(f for f in FAMILIES if KINDS[name] in f.KINDS) for name in list(KINDS)[: len(FAMILIES)]]
    assert len(set(first)) == len(FAMILIES)  # any few that follow one another are of several families
    for template, spec in WORLD.templates.items():
        budgets = [spec.max_steps[level] for level in LEVELS]
        assert budgets == sorted(budgets), template
        assert verifier.get_verifier(task_of(template))


@pytest.mark.parametrize("template", KINDS)
def test_levels_do_not_repeat_and_any_integer_is_a_seed(template):
    for level in LEVELS:
        drawn = list(levels.draw_levels(WORLD, template, level, 40))
        assert len(drawn) == 40
        for _, params in drawn[:4]:
            assert params == json.loads(json.dumps(params))
            assert any(params["start"][key] != value for key, value in params["goal"].items())
        for seed in (-1, 2**63, -(10**30)):
            instruction = task_of(template, level, seed).instruction
            assert instruction.endswith(".")
            assert "{" not in instruction
            assert instruction[0].isupper()
    for level in (-3, 0, 4, 10**9):
        with pytest.raises(BadInput, match="no level"):
            task_of(template, level)


def test_numbers_and_days_are_spelt():
    assert {n: cardinal(n) for n in (0, 7, 13, 20, 42, 100, 305, 999)} == {
        0: "zero",
        7: "seven",
        13: "thirteen",
        20: "twenty",
        42: "forty two",
        100: "one hundred",
        305: "three hundred five",
        999: "nine hundred ninety nine",
    }
    assert len({cardinal(number) for number in range(1000)}) == 1000
    said = {1: "first", 2: "second", 12: "twelfth", 14: "fourteenth", 20: "twentieth", 23: "twenty third"}
    assert {number: ordinal(number) for number in said} == said
