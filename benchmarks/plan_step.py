"""One gradient step whose peak of memory is measured, in a process of its own, for `benchmarks/plan.py`.

A CPU's figure is the peak of the resident set (VmHWM) after loading, imports included. glibc keeps freed blocks of up
to 32 MiB, a sixth of the peak in small models: `plan.py` has it give them back (MALLOC_MMAP_THRESHOLD_), so that the
figure is of what the code holds. A GPU's is torch's own (max_memory_allocated).
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_shape import Shape, configuration, contexts
from transformers import AutoModelForImageTextToText, PreTrainedConfig, Qwen3VLConfig
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from flywheel.config import AdapterSettings, RlSettings, SftSettings
from flywheel.policy.encoding import Encoder
from flywheel.policy.model import SPECIAL_TOKENS, save_checkpoint, train_tokenizer
from flywheel.training.data import Example, ShuffledDataset
from flywheel.training.memory_plan import PROCESS, ModelShape, largest_workload, plan_training
from flywheel.training.modeling.trained_policy import computes_in_bfloat16, load_trained_policy
from flywheel.training.rl.trainer import Experience, Learner, ValueFeatures, estimate_step_samples, train_step
from flywheel.training.sft import SupervisedTrainer

_TOWER = {"depth": 3, "hidden_size": 256, "intermediate_size": 684, "num_heads": 4}
_IMAGES = {"shortest_edge": 56 * 56, "longest_edge": 12_845_056}


def model_configuration(family: str, layers: int, width: int) -> PreTrainedConfig:
    """Of 64 numbers a head. Qwen2.5-VL with tied embeddings, Qwen3-VL with a head of its own."""
    text = {"vocab_size": 24_000, "hidden_size": width, "intermediate_size": 3 * width, "max_position_embeddings": 8192}
    text |= {"num_attention_heads": width // 64, "num_key_value_heads": 2}
    tower = _TOWER | {"out_hidden_size": width}
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]}
    if family == "qwen2_5_vl":
        sides = {"screen": (0, 0), "batch": 1, "new_tokens": 1, "samples": 1, "matmul": 1, "copy": 1}
        shape = Shape(layers, text | {"rope_parameters": rope}, tower | {"fullatt_block_indexes": [2]}, **sides)
        config = configuration(shape, layers)
        config.tie_word_embeddings = config.text_config.tie_word_embeddings = True
        return config
    ids = {name.strip("<|>"): number for number, name in enumerate(SPECIAL_TOKENS)}
    text |= {"num_hidden_layers": layers, "head_dim": 64, "tie_word_embeddings": False}
    text |= {"eos_token_id": ids["im_end"], "bos_token_id": None, "pad_token_id": ids["endoftext"]}
    return Qwen3VLConfig(
        text_config=text | {"rope_parameters": rope | {"mrope_interleaved": True}},
        vision_config=tower | {"num_position_embeddings": 196, "deepstack_visual_indexes": [0, 1]},
        image_token_id=ids["image_pad"],
        video_token_id=ids["video_pad"],
        vision_start_token_id=ids["vision_start"],
        vision_end_token_id=ids["vision_end"],
        tie_word_embeddings=False,
    )


def write_model(folder: Path, family: str, layers: int, width: int) -> None:
    """Random weights in bfloat16, and a small tokeniser."""
    torch.manual_seed(0)
    config = model_configuration(family, layers, width)
    images = Qwen2VLImageProcessorPil(patch_size=config.vision_config.patch_size, merge_size=2, size=_IMAGES)
    words = train_tokenizer(["Click the button. Type the name of row 7 into the field."])
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    save_checkpoint(model, Encoder(words, images), folder, dtype=torch.bfloat16)


def measure(asked: dict[str, Any]) -> dict[str, float]:
    """Bytes, planned and measured, of the peak in two gradient steps, while loading before them, and once the state was
    saved."""
    torch.set_num_threads(1)  # passes one after the other
    folder, count, device = Path(asked["folder"]), asked["samples"], asked["device"]
    encoder, rng = Encoder.from_folder(folder), np.random.default_rng(1)
    shown = dataclasses.make_dataclass("Shown", ["screen"])(tuple(asked["screen"]))
    prompts = [encoder.encode(context) for context in contexts(shown, count)]
    responses = [tuple(row) for row in rng.integers(10, 200, (count, asked["response"])).tolist()]
    said = (-1.0,) * asked["response"]
    samples = [
        Example(prompt, response, None, f"t{number}", 0, "games", sampled_logprobs=said)
        for number, (prompt, response) in enumerate(zip(prompts, responses, strict=True))
    ]
    adapter, of_rl = AdapterSettings(**asked["adapter"]), asked["trainer"] == "rl"
    if of_rl:
        chosen = RlSettings(device=device, minibatch=count, max_logprob_diff_on_policy=1e6, **asked["settings"])
        policy = load_trained_policy(folder, chosen, adapter, 0)
        learner = Learner(policy, chosen, 0, bfloat16=computes_in_bfloat16(chosen, adapter))
    else:
        chosen = SftSettings(device=device, **asked["settings"])
        trainer = SupervisedTrainer(folder, ShuffledDataset(samples, count, 0), chosen, "sft", adapter, 0)
    loaded = _peak(device)
    for _ in range(2):  # the first makes AdamW's state
        if of_rl:
            batch = [
                Experience(one.trajectory_id, (one,), (n % 2,), (ValueFeatures(),), n % 2, bool(n % 2), None, f"{n}")
                for n, one in enumerate(samples)
            ]
            train_step(learner, estimate_step_samples(batch, learner, chosen)[0], chosen, 0)
        else:
            trainer.step(0, 1e-5)
    stepped = _peak(device)
    with tempfile.TemporaryDirectory() as out:
        (learner if of_rl else trainer).save(Path(out) / "state.pt", {"key": "plan"})
    model = ModelShape.read(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    sizes = {"tokens": len(prompts[0]) + asked["response"] - 1, "responses": asked["response"], "screens": 1}
    sizes |= {"patches": len(prompts[0].pixel_values), "batch": count, "seen": count}
    plan = plan_training(
        model,
        largest_workload(model, chosen, **sizes),
        chosen,
        adapter,
        device,
        value_model=of_rl,
        disk_bytes=sum(file.stat().st_size for file in folder.glob("*.safetensors")),
    )
    own = PROCESS[device] if device == "cuda" else 0  # what torch does not count
    measured = {"measured": stepped, "measured_loading": loaded, "measured_saving": _peak(device)}
    planned = {"planned": max(plan.step, plan.loading), "planned_loading": plan.loading, "planned_saving": plan.peak}
    return measured | {name: size - own for name, size in planned.items()} | {"parameters": model.parameters}


def _peak(device: str) -> int:
    """Since the process began: a step needs less than loading where an adapter of a small batch is trained."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    if "write" in asked:
        write_model(Path(asked["folder"]), **asked["write"])
    else:
        print(json.dumps(measure(asked)))
