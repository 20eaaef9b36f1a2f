"""Digests: what the steps say that are too old for a line of their own, in one text of bounded length (section 2.1).

Two back-ends behind `Summarizer`: rules (counts of actions, the pages visited, the words typed), and a language model,
which is given the digest so far and the steps that have aged since, never the whole trajectory.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from flywheel import settings as config
from flywheel.agent.steps import PastStep, cut, one_line, summarise
from flywheel.language_model import LanguageModel, LanguageModelError, OpenAIModel

log = logging.getLogger(__name__)

RULES = "rules"
_KEPT = 8  # newest pages and typed texts that a counts remembers
_TYPED_CHARACTERS = 24  # of each typed text
_PAGE_CHARACTERS = 48
_LINE_CHARACTERS = 400  # of each step that a language model is told
_CACHE = 4096  # digests that a process keeps


@dataclass(frozen=True)
class StepCounts:
    """What a rule can say of any number of steps in bounded space.

    actions: how many of each kind, in the order of their first use; "" for steps without one. pages, typed: the
    newest different ones, the newest last.
    """

    actions: tuple[tuple[str, int], ...] = ()
    pages: tuple[str, ...] = ()
    typed: tuple[str, ...] = ()

    def with_steps(self, steps: Iterable[PastStep]) -> StepCounts:
        actions, pages, typed = dict(self.actions), self.pages, self.typed
        for step in steps:
            actions[step.action_type] = actions.get(step.action_type, 0) + 1
            pages = _newest(pages, cut(one_line(step.url), _PAGE_CHARACTERS))
            typed = _newest(typed, cut(one_line(step.typed), _TYPED_CHARACTERS))
        return StepCounts(tuple(actions.items()), pages, typed)

    def text(self, characters: int) -> str:
        """The counts in words, at most so many characters: the oldest pages go first, then the oldest typed texts."""
        pages, typed = self.pages, self.typed
        while True:
            said = [", ".join(f"{kind or 'no action'} {n}" for kind, n in self.actions)]
            said += [f"typed {', '.join(repr(text) for text in typed)}"] * bool(typed)
            said += [f"pages {', '.join(pages)}"] * bool(pages)
            text = "; ".join(said) + "."
            if len(text) <= characters or not (pages or typed):
                return cut(text, characters)
            pages, typed = (pages[1:], typed) if pages else (pages, typed[1:])


def _newest(kept: tuple[str, ...], one: str) -> tuple[str, ...]:
    return (*(other for other in kept if other != one), one)[-_KEPT:] if one else kept


@dataclass(frozen=True)
class HistorySummary:
    """The oldest `steps` steps of a trajectory in one text of at most `policy.digest_characters`.

    by: who wrote it, as the data name them: rules, a language model, or rules in its place and why.
    """

    steps: int = 0
    text: str = ""
    by: str = ""
    counts: StepCounts = field(default=StepCounts(), repr=False)

    def stored(self, since: Sequence[PastStep], steps: int, text: str, by: str) -> HistorySummary:
        """A digest that was stored with a step, where this one and the steps `since` are what came before."""
        return HistorySummary(steps, text, by, self.counts.with_steps(since))


class Summarizer(Protocol):
    """every: so many steps must wait for the digest before it is renewed. A step that waits keeps its line."""

    name: str
    every: int

    def digest(self, before: HistorySummary, aged: Sequence[PastStep]) -> HistorySummary:
        """`before` and the steps that follow it, as one. Equal arguments give equal digests within a process."""


class RuleSummarizer:
    """By rules: free, so the digest is renewed at each step."""

    name, every = RULES, 1

    def __init__(self, characters: int) -> None:
        self._characters = characters

    def digest(self, before: HistorySummary, aged: Sequence[PastStep]) -> HistorySummary:
        counts = before.counts.with_steps(aged)
        return HistorySummary(before.steps + len(aged), counts.text(self._characters), self.name, counts)


class ModelSummarizer:
    """By a language model, which is asked once for each `every` steps of a trajectory.

    Answers are kept by what was asked, so samples of one task that began alike read the same digest. Where the model
    fails, or answers nothing, the rules take its place for this digest: the log and `by` say so, and it is asked
    again when the next steps have aged. What was shown is stored with the step, so training never asks for it again.
    """

    every = 8

    def __init__(self, model: LanguageModel, characters: int) -> None:
        self.name, self._model, self._characters = model.name, model, characters
        self._rules = RuleSummarizer(characters)
        self._known: dict[str, str] = {}
        self._lock = threading.Lock()

    def digest(self, before: HistorySummary, aged: Sequence[PastStep]) -> HistorySummary:
        """Blocks while the model answers, `language_model.timeout_s` at most."""
        ruled = self._rules.digest(before, aged)
        try:
            text = self._ask(before, aged)
        except LanguageModelError as error:
            log.warning("a digest of %d steps is by rules: %s", ruled.steps, error)
            return HistorySummary(
                ruled.steps, ruled.text, f"{RULES}, since {self.name} failed: {error.what}", ruled.counts
            )
        return HistorySummary(ruled.steps, text, self.name, ruled.counts)

    def _ask(self, before: HistorySummary, aged: Sequence[PastStep]) -> str:
        system = _SYSTEM.format(characters=self._characters)
        lines = (f"{before.steps + n}. {summarise(step, _LINE_CHARACTERS)}" for n, step in enumerate(aged, 1))
        user = _USER.format(steps=before.steps, record=before.text or "Nothing yet.", lines="\n".join(lines))
        key = hashlib.sha256(f"{system}\0{user}".encode("utf-8", "replace")).hexdigest()
        with self._lock:
            if key in self._known:
                return self._known[key]
        text = cut(one_line(self._model.complete(system, user)), self._characters)
        if not text:
            raise LanguageModelError("the language model answered nothing", where="memory")
        with self._lock:
            if len(self._known) >= _CACHE:
                self._known.pop(next(iter(self._known)))
            return self._known.setdefault(key, text)  # the first of two answers that came at once is everyone's


_SYSTEM = """You keep the record of a GUI agent's work, which it reads instead of its older steps. Write the new \
record: the old one and the steps since, as one paragraph of plain text, at most {characters} characters. Keep what \
later steps may need: values that were read, text that was typed, pages that were visited, what failed, what is done. \
Leave out what no longer matters. Answer with the record alone."""

_USER = """Record of steps 1 to {steps}:
{record}

Steps since:
{lines}"""


def open_summarizer(settings: config.Settings) -> Summarizer:
    """The one that `policy.summarizer` names. All callers in a process share a model's answers."""
    policy = settings.policy
    if policy.summarizer == "rules":
        return RuleSummarizer(policy.digest_characters)
    return _model_summarizer(settings.language_model, policy.digest_characters)


@lru_cache(maxsize=8)
def _model_summarizer(model: config.LanguageModel, characters: int) -> ModelSummarizer:
    return ModelSummarizer(OpenAIModel(model), characters)
