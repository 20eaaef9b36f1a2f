"""Make, load, save and merge adapters (LoRA by PEFT): small matrices that are trained while the base stays frozen.

A model is a base and at most one adapter; adapters are never stacked. A stage that begins with an adapter continues to
train it; one that begins with a whole checkpoint makes a new adapter for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from flywheel.config import AdapterSettings
from flywheel.policy import checkpoint
from flywheel.policy.checkpoint import ADAPTER_BASE, ADAPTER_CONFIG, ADAPTER_WEIGHTS
from flywheel.utils.errors import ModelError
from flywheel.utils.files import atomic_folder, disk_full_errors, write_json

_NAME = "default"  # PEFT's name of the adapter within a model; it is in no file
_PREFIX = "base_model.model."  # of each tensor's name in PEFT's files
_PART = re.compile(r"(?P<module>.+)\.(?P<kind>lora_A|lora_B|lora_magnitude_vector)(?:\.weight)?")
# The linear layers of each target of `adapter.targets`, as regular expressions of their names' beginnings.
_TARGETS = {
    "language_model": r"model\.language_model\.layers\.\d+\.",
    "merger": r"model\.visual\.(?:merger|deepstack_merger_list\.\d+)\.",
    "vision_tower": r"model\.visual\.blocks\.\d+\.",
}
_OTHER = "set the block adapter as that adapter has it, or merge it (flywheel model merge-adapter) and begin a new one"


def attach_adapter(model: PreTrainedModel, folder: Path, chosen: AdapterSettings, seed: int) -> None:
    """Insert an adapter into `model` in place, the one in `folder` or a new one, and freeze all other weights.

    model: the base's network, from `load_model`. folder: the checkpoint that training begins with: an adapter, which is
    loaded, or a whole checkpoint, for which a new adapter is made. chosen: block `adapter`. seed: of a new adapter's
    matrices A; its matrices B are 0, so that it changes nothing yet. The adapter's weights are float32, whatever the
    base's dtype is. Raises ModelError where the base has no layers of one of the targets, and for an adapter whose
    rank, alpha, rslora, dora or targets differ from `chosen`, whose weights cannot be read, are not finite or have
    other shapes, or whose settings `check_adapter_form` refuses; `model` is then of no use.
    """
    from peft import LoraConfig, inject_adapter_in_model, set_peft_model_state_dict
    from peft.tuners.lora import LoraLayer
    from peft.utils.integrations import dequantize_module_weight

    config = LoraConfig(
        r=chosen.rank,
        lora_alpha=chosen.alpha,
        lora_dropout=chosen.dropout,
        use_rslora=chosen.rslora,
        use_dora=chosen.dora,
        target_modules=_target_pattern(model, chosen),
        bias="none",
    )
    inject_adapter_in_model(config, model, adapter_name=_NAME)
    for name, weight in model.named_parameters():
        weight.requires_grad_("lora_" in name)
        if weight.requires_grad:
            weight.data = weight.data.float()
    # Drawn again in float32: PEFT rounds the matrices that it draws and DoRA's magnitudes to the base's dtype.
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        for module in model.modules():
            if isinstance(module, LoraLayer):
                module.reset_lora_parameters(_NAME, init_lora_weights=True)
                if chosen.dora:
                    rows = dequantize_module_weight(module.get_base_layer()).float().norm(dim=1)
                    module.lora_magnitude_vector[_NAME].weight.copy_(rows)
    if checkpoint.is_adapter(folder):
        check_adapter_form(folder, chosen)
        tensors = read_adapter_tensors(folder)
        mine = {_PREFIX + name: weight.shape for name, weight in get_adapter_state(model).items()}
        for name in sorted(mine.keys() | tensors.keys()):
            if name not in tensors or name not in mine:
                what = f"{'the settings' if name in mine else 'the adapter'} alone adapts {_short(name)}"
                raise ModelError(what, where=folder, fix=f"adapter.targets are {', '.join(chosen.targets)}: {_OTHER}")
            if mine[name] != tensors[name].shape:
                what = f"{_short(name)} has shape {tuple(tensors[name].shape)}, the base wants {tuple(mine[name])}"
                raise ModelError(what, where=folder, fix="copy the adapter and its base again")
        set_peft_model_state_dict(model, {name.removeprefix(_PREFIX): one for name, one in tensors.items()}, _NAME)


def has_adapter(model: nn.Module) -> bool:
    """Tell whether `attach_adapter` inserted an adapter into `model`."""
    return hasattr(model, "peft_config")


def get_adapter_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights of the adapter in `model`, without a copy, by their names in PEFT's files less the prefix."""
    from peft import get_peft_model_state_dict

    own = {name: weight for name, weight in model.state_dict().items() if "lora_" in name}
    return get_peft_model_state_dict(model, state_dict=own, adapter_name=_NAME, save_embedding_layers=False)


