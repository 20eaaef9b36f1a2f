"""Define what a policy is: context in; text, token ids, log-probabilities and weight version out.

Back-ends: `embedded` (transformers in this process) and `remote` (an OpenAI-compatible server such as `vllm serve`).
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
    """Say how to sample an answer. temperature: 0 is greedy. max_new_tokens: most tokens, the end token included. seed:
    of 64 bits; the sampled tokens depend on it and on the context alone, not on the batch.

    ignore_end: go on after the end token, up to max_new_tokens (for benchmarks). action: the answer is to be an action,
    and is held to its form where the settings say so (`policy.guided_decoding`). session: the trajectory that asks,
    which changes nothing in the answer: of several servers one answers all requests of a session, since it keeps what
    they begin with alike; "": any.

    The rest changes what may be sampled, as vLLM's parameters of the same names do, and is for whoever asks a served
    model: training takes the model's own distribution. Before the temperature: repetition_penalty (over 1: tokens of
    context and answer are less likely), frequency_penalty (off the logit for each time that the answer holds the token)
    and presence_penalty (once). After it: min_p (tokens of at least this share of the likeliest one's
    probability), top_k (that many likeliest; 0: all) and top_p (the likeliest that have this share of what is left).
    stop: texts that
    end the answer, which does not hold them.

    Raises BadInput for a temperature that is negative or not finite, no new token, a longer seed, or a parameter out of
    its range.
    """

    temperature: float = 1.0
    max_new_tokens: int = 48
    seed: int = 0
    ignore_end: bool = False
    action: bool = False
    session: str = ""
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
        """Whether logits are changed before the temperature."""
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0.0, 0.0, 1.0)

    @property
    def filters(self) -> bool:
        """Whether some tokens may not be sampled after it."""
        return (self.top_p, self.top_k, self.min_p) != (1.0, 0, 0.0)


@dataclass(frozen=True)
class Completion:
    """Hold the answer to one context.

    text: decoded `token_ids` without the end token. token_ids: [tokens], the end token included where it was sampled.
    logprobs: [tokens], natural, under the distribution at temperature 1. Where the answer is held to a form
    (`SamplingParams.action`), all probabilities are those among the tokens that it allows. prompt_tokens: length of the
    encoded context. weight_version: of the weights that answered. finished: whether it ended by the end token, not at
    max_new_tokens. sampled_logprobs: [tokens], at the request's temperature: what PPO's ratio is taken against; empty
    where the back-end does not say them, and for greedy answers.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    prompt_tokens: int
    weight_version: str
    finished: bool
    sampled_logprobs: tuple[float, ...] = ()


class PolicyBackend(Protocol):
    """Answer contexts with a model. Requests may come singly and at once; the back-end batches them."""

    @property
    def weight_version(self) -> str:
        """Name of the weights that answer now (a checkpoint's digest)."""

    async def complete(self, context: Context, sampling: SamplingParams) -> Completion:
        """Answer one context. sampling: temperature, limit and seed.

        Raises BadInput for a request that cannot be answered as it is, PolicyTimeout after its deadline
        (`policy.timeout_s`), PolicyBusy where too many wait, PolicyError for the rest and once it is closed. One
        request's error leaves the others alone.
        """

    async def load(self, checkpoint: Path) -> None:
        """Swap the weights; running requests end on those they began with, waiting ones get the new ones.

        checkpoint: its folder. Raises ModelError for one that cannot be loaded, PolicyError (PolicyTimeout where it is
        late) where the swap fails; the old weights then go on answering.
        """

    async def close(self) -> None:
        """Answer what is under way, then let go of the model or the connections. May be called twice."""
