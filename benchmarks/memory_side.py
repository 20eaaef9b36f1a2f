"""One side of `benchmarks/memory.py`: an SFT or RL step on its rows, in this process; prints its figures as JSON."""

from __future__ import annotations

import base64
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Row = dict[str, Any]
RANK, ALPHA, PACK = 16, 32, 1 << 16  # all rows are one micro-batch


def ours(kind: str, rows: list[Row], model: Path) -> Callable[[], object]:
    from flywheel.agent.prompt import Image, Message
    from flywheel.config import AdapterSettings, RlSettings, SftSettings
    from flywheel.policy.encoding import Encoder
    from flywheel.training.data import Example, ShuffledDataset
    from flywheel.training.modeling.trained_policy import load_trained_policy
    from flywheel.training.rl.trainer import Experience, Learner, ValueFeatures, estimate_step_samples, train_step
    from flywheel.training.sft import SupervisedTrainer

    samples = make_samples(rows, Encoder.from_folder(model), Message, Image, Example)
    adapter = AdapterSettings(method="lora", rank=RANK, alpha=ALPHA, base_dtype="bfloat16")
    memory = {"pack_tokens": PACK, "gradient_checkpointing": True, "checkpoint_every_n_layers": 2}
    if kind == "sft":
        settings = SftSettings(**memory)
        dataset = ShuffledDataset(samples, len(samples), 0)
        trainer = SupervisedTrainer(model, dataset, settings, "bench", adapter, 0)
        return lambda: trainer.step(0, settings.lr)
    rl = RlSettings(minibatch=len(samples), max_logprob_diff_on_policy=1e6, critic_epochs=1, **memory)
    learner = Learner(load_trained_policy(model, rl, adapter, 0), rl, 0)
    batch = make_experiences(rows, samples, Experience, ValueFeatures)
    return lambda: train_step(learner, estimate_step_samples(batch, learner, rl)[0], rl, 0)


def before(kind: str, rows: list[Row], model: Path) -> Callable[[], object]:
    """By the names of commit 6659744."""
    from flywheel.agent.context import Image, Message
    from flywheel.settings import Rl, Sft
    from flywheel.training.rl.experience import Experience, step_samples
    from flywheel.training.rl.learner import Learner
    from flywheel.training.rl.update import train_step
    from flywheel.training.rl.value import Told
    from flywheel.training.samples import Sample
    from flywheel.training.supervised.train import SupervisedTrainer

    from flywheel.policy.encoding import Encoder
    from flywheel.policy.model import load_model

    samples = make_samples(rows, Encoder.from_folder(model), Message, Image, Sample)
    if kind == "sft":
        settings = Sft(pack_tokens=PACK)
        trainer = SupervisedTrainer(model, samples, settings, "bench")
        return lambda: trainer.step(range(len(samples)), settings.lr, 1)
    rl = Rl(minibatch=len(samples), max_mismatch=1e6, critic_epochs=1, pack_tokens=PACK, freeze_vision=True)
    learner = Learner(load_model(model), rl, 0)
    batch = make_experiences(rows, samples, Experience, Told)
    return lambda: train_step(learner, step_samples(batch, learner, rl)[0], rl, 0)


