"""A GPU gives the numbers of a CPU: answers, log-probabilities, gradients and training steps, by its own kernels.

The CPU computes in float32 what the GPU is held against; trainers multiply by tensor cores there, to three digits.
Skipped where torch finds no GPU.
"""

from __future__ import annotations

import asyncio

import pytest
import torch
from checkpoints import ARCHITECTURES, make
from lamp_env import LEFT, RIGHT, screen, settings, small_model
from made_experience import made_up
from test_engine import asked

from flywheel.agent.prompt import build_context
from flywheel.config import PolicySettings, RlSettings, SftSettings
from flywheel.policy import devices
from flywheel.policy.encoding import Encoder
from flywheel.policy.inference import engine as engines
from flywheel.policy.inference.cache import make_prompt
from flywheel.policy.inference.embedded import EmbeddedPolicy, LoadedCheckpoint
from flywheel.policy.model import load_model
from flywheel.policy.protocol import SamplingParams
from flywheel.training.data import Example, ShuffledDataset
from flywheel.training.modeling.policy_forward import PolicyForward
from flywheel.training.rl.trainer import Learner, estimate_step_samples, train_step
from flywheel.training.sft import train_supervised

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: torch finds no CUDA device"),
    pytest.mark.usefixtures("no_tensor_cores"),
]
DEVICES = ("cpu", "cuda")
CONTEXTS = [asked(number) for number in range(6)]
S = settings()


def policy_settings(device: str, **more) -> PolicySettings:
    return PolicySettings(**{"device": device, "max_num_seqs": 6, "guided_decoding": "never", "timeout_s": 120} | more)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def folder(request, tmp_path_factory):
    return make(tmp_path_factory.mktemp("gpu") / request.param, request.param)


@pytest.fixture(scope="module")
def small(tmp_path_factory, project):
    return small_model(tmp_path_factory.mktemp("small") / "model", project)


async def answers(folder, block: PolicySettings, samplings):
    policy = EmbeddedPolicy(folder, block)
    try:
        return await asyncio.gather(*map(policy.complete, CONTEXTS, samplings))
    finally:
        await policy.close()


# -- answering --------------------------------------------------------------------------------------------------------
async def test_the_same_tokens_are_sampled_in_float32(folder):
    samplings = [SamplingParams(seed=n, max_new_tokens=8, ignore_end=True) for n in range(len(CONTEXTS))]
    expected, found = [await answers(folder, policy_settings(device), samplings) for device in DEVICES]
    for one, two in zip(expected, found, strict=True):
        assert one.token_ids == two.token_ids
        assert two.logprobs == pytest.approx(one.logprobs, abs=2e-3)


async def test_in_bfloat16_log_probabilities_are_near(folder):
    """Of the first token, since a later one depends on those before it. bfloat16 has 8 bits."""
    likeliest = [SamplingParams(temperature=0, max_new_tokens=1, ignore_end=True)] * len(CONTEXTS)
    expected = await answers(folder, policy_settings("cpu"), likeliest)
    found = await answers(folder, policy_settings("cuda", dtype="bfloat16"), likeliest)
    for one, two in zip(expected, found, strict=True):
        assert two.logprobs == pytest.approx(one.logprobs, abs=0.1)


def test_the_flash_kernel_without_a_mask_is_the_mask(folder, monkeypatch):
    """In bfloat16, prompts of one length and steps after them."""
    settings = policy_settings("cuda", dtype="bfloat16", cache_mb=0)
    found = []
    for flash in (False, True):
        monkeypatch.setattr(engines, "supports_flash_attention", lambda device, dtype, flash=flash: flash)
        loaded = LoadedCheckpoint.open(folder, settings)
        engine = loaded.engine(settings)
        encoded = loaded.encoder.encode(CONTEXTS[1])
        keys = [part.png for message in CONTEXTS[1] for part in message.parts if not isinstance(part, str)]
        prompt = make_prompt(loaded.model, encoded, loaded.encoder.end_id, keys)
        rows = [
            engines.BatchRow(prompt, SamplingParams(temperature=0, max_new_tokens=4, ignore_end=True)) for _ in range(2)
        ]
        engine.admit(rows)
        while engine.rows:
            engine.step()
        found.append([row.logprobs[0] for row in rows])
    assert found[1] == pytest.approx(found[0], abs=0.05)


