"""Parameters of earlier versions: refused with what to type now, and read as they were meant in an iteration's copy."""

from __future__ import annotations

import pytest
import yaml

from flywheel import config
from flywheel.store.versioning import iteration_params
from flywheel.utils.errors import BadInput
from flywheel.utils.files import write_text


def written(path, advantage) -> str:
    """A file as the version wrote it that had rl.advantage beside an rl.algorithm that was always ppo."""
    raw = config.Settings().model_dump(mode="json")
    for name in ("weight_decay", "beta2"):
        del raw["rl"][name]
    for name in ("engine", "zero_stage", "processes", "beta2"):
        del raw["ct"][name]
    raw["rl"] |= {"algorithm": "ppo", "advantage": advantage, "steps": 3}
    write_text(path, yaml.safe_dump(raw))
    return path.read_text()


def test_params_with_an_earlier_name_are_told_what_to_type(tmp_path):
    written(tmp_path / "params.yaml", "group")
    with pytest.raises(BadInput) as caught:
        config.load_settings(tmp_path / "params.yaml")
    said = str(caught.value)
    assert "rl.advantage: there is no such parameter any more" in said
    assert "algorithm: ppo (for gae) or algorithm: grpo (for group)" in said
    assert "params.yaml" in said
    assert "\n" not in said


@pytest.mark.parametrize(("advantage", "algorithm"), [("gae", "ppo"), ("group", "grpo")])
def test_the_copy_of_an_iteration_is_read_as_it_was_meant(ws, advantage, algorithm):
    before = written(ws.frozen_params(1), advantage)
    assert iteration_params.load_iteration_params(ws, 1) == config.parse_settings(
        {"rl": {"algorithm": algorithm, "steps": 3}}, where=""
    )
    assert ws.frozen_params(1).read_text() == before


def test_a_value_that_is_a_word_now_is_told_the_words():
    with pytest.raises(BadInput, match="false is not a value of it; it is one of auto, always, never"):
        config.parse_settings({"policy": {"constrained": False}}, where="params.yaml")


def test_a_copy_whose_value_never_was_one_is_refused(ws):
    written(ws.frozen_params(1), "both")
    with pytest.raises(BadInput, match=r"rl\.advantage"):
        iteration_params.load_iteration_params(ws, 1)


def test_a_copy_without_a_parameter_that_came_later_is_as_it_was(ws):
    raw = config.Settings().model_dump(mode="json")
    del raw["synthesis"]["repeated"], raw["policy"]["constrained"]
    write_text(ws.frozen_params(1), yaml.safe_dump(raw))
    assert (
        iteration_params.load_iteration_params(ws, 1).synthesis.repeated,
        iteration_params.load_iteration_params(ws, 1).policy.constrained,
    ) == (0, "never")
    raw["policy"]["constrained"] = True
    write_text(ws.frozen_params(1), yaml.safe_dump(raw))
    assert iteration_params.load_iteration_params(ws, 1).policy.constrained == "always"
    write_text(ws.frozen_params(2), yaml.safe_dump(config.Settings().model_dump(mode="json")))
    assert iteration_params.load_iteration_params(ws, 2) == config.Settings()
