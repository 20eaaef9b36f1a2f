"""What RL trains, and all of it that must outlast a kill: policy, value model, optimisers, counters, random state."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from transformers import PreTrainedModel

from flywheel.errors import TrainingError
from flywheel.settings import Rl
from flywheel.training.engine import Engine, TorchEngine, open_engine
from flywheel.training.reading import Reader
from flywheel.training.value import ValueModel


class Learner:
    """policy, value: on one base, the policy's trunk. reader: the policy as training reads it. actor, critic: the
    engines that step them. version: PPO steps taken, which names the newest weights; gradient_steps: the policy's.
    """

    def __init__(self, policy: PreTrainedModel, rl: Rl, seed: int) -> None:
        self.policy = policy.train()
        self.reader = Reader(policy)
        self.actor: Engine = open_engine(self.reader, rl, rl.actor_lr)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.value = ValueModel(policy).to(next(policy.parameters()).device)
        self.critic: Engine = TorchEngine(self.value, rl, rl.critic_lr)  # too small to be shared out
        self.version = self.gradient_steps = 0

    @property
    def first(self) -> bool:
        """Whether this process speaks for all: the others have no environments and write no files."""
        return self.actor.rank == 0

    def gathered(self) -> AbstractContextManager[None]:
        """Inside of it `policy` holds all of its weights, to be saved or published, also under ZeRO 3."""
        return self.actor.full()

    def state_dict(self) -> dict[str, Any]:
        """Tensors, numbers, texts and bytes: `torch.save` takes it, `torch.load(weights_only=True)` gives it back.

        Where several processes train, all of them call it.
        """
        with self.gathered():
            weights = {name: tensor.detach().cpu().clone() for name, tensor in self.policy.state_dict().items()}
        value = {name: tensor.detach().cpu().clone() for name, tensor in self.value.state_dict().items()}
        return {
            "policy": weights, "value": value,
            "actor": self.actor.state_dict(), "critic": self.critic.state_dict(), "version": self.version,
            "gradient_steps": self.gradient_steps, "random": torch.get_rng_state(),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises TrainingError where the weights are of another model or another engine's; nothing is then changed
        that counts: the run must be begun anew."""
        with self.gathered():
            _check(self.policy, state["policy"], "policy")
        _check(self.value, state["value"], "value model")
        try:
            if "stage" not in state["actor"]:  # DeepSpeed's own checkpoint has the weights, too
                self.policy.load_state_dict(state["policy"])
            self.value.load_state_dict(state["value"])
            self.actor.load_state_dict(state["actor"])
            self.critic.load_state_dict(state["critic"])
        except (KeyError, ValueError, RuntimeError) as error:
            raise _unfit(str(error).splitlines()[0]) from None
        self.version, self.gradient_steps = state["version"], state["gradient_steps"]
        torch.set_rng_state(state["random"])


def learner(policy: PreTrainedModel, rl: Rl, seed: int) -> Learner:
    """A fresh one. seed: of the value model's first weights."""
    return Learner(policy, rl, seed)


def _check(module: torch.nn.Module, state: dict[str, torch.Tensor], name: str) -> None:
    """Raises TrainingError naming the first weight that does not fit."""
    mine = module.state_dict()
    for key in sorted(mine.keys() | state.keys()):
        if key not in state:
            raise _unfit(f"the {name}'s {key} is not among the saved weights")
        if key not in mine:
            raise _unfit(f"the saved {key} has no place in the {name}")
        if mine[key].shape != state[key].shape:
            raise _unfit(f"the {name}'s {key} is {_shape(mine[key])}, the saved one {_shape(state[key])}")


def _shape(tensor: torch.Tensor) -> str:
    return " x ".join(map(str, tensor.shape))


def _unfit(what: str) -> TrainingError:
    return TrainingError(what, where="RL state", fix="it is of another model or engine: delete it and begin anew")
