"""What a GPU's kernels are given, run here by those that a CPU has for it: the numbers are those of a CPU's own way.

The flash kernels themselves are not run: a stand-in of `varlen_attn` shows what it is asked for.
"""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from checkpoints import ARCHITECTURES, make
from lamp_env import screen, settings
from test_engine import Checkpoint, png
from torch.nn.attention.varlen import varlen_attn

from flywheel.agent.prompt import Image, Message
from flywheel.config import OptimizerSettings
from flywheel.policy import devices
from flywheel.policy.encoding import Encoder
from flywheel.policy.inference import engine as engines
from flywheel.policy.inference.cache import KVCache
from flywheel.policy.model import load_model
from flywheel.training.distributed import engine as training
from flywheel.training.modeling import monkey_patch, policy_forward
from flywheel.training.modeling.policy_forward import PolicyForward

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_a_cpu_takes_none_of_it(tmp_path):
    assert not devices.is_cuda(CPU)
    assert not devices.supports_flash_attention(CPU, torch.bfloat16)
    assert [
        devices.supports_flash_attention(GPU, dtype) for dtype in (torch.bfloat16, torch.float16, torch.float32)
    ] == [True, True, False]
    model = load_model(make(tmp_path / "m", "qwen2_5_vl"))
    PolicyForward(model)
    assert model.base_model.visual.config._attn_implementation == monkey_patch.PACKED_ATTENTION
    assert training.build_adamw(list(model.parameters()), OptimizerSettings()).defaults["fused"] is None
    training.open_engine(model, OptimizerSettings())
    assert not torch.backends.cuda.matmul.allow_tf32
    assert KVCache(1, 8, 1).at([0], 3, 3, CPU).shape == (1, 1, 3, 3)


