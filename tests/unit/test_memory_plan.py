"""The memory that is planned: known answers of real models' shapes, and what more tokens and savings do to it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from flywheel.config import AdapterSettings, PolicySettings, RlSettings, SftSettings
from flywheel.training.memory_plan import (
    MIB,
    PROCESS,
    ModelShape,
    Workload,
    count_trained,
    largest_workload,
    plan_answering,
    plan_server,
    plan_training,
)
from flywheel.utils.errors import ModelError

UI_TARS = {  # config.json of UI-TARS-1.5-7B: the language model's fields at the top, most of the tower's left out
    "model_type": "qwen2_5_vl",
    "hidden_size": 3584,
    "intermediate_size": 18_944,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152_064,
    "tie_word_embeddings": False,
    "vision_config": {"hidden_size": 1280, "in_chans": 3, "spatial_patch_size": 14},
}
QWEN3_2B = {
    "model_type": "qwen3_vl",
    "tie_word_embeddings": True,
    "text_config": {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_hidden_layers": 28,
        "vocab_size": 151_936,
    },
    "vision_config": {
        "depth": 24,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "out_hidden_size": 2048,
        "deepstack_visual_indexes": [5, 11, 17],
    },
}
LORA = AdapterSettings(method="lora", rank=16)
WHOLE = AdapterSettings()
WORK = Workload(tokens=4096, responses=256, scores=4096 * 1024, screens=3, patches=4784, samples=8, seen=100, passes=4)
SEVEN = ModelShape.read(UI_TARS)


@pytest.mark.parametrize(
    ("config", "parameters", "kv"), [(UI_TARS, 8_292_166_656, 28_672), (QWEN3_2B, 2_127_532_032, 57_344)]
)
def test_the_parameters_and_the_cache_of_a_token_are_those_of_the_real_model(config, parameters, kv):
    model = ModelShape.read(config)
    assert (model.parameters, model.kv_numbers) == (parameters, kv)


def test_weights_gradients_and_optimizer_are_16_bytes_a_parameter_of_a_whole_training():
    found = plan_training(SEVEN, WORK, RlSettings(), WHOLE, "cuda")
    assert found.weights + found.gradients + found.optimizer == 16 * SEVEN.parameters
    frozen = plan_training(SEVEN, WORK, SftSettings(), WHOLE, "cuda")
    assert frozen.gradients == 4 * (SEVEN.parameters - SEVEN.vision.parameters)


def test_an_adapter_trains_its_own_numbers_alone_on_a_base_in_the_type_that_is_set():
    (trained, there) = count_trained(SEVEN, SftSettings(), LORA)
    # q, o: 3584 + 3584; k, v: 3584 + 512; gate, up, down: 3584 + 18944
    assert trained == there == 28 * 16 * (2 * 7168 + 2 * 4096 + 3 * 22_528)
    half = LORA.model_copy(update={"base_dtype": "bfloat16"})
    found = plan_training(SEVEN, WORK, SftSettings(), half, "cuda")
    assert found.weights == 2 * SEVEN.parameters + 4 * trained
    assert found.gradients + found.optimizer == 12 * trained
    wide = plan_training(
        SEVEN, WORK, SftSettings(), LORA, "cuda"
    )  # float32: nothing of the base is widened for a product
    assert (found.step - found.weights) - (wide.step - wide.weights) == 4 * 2**24
    four = plan_training(SEVEN, WORK, SftSettings(), LORA.model_copy(update={"base_dtype": "nf4"}), "cuda")
    assert 0.33 < four.weights / found.weights < 0.4  # the embeddings, and the head, stay as they are


def test_the_state_that_is_saved_is_copied_first():
    found = plan_training(SEVEN, WORK, RlSettings(), WHOLE, "cpu")
    assert found.saving - found.process - found.screens == (4 + 8 + 4 + 8) * SEVEN.parameters


def test_keys_and_values_are_those_of_every_row_at_its_longest():
    policy = PolicySettings(dtype="bfloat16", max_num_seqs=16, max_context_tokens=8192 - 512, max_new_tokens=512)
    found = plan_answering(SEVEN, policy, "cuda")
    assert (found.kv_token, found.cache, found.weights) == (57_344, 16 * 8192 * 57_344, 2 * SEVEN.parameters)
    assert plan_answering(SEVEN, policy, "cuda", swaps=True).loading > found.loading + found.weights


def test_a_server_that_sleeps_keeps_neither_weights_nor_cache_on_the_gpu():
    policy = PolicySettings(max_num_seqs=64, max_context_tokens=15_360, max_new_tokens=512)
    found = plan_server(SEVEN, policy, LORA, 12_845_056)
    assert (found.weights, found.kv_row) == (2 * SEVEN.parameters, 15_872 * 57_344)
    assert found.adapter == 2 * count_trained(SEVEN, SftSettings(), LORA)[1]
    # 8,192 tokens through 3 x 18,944 + 4 x 3,584 numbers, and 65,536 patches through 2 x 3,420 + 7 x 1,280
    assert found.working - 1024 * MIB == 2 * 8192 * 71_168 + 2 * 65_536 * 15_800
    assert found.least - found.asleep == found.weights + found.adapter + found.working + found.kv_row
    assert found.asleep < found.weights / 8 < found.weights < found.host  # the weights wait in the machine's memory
    assert plan_server(SEVEN, policy, WHOLE, 12_845_056).adapter == 0
    more = policy.model_copy(update={"max_num_seqs": 512})  # vLLM lets requests wait where the cache is full
    assert plan_server(SEVEN, more, LORA, 12_845_056) == found


def test_what_waits_in_the_machines_memory_is_the_larger_of_loading_and_screens():
    few, many = (
        plan_training(SEVEN, Workload(**vars(WORK) | {"samples": n}), SftSettings(), LORA, "cuda") for n in (1, 9999)
    )
    assert few.host - PROCESS["cpu"] == few.weights  # read in this memory first
    assert many.host - PROCESS["cpu"] == 4 * count_trained(SEVEN, SftSettings(), LORA)[1] + 9999 * 4784 * 1176 * 4


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("adapter", [WHOLE, LORA, LORA.model_copy(update={"base_dtype": "bfloat16"})])
@pytest.mark.parametrize(
    "chosen", [SftSettings(), SftSettings(pack_tokens=0), RlSettings()], ids=["sft", "padded", "rl"]
)
def test_more_tokens_never_take_less_and_savings_never_more(device, adapter, chosen):
    def step(length: int, batch: int, **changes: object) -> int:
        own = chosen.model_copy(update=changes)
        sizes = {"tokens": length, "responses": length // 10, "screens": 1, "patches": 1024, "seen": batch}
        work = largest_workload(SEVEN, own, batch=batch, **sizes)
        return plan_training(SEVEN, work, own, adapter, device).step

    batches = ((500, 4), (1000, 4), (1000, 16), (4000, 16), (4000, 64))
    for length, batch in batches:
        whole = step(length, batch)
        most = step(length, batch, gradient_checkpointing=True)
        half = step(length, batch, gradient_checkpointing=True, checkpoint_every_n_layers=2)
        assert most <= half <= whole
        assert step(length, batch, optimizer="adamw_8bit") <= whole
        if batch > 32:  # of several passes; the second of two has the gradients of the first beside it
            assert step(length, batch, micro_batch=1) <= whole
            assert step(length, batch, pack_tokens=length) <= step(length, batch, pack_tokens=4 * length)
    assert all(step(*before) <= step(*after) for before, after in pairwise(batches))


def test_zero_shares_out_and_moves_to_the_machine_what_it_says():
    def plan(**changes: object):
        chosen = SftSettings(engine="deepspeed", **changes)
        return plan_training(SEVEN, WORK, chosen, WHOLE, "cuda")

    alone, eight = plan(processes=1, zero_stage=1), plan(processes=8, zero_stage=1)
    assert eight.optimizer == pytest.approx(alone.optimizer / 8)
    assert (eight.gradients, eight.weights) == (alone.gradients, alone.weights)
    three = plan(processes=8, zero_stage=3)
    assert three.weights == pytest.approx(alone.weights / 8)
    assert three.gradients == pytest.approx(alone.gradients / 8)
    moved = plan(processes=8, zero_stage=3, zero_offload=True)
    assert (moved.weights, moved.optimizer) == (0, 0)
    assert moved.host - three.host == three.weights + three.optimizer


@pytest.mark.parametrize(("layers", "chosen"), [(26, SftSettings()), (20, RlSettings())], ids=["sft", "rl"])
def test_the_peaks_of_126_gib_that_one_h200_reached_are_planned(layers, chosen):
    """docs/measurements/scaling.md, "One GPU": four samples, a pass for each, of 1,196 tokens and an answer of 64."""
    own = chosen.model_copy(update={"pack_tokens": 1300})
    model = ModelShape.read(UI_TARS | {"num_hidden_layers": layers})
    work = largest_workload(model, own, tokens=1290, responses=64, screens=1, patches=4784, batch=4, seen=4)
    found = plan_training(model, work, own, WHOLE, "cuda", value_model=isinstance(chosen, RlSettings))
    assert found.step - found.process == pytest.approx(126 * 2**30, rel=0.1)


def test_what_is_kept_of_screens_is_bounded():
    many = Workload(**{**vars(WORK), "seen": 10**6})
    found = plan_training(SEVEN, many, SftSettings(), LORA, "cuda")
    assert found.screens == 256 * MIB


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"num_hidden_layers": None}, "no sound layers"),
        ({"num_hidden_layers": "28"}, "no sound layers"),
        ({"num_attention_heads": 0}, "how large"),
        ({"hidden_size": -3584}, "no sound"),
        ({"vision_config": [1]}, "how large"),
        ({"text_config": "none"}, "how large"),
    ],
)
def test_a_configuration_that_tells_no_size_is_named(wrong, words):
    with pytest.raises(ModelError, match=words):
        ModelShape.read(UI_TARS | wrong)


def test_a_configuration_that_lacks_a_size_is_named():
    with pytest.raises(ModelError, match="num_hidden_layers"):
        ModelShape.read({name: value for name, value in UI_TARS.items() if name != "num_hidden_layers"})
