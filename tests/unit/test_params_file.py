"""Files of parameters that an iteration keeps for itself."""

from __future__ import annotations

import pytest
import yaml

from flywheel.config import Settings, dump_settings, load_settings, params_file
from flywheel.utils.errors import BadInput


def test_what_a_newer_version_has_besides_is_added_and_the_rest_stays(tmp_path):
    """DVC asks for each block that a stage declares, and an iteration may have been begun before there was one."""
    path = tmp_path / "params.yaml"
    chosen = Settings.model_validate({"rl": {"steps": 7}})
    raw = yaml.safe_load(dump_settings(chosen))
    del raw["adapter"], raw["rl"]["fresh_tasks"]
    head, *_, end = dump_settings(chosen).splitlines()
    path.write_text("\n".join([head, yaml.safe_dump(raw, sort_keys=False) + end, ""]))
    before = path.read_text()
    params_file.add_missing_settings(path)
    assert yaml.safe_load(path.read_text()) == raw | {"adapter": Settings().adapter.model_dump(mode="json")}
    assert path.read_text().startswith(before.removesuffix(f"{end}\n"))
    assert load_settings(path) == chosen
    whole = path.read_text()
    params_file.add_missing_settings(path)
    assert path.read_text() == whole


@pytest.mark.parametrize("text", [None, "rl: {steps: 7"])
def test_a_copy_that_is_missing_or_damaged_is_told_of_in_one_line(tmp_path, text):
    path = tmp_path / "params.yaml"
    if text:
        path.write_text(text)
    with pytest.raises(BadInput, match=r"no settings file|not valid YAML"):
        params_file.add_missing_settings(path)
