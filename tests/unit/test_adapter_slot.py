"""The place for an adapter in a loaded model: another one is put in without a trace of the one before."""

from __future__ import annotations

import shutil

import pytest
import torch
from checkpoints import ARCHITECTURES, make
from night import by_day
from policy_servers import make_adapter
from safetensors.torch import load_file, save_file

from flywheel.config import PolicySettings
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.policy.inference import adapter_slot
from flywheel.policy.inference.compiled_pass import CompiledPass
from flywheel.policy.inference.embedded import LoadedCheckpoint
from flywheel.utils.errors import ModelError

EVERYWHERE = ["language_model", "merger", "vision_tower"]


def weights_of(loaded: LoadedCheckpoint) -> dict[str, torch.Tensor]:
    """All that it computes with, dense; of joined matrices too."""
    state = {
        name: part.to_dense() if part.layout == torch._mkldnn else part.clone()
        for name, module in loaded.model.named_modules()
        for name, part in [(f"{name}.{key}", value) for key, value in vars(module).get("_parameters", {}).items()]
        + [(f"{name}.weight", vars(module).get("weight"))]
        if part is not None
    }
    joined = (
        {f"qkv {n}": layer.qkv.clone() for n, layer in enumerate(loaded.text_pass.layers)} if loaded.text_pass else {}
    )
    return state | joined


def same(one: LoadedCheckpoint, other: LoadedCheckpoint) -> bool:
    a, b = weights_of(one), weights_of(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("architecture", by_day(ARCHITECTURES[::-1]))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_take_each_others_place_bit_for_bit(tmp_path, monkeypatch, architecture, dtype):
    base, settings = make(tmp_path / "base", architecture), PolicySettings(dtype=dtype)
    folders = [
        make_adapter(base, tmp_path / "a", 1),
        make_adapter(base, tmp_path / "b", 2, targets=EVERYWHERE, rslora=True),
        make_adapter(base, tmp_path / "c", 3, targets=["merger"], dora=True),
    ]
    loaded = LoadedCheckpoint.open(folders[0], settings)
    for folder in (folders[1], folders[2], base, folders[0]):
        fresh = LoadedCheckpoint.open(folder, settings)
        with monkeypatch.context() as patched:
            patched.setattr("flywheel.policy.inference.embedded.load_model", None)  # nothing is loaded
            loaded = LoadedCheckpoint.open(folder, settings, before=loaded)
        assert same(loaded, fresh)
        assert loaded.version == checkpoint_digest(folder)


def test_what_cannot_be_put_in_leaves_the_one_before(tmp_path, monkeypatch):
    base, settings = make(tmp_path / "base", "qwen3_vl"), PolicySettings()
    first, second = (make_adapter(base, tmp_path / name, seed) for seed, name in enumerate("ab"))
    loaded = LoadedCheckpoint.open(first, settings)
    fresh = LoadedCheckpoint.open(first, settings)
    broken = shutil.copytree(second, tmp_path / "broken")
    tensors = load_file(broken / "adapter_model.safetensors")
    next(iter(tensors.values()))[0, 0] = float("nan")
    save_file(tensors, broken / "adapter_model.safetensors")
    with pytest.raises(ModelError, match="not finite"):
        LoadedCheckpoint.open(broken, settings, before=loaded)
    assert same(loaded, fresh)
    merged, done = adapter_slot.LayerUpdate.merged, []

    def out_of_memory(update, weight, out):
        done.append(update)
        if len(done) == 3:
            raise MemoryError
        return merged(update, weight, out)

    monkeypatch.setattr(adapter_slot.LayerUpdate, "merged", out_of_memory)
    with pytest.raises(MemoryError):
        LoadedCheckpoint.open(second, settings, before=loaded)
    assert same(loaded, fresh)


def test_without_room_the_base_is_loaded_anew(tmp_path, monkeypatch):
    base, settings = make(tmp_path / "base", "qwen3_vl"), PolicySettings()
    first, second = (make_adapter(base, tmp_path / name, seed) for seed, name in enumerate("ab"))
    monkeypatch.setattr(adapter_slot, "_free_bytes", lambda device: 0)
    loaded = LoadedCheckpoint.open(first, settings)
    assert not loaded.adapter.exchangeable
    monkeypatch.undo()
    assert same(LoadedCheckpoint.open(second, settings, before=loaded), LoadedCheckpoint.open(second, settings))


@pytest.mark.parametrize("before", ["an adapter of fewer layers", "the base"])
def test_without_room_for_further_layers_the_base_is_loaded_anew(tmp_path, monkeypatch, before):
    base, settings = make(tmp_path / "base", "qwen3_vl"), PolicySettings()
    first = base if before == "the base" else make_adapter(base, tmp_path / "a", 1, targets=["merger"])
    second = make_adapter(base, tmp_path / "b", 2, targets=EVERYWHERE)
    loaded = LoadedCheckpoint.open(first, settings)
    monkeypatch.setattr(adapter_slot, "_free_bytes", lambda device: 0)
    assert not loaded.adapter.put(second)
    assert same(loaded, LoadedCheckpoint.open(first, settings))
    assert same(LoadedCheckpoint.open(second, settings, before=loaded), LoadedCheckpoint.open(second, settings))
    assert loaded.adapter.exchangeable


def test_a_new_engine_has_the_weights_that_were_put_in(tmp_path):
    """Compiled code has a copy of them, which the engine takes when it is made."""
    base, settings = make(tmp_path / "base", "qwen3_vl"), PolicySettings()
    folders = [base, make_adapter(base, tmp_path / "a", 1, targets=EVERYWHERE)]
    ids = [torch.arange(20, 40)]

    def answer(loaded: LoadedCheckpoint) -> torch.Tensor:
        engine = loaded.engine(settings)
        assert isinstance(engine._pass, CompiledPass)
        hidden = engine._pass.prefill(ids, [torch.arange(20).expand(3, -1)], [0], engine._key_values(1, 20), ())
        return engine._pass.logits(hidden)

    fresh = [answer(LoadedCheckpoint.open(folder, settings)) for folder in folders]
    loaded = LoadedCheckpoint.open(folders[0], settings)
    before = answer(loaded)
    assert loaded.adapter.put(folders[1])
    assert torch.equal(before, fresh[0])
    assert torch.equal(answer(loaded), fresh[1])
    assert not torch.equal(*fresh)
