"""Verifiers: known answers, bounds, and clear errors."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flywheel
from flywheel.envs.base import Task
from flywheel.envs.suites import catalogue
from flywheel.envs.suites.verifiers import find_verifier
from flywheel.rewards.scorers.verifier import score_final_state
from flywheel.utils.errors import BadInput, DataError

OWN = (  # verifiers that are functions of one world: the name begins with the world's
    "tiles_cleared",
    "shapes_placed",
    "merge_reached",
    "settings_changed",
    "shop_opened",
    "shop_searched",
    "shop_cart",
    "shop_ordered",
)
WORLDS = {"state:score": "tiles", "page:reward": "a page"}


def task(verifier: str, **params) -> Task:
    world = WORLDS.get(verifier.partition("_")[0], verifier.partition("_")[0])
    return Task("k", "sites", world, "t", 1, 0, "Do it.", params, 3, "train", verifier, 1.0, "c")


SETTINGS = task("settings_changed", start={"wifi": False, "sound": True, "name": ""}, goal={"wifi": True})
UNTOUCHED = {"cart": {}, "orders": []}
CART = task("shop_cart", cart=["red mug"], goal={"red mug": 1, "blue hat": 1})
OUT = task("shop_cart", cart=["red mug", "blue hat"], goal={"blue hat": 1})
OPENED, SEARCHED = task("shop_opened", item="red mug", cart=[]), task("shop_searched", word="mug", cart=[])
ORDER = task("shop_ordered", goal={"red mug": 1}, person="anna")


@pytest.mark.parametrize(
    ("of", "state", "expected"),
    [
        (task("tiles_cleared", tiles=[0] * 6), {"triples": 1}, 0.5),
        (task("tiles_cleared", tiles=[0] * 6), {"triples": 2}, 1.0),
        (task("shapes_placed", pieces=[0, 0]), {"pieces": [{"placed": True}, {"placed": False}]}, 0.5),
        (task("merge_reached", target=16), {"board": [[2, 16], [0, 0]]}, 1.0),
        (task("merge_reached", target=16), {"board": [[2, 8], [8, 0]]}, 0.0),
        (SETTINGS, {"values": {"wifi": True, "sound": True, "name": ""}}, 1.0),
        (SETTINGS, {"values": {"wifi": False, "sound": True, "name": ""}}, 0.0),
        (SETTINGS, {"values": {"wifi": True, "sound": False, "name": ""}}, 0.5),  # one right, one not asked for
        (SETTINGS, {"values": {"wifi": True, "sound": False, "name": "x"}}, 1 / 3),
        (CART, {"cart": {"red mug": 1, "blue hat": 1}, "orders": []}, 1.0),
        (CART, {"cart": {"red mug": 1}, "orders": []}, 0.0),
        (CART, {"cart": {"red mug": 1, "blue hat": 2}, "orders": []}, 0.0),  # the wrong number
        (CART, {"cart": {"blue hat": 1}, "orders": []}, 0.5),  # something else was taken out
        (CART, {"cart": {"red mug": 1, "blue hat": 1}, "orders": [{}]}, 0.0),  # and something was bought
        (OUT, {"cart": {"blue hat": 1}, "orders": []}, 1.0),
        (OPENED, {"page": "item/red-mug"} | UNTOUCHED, 1.0),
        (OPENED, {"page": "item/red-hat"} | UNTOUCHED, 0.0),
        (OPENED, {"page": "item/red-mug", "cart": {"red mug": 1}, "orders": []}, 0.0),  # and put into the cart
        (SEARCHED, {"query": " Mug "} | UNTOUCHED, 1.0),
        (SEARCHED, {"query": "mugs"} | UNTOUCHED, 0.0),
        (SEARCHED, {"query": "mug", "cart": {}, "orders": [{}]}, 0.0),  # and something was bought
        (ORDER, {"orders": [{"name": "Anna", "items": {"red mug": 1}}], "cart": {}}, 1.0),
        (ORDER, {"orders": [{"name": "tom", "items": {"red mug": 1}}], "cart": {}}, 0.5),
        (ORDER, {"orders": [{"name": "anna", "items": {"red mug": 2}}], "cart": {}}, 0.0),
        (ORDER, {"orders": [], "cart": {"red mug": 1}}, 0.0),
        (ORDER, {"orders": [{"name": "anna", "items": {"red mug": 1}}] * 2, "cart": {}}, 0.0),  # bought twice
        (ORDER, {"orders": [{"name": "anna", "items": {"red mug": 1}}], "cart": {"red mug": 1}}, 0.5),  # one is left
    ],
)
def test_known_answers(of, state, expected):
    assert score_final_state(of, state) == pytest.approx(expected)


@given(
    st.dictionaries(st.sampled_from(["wifi", "sound", "name", "camera"]), st.sampled_from([True, False, "", "anna"]))
)
def test_settings_score_is_one_exactly_where_all_is_as_asked(values):
    value = score_final_state(SETTINGS, {"values": values})
    target = {**SETTINGS.params["start"], **SETTINGS.params["goal"]}
    assert 0 <= value <= 1
    as_asked = all(values.get(key) == target.get(key) for key in {*values, *target})
    assert (value == 1) == as_asked


@pytest.mark.parametrize("name", [*OWN, *WORLDS])
@pytest.mark.parametrize("state", [{}, {"cart": 3, "board": [], "pieces": [1], "orders": 7, "values": None}])
def test_a_state_that_lacks_what_is_read_is_a_data_error(name, state):
    params = {"tiles": [0, 0, 0], "pieces": [0], "target": 4, "start": {}, "goal": {"a": 1}, "cart": ["b"], "item": "a"}
    with pytest.raises(DataError, match=name):
        score_final_state(task(name, word="w", person="p", **params), state)


@pytest.mark.parametrize("name", ["nobody", "world:", "world:nobody", "state:"])
def test_an_unknown_verifier_is_named(name):
    with pytest.raises(BadInput, match=f"'{name}'"):
        score_final_state(dataclasses.replace(ORDER, verifier=name), {})


def test_a_game_that_is_not_won_scores_less_than_one():
    game = task("state:score")
    assert score_final_state(game, {"won": True, "score": 0.7}) == 1.0
    assert score_final_state(game, {"won": False, "score": 0.25}) == 0.25
    assert score_final_state(game, {"won": False, "score": 1}) < 1
    with pytest.raises(DataError, match="not in"):
        score_final_state(game, {"won": False, "score": -0.5})


def test_an_unknown_verifier_is_told_with_the_file_it_belongs_in():
    with pytest.raises(BadInput) as caught:
        find_verifier(dataclasses.replace(task("shop_nothing"), world="shop_zh"))
    (path,) = re.findall(r"(\S+)/world\.py", caught.value.fix)
    assert (Path(flywheel.__file__).parents[1] / path).samefile(catalogue.get_world("shop").folder)