def trl(kind: str, rows: list[Row], model: Path) -> Callable[[], object]:
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForImageTextToText, AutoTokenizer

    from flywheel.agent.prompt import Image, Message
    from flywheel.policy.encoding import Encoder
    from flywheel.training.data import Example
    from flywheel.training.modeling.policy_forward import append_response

    samples = make_samples(rows, Encoder.from_folder(model), Message, Image, Example)
    # The same layers as `adapter.targets: [language_model]` adapts.
    layers = r"model\.language_model\.layers\.\d+\.(?:self_attn\.[qkvo]_proj|mlp\.(?:gate|up|down)_proj)"
    lora = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=layers)
    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForImageTextToText.from_pretrained(model, dtype=torch.float32)
    network.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})  # as train() does
    size, count = max(len(one.context) + len(one.response) for one in samples), len(samples)
    ids = torch.full((count, size), tokenizer.pad_token_id)
    mask, kinds, labels = torch.zeros_like(ids), torch.zeros_like(ids), torch.full_like(ids, -100)
    for row, one in enumerate(samples):  # padded left, as GRPO has its prompts; SFT does not mind
        whole = append_response(one.context, one.response)
        at = size - len(whole)
        ids[row, at:], mask[row, at:] = torch.from_numpy(whole.input_ids), 1
        kinds[row, at:] = torch.from_numpy(whole.mm_token_type_ids)
        labels[row, -len(one.response) :] = torch.tensor(one.response)
    pixels = torch.cat([torch.from_numpy(one.context.pixel_values) for one in samples])
    grids = torch.cat([torch.from_numpy(one.context.image_grid_thw) for one in samples])
    shared = {"pixel_values": pixels, "image_grid_thw": grids, "mm_token_type_ids": kinds}
    common = {
        "output_dir": str(model.parent / "trl"),
        "per_device_train_batch_size": count,
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "remove_unused_columns": False,
        "save_strategy": "no",
    }
    if kind == "sft":
        from trl import SFTConfig, SFTTrainer

        inputs = {"input_ids": ids, "attention_mask": mask, "labels": labels, **shared}
        trainer = SFTTrainer(
            network,
            SFTConfig(dataset_kwargs={"skip_prepare_dataset": True}, max_length=None, **common),
            train_dataset=Dataset.from_list([{"input_ids": [1], "labels": [1]}] * count),
            data_collator=lambda _: inputs,
            processing_class=tokenizer,
            peft_config=lora,
        )
        trainer.create_optimizer()
        tokens = (labels != -100).sum()

        def step() -> None:
            trainer.model.train()
            loss = trainer.compute_loss(trainer.model, dict(inputs), num_items_in_batch=tokens)
            loss.backward()
            torch.nn.utils.clip_grad_norm_([p for p in trainer.model.parameters() if p.requires_grad], 1.0)
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()

        return step
    from trl import GRPOConfig, GRPOTrainer

    new = len(samples[0].response)
    trainer = GRPOTrainer(
        network,
        reward_funcs=lambda **_: [0.0],
        args=GRPOConfig(num_generations=2, max_completion_length=new, beta=0.0, **common),
        train_dataset=Dataset.from_list([{"prompt": "a"}] * count),
        processing_class=tokenizer,
        peft_config=lora,
    )
    trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = 1
    images = [len(one.context.image_grid_thw) for one in samples]
    read = {"pixel_values": pixels, "image_grid_thw": grids, "num_images": images, "mm_token_type_ids": kinds}
    rewards = torch.tensor([row["reward"] for row in rows])

    def rl_step() -> None:
        trainer.model.train()
        with torch.no_grad():
            old, _, _ = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, new, **read)
        inputs = {
            **read,
            "prompt_ids": ids[:, :-new],
            "prompt_mask": mask[:, :-new],
            "completion_ids": ids[:, -new:],
            "completion_mask": mask[:, -new:],
            "advantages": rewards - rewards.mean(),
            "old_per_token_logps": old,
            "num_items_in_batch": torch.tensor(count * new),
        }
        loss = trainer._compute_loss(trainer.model, inputs)
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for p in trainer.model.parameters() if p.requires_grad], 1.0)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()

    return rl_step


def make_samples(rows: list[Row], encoder: Any, message: type, image: type, sample: type) -> list[Any]:
    made = []
    for number, row in enumerate(rows):
        context = tuple(
            message(role, tuple(one if isinstance(one, str) else image(base64.b64decode(one["png"])) for one in parts))
            for role, parts in row["messages"]
        )
        said = (-1.0,) * len(row["answer"])
        encoded = encoder.encode(context)
        made.append(sample(encoded, tuple(row["answer"]), None, row["id"], number, "games", sampled_logprobs=said))
    return made


def make_experiences(rows: list[Row], samples: list[Any], experience: type, features: type) -> list[Any]:
    """The steps of one trajectory are one experience; two of them have one task."""
    made = []
    for number, name in enumerate(dict.fromkeys(row["id"] for row in rows)):
        mine = [at for at, row in enumerate(rows) if row["id"] == name]
        rewards = tuple(rows[at]["reward"] for at in mine)
        steps, told = tuple(samples[at] for at in mine), (features(),) * len(mine)
        success = bool(rewards[-1])
        made.append(experience(name, steps, rewards, told, rewards[-1], success, None, f"task-{number // 2}"))
    return made


def main() -> None:
    side, kind, rows, folder = sys.argv[1:]
    some = json.loads((Path(folder) / "rows.json").read_text())[rows]
    step = {"ours": ours, "before": before, "trl": trl}[side](kind, some, Path(folder) / "model")
    step()  # makes the optimiser's state, too
    begin = time.perf_counter()
    step()
    seconds = time.perf_counter() - begin
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text()).group(1)) / 1024
    print(json.dumps({"peak_mb": peak, "seconds": seconds, "tokens": count_tokens(some, Path(folder) / "model")}))


def count_tokens(rows: list[Row], model: Path) -> int:
    """Of prompts and answers, as every side has them."""
    from flywheel.policy.encoding import Encoder

    encoder = Encoder.from_folder(model)
    try:
        from flywheel.agent.prompt import Image, Message
    except ImportError:
        from flywheel.agent.context import Image, Message
    made = make_samples(rows, encoder, Message, Image, lambda context, answer, *_, **__: len(context) + len(answer))
    return sum(made)


if __name__ == "__main__":
    main()
