"""What training's forward pass does otherwise than the library: the library's numbers and gradients all the same."""

from __future__ import annotations

import copy

import pytest
import torch
from checkpoints import ARCHITECTURES, config, make
from lamp_env import screen, settings
from transformers import AutoModelForImageTextToText
from transformers.models.qwen3_vl import Qwen3VLConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRMSNorm

from flywheel.agent.prompt import Image, Message
from flywheel.policy.encoding import Encoder
from flywheel.policy.model import load_model, make_tiny_model
from flywheel.training.modeling.monkey_patch import (
    _MASKED_SCORE,
    RmsNorm,
    _SoftmaxAttention,
    last_layer_skips_prompt,
    patch_rms_norms,
)
from flywheel.training.modeling.policy_forward import PolicyForward, compute_padded_hidden, pad_samples


def pairs(encoder: Encoder) -> list[tuple]:
    """Two that begin alike, the same sample twice, and one without a screen."""
    texts = ("Open it.", "Open it now.", "Open it.")
    shown = [(encoder.encode((Message("user", (Image(screen("left")), text)),)), text) for text in texts]
    shown.append((encoder.encode((Message("user", ("No screen at all",)),)), "click"))
    return [(context, encoder.encode_text("click " + text)) for context, text in shown]


def compared(reader: PolicyForward, plain: torch.nn.Module, encoder: Encoder) -> None:
    """Hidden states and gradients of a pack, and those of the library's model, a sample at a time."""
    items = [reader.encode_example(*pair) for pair in pairs(encoder)]
    (part,) = reader.split_into_micro_batches(items, settings().rl)
    hidden = reader(part, 1.0)[0]
    wanted = torch.cat([_library(plain, items[member]) for member in part.members])
    torch.testing.assert_close(hidden, wanted, rtol=1e-4, atol=1e-4)
    for states in (hidden, wanted):
        states.mul(torch.linspace(-1, 1, states.numel()).view_as(states)).sum().backward()
    for (name, one), two in zip(reader.policy.named_parameters(), plain.parameters(), strict=True):
        assert (one.grad is None) == (two.grad is None), name
        if one.grad is not None:
            torch.testing.assert_close(one.grad, two.grad, rtol=1e-3, atol=1e-3 * float(two.grad.abs().max()))


def _library(plain: torch.nn.Module, item) -> torch.Tensor:
    batch = pad_samples([item.context], [item.response])
    return compute_padded_hidden(plain.base_model, batch)[batch.mask]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_pack_is_the_library_s_model(architecture, tmp_path):
    folder = make(tmp_path / architecture, architecture)
    reader = PolicyForward(load_model(folder))
    assert last_layer_skips_prompt(reader.policy.base_model)
    compared(reader, load_model(folder), Encoder.from_folder(folder))


def test_a_last_layer_that_deepstack_reaches_keeps_all_tokens(tmp_path):
    encoder = Encoder.from_folder(make(tmp_path / "model", "qwen3_vl"))
    described = config("qwen3_vl")
    described["text_config"]["num_hidden_layers"] = 1
    torch.manual_seed(0)
    plain = AutoModelForImageTextToText.from_config(Qwen3VLConfig.from_dict(described))
    reader = PolicyForward(copy.deepcopy(plain))
    assert not last_layer_skips_prompt(reader.policy.base_model)
    compared(reader, plain, encoder)


def test_the_last_layer_computes_what_predicts(tmp_path):
    folder = make(tmp_path / "model", "qwen3_vl")
    reader, seen = PolicyForward(load_model(folder)), []
    for layer in reader.policy.base_model.language_model.layers:
        layer.mlp.register_forward_hook(lambda module, given, made: seen.append(made.shape[1]))
    (part,) = reader.split_into_micro_batches(
        [reader.encode_example(*pair) for pair in pairs(Encoder.from_folder(folder))], settings().rl
    )
    reader(part, 1.0)
    assert seen == [part.tokens, len(part.targets)]


@pytest.mark.parametrize("shape", [(1, 40, 48), (1, 40, 3, 16)])
def test_rms_norm_is_the_library_s(shape):
    norm, found = Qwen3VLTextRMSNorm(shape[-1]), []
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(shape)
    x[0, 0] = 0.0
    for call in (norm, lambda given: RmsNorm.apply(given, norm.weight, norm.variance_epsilon)):
        given = x.clone().requires_grad_()
        out = call(given)
        found.append((out.detach(), *torch.autograd.grad(out.sin().sum(), (given, norm.weight))))
    for wanted, one in zip(*found, strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-4, atol=1e-5)


def test_norms_of_other_types_stay_the_library_s_and_copies_have_their_own_weights():
    model = make_tiny_model(3)
    patch_rms_norms(model)
    norm = model.model.language_model.norm
    x = torch.randn(1, 7, norm.weight.shape[0])
    other = copy.deepcopy(model)
    torch.nn.init.zeros_(other.model.language_model.norm.weight)
    assert norm(x).std() > 0.1
    assert other.model.language_model.norm(x).abs().max() == 0
    half = norm.to(torch.bfloat16)
    assert torch.equal(half(x.bfloat16()), type(half).forward(half, x.bfloat16()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [True, False])
def test_attention_s_gradient_is_that_of_its_operations(dtype, masked):
    """Several queries' heads a key head; a padded row sees nothing, and nothing reads what becomes of it."""
    rows = [torch.randn(2, 3, heads, 5, 8, dtype=dtype, requires_grad=True) for heads in (2, 1, 1)]
    mask = torch.ones(5, 5, dtype=torch.bool).tril().expand(2, 1, 1, 5, 5).clone()
    mask[1, :, :, 3:] = False
    bias = torch.zeros(mask.shape).masked_fill(~mask, _MASKED_SCORE) if masked else None
    query, key, value = rows
    scores = torch.matmul(query * 0.3, key.transpose(-1, -2)).float()
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min) if masked else scores
    wanted = torch.matmul(scores.softmax(-1).to(dtype), value)
    found = _SoftmaxAttention.apply(*rows, bias, 0.3)
    torch.testing.assert_close(found, wanted)
    real = mask.any(-1, keepdim=True) if masked else torch.ones(1)
    ours, theirs = (torch.autograd.grad((out.float().sin() * real).sum(), rows) for out in (found, wanted))
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two, **({"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {}))
