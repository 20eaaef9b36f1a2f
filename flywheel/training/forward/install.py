"""A model of the Qwen-VL family made ready for training: it reads packs, and spends less on what it does."""

from __future__ import annotations

from transformers import PreTrainedModel

from flywheel.policy.fused import fuse_tower, on_gpu
from flywheel.training.forward import varlen_attention
from flywheel.training.forward.last_layer import end_early
from flywheel.training.forward.rms_norm import quick_norms
from flywheel.training.pretrain.patches import quick_patches

SUPPORTED = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")


def install(model: PreTrainedModel) -> bool:
    """Make a model of the Qwen-VL family able to read packs; what its other passes give is the library's. False where
    it is of another family: then samples are padded."""
    if model.config.model_type not in SUPPORTED:
        return False
    model.set_attn_implementation(varlen_attention.NAME)
    if on_gpu(next(model.parameters()).device):
        fuse_tower(model)
    quick_patches(model)
    quick_norms(model)
    end_early(model.base_model)
    return True
