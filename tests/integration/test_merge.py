from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from night import examples
from processes import PATIENCE_S
from safetensors.torch import load_file, save_file

from flywheel.training import model_merging
from flywheel.training.merge_methods import MergeMethod
from flywheel.training.model_merging import merge_checkpoints
from flywheel.utils.errors import BadInput, ModelError


def checkpoint(folder: Path, *shards: dict[str, torch.Tensor], config: dict | None = None, **tensors) -> Path:
    """A checkpoint of one file, or of the shards given."""
    folder.mkdir(parents=True)
    shards = shards or (tensors,)
    names = ["model.safetensors"] if len(shards) == 1 else [f"model-{n:05d}.safetensors" for n in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        save_file(shard, folder / name)
    if len(shards) > 1:
        where = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    (folder / "config.json").write_text(json.dumps({"_name_or_path": folder.name, "layers": 2} | (config or {})))
    return folder


def test_weighted_mean_is_exact(tmp_path):
    a = checkpoint(tmp_path / "a", w=torch.tensor([1.0, -2.0]), steps=torch.tensor([3]))
    b = checkpoint(tmp_path / "b", w=torch.tensor([3.0, 6.0]), steps=torch.tensor([3]))
    merge_checkpoints([a, b], [0.25, 0.75], tmp_path / "out")
    got = load_file(tmp_path / "out" / "model.safetensors")
    assert got["w"].tolist() == [2.5, 4.0]
    assert got["steps"].tolist() == [3]
    assert json.loads((tmp_path / "out" / "config.json").read_text())["_name_or_path"] == "a"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "out"]


@settings(max_examples=examples(20), deadline=None)
@given(weights=st.lists(st.integers(0, 8), min_size=1, max_size=4).filter(any), seed=st.integers(0, 10**6))
def test_equals_the_sum_in_float64(tmp_path_factory, weights, seed):
    folder = tmp_path_factory.mktemp("merge")
    shares = [weight / sum(weights) for weight in weights]
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(3, 2, generator=generator) for _ in shares]
    folders = [checkpoint(folder / str(i), w=tensor) for i, tensor in enumerate(tensors)]
    merge_checkpoints(folders, shares, folder / "out")
    expected = sum(share * tensor.double() for share, tensor in zip(shares, tensors, strict=True)).float()
    assert torch.equal(load_file(folder / "out" / "model.safetensors")["w"], expected)


def test_one_checkpoint_merges_to_itself(tmp_path):
    tensor = torch.randn(64)
    merge_checkpoints([checkpoint(tmp_path / "a", w=tensor)], [1.0], tmp_path / "out")
    assert torch.equal(load_file(tmp_path / "out" / "model.safetensors")["w"], tensor)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"w": torch.zeros(3)}, r"w has shapes \(2,\) and \(3,\)"),
        ({"v": torch.zeros(2)}, "only one of the checkpoints has v"),
        ({"w": torch.zeros(2), "extra": torch.zeros(1)}, "only one of the checkpoints has extra"),
        ({"w": torch.zeros(2).half()}, "w has types F32 and F16"),
        ({"w": torch.zeros(2), "config": {"layers": 3}}, "config.json differs from the first checkpoint's in layers"),
        ({"w": torch.zeros(2), "config": {"text": {"heads": 1}}}, "in text"),
        ({"w": torch.tensor([0.0, math.nan])}, "w is not finite"),
        ({"w": torch.tensor([0.0, -math.inf])}, "w is not finite"),
    ],
)
def test_other_architecture_is_refused_by_name(tmp_path, other, named):
    a, b = checkpoint(tmp_path / "a", w=torch.zeros(2)), checkpoint(tmp_path / "b", **other)
    with pytest.raises(ModelError, match=named):
        merge_checkpoints([a, b], [0.5, 0.5], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("weights", [[0.5, 0.6], [1.5, -0.5], [1.0], [math.nan, 1.0], [math.inf, -math.inf]])
def test_weights_must_be_convex(tmp_path, weights):
    folders = [checkpoint(tmp_path / name, w=torch.zeros(1)) for name in "ab"]
    with pytest.raises(BadInput, match="weights"):
        merge_checkpoints(folders, weights, tmp_path / "out")


def test_cut_off_file_is_one_clear_line(tmp_path):
    a, b = (checkpoint(tmp_path / name, w=torch.zeros(100)) for name in "ab")
    path = b / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ModelError, match="cannot read the checkpoint"):
        merge_checkpoints([a, b], [0.5, 0.5], tmp_path / "out")


