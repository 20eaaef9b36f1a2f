"""Take the gradient steps of every training, by plain torch or DeepSpeed's ZeRO 1 to 3, and save its state."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from flywheel.config import OptimizerSettings
from flywheel.policy.adapter import has_adapter
from flywheel.policy.devices import enable_tf32, is_cuda
from flywheel.policy.model import require_bitsandbytes
from flywheel.policy.torch_threads import open_pass_pool
from flywheel.utils.errors import TrainingError, first_line
from flywheel.utils.files import atomic_file, disk_full_errors, remove_unfinished

# CT, SFT, RL's policy and value model, and pretraining all take their steps by `take_gradient_step`. Several processes
# (`worker_group.py`) share one global batch: each computes its part of it, and loss and gradient are sums over all
# parts (`rl/losses.py`: sums over the tokens, divided by their number in the global batch). So the number of processes
# and the engine change the losses by rounding only (tests/integration/test_engines.py).

T = TypeVar("T")
R = TypeVar("R")


class TorchEngine:
    """Train one `module` by AdamW in plain torch; every process has all of its weights.

    chosen: settings of the optimiser. at_once: passes that run in parallel, one core each. Attributes: rank and size,
    index of this process and number of processes; shares, the number of about equal parts into which a batch is best
    cut, over all processes; holds_weights, whether `state_dict` includes the module's weights.

    Every process must make the same calls in the same order, and call the module through `forward`. Raises ModelError
    as `build_adamw`.
    """

    holds_weights = False

    def __init__(self, module: nn.Module, chosen: OptimizerSettings, at_once: int = 1) -> None:
        self.module, self._norm = module, chosen.max_grad_norm
        self.rank, self.size = get_rank_and_world_size()
        self.shares, self._beside = self.size * at_once, open_pass_pool(at_once)
        self.optimizer = build_adamw(list(module.parameters()), chosen)
        self.optimizer.zero_grad(set_to_none=True)

    def forward(self, *inputs: Any) -> Any:
        """Run the module's forward pass on `inputs`."""
        return self.module(*inputs)

    def accumulate_gradients(self, losses: Sequence[Callable[[], tuple[Tensor, R]]]) -> list[R]:
        """Add the gradients of this process's parts of the loss to those since the last `step`.

        losses: each makes a forward pass and returns its loss (a scalar) and a result. Returns the results, in order.
        """
        if self._beside and len(losses) > 1:
            return self._accumulate_side_by_side(self._beside, losses)
        results = []
        for part in losses:
            loss, found = part()
            loss.backward()
            results.append(found)
        return results

    def _accumulate_side_by_side(self, threads: Executor, losses: Sequence[Callable[[], tuple[Tensor, R]]]) -> list[R]:
        """Accumulate gradients of parallel passes. Each pass has its own gradient until its turn, so that the order of
        the sum does not depend on timing."""
        trained, results = self._trained(), []

        def gradient_of(part: Callable[[], tuple[Tensor, R]]) -> tuple[Sequence[Tensor | None], R]:
            loss, found = part()
            return torch.autograd.grad(loss, trained, allow_unused=True), found

        for gradients, found in threads.map(gradient_of, losses):
            for parameter, more in zip(trained, gradients, strict=True):
                if more is not None:
                    parameter.grad = more if parameter.grad is None else parameter.grad + more
            results.append(found)
        return results

    def step(self, rate: float) -> float:
        """Take a step with learning rate `rate`; return the gradient's norm before clipping.

        The gradients are summed over the processes, and their norm is clipped.
        """
        parameters = self._trained()
        if self.size > 1:
            _sum_gradients_across_ranks(parameters)
        norm = float(nn.utils.clip_grad_norm_(parameters, self._norm))
        set_learning_rate(self.optimizer, rate)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def _trained(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def gather_weights(self) -> AbstractContextManager[None]:
        """Return a context within which the module has all of its weights in this process."""
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the optimiser's state, of all processes, on the CPU."""
        # A copy, as the next step changes torch's tensors in place; on the CPU, as a GPU may have no room for it.
        return tree_map_only(Tensor, lambda one: one.detach().to("cpu", copy=True), self.optimizer.state_dict())

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise TrainingError where `load_state_dict` cannot restore `state`; nothing is changed."""
        if "param_groups" not in state:
            raise _misfit_error("the saved optimiser is not of engine torch")
        saved, own = (
            [len(group["params"]) for group in groups]
            for groups in (state["param_groups"], self.optimizer.param_groups)
        )
        if saved != own:
            raise _misfit_error(f"the saved optimiser has groups of {saved} weights, this one of {own}")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the optimiser, and with `holds_weights` the weights. state: as `state_dict` returned it."""
        self.optimizer.load_state_dict(state)


def open_engine(module: nn.Module, chosen: OptimizerSettings, at_once: int = 1) -> TrainingEngine:
    """Open the engine `chosen.engine` for a module on its device.

    at_once: passes that plain torch runs in parallel. Raises TrainingError where DeepSpeed is set and not installed,
    ModelError as `build_adamw`.
    """
    enable_tf32(_device(module))
    if chosen.engine == "torch":
        return TorchEngine(module, chosen, at_once)
    return ZeroEngine(module, chosen)


def take_gradient_step(
    engine: TrainingEngine,
    mine: Sequence[tuple[T, float]],
    loss_of: Callable[[T], tuple[Tensor, Sequence[float]]],
    rate: float,
    *,
    what: str,
    where: str,
    rate_name: str = "the learning rate",
) -> tuple[list[float], float]:
    """Take a gradient step on a batch that all processes share.

    mine: micro-batches of this process, each with the weight of its loss (`pad_microbatches_across_ranks`; 0 for one
    that only fills up). loss_of: makes a forward pass over a micro-batch; returns its part of the batch's loss (a
    scalar) and figures, which are both summed over all micro-batches. It is called from several threads if the engine
    runs passes in parallel. rate: learning rate. what, where: name of the step in errors. rate_name: parameter that the
    rate comes from.

    Returns ([loss, *figures] of the whole batch, the gradient's norm before clipping). Raises TrainingError, in all
    processes, where the loss or the norm is not finite.
    """

    def weighed(part: T, weight: float) -> tuple[Tensor, list[float]]:
        loss, figures = loss_of(part)
        loss = loss * weight
        return loss, [float(loss.detach()), *figures] if weight else [0.0] * (1 + len(figures))

    found = engine.accumulate_gradients([partial(weighed, part, weight) for part, weight in mine])
    sums = sum_across_ranks([sum(column) for column in zip(*found, strict=True)], engine)
    _check_finite(sums[0], f"the loss of {what}", where, rate_name)
    norm = engine.step(rate)
    _check_finite(norm, f"the gradient's norm of {what}", where, rate_name)
    return sums, norm


def _check_finite(value: float, what: str, where: str, rate_name: str) -> None:
    if not math.isfinite(value):
        raise TrainingError(f"{what} is {value}", where=where, fix=f"lower {rate_name}")


def get_rank_and_world_size() -> tuple[int, int]:
    """Return (rank of this process, number of processes that train together); (0, 1) without a process group."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else (0, 1)


def pad_microbatches_across_ranks(parts: Sequence[T], engine: TrainingEngine) -> list[tuple[T, float]]:
    """Return this process's share of the micro-batches `parts`, (part, weight) each, equally many in all processes.

    parts: of the whole batch, at least one. The weight is 1, or 0 for a part that only fills up: the passes of the
    processes of `engine` wait for one another, so all must make the same number.
    """
    count = -(-len(parts) // engine.size)
    places = [number * engine.size + engine.rank for number in range(count)]
    return [(parts[place], 1.0) if place < len(parts) else (parts[0], 0.0) for place in places]


def sum_across_ranks(numbers: Sequence[float], engine: TrainingEngine) -> list[float]:
    """Sum `numbers` elementwise over the processes of `engine`; each process has to call it with equally many."""
    if engine.size == 1:
        return list(numbers)
    total = torch.tensor(list(numbers), dtype=torch.float64, device=_device(engine.module))
    dist.all_reduce(total)
    return total.tolist()


def gather_across_ranks(mine: T, engine: TrainingEngine) -> list[T]:
    """Return the value `mine` of each process of `engine`, by rank; each process has to call it.

    The values are pickled.
    """
    if engine.size == 1:
        return [mine]
    every: list[Any] = [None] * engine.size
    dist.all_gather_object(every, mine)
    return every


def build_adamw(parameters: Sequence[nn.Parameter], chosen: OptimizerSettings) -> torch.optim.Optimizer:
    """Build the AdamW optimiser of `parameters`, with learning rate 0 until a step sets it.

    parameters: at least one. chosen: block `ct`, `sft` or `rl`. On a GPU it is torch's fused version. Raises ModelError
    for adamw_8bit without bitsandbytes or a GPU.
    """
    if chosen.optimizer == "adamw_8bit":
        require_bitsandbytes("optimizer", parameters[0].device.type)
        from bitsandbytes.optim import AdamW8bit

        return AdamW8bit(parameters, lr=0.0, betas=(0.9, chosen.beta2), weight_decay=chosen.weight_decay)
    fused = is_cuda(parameters[0].device) or None  # None: torch chooses
    return torch.optim.AdamW(
        parameters, lr=0.0, betas=(0.9, chosen.beta2), weight_decay=chosen.weight_decay, fused=fused
    )


def set_learning_rate(optimizer: Any, rate: float) -> None:
    """Set the learning rate of all parameters of `optimizer` to `rate`."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def _device(module: nn.Module) -> torch.device:
    return next(module.parameters()).device


def _sum_gradients_across_ranks(parameters: Sequence[nn.Parameter]) -> None:
    """Sum the gradients over the processes in one exchange. A parameter without a gradient in every process stays
    without one, as with a single process: the optimiser then neither changes nor decays it."""
    there = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.int32)
    there = there.to(parameters[0].device)
    dist.all_reduce(there, dist.ReduceOp.MAX)
    trained = [parameter for parameter, anywhere in zip(parameters, there.tolist(), strict=True) if anywhere]
    for parameter in trained:
        if parameter.grad is None:  # only another process has a gradient
            parameter.grad = torch.zeros_like(parameter)
    flat = torch.cat([parameter.grad.reshape(-1) for parameter in trained])
    dist.all_reduce(flat)
    for piece, parameter in zip(flat.split([parameter.numel() for parameter in trained]), trained, strict=True):
        parameter.grad.copy_(piece.view_as(parameter))


