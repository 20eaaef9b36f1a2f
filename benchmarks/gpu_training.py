"""Training, for `benchmarks/gpu.py`: a step of SFT, of RL, and of SFT by ZeRO 3, by the project's trainers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from gpu_limits import Place, free, timed
from gpu_shape import answers, configuration, contexts, new_encoder
from gpu_work import SHARDED, TRAINED, Parameters, Work, adapter_bytes, layers_that_fit, packs, step_bytes

from flywheel.config import AdapterSettings, RlSettings, SftSettings
from flywheel.policy.model import require_bitsandbytes
from flywheel.training.data import Example, ShuffledDataset
from flywheel.training.modeling.policy_forward import PackedBatch
from flywheel.training.modeling.trained_policy import computes_in_bfloat16, load_trained_policy
from flywheel.training.rl.trainer import Experience, Learner, ValueFeatures, estimate_step_samples, train_step
from flywheel.training.sft import SupervisedTrainer
from flywheel.utils.errors import ModelError

Line = dict[str, Any]
_WHOLE, _ADAPTER = AdapterSettings(), AdapterSettings(method="lora", rank=32, alpha=64, base_dtype="bfloat16")
_FOUR_BITS = _ADAPTER.model_copy(update={"base_dtype": "nf4"})


def training(place: Place, zero: bool) -> Iterator[Line]:
    """zero: whether DeepSpeed is there."""
    samples = _samples(place)
    yield _fitting(place, samples, True, TRAINED, partial(sft, place, samples, "torch"))
    yield _fitting(place, samples, False, TRAINED, partial(rl, place, samples))
    for name, train in (
        ("sft_adapter", partial(sft, place, samples, "torch")),
        ("rl_adapter", partial(rl, place, samples)),
    ):
        yield with_fewer(place.layers, partial(train, adapter=_ADAPTER)) | {"name": name}
    yield _four_bits(place, samples)
    if zero:
        found = _fitting(place, samples, True, SHARDED, partial(sft, place, samples, "deepspeed"))
        yield found | {"name": "sft_zero3"}


def _four_bits(place: Place, samples: Sequence[Example]) -> Line:
    """`sft` with an adapter of a base in 4 bits, or why it cannot be measured."""
    try:
        require_bitsandbytes("adapter.base_dtype", place.device.type)
    except ModelError as error:
        return {"name": "sft_adapter_nf4", "skipped": str(error)}
    train = partial(sft, place, samples, "torch", adapter=_FOUR_BITS)
    return with_fewer(place.layers, train) | {"name": "sft_adapter_nf4"}


def sft(place: Place, samples: Sequence[Example], engine: str, layers: int, adapter: AdapterSettings = _WHOLE) -> Line:
    """One gradient step on all samples, a pass for each."""
    model = place.checkpoint(layers)
    settings = SftSettings(
        device=place.device.type, pack_tokens=_longest(samples), engine=engine, zero_stage=3, **_memory(adapter)
    )
    dataset = ShuffledDataset(samples, len(samples), 0)
    trainer = SupervisedTrainer(model, dataset, settings, "gpu check", adapter)
    config = configuration(place.shape, layers)  # the trainer's own names its attention, of which no model is made anew
    sizes = Parameters.of(config)
    parts = trainer.reader.split_into_micro_batches(
        [trainer.reader.encode_example(one.context, one.response) for one in samples], settings
    )
    trainer.step(0, settings.lr)  # makes the optimiser's state, too
    with timed(place.device) as found:
        trainer.step(0, settings.lr)
    text, lora = sizes.rest + layers * sizes.layer, adapter.method != "none"
    moved = adapter_bytes(text, len(parts)) if lora else step_bytes(text, sizes.tower, len(parts))
    work = Work(packs(config, parts, backward=True, freeze_vision=True, adapter=lora), moved)
    facts = _facts(place, parts, layers) | {"engine": engine, "frozen": "base" if lora else "vision tower"}
    return place.limits.line("sft", settings.compute_dtype, facts["sequence_tokens"], work, found, **facts)


def rl(place: Place, samples: Sequence[Example], layers: int, adapter: AdapterSettings = _WHOLE) -> Line:
    """One step of the settings' algorithm: samples are read for values and log-probabilities, then come the gradient
    steps of policy and value model (whose own work is too small to count)."""
    # Nobody sampled these answers, so the trainer must not mind that the policy finds them unlikely.
    chosen = RlSettings(
        device=place.device.type,
        pack_tokens=_longest(samples),
        minibatch=len(samples),
        max_logprob_diff_on_policy=1e6,
        **_memory(adapter),
    )
    policy = load_trained_policy(place.checkpoint(layers), chosen, adapter, 0)
    learner = Learner(policy, chosen, 0, bfloat16=computes_in_bfloat16(chosen, adapter))
    config = configuration(place.shape, layers)
    sizes = Parameters.of(config)
    parts = learner.reader.split_into_micro_batches(
        [learner.reader.encode_example(one.context, one.response) for one in samples], chosen
    )
    told = (ValueFeatures(),)
    batch = [
        Experience(one.trajectory_id, (one,), (float(n % 2),), told, float(n % 2), bool(n % 2), None, f"task-{n // 2}")
        for n, one in enumerate(samples)
    ]
    for _ in range(2):
        with timed(place.device) as found:
            train_step(learner, estimate_step_samples(batch, learner, chosen)[0], chosen, 0)
    trained, lora = sizes.tower + sizes.rest + layers * sizes.layer, adapter.method != "none"
    read = Work(packs(config, parts, backward=False, freeze_vision=lora), step_bytes(0, trained, len(parts)))
    through = adapter_bytes(trained, len(parts)) if lora else step_bytes(trained, 0, len(parts))
    moved = Work(packs(config, parts, backward=True, freeze_vision=lora, adapter=lora), through)
    frozen = "base" if lora else None
    facts = _facts(place, parts, layers) | {"engine": "torch", "frozen": frozen, "algorithm": chosen.algorithm}
    return place.limits.line("rl", chosen.compute_dtype, facts["sequence_tokens"], read + moved, found, **facts)


def _memory(adapter: AdapterSettings) -> dict[str, Any]:
    """What the profiles of large models set, where an adapter is trained."""
    return {} if adapter.method == "none" else {"compute_dtype": "bfloat16", "gradient_checkpointing": True}


def _samples(place: Place) -> list[Example]:
    """A screen and an answer each, none like another."""
    encoder, count = new_encoder(), place.shape.samples
    prompts = [encoder.encode(context) for context in contexts(place.shape, count)]
    responses = answers(encoder, count, place.shape.new_tokens)
    said = (-1.0,) * place.shape.new_tokens
    return [
        Example(prompt, response, None, f"made-up-{number}", 0, "games", sampled_logprobs=said)
        for number, (prompt, response) in enumerate(zip(prompts, responses, strict=True))
    ]


def _longest(samples: Sequence[Example]) -> int:
    return max(len(one.context) + len(one.response) for one in samples)


def _facts(place: Place, parts: Sequence[PackedBatch], layers: int) -> dict[str, Any]:
    return {
        "sequence_tokens": sum(part.tokens for part in parts),
        "response_tokens": sum(len(part.targets) for part in parts),
        "passes": len(parts),
        "layers": layers,
        "layers_of": place.shape.layers,
    }


def _fitting(
    place: Place, samples: Sequence[Example], freeze_vision: bool, each: int, train: Callable[[int], Line]
) -> Line:
    """`train` with as many layers as a GPU's memory holds. each: bytes of a trained parameter."""
    layers = place.layers
    if place.device.type == "cuda":
        config = configuration(place.shape, layers)
        memory, _ = torch.cuda.mem_get_info(place.device)  # what others leave, as a server beside this
        patches = max(len(one.context.pixel_values) for one in samples)
        layers = layers_that_fit(config, memory, _longest(samples), patches, freeze_vision=freeze_vision, each=each)
    return with_fewer(layers, train)


def with_fewer(layers: int, train: Callable[[int], Line]) -> Line:
    """`train` with so many layers, or, out of the GPU's memory, a quarter fewer, until it goes."""
    while True:
        try:
            return train(layers)
        except torch.OutOfMemoryError:
            if layers == 1:
                raise
        finally:
            free()
        print(f"{layers} layers do not fit; trying fewer", file=sys.stderr)
        layers = max(1, layers * 3 // 4)