def test_shards_are_merged_whatever_their_layout(tmp_path):
    """Two shards and one file hold the same tensors; the result has the first one's shards and index."""
    one = checkpoint(tmp_path / "a", {"w": torch.tensor([1.0])}, {"v": torch.tensor([2.0]), "u": torch.tensor([0.0])})
    other = checkpoint(tmp_path / "b", w=torch.tensor([3.0]), v=torch.tensor([4.0]), u=torch.tensor([1.0]))
    merge_checkpoints([one, other], [0.5, 0.5], tmp_path / "out")
    shards = [load_file(tmp_path / "out" / f"model-0000{n}.safetensors") for n in range(2)]
    assert [{name: tensor.tolist() for name, tensor in shard.items()} for shard in shards] == [
        {"w": [2.0]},
        {"v": [3.0], "u": [0.5]},
    ]
    assert (tmp_path / "out" / "model.safetensors.index.json").read_text() == (
        one / "model.safetensors.index.json"
    ).read_text()
    merge_checkpoints([other, one], [0.5, 0.5], tmp_path / "back")
    assert [path.name for path in sorted((tmp_path / "back").iterdir())] == ["config.json", "model.safetensors"]


def test_a_mean_that_the_type_cannot_hold_is_refused(tmp_path):
    """Each is finite as float32, and so is the mean; the weights' sum, a hair above 1, takes it beyond."""
    top = torch.tensor([torch.finfo(torch.float32).max])
    folders = [checkpoint(tmp_path / name, w=top) for name in "ab"]
    with pytest.raises(ModelError, match=r"the mean of w does not fit into torch\.float32"):
        merge_checkpoints(folders, [0.5, 0.5 + 9e-7], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["task_arithmetic", "ties", "dare_linear", "dare_ties"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_task_vectors_are_merged_chunk_by_chunk(tmp_path, monkeypatch, name, dtype):
    """The chunks' bounds change nothing but which numbers dare drops, and shards nothing at all."""
    density = 0.4 if name == "ties" else 1.0
    generator = torch.Generator().manual_seed(3)
    base, one, two = (
        {part: torch.randn(size, generator=generator).to(dtype) for part, size in (("v", (17,)), ("w", (5, 7)))}
        for _ in range(3)
    )
    folders = [checkpoint(tmp_path / "one", **one), checkpoint(tmp_path / "two", *({k: v} for k, v in two.items()))]
    method = MergeMethod(name, checkpoint(tmp_path / "base", **base), 0.5, density)
    shares = [0.75, 0.25]
    monkeypatch.setattr(model_merging, "_CHUNK", 4)
    merge_checkpoints(folders, shares, tmp_path / "out", method=method)
    merged = load_file(tmp_path / "out" / "model.safetensors")
    for part, start in base.items():
        deltas = [(model[part].double() - start.double()).flatten() for model in (one, two)]
        if name == "ties":
            for delta in deltas:
                least = delta.abs().sort(descending=True).values[int(0.4 * len(delta)) - 1]
                delta[delta.abs() < least] = 0
        mixed = torch.zeros(start.numel(), dtype=torch.float64)
        for place, pair in enumerate(zip(*deltas, strict=True)):
            total = sum(share * number for share, number in zip(shares, pair, strict=True))
            agree = [n for n, number in enumerate(pair) if number * (1 if total >= 0 else -1) > 0]
            if "ties" in name:
                weight = sum(shares[n] for n in agree)
                total = sum(shares[n] * pair[n] for n in agree) / weight if agree else 0.0
            mixed[place] = total
        expected = (start.double() + 0.5 * mixed.reshape(start.shape)).to(dtype)
        torch.testing.assert_close(merged[part], expected, rtol=1e-15 if dtype == torch.float64 else 0, atol=0)


def test_dare_drops_as_many_and_keeps_the_mean(tmp_path):
    base = checkpoint(tmp_path / "base", w=torch.zeros(40_000))
    one = checkpoint(tmp_path / "one", w=torch.ones(40_000))
    got = []
    for seed in (1, 1, 2):
        out = tmp_path / f"out-{len(got)}"
        merge_checkpoints([one], [1.0], out, method=MergeMethod("dare_linear", base, density=0.25, seed=seed))
        got.append(load_file(out / "model.safetensors")["w"])
    assert set(got[0].tolist()) == {0.0, 4.0}
    assert abs(got[0].mean().item() - 1) < 0.06  # seven standard errors
    assert torch.equal(got[0], got[1])
    assert not torch.equal(got[0], got[2])


def test_specialists_do_not_drop_the_same_numbers(tmp_path):
    base, one, two = (checkpoint(tmp_path / str(n), w=torch.full((4096,), float(n))) for n in range(3))
    method = MergeMethod("dare_linear", base, density=0.5)
    merge_checkpoints([one, two], [0.5, 0.5], tmp_path / "out", method=method)
    assert set(load_file(tmp_path / "out" / "model.safetensors")["w"].tolist()) == {0.0, 1.0, 2.0, 3.0}


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"w": torch.zeros(3)}, r"w has shapes \(2,\) and \(3,\)"),
        ({"v": torch.zeros(2)}, "only one of the checkpoints has v"),
        ({"w": torch.zeros(2), "config": {"layers": 3}}, "config.json differs"),
        ({"w": torch.tensor([0.0, math.nan])}, "w is not finite .*base"),
    ],
)
@pytest.mark.parametrize("name", ["task_arithmetic", "ties"])
def test_a_base_of_another_architecture_is_refused(tmp_path, other, named, name):
    one = checkpoint(tmp_path / "one", w=torch.ones(2))
    base = checkpoint(tmp_path / "base", **other)
    density = 0.5 if name == "ties" else 1.0
    with pytest.raises(ModelError, match=named):
        merge_checkpoints([one], [1.0], tmp_path / "out", method=MergeMethod(name, base, density=density))
    assert not (tmp_path / "out").exists()