def save_adapter(model: PreTrainedModel, begun: Path, folder: Path) -> Path:
    """Write the adapter in `model` to `folder` in PEFT's format, whole or not at all; return the folder.

    `base.json` is written too. model: with an adapter by `attach_adapter`; on any device. begun: the checkpoint that
    training began with: the base, or an adapter of the same base. folder: replaced where it exists. Raises DiskFull,
    and ModelError as `find_base_checkpoint` and, for the base, `checkpoint_digest`.
    """
    state = {_PREFIX + name: weight.detach().cpu().contiguous() for name, weight in get_adapter_state(model).items()}
    write_adapter(state, model.peft_config[_NAME].to_dict(), checkpoint.find_base_checkpoint(begun), folder)
    return folder


def write_adapter(tensors: Mapping[str, Tensor], config: Mapping[str, Any], base: Path, folder: Path) -> None:
    """Write an adapter's weights, adapter_config.json and `base.json` to `folder`, whole or not at all.

    tensors: by their names in the file, on the CPU. config: fields of adapter_config.json, of which those that name the
    base and its use are replaced. base: folder of the whole checkpoint that it belongs to. folder: replaced where it
    exists. Raises DiskFull, and ModelError as `checkpoint_digest`.
    """
    named = checkpoint.name_adapter_base(base, folder)
    by_peft = checkpoint.hub_name(base) or str(base.absolute())  # PEFT resolves it from the working directory
    fields = {**config, "base_model_name_or_path": by_peft, "inference_mode": True, "task_type": "CAUSAL_LM"}
    with disk_full_errors(folder), atomic_folder(folder) as staged:
        save_file(dict(tensors), staged / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        (staged / ADAPTER_WEIGHTS).chmod(0o644)  # the library makes it private, and a server may be another user's
        write_json(staged / ADAPTER_CONFIG, {name: _plain(value) for name, value in sorted(fields.items())})
        write_json(staged / ADAPTER_BASE, asdict(named))


def read_adapter_tensors(folder: Path) -> dict[str, Tensor]:
    """Read an adapter's weights, on the CPU in float32, by their names in the file.

    They are matrices A [rank, in] and B [out, rank], with DoRA magnitudes [out]. folder: the adapter's. Raises
    ModelError for a file that cannot be read or has no weights, a tensor that is no part of a LoRA or belongs to
    lm_head, and one that is not finite.
    """
    file = folder / ADAPTER_WEIGHTS
    found: dict[str, Tensor] = {}
    try:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                found[name] = opened.get_tensor(name).float()
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read the adapter: {checkpoint.summarise_error(error)}", where=file) from None
    for name, tensor in found.items():
        if not (name.startswith(_PREFIX) and _PART.fullmatch(name)):
            raise ModelError(f"{name} is no part of a LoRA that is understood here", where=file)
        if ".lm_head." in name:
            what = "it adapts lm_head, and with tied embeddings its merge would change the input embedding too"
            raise ModelError(what, where=file, fix="train an adapter without lm_head")
        if not torch.isfinite(tensor).all():
            raise ModelError(f"{_short(name)} is not finite", where=file, fix="train that adapter again")
    if not found:
        raise ModelError("the adapter has no weights", where=file, fix="copy it again")
    return found


def name_adapter_tensor(module: str, kind: str) -> str:
    """Return the name of an adapter's tensor in PEFT's files.

    module: name of the base's module. kind: lora_A, lora_B or lora_magnitude_vector.
    """
    return f"{_PREFIX}{module}.{kind}" + ("" if kind == "lora_magnitude_vector" else ".weight")


def iter_adapter_modules(tensors: Mapping[str, Tensor], where: Path) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Yield each adapted module of the base by name, with its tensors by kind, sorted by module.

    The kinds: lora_A [rank, in], lora_B [out, rank] and, with DoRA, lora_magnitude_vector [out]. tensors: as
    `read_adapter_tensors` returns them. where: the file, for messages. Raises ModelError, when it comes to it, for a
    module without lora_A or lora_B.
    """
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        found = _PART.fullmatch(name.removeprefix(_PREFIX))
        parts.setdefault(found["module"], {})[found["kind"]] = tensor
    for module, some in sorted(parts.items()):
        if missing := {"lora_A", "lora_B"} - some.keys():
            raise ModelError(f"{module} has no {missing.pop()}", where=where, fix="copy the adapter again")
        yield module, some


def _check_rank(module: str, parts: Mapping[str, Tensor], rank: int, folder: Path) -> None:
    """Raise ModelError where a module's matrices have not the rank that adapter_config.json gives, by which the product
    would be scaled."""
    a, b = parts["lora_A"], parts["lora_B"]
    if not (a.ndim == b.ndim == 2 and a.shape[0] == b.shape[1] == rank):
        what = (
            f"{module} has lora_A {tuple(a.shape)} and lora_B {tuple(b.shape)}, and {ADAPTER_CONFIG} says rank {rank}"
        )
        raise ModelError(what, where=folder, fix="copy the adapter again")


def adapter_scaling(config: Mapping[str, Any]) -> float:
    """Return the factor by which a LoRA's product B A is scaled: alpha / rank, or with rsLoRA alpha / sqrt(rank).

    config: fields of adapter_config.json, as `read_adapter_config` returns them. Raises KeyError where rank or alpha is
    missing.
    """
    rank = config["r"]
    return config["lora_alpha"] / (rank**0.5 if config.get("use_rslora") else rank)


@dataclass(frozen=True)
class LayerUpdate:
    """Hold what an adapter changes in one linear layer.

    a: [rank, in]. b: [out, rank]. magnitude: [out]; None without DoRA. scaling: factor of B A.
    """

    a: Tensor
    b: Tensor
    magnitude: Tensor | None
    scaling: float

    def merged(self, weight: Tensor, out: Tensor | None = None) -> Tensor:
        """Return W + scaling x B A in float32, with DoRA each row scaled to its magnitude.

        weight: W, [out, in]. out: float32 [out, in], where the result is written, and nothing else is allocated; None:
        a new tensor.
        """
        low = self.b.to(weight.device), self.a.to(weight.device)
        whole = torch.addmm(weight.float(), *low, alpha=self.scaling, out=out)
        if self.magnitude is not None:
            whole *= (self.magnitude.to(whole.device).flatten() / whole.norm(dim=1))[:, None]
        return whole


def read_layer_updates(folder: Path, shapes: Mapping[str, Sequence[int]]) -> dict[str, LayerUpdate]:
    """Read what the adapter in `folder` changes, by names of the base's layers.

    shapes: (out, in) of the base's linear layers, by name. Raises ModelError for an adapter that cannot be read, or
    that has a layer or shape that the base does not have.
    """
    config = checkpoint.read_adapter_config(folder)
    scaling, dora = adapter_scaling(config), bool(config.get("use_dora"))
    updates = {}
    for name, parts in iter_adapter_modules(read_adapter_tensors(folder), folder):
        if name not in shapes:
            raise ModelError(f"the base has no linear layer {name}", where=folder, fix="it is of another base")
        a, b, (out, into) = parts["lora_A"], parts["lora_B"], shapes[name]
        _check_rank(name, parts, config["r"], folder)
        if b.shape[0] != out or a.shape[1] != into:
            what = f"{name} is {out} x {into} in the base, {b.shape[0]} x {a.shape[1]} in the adapter"
            raise ModelError(what, where=folder, fix="it is of another base")
        if dora != ("lora_magnitude_vector" in parts):
            raise ModelError(f"{name} and use_dora do not agree", where=folder, fix="copy the adapter again")
        updates[name] = LayerUpdate(a, b, parts.get("lora_magnitude_vector"), scaling)
    return updates


@torch.no_grad()
def merge_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Merge the adapter in `folder` into `model`, its base, in place.

    The sum is computed in float32 and rounded to the dtype of the weights. Raises ModelError as `read_layer_updates`;
    the model is then unchanged.
    """
    layers = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    for name, update in read_layer_updates(folder, {name: one.weight.shape for name, one in layers.items()}).items():
        layers[name].weight.copy_(update.merged(layers[name].weight))


def _target_pattern(model: PreTrainedModel, chosen: AdapterSettings) -> str:
    """Return PEFT's regular expression of the layers to adapt: every linear layer of `adapter.targets`."""
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    patterns = []
    for target in chosen.targets:
        begins = re.compile(_TARGETS[target])
        ends = sorted({name[found.end() :] for name in linear if (found := begins.match(name))})
        if not ends:
            raise ModelError(f"the base has no {target} to adapt", where="adapter.targets")
        patterns.append(_TARGETS[target] + f"(?:{'|'.join(map(re.escape, ends))})")
    return "|".join(patterns)


def check_adapter_form(folder: Path, chosen: AdapterSettings) -> None:
    """Raise ModelError where training cannot continue with the adapter in `folder` under the settings.

    chosen: block `adapter`. It cannot where rank, alpha, rslora, dora or targets differ, or the adapter's files are
    damaged or of a kind that is not supported.
    """
    found = checkpoint.read_adapter_config(folder)
    for field, name in (("r", "rank"), ("lora_alpha", "alpha"), ("use_rslora", "rslora"), ("use_dora", "dora")):
        if (own := found.get(field) or False) != (wanted := getattr(chosen, name)):
            what = f"the adapter has {name} {own}, adapter.{name} is {wanted}".replace("True", "true")
            what = what.replace("False", "false")  # as params.yaml has it
            raise ModelError(what, where=folder, fix=_OTHER)
    tensors = read_adapter_tensors(folder)
    for module, parts in iter_adapter_modules(tensors, folder):
        _check_rank(module, parts, chosen.rank, folder)
    names = [_short(name) for name in tensors]
    has = [target for target, begins in _TARGETS.items() if any(re.match(begins, name) for name in names)]
    if set(has) != set(chosen.targets):
        what = f"the adapter is of {', '.join(has) or 'other layers'}, adapter.targets are {', '.join(chosen.targets)}"
        raise ModelError(what, where=folder, fix=_OTHER)


def _short(name: str) -> str:
    return name.removeprefix(_PREFIX).removesuffix(".weight")


def _plain(value: Any) -> Any:
    """Convert the value of a field of PEFT's configuration to a JSON value."""
    if isinstance(value, set | frozenset):
        return sorted(value)
    return getattr(value, "value", value) if not isinstance(value, dict) else {k: _plain(v) for k, v in value.items()}
