"""Names and values of earlier versions: refused with those of today, and renamed in a file that keeps its form."""

from __future__ import annotations

import pytest
import yaml

from flywheel import config
from flywheel.config import params_file, renamed
from flywheel.store.versioning import stage_records
from flywheel.utils.errors import BadInput
from flywheel.utils.files import write_text

NAMES = [one.name for section in params_file.list_parameter_sections() for one in section.parameters]
EARLIER = """\
seed: 3
# of my own
policy:
  space: points  # a grid
  "actions": browser
rl:
  alpha: 0.05
  steps: 2
promotion:
  rule: 'better'
sandbox:
  kinds:
    terminal:
      wait_s: 9.0
  wait_s: 5.0
"""


def test_each_name_is_one_of_today_and_none_of_before_is():
    assert set(renamed.RENAMED.values()) <= set(NAMES)
    assert not set(renamed.RENAMED) & set(NAMES)
    assert len(set(renamed.RENAMED.values())) == len(renamed.RENAMED)
    for old, new in renamed.RENAMED.items():
        assert old.partition(".")[0] == new.partition(".")[0]


@pytest.mark.parametrize("name", renamed.RENAMED_VALUES)
def test_each_value_is_one_of_today_and_none_of_before_is(name):
    (one,) = params_file.find_parameter_section(name).parameters
    values = renamed.RENAMED_VALUES[name]
    assert set(values.values()) <= set(one.schema["enum"])
    assert not set(values) & set(one.schema["enum"])


@pytest.mark.parametrize(("old", "new"), renamed.RENAMED.items())
def test_an_earlier_name_is_refused_with_the_one_of_today(tmp_path, old, new):
    block, _, leaf = old.partition(".")
    write_text(tmp_path / "params.yaml", yaml.safe_dump({block: {leaf: 1}}))
    with pytest.raises(BadInput) as caught:
        config.load_settings(tmp_path / "params.yaml")
    said = str(caught.value)
    assert (f"{old}: it is {new} now" in said, "`flywheel workspace migrate`" in said, "\n" in said) == (
        True,
        True,
        False,
    )
    write_text(tmp_path / "params.yaml", "seed: 7\n")
    with pytest.raises(BadInput, match=rf"{old}: it is {new} now \(--set\).*`flywheel workspace migrate`"):
        config.load_settings(tmp_path / "params.yaml", {old: 1})


def test_an_earlier_value_is_refused_with_the_one_of_today():
    with pytest.raises(
        BadInput, match=r"promotion\.rule: not_worse is non_inferiority now .*`flywheel workspace migrate`"
    ):
        config.parse_settings({"promotion": {"rule": "not_worse"}}, where="params.yaml")


def test_an_earlier_name_in_an_iterations_copy_is_no_damage_to_restore(ws):
    write_text(ws.frozen_params(1), "rl:\n  alpha: 2.0\n")
    with pytest.raises(
        BadInput, match=r"rl\.gae_lambda_alpha now \(.*001/params\.yaml\); .*`flywheel workspace migrate`"
    ):
        stage_records.load_iteration_params(ws, 1)


def test_a_file_keeps_its_form():
    text, changes = renamed.rename_in_text(EARLIER, "params.yaml")
    assert text == (
        EARLIER.replace("space: points  #", "coordinate_format: grid  #")
        .replace("alpha", "gae_lambda_alpha")
        .replace("'better'", "'superiority'")
        .replace("  wait_s: 5", "  acquire_timeout_s: 5")
    )
    assert changes == [
        "policy.space -> coordinate_format",
        "policy.coordinate_format: points -> grid",
        "rl.alpha -> gae_lambda_alpha",
        "promotion.rule: better -> superiority",
        "sandbox.wait_s -> acquire_timeout_s",
    ]
    assert renamed.rename_in_text(text, "params.yaml") == (text, [])


@pytest.mark.parametrize(
    "text",
    ["rl: {alpha: 2.0, steps: 3}\n", '"rl":\n  "alpha": 2.0\n  steps: 3\n', "rl:\n  ? alpha\n  : 2.0\n  steps: 3\n"],
)
def test_a_file_of_another_form_keeps_its_values(text):
    found, _ = renamed.rename_in_text(text, "params.yaml")
    assert yaml.safe_load(found) == {"rl": {"gae_lambda_alpha": 2.0, "steps": 3}}


def test_a_whole_file_stays_whole(tmp_path):
    text = config.dump_commented_settings(config.Settings())
    for name in renamed.RENAMED.values():
        (old,) = (one for one, new in renamed.RENAMED.items() if new == name)
        text = text.replace(f"\n  {name.partition('.')[2]}:", f"\n  {old.partition('.')[2]}:")
    write_text(tmp_path / "params.yaml", renamed.rename_in_text(text, "params.yaml")[0])
    assert config.load_settings(tmp_path / "params.yaml") == config.Settings()


def test_a_parameter_by_both_names_is_refused():
    with pytest.raises(BadInput, match=r"rl\.alpha is rl\.gae_lambda_alpha now, and both are there"):
        renamed.rename_in_text("rl:\n  alpha: 1.0\n  gae_lambda_alpha: 2.0\n", "params.yaml")


def test_what_is_no_mapping_is_left_to_the_reader():
    for text in ("", "rl: 3\n", "[rl]\n", "rl:\n"):
        assert renamed.rename_in_text(text, "params.yaml") == (text, [])
