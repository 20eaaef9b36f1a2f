"""Coordinate spaces: exact known values, the resizing that the model's own processor does, and settings to spaces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as of_transformers

from flywheel.agent.actions import Click, ParseError, Point
from flywheel.agent.grammar import Grammar, as_grammar, grid_space, norm1000_space, pixel_space, smart_resize
from flywheel.agent.parsing.parser import parse_response, serialise_action
from flywheel.config import PolicySettings
from flywheel.utils.errors import BadInput


def test_a_point_of_cells_is_the_middle_of_its_cell():
    space = grid_space(100)
    assert space.x.read(0) == 0.005
    assert space.x.read(52) == 0.525
    assert [space.x.write(fraction) for fraction in (0, 0.0099, 0.01, 0.5, 0.9999, 1.0)] == [0, 0, 1, 50, 99, 99]


def test_boxes_are_thousandths_as_ui_tars_divides_them():
    space = norm1000_space()
    assert [space.x.read(number) for number in (0, 500, 999)] == [0.0, 0.5, 0.999]
    assert 0.999 < space.x.read(1000) < 1
    assert [space.x.write(fraction) for fraction in (0.0, 0.0004, 0.0006, 0.5, 0.9999)] == [0, 0, 1, 500, 1000]


def test_pixels_are_of_the_resized_image():
    """The values of UI-TARS's own test: (112, 224) on a screen of 224 x 224 is the middle of its lower edge."""
    grammar = Grammar("ui_tars_1_5", pixel_space(224, 224))
    assert parse_response("Action: click(start_box='(112,112)')", grammar).action == Click(Point(0.5, 0.5))
    action = parse_response("Action: click(start_box='<|box_start|>(112,224)<|box_end|>')", grammar).action
    assert action == Click(Point(0.5, 223 / 224))


def test_a_screen_that_is_resized():
    """1920 x 1080 becomes 1932 x 1092, multiples of 28; the middle of it is the middle."""
    policy = PolicySettings(template="ui_tars_1_5", coordinate_format="pixels")
    grammar = Grammar.of(policy, (1920, 1080))
    assert grammar.space.size == (1932, 1092)
    assert serialise_action(Click(Point(0.5, 0.5)), grammar) == "click(start_box='(966,546)')"
    assert parse_response("Action: click(start_box='(966,546)')", grammar).action == Click(Point(0.5, 0.5))
    error = parse_response("Action: click(start_box='(1933,546)')", grammar).action
    assert isinstance(error, ParseError)
    assert error.reason == "1933 lies outside 0..1931"


def test_the_same_text_means_another_place_in_another_space():
    text = "Action: click(start_box='(100,100)')"
    found = [
        parse_response(text, grammar).action.point
        for grammar in (
            Grammar("ui_tars_1_5", pixel_space(400, 200)),
            Grammar("ui_tars_1_0", norm1000_space()),
            Grammar("point", grid_space(1000)),
        )
    ]
    assert found == [Point(0.25, 0.5), Point(0.1, 0.1), Point(0.1005, 0.1005)]


@given(
    st.integers(1, 5000), st.integers(1, 5000), st.sampled_from([28, 32]), st.integers(1, 10**6), st.integers(0, 10**7)
)
def test_the_image_is_resized_as_its_processor_does(width, height, factor, smallest, more):
    if max(width, height) > 200 * min(width, height):
        with pytest.raises(BadInput, match="ratio within 200"):
            smart_resize(width, height, factor, smallest, smallest + more)
        return
    theirs = of_transformers(height, width, factor, smallest, smallest + more)
    assert smart_resize(width, height, factor, smallest, smallest + more) == theirs[::-1]


def test_no_screen_is_refused():
    with pytest.raises(BadInput, match="no image processor takes a screen of 0 x 5"):
        smart_resize(0, 5, 28, 1, 100)


def test_the_settings_name_the_grammar():
    assert Grammar.of(PolicySettings()) == Grammar("minimal", grid_space(100))
    assert Grammar.of(PolicySettings(template="point", coordinates=1000, actions="mobile", functions=True)) == Grammar(
        "point", grid_space(1000), "mobile", True
    )
    assert Grammar.of(PolicySettings(template="ui_tars_1_0", coordinate_format="norm1000")).space == norm1000_space()
    with pytest.raises(BadInput, match=r"policy\.coordinate_format"):
        Grammar.of(PolicySettings(template="ui_tars_1_5", coordinate_format="pixels"))


def test_a_number_is_short_for_the_point_form_with_that_many_cells():
    whole = Grammar("point", grid_space(1000))
    action = Click(Point(0.3456, 0.9))
    assert serialise_action(action, 1000) == serialise_action(action, whole) == "click(point='<point>345 900</point>')"
    assert as_grammar(1000).space.snap(action.point) == whole.space.snap(action.point) == Point(0.3455, 0.9005)
