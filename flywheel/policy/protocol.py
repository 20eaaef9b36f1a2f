"""Define the interface of a policy: a context in; text, token ids, log-probabilities and weight version out.

Back-ends: `EmbeddedPolicy` (transformers in this process), `RemotePolicy` (an OpenAI-compatible server such as
`vllm serve`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from flywheel.agent.prompt import Context
from flywheel.utils.errors import BadInput


@dataclass(frozen=True)
class SamplingParams:
    """Hold how to sample an answer.

    temperature: 0 is greedy. max_new_tokens: limit, the end token included. seed: signed, 64 bits; `EmbeddedPolicy`
    samples tokens by the seed and the context alone, whatever else is in the batch. ignore_end: continue after the end
    token, up to max_new_tokens (for benchmarks). begins: text that the answer begins with, whose tokens are not chosen
    (their log-probability is 0); only for an answer that guided decoding constrains, of `EmbeddedPolicy`. action: the
    answer is an action of the agent, constrained to the action grammar where `policy.guided_decoding` says so. session:
    name of the trajectory that the request belongs to; "": none. It does not change the answer: among several servers,
    one gets all requests of a session, because it caches their common prefix.

    The other parameters change the distribution, as vLLM's parameters of the same names do. They are for clients of a
    served model: training samples from the model's own distribution. Before the temperature apply repetition_penalty
    (above 1: tokens of context and answer become less likely), frequency_penalty (subtracted from a token's logit for
    each time it is in the answer) and presence_penalty (subtracted once). After it apply min_p (keep tokens with at
    least this share of the likeliest token's probability), top_k (keep the k likeliest; 0: all) and top_p (keep the
    likeliest that together have this share of the remaining probability). stop: texts that end the answer; the answer
    is cut before them.

    Raises BadInput for a temperature that is negative or not finite, max_new_tokens below 1, a longer seed, or a
    parameter out of its range.
    """

    temperature: float = 1.0
    max_new_tokens: int = 48
    seed: int = 0
    ignore_end: bool = False
    action: bool = False
    session: str = ""
    begins: str = ""
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise BadInput(f"the temperature is {self.temperature}", where="sampling", fix="0 (greedy) or more")
        if self.max_new_tokens < 1:
            raise BadInput(f"max_new_tokens is {self.max_new_tokens}", where="sampling", fix="1 or more")
        if not -(2**63) <= self.seed < 2**63:
            raise BadInput(f"the seed {self.seed} does not fit into 64 bits", where="sampling", fix="a smaller one")
        ranges = {
            "top_p": (0 < self.top_p <= 1, "more than 0, at most 1"),
            "top_k": (self.top_k >= 0, "0 (all tokens) or more"),
            "min_p": (0 <= self.min_p <= 1, "0 to 1"),
            "presence_penalty": (-2 <= self.presence_penalty <= 2, "-2 to 2"),
            "frequency_penalty": (-2 <= self.frequency_penalty <= 2, "-2 to 2"),
            "repetition_penalty": (0 < self.repetition_penalty < math.inf, "more than 0; 1 is none"),
            "stop": (all(self.stop), "texts that are not empty"),
        }
        for name, (sound, fix) in ranges.items():
            if not sound:
                raise BadInput(f"{name} is {getattr(self, name)}", where=name, fix=fix)

    @property
    def penalises(self) -> bool:
        """Tell whether a penalty changes the logits before the temperature does."""
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0.0, 0.0, 1.0)

    @property
    def filters(self) -> bool:
        """Tell whether min_p, top_k or top_p exclude tokens."""
        return (self.top_p, self.top_k, self.min_p) != (1.0, 0, 0.0)

    @property
    def reshapes(self) -> bool:
        """Tell whether tokens are drawn from another distribution than the model's own at the temperature."""
        return self.penalises or self.filters


@dataclass(frozen=True)
class Completion:
    """Hold the answer to one context.

    text: decoded `token_ids` without the end token, cut before a text of `SamplingParams.stop`. token_ids: [tokens],
    the end token included where it was sampled. logprobs: [tokens], natural, at temperature 1. Where guided decoding
    constrains the answer (`SamplingParams.action`), all probabilities are among the tokens that the grammar allows.
    prompt_tokens: length of the encoded context. weight_version: of the weights that answered. finished: whether the
    end token or a stop text ended the answer, not max_new_tokens. sampled_logprobs: [tokens], at the request's
    temperature, the denominator of PPO's ratio; empty for greedy answers, and where the back-end does not report them.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    prompt_tokens: int
    weight_version: str
    finished: bool
    sampled_logprobs: tuple[float, ...] = ()


class PolicyBackend(Protocol):
    """Answer contexts with a model. Callers send requests one by one, also concurrently; the back-end batches them."""

    @property
    def weight_version(self) -> str:
        """Return the name of the weights that answer at present: the checkpoint's digest."""

    async def complete(self, context: Context, sampling: SamplingParams) -> Completion:
        """Answer one context with text, token ids and log-probabilities.

        context: the prompt. sampling: temperature, limit, seed and the rest. Raises BadInput for an invalid request,
        PolicyTimeout after `policy.timeout_s`, PolicyBusy where the queue is full, PolicyError for any other failure
        and once the policy is closed. The error of one request does not affect the others.
        """

    async def load(self, checkpoint: Path) -> None:
        """Swap the weights: running requests end on the old weights, waiting requests get the new ones.

        checkpoint: a checkpoint's folder. Raises ModelError for a folder that cannot be loaded, PolicyTimeout for a
        swap that takes too long, PolicyError for one that fails; the old weights then continue to answer, or, where it
        took too long, until the swap ends after all.
        """

    async def close(self) -> None:
        """Answer the requests that run or wait, then release the model or the connections.

        Later requests raise PolicyError. A model in this process that is still busy after `policy.timeout_s` is
        released later, by itself, and this returns before. May be called twice.
        """
