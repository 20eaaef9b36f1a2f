"""Load a policy for training, of all weights or of an adapter, and write the trained checkpoint."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedModel

from flywheel.config import AdapterSettings, TrainingSettings
from flywheel.policy.adapter import attach_adapter, has_adapter, save_adapter
from flywheel.policy.checkpoint import find_base_checkpoint
from flywheel.policy.devices import is_cuda, is_small_model
from flywheel.policy.encoding import Encoder
from flywheel.policy.model import load_model, save_checkpoint
from flywheel.training.modeling.monkey_patch import compute_in_input_type, patch_lora_layers
from flywheel.utils.processes import return_large_blocks


def load_trained_policy(folder: Path, chosen: TrainingSettings, adapter: AdapterSettings, seed: int) -> PreTrainedModel:
    """Load the network of the checkpoint or adapter in `folder`, in training mode.

    chosen: block `ct`, `sft` or `rl`. adapter: block `adapter`. With method none all weights are trained, in float32;
    else the base is frozen in adapter.base_dtype, and an adapter is attached (`attach_adapter`). seed: of a new
    adapter. Raises ModelError as `load_model` and `attach_adapter`.
    """
    if adapter.method == "none":
        policy = load_model(folder, device=chosen.device)
    else:
        policy = load_model(find_base_checkpoint(folder), dtype=adapter.base_dtype, device=chosen.device)
        if adapter.base_dtype == "bfloat16":
            compute_in_input_type(policy)
        attach_adapter(policy, folder, adapter, seed)
        if not adapter.dropout and chosen.engine == "torch":  # ZeRO gathers weights only where their module is called
            patch_lora_layers(policy)
    if chosen.gradient_checkpointing:
        # Without dropout nothing random is drawn; and saving and restoring the random state is not thread-safe.
        how = {"use_reentrant": False, "preserve_rng_state": adapter.dropout > 0}
        policy.activation_checkpointing_enable(how, every_n_layers=chosen.checkpoint_every_n_layers)
        policy.disable_input_require_grads()  # only reentrant checkpointing needs gradients of the inputs
    if not (is_cuda(policy.device) or is_small_model(policy)):
        return_large_blocks()
    return policy.train()


def computes_in_bfloat16(chosen: TrainingSettings, adapter: AdapterSettings) -> bool:
    """Tell whether training computes matrix products in bfloat16.

    chosen: block `ct`, `sft` or `rl`. adapter: block `adapter`.
    """
    return chosen.compute_dtype == "bfloat16" or (adapter.method != "none" and adapter.base_dtype == "nf4")


def save_trained_policy(policy: PreTrainedModel, encoder: Encoder, begun: Path, folder: Path) -> None:
    """Write a trained policy, its adapter or the whole checkpoint, to `folder`, which is replaced where it exists.

    encoder: of the policy. begun: folder of the checkpoint that training began with. Raises DiskFull, and ModelError as
    `save_adapter`.
    """
    if has_adapter(policy):
        save_adapter(policy, begun, folder)
    else:
        save_checkpoint(policy.eval(), encoder, folder)
