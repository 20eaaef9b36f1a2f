"""One of the processes of a test of engines: PPO steps on made-up experience; the first writes what came out.

Started by torchrun (or alone) as `engine_worker.py MODEL OUT ENGINE STAGE`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from made_experience import made_up

from flywheel.config import RlSettings
from flywheel.policy.model import load_model
from flywheel.training.rl.trainer import Learner, estimate_step_samples, pretrain_value, train_step


def main(model: Path, out: Path, engine: str, stage: int) -> None:
    rl = RlSettings(
        engine=engine,
        zero_stage=stage or 1,
        minibatch=8,
        pack_tokens=150,
        actor_lr=1e-5,
        positive_nll=0.1,
        value_pretraining_steps=3,
        max_grad_norm=0.5,
        max_logprob_diff_on_policy=100,
    )
    if engine == "torch" and "RANK" in os.environ:
        dist.init_process_group("gloo")
    batch = made_up(model, rl)
    made = Learner(load_model(model), rl, 0)
    pretrain_value(made, batch, rl, seed=0)
    figures = [train_step(made, estimate_step_samples(batch, made, rl)[0], rl, seed) for seed in (1, 2)]
    state = made.state_dict()
    figures.append(train_step(made, estimate_step_samples(batch, made, rl)[0], rl, 3))
    again = Learner(load_model(model), rl, 5)
    again.load_state_dict(state)
    repeated = train_step(again, estimate_step_samples(batch, again, rl)[0], rl, 3)
    with again.gathered():
        weights = float(sum(tensor.double().abs().sum() for tensor in again.policy.state_dict().values()))
    if made.first:
        out.write_text(json.dumps({"figures": figures, "repeated": repeated, "weights": weights}))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
