"""Sample tokens by continuous batching: requests join a running batch and leave it when they end."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from flywheel.policy.devices import supports_flash_attention
from flywheel.policy.encoding import EncodedSequence
from flywheel.policy.guided_decoding import BLOCKED_LOGIT, AnswerConstraint, AnswerState, BegunConstraint
from flywheel.policy.inference import cache
from flywheel.policy.inference.compiled_pass import CompiledPass
from flywheel.policy.inference.fused_layers import PaddedPass, TextPass, make_library_pass
from flywheel.policy.protocol import SamplingParams
from flywheel.policy.torch_threads import open_pass_pool
from flywheel.utils.errors import PolicyError

# A token is drawn by inverse transform sampling, from one random number of the request's own generator. So it depends
# on the request's seed and context, and not on the rest of the batch. The random numbers are drawn on the CPU, so that
# a seed means the same on a GPU.


def sample_tokens(logits: Tensor, samplings: Sequence[SamplingParams], random: Sequence[float | None]) -> Tensor:
    """Sample a token for each row: float32 logits [rows, vocabulary] -> int64 [rows].

    samplings: one per row, of which only the temperature is used. random: one number per row, in [0, 1); None: take the
    row's likeliest token.
    """
    chosen = logits.argmax(dim=-1)
    noisy = [row for row, number in enumerate(random) if number is not None]
    if noisy:
        tempered = logits[noisy] / logits.new_tensor([[samplings[row].temperature] for row in noisy])
        up_to = tempered.softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)
        at = torch.tensor([[random[row]] for row in noisy], dtype=torch.float64)
        found = torch.searchsorted(up_to, at.to(logits.device) * up_to[:, -1:], right=True)
        chosen[noisy] = found[:, 0].clamp_max(logits.shape[1] - 1)  # logits that are not finite give an index too high
    return chosen


def generate_responses(
    model: PreTrainedModel, end_id: int, prompts: Sequence[EncodedSequence], samplings: Sequence[SamplingParams]
) -> list[BatchRow]:
    """Sample one response to each prompt, all in one batch, as the policy does, but without guided decoding.

    end_id: the token that ends a response. prompts: encoded by the model's own encoder. samplings: one per prompt.
    Returns one row per prompt, in order, with token_ids and logprobs. Raises PolicyError for the first row whose pass
    failed or gave numbers that are not finite, ValueError where prompts and samplings differ in number, or a sampling
    has `stop`, for which the text is needed.
    """
    if any(sampling.stop for sampling in samplings):
        raise ValueError("generate_responses knows no texts, so it cannot stop at one: leave `stop` empty")
    engine = InferenceEngine(model, end_id)
    rows = []
    for prompt, sampling in zip(prompts, samplings, strict=True):
        keys = [b"%d %d" % (id(prompt), number) for number in range(len(prompt.image_grid_thw))]
        rows.append(BatchRow(cache.make_prompt(model, prompt, end_id, keys), sampling))
    ended = engine.admit(rows)
    while engine.rows:
        ended += engine.step()
    for row in ended:
        if row.error is not None:
            raise row.error
    return rows


# Continuous batching: a pass over new rows (`admit`) computes their prompts, except cached prefixes; a pass over the
# batch (`step`) adds a token to each row. The engine is synchronous and owned by one thread.

log = logging.getLogger(__name__)

_GUESSED = 8  # tokens of a row that are guessed at once, at most
_NUMBERS = 64  # random numbers that a row draws at once
PREFILL_TOKENS = 8192  # most tokens of one prefill pass, with padding: bounds its memory and the running batch's wait


@dataclass(eq=False)
class BatchRow:
    """Hold a request in the batch, with its answer so far.

    owner: the caller's object, which the engine does not use. error: why it failed. constraint: the grammar of its
    answer, if any; form: its state in that grammar. stopped: tells whether a text of `sampling.stop` ends the answer,
    given its token ids so far; None without stop texts. logprobs, tempered: of each sampled token, at temperature 1 and
    at the request's temperature (empty if greedy). pending: the newest tokens, at least one, that the KV cache does not
    have yet.
    """

    prompt: cache.EncodedPrompt
    sampling: SamplingParams
    owner: Any = None
    constraint: AnswerConstraint | BegunConstraint | None = None
    stopped: Callable[[Sequence[int]], bool] | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tempered: list[float] = field(default_factory=list)
    error: Exception | None = None
    form: AnswerState | None = None
    pending: int = 1
    _random: list[float] = field(default_factory=list)
    _generator: torch.Generator | None = None

    def begin(self) -> None:
        """Begin the answer, again if need be."""
        self.token_ids, self.logprobs, self.tempered, self.error, self.pending = [], [], [], None, 1
        self.form = self.constraint and self.constraint.begin()
        self._generator = torch.Generator().manual_seed(self.sampling.seed)
        self._random = []

    @property
    def length(self) -> int:
        """Return how many tokens of prompt and answer the KV cache has."""
        return len(self.prompt) + len(self.token_ids) - self.pending

    def random(self, ahead: int = 0) -> float | None:
        """Return the random number, in [0, 1), that a token of the answer is drawn by; None for a greedy answer.

        ahead: how many tokens behind the next one it comes.
        """
        if self.sampling.temperature == 0:
            return None
        number = len(self.token_ids) + ahead
        while len(self._random) <= number:
            self._random += torch.rand(_NUMBERS, generator=self._generator, dtype=torch.float64).tolist()
        return self._random[number]

    def add(self, token: int, logprob: float, tempered: float) -> None:
        """Append a sampled token.

        logprob, tempered: its log-probability at temperature 1, and at the request's. Raises PolicyError where the
        row's grammar does not allow it.
        """
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        if self.sampling.temperature > 0:
            self.tempered.append(tempered)
        if self.form is not None:
            self.form.add(token)

    def inputs(self, image_id: int) -> list[int]:
        """Return the pending tokens, the model's next input."""
        if self.pending == 1:
            return [self.next_input(image_id)]
        return self.token_ids[-self.pending :]  # of a grammar, which has no image token

    def next_input(self, image_id: int) -> int:
        """Return the newest token, the model's next input.

        A sampled image token stands for no image, so the token before it takes its place, as in the trainer's pass
        (`training/modeling/policy_forward.py`).
        """
        newest = next((token for token in reversed(self.token_ids) if token != image_id), None)
        return int(self.prompt.ids[-1]) if newest is None else newest

    def ended(self, end_id: int) -> bool:
        """Tell whether the answer has ended: by an error, its length, the token `end_id` or a stop text.

        It must have a token, or an error.
        """
        return (
            self.error is not None
            or len(self.token_ids) >= self.sampling.max_new_tokens
            or (self.token_ids[-1] == end_id and not self.sampling.ignore_end)
            or (self.stopped is not None and self.stopped(self.token_ids))
        )


