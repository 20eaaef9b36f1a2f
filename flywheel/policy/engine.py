"""Continuous batching: rows join a running batch between two steps and leave it when they end.

A pass over newcomers (`admit`) computes their prompts, or what of them is not known already; a pass over the batch
(`step`) adds a token to each row. The engine is synchronous and owned by one thread.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from flywheel.errors import PolicyError
from flywheel.policy.cache import KeyValues
from flywheel.policy.constraint import NEVER, AnswerState, Constraint
from flywheel.policy.fused import takes_flash
from flywheel.policy.prefix import EncodedScreen, Prefix, Prefixes, Prompt
from flywheel.policy.protocol import Sampling
from flywheel.policy.sampling import draw, generator_of
from flywheel.policy.text_pass import TextPass, library_pass
from flywheel.policy.threads import side_by_side
from flywheel.policy.vision import Features, Vision

log = logging.getLogger(__name__)

PREFILL_TOKENS = 8192  # of newcomers in one pass, padding included: bounds its memory and how long the batch waits


@dataclass(eq=False)
class Row:
    """A request in the batch. owner: whoever asked; the engine does not look at it. error: why it could not go on.
    constraint: what its answer is held to, if anything; form: how far it is written.

    logprobs, tempered: of each token, at temperature 1 and at that of the request (empty for a greedy one).
    """

    prompt: Prompt
    sampling: Sampling
    owner: Any = None
    constraint: Constraint | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tempered: list[float] = field(default_factory=list)
    error: Exception | None = None
    form: AnswerState | None = None
    generator: torch.Generator | None = None

    def fed(self, image_id: int) -> int:
        """The token that the next one is conditioned on: the newest. An image token that was sampled stands for no
        image, so in its place the one before it, as in the trainer's pass (`training.forward`)."""
        return next((token for token in reversed(self.token_ids) if token != image_id), int(self.prompt.ids[-1]))

    def ended(self, end_id: int) -> bool:
        return (
            self.error is not None
            or len(self.token_ids) >= self.sampling.max_new_tokens
            or (self.token_ids[-1] == end_id and not self.sampling.ignore_end)
        )


@dataclass
class Counts:
    """Since the start. steps: passes over the batch; tokens: sampled. prompts: computed or taken over whole;
    prefilled, shared: tokens of prompts that were computed, and that were taken over from an equal beginning."""

    steps: int = 0
    tokens: int = 0
    prompts: int = 0
    prefilled: int = 0
    shared: int = 0


@dataclass(frozen=True)
class _Group:
    """Newcomers with one prompt. The first `known` tokens of it are in `prefix`."""

    prompt: Prompt
    rows: list[Row]
    prefix: Prefix | None
    known: int

    @property
    def width(self) -> int:
        return len(self.prompt) - self.known

    @property
    def screens(self) -> list[EncodedScreen]:
        return [screen for screen in self.prompt.screens if screen.start >= self.known]


@dataclass(frozen=True)
class _Computed:
    """A prompt's keys and values, in `row` of `held`, and the hidden state at its last token."""

    held: KeyValues
    row: int
    hidden: Tensor


