from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from flywheel.errors import BadInput, ModelError
from flywheel.training.merge import merge


def checkpoint(folder: Path, **tensors: torch.Tensor) -> Path:
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(folder.name)
    return folder


def test_weighted_mean_is_exact(tmp_path):
    a = checkpoint(tmp_path / "a", w=torch.tensor([1.0, -2.0]), steps=torch.tensor([3]))
    b = checkpoint(tmp_path / "b", w=torch.tensor([3.0, 6.0]), steps=torch.tensor([3]))
    merge([a, b], [0.25, 0.75], tmp_path / "out")
    got = load_file(tmp_path / "out" / "model.safetensors")
    assert got["w"].tolist() == [2.5, 4.0]
    assert got["steps"].tolist() == [3]
    assert (tmp_path / "out" / "config.json").read_text() == "a"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "out"]


@settings(max_examples=20, deadline=None)
@given(weights=st.lists(st.integers(0, 8), min_size=1, max_size=4).filter(any), seed=st.integers(0, 10**6))
def test_equals_the_sum_in_float64(tmp_path_factory, weights, seed):
    folder = tmp_path_factory.mktemp("merge")
    shares = [weight / sum(weights) for weight in weights]
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(3, 2, generator=generator) for _ in shares]
    folders = [checkpoint(folder / str(i), w=tensor) for i, tensor in enumerate(tensors)]
    merge(folders, shares, folder / "out")
    expected = sum(share * tensor.double() for share, tensor in zip(shares, tensors, strict=True)).float()
    assert torch.equal(load_file(folder / "out" / "model.safetensors")["w"], expected)


def test_one_checkpoint_merges_to_itself(tmp_path):
    tensor = torch.randn(64)
    merge([checkpoint(tmp_path / "a", w=tensor)], [1.0], tmp_path / "out")
    assert torch.equal(load_file(tmp_path / "out" / "model.safetensors")["w"], tensor)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"w": torch.zeros(3)}, r"w has shapes \(2,\) and \(3,\)"),
        ({"v": torch.zeros(2)}, "only one of the checkpoints has v"),
        ({"w": torch.zeros(2), "extra": torch.zeros(1)}, "only one of the checkpoints has extra"),
    ],
)
def test_other_architecture_is_refused_by_name(tmp_path, other, named):
    a, b = checkpoint(tmp_path / "a", w=torch.zeros(2)), checkpoint(tmp_path / "b", **other)
    with pytest.raises(ModelError, match=named):
        merge([a, b], [0.5, 0.5], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("weights", [[0.5, 0.6], [1.5, -0.5], [1.0]])
def test_weights_must_be_convex(tmp_path, weights):
    folders = [checkpoint(tmp_path / name, w=torch.zeros(1)) for name in "ab"]
    with pytest.raises(BadInput, match="weights"):
        merge(folders, weights, tmp_path / "out")


def test_cut_off_file_is_one_clear_line(tmp_path):
    a, b = (checkpoint(tmp_path / name, w=torch.zeros(100)) for name in "ab")
    path = b / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ModelError, match="cannot read the checkpoint"):
        merge([a, b], [0.5, 0.5], tmp_path / "out")
