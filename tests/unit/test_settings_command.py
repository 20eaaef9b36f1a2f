"""`flywheel settings`: what parameters mean and are here, and params.yaml written anew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from pydantic import BaseModel

from flywheel import config
from flywheel.cli import main
from flywheel.config import Settings


@pytest.fixture
def params(tmp_path, monkeypatch) -> Path:
    """The params.yaml of a workspace in which the command is typed; what it leaves out has its default."""
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    (tmp_path / "params.yaml").write_text("rl: {gae_lambda_alpha: 0.05}  # as in the report\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "params.yaml"


def flywheel(*words, answer="") -> tuple[int, str]:
    result = CliRunner().invoke(main, ["settings", *words], input=answer)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def is_block(field) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


def test_a_parameter_is_explained(params):
    assert flywheel("ct.warmup") == (
        0,
        (
            "ct.warmup: 0.05 (the default)\n"
            "    Share of the gradient steps in which the learning rate rises. Then it falls\n"
            "    along a cosine to a tenth.\n"
            "    Number, 0 or more and below 1.\n"
        ),
    )


def test_a_value_that_is_not_the_default_says_so(params):
    assert flywheel("rl.gae_lambda_alpha")[1].startswith("rl.gae_lambda_alpha: 0.05 (default: 1.5)\n")


def test_a_block_is_explained_with_all_that_is_in_it(params):
    code, output = flywheel("evaluation")
    assert code == 0
    assert output.startswith("evaluation: How models play the tasks that they were not trained on.\n")
    assert [line for line in output.splitlines()[1:] if line.startswith("evaluation.")] == [
        "evaluation.n_trials: 1 (the default)",
        "evaluation.temperature: 0.0 (the default)",
        "evaluation.stages: false (the default)",
    ]


@pytest.mark.parametrize("name", [name for name, field in Settings.model_fields.items() if is_block(field)])
def test_every_block_can_be_explained(params, name):
    code, said = flywheel(name)
    assert code == 0
    assert said.startswith(f"{name}: ")


def test_a_mapping_of_mappings_is_explained(params):
    code, said = flywheel("sandbox.kinds")
    assert code == 0
    assert "Mapping of names, each to a mapping." in said


def test_without_a_name_every_parameter_has_a_line(params):
    code, output = flywheel()
    assert code == 0
    lines = [line.split(maxsplit=1) for line in output.splitlines() if line]
    assert ["rl.gae_lambda_alpha", "0.05 (default: 1.5)"] in lines
    assert ["synthesis.levels", "[1, 2]"] in lines
    assert ["policy.endpoint", "''"] in lines
    told = {name for name, _ in lines}
    assert {
        f"{block}.{name}" for block, of in config.Settings().model_dump().items() if isinstance(of, dict) for name in of
    } <= told


def test_programs_are_told_the_same(params):
    code, output = flywheel("rl", "--json")
    found = {one["name"]: one for one in json.loads(output)}
    assert code == 0
    assert len(found) == len(config.RlSettings.model_fields)
    alpha = found["rl.gae_lambda_alpha"]
    assert (alpha["default"], alpha["value"], alpha["changed"]) == (1.5, 0.05, True)
    assert alpha["schema"] == {"type": "number", "exclusiveMinimum": 0}
    assert not found["rl.gamma"]["changed"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rl.alhpa", "did you mean rl.gae_lambda_alpha?"),
        ("alpha", "did you mean adapter.alpha or rl.gae_lambda_alpha?"),
        ("promotoin", "did you mean promotion?"),
        ("temperature", "did you mean rollout.temperature or rl.temperature or evaluation.temperature?"),
        ("rl.zzzzzzzzz", "`flywheel settings rl` tells which there are"),
        ("zzzzzzzzz", "known are policy, sandbox, recording,"),
        ("", "known are policy, sandbox, recording,"),
    ],
)
def test_a_name_that_there_is_not(params, name, said):
    code, output = flywheel(name)
    assert code == 2
    assert said in output
    assert len(output.splitlines()) == 1


def test_outside_a_workspace_the_defaults_are_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert flywheel()[1].startswith("no workspace here: these are the defaults\n")
    assert flywheel("rl.gae_lambda_alpha")[1].startswith("rl.gae_lambda_alpha: 1.5 (the default)\n")
    (row,) = json.loads(flywheel("rl.gae_lambda_alpha", "--json")[1])
    assert (row["value"], row["changed"]) == (None, None)
    code, output = flywheel("--workspace", str(tmp_path))
    assert code == 2
    assert "not a flywheel workspace" in output


def test_a_file_that_is_wrong_still_has_its_parameters_explained(params):
    params.write_text("rl: {gae_lambda_alpha: -1}\n")
    code, output = flywheel("rl.gae_lambda_alpha")
    assert code == 2
    assert "Number, above 0." in output
    assert "wrong parameter: rl.gae_lambda_alpha" in output.splitlines()[-1]


def test_writing_keeps_values_and_describes_all(params):
    code, _ = flywheel("--write", answer="y\n")
    assert code == 0
    assert config.load_settings(params) == config.parse_settings({"rl": {"gae_lambda_alpha": 0.05}}, where="")
    assert params.read_text() == config.dump_commented_settings(config.load_settings(params))
    assert flywheel("--write") == (0, "params.yaml is as it would be written\n")


@pytest.mark.parametrize(
    ("before", "words", "answer"),
    [
        ("rl: {gae_lambda_alpha: 0.05}  # mine\n", ["--write"], "n\n"),
        ("rl: {gae_lambda_alpha: 0.05}  # mine\n", ["rl", "--write", "--yes"], ""),
        ("rl: {gae_lambda_alpha: -1}  # mine\n", ["--write", "--yes"], ""),
    ],
    ids=["declined", "a name", "a wrong value"],
)
def test_what_is_not_to_be_written_stays_as_it_is(params, before, words, answer):
    params.write_text(before)
    flywheel(*words, answer=answer)
    assert params.read_text() == before
