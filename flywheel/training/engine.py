"""What takes the gradient steps: plain torch, or DeepSpeed's ZeRO 1 to 3, behind one contract and with one loop.

Several processes (`crew`) share one global batch: each reads its parts of it, and the gradient is the sum over all
of them, as the loss is (`ppo.py`: sums over the tokens, divided by their number in the global batch). So how many
processes there are, and which engine, changes the losses by rounding alone (tests/test_engines.py).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from flywheel.errors import TrainingError
from flywheel.settings import Rl

T = TypeVar("T")


class Engine(Protocol):
    """One trained module with its optimiser. rank, size: this process, and how many there are.

    Every process makes the same calls in the same order; those of `module`, too, go through `forward`.
    """

    rank: int
    size: int
    module: nn.Module

    def forward(self, *inputs: Any) -> Any:
        """The module's forward pass."""

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradient of this process's part of the loss. last: the next call is `step`."""

    def step(self, rate: float) -> float:
        """Add up the gradients of the processes, cut their norm to rl.max_grad_norm, take a step at this learning rate.

        Returns the norm before the cut. Raises TrainingError where it is not finite.
        """

    def full(self) -> Any:
        """A context in which the module holds its whole weights, also where the processes share them out."""

    def state_dict(self) -> dict[str, Any]:
        """The optimiser's state, of all processes, as it is now: later steps do not change it."""

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class TorchEngine:
    """AdamW in every process, with all of the weights."""

    def __init__(self, module: nn.Module, rl: Rl, rate: float) -> None:
        self.module, self._norm = module, rl.max_grad_norm
        self.rank, self.size = processes()
        self.optimizer = torch.optim.AdamW(module.parameters(), lr=rate, weight_decay=0.0)
        self.optimizer.zero_grad(set_to_none=True)

    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs)

    def backward(self, loss: Tensor, *, last: bool) -> None:
        loss.backward()

    def step(self, rate: float) -> float:
        parameters = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        if self.size > 1:
            _add_up(parameters)
        norm = float(nn.utils.clip_grad_norm_(parameters, self._norm))
        finite(norm, "the gradient's norm")
        _set_rate(self.optimizer, rate)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    @contextmanager
    def full(self) -> Iterator[None]:
        yield

    def state_dict(self) -> dict[str, Any]:
        return copy.deepcopy(self.optimizer.state_dict())  # torch's own is the tensors that the next step changes

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)


def open_engine(module: nn.Module, rl: Rl, rate: float) -> Engine:
    """The engine that rl.engine names. Raises TrainingError where DeepSpeed is not installed."""
    if rl.engine == "torch":
        return TorchEngine(module, rl, rate)
    from flywheel.training.zero import ZeroEngine

    return ZeroEngine(module, rl, rate, rl.zero_stage)


def processes() -> tuple[int, int]:
    """(rank, number) of the processes that train together."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else (0, 1)


def rounds(parts: Sequence[T], engine: Engine) -> list[tuple[T, float]]:
    """This process's parts, each with weight 1. All processes get as many, since their passes wait for one another:
    one that has none left takes a part with weight 0."""
    count = -(-len(parts) // engine.size)
    places = [number * engine.size + engine.rank for number in range(count)]
    return [(parts[place], 1.0) if place < len(parts) else (parts[0], 0.0) for place in places]


def added(numbers: Sequence[float], engine: Engine) -> list[float]:
    """Sums over the processes."""
    if engine.size == 1:
        return list(numbers)
    total = torch.tensor(list(numbers), dtype=torch.float64, device=_device(engine.module))
    dist.all_reduce(total)
    return total.tolist()


def collected(mine: T, engine: Engine) -> list[T]:
    """What each process has, by rank; it is pickled on the way."""
    if engine.size == 1:
        return [mine]
    every: list[Any] = [None] * engine.size
    dist.all_gather_object(every, mine)
    return every


def finite(value: float, what: str) -> None:
    """Raises TrainingError where it is not."""
    if not math.isfinite(value):
        raise TrainingError(f"{what} is {value}", where="PPO", fix="lower the learning rates")


def _set_rate(optimizer: Any, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def _device(module: nn.Module) -> torch.device:
    return next(module.parameters()).device


def _add_up(parameters: Sequence[nn.Parameter]) -> None:
    """Sum the gradients over the processes in one exchange."""
    for parameter in parameters:
        if parameter.grad is None:  # a process may have had no such part
            parameter.grad = torch.zeros_like(parameter)
    flat = torch.cat([parameter.grad.reshape(-1) for parameter in parameters])
    dist.all_reduce(flat)
    for piece, parameter in zip(flat.split([parameter.numel() for parameter in parameters]), parameters, strict=True):
        parameter.grad.copy_(piece.view_as(parameter))
