"""What a device can do at the most, measured in the same run, and how long a call takes there: `benchmarks/gpu.py`."""

from __future__ import annotations

import gc
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_shape import Shape, write_checkpoint
from gpu_work import Work

from flywheel.policy.devices import enable_tf32

GIB = 1 << 30


@dataclass
class Timed:
    """seconds that something took; peak: GiB of the GPU's memory that were in use at once, None on a CPU."""

    seconds: float = 0.0
    peak: float | None = None


@dataclass(frozen=True)
class Limits:
    """flops: operations a second of a large matrix product, by type. bytes: a second, read and written, of a copy."""

    flops: dict[str, float]
    bytes: float

    def line(self, name: str, dtype: str, tokens: int, work: Work, timed: Timed, **facts: Any) -> dict[str, Any]:
        """A measurement beside the limits: mfu and mbu are its shares of bfloat16's products and of the copy; mfu_own
        that of the products of its own type."""
        speed = work.flops / timed.seconds
        return rounded(
            {
                "name": name,
                "tokens_per_second": tokens / timed.seconds,
                "seconds": timed.seconds,
                "peak_gpu_memory_gib": timed.peak,
                "mfu": speed / self.flops["bfloat16"],
                "mbu": work.bytes / timed.seconds / self.bytes,
                "mfu_own": speed / self.flops[dtype],
                "limit_flops_per_second": self.flops["bfloat16"],
                "limit_bytes_per_second": self.bytes,
                "flops": work.flops,
                "bytes": work.bytes,
                "tokens": tokens,
                "dtype": dtype,
                **facts,
            }
        )


def rounded(line: dict[str, Any]) -> dict[str, Any]:
    """Numbers with a fraction to four significant digits."""
    return {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in line.items()}


@contextmanager
def timed(device: torch.device) -> Iterator[Timed]:
    """What is done inside, until the device has done all of it; filled in at the end."""
    found, gpu = Timed(), device.type == "cuda"
    if gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    yield found
    if gpu:
        torch.cuda.synchronize()
        found.peak = torch.cuda.max_memory_allocated() / GIB
    found.seconds = time.perf_counter() - begin


def best(device: torch.device, call: Callable[[], object], times: int = 10) -> float:
    """Seconds of the quickest of several calls, as a limit must be measured."""
    every = []
    for _ in range(times):
        with timed(device) as found:
            call()
        every.append(found.seconds)
    return min(every)


def measure(device: torch.device, side: int, size: int) -> Limits:
    """side: of the matrices. size: bytes of the block that is copied. float32 is multiplied as the trainers do."""
    enable_tf32(device)
    flops = {}
    for dtype in (torch.bfloat16, torch.float32):
        matrices = [torch.randn(side, side, device=device, dtype=dtype) for _ in range(2)]
        flops[str(dtype).removeprefix("torch.")] = 2 * side**3 / best(device, partial(torch.matmul, *matrices))
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return Limits(flops, 2 * size / best(device, partial(target.copy_, source)))


@dataclass(frozen=True)
class Place:
    """Where one shape is measured. layers: of the language model, all or fewer. folder: for checkpoints."""

    shape: Shape
    layers: int
    device: torch.device
    folder: Path
    limits: Limits

    def checkpoint(self, layers: int) -> Path:
        """Random weights, in the place of those before them."""
        made = write_checkpoint(self.folder / "model", self.shape, layers, self.device)
        free()
        return made


def free() -> None:
    """What nobody holds any longer goes back to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def named(device: torch.device) -> dict[str, Any]:
    """Which device it is, and its driver."""
    if device.type != "cuda":
        return {"device": "cpu", "threads": torch.get_num_threads(), "driver": None, "memory_gib": None}
    about = torch.cuda.get_device_properties(device)
    return {"device": about.name, "driver": _driver(), "memory_gib": round(about.total_memory / GIB, 1)}


def _driver() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout.split()
    return said[0] if said else None
