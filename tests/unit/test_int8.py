"""8-bit integers: exact products, each row alone, answers near those of floats, wrong kernels refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from checkpoints import ARCHITECTURES, make
from hypothesis import given
from hypothesis import strategies as st
from test_engine import Checkpoint, finish, rows_of

from flywheel.config import PolicySettings, Settings
from flywheel.policy.inference import compiled_pass, int8_layers
from flywheel.policy.inference.compiled_pass import CompiledPass
from flywheel.policy.inference.cpu_kernels import BLOCK, FEATURES
from flywheel.policy.inference.embedded import LoadedCheckpoint
from flywheel.policy.inference.engine import InferenceEngine
from flywheel.policy.inference.fused_layers import PaddedPass
from flywheel.policy.inference.int8_layers import (
    Int8Linear,
    Int8Matrix,
    Int8TextPass,
    quantize_for_inference,
    require_int8_kernel,
)
from flywheel.policy.model import load_model
from flywheel.utils.errors import ModelError

W8A8 = PolicySettings(quantization="w8a8", device="cpu")
EXACT = bool(FEATURES.get("avx512vnni"))
needs_vnni = pytest.mark.skipif(not EXACT, reason="a processor without AVX-512 VNNI: 8-bit integers are refused there")


@needs_vnni
@given(st.integers(1, 5), st.integers(1, 40), st.integers(1, 20), st.integers(0, 10**6))
def test_a_product_is_that_of_the_rounded_numbers(rows, inputs, outputs, seed):
    drawn = torch.Generator().manual_seed(seed)
    x, w = torch.randn(rows, inputs, generator=drawn), torch.randn(outputs, inputs, generator=drawn)
    bias = torch.randn(outputs, generator=drawn)

    def rounded(rows_of):
        size = rows_of.abs().amax(1, keepdim=True).double()
        return (rows_of.double() / size * 127).round() * size / 127

    expected = rounded(x) @ rounded(w).T + bias.double()
    # A number that lies half-way between two steps may go either way: a step of one weight at most.
    slack = 1e-5 + x.abs().amax() * w.abs().amax() / 127 * 1.01
    found = Int8Matrix(w, bias)(x).double()
    assert (found - expected).abs().max() <= slack
    assert ((found - expected).abs() > 1e-4).float().mean() < 0.2


def test_a_row_is_the_same_to_the_last_bit_whatever_its_neighbours():
    torch.manual_seed(0)
    matrix, x = Int8Matrix(torch.randn(48, 96), torch.randn(48)), torch.randn(9, 96) * torch.logspace(-3, 3, 9)[:, None]
    together = matrix(x)
    for row in range(9):
        assert torch.equal(matrix(x[row : row + 1])[0], together[row])
    assert torch.equal(matrix(torch.zeros(1, 96)), matrix._bias[None])


@pytest.fixture(scope="module", params=ARCHITECTURES)
def folder(request, tmp_path_factory):
    return make(tmp_path_factory.mktemp("int8") / request.param, request.param)


class Quantized(Checkpoint):
    def __init__(self, folder) -> None:
        super().__init__(folder, frozen=False)
        self.text_pass = quantize_for_inference(self.model)


@needs_vnni
def test_log_probabilities_are_near_those_of_floats(folder):
    exact, whole = Checkpoint(folder), Quantized(folder)
    assert isinstance(whole.text_pass, Int8TextPass)
    assert any(isinstance(module, Int8Linear) for module in whole.model.base_model.visual.modules())
    theirs, mine = rows_of(exact, 8), rows_of(whole, 8)
    for checkpoint, rows in ((exact, theirs), (whole, mine)):
        engine = checkpoint.engine()
        finish(engine, engine.admit(rows))
    differences = [
        abs(a.logprobs[0] - b.logprobs[0])
        for a, b in zip(mine, theirs, strict=True)
        if a.token_ids[0] == b.token_ids[0]
    ]
    assert differences  # of the first token, whose prompt is the same
    assert 0 < max(differences) < 0.5  # not the same arithmetic, and near it


@needs_vnni
def test_an_adapter_is_merged_before_the_weights_are_rounded(folder, tmp_path, monkeypatch):
    loaded = LoadedCheckpoint.open(folder, W8A8)
    again = LoadedCheckpoint.open(folder, W8A8, before=loaded)
    assert again.model is not loaded.model  # rounded weights take no adapter: it is loaded anew
    assert isinstance(again.engine(W8A8), InferenceEngine)


@pytest.mark.skipif(EXACT, reason="a processor with AVX-512 VNNI has the kernel")
def test_a_processor_without_the_kernel_is_refused():
    with pytest.raises(ModelError, match=r"8-bit integers.*policy\.quantization.*set it to none"):
        require_int8_kernel()


@needs_vnni
def test_a_kernel_that_saturates_or_computes_in_floats_is_refused(monkeypatch):
    require_int8_kernel()

    class Floats:
        def __init__(self, weight, bias=None):
            self.weight = weight

        def __call__(self, x):
            return x @ self.weight.T

    class Saturates(Floats):
        def __call__(self, x):
            pairs = ((x[:, None] + 128) * self.weight).unflatten(-1, (-1, 2)).sum(-1)
            return pairs.clamp(-(2**15), 2**15 - 1).sum(-1) - 128 * self.weight.sum(-1)

    class Missing(Floats):
        def __init__(self, weight, bias=None):
            torch.ops.onednn.none_such(weight)

    for kernel, what in ((Floats, "in floats"), (Saturates, "not exact"), (Missing, "no product of 8-bit integers")):
        monkeypatch.setattr(int8_layers, "Int8Matrix", kernel)
        with pytest.raises(ModelError, match=what):
            require_int8_kernel.__wrapped__()
    monkeypatch.undo()
    monkeypatch.setattr(int8_layers, "_SLOWEST", 0.0)
    with pytest.raises(ModelError, match="slower than floats"):
        require_int8_kernel.__wrapped__()


def test_what_cannot_be_rounded_is_refused(folder):
    with pytest.raises(ModelError, match="not finite"):
        Int8Matrix(torch.tensor([[float("nan")]]))
    with pytest.raises(ModelError, match="w8a8 is for float32 on a CPU"):
        quantize_for_inference(load_model(folder, dtype="bfloat16"))


@pytest.mark.parametrize(
    ("policy", "rl", "what"),
    [({"backend": "openai", "endpoint": "http://h/v1", "model": "m"}, 0, "option of its own"), ({}, 4, "RL trains by")],
)
def test_settings_that_cannot_go_with_it_are_refused(policy, rl, what):
    with pytest.raises(ValueError, match=what):
        Settings.model_validate({"policy": {"quantization": "w8a8", **policy}, "rl": {"steps": rl}})
    assert Settings.model_validate({"policy": {"quantization": "w8a8"}, "rl": {"steps": 0}})


@needs_vnni
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 5, 3), (3, 64, 64), (6, 130, 200), (17, 192, 70)])
def test_the_compiled_product_is_that_of_the_library(rows, inputs, outputs):
    kernels = pytest.importorskip("flywheel.policy.inference.cpu_kernels_int8")
    torch.manual_seed(rows)
    x, matrix = torch.randn(rows, inputs), Int8Matrix(torch.randn(outputs, inputs))
    packed = [one[None] for one in kernels.pack_blocks(*matrix.to_numpy())]
    found = np.empty((rows, packed[0].shape[1] * BLOCK), np.float32)
    kernels._int8_product(x.numpy(), packed[0][0], packed[1][0], packed[2][0], found)
    expected = matrix(x).numpy()
    # Halves may be rounded to either side: a step of one input.
    slack = (x.abs().amax(1, keepdim=True) / 127 * matrix.to_numpy()[1].max() * 127).numpy()
    assert (np.abs(found[:, :outputs] - expected) <= slack + 1e-4).all()
    assert np.mean(np.abs(found[:, :outputs] - expected) > 1e-3) < 0.05


@needs_vnni
def test_compiled_answers_are_those_of_the_librarys_products(folder, monkeypatch):
    pytest.importorskip("flywheel.policy.inference.cpu_kernels_int8")
    checkpoint = Quantized(folder)
    compiled, library = rows_of(checkpoint, 8), rows_of(checkpoint, 8)
    engine = checkpoint.engine()
    assert isinstance(engine._pass, CompiledPass)
    finish(engine, engine.admit(compiled))
    monkeypatch.setattr(compiled_pass, "open_kernels", lambda: None)
    other = checkpoint.engine()
    assert isinstance(other._pass, PaddedPass)
    finish(other, other.admit(library))
    near = [
        abs(a.logprobs[0] - b.logprobs[0]) < 0.25  # halves may be rounded to either side
        for a, b in zip(compiled, library, strict=True)
        if a.token_ids[0] == b.token_ids[0]
    ]
    assert len(near) >= 6
    assert all(near)
