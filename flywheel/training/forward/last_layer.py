"""The last layer of the language model, for the tokens alone that predict a response.

Nothing reads what it makes of the others but its own attention, as keys and values. Of a prompt with a screen the
others are most tokens.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

from torch import Tensor, nn

from flywheel.training.forward.varlen_attention import AttentionPlan


def ends_early(trunk: nn.Module) -> bool:
    """Whether its last layer may leave tokens out: deepstack adds to all tokens after the layers that it reaches."""
    levels = getattr(trunk.config.vision_config, "deepstack_visual_indexes", ())
    return len(levels) < len(trunk.language_model.layers)


def end_early(trunk: nn.Module) -> None:
    """Make a base model of the Qwen-VL family that is given `last` and `predicting` give out those tokens alone."""
    if ends_early(trunk):
        layer = trunk.language_model.layers[-1]
        layer.forward = MethodType(_last, layer)  # bound, so that a copy of the model has its own


def _last(
    layer: nn.Module,
    hidden_states: Tensor,
    *,
    last: AttentionPlan | None = None,
    predicting: Tensor | None = None,
    **kwargs: Any,
) -> Tensor:
    """[1, tokens, width] -> [1, responses, width]. Without `last` it is the library's layer.

    last: who attends to whom among the tokens `predicting`, int64 [responses].
    """
    if last is None:
        return type(layer).forward(layer, hidden_states, **kwargs)
    mixed, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **kwargs | {"plan": last})
    kept = hidden_states.index_select(1, predicting) + mixed.index_select(1, predicting)
    return kept + layer.mlp(layer.post_attention_layernorm(kept))
