"""Tokens a second of a 7B shape on a GPU, beside the machine's limits: answering, an SFT step, an RL step, ZeRO.

Random weights of the shape of Qwen2.5-VL-7B go through the project's own code: the policy in this process (bfloat16),
the trainers of SFT and RL, with all weights in float32 and with an adapter of a base in bfloat16 and in 4 bits. AdamW
takes 16 bytes a parameter, 130 GB for all of them: on one GPU as many layers are trained as fit its memory, and the
line says how many of how many. One JSON line a measurement. `scripts/gpu-check` types it; `--shape tiny --device cpu`
goes the same way on a CPU in seconds, which measures nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from gpu_answering import answering
from gpu_limits import Place, measure, named, rounded
from gpu_shape import SHAPES
from gpu_training import training

from flywheel.utils.files import write_json

ZERO = importlib.util.find_spec("deepspeed") is not None


def lines(place: Place, batch: int) -> Iterator[dict[str, Any]]:
    """Every measurement, as it is made. batch: requests that are answered together."""
    for dtype, speed in place.limits.flops.items():
        yield rounded({"name": "limit_matmul", "dtype": dtype, "flops_per_second": speed})
    yield rounded({"name": "limit_copy", "bytes_per_second": place.limits.bytes})
    yield from answering(place, batch)
    yield from training(place, zero=ZERO)
    if not ZERO:
        yield {"name": "sft_zero3", "skipped": "deepspeed is not installed: pip install 'flywheel[deepspeed]'"}


def missing() -> str:
    """Why nothing can be measured on a GPU here, and what to type; empty where it can."""
    if torch.cuda.is_available():
        return ""
    plain = torch.__version__.partition("+")[0]
    if torch.version.cuda:
        mend = f"`nvidia-smi` must list a GPU, with a driver for CUDA {torch.version.cuda}"
    else:
        mend = f"this torch knows no CUDA: on a machine with a GPU, pip install torch=={plain}+cu130 --index-url "
        mend += "https://download.pytorch.org/whl/cu130"
    way = "scripts/gpu-check --shape tiny --device cpu"
    return f"no CUDA device: nothing was measured; {mend}; the same way on a CPU: {way}"


def versions() -> dict[str, str | None]:
    found = {name: version(name) for name in ("torch", "transformers", *(("deepspeed",) if ZERO else ()))}
    return found | {"cuda": torch.version.cuda, "python": platform.python_version()}


def keep(path: Path, record: dict[str, Any]) -> None:
    """Add a record to a file of them."""
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, [*known, record])


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/gpu-check", description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen2.5-vl-7b")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--layers", type=int, help="of the language model, at most (without: all of the shape)")
    parser.add_argument("--batch", type=int, help="requests that are answered together")
    parser.add_argument("--folder", type=Path, help="where checkpoints lie for a while: 30 GB")
    parser.add_argument("--out", type=Path, help="JSON file that the run is added to, as benchmarks/results/gpu/a.json")
    options = parser.parse_args(argv)
    if options.device == "cuda" and (why := missing()):
        print(why, file=sys.stderr)
        return 1
    if options.device == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    shape, device, made = SHAPES[options.shape], torch.device(options.device), []
    layers = max(1, min(options.layers or shape.layers, shape.layers))
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        place = Place(shape, layers, device, Path(folder), measure(device, shape.matmul, shape.copy))
        for line in lines(place, options.batch or shape.batch):
            print(json.dumps(line), flush=True)
            made.append(line)
    if options.out:
        about = {"date": datetime.now(UTC).isoformat(timespec="seconds"), **named(device), "versions": versions()}
        keep(options.out, about | {"shape": options.shape, "measurements": made})
    return 0
