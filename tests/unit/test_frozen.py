"""A model made ready to infer gives the library's numbers, and its checkpoint stays as it is."""

from __future__ import annotations

import pytest
import torch
from checkpoints import ARCHITECTURES, make
from torch import nn

from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.policy.inference.fused_layers import PackedLinear, StillPatchEmbedding, optimise_for_inference
from flywheel.policy.model import load_model


@pytest.mark.parametrize("gelu", ["", "none", "tanh"])
@pytest.mark.parametrize("rows", [(1,), (16,), (3, 257), (0,)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_layer_is_the_layer(gelu, rows, bias):
    torch.manual_seed(0)
    linear, x = nn.Linear(48, 80, bias=bias), torch.randn(*rows, 48)
    expected = linear(x) if not gelu else nn.functional.gelu(linear(x), approximate=gelu)
    torch.testing.assert_close(PackedLinear(linear, gelu)(x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_pictures_and_tokens_come_out_alike(architecture, tmp_path):
    folder = make(tmp_path / architecture, architecture)
    before, model, frozen = checkpoint_digest(folder), load_model(folder), load_model(folder)
    optimise_for_inference(frozen)
    kinds = [type(module) for module in frozen.modules()]
    assert nn.Linear not in [type(module) for module in frozen.base_model.visual.modules()]
    assert kinds.count(StillPatchEmbedding) == 1
    config = model.config.vision_config
    grid = torch.tensor([[1, 4, 6], [1, 2, 2]])
    still = torch.randn(28, config.in_channels, 1, config.patch_size**2).expand(-1, -1, config.temporal_patch_size, -1)
    ids = torch.arange(10, 60)[None]
    with torch.inference_mode():
        seen = [one.base_model.get_image_features(still.flatten(1), grid, return_dict=True) for one in (model, frozen)]
        logits = [one(input_ids=ids).logits for one in (model, frozen)]
    for ours, theirs in zip(seen[1].pooler_output, seen[0].pooler_output, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-5)
    assert checkpoint_digest(folder) == before


def test_weights_of_another_type_stay_the_librarys(tmp_path):
    model = load_model(make(tmp_path / "half", "qwen3_vl"), dtype="bfloat16")
    optimise_for_inference(model)
    assert not any(isinstance(module, PackedLinear) for module in model.modules())
