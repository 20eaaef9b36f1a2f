"""Speed and memory of merging sharded checkpoints with random weights, beside the disk's own speed.

python benchmarks/merging_speed.py FOLDER METHOD ROUNDS    merge FOLDER/1, 2 and 3 into FOLDER/out, and print
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import torch
from bench_case import BenchCase, compare_with_peer, peak_memory_mb
from safetensors.torch import save_file

from flywheel.training.merge_methods import MergeMethod, MethodName
from flywheel.training.model_merging import merge_checkpoints

METHODS: tuple[MethodName, ...] = ("linear", "ties", "dare_ties")
SHARDS, TENSORS = 4, 8  # TENSORS a shard
SPECIALISTS = 3
SPEED_GOAL, MEMORY_GOAL = 0.8, 1.0  # of the disk's speed; of two shards
_BLOCK = 1 << 24


def write_checkpoints(folder: Path, gigabytes: float, dtype: torch.dtype) -> int:
    """Write a base (0) and specialists (1 and on) of `gigabytes` each, in shards; return the bytes of a shard."""
    count = int(gigabytes * 1e9 / SHARDS / TENSORS / dtype.itemsize)
    generator = torch.Generator().manual_seed(0)
    names = [f"model-{shard:05d}.safetensors" for shard in range(SHARDS)]
    for number in range(SPECIALISTS + 1):
        place = folder / str(number)
        place.mkdir(parents=True)
        index = {}
        for shard, name in enumerate(names):
            tensors = {
                f"w{shard}.{n}": (0.02 * torch.randn(count, generator=generator)).to(dtype) for n in range(TENSORS)
            }
            save_file(tensors, place / name, metadata={"format": "pt"})
            index |= dict.fromkeys(tensors, name)
        (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
        (place / "config.json").write_text("{}")
    return (folder / "0" / names[0]).stat().st_size


def measure(place: Path, gigabytes: float, rounds: int, method: MethodName) -> list[BenchCase]:
    """Return `merge_speed` and `merge_memory` of a method. place: a folder on the disk that is measured, where five
    times `gigabytes` are written and removed. rounds: of merging and reading the disk, by turns."""
    folder = place / "merge-speed"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        shard = write_checkpoints(folder, gigabytes, torch.float32)
        words = [sys.executable, __file__, str(folder), method, str(rounds)]
        done = subprocess.run(
            words, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": _path()}
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    told = json.loads(done.stdout)
    about = {"n": rounds, "gigabytes": gigabytes, "load": os.getloadavg()[0], "cores": os.cpu_count()}
    about |= {"ours_all": told["merges"], "peer_all": told["disks"]}
    speed = compare_with_peer(
        "merging", f"merge_speed_{method}", "MB/s", ours=median(told["merges"]), peer=median(told["disks"]),
        peer_name="copying one and reading the others", goal=SPEED_GOAL, **about,
    )  # fmt: skip
    most, two = told["peak"], 2 * shard / 2**20
    memory = BenchCase(
        "merging", f"merge_memory_{method}", "MiB", most, two, "two shards", most / two, MEMORY_GOAL, most <= two,
        {"n": rounds, "grown_by": most - told["before"], "shard": shard / 2**20},
    )  # fmt: skip
    return [speed, memory]


def _weight_files(folder: Path, numbers: range) -> list[Path]:
    return [file for number in numbers for file in sorted((folder / str(number)).glob("*.safetensors"))]


def _forget(folder: Path) -> None:
    """Write what is pending to the disk, and let the system forget the files, so that they are read from there."""
    for file in folder.rglob("*.safetensors"):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _path() -> str:
    return os.pathsep.join([str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH", "")])


def _disk_speed(folder: Path, based: bool) -> float:
    """Return bytes a second of reading the same checkpoints and writing one. based: whether the base is one."""
    shutil.rmtree(folder / "out", ignore_errors=True)
    (folder / "out").mkdir()
    _forget(folder)
    begun, count = time.perf_counter(), 0
    for file in _weight_files(folder, range(1, 2)):
        copy = folder / "out" / file.name
        shutil.copyfile(file, copy)
        _write_through(copy)
        count += 2 * file.stat().st_size
    buffer = bytearray(_BLOCK)
    for file in _weight_files(folder, range(0 if based else 2, SPECIALISTS + 1)):
        if based and file.parent.name == "1":
            continue
        with file.open("rb", buffering=0) as opened:
            while size := opened.readinto(buffer):
                count += size
    return count / (time.perf_counter() - begun)


def _write_through(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def _merge_speed(folder: Path, method: MethodName) -> float:
    """Merge; return bytes a second, the writing through to the disk included."""
    chosen = MergeMethod() if method == "linear" else MergeMethod(method, folder / "0", 1.0, *_density(method))
    shutil.rmtree(folder / "out", ignore_errors=True)
    _forget(folder)
    begun = time.perf_counter()
    specialists = [folder / str(number) for number in range(1, SPECIALISTS + 1)]
    merge_checkpoints(specialists, [1 / SPECIALISTS] * SPECIALISTS, folder / "out", method=chosen)
    written = [*(folder / "out").glob("*.safetensors")]
    for file in written:
        _write_through(file)
    seconds = time.perf_counter() - begun
    read = _weight_files(folder, range(1 if method == "linear" else 0, SPECIALISTS + 1))
    return sum(file.stat().st_size for file in [*read, *written]) / seconds


def main_of_merge(folder: Path, method: MethodName, rounds: int) -> None:
    before, merges, disks = peak_memory_mb(), [], []
    for _ in range(rounds):
        merges.append(_merge_speed(folder, method) / 1e6)
        disks.append(_disk_speed(folder, method != "linear") / 1e6)
    print(json.dumps({"merges": merges, "disks": disks, "before": before, "peak": peak_memory_mb()}))


def _density(method: str) -> tuple[float, ...]:
    return () if method == "task_arithmetic" else (0.2,)


if __name__ == "__main__":
    main_of_merge(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))  # type: ignore[arg-type]
