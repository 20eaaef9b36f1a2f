"""What RL trains, and all of it that must outlast a kill: policy, value model if any, optimisers, counters."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from flywheel.policy.constraint import Constraint
from flywheel.policy.threads import passes_at_once
from flywheel.settings import Rl
from flywheel.training.forward.policy_forward import PolicyForward, freeze_tower
from flywheel.training.parallel.engine import TorchEngine, TrainingEngine, open_engine
from flywheel.training.rl import algorithm as algorithms
from flywheel.training.rl.algorithm import Algorithm
from flywheel.training.rl.value import ValueModel
from flywheel.training.state import TrainState


class Learner(TrainState):
    """reader: the policy as training reads it. value: on the policy's trunk; None where the algorithm needs none.
    actor, critic: the engines that step policy and value model. version: RL steps taken, which names the newest
    weights; gradient_steps: the policy's.
    """

    counters = ("version", "gradient_steps")

    def __init__(
        self,
        policy: PreTrainedModel,
        rl: Rl,
        seed: int,
        algorithm: Algorithm | None = None,
        constraint: Constraint | None = None,
    ) -> None:
        """seed: of the value model's first weights. algorithm: without it the one that rl.algorithm names. constraint:
        what the samples' answers were held to."""
        self.algorithm = algorithm or algorithms.find(rl.algorithm)
        self.policy = policy.train()
        at_once = passes_at_once(policy)
        self.reader = PolicyForward(policy, constraint, keeps_screens=freeze_tower(policy, rl), at_once=at_once)
        self.actor: TrainingEngine = open_engine(self.reader, rl, at_once)
        self.value: ValueModel | None = None
        modules, engines = {"policy": policy}, {"policy": self.actor}
        if self.algorithm.needs_value:
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                self.value = ValueModel(policy).to(next(policy.parameters()).device)
            self.critic: TrainingEngine = TorchEngine(self.value, rl)  # too small to be shared out
            modules["value"], engines["value"] = self.value, self.critic
        self.version = self.gradient_steps = 0
        super().__init__(modules, engines)
