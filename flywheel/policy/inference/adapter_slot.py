"""Exchange the adapter that is merged into a loaded model, without loading the base again."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import psutil
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from flywheel.policy.adapter import LayerUpdate, read_layer_updates
from flywheel.policy.inference.fused_layers import PackedLinear

log = logging.getLogger(__name__)


class AdapterSlot:
    """Hold one adapter, or none, in a model for inference, whose weights are the base's with the adapter merged in.

    A copy of the adapted layers' base weights is kept on the same device, if it takes at most half of the free memory
    there. Another adapter can then be merged into the copy, with the same result, bit for bit, as into a freshly loaded
    base. model: the base, after `optimise_for_inference`.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        kinds = (nn.Linear, PackedLinear)
        self._layers = {name: module for name, module in model.named_modules() if isinstance(module, kinds)}
        self._base: dict[str, Tensor] | None = {}  # None: not kept
        self._merged: dict[str, LayerUpdate] | None = None  # None: nothing was put in yet

    @property
    def exchangeable(self) -> bool:
        """Tell whether another adapter can be put in: the base's weights are kept."""
        return self._base is not None

    @property
    def vision_digest(self) -> str:
        """Return a digest of the present adapter's part in the vision tower and its mergers; "" where it has none."""
        seen = sorted((name, one) for name, one in (self._merged or {}).items() if ".visual." in f".{name}")
        sha = hashlib.sha256()
        for name, one in seen:
            sha.update(f"{name} {one.scaling!r} {tuple(one.b.shape)}".encode())
            for part in (one.a, one.b, one.magnitude):
                sha.update(b"" if part is None else part.contiguous().numpy().tobytes())
        return sha.hexdigest() if seen else ""

    @torch.no_grad()
    def put(self, folder: Path | None) -> bool:
        """Merge the adapter in `folder` into the base, in place of the present one; return whether it is merged.

        folder: None restores the base. It is not merged, and nothing is changed, if something was put in before, and
        some of its layers have no copy of their base weights, nor room for one; then load the base again. Raises
        ModelError as `read_layer_updates`. After any error the present adapter is still merged.
        """
        shapes = {name: layer.weight.shape for name, layer in self._layers.items()}
        updates = read_layer_updates(folder, shapes) if folder else {}
        if not self._keep(updates) and self._merged is not None:
            return False
        try:
            self._write(updates)
        except BaseException:
            self._write(self._merged or {})
            raise
        self._merged = updates
        return True

    def _keep(self, updates: dict[str, LayerUpdate]) -> bool:
        """Keep a copy of the base's weights of the layers in `updates` that are adapted for the first time. Return
        whether all of them have one."""
        if self._base is None:
            return False
        if not (new := {name: self._layers[name].weight for name in updates.keys() - self._base}):
            return True
        first = next(iter(new.values()))
        need = sum(weight.numel() for weight in new.values()) * first.element_size()
        if 2 * need > _free_bytes(first.device):
            log.warning("no room for the base's weights (%.1f GB): each adapter loads them again", need / 1e9)
            if self._merged is None:
                self._base = None
            return False
        self._base |= {name: _dense(weight).clone() for name, weight in new.items()}
        return True

    def _write(self, updates: dict[str, LayerUpdate]) -> None:
        for name in updates if self._base is None else self._base:
            layer = self._layers[name]
            base = _dense(layer.weight) if self._base is None else self._base[name]
            # Written where it belongs: memory that is new must be cleared first, which takes as long as the product.
            place = layer.weight if type(layer) is nn.Linear and layer.weight.dtype == torch.float32 else None
            weight = updates[name].merged(base, place) if name in updates else base
            if isinstance(layer, PackedLinear):
                layer.put(weight)
            elif weight is not place:
                layer.weight.copy_(weight)


def _dense(weight: Tensor) -> Tensor:
    return weight.to_dense() if weight.layout == torch._mkldnn else weight


def _free_bytes(device: torch.device) -> int:
    """Return the memory that can be allocated on a device, including what torch has reserved and does not use."""
    if device.type != "cuda":
        return psutil.virtual_memory().available
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + idle
