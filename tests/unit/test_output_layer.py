"""The output layer in bfloat16: the logits of the layer in float32, and None where it would not be them."""

from __future__ import annotations

import pytest
import torch
from checkpoints import make

from flywheel.policy.inference import fused_layers, output_layer
from flywheel.policy.inference.cpu_kernels import BLOCK
from flywheel.policy.inference.cpu_kernels_bfloat16 import pack_blocks
from flywheel.policy.inference.fused_layers import optimise_for_inference
from flywheel.policy.inference.output_layer import MOST_ROWS, BfloatOutputLayer
from flywheel.policy.model import load_model


@pytest.mark.parametrize(("outputs", "inputs"), [(BLOCK, 1), (3 * BLOCK + 5, 96), (1000, 257)])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_logits_are_those_of_float32(outputs, inputs, threads):
    drawn = torch.Generator().manual_seed(outputs)
    weight = torch.randn(outputs, inputs, generator=drawn).bfloat16().float()
    layer = BfloatOutputLayer(pack_blocks(weight.numpy()), outputs, threads)
    for rows in range(1, MOST_ROWS + 1):
        hidden = torch.randn(2 * rows, inputs, generator=drawn)[::2]  # not contiguous
        exact, size = hidden.double() @ weight.double().T, hidden.double().abs() @ weight.double().abs().T
        assert ((layer(hidden) - exact).abs() <= 2**-23 * inputs**0.5 * size).all()  # rounding of float32 sums
        assert torch.equal(layer(hidden)[:1], layer(hidden[:1]))  # a row's numbers do not depend on the others


def test_numbers_that_bfloat16_does_not_hold_are_left_in_float32():
    weight = torch.ones(2 * BLOCK, 8)
    assert pack_blocks(weight.numpy()) is not None
    weight[-1, -1] = 1 + 2**-9
    assert pack_blocks(weight.numpy()) is None
    weight[-1, -1] = float("nan")
    packed = pack_blocks(weight.numpy())
    assert packed is None or BfloatOutputLayer(packed, 2 * BLOCK, 1)(torch.ones(1, 8))[0, -1].isnan()


def test_a_large_model_takes_it_where_its_checkpoint_is_in_bfloat16(tmp_path, monkeypatch):
    folder = make(tmp_path / "m", "qwen2_5_vl")
    assert optimise_for_inference(load_model(folder)).output is None  # a small one has compiled code for all layers
    monkeypatch.setattr(output_layer, "is_small_model", lambda model: False)
    model = load_model(folder)
    head = model.get_output_embeddings()
    head.weight.data.copy_(head.weight.bfloat16())
    expected = head.weight.detach().double()
    text = optimise_for_inference(model)
    pass_ = fused_layers.PaddedPass(text, model, torch.device("cpu"), text.output)
    hidden = torch.randn(MOST_ROWS + 1, expected.shape[1], generator=torch.Generator().manual_seed(0))
    for rows in (1, MOST_ROWS, MOST_ROWS + 1):  # the last one by the layer itself
        exact = hidden[:rows].double() @ expected.T
        torch.testing.assert_close(pass_.logits(hidden[:rows]).double(), exact, rtol=0, atol=1e-5)
    spoilt = load_model(folder)
    spoilt.get_output_embeddings().weight.data[0, 0] = 0.1
    assert optimise_for_inference(spoilt).output is None
