"""Save and load the resumable state of a training as one file.

CT, SFT, RL and pretraining save theirs with it, in one process or several, with plain torch or ZeRO.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from flywheel.training.distributed.engine import TrainingEngine, gather_across_ranks
from flywheel.utils.errors import TrainingError
from flywheel.utils.files import atomic_file, remove_unfinished


class TrainState:
    """Hold weights, optimisers, counters and random state: all of a training that must outlast a kill.

    modules: by name. engines: what steps some of them, by the same names. counters: attributes of the subclass, whole
    numbers. Where several processes train, all of them make each call, and the first one alone writes.
    """

    counters: ClassVar[tuple[str, ...]] = ()

    def __init__(self, modules: Mapping[str, nn.Module], engines: Mapping[str, TrainingEngine]) -> None:
        self._modules, self._engines = modules, engines

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes files and speaks for the others."""
        return all(engine.rank == 0 for engine in self._engines.values())

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Inside of it the modules hold all of their weights, to be saved or published, also under ZeRO 3."""
        with ExitStack() as stack:
            for engine in self._engines.values():
                stack.enter_context(engine.gather_weights())
            yield

    def state_dict(self) -> dict[str, Any]:
        """Return the state as it is now, on the CPU: tensors, numbers, texts and bytes, which `torch.save` takes and
        `torch.load(weights_only=True)` gives back."""
        with self.gathered():
            weights = {name: _copy_to_cpu(module.state_dict()) for name, module in self._modules.items()}
        return {
            "modules": weights,
            "engines": {name: engine.state_dict() for name, engine in self._engines.items()},
            "counters": {name: getattr(self, name) for name in self.counters},
            "random": torch.get_rng_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state. Raises TrainingError where it is of another model or another engine.

        Nothing that counts is changed then: the run must be begun anew.
        """
        with self.gathered():
            for name, module in self._modules.items():
                _check_fits(module, state["modules"].get(name, {}), name)
        try:
            for name, module in self._modules.items():
                if name not in self._engines or not self._engines[name].holds_weights:
                    module.load_state_dict(state["modules"][name])
            for name, engine in self._engines.items():
                engine.load_state_dict(state["engines"][name])
        except (KeyError, ValueError, RuntimeError) as error:
            raise _misfit_error(str(error).splitlines()[0]) from None
        for name in self.counters:
            setattr(self, name, state["counters"][name])
        torch.set_rng_state(state["random"])

    def save(self, path: Path, about: dict[str, Any]) -> None:
        """Write the state and `about`, with its "key", which names the run's inputs, to the file `path`, whole or
        not at all."""
        state = self.state_dict()
        if self.first:
            remove_unfinished(path.parent, path.name)
            with atomic_file(path) as temporary:
                torch.save({**about, "state": state}, temporary)

    def load(self, path: Path, key: str) -> dict[str, Any] | None:
        """Restore what `save` wrote to the file `path`; returns its `about`, None where there is no file or one of
        another key.

        key: names the run's inputs. Raises TrainingError where the processes, which may be on several machines, do not
        find the same.
        """
        raw = _read_state_file(path)
        state = raw.pop("state", None)
        found = raw if state and raw.get("key") == key else None
        engine = next(iter(self._engines.values()))  # all have the same processes
        if any(other != found for other in gather_across_ranks(found, engine)):
            fix = "look whether their machines share the folder; where it is NFS, try again in a minute"
            raise TrainingError("the processes do not find the same saved state", where=path, fix=fix)
        if found:
            self.load_state_dict(state)
        return found


def _read_state_file(path: Path) -> dict[str, Any]:
    """{} where there is none."""
    with suppress(OSError):
        list(path.parent.iterdir())  # NFS then asks the server whether it is there, and takes no earlier answer for it
    return torch.load(path, weights_only=True) if path.is_file() else {}


def _copy_to_cpu(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in weights.items()}


def _check_fits(module: nn.Module, state: Mapping[str, Tensor], name: str) -> None:
    """Raises TrainingError naming the first weight that does not fit."""
    mine = module.state_dict()
    for key in sorted(mine.keys() | state.keys()):
        if key not in state:
            raise _misfit_error(f"the {name}'s {key} is not among the saved weights")
        if key not in mine:
            raise _misfit_error(f"the saved {key} has no place in the {name}")
        if mine[key].shape != state[key].shape:
            raise _misfit_error(
                f"the {name}'s {key} is {_format_shape(mine[key])}, the saved one {_format_shape(state[key])}"
            )


def _format_shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape))


def _misfit_error(what: str) -> TrainingError:
    fix = "it is of another model or engine: delete it and begin anew"
    return TrainingError(what, where="the saved state", fix=fix)
