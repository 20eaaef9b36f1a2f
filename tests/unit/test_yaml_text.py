"""Values are written in one line that YAML reads as the same value."""

from __future__ import annotations

import pytest
import yaml

from flywheel.utils.yaml_text import format_yaml_inline


@pytest.mark.parametrize(
    ("value", "line"),
    [([1, 2], "[1, 2]"), (0.5, "0.5"), ("", "''"), ("a\nb", '"a\\nb"'), ({"a": "b\n\nc"}, '{"a": "b\\n\\nc"}')],
)
def test_a_value_is_one_line(value, line):
    assert format_yaml_inline(value) == line
    assert yaml.safe_load(line) == value
