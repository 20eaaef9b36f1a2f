"""Seconds from a trained adapter in memory to the first answer with it: written, published, answered by its weights.

This process is the trainer: it has an adapter of the base, with other numbers each time, and writes it as training
does. The client publishes it and asks about a screen that is new each time; its answer must be of that version. The
server is a `flywheel model serve` of the base in a process of its own, and with `--endpoint` a vllm that was begun with
the same base and LoRA routes. The peer is the way without adapters: the same weights merged, written as a whole
checkpoint, published and answered. Medians, first repetition left out; `again_s` is what a further answer takes: the
server's own speed.
`known_s`: the first answer after another adapter, about a screen that the server has seen under the one before.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

import torch
from bench_case import BenchCase, emit_case, exit_code
from gpu_shape import SHAPES, contexts, write_checkpoint

from flywheel.agent.prompt import Context
from flywheel.config import AdapterSettings, PolicySettings
from flywheel.policy.adapter import attach_adapter, get_adapter_state, save_adapter
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.policy.client.remote import RemotePolicy
from flywheel.policy.encoding import Encoder
from flywheel.policy.model import load_model, save_checkpoint
from flywheel.policy.protocol import SamplingParams

PROJECT = Path(__file__).resolve().parent.parent
GOAL_S = 3.0
DEADLINE_S = 600.0


class Trainer:
    """An adapter of a base, whose numbers change as training would change them."""

    def __init__(self, base: Path, rank: int) -> None:
        self.base, self.encoder = base, Encoder.from_folder(base)
        self.model = load_model(base)
        attach_adapter(self.model, base, AdapterSettings(method="lora", rank=rank, alpha=2 * rank), 0)

    def step(self) -> None:
        for weight in get_adapter_state(self.model).values():
            weight.add_(torch.randn_like(weight), alpha=1e-3)

    def write_adapter(self, folder: Path) -> Path:
        return save_adapter(self.model, self.base, folder)

    def write_whole(self, folder: Path) -> Path:
        adapter = self.write_adapter(folder.parent / "merging")
        return save_checkpoint(load_model(adapter), self.encoder, folder)


@contextlib.contextmanager
def serving(base: Path) -> Iterator[str]:
    """A `flywheel model serve` in a process of its own; its address."""
    command = [sys.executable, "-m", "flywheel", "model", "serve", str(base), "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=PROJECT)
    try:
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


async def seconds(
    policy: RemotePolicy, trainer: Trainer, write: Callable[[Path], Path], folder: Path, screens: Sequence[Context]
) -> dict[str, list[float]]:
    """The seconds of each part, once for each of `screens`, of which the first warms up."""
    found: dict[str, list[float]] = {"all": [], "write": [], "publish": [], "answer": [], "again": [], "known": []}
    for repetition, asked in enumerate(screens):
        trainer.step()
        times = [time.perf_counter()]
        await asyncio.to_thread(write, folder)
        times.append(time.perf_counter())
        await policy.load(folder)
        times.append(time.perf_counter())
        done = await policy.complete(asked, SamplingParams(max_new_tokens=16, seed=repetition))
        times.append(time.perf_counter())
        await policy.complete(asked, SamplingParams(max_new_tokens=16, seed=repetition))
        again = time.perf_counter() - times[-1]
        if done.weight_version != checkpoint_digest(folder):
            raise AssertionError(f"an answer by {done.weight_version}, not {checkpoint_digest(folder)}")
        trainer.step()
        await asyncio.to_thread(write, folder)
        await policy.load(folder)
        begun = time.perf_counter()
        await policy.complete(asked, SamplingParams(max_new_tokens=16, seed=repetition))
        known = time.perf_counter() - begun
        if repetition:
            parts = [after - before for before, after in itertools.pairwise(times)]
            for name, value in zip(found, [sum(parts), *parts, again, known], strict=True):
                found[name].append(value)
    return found


async def measure(
    name: str,
    trainer: Trainer,
    url: str,
    model: str,
    folder: Path,
    screens: Sequence[Context],
    options: argparse.Namespace,
) -> BenchCase:
    settings = PolicySettings(backend="openai", endpoint=url, model=model, timeout_s=DEADLINE_S)
    policy = await asyncio.to_thread(RemotePolicy, trainer.base, settings)
    own = screens[: options.repetitions + 1]
    ours = await seconds(policy, trainer, trainer.write_adapter, folder / "adapter", own)
    peer = None
    if name == "serve" and options.whole:
        others = screens[options.repetitions + 1 :]
        whole = await seconds(policy, trainer, trainer.write_whole, folder / "whole", others)
        peer = median(whole["all"])
    await policy.close()
    value = median(ours["all"])
    extra = {f"{part}_s": median(ours[part]) for part in ("write", "publish", "answer", "again", "known")}
    extra |= {"n": options.repetitions, "base": str(options.shape or options.model), "rank": options.rank}
    extra |= {"adapter_mb": sum(file.stat().st_size for file in (folder / "adapter").iterdir()) / 1e6}
    extra |= {"threads": torch.get_num_threads(), "ours_all": ours["all"]}
    how = "the same weights as a whole checkpoint"
    ratio = value / peer if peer else None
    return emit_case(BenchCase("publish", name, "s", value, peer, how, ratio, GOAL_S, value < GOAL_S, extra))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="flywheel bench publish", description=__doc__)
    parser.add_argument("--model", type=Path, default=PROJECT / "models" / "base", help="checkpoint folder")
    parser.add_argument("--shape", choices=sorted(SHAPES), help="random weights of this shape instead")
    parser.add_argument("--layers", type=int, help="of the shape's language model (without: all)")
    parser.add_argument("--folder", type=Path, help="where checkpoints lie for a while")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--whole", type=int, default=1, help="repetitions of the peer; 0: none")
    parser.add_argument("--endpoint", help="of a vllm that was begun with --model, --enable-lora and the LoRA routes")
    parser.add_argument("--served-model", default="", help="the name that it has for the base")
    options = parser.parse_args(argv)
    torch.set_grad_enabled(False)
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        folder, base, shape = Path(place), options.model, SHAPES["tiny"]
        if options.shape:
            shape = SHAPES[options.shape]
            base = write_checkpoint(folder / "base", shape, options.layers or shape.layers, torch.device("cpu"))
        screens = contexts(shape, options.repetitions + options.whole + 2)
        trainer, cases = Trainer(base, options.rank), []
        with serving(base) as url:
            cases.append(asyncio.run(measure("serve", trainer, url, "", folder, screens, options)))
        if options.endpoint:
            cases.append(
                asyncio.run(measure("vllm", trainer, options.endpoint, options.served_model, folder, screens, options))
            )
    return exit_code(cases)
