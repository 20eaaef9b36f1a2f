"""What `benchmarks/page_grounding.py` tells of its arms."""

from __future__ import annotations

import pytest
from page_grounding import ARMS, BESIDE, _beside, _hits, _worded

from flywheel.envs.tasks.grounding import GroundingExample
from flywheel.store.schema import Step


def test_arms_that_are_compared_have_the_same_demonstrations():
    assert all(ARMS[arm] == ARMS[other] for arm, other in BESIDE.items())
    assert set(ARMS) - set(BESIDE) == {"general", "fields"}


def test_an_arm_is_told_beside_another_of_the_same_seeds():
    own, other = {1: [1, 1, 0, 0], 2: [0, 1, 1, 1]}, {1: [0, 1, 0, 0], 2: [0, 1, 0, 1]}
    told = _beside(own, other)
    assert (told["by_seed"], told["mean"], told["beside"]) == ([0.5, 0.75], 0.625, 0.25)
    assert told["over_seeds"] == [0.25, 0.25]
    assert told["over_tasks"] == pytest.approx([-0.0329, 0.5329], abs=1e-4)
    assert _beside(own, {}) == {"by_seed": [0.5, 0.75], "mean": 0.625}


def test_a_first_action_is_a_click_into_the_element():
    box = {"x": 0.25, "y": 0.0, "w": 0.4, "h": 0.1}

    def step(action, x=None, y=None):
        return Step("t", 0, "model", "", action_type=action, x=x, y=y)

    assert _hits(step("click", 0.45, 0.07), box)
    assert not any(_hits(one, box) for one in (step("click", 0.45, 0.2), step("type"), step("left_double", 0.45, 0.07)))


def test_half_of_the_texts_for_the_search_field_are_searched_for():
    said = ["Type mug in the search field.", "Type mug in the name field.", "Click the search field."]
    made = [GroundingExample(f"g{n:x}", "page: shop", b"", one, "") for n in range(16) for one in said]
    told = [one.instruction for one in _worded(made)]
    assert (told.count("Search for mug."), told.count(said[0])) == (8, 8)
    assert (told.count(said[1]), told.count(said[2])) == (16, 16)