def test_a_gpu_trains_by_its_tensor_cores(no_tensor_cores):
    devices.enable_tf32(CPU)
    assert not torch.backends.cuda.matmul.allow_tf32
    devices.enable_tf32(GPU)
    assert torch.backends.cuda.matmul.allow_tf32


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_windows_in_one_call_are_the_librarys_one_by_one(architecture, tmp_path):
    folder = make(tmp_path / architecture, architecture)
    model, together = load_model(folder), load_model(folder)
    devices.install_window_attention(together)
    assert together.config.get_text_config()._attn_implementation == "sdpa"
    config = model.config.vision_config
    grid = torch.tensor([[1, 10, 14], [1, 4, 6], [1, 10, 14]])  # windows of 4 x 4 patches, cut at right and bottom
    pixels = torch.randn(304, config.in_channels * config.temporal_patch_size * config.patch_size**2)
    found = []
    for one in (model, together):
        features = torch.cat(one.base_model.get_image_features(pixels, grid, return_dict=True).pooler_output)
        features.square().sum().backward()
        found.append((features, one.base_model.visual.blocks[0].attn.qkv.weight.grad))
    for ours, theirs in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_the_flash_kernel_is_asked_for_the_same_windows(monkeypatch):
    """By a stand-in of its signature, window by window."""

    def stand_in(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale):
        assert inspect.signature(varlen_attn).bind(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale=scale)
        lengths = cu_seq_q.diff()
        assert (cu_seq_q.dtype, max_q) == (torch.int32, int(lengths.max()))
        parts = zip(*(part.transpose(0, 1).split(lengths.tolist(), dim=1) for part in (query, key, value)), strict=True)
        mixed = [torch.nn.functional.scaled_dot_product_attention(*part, scale=scale) for part in parts]
        return torch.cat(mixed, dim=1).transpose(0, 1)

    rows = [torch.randn(1, 4, 40, 8) for _ in range(3)]
    asked = {"cu_seq_lens_q": torch.tensor([0, 16, 24, 40]), "max_length_q": 16, "scaling": 0.3}
    expected, _ = devices.window_attention(torch.nn.Identity(), *rows, None, **asked)
    monkeypatch.setattr(devices, "supports_flash_attention", lambda device, dtype: True)
    monkeypatch.setattr(devices, "varlen_attn", stand_in)
    found, _ = devices.window_attention(torch.nn.Identity(), *rows, None, **asked)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_mask_that_is_spared_changes_nothing(architecture, tmp_path, monkeypatch):
    checkpoint = Checkpoint(make(tmp_path / architecture, architecture))
    contexts = [(Message("user", (Image(png(n, 120, 90)), "Go" + " on" * n)),) for n in (1, 1, 5)]
    spared = []
    at = KVCache.at

    def noted(self, *arguments):
        mask = at(self, *arguments)
        spared.append(mask is None)
        return mask

    monkeypatch.setattr(KVCache, "at", noted)
    answers = []
    for flash in (False, True):
        monkeypatch.setattr(engines, "supports_flash_attention", lambda device, dtype, flash=flash: flash)
        spared.clear()
        found = []
        for some in ([contexts[0]], contexts):  # rows of one length, and of two
            engine = engines.InferenceEngine(checkpoint.model, checkpoint.encoder.end_id)
            engine._beside = None  # one pass over all newcomers, as on a GPU
            rows = [checkpoint.row(c, max_new_tokens=6, seed=4, ignore_end=True) for c in some]
            engine.admit(rows)
            while engine.rows:
                engine.step()
            found += [(row.token_ids, row.logprobs) for row in rows]
        answers.append(found)
        # A prompt alone and its five steps; then the pass over three prompts, whose steps are of two lengths.
        assert spared == ([flash] * 6 + [flash] + [False] * 5)
    for (tokens, logprobs), (others, theirs) in zip(*answers, strict=True):
        assert tokens == others
        assert logprobs == pytest.approx(theirs, abs=2e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_packs_by_the_fused_product_are_packs(architecture, tmp_path, monkeypatch):
    """Log-probabilities and gradient; some samples begin alike, some are padded in their group, one is alone."""
    folder = make(tmp_path / architecture, architecture)
    encoder = Encoder.from_folder(folder)
    texts = ("Open it.", "Open it.", "Open it now and then go on.", "Something else", "Open it.")
    pairs = [
        (encoder.encode((Message("user", (Image(screen("left", n // 2)), text)),)), encoder.encode_text("click " * n))
        for n, text in enumerate(texts, start=1)
    ]
    found, rl = [], settings().rl
    for gpu in (False, True):
        for module in (monkey_patch, policy_forward):
            monkeypatch.setattr(module, "is_cuda", lambda device, gpu=gpu: gpu)
        reader = PolicyForward(load_model(folder))
        items = [reader.encode_example(*pair) for pair in pairs]
        one_each = rl.model_copy(update={"pack_tokens": 1})
        parts = [*reader.split_into_micro_batches(items, rl), *reader.split_into_micro_batches(items, one_each)]
        assert {group.causal for part in parts for group in part.plan.groups} == {True, False}
        read = torch.cat([reader(part, 0.5)[2] for part in parts])
        read.sum().backward()
        tower = reader.policy.base_model.visual.config._attn_implementation
        assert tower == (devices.WINDOW_ATTENTION if gpu else monkey_patch.PACKED_ATTENTION)
        found.append((read.detach(), [p.grad for p in reader.parameters() if p.grad is not None]))
    (ours, gradient), (theirs, other) = found
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert len(gradient) == len(other) > 0
    for one, two in zip(gradient, other, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-3)


def test_padding_that_sees_nothing_leaves_the_gradient_a_number():
    paths = [np.arange(9), np.concatenate([np.arange(5), np.arange(9, 11)])]  # tails of 9 and 2 tokens in one group
    made = monkey_patch.plan_attention(paths, [0, 5], 11)
    (group,) = made.groups
    assert not group.causal
    rows = [torch.randn(1, heads, 11, 8, requires_grad=True) for heads in (4, 2, 2)]
    whole = monkey_patch._attend_groups(*rows, made, 0.3)
    results = []
    for product in (monkey_patch._attend_with_scores, monkey_patch._attend_fused):
        asked = torch.randn(2, 2, 2, 9, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
        seen = torch.randn(2, 2, 1, 9, 8, generator=torch.Generator().manual_seed(1), requires_grad=True)
        mixed = product(asked, seen, seen, group, 0.3)
        (mixed[0].sum() + mixed[1, :, :, :2].sum()).backward()  # the tails alone
        results.append((mixed[0], mixed[1, :, :, :2], asked.grad, seen.grad))
    assert whole.shape == (1, 11, 4, 8)
    for one, two in zip(*results, strict=True):
        assert bool(one.isfinite().all())
        torch.testing.assert_close(one, two)


def test_the_fused_optimiser_takes_the_same_steps(monkeypatch):
    weights = []
    for gpu in (False, True):
        monkeypatch.setattr(training, "is_cuda", lambda device, gpu=gpu: gpu)
        torch.manual_seed(0)
        layer = torch.nn.Linear(7, 5)
        optimizer = training.build_adamw(list(layer.parameters()), OptimizerSettings(weight_decay=0.1))
        training.set_learning_rate(optimizer, 1e-2)
        for _ in range(3):
            layer(torch.randn(4, 7)).square().sum().backward()
            optimizer.step()
        assert optimizer.defaults["fused"] is (True if gpu else None)
        weights.append(layer.weight.detach())
    torch.testing.assert_close(*weights, rtol=1e-6, atol=1e-7)
