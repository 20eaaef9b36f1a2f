"""Answers held to their form: tokens that no readable answer can go on with are neither drawn nor counted.

A constrained policy is another distribution than the model's own: the probabilities of the tokens that the form allows,
made to sum to 1. Both sides of RL's ratio must be of it, so the trainer masks the same tokens (`blocked`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from transformers.convert_slow_tokenizer import bytes_to_unicode

from flywheel import settings as config
from flywheel.agent.actions import Drag, Point
from flywheel.agent.answer_form import lark
from flywheel.agent.grammar import Grammar
from flywheel.agent.parser import serialise
from flywheel.errors import ModelError, PolicyError, first_line

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from flywheel.policy.encoding import Encoder

log = logging.getLogger(__name__)
NEVER = -1e30  # a logit: its probability is exactly 0, and what is computed with it stays finite
_LONGEST = Drag(Point(0.5, 0.5), Point(0.5, 0.5))  # of the actions whose length is not what a model types


class AnswerState:
    """One answer, as far as it is written. end_id: the token that ends it. vocabulary: the width of the logits."""

    def __init__(self, matcher: LLMatcher, end_id: int, vocabulary: int) -> None:
        self._matcher, self._end_id, self._vocabulary = matcher, end_id, vocabulary
        self._ended = False

    def blocked(self) -> np.ndarray:
        """Which tokens cannot come next, bool [vocabulary]; none where the answer has ended."""
        blocked = np.full(self._vocabulary, not self._ended)
        if self._ended:
            return blocked
        if self._matcher.is_stopped():  # the action is whole
            blocked[self._end_id] = False
            return blocked
        bits = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), np.uint8), bitorder="little")
        blocked[: len(bits)] = bits[: self._vocabulary] == 0
        return blocked

    def add(self, token: int) -> None:
        """The answer goes on with a token. Raises PolicyError where its form does not: a matcher that met an error is
        stopped too, which would look like a whole action, and the answer would be cut there in silence."""
        self._ended |= token == self._end_id
        if not self._ended and not self._matcher.consume_token(token):
            said = first_line(self._matcher.get_error())
            raise PolicyError(f"token {token} is not of the form of answers: {said}", where="policy.constrained")


class _NotOfBytes(ModelError):
    """A tokeniser that no answer can be held to a form with."""


class _Tokens:
    """A byte-level tokeniser, such as Qwen's, as llguidance wants it (whose own reading of one takes a token such as
    `</point>`, which stands for text, for one that stands for none)."""

    bos_token_id = None

    def __init__(self, encoder: Encoder) -> None:
        tokenizer, byte_of = encoder.tokenizer, {sign: byte for byte, sign in bytes_to_unicode().items()}
        added = tokenizer.added_tokens_decoder
        self._tokenizer, self.eos_token_id = tokenizer, encoder.end_id
        self.special_token_ids = [number for number, token in added.items() if token.special]
        try:
            self.tokens = [
                added[number].content.encode() if number in added else bytes(byte_of[sign] for sign in token)
                for number, token in enumerate(tokenizer.convert_ids_to_tokens(range(len(tokenizer))))
            ]
        except (KeyError, TypeError):
            raise _NotOfBytes(
                "its tokeniser is not of bytes, as Qwen's is", where="policy.constrained", fix="set it to never"
            ) from None

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


class Constraint:
    """The form of all answers of one checkpoint. encoder: its tokeniser. vocabulary: the width of its logits.

    Raises BadInput for a form that is not written (`answer_form`), ModelError for a tokeniser that is not of bytes.
    """

    def __init__(self, encoder: Encoder, vocabulary: int, policy: config.Policy) -> None:
        grammar = Grammar.of(policy)
        # So many tokens of a thought that there is room for the action.
        around = encoder.encode_text(f"Thought: \nAction: {serialise(_LONGEST, grammar)}")
        tokens = max(1, policy.max_new_tokens - len(around))
        form = LLMatcher.grammar_from_lark(lark(grammar, tokens))
        self._first = LLMatcher(LLTokenizer(TokenizerWrapper(_Tokens(encoder))), form, log_level=0)
        if self._first.is_error():
            raise ModelError(
                f"its answers cannot be constrained: {self._first.get_error()}", where="policy.constrained"
            )
        self._end_id, self._vocabulary = encoder.end_id, vocabulary

    def begin(self) -> AnswerState:
        return AnswerState(self._first.deep_copy(), self._end_id, self._vocabulary)

    def blocked(self, response: Sequence[int]) -> np.ndarray:
        """Which tokens could not come at each place of a response, as bits: uint8 [response, vocabulary / 8]."""
        state, rows = self.begin(), []
        for token in response:
            rows.append(np.packbits(state.blocked()))
            state.add(token)
        return np.stack(rows)


def open_constraint(encoder: Encoder, model: PretrainedConfig, policy: config.Policy) -> Constraint | None:
    """None where answers are not held to a form; where that is for the tokeniser alone, the log says so.

    model: the checkpoint's configuration. Raises as `Constraint` does, where the settings insist on it.
    """
    if not policy.holds_form:
        return None
    try:
        return Constraint(encoder, model.get_text_config().vocab_size, policy)
    except _NotOfBytes as error:
        if policy.constrained == "always":
            raise
        log.warning("answers are not held to the form of an action: %s", error.what)
        return None