def test_a_merge_that_the_type_cannot_hold_is_refused(tmp_path):
    one, base = (checkpoint(tmp_path / str(n), w=torch.tensor([n * 60_000.0]).half()) for n in (1, 0))
    with pytest.raises(ModelError, match=r"the merge of w does not fit into torch\.float16"):
        merge_checkpoints([one], [1.0], tmp_path / "out", method=MergeMethod("task_arithmetic", base, 2.0))


def test_a_missing_shard_is_named(tmp_path):
    folder = checkpoint(tmp_path / "a", {"w": torch.zeros(1)}, {"v": torch.zeros(1)})
    (folder / "model-00001.safetensors").unlink()
    with pytest.raises(ModelError, match=r"the shard model-00001\.safetensors is missing"):
        merge_checkpoints([folder], [1.0], tmp_path / "out")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["linear", "ties"])
def test_no_more_than_some_chunks_are_in_memory(tmp_path, name):
    """Three checkpoints of 8 shards of 8 MB: 192 MB are read, the process grows by less than 128."""
    for one in "abc":
        checkpoint(tmp_path / one, *({f"w{n}": torch.full((2_000_000,), float(n))} for n in range(8)))
    script = (  # VmHWM: a process's ru_maxrss begins with the largest size of the one that it was forked from
        "import sys; from pathlib import Path\n"
        "from flywheel.training.model_merging import merge_checkpoints\n"
        "from flywheel.training.merge_methods import MergeMethod\n"
        "peak = lambda: int(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])\n"
        "root, before = Path(sys.argv[1]), peak()\n"
        "method = MergeMethod('ties', root / 'a', density=0.5) if sys.argv[2] == 'ties' else MergeMethod()\n"
        "merge_checkpoints([root / n for n in 'abc'], [0.25, 0.25, 0.5], root / 'out', method=method)\n"
        "print(peak() - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), name],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert 8 * 1024 < int(done.stdout) < 128 * 1024
    if name == "linear":
        assert load_file(tmp_path / "out" / "model-00007.safetensors")["w7"][0] == 7