_Guess = tuple[list[int], list[np.ndarray]]  # tokens, and what is allowed behind each
_NOTHING: _Guess = [], []
_Drawn = tuple[int, float, float]  # token, log-probability at temperature 1 and at the row's


@dataclass
class EngineCounts:
    """Hold how much an engine has done since its start.

    steps: passes over the batch. tokens: sampled tokens. prompts: admitted prompts. prefilled, shared: prompt tokens
    that were computed, and that were reused from an equal prefix.
    """

    steps: int = 0
    tokens: int = 0
    prompts: int = 0
    prefilled: int = 0
    shared: int = 0


@dataclass(frozen=True)
class _Group:
    """Hold new rows with the same prompt, whose first `known` tokens are in `prefix`."""

    prompt: cache.EncodedPrompt
    rows: list[BatchRow]
    prefix: cache.CachedPrefix | None
    known: int

    @property
    def width(self) -> int:
        return len(self.prompt) - self.known

    @property
    def screens(self) -> list[cache.EncodedScreen]:
        return [screen for screen in self.prompt.screens if screen.start >= self.known]


@dataclass(frozen=True)
class _Computed:
    """Hold a computed prompt: its keys and values, in `row` of `held`, and the hidden state at its last token."""

    held: cache.KVCache
    row: int
    hidden: Tensor