class InferenceEngine:
    """Any model of the Qwen-VL family. end_id: the token that ends a response. text_pass: in place of its own. threads:
    cores for passes over newcomers, which go side by side; 0: as many as the calling thread has.

    prefix_bytes, vision_bytes: room for prompts and for screens that may come again; 0 keeps none. share: whether
    newcomers with equal prompts are computed as one.
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
    ) -> None:
        self._model, self._end_id, self._share = model, end_id, share
        self._pass = text_pass or library_pass(model)
        first = next(model.parameters())
        self._device, self._flash = first.device, takes_flash(first.device, first.dtype)
        self._threads = 1 if self._device.type == "cuda" else threads or torch.get_num_threads()
        self._beside = side_by_side(self._threads)
        self._prefixes = Prefixes(prefix_bytes)
        self.vision = Vision(model, vision_bytes, self._threads, self._beside)
        self._held = self._key_values(0, 0)
        self.rows: list[Row] = []
        self.counts = Counts()

    @torch.inference_mode()
    def admit(self, newcomers: Sequence[Row]) -> list[Row]:
        """Add rows to the batch, each with its first token. Returns those that ended with it, or by an error."""
        groups: dict[Any, list[Row]] = {}
        for row in newcomers:
            groups.setdefault(row.prompt.name if self._share else id(row), []).append(row)
        for part in _parts([self._group(rows) for rows in groups.values()]):
            self._start(part)
        return self._leave(lambda row: row.ended(self._end_id)) + [row for row in newcomers if row.error is not None]

    @torch.inference_mode()
    def step(self) -> list[Row]:
        """One token for each row of the batch. Returns the rows that ended. A failure of the model ends them all."""
        try:
            lengths = [len(row.prompt) + len(row.token_ids) - 1 for row in self.rows]  # of what is held
            seen = max(lengths) + 1
            mask = self._held.at(lengths, 1, seen, self._device)
            moved = [row.prompt.following + len(row.token_ids) - 1 for row in self.rows]
            ids = self._tensor([[row.fed(self._model.config.image_token_id)] for row in self.rows])
            hidden = self._pass(ids, self._tensor([moved]).mT.expand(3, -1, -1), mask, self._held)
            self._sample(hidden[:, -1], self.rows)
            self.counts.steps += 1
        except Exception as error:
            log.exception("a step of %d requests failed", len(self.rows))
            return self.fail(error)
        return self._leave(lambda row: row.ended(self._end_id))

    @torch.inference_mode()
    def drop(self, gone: Callable[[Row], bool]) -> None:
        """Rows that nobody waits for any longer leave the batch."""
        self._leave(gone)

    def fail(self, error: Exception) -> list[Row]:
        """The whole batch ends by an error; the engine can be used on."""
        failed, self.rows = self.rows, []
        for row in failed:
            row.error = _named(error)
        self._held = self._key_values(0, 0)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # it may have been out of memory
        return failed

    def _key_values(self, rows: int, length: int) -> KeyValues:
        layers = self._model.config.get_text_config().num_hidden_layers
        return KeyValues(rows, length, layers, spare_masks=self._flash)

    # Newcomers.

    def _group(self, rows: list[Row]) -> _Group:
        prompt = rows[0].prompt
        prefix, known = self._prefixes.longest(prompt)
        return _Group(prompt, rows, prefix, known)

    def _start(self, groups: list[_Group]) -> None:
        """Compute the prompts and add the rows. Where a pass fails its prompts are tried one by one."""
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
            row.token_ids, row.logprobs, row.tempered, row.error = [], [], [], None
            row.generator = generator_of(row.sampling)
            row.form = row.constraint and row.constraint.begin()
        new = [group for group in groups if group.width]
        computed = {id(group): found for group, found in zip(new, self._prefill_all(new), strict=True)}
        last = [computed[id(group)].hidden if group.width else group.prefix.hidden for group in groups]
        self._sample(torch.stack([state for state, group in zip(last, groups, strict=True) for _ in group.rows]), rows)
        self._reserve(rows)
        for group in groups:
            for row in group.rows:
                if row.error is None:
                    self._join(row, group, computed.get(id(group)))
        for group in new if self._prefixes.limit else ():
            found = computed[id(group)]
            copy = found.held.read(found.row, len(group.prompt))
            self._prefixes.put(Prefix(group.prompt.cuts, copy, found.hidden.clone()))
        self.counts.prompts += len(rows)
        self.counts.prefilled += sum(group.width for group in groups)
        self.counts.shared += sum(len(group.prompt) * len(group.rows) - group.width for group in groups)

    def _join(self, row: Row, group: _Group, computed: _Computed | None) -> None:
        number = len(self.rows)
        if computed is None:
            self._held.write(number, group.prefix.held)
        else:
            self._held.take(number, computed.held, computed.row, len(group.prompt))
        self.rows.append(row)

    def _reserve(self, rows: Sequence[Row]) -> None:
        needed = max(len(row.prompt) + row.sampling.max_new_tokens for row in (*rows, *self.rows))
        total = len(self.rows) + len(rows)
        if not self.rows and self._held.length > 4 * needed:  # a long context has been and gone
            self._held = self._key_values(0, 0)
        self._held.reserve(1 << (total - 1).bit_length(), needed, len(self.rows))

    def _prefill_all(self, groups: Sequence[_Group]) -> list[_Computed]:
        """In the order of `groups`."""
        screens = [screen for group in groups for screen in group.screens]
        seen = {screen.key: found for screen, found in zip(screens, self.vision.features(screens), strict=True)}
        if len(groups) < 2 or self._beside is None:
            return self._prefill(groups, seen) if groups else []
        each = -(-len(groups) // self._threads)
        parts = [groups[start : start + each] for start in range(0, len(groups), each)]
        return list(chain.from_iterable(self._beside.map(self._prefill, parts, repeat(seen))))

    @torch.inference_mode()  # holds for one thread
    def _prefill(self, groups: Sequence[_Group], features: Mapping[bytes, Features]) -> list[_Computed]:
        """One pass."""
        width, starts = max(group.width for group in groups), [group.known for group in groups]
        seen = max(starts) + width
        held = self._key_values(len(groups), seen)
        for row, group in enumerate(groups):
            if group.prefix is not None:
                held.write(row, group.prefix.held[:, :, :, : group.known])
        ids = torch.zeros(len(groups), width, dtype=torch.int64)
        positions = torch.zeros(3, len(groups), width, dtype=torch.int64)
        for row, group in enumerate(groups):
            ids[row, : group.width] = group.prompt.ids[group.known :]
            positions[:, row, : group.width] = group.prompt.positions[:, group.known :]
        shown = [features[screen.key] for group in groups for screen in group.screens]
        mask = held.at(starts, width, seen, self._device)
        hidden = self._pass(ids.to(self._device), positions.to(self._device), mask, held, shown)
        return [_Computed(held, row, hidden[row, group.width - 1]) for row, group in enumerate(groups)]

    # A token for each row.

    def _sample(self, hidden: Tensor, rows: Sequence[Row]) -> None:
        """hidden: [rows, size]. A row whose numbers are not finite, or whose form breaks, ends by an error, alone."""
        logits = self._model.get_output_embeddings()(hidden).float()
        held = [number for number, row in enumerate(rows) if row.form is not None]
        if held:
            blocked = np.stack([rows[number].form.blocked() for number in held])
            logits[held] = logits[held].masked_fill(torch.from_numpy(blocked).to(self._device), NEVER)
        chosen = draw(logits, [row.sampling for row in rows], [row.generator for row in rows])
        values = _logprobs(logits, chosen)
        scale = [row.sampling.temperature or 1.0 for row in rows]
        drawn = values if set(scale) == {1.0} else _logprobs(logits / logits.new_tensor(scale)[:, None], chosen)
        read = torch.stack([chosen.double(), values.double(), drawn.double()], dim=1)  # a GPU is waited for once
        for row, (token, value, tempered) in zip(rows, read.tolist(), strict=True):
            if math.isfinite(value):
                row.token_ids.append(int(token))
                row.logprobs.append(value)
                if row.sampling.temperature > 0:
                    row.tempered.append(tempered)
                if row.form is not None:
                    try:
                        row.form.add(row.token_ids[-1])
                    except PolicyError as error:
                        row.error = error
            else:
                row.error = PolicyError("the weights give numbers that are not finite", where="the model")
        self.counts.tokens += len(rows)

    def _leave(self, gone: Callable[[Row], bool]) -> list[Row]:
        """Take rows out; the last row moves into a gap, so that the batch stays the first rows of the buffers."""
        left = []
        for number in reversed(range(len(self.rows))):
            row = self.rows[number]
            if not gone(row):
                continue
            left.append(row)
            last = self.rows.pop()
            if last is not row:
                self.rows[number] = last
                self._held.take(number, self._held, len(self.rows), len(last.prompt) + len(last.token_ids) - 1)
            if row.error is not None:
                self._held.wipe(len(self.rows))
        return left[::-1]

    def _tensor(self, numbers: Iterable[Any]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)


def _logprobs(logits: Tensor, chosen: Tensor) -> Tensor:
    return logits.log_softmax(dim=-1).gather(1, chosen[:, None])[:, 0]


def _parts(groups: Sequence[_Group]) -> list[list[_Group]]:
    """Groups of like width together, at most PREFILL_TOKENS with their padding, one group at least."""
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
