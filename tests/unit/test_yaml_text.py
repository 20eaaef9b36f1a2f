"""Values are written in one line that YAML reads as the same value."""

from __future__ import annotations

import math
from datetime import date

import pytest
import yaml
from pydantic import BaseModel

from flywheel.envs import registry
from flywheel.evaluation.benchmarks.lmgame_bench import LmgameBench
from flywheel.evaluation.benchmarks.terminal_bench import read_task_folder
from flywheel.utils.errors import BadInput
from flywheel.utils.yaml_text import format_yaml_inline, load_yaml, parse_yaml


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ([1, 2], "[1, 2]"),
        (0.5, "0.5"),
        ("", "''"),
        ("a\nb", '"a\\nb"'),
        ({"a": "b\n\nc"}, '{a: "b\\n\\nc"}'),
        (["a\n", math.inf, date(2026, 1, 2)], '["a\\n", .inf, 2026-01-02]'),
        ("a\x85b", '"a\\Nb"'),
    ],
)
def test_a_value_is_one_line(value, line):
    assert format_yaml_inline(value) == line
    assert yaml.safe_load(line) == value


UNFIT = ("a: !!bool maybe", "a: !!timestamp x", "a: !!int ''", "a: !!map [b]", "a: 2026-99-99", "a: " + "[" * 1500)


@pytest.mark.parametrize("text", UNFIT)
def test_a_value_that_its_tag_does_not_allow_is_wrong_yaml(text):
    for parse in (parse_yaml, load_yaml):
        with pytest.raises(yaml.YAMLError):
            parse(text)


@pytest.mark.parametrize("text", UNFIT)
def test_files_of_others_that_are_no_yaml_are_refused(tmp_path, text):
    config = tmp_path / "configs" / "custom_01" / "config.yaml"
    config.parent.mkdir(parents=True)
    for path in (tmp_path / "task.yaml", config):
        path.write_text(text)
    with pytest.raises(ValueError):  # noqa: PT011 (the loader's message)
        read_task_folder(tmp_path)
    (refused,) = LmgameBench().load_tasks(tmp_path)
    assert "Error" in refused.why
    with pytest.raises(BadInput, match="not YAML"):
        registry.validate_suite_manifest(config, BaseModel)