class InferenceEngine:
    """Sample answers in a continuous batch, with any model of the Qwen-VL family; for one thread.

    end_id: the token that ends a response. text_pass: runs the language model; None: the library's layers do. threads:
    parallel prefill passes on a CPU, one core each; 0: as many as the calling thread has torch threads. prefix_bytes,
    vision_bytes: size of the caches of prompt prefixes and of screen features; 0: no cache. share: whether new rows
    with equal prompts are computed once. vision: of an engine that is no longer used, as `before` of `VisionEncoder`;
    None: no screen is known yet.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        end_id: int,
        *,
        text_pass: TextPass | None = None,
        threads: int = 0,
        prefix_bytes: int = 0,
        vision_bytes: int = 0,
        share: bool = True,
        vision: cache.VisionEncoder | None = None,
    ) -> None:
        self._model, self._end_id, self._share = model, end_id, share
        first = next(model.parameters())
        self._pass = CompiledPass.open(model, text_pass) or PaddedPass(
            text_pass or make_library_pass(model), model, first.device, text_pass and text_pass.output
        )
        self._device, self._flash = first.device, supports_flash_attention(first.device, first.dtype)
        self._threads = 1 if self._device.type == "cuda" else threads or torch.get_num_threads()
        self._beside = open_pass_pool(self._threads)
        self._prefixes = cache.PrefixCache(prefix_bytes)
        self.vision = cache.VisionEncoder(model, vision_bytes, self._threads, self._beside, before=vision)
        self._held = self._key_values(0, 0)
        self.rows: list[BatchRow] = []
        self.counts = EngineCounts()

    @torch.inference_mode()
    def admit(self, newcomers: Sequence[BatchRow]) -> list[BatchRow]:
        """Add rows to the batch and sample the first token of each; return those that ended with it, or by an error."""
        groups: dict[Any, list[BatchRow]] = {}
        for row in newcomers:
            groups.setdefault(row.prompt.name if self._share else id(row), []).append(row)
        known = [_Group(rows[0].prompt, rows, *self._prefixes.find_longest(rows[0].prompt)) for rows in groups.values()]
        for part in _split_groups(known):
            self._start(part)
        return self._leave(lambda row: row.ended(self._end_id)) + [row for row in newcomers if row.error is not None]

    @torch.inference_mode()
    def step(self) -> list[BatchRow]:
        """Sample one token or more for each row; return the rows that ended.

        Where the model fails, all rows end with its error.
        """
        try:
            image_id = self._model.config.image_token_id
            guesses = self._guess()
            ids = [row.inputs(image_id) + tokens for row, (tokens, _) in zip(self.rows, guesses, strict=True)]
            starts = [row.length for row in self.rows]  # tokens in the KV cache
            positions = [row.prompt.following + row.length - len(row.prompt) for row in self.rows]
            wanted = [1 + len(tokens) for tokens, _ in guesses]
            hidden = self._pass.extend(ids, positions, starts, self._held, wanted)
            self._sample(hidden, self.rows, guesses)
            self.counts.steps += 1
        except Exception as error:
            log.exception("a step of %d requests failed", len(self.rows))
            return self.fail(error)
        return self._leave(lambda row: row.ended(self._end_id))

    def _guess(self) -> list[_Guess]:
        """Guess the rows' next tokens, where a pass takes several. As many as the pass then costs less than the steps
        that are saved: a step has a cost of its own that all rows share, a guessed token its arithmetic."""
        if not self._pass.takes_several or any(row.sampling.reshapes for row in self.rows):
            return [_NOTHING] * len(self.rows)
        least = len(self.rows) / (len(self.rows) + 8)
        return [
            row.form.guess(least, min(_GUESSED, row.sampling.max_new_tokens - len(row.token_ids) - 1))
            if row.form is not None
            else _NOTHING
            for row in self.rows
        ]

    @torch.inference_mode()
    def drop(self, gone: Callable[[BatchRow], bool]) -> None:
        """Remove the rows for which `gone` is true from the batch."""
        self._leave(gone)

    def fail(self, error: Exception) -> list[BatchRow]:
        """End all rows of the batch with `error` and return them; the engine stays usable."""
        failed, self.rows = self.rows, []
        for row in failed:
            row.error = _named(error)
        self._held = self._key_values(0, 0)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # the error may be that memory ran out
        return failed

    def _key_values(self, rows: int, length: int) -> cache.KVCache:
        layers = self._model.config.get_text_config().num_hidden_layers
        return cache.KVCache(rows, length, layers, spare_masks=self._flash)

    def _start(self, groups: list[_Group]) -> None:
        """Compute the prompts and add the rows. If a pass fails, try its prompts one by one."""
        before = len(self.rows)
        try:
            self._begin(groups)
        except Exception as error:
            del self.rows[before:]
            if len(groups) > 1:
                for group in groups:
                    self._start([group])
                return
            log.exception("a prompt of %d tokens failed", len(groups[0].prompt))
            for row in groups[0].rows:
                row.error = _named(error)

    def _begin(self, groups: Sequence[_Group]) -> None:
        rows = [row for group in groups for row in group.rows]
        for row in rows:
            row.begin()
        new = [group for group in groups if group.width]
        computed = {id(group): found for group, found in zip(new, self._prefill_all(new), strict=True)}
        last = [computed[id(group)].hidden if group.width else group.prefix.hidden for group in groups]
        self._sample(torch.stack([state for state, group in zip(last, groups, strict=True) for _ in group.rows]), rows)
        self._reserve(rows)
        for group in groups:
            for row in group.rows:
                if row.error is not None:
                    continue
                if group.width:
                    found = computed[id(group)]
                    self._held.take(len(self.rows), found.held, found.row, len(group.prompt))
                else:
                    self._held.write(len(self.rows), group.prefix.held)
                self.rows.append(row)
        for group in new if self._prefixes.limit else ():
            found = computed[id(group)]
            copy = found.held.read(found.row, len(group.prompt))
            self._prefixes.put(cache.CachedPrefix(group.prompt.cuts, copy, found.hidden.clone()))
        self.counts.prompts += len(rows)
        self.counts.prefilled += sum(group.width for group in groups)
        self.counts.shared += sum(len(group.prompt) * len(group.rows) - group.width for group in groups)

    def _reserve(self, rows: Sequence[BatchRow]) -> None:
        needed = max(len(row.prompt) + row.sampling.max_new_tokens for row in (*rows, *self.rows))
        total = len(self.rows) + len(rows)
        if not self.rows and self._held.length > 4 * needed:  # sized for a long context that has ended
            self._held = self._key_values(0, 0)
        self._held.reserve(1 << (total - 1).bit_length(), needed, len(self.rows))

    def _prefill_all(self, groups: Sequence[_Group]) -> list[_Computed]:
        """Compute the prompts of `groups`, in parallel parts on a CPU; return them in the order of `groups`."""
        screens = [screen for group in groups for screen in group.screens]
        seen = {screen.key: found for screen, found in zip(screens, self.vision.features(screens), strict=True)}
        if len(groups) < 2 or self._beside is None:
            return self._prefill(groups, seen) if groups else []
        each = -(-len(groups) // self._threads)
        parts = [groups[start : start + each] for start in range(0, len(groups), each)]
        return list(chain.from_iterable(self._beside.map(self._prefill, parts, repeat(seen))))

    @torch.inference_mode()  # this mode is set per thread
    def _prefill(self, groups: Sequence[_Group], features: Mapping[bytes, cache.ScreenFeatures]) -> list[_Computed]:
        """Compute the prompts of `groups` in one pass. features: of each screen, by its key."""
        starts = [group.known for group in groups]
        held = self._key_values(len(groups), max(starts) + max(group.width for group in groups))
        for row, group in enumerate(groups):
            if group.prefix is not None:
                held.write(row, group.prefix.held[:, :, :, : group.known])
        ids = [group.prompt.ids[group.known :] for group in groups]
        positions = [group.prompt.positions[:, group.known :] for group in groups]
        shown = [features[screen.key] for group in groups for screen in group.screens]
        hidden = self._pass.prefill(ids, positions, starts, held, shown)
        return [_Computed(held, row, hidden[row]) for row in range(len(groups))]

    def _sample(self, hidden: Tensor, rows: Sequence[BatchRow], guesses: Sequence[_Guess] = ()) -> None:
        """Sample a token for each of `rows`, and where it is the one that was guessed, the next. hidden: [rows and
        guessed tokens, size], at the last tokens of each row. A row whose logits are not finite, or whose token breaks
        the grammar, gets an error; the others do not."""
        logits = self._pass.logits(hidden)
        guesses = guesses or [_NOTHING] * len(rows)
        if isinstance(self._pass, CompiledPass) and not any(row.sampling.reshapes for row in rows):
            drawn = self._draw_compiled(self._pass, logits, rows, guesses)
        else:
            drawn = self._draw(logits, rows)
        at = 0
        for row, (guessed, _) in zip(rows, guesses, strict=True):
            self._accept(row, guessed, drawn[at : at + 1 + len(guessed)])
            at += 1 + len(guessed)

    def _accept(self, row: BatchRow, guessed: Sequence[int], drawn: Sequence[_Drawn]) -> None:
        """Append what was drawn for a row, up to the first token that is another than was guessed in its place: what
        was drawn behind that is of another answer."""
        try:
            for (token, value, tempered), expected in zip(drawn, [*guessed, None], strict=True):
                if not math.isfinite(value):
                    raise PolicyError("the weights give numbers that are not finite", where="the model")
                row.add(token, value, tempered)
                self.counts.tokens += 1
                if token != expected or row.ended(self._end_id):
                    break
            row.pending = 1
            if self._pass.takes_several and row.form is not None:
                self._join(row)
        except PolicyError as error:
            row.error = error

    def _join(self, row: BatchRow) -> None:
        """Append the tokens that the row's grammar leaves no choice of: their probability is 1, whatever the model
        says. The model gets them with the token that it sampled."""
        while row.form.only is not None and not row.ended(self._end_id):
            row.add(row.form.only, 0.0, 0.0)
            row.pending += 1
            self.counts.tokens += 1

    def _draw_compiled(
        self, compiled: CompiledPass, logits: Tensor, rows: Sequence[BatchRow], guesses: Sequence[_Guess]
    ) -> list[_Drawn]:
        """Sample by compiled code: for each row, and behind each of its guessed tokens as if they were the answer's."""
        allowed: list[np.ndarray | None] = []
        for row, (_, masks) in zip(rows, guesses, strict=True):
            allowed += [row.form.allowed, *masks] if row.form is not None else [None]
        ahead = [(row, n) for row, (tokens, _) in zip(rows, guesses, strict=True) for n in range(1 + len(tokens))]
        return compiled.draw(
            logits, allowed, [row.sampling.temperature for row, _ in ahead], [row.random(n) or 0.0 for row, n in ahead]
        )

    def _draw(self, logits: Tensor, rows: Sequence[BatchRow]) -> list[_Drawn]:
        """Sample by torch, with penalties and filters, on any device: token, log-probability at temperature 1 and at
        the row's, of each row."""
        held = [number for number, row in enumerate(rows) if row.form is not None]
        if held:
            blocked = np.stack([rows[number].form.blocked() for number in held])
            logits[held] = logits[held].masked_fill(torch.from_numpy(blocked).to(self._device), BLOCKED_LOGIT)
        allowed = _reshape_logits(logits, rows)
        chosen = sample_tokens(allowed, [row.sampling for row in rows], [row.random() for row in rows])
        values = _logprobs(logits, chosen)
        scale = [row.sampling.temperature or 1.0 for row in rows]
        as_drawn = set(scale) == {1.0} and allowed is logits
        drawn = values if as_drawn else _logprobs(allowed / logits.new_tensor(scale)[:, None], chosen)
        read = torch.stack([chosen.double(), values.double(), drawn.double()], dim=1)  # a GPU is waited for once
        return [(int(token), value, tempered) for token, value, tempered in read.tolist()]

    def _leave(self, gone: Callable[[BatchRow], bool]) -> list[BatchRow]:
        """Take out and return the rows for which `gone` is true. The last row moves into each gap, so that the batch
        stays the first rows of the buffers."""
        left = []
        for number in reversed(range(len(self.rows))):
            row = self.rows[number]
            if not gone(row):
                continue
            left.append(row)
            last = self.rows.pop()
            if last is not row:
                self.rows[number] = last
                self._held.take(number, self._held, len(self.rows), last.length)
            if row.error is not None:
                self._held.wipe(len(self.rows))
        return left[::-1]