# DeepSpeed runs on a CPU too (DS_ACCELERATOR=cpu, gloo), where it is tested (`make test-deepspeed`); the first start
# then compiles for a minute. The optimiser is torch's AdamW: DeepSpeed's own would compile for another minute.

_TAG = "flywheel"


class ZeroEngine:
    """Train one module by DeepSpeed's ZeRO, with the interface of `TorchEngine`.

    zero_stage 1 splits the optimiser's state over the processes, 2 the gradients too, 3 the weights too. Raises
    TrainingError where DeepSpeed is not installed, ModelError as `build_adamw`.
    """

    holds_weights = True  # in DeepSpeed's own checkpoint

    def __init__(self, module: nn.Module, chosen: OptimizerSettings) -> None:
        deepspeed = _import_deepspeed()
        _join_deepspeed_group(deepspeed)
        self.module, self.stage = module, chosen.zero_stage
        self.rank, self.size = get_rank_and_world_size()
        self.shares = self.size
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,  # `accumulate_gradients` marks the end of a step at each backward pass
            "gradient_clipping": chosen.max_grad_norm,
            "zero_optimization": {"stage": self.stage, **_offloading(chosen)},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,  # DeepSpeed's own must be compiled
            "steps_per_print": 1 << 30,
        }
        self._engine, *_ = deepspeed.initialize(
            model=module,
            model_parameters=parameters,
            optimizer=build_adamw(parameters, chosen),
            dist_init_required=False,
            config=config,
        )
        if self.stage == 3:
            _register_external_parameters(deepspeed, module)

    def forward(self, *inputs: Any) -> Any:
        """Return what the module's forward pass returns, as `TorchEngine.forward`."""
        return self._engine(*inputs)

    def accumulate_gradients(self, losses: Sequence[Callable[[], tuple[Tensor, R]]]) -> list[R]:
        """Add the gradients of `losses`, and return their results, as `TorchEngine.accumulate_gradients`.

        It may be called only once between two calls of `step`.
        """
        results = []
        for number, part in enumerate(losses, 1):
            loss, found = part()
            results.append(found)
            self._engine.set_gradient_accumulation_boundary(number == len(losses))
            self._engine.backward(loss * self.size)  # DeepSpeed averages over the processes, but the loss is a sum
            if number < len(losses):
                self._engine.step()  # only counts the micro-batch
        return results

    def step(self, rate: float) -> float:
        """Take a step with learning rate `rate`, as `TorchEngine.step`; return the norm before clipping."""
        set_learning_rate(self._engine.optimizer, rate)
        self._engine.step()
        return float(self._engine.get_global_grad_norm())

    def gather_weights(self) -> AbstractContextManager[None]:
        """Give the module all of its weights within the block, as `TorchEngine.gather_weights`."""
        if self.stage < 3:
            return nullcontext()
        return _import_deepspeed().zero.GatheredParameters(list(self.module.parameters()))

    def state_dict(self) -> dict[str, Any]:
        """Return the contents of DeepSpeed's checkpoint files of all processes, by file name, in every process."""
        with tempfile.TemporaryDirectory() as folder:  # for this process's files; others may be on another machine
            self._engine.save_checkpoint(folder, tag=_TAG)
            found = sorted(path for path in Path(folder).rglob("*.pt") if path.is_file())
            own = {str(path.relative_to(folder)): path.read_bytes() for path in found}
        files = {name: content for each in gather_across_ranks(own, self) for name, content in each.items()}
        return {"stage": self.stage, "size": self.size, "files": files}

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise TrainingError where `state` is of another ZeRO stage or number of processes; nothing is changed."""
        if (state.get("stage"), state.get("size")) != (self.stage, self.size):
            what = f"the saved optimiser is of ZeRO {state.get('stage')} and {state.get('size')} processes"
            fix = f"go on with the same, not with ZeRO {self.stage} and {self.size}"
            raise TrainingError(what, where="the saved state", fix=fix)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore optimiser and weights, in all processes. state: as `state_dict` returned it."""
        with tempfile.TemporaryDirectory() as folder:
            for name, content in state["files"].items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            self._engine.load_checkpoint(folder, tag=_TAG)


