"""Settings: what is refused, by name, and that what is written is what is read."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from night import examples

from flywheel import config
from flywheel.config import params_file
from flywheel.utils.errors import BadInput


def parse(**raw):
    return config.parse_settings(raw, where="params.yaml")


def test_the_projects_own_settings_are_the_defaults_as_they_are_described(project):
    written = config.dump_commented_settings(config.Settings())
    assert (project / "params.yaml").read_text(encoding="utf-8") == written, "type: flywheel settings --write"
    assert config.load_settings(project / "params.yaml") == config.Settings()


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"rollout": {"n_rollouts": 0}}, "rollout.n_rollouts"),
        (
            {"rollout": {"n_rollouts": 1}, "rl": {"min_live_groups": 0.1}},
            "rl.min_live_groups goes with rollout.n_rollouts",
        ),
        ({"rollout": {"sampels": 4}}, "rollout.sampels"),
        ({"nothing": 1}, "nothing"),
        ({"rl": {"eps_low": 1.0}}, "rl.eps_low"),
        ({"routing": {"threshold": 1.5}}, "routing.threshold"),
        ({"merge": {"weights": {"games": 0.7, "sites": 0.7}}}, "merge.weights must be 0 or more and sum to 1"),
        ({"merge": {"weights": {"games": 1.0}}}, "same domains"),
        ({"recording": {"recognizer": "whisper"}}, "recording.whisper_model"),
        ({"policy": {"backend": "openai"}}, "policy.endpoint"),
        ({"policy": {"max_new_tokens": 600}}, "policy.max_new_tokens must be under policy.max_context_tokens"),
        ({"synthesis": {"domains": {"moon": ["crater"]}}}, "synthesis.domains"),
        ({"rl": {"steps": 10**12}}, "rl.steps: 1e+12 is too large; the largest number is 1e+09"),
        ({"rl": {"steps": -(10**400)}}, "rl.steps: it is too large"),  # beyond every float
        ({"rl": {"eps_low": 10**5000}}, "rl.eps_low: it is too large"),  # beyond the digits that Python writes
    ],
)
def test_wrong_parameters_are_named(raw, said):
    with pytest.raises(BadInput) as caught:
        parse(**raw)
    assert said in str(caught.value)
    assert "params.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_file_that_is_not_yaml_is_one_line(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text("seed: [1,\nrl: {")
    with pytest.raises(BadInput, match="not valid YAML") as caught:
        config.load_settings(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_says_how_to_make_one(tmp_path):
    with pytest.raises(BadInput, match="flywheel init"):
        config.load_settings(tmp_path / "params.yaml")


def test_a_folder_in_the_files_place_is_one_line(tmp_path):
    with pytest.raises(BadInput, match=r"cannot be read: Is a directory"):
        config.load_settings(tmp_path)


def test_overrides_reach_into_blocks_and_are_checked(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text("rl: {steps: 5}\n")
    loaded = config.load_settings(path, {"rl.actor_lr": 0.5, "seed": 9})
    assert (loaded.rl.steps, loaded.rl.actor_lr, loaded.seed) == (5, 0.5, 9)
    with pytest.raises(BadInput, match=r"rl\.steps"):
        config.load_settings(path, {"rl.steps": -1})
    path.write_text("seed: 3\n")
    with pytest.raises(BadInput, match="seed is not a block"):
        config.load_settings(path, {"seed.x": 1})


@hypothesis_settings(max_examples=examples(6))
@given(
    seed=st.integers(0, 2**40),
    samples=st.integers(1, 99),
    share=st.floats(0, 1),
    steps=st.integers(0, 9),
    alpha=st.floats(0.01, 5),
)
def test_what_is_written_is_read_as_the_same_settings(seed, samples, share, steps, alpha):
    chosen = parse(
        seed=seed,
        rollout={"n_rollouts": samples},
        rl={"steps": steps, "gae_lambda_alpha": alpha},
        merge={"weights": {"games": share, "sites": 1 - share, "control": 0}},
    )
    for form in (config.dump_settings, config.dump_commented_settings):
        assert config.parse_settings(yaml.safe_load(form(chosen)), where="") == chosen


def test_the_same_parameters_stand_in_both_forms_of_the_file():
    chosen = config.Settings()
    assert yaml.safe_load(config.dump_commented_settings(chosen)) == yaml.safe_load(config.dump_settings(chosen))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("rl.gae_lambda_alpha", "number, above 0"),
        ("rl.gamma", "number, above 0 and at most 1"),
        ("rl.lambda_policy", "number, 0 to 1, or null"),
        ("ct.processes", "whole number, 1 to 64"),
        ("ct.zero_stage", "one of 1, 2, 3"),
        ("promotion.rule", "one of superiority, non_inferiority, review, always"),
        ("rl.normalise", "true or false"),
        ("policy.base", "text, not empty"),
        ("synthesis.levels", "list of whole numbers, not empty"),
        ("adapter.targets", "list of any of language_model, merger, vision_tower, not empty"),
        ("synthesis.held_out", "number, 0 to 0.5, or list of texts"),
        ("synthesis.domains", "mapping of names, each to a list of texts"),
        ("merge.weights", "mapping of names, each to a number"),
    ],
)
def test_the_values_that_a_parameter_takes_are_told_in_words(name, values):
    (found,) = params_file.find_parameter_section(name).parameters
    assert found.values == values


def test_every_parameter_and_block_has_a_description_of_its_own():
    sections = params_file.list_parameter_sections()
    assert [section.name for section in sections[1:]] == list(config.Settings.model_fields)[2:]
    for section in sections:
        assert section.description.endswith(".")
        for one in section.parameters:
            assert one.description.endswith("."), one.name


def test_a_field_that_changes_the_default_alone_keeps_its_description():
    (ct,), (sft,) = (
        params_file.find_parameter_section("ct.num_examples").parameters,
        params_file.find_parameter_section("sft.num_examples").parameters,
    )
    assert ct.description == sft.description
    assert (ct.default, sft.default) == (2000, 320)


def test_a_comment_names_the_choices_that_the_description_leaves_out():
    (device,), (space,) = (
        params_file.find_parameter_section("rl.device").parameters,
        params_file.find_parameter_section("policy.coordinate_format").parameters,
    )
    assert device.comment == f"{device.description} One of auto, cpu, cuda."
    assert space.comment == space.description
