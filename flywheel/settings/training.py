"""Blocks `ct` and `sft`, and what every kind of training shares."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from flywheel.settings.block import Block


class Optimizer(Block):
    """How gradient steps are taken: in CT, SFT, RL and pretraining alike. AdamW; each step names its own rate."""

    engine: Literal["torch", "deepspeed"] = "torch"
    """What takes the gradient steps. deepspeed needs flywheel[deepspeed]."""
    zero_stage: Literal[1, 2, 3] = 2
    """What the processes share out (ZeRO): 1 the optimizer's state, 2 gradients too, 3 weights too. For engine
    deepspeed."""
    processes: int = Field(1, ge=1, le=64)
    """Processes that train together, on one machine or on cluster.training_nodes. Each has a GPU of its own where there
    are GPUs."""
    max_grad_norm: float = Field(1.0, gt=0)
    """A gradient with a larger norm is scaled down to it."""
    weight_decay: float = Field(0.01, ge=0)
    """AdamW's weight decay."""
    beta2: float = Field(0.95, ge=0, lt=1)
    """AdamW's decay rate of the squared gradient's mean. beta1 is 0.9."""


class Training(Optimizer):
    """What CT, SFT and RL share."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The device that trains. auto: the GPU if there is one."""
    pack_tokens: int = Field(4096, ge=0)
    """Tokens of one forward pass, put side by side without padding. 0: samples are padded, micro_batch at a time."""
    micro_batch: int = Field(32, ge=1)
    """Samples of one padded forward pass. It changes the memory needed, not the result."""
    freeze_vision: bool = False
    """Whether the vision tower stays as it is. Each screen is then read once, and a step takes less time."""


class Supervised(Training):
    """What CT and SFT share."""

    freeze_vision: bool = True
    """Whether the vision tower stays as it is. Each screen is then read once, and a step takes less time."""
    samples: int = Field(2000, ge=1)
    """Samples trained on in one iteration, general data included."""
    batch: int = Field(16, ge=1)
    """Samples of a gradient step."""
    lr: float = Field(7e-4, gt=0)
    """The highest learning rate."""
    agent_fraction: float = Field(0.5, ge=0, le=1)
    """Share of samples that show steps of tasks. The rest are general data."""
    max_repeats: int = Field(12, ge=1)
    """Times that a step is trained on, on average, at most. General data fill the rest."""
    warmup: float = Field(0.05, ge=0, lt=1)
    """Share of the gradient steps in which the learning rate rises. Then it falls along a cosine to a tenth."""
    save_every: int = Field(10, ge=1)
    """Gradient steps between two saved states, from which a killed run goes on."""


class Ct(Supervised):
    """Continual training (CT): on people's recordings and what was not good enough for SFT."""

    every: int = Field(1, ge=1)
    """CT runs once in this many iterations, beginning with the first. 1: in each."""
    hands_on: Literal["newest", "last"] = "newest"
    """What SFT begins from where CT does not run: the newest model, or the last one that CT trained, so that it learns
    all of its window anew."""
    rollout_weight: float = Field(0.02, ge=0, le=1)
    """Weight of a step that the model itself played, unverified. A person's step weighs 1."""


class Sft(Supervised):
    """Supervised fine-tuning (SFT): on trajectories that solved their task."""

    window: int = Field(2, ge=1)
    """The newest iterations whose trajectories are trained on."""
    demonstrations: float = Field(0.5, ge=0, lt=1)
    """Share of the steps of tasks that are people's demonstrations, of all iterations, beside the model's own."""
    verified_only: bool = True
    """Train on trajectories that solved their task alone. false: on all of the model's, and CT gets none of them."""
    samples: int = Field(320, ge=1)
    batch: int = Field(32, ge=1)
    lr: float = Field(1e-4, gt=0)
    agent_fraction: float = Field(0.6, ge=0, le=1)