TrainingEngine = TorchEngine | ZeroEngine


def _offloading(chosen: OptimizerSettings) -> dict[str, Any]:
    """Return ZeRO's settings that offload state to the machine's memory."""
    if not chosen.zero_offload:
        return {}
    place = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    return {"offload_optimizer": place} | ({"offload_param": place} if chosen.zero_stage == 3 else {})


def _import_deepspeed() -> Any:
    try:
        import deepspeed
    except ImportError:
        fix = "pip install 'flywheel[deepspeed]' (DS_BUILD_OPS=0), or set engine to torch"
        raise TrainingError("deepspeed is not installed", where="engine", fix=fix) from None
    return deepspeed


def _join_deepspeed_group(deepspeed: Any) -> None:
    """Join DeepSpeed's process group: the existing one, that of torchrun's environment, or a group of one process."""
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if "RANK" not in os.environ and not torch.distributed.is_initialized():
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
        torch.distributed.init_process_group(backend, store=torch.distributed.HashStore(), rank=0, world_size=1)
    if torch.distributed.is_initialized():
        deepspeed.init_distributed(dist_init_required=False, auto_mpi_discovery=False)
        return
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, verbose=False)


def _register_external_parameters(deepspeed: Any, module: nn.Module) -> None:
    """Register weights with ZeRO 3 that are used outside of their own module's forward (`patch_patch_embedding`)."""
    for part in module.modules():
        projection = getattr(part, "proj", None)
        if isinstance(projection, nn.Conv3d):
            for parameter in projection.parameters():
                deepspeed.zero.register_external_parameter(part, parameter)


