"""Constrain answers to the action grammar while they are sampled (guided decoding, by llguidance)."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from transformers.convert_slow_tokenizer import bytes_to_unicode

from flywheel import config
from flywheel.agent.actions import Drag, Point
from flywheel.agent.grammar import Grammar
from flywheel.agent.parsing.normalise import DIRECTIONS, MAX_KEYS
from flywheel.agent.parsing.parser import serialise_action
from flywheel.agent.prompt import list_action_signatures
from flywheel.config.settings import GUIDED_DECODING_REQUIREMENTS
from flywheel.utils.errors import BadInput, ModelError, PolicyError, first_line

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from flywheel.policy.encoding import Encoder


# The grammar of all answers is built from the action lines in the prompt (`agent/prompt.py`), in llguidance's dialect
# of Lark. The action parser accepts every text of the grammar. The grammar accepts every text that
# `parser.serialise_action` writes, except keys with other signs, control characters and long texts (tested).

_ARGUMENT = re.compile(r"(\w+)='([^']*)'")
# A thought is one line, without the characters that calls, tags and code begin with.
_RULES = r"""
start: "Thought: " thought "\nAction: " action
thought[max_tokens={tokens}]: THOUGHT
THOUGHT: /[^\x00-\x1f\x7f(){{}}\[\]<>`\\]+/
action: {actions}
spot: "<point>" X " " Y "</point>"
X: /{x}/
Y: /{y}/
TEXT: /([^\x00-\x1f\x7f'\\]|\\['"\\n]){{1,2000}}/
KEY: /[a-z0-9]{{1,20}}|[.\/;=]/
KEYS: /[a-z0-9]{{1,20}}( [a-z0-9]{{1,20}}){{0,{more_keys}}}( [.\/;=])?/
DIRECTION: {directions}
JSON: /\{{("[A-Za-z0-9_]{{1,40}}": ("[^"'\\\n\r]{{0,2000}}"|-?[1-9][0-9]{{0,8}}|true|false|null))?\}}/
"""


def build_lark_grammar(grammar: Grammar, tokens: int) -> str:
    """Build the grammar of all answers of the agent, in llguidance's dialect of Lark.

    grammar: the action grammar. tokens: limit of a thought, in tokens. Raises BadInput for a template or thinking form
    that guided decoding does not support.
    """
    if grammar.form not in GUIDED_DECODING_REQUIREMENTS["template"] or grammar.thinks:
        forms = " or ".join(GUIDED_DECODING_REQUIREMENTS["template"])
        fix = f"set it to never, or policy.template to {forms}, without policy.thinks"
        what = f"answers of the form {grammar.form} cannot be constrained"
        raise BadInput(what, where="policy.guided_decoding", fix=fix)
    calls = [_call(line) for line in list_action_signatures(grammar)]
    actions = "\n    | ".join([*calls, '"finished()"'])
    directions = " | ".join(f'"{direction}"' for direction in DIRECTIONS)
    x, y = (_number(grammar, axis) for axis in (0, 1))
    return _RULES.format(tokens=tokens, actions=actions, x=x, y=y, more_keys=MAX_KEYS - 1, directions=directions)


def _call(line: str) -> str:
    """Turn an action line of the prompt, such as `type(content='xxx')  # about it`, into the right side of a rule."""
    said = line.partition("  #")[0]
    parts, at = [], 0
    for argument in _ARGUMENT.finditer(said):
        parts += [f'"{said[at : argument.start(2)]}"', _value(argument[2])]
        at = argument.end(2)
    return " ".join([*parts, f'"{said[at:]}"'])


def _value(example: str) -> str:
    """Return the rule that replaces the example value of an argument in an action line."""
    if example.startswith("<point>"):
        return "spot"
    if example.startswith("{"):
        return "JSON"
    if " or " in example:
        return "DIRECTION"
    return {"ctrl c": "KEYS", "left": "KEY"}.get(example, "TEXT")


def _number(grammar: Grammar, axis: int) -> str:
    """Return the regular expression of a coordinate, as `call_form.format_call` writes it. axis: 0 is x, 1 is y."""
    if grammar.space.kind == "norm1":
        return r"0\.[0-9]{4}"
    size = grammar.space.size[axis]
    if grammar.space.kind == "grid" and size <= 100:
        return "|".join(f"{number:02d}" for number in range(size))
    return integers_regex(size - 1)


def integers_regex(last: int) -> str:
    """Build a regular expression for the whole numbers from 0 to `last`, without leading zeros."""
    digits = str(last)
    found = ["0"] if last else []
    if len(digits) > 1:
        found.append(f"[1-9][0-9]{{0,{len(digits) - 2}}}")
    for place, digit in enumerate(digits):
        lowest = 1 if place == 0 else 0
        if int(digit) > lowest:
            rest = len(digits) - place - 1
            found.append(f"{digits[:place]}[{lowest}-{int(digit) - 1}]" + (f"[0-9]{{{rest}}}" if rest else ""))
    return "|".join([*found, digits])


# Tokens that would leave the grammar get probability 0, so a constrained policy has another distribution than the
# model's own. Both sides of RL's ratio must come from that distribution, so the trainer masks the same tokens
# (`AnswerConstraint.blocked`).

log = logging.getLogger(__name__)
BLOCKED_LOGIT = -1e30  # its probability is exactly 0, and results computed with it stay finite
_LONGEST = Drag(Point(0.5, 0.5), Point(0.5, 0.5))  # the longest action, except those with free text


def every_token(vocabulary: int) -> np.ndarray:
    """Return the bits of all tokens, the lowest first: uint32 [vocabulary / 32 rounded up]."""
    bits = np.arange(-(-vocabulary // 32) * 32) < vocabulary
    return np.packbits(bits, bitorder="little").view(np.uint32)


_MOST_PLACES = 20_000  # of the tree below: some 20 MB


@dataclass(eq=False, slots=True)
class _Place:
    """Hold what is known of all answers that begin with the same tokens. allowed: the tokens that can come next, as
    bits, the lowest first: uint32 [vocabulary / 32 rounded up]. only: the one token that can, or None. times: how often
    an answer came by. following: the places behind this one, by token."""

    allowed: np.ndarray
    only: int | None
    times: int = 0
    following: dict[int, _Place] = field(default_factory=dict)


class AnswerState:
    """Hold where one answer stands in the grammar, and follow it token by token. `AnswerConstraint.begin` opens it."""

    def __init__(self, constraint: AnswerConstraint, place: _Place) -> None:
        self._constraint, self._place = constraint, place
        self._matcher: LLMatcher | None = None  # llguidance's state; None: at the beginning
        self._unread: list[int] = []  # tokens that the matcher has not consumed yet

    @property
    def allowed(self) -> np.ndarray:
        """Return which tokens can come next, as bits, the lowest first: uint32 [vocabulary / 32 rounded up].

        All once the answer has ended. Not to be changed.
        """
        return self._place.allowed

    @property
    def only(self) -> int | None:
        """Return the one token that can come next; None where there are several."""
        return self._place.only

    def blocked(self) -> np.ndarray:
        """Return which tokens cannot come next, bool [vocabulary]; all False once the answer has ended."""
        bits = np.unpackbits(self._place.allowed.view(np.uint8), bitorder="little")
        return bits[: self._constraint.vocabulary] == 0

    def guess(self, least: float, most: int) -> tuple[list[int], list[np.ndarray]]:
        """Guess how the answer goes on, from earlier answers that began alike.

        Returns at most `most` tokens, as far as so large a share as `least` of these answers went on so, and what is
        allowed behind each, as `allowed`.
        """
        place, share = self._place, 1.0
        tokens: list[int] = []
        masks: list[np.ndarray] = []
        while len(tokens) < most and place.following:
            token, following = max(place.following.items(), key=lambda one: one[1].times)
            if place.only is None:
                share *= following.times / (place.times + 1)
            if share < least:
                break
            tokens.append(token)
            masks.append(following.allowed)
            place = following
        return tokens, masks

    def add(self, token: int) -> None:
        """Append the token id `token` to the answer; once it has ended, any token.

        Raises PolicyError where the grammar does not allow the token, or the end there; the state is of no use after
        that.
        """
        ended, ending = self._place is self._constraint.ended, token == self._constraint.end_id
        if ending and not ended and not int(self.allowed[token // 32]) >> token % 32 & 1:
            raise PolicyError("an answer ends before its action does", where="policy.guided_decoding")
        place = self._constraint.ended if ended or ending else self._place.following.get(token)
        self._unread.append(token)
        if place is None:
            place = self._constraint.look(self._read())
            self._constraint.remember(self._place, token, place)
        place.times += 1
        self._place = place

    def _read(self) -> LLMatcher:
        """Let the matcher consume what it has not yet.

        Without the error the answer would end there silently: a matcher that met one also says that it is stopped,
        which looks like a complete action.
        """
        if self._matcher is None:
            self._matcher = self._constraint.open_matcher()
        for token in self._unread:
            if not self._matcher.consume_token(token):
                reason = first_line(self._matcher.get_error())
                what = f"token {token} is not of the form of answers: {reason}"
                raise PolicyError(what, where="policy.guided_decoding")
        self._unread.clear()
        return self._matcher


class _BegunAnswer(AnswerState):
    """Follow an answer whose first tokens are given: each is the one that can come next, until all have come."""

    def __init__(self, constraint: AnswerConstraint, place: _Place, given: Sequence[int]) -> None:
        super().__init__(constraint, place)
        self._given = deque(given)

    @property
    def allowed(self) -> np.ndarray:
        if not self._given:
            return super().allowed
        bits = np.zeros_like(self._place.allowed)
        bits[self._given[0] // 32] = 1 << self._given[0] % 32
        return bits

    @property
    def only(self) -> int | None:
        return self._given[0] if self._given else super().only

    def blocked(self) -> np.ndarray:
        bits = np.unpackbits(self.allowed.view(np.uint8), bitorder="little")
        return bits[: self._constraint.vocabulary] == 0

    def guess(self, least: float, most: int) -> tuple[list[int], list[np.ndarray]]:
        return ([], []) if self._given else super().guess(least, most)

    def add(self, token: int) -> None:
        if self._given:
            self._given.popleft()
        super().add(token)


class _NotByteLevel(ModelError):
    """Signal a tokeniser that guided decoding cannot use."""


class _ByteTokenizer:
    """Present a byte-level tokeniser, such as Qwen's, to llguidance. llguidance's own adapter takes an added token such
    as `</point>`, which stands for text, for a special token without text."""

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
            what = "its tokeniser is not of bytes, as Qwen's is"
            raise _NotByteLevel(what, where="policy.guided_decoding", fix="set it to never") from None

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


class AnswerConstraint:
    """Hold the compiled grammar of one checkpoint's answers; `begin` follows one answer through it.

    encoder: of the checkpoint. vocabulary: width of its logits. policy: block `policy`. Raises BadInput for an action
    grammar that guided decoding does not support, ModelError for a tokeniser that is not byte-level, or where
    llguidance refuses the grammar.
    """

    def __init__(self, encoder: Encoder, vocabulary: int, policy: config.PolicySettings) -> None:
        grammar = Grammar.of(policy)
        # The thought may take as many tokens as leave room for the action.
        around = encoder.encode_text(f"Thought: \nAction: {serialise_action(_LONGEST, grammar)}")
        tokens = max(1, policy.max_new_tokens - len(around))
        form = LLMatcher.grammar_from_lark(build_lark_grammar(grammar, tokens))
        self._first = LLMatcher(LLTokenizer(TokenizerWrapper(_ByteTokenizer(encoder))), form, log_level=0)
        if self._first.is_error():
            what = f"its answers cannot be constrained: {self._first.get_error()}"
            raise ModelError(what, where="policy.guided_decoding")
        self.end_id, self.vocabulary = encoder.end_id, vocabulary
        self._every = every_token(vocabulary)
        self.ended = _Place(self._every, None)
        self._masks: dict[bytes, tuple[np.ndarray, int | None]] = {}
        self._begin, self._places = self.look(self._first), 1

    @property
    def begin_place(self) -> _Place:
        """Return the place of an empty answer."""
        return self._begin

    def begin(self) -> AnswerState:
        """Return the state of a new, empty answer."""
        self._begin.times += 1
        return AnswerState(self, self._begin)

    def begun_with(self, given: Sequence[int]) -> BegunConstraint:
        """Return the constraint on answers that begin with the token ids `given`.

        Raises BadInput where the grammar does not allow them.
        """
        matcher = self.open_matcher()
        if matcher.validate_tokens(list(given)) < len(given):
            what = "no answer of the action grammar begins with that text"
            raise BadInput(what, where="policy.guided_decoding", fix="a thought is one line, and leaves room")
        return BegunConstraint(self, tuple(given))

    def open_matcher(self) -> LLMatcher:
        """Return llguidance's state of a new, empty answer."""
        return self._first.deep_copy()

    def look(self, matcher: LLMatcher) -> _Place:
        """Return the place of an answer in the grammar: which tokens may come next.

        matcher: llguidance's state of the answer. The end token alone may come where the action is complete.
        """
        mask = b"" if matcher.is_stopped() else matcher.compute_bitmask()  # stopped: the action is complete
        if mask not in self._masks:  # most places of a thought have the same
            allowed = np.zeros_like(self._every)
            if mask:
                found = np.frombuffer(mask, np.uint32)[: len(allowed)]
                allowed[: len(found)] = found & self._every[: len(found)]
            else:
                allowed[self.end_id // 32] = 1 << self.end_id % 32
            bits = np.flatnonzero(np.unpackbits(allowed.view(np.uint8), bitorder="little"))
            self._masks[mask] = allowed, int(bits[0]) if len(bits) == 1 else None
        return _Place(*self._masks[mask])

    def remember(self, before: _Place, token: int, place: _Place) -> None:
        """Remember that answers at `before` that go on with `token` come to `place`.

        Asking the matcher again would cost a tenth of a small model's step. Where the tree is full, it begins anew.
        """
        if self._places >= _MOST_PLACES:
            self._begin = _Place(self._begin.allowed, self._begin.only)
            self._places, self._masks = 1, {}
        before.following[token] = place
        self._places += 1

    def blocked(self, response: Sequence[int]) -> np.ndarray:
        """Return which tokens were blocked at each position of a response, as bits: uint8 [response, vocabulary / 8].

        The last axis is rounded up, and has the highest bit first; behind the end token none is blocked. response:
        token ids, at least one (ValueError). Raises PolicyError for a token up to the end token that the grammar does
        not allow.
        """
        state, rows = self.begin(), []
        for token in response:
            rows.append(np.packbits(state.blocked()))
            state.add(token)
        return np.stack(rows)


@dataclass(frozen=True)
class BegunConstraint:
    """Hold a constraint on answers as `of`, which must also begin with the token ids `given`.

    `AnswerConstraint.begun_with` makes it.
    """

    of: AnswerConstraint
    given: tuple[int, ...]

    def begin(self) -> AnswerState:
        """Return the state of a new, empty answer."""
        return _BegunAnswer(self.of, self.of.begin_place, self.given)


def open_constraint(
    encoder: Encoder, model: PretrainedConfig, policy: config.PolicySettings
) -> AnswerConstraint | None:
    """Open the constraint on a checkpoint's answers; None where `policy.guided_decoding` asks for none.

    encoder: of the checkpoint. model: its configuration. policy: block `policy`. For a tokeniser that is not
    byte-level it logs a warning and returns None, or raises ModelError where `policy.guided_decoding` is always. Raises
    BadInput for an action grammar that guided decoding does not support, ModelError where llguidance refuses the
    grammar.
    """
    if not policy.holds_form:
        return None
    try:
        return AnswerConstraint(encoder, model.get_text_config().vocab_size, policy)
    except _NotByteLevel as error:
        if policy.guided_decoding == "always":
            raise
        log.warning("answers are not held to the form of an action: %s", error.what)
        return None
