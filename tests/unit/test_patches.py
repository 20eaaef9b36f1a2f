"""The quick patch projection: the library's numbers and gradients, and copies that have their own weights."""

from __future__ import annotations

import copy

import torch

from flywheel.policy.model import make_tiny_model
from flywheel.training.modeling.monkey_patch import patch_patch_embedding


def test_it_is_the_convolution_for_still_pictures():
    plain, quick = make_tiny_model(3), make_tiny_model(3)
    patch_patch_embedding(quick)
    still = torch.randn(40, 3, 1, 16, 16).expand(-1, -1, 2, -1, -1).reshape(40, -1)
    outputs = []
    for model in (plain, quick):
        embed = model.model.visual.patch_embed
        out = embed(still)
        out.square().sum().backward()
        outputs.append((out.detach(), embed.proj.weight.grad, embed.proj.bias.grad))
    for wanted, found in zip(*outputs, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert plain.state_dict().keys() == quick.state_dict().keys()


def test_a_copy_projects_by_its_own_weights():
    model = make_tiny_model(3)
    patch_patch_embedding(model)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.model.visual.patch_embed.proj.weight.zero_()
    patches = torch.randn(4, 3 * 2 * 16 * 16)
    assert model.model.visual.patch_embed(patches).std() > 0.1
    assert other.model.visual.patch_embed(patches).abs().max() == other.model.visual.patch_embed.proj.bias.abs().max()
