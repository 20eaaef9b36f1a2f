"""DeepSpeed's ZeRO 1 to 3 as an `Engine`: optimiser states, gradients, weights shared out over the processes.

It runs on a CPU too (DS_ACCELERATOR=cpu, gloo), which is how it is tested (`make test-deepspeed`); the first start
then compiles for a minute. The optimiser is torch's AdamW: DeepSpeed's own ones compile for another.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flywheel.errors import TrainingError
from flywheel.settings import Optimizer
from flywheel.training.parallel.engine import R, adamw, collected, processes, set_rate

_TAG = "flywheel"


class ZeroEngine:
    """zero_stage 1 shares out the optimiser's states, 2 the gradients too, 3 the weights too.

    Raises TrainingError where deepspeed is not installed.
    """

    holds_weights = True  # in DeepSpeed's own checkpoint

    def __init__(self, module: nn.Module, chosen: Optimizer) -> None:
        deepspeed = _library()
        _meet(deepspeed)
        self.module, self.stage = module, chosen.zero_stage
        self.rank, self.size = processes()
        self.shares = self.size
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._engine, *_ = deepspeed.initialize(
            model=module,
            model_parameters=parameters,
            optimizer=adamw(parameters, chosen),
            dist_init_required=False,
            config={
                "train_micro_batch_size_per_gpu": 1,
                "gradient_accumulation_steps": 1,  # where a step ends is said at each backward pass
                "gradient_clipping": chosen.max_grad_norm,
                "zero_optimization": {"stage": self.stage},
                "zero_allow_untested_optimizer": True,
                "steps_per_print": 1 << 30,
            },
        )
        if self.stage == 3:
            _declare(deepspeed, module)

    def forward(self, *inputs: Any) -> Any:
        return self._engine(*inputs)

    def add_up(self, losses: Sequence[Callable[[], tuple[Tensor, R]]]) -> list[R]:
        results = []
        for number, part in enumerate(losses, 1):
            loss, found = part()
            results.append(found)
            self._engine.set_gradient_accumulation_boundary(number == len(losses))
            self._engine.backward(loss * self.size)  # it averages over the processes, and the loss is a sum
            if number < len(losses):
                self._engine.step()  # counts, and takes no step
        return results

    def step(self, rate: float) -> float:
        set_rate(self._engine.optimizer, rate)
        self._engine.step()
        return float(self._engine.get_global_grad_norm())

    @contextmanager
    def full(self) -> Iterator[None]:
        if self.stage < 3:
            yield
            return
        with _library().zero.GatheredParameters(list(self.module.parameters())):
            yield

    def state_dict(self) -> dict[str, Any]:
        """The files of DeepSpeed's checkpoint, by name: of all processes, in each."""
        with tempfile.TemporaryDirectory() as folder:  # of this process's files: another one may be on another machine
            self._engine.save_checkpoint(folder, tag=_TAG)
            own = {str(path.relative_to(folder)): path.read_bytes() for path in _files(Path(folder))}
        files = {name: content for each in collected(own, self) for name, content in each.items()}
        return {"stage": self.stage, "size": self.size, "files": files}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if (state.get("stage"), state.get("size")) != (self.stage, self.size):
            raise TrainingError(
                f"the saved optimiser is of ZeRO {state.get('stage')} and {state.get('size')} processes",
                where="the saved state",
                fix=f"go on with the same, not with ZeRO {self.stage} and {self.size}",
            )
        with tempfile.TemporaryDirectory() as folder:
            for name, content in state["files"].items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            self._engine.load_checkpoint(folder, tag=_TAG)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix == ".pt")


def _library() -> Any:
    try:
        import deepspeed
    except ImportError:
        raise TrainingError(
            "deepspeed is not installed",
            where="engine",
            fix="pip install 'flywheel[deepspeed]' (DS_BUILD_OPS=0), or set engine to torch",
        ) from None
    return deepspeed


def _meet(deepspeed: Any) -> None:
    """The processes find one another as torchrun told them; a process alone is a group of one."""
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if "RANK" not in os.environ and not torch.distributed.is_initialized():
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
        torch.distributed.init_process_group(backend, store=torch.distributed.HashStore(), rank=0, world_size=1)
    if torch.distributed.is_initialized():
        deepspeed.init_distributed(dist_init_required=False, auto_mpi_discovery=False)
        return
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, verbose=False)


def _declare(deepspeed: Any, module: nn.Module) -> None:
    """`patches.quick_patches` reads the projection's weights outside of its own pass: ZeRO 3 must be told."""
    for part in module.modules():
        projection = getattr(part, "proj", None)
        if isinstance(projection, nn.Conv3d):
            for parameter in projection.parameters():
                deepspeed.zero.register_external_parameter(part, parameter)