def _reshape_logits(logits: Tensor, rows: Sequence[BatchRow]) -> Tensor:
    """Apply penalties and filters of the rows that set them; return [rows, vocabulary], `logits` itself if none does.

    The order is vLLM's: penalties, temperature (`sample_tokens` applies it), min_p, top_k, then top_p of what is left.
    """
    if not any(row.sampling.reshapes for row in rows):
        return logits
    shaped = logits.clone()
    for row, own in zip(rows, shaped, strict=True):
        asked = row.sampling
        if asked.penalises:
            answer = torch.tensor(row.token_ids, dtype=torch.int64, device=own.device)
            known = torch.cat([row.prompt.ids.to(own.device), answer]).unique()
            value = own[known]
            own[known] = torch.where(value > 0, value / asked.repetition_penalty, value * asked.repetition_penalty)
            if len(answer):
                held, times = answer.unique(return_counts=True)
                own[held] -= asked.frequency_penalty * times + asked.presence_penalty
        if asked.filters and asked.temperature > 0:
            probs = (own / asked.temperature).softmax(dim=-1)
            likeliest, order = probs.sort(descending=True)
            out = likeliest < asked.min_p * likeliest[0]
            out[asked.top_k or len(out) :] = True
            left = likeliest.masked_fill(out, 0.0)
            out |= left.cumsum(dim=-1) - left >= asked.top_p * left.sum()
            out[0] = False
            own[order[out]] = -math.inf
    return shaped


def _logprobs(logits: Tensor, chosen: Tensor) -> Tensor:
    return logits.log_softmax(dim=-1).gather(1, chosen[:, None])[:, 0]


def _split_groups(groups: Sequence[_Group]) -> list[list[_Group]]:
    """Split groups, sorted by width, into parts of at most PREFILL_TOKENS tokens with padding, at least one each."""
    parts: list[list[_Group]] = []
    for group in sorted(groups, key=lambda group: -group.width):
        if not parts or parts[-1][0].width * (len(parts[-1]) + 1) > PREFILL_TOKENS:
            parts.append([])
        parts[-1].append(group)
    return parts


def _named(error: Exception) -> PolicyError:
    if isinstance(error, PolicyError):
        return error
    return PolicyError(f"the model failed: {error}", where="the model")
