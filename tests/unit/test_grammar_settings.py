"""Text forms and coordinate spaces that do not go together are refused by name."""

from __future__ import annotations

from itertools import product

import pytest
from action_specimens import GRAMMARS

from flywheel import config
from flywheel.agent.grammar import Grammar
from flywheel.utils.errors import BadInput

FORMS = ("minimal", "point", "ui_tars_1_5", "ui_tars_1_0", "tool_call")
TOGETHER = {
    ("minimal", "grid"),
    ("point", "grid"),
    ("point", "pixels"),
    ("point", "norm1"),
    ("ui_tars_1_5", "pixels"),
    ("ui_tars_1_0", "norm1000"),
    ("tool_call", "grid"),
    ("tool_call", "pixels"),
    ("tool_call", "norm1"),
}


@pytest.mark.parametrize(("template", "space"), list(product(FORMS, ("grid", "norm1000", "pixels", "norm1"))))
def test_a_form_goes_with_its_spaces_alone(template, space):
    raw = {"policy": {"template": template, "coordinate_format": space}}
    if (template, space) in TOGETHER:
        chosen = config.parse_settings(raw, where="params.yaml")
        grammar = Grammar.of_settings(chosen)
        assert (grammar.form, grammar.space.kind) == (template, space)
    else:
        with pytest.raises(
            BadInput, match=rf"policy\.template {template} goes with policy\.coordinate_format .*, not {space}"
        ):
            config.parse_settings(raw, where="params.yaml")


def test_the_pixels_are_those_of_the_sandbox_as_the_model_sees_it():
    raw = {
        "policy": {"template": "ui_tars_1_5", "coordinate_format": "pixels"},
        "sandbox": {"width": 1280, "height": 720},
    }
    assert Grammar.of_settings(config.parse_settings(raw, where="")).space.size == (1288, 728)
    raw["policy"] |= {"resize_factor": 32, "max_pixels": 500_000}
    assert Grammar.of_settings(config.parse_settings(raw, where="")).space.size == (928, 512)


def test_limits_the_wrong_way_round_are_refused():
    with pytest.raises(BadInput, match=r"policy\.min_pixels must not be above policy\.max_pixels"):
        config.parse_settings({"policy": {"min_pixels": 2000, "max_pixels": 1000}}, where="")


def test_the_specimens_cover_each_combination():
    assert {(grammar.form, grammar.space.kind) for grammar in GRAMMARS} == TOGETHER
    assert {grammar.actions for grammar in GRAMMARS} >= {"computer", "browser", "mobile"}