class TrainState:
    """Hold weights, optimisers, counters and random state of a training, and save them as one file.

    modules: by name. engines: of the trained modules, by the same names. The class variable `counters` has the names of
    the subclass's integer attributes to save. If several processes train, all of them must make each call; only the
    first one writes.
    """

    counters: ClassVar[tuple[str, ...]] = ()

    def __init__(self, modules: Mapping[str, nn.Module], engines: Mapping[str, TrainingEngine]) -> None:
        self._modules, self._engines = modules, engines

    @property
    def first(self) -> bool:
        """Tell whether this process has rank 0: the one that writes files and logs."""
        return all(engine.rank == 0 for engine in self._engines.values())

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Give the modules all of their weights within the block, to save or publish them, also under ZeRO 3."""
        with ExitStack() as stack:
            for engine in self._engines.values():
                stack.enter_context(engine.gather_weights())
            yield

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state on the CPU, of types that `torch.load(weights_only=True)` can load."""
        with self.gathered():
            weights = {
                name: {key: tensor.detach().cpu().clone() for key, tensor in _own_weights(module).items()}
                for name, module in self._modules.items()
            }
        return {
            "modules": weights,
            "engines": {name: engine.state_dict() for name, engine in self._engines.items()},
            "counters": {name: getattr(self, name) for name in self.counters},
            "random": torch.get_rng_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state. Raises TrainingError where it is of another model or engine, with nothing changed."""
        with self.gathered():
            for name, module in self._modules.items():
                _check_fits(module, state["modules"].get(name, {}), name)
        try:
            for name, engine in self._engines.items():
                engine.check_state(state["engines"][name])
            for name, module in self._modules.items():
                if name not in self._engines or not self._engines[name].holds_weights:
                    module.load_state_dict(state["modules"][name], strict=not has_adapter(module))
            for name, engine in self._engines.items():
                engine.load_state_dict(state["engines"][name])
        except (KeyError, ValueError, RuntimeError) as error:
            raise _misfit_error(str(error).splitlines()[0]) from None
        for name in self.counters:
            setattr(self, name, state["counters"][name])
        torch.set_rng_state(state["random"])

    def save(self, path: Path, about: dict[str, Any]) -> None:
        """Write the state and `about` to the file `path`, whole or not at all.

        about: values of types that `torch.load(weights_only=True)` can load; "key" is the digest of the run's inputs.
        Raises DiskFull.
        """
        state = self.state_dict()
        if self.first:
            remove_unfinished(path.parent, path.name)
            with disk_full_errors(path), atomic_file(path) as temporary:
                torch.save({**about, "state": state}, temporary)

    def load(self, path: Path, key: str) -> dict[str, Any] | None:
        """Restore the state that `save` wrote to the file `path`, and return its `about`.

        key: the digest of the run's inputs; None is returned where there is no file, or it has another `key`. Raises
        TrainingError for a damaged file, where the processes, which may be on several machines, find different files,
        and as `load_state_dict`.
        """
        with suppress(OSError):
            list(path.parent.iterdir())  # makes NFS look for the file on the server, and not in its cache
        try:
            raw = torch.load(path, weights_only=True) if path.is_file() else {}
        except Exception as error:  # torch raises many classes for a file that is cut off
            what = f"the saved state cannot be read: {first_line(str(error)) or type(error).__name__}"
            raise TrainingError(what, where=path, fix="delete it and begin anew") from None
        state = raw.pop("state", None)
        found = raw if state and raw.get("key") == key else None
        engine = next(iter(self._engines.values()))  # all engines have the same processes
        if any(other != found for other in gather_across_ranks(found, engine)):
            fix = "look whether their machines share the folder; where it is NFS, try again in a minute"
            raise TrainingError("the processes do not find the same saved state", where=path, fix=fix)
        if found:
            self.load_state_dict(state)
        return found


def _own_weights(module: nn.Module) -> Mapping[str, Tensor]:
    """Return the weights that training can change: those of an adapter on a frozen base, else all."""
    every = module.state_dict()
    return {name: every[name] for name in every if "lora_" in name} if has_adapter(module) else every


def _check_fits(module: nn.Module, state: Mapping[str, Tensor], name: str) -> None:
    """Raise TrainingError, naming the first weight that does not fit, for a state of another model."""
    mine = _own_weights(module)
    for key in sorted(mine.keys() | state.keys()):
        if key not in state:
            raise _misfit_error(f"the {name}'s {key} is not among the saved weights")
        if key not in mine:
            raise _misfit_error(f"the saved {key} has no place in the {name}")
        if mine[key].shape != state[key].shape:
            own, saved = (" x ".join(map(str, weights[key].shape)) for weights in (mine, state))
            raise _misfit_error(f"the {name}'s {key} is {own}, the saved one {saved}")


def _misfit_error(what: str) -> TrainingError:
    fix = "it is of another model or engine: delete it and begin anew"
    return TrainingError(what, where="the saved state", fix=fix)
