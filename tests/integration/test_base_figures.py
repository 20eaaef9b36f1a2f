"""A base is replaced only by one that is no worse in any of its figures."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from flywheel.cli import main
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.training.pretrain.figures import list_worse_figures, replace_base
from flywheel.utils.errors import ModelError

BASE = Path(__file__).resolve().parents[2] / "models" / "base"


@pytest.mark.parametrize(
    ("after", "worse"),
    [
        ({"grounding": 0.94, "copying": 0.95}, []),
        ({"grounding": 0.985, "copying": 0.96, "numbers": 0.5}, []),
        ({"grounding": 0.99, "copying": 0.949}, ["copying 0.949, before 0.950"]),
        ({"grounding": float("nan"), "copying": 0.95}, ["grounding nan, before 0.940"]),
        ({"grounding": 0.94}, ["copying was not measured"]),
    ],
)
def test_every_figure_is_compared(after, worse):
    assert list_worse_figures({"grounding": 0.94, "copying": 0.95}, after) == worse


def test_a_base_that_lost_something_does_not_take_the_place_of_another(tmp_path):
    place, other = (shutil.copytree(BASE, tmp_path / name) for name in ("place", "other"))
    state = load_file(other / "model.safetensors")
    before = checkpoint_digest(place)
    blind = {name: torch.zeros_like(one) if ".merger." in name else one for name, one in state.items()}
    save_file(blind, other / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"worse than .*place: grounding 0\.\d+, before [01]\.\d+.*reading 0\.\d+"):
        replace_base(other, place, pages=8)
    assert checkpoint_digest(place) == before
    last = "model.visual.merger.linear_fc2.bias"  # another checkpoint whose answers are the same
    save_file({**state, last: state[last] * (1 + 2**-7)}, other / "model.safetensors", metadata={"format": "pt"})
    figures = replace_base(other, place, pages=8)
    assert checkpoint_digest(place) == checkpoint_digest(other) != before
    assert figures.keys() == {"grounding", "reading", "numbers", "copying", "parses"}
    assert all(0 <= value <= 1 for value in figures.values())


def test_a_place_without_a_checkpoint_is_refused_before_training(tmp_path):
    out, place = tmp_path / "out", tmp_path / "nothing"
    done = CliRunner().invoke(main, ["model", "pretrain", "--out", str(out), "--replace", str(place)])
    assert isinstance(done.exception, ModelError | SystemExit)
    assert done.exit_code
    assert str(place) in f"{done.exception} {done.output}"
    assert not out.exists()
