"""How far the memory that `flywheel plan` computes is from the peak that gradient steps of SFT and PPO reach.

Ten settings, each in a process of its own, with random weights of small Qwen2.5-VL and Qwen3-VL shapes made on the
spot: whole weights and adapters, packs and padded batches, float32 and bfloat16, with and without checkpointing. `ours`
is planned, `peer` measured, both in MiB (`benchmarks/plan_step.py` says how); `plan_error` is the largest deviation,
as a share of what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench_case import BenchCase, emit_case, exit_code

GOAL = 0.10
MODELS = {
    "qwen2.5-vl": {"family": "qwen2_5_vl", "layers": 6, "width": 640},
    "qwen3-vl": {"family": "qwen3_vl", "layers": 6, "width": 512},
}
_LORA = {"method": "lora", "rank": 16}
_HALF = _LORA | {"base_dtype": "bfloat16"}
_CHECKPOINTED = {"gradient_checkpointing": True}


def _setting(model: str, trainer: str, settings: dict | None = None, adapter: dict | None = None, **more: Any) -> dict:
    sizes = {"samples": 4, "screen": (336, 336), "response": 24, **more}
    return {"model": model, "trainer": trainer, "settings": settings or {}, "adapter": adapter or {}, **sizes}


SETTINGS = {
    "sft_whole": _setting("qwen2.5-vl", "sft"),
    "sft_whole_several_packs": _setting("qwen2.5-vl", "sft", {"pack_tokens": 400}),
    "sft_whole_padded": _setting("qwen2.5-vl", "sft", {"pack_tokens": 0, "micro_batch": 4}),
    "sft_whole_bfloat16": _setting("qwen3-vl", "sft", {"compute_dtype": "bfloat16"}, samples=2),
    "sft_whole_checkpointed": _setting("qwen3-vl", "sft", _CHECKPOINTED),
    "sft_lora": _setting("qwen2.5-vl", "sft", None, _LORA, samples=8, screen=(280, 280)),
    "sft_lora_bfloat16": _setting("qwen2.5-vl", "sft", None, _HALF, samples=3, screen=(280, 280)),
    "sft_lora_checkpointed": _setting("qwen3-vl", "sft", _CHECKPOINTED, _LORA, samples=8),
    "ppo_whole": _setting("qwen2.5-vl", "rl"),
    "ppo_lora": _setting("qwen3-vl", "rl", None, _LORA),
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="flywheel bench plan", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda was never measured")
    parser.add_argument("--settings", nargs="*", choices=sorted(SETTINGS), help="these alone")
    options = parser.parse_args(argv)
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.settings or SETTINGS:
            asked = SETTINGS[name]
            model = Path(folder) / asked["model"]
            if not model.exists():
                _run({"folder": str(model), "write": MODELS[asked["model"]]})
            found = json.loads(_run(asked | {"folder": str(model), "device": options.device}))
            ours, peer = (found[key] / 2**20 for key in ("planned", "measured"))
            error = abs(ours / peer - 1)
            facts = {"error": error, "parameters": found["parameters"]}
            facts |= {key: size / 2**20 for key, size in found.items() if key.endswith(("_loading", "_saving"))}
            case = BenchCase("plan", name, "MiB", ours, peer, "measured", ours / peer, None, error <= GOAL, facts)
            cases.append(emit_case(case))
    worst = max(case.extra["error"] for case in cases)
    cases.append(BenchCase("plan", "plan_error", "fraction", worst, None, "none", None, GOAL, worst <= GOAL))
    emit_case(cases[-1])
    return exit_code(cases)


def _run(asked: dict[str, Any]) -> str:
    alone = {"MALLOC_MMAP_THRESHOLD_": str(1 << 18), "MALLOC_TOP_PAD_": "0", "OMP_NUM_THREADS": "1"}
    root = Path(__file__).resolve().parent
    done = subprocess.run(
        [sys.executable, str(root / "plan_step.py"), json.dumps(asked)],
        env=os.environ | alone | {"PYTHONPATH": str(root.parent)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()[-1] if done.stdout else ""


if __name__ == "__main__":
    raise SystemExit(main())