async def test_weights_are_swapped_there(folder, tmp_path):
    other = make(tmp_path / "other", folder.name, seed=1)
    policy = EmbeddedPolicy(folder, policy_settings("cuda"))
    one = SamplingParams(seed=3, max_new_tokens=6, ignore_end=True)
    before = await policy.complete(CONTEXTS[1], one)
    await policy.load(other)
    after = await policy.complete(CONTEXTS[1], one)
    await policy.close()
    expected = (await answers(other, policy_settings("cpu"), [one] * len(CONTEXTS)))[1]
    assert before.weight_version != after.weight_version
    assert after.token_ids == expected.token_ids != before.token_ids
    assert after.logprobs == pytest.approx(expected.logprobs, abs=2e-3)


@pytest.mark.parametrize("width", [32, 80, 128])
def test_windows_of_a_screen(width):
    """By `varlen_attn`, for windows of several lengths; 80 is the width of a head in the towers of Qwen2.5-VL."""
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(1, 4, 200, width, generator=generator) for _ in range(3)]
    ends = torch.tensor([0, 64, 128, 144, 192, 200])
    asked = {"cu_seq_lens_q": ends, "max_length_q": 64, "scaling": width**-0.5}
    expected, _ = devices.window_attention(torch.nn.Identity(), *rows, None, **asked)
    there = [row.cuda().to(torch.bfloat16) for row in rows]
    found, _ = devices.window_attention(torch.nn.Identity(), *there, None, **asked | {"cu_seq_lens_q": ends.cuda()})
    torch.testing.assert_close(found.float().cpu(), expected, rtol=2e-2, atol=2e-2)


# -- training ---------------------------------------------------------------------------------------------------------
def test_packs_and_their_gradients(folder):
    """Some samples begin alike, some are padded in their group, one is alone."""
    encoder, rl = Encoder.from_folder(folder), S.rl
    texts = ("Open it.", "Open it.", "Open it now and then go on.", "Something else", "Open it.")
    pairs = [
        (encoder.encode(build_context(text, (), screen("left", n // 2), S.policy)), encoder.encode_text("click " * n))
        for n, text in enumerate(texts, start=1)
    ]
    found = []
    for device in DEVICES:
        reader = PolicyForward(load_model(folder, device=device))
        parts = reader.split_into_micro_batches([reader.encode_example(*pair) for pair in pairs], rl)
        read = torch.cat([reader(part, 0.5)[2] for part in parts])
        read.sum().backward()
        gradient = {name: p.grad.cpu() for name, p in reader.policy.named_parameters() if p.grad is not None}
        found.append((read.detach().cpu(), gradient))
    (expected, theirs), (ours, gradient) = found
    torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-3)
    assert theirs.keys() == gradient.keys()
    for name, one in theirs.items():
        assert float((gradient[name] - one).norm()) <= 1e-2 * float(one.norm()) + 1e-4, name


def test_supervised_training_comes_to_the_same_losses(small, tmp_path):
    encoder, samples = Encoder.from_folder(small), []
    for i in range(24):
        side, text = (("left", LEFT), ("right", RIGHT))[i % 2]
        context = encoder.encode(build_context("Click the lamp.", (), screen(side, i // 8), S.policy))
        samples.append(Example(context, tuple(encoder.encode_text(text)), None, f"t{i:02d}", 0, "games"))
    losses = []
    for device in DEVICES:
        block = SftSettings(lr=3e-3, batch=4, device=device, freeze_vision=False)
        state = tmp_path / device / "state"
        dataset = ShuffledDataset(samples, block.batch, seed=5)
        losses.append(train_supervised(small, tmp_path / device / "out", dataset, settings=block, state_folder=state))
    assert losses[0][-1] < losses[0][0]
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_a_step_of_rl_comes_to_the_same(algorithm, small):
    rl = RlSettings(algorithm=algorithm, minibatch=64, actor_lr=1e-3, critic_lr=1e-3, positive_nll=0.1)
    batch, found = made_up(small, rl), []
    for device in DEVICES:
        chosen = rl.model_copy(update={"device": device})
        learner = Learner(load_model(small, device=device), chosen, 0)
        found.append(train_step(learner, estimate_step_samples(batch, learner, chosen)[0], chosen, 1))
    assert found[0].keys() == found[1].keys()
    assert found[1]["mismatch"] < 1e-2  # what the CPU's forward recorded
    for name, value in found[0].items():
        if name != "mismatch":
            assert found[1][name] == pytest.approx(value, rel=2e-2, abs=2e-3), name
