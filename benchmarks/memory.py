"""Peak memory and tokens a second of an SFT step and of an RL step of a model of 0.5 billion parameters, beside peers.

ours: an adapter (LoRA) of a base kept in bfloat16, products in float32, every second layer checkpointed. before: an
earlier commit, which trains all weights in float32. trl: TRL's SFTTrainer and GRPOTrainer (it has no PPO any more) with
PEFT, the same adapter and micro-batch, every layer checkpointed. Weights are random and are made on the spot. Each side
is a process of its own (`memory_side.py`), by turns; all take the same rows. Peak memory is the process's largest
resident set, tokens are those of the rows, prompts and answers, whatever a side computes of them; the medians over the
rounds are compared.

Rows `steps`: the steps of trajectories, each of which shows all screens before it, as `policy.history_n_images` of a
larger model has it: what they begin with alike ours computes once. Rows `apart`: a screen each, nothing alike.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from bench_case import BenchCase, emit_case, exit_code
from gpu_shape import SHAPES, answers, contexts, new_encoder, write_checkpoint

from flywheel.agent.prompt import Image

PROJECT = Path(__file__).resolve().parent.parent
BASELINE = "6659744"
TRL = "1.16.0"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "flywheel"
GOALS = {"before": (0.30, 1.0), "trl": (0.80, 1.5)}  # (memory at most, tokens a second at least), ours / peer
KINDS = {"sft": "SFT", "rl": "RL"}


def make_rows(folder: Path, shape: str) -> None:
    """Write the checkpoint and the rows, in both kinds, where they are not there."""
    if (folder / "rows.json").exists():
        return
    chosen = SHAPES[shape]
    write_checkpoint(folder / "model", chosen, chosen.layers, torch.device("cpu"))
    encoder = new_encoder()
    said = answers(encoder, chosen.samples, chosen.new_tokens)
    screens = []
    for (message,) in contexts(chosen, chosen.samples):
        image, text = message.parts
        assert isinstance(image, Image)
        screens.append((base64.b64encode(image.png).decode(), text))
    rng = np.random.default_rng(2)
    rows: dict[str, list[dict[str, Any]]] = {"steps": [], "apart": []}
    for number, (png, text) in enumerate(screens):
        rows["apart"].append({"id": f"t{number}", "messages": [["user", [{"png": png}, text]]]})
        first = number - number % 3
        messages: list[Any] = [["user", [{"png": screens[first][0]}, screens[first][1]]]]
        for later in range(first + 1, number + 1):
            messages.append(["assistant", [encoder.decode(said[later - 1])]])
            messages.append(["user", [{"png": screens[later][0]}]])
        rows["steps"].append({"id": f"t{first}", "messages": messages})
    for some in rows.values():
        for row, answer in zip(some, said, strict=True):
            row |= {"answer": list(answer), "reward": float(rng.integers(2))}
    (folder / "rows.json").write_text(json.dumps(rows))


def peer_path(side: str) -> list[Path]:
    """What a side's process imports from, before all else; made where it is not there."""
    if side == "before":
        tree = CACHE / f"bench-{BASELINE}"
        if not tree.exists():
            subprocess.run(["git", "worktree", "prune"], cwd=PROJECT, check=True)
            subprocess.run(
                ["git", "worktree", "add", "--quiet", "--detach", str(tree), BASELINE], cwd=PROJECT, check=True
            )
        return [tree]
    if side == "trl":
        place = CACHE / f"trl-{TRL}"
        if not place.exists():
            install = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--target", str(place)]
            subprocess.run([*install, f"trl=={TRL}"], check=True)
        return [place, PROJECT]
    return [PROJECT]


def measure(side: str, kind: str, rows: str, folder: Path, deadline_s: float) -> dict[str, float]:
    """Run one side; returns its peak_mb, seconds of a step and tokens."""
    path = os.pathsep.join(map(str, [*peer_path(side), PROJECT / "benchmarks"]))
    words = [sys.executable, str(PROJECT / "benchmarks" / "memory_side.py"), side, kind, rows, str(folder)]
    found = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=deadline_s,
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "", "TOKENIZERS_PARALLELISM": "false"},
        cwd=folder,
    )
    if found.returncode:
        raise RuntimeError(f"{side} {kind}: {found.stderr[-1500:]}")
    return json.loads(found.stdout.splitlines()[-1])


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", nargs="*", choices=list(GOALS), default=list(GOALS))
    parser.add_argument("--kinds", nargs="*", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--rows", nargs="*", choices=["steps", "apart"], default=["steps"])
    parser.add_argument("--shape", default="qwen2.5-vl-0.5b")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--deadline", type=float, default=1800, help="Seconds of one side's process.")
    parser.add_argument("--folder", type=Path, default=CACHE / "bench-memory")
    options = parser.parse_args(argv)
    folder = options.folder / options.shape
    folder.mkdir(parents=True, exist_ok=True)
    make_rows(folder, options.shape)
    cases: list[BenchCase] = []
    for rows in options.rows:
        for kind in options.kinds:
            sides = ["ours", *options.peers]
            found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
            for _ in range(options.rounds):
                for side in sides:
                    found[side].append(measure(side, kind, rows, folder, options.deadline))
            cases += compare(kind, rows, found)
    return exit_code(cases)


def compare(kind: str, rows: str, found: dict[str, list[dict[str, float]]]) -> list[BenchCase]:
    cases = []
    middle = {
        side: (median(one["peak_mb"] for one in some), median(one["tokens"] / one["seconds"] for one in some))
        for side, some in found.items()
    }
    ours = middle["ours"]
    for side, theirs in middle.items():
        if side == "ours":
            continue
        most, least = GOALS[side]
        about = {"rows": rows, "n": len(found[side]), "tokens": found[side][0]["tokens"]}
        for name, unit, mine, other, goal in (
            ("peak_memory", "MB", ours[0], theirs[0], most),
            ("speed", "tokens/s", ours[1], theirs[1], least),
        ):
            ratio = mine / other
            met = ratio <= goal if name == "peak_memory" else ratio >= goal
            case = f"{kind}_{name}_{rows}_{side}"
            cases.append(emit_case(BenchCase("memory", case, unit, mine, other, side, ratio, goal, met, about)))
    return cases


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
