"""Parameters that cannot work are refused by name before anything is frozen; what is let through can be used."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import minimal_iterations
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from night import examples
from pydantic import BaseModel

from flywheel import config
from flywheel.cli import main
from flywheel.config.workspace import Workspace
from flywheel.pipeline import iterations
from flywheel.pipeline.iterations import begin_iteration
from flywheel.store import manifest
from flywheel.utils.errors import BadInput, FlywheelError


@pytest.fixture(scope="module")
def ws(tmp_path_factory) -> Workspace:
    """A workspace of the small profile in which nothing has run; no test here may change it."""
    return minimal_iterations.created(tmp_path_factory.mktemp("hostile") / "ws", sessions=2)


def fields(block: type[BaseModel], before: str = "") -> Iterator[str]:
    for name, field in block.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from fields(inner, f"{before}{name}.")
        else:
            yield f"{before}{name}"


FIELDS = tuple(fields(config.Settings))
HOSTILE = (
    math.nan,
    math.inf,
    -math.inf,
    -1,
    0,
    1,
    10**9,
    10**10,
    10**30,
    1e300,
    -0.5,
    0.5,
    True,
    False,
    None,
    "",
    "nope",
    "a\nb",
    "\0",
    "../../..",
    [],
    [[]],
    [None],
    [True],
    ["nope"],
    ["nope/none"],
    [10**30],
    {},
    {"games": []},
    {"games": ["tilez"]},
    {"moon": ["crater"]},
    {1: 2},
    {"games": math.nan},
)
# What only a look at the machine, the workspace and the worlds can tell.
LOOKED_AT = (
    "synthesis",
    "recording.folder",
    "recording.whisper_model",
    "policy.base",
    "ct.engine",
    "sft.engine",
    "rl.engine",
    "rl.algorithm",
    "sandbox.executable",
)


def chosen(name: str, value: Any) -> config.Settings:
    """The settings with one field set, or BadInput."""
    raw: dict[str, Any] = {}
    block = raw
    *parents, leaf = name.split(".")
    for part in parents:
        block = block.setdefault(part, {})
    block[leaf] = value
    if name == "recording.whisper_model":
        block["recognizer"] = "whisper"
    return config.parse_settings(raw, where="params.yaml")


def value_of(block: BaseModel, name: str) -> Any:
    for part in name.split("."):
        block = getattr(block, part)
    return block


def refusal(act: Callable[[], Any]) -> FlywheelError | None:
    try:
        act()
    except FlywheelError as error:
        return error
    return None


def check_told(error: FlywheelError, name: str) -> None:
    assert name in str(error)
    assert error.exit_code == 2
    assert "\n" not in str(error)


@given(st.sampled_from(FIELDS), st.sampled_from(HOSTILE) | st.floats() | st.integers() | st.text(max_size=9))
@hypothesis_settings(max_examples=examples(120))
@example("rollout.n_rollouts", True)
@example("rl.zero_stage", True)
@example("rl.batch_timeout_s", math.inf)
@example("sandbox.width", 1_000_000)
@example("synthesis.levels", [])
@example("recording.folder", "")
def test_a_value_is_refused_by_its_name_or_kept_as_it_is(name, value):
    error = refusal(lambda: chosen(name, value))
    if error:
        check_told(error, name)
        return
    loaded = chosen(name, value)
    kept = value_of(loaded, name)
    assert kept == value
    assert isinstance(kept, bool) == isinstance(value, bool)
    if isinstance(kept, float):
        assert math.isfinite(kept)
    for form in (config.dump_settings, config.dump_commented_settings):
        assert config.parse_settings(yaml.safe_load(form(loaded)), where="") == loaded


@pytest.mark.parametrize("name", [name for name in FIELDS if name.startswith(LOOKED_AT)])
def test_what_passes_preflight_can_be_drawn_and_what_does_not_is_named(ws, name):
    for value in HOSTILE:
        if isinstance(value, int) and value > 1000:
            continue  # drawing so many tasks takes as long as it says
        error = refusal(lambda value=value: iterations.run_preflight(ws, chosen(name, value)))
        if error:
            check_told(error, name)


def tree(ws: Workspace) -> dict[str, tuple[int, int]]:
    return {
        ws.relative(path): (path.stat().st_mtime_ns, path.stat().st_size)
        for path in ws.root.rglob("*")
        if path.is_file() and path != ws.state / "lock"
    }


def flywheel(*arguments: Any) -> tuple[int, str]:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("synthesis.domains={games: [tilez], sites: [shop], control: [control]}", "did you mean tiles?"),
        ("synthesis.domains={games: [], sites: [shop], control: [control]}", "synthesis.domains.games"),
        ("synthesis.levels=[]", "synthesis.levels"),
        ("synthesis.levels=[-1]", "synthesis.levels"),
        ("synthesis.levels=[9]", "synthesis.levels"),
        ("synthesis.held_out=[shop/serch]", "did you mean search?"),
        ("synthesis.manifests=[nope]", "synthesis.manifests"),
        ("synthesis.train_tasks=2", "synthesis.train_tasks"),
        ("rollout.n_rollouts=true", "rollout.n_rollouts"),
        ("rollout.n_rolouts=3", "did you mean n_rollouts?"),
        ("rl.batch_timeout_s=.inf", "rl.batch_timeout_s"),
        ("rl.algorithm=pppo", "there is no algorithm 'pppo' (rl.algorithm); known are grpo, ppo"),
        ("rl.advantage=group", "rl.advantage: there is no such parameter (--set)"),
        ("sandbox.width=1000000", "sandbox.width"),
        ("policy.base=models/nope", "policy.base"),
        ("language_model={endpoint: 'http://127.0.0.1:9/v1', model: m}", "language_model.endpoint"),
    ],
)
def test_a_run_that_is_refused_leaves_the_workspace_as_it_was(ws, assignment, said):
    before = tree(ws)
    code, output = flywheel("run", "-w", ws.root, "--set", assignment)
    assert code == 2
    assert said in output
    assert len(output.splitlines()) == 1
    assert tree(ws) == before


def test_what_is_wrong_with_an_override_is_said_of_it_and_not_of_the_file(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text("rl: {steps: 5}\n")
    for name, value in (("rl.steps", -1), ("rl.nope", 1), ("merge.weights", {"games": 1.0}), ("seed.x", 1)):
        with pytest.raises(BadInput) as raised:
            config.load_settings(path, {name: value})
        assert raised.value.where == "--set"
    path.write_text("rl: {steps: -5}\n")
    with pytest.raises(BadInput) as raised:
        config.load_settings(path, {"seed": 1})
    assert raised.value.where == str(path)


@pytest.mark.parametrize("text", ["", "\n", "# nothing but a comment\n", "{}\n", "---\n"])
def test_an_empty_file_is_no_workspace_of_defaults(tmp_path, text):
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(BadInput, match="empty"):
        config.load_settings(path)


@pytest.mark.parametrize("form", [config.dump_settings, config.dump_commented_settings])
def test_a_file_that_is_cut_off_anywhere_is_refused(tmp_path, form):
    path: Path = tmp_path / "params.yaml"
    whole = form(config.Settings())
    path.write_text(whole)
    assert config.load_settings(path) == config.Settings()
    head = whole.index("\n") + 1
    for length in range(head, len(whole) - 2, 101):
        path.write_text(whole[:length])
        with pytest.raises(BadInput):
            config.load_settings(path)


@pytest.mark.parametrize("text", ["seed: 1\nseed: 2\n", "rl: {steps: 1, steps: 2}\n", "seed: &a [*a]\n", "[" * 1200])
def test_yaml_that_says_two_things_or_nothing_sound_is_one_line(tmp_path, text):
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(BadInput) as raised:
        config.load_settings(path)
    assert "\n" not in str(raised.value)


def test_numbers_are_read_as_people_write_them(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text("ct: {lr: 5e-4}\nrl: {actor_lr: 1E-4, gae_lambda_alpha: 2}\n")
    loaded = config.load_settings(path)
    assert (loaded.ct.lr, loaded.rl.actor_lr, loaded.rl.gae_lambda_alpha) == (5e-4, 1e-4, 2.0)


def test_an_error_of_a_frozen_file_names_it_and_the_way_out(ws, tmp_path):
    own = Workspace(shutil.copytree(ws.root, tmp_path / "ws", symlinks=True))
    manifest.init_first_checkpoint(own, digest="abc")
    bad = config.load_settings(own.params, {"synthesis.held_out": ["nope/none"]})
    begin_iteration(own, 1, bad)
    code, output = flywheel("run", "-w", own.root)
    assert code == 2
    assert "iterations/001/params.yaml" in output
    assert "flywheel iteration drop --iteration 1" in output
    own.frozen_params(1).write_text("seed: x\n")
    assert "flywheel iteration drop --iteration 1" in flywheel("run", "-w", own.root)[1]
    code, output = flywheel("iteration", "drop", "--yes", "-w", own.root)
    assert code == 0
    assert "iterations/001" in output
    assert not own.frozen_params(1).exists()
    iterations.run_preflight(own, config.load_settings(own.params))
