"""Keep the past steps of an episode for the prompt: recent ones in full, older ones brief (UI-TARS-2, section 2.1).

The paper's memory M_t = (W_t, E_t): W_t, the working memory, and E_t, the episodic memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from flywheel import config

SUMMARY_CHARACTERS = 80


@dataclass(frozen=True)
class PastStep:
    """Hold a past step of an episode, as the memory needs it.

    screenshot: PNG that its action was chosen on; None where it was not kept or there was none. The other fields are
    those of `store.schema.Step`, with "" in place of None. action: its text. action_type: its name in the grammar.
    typed: text that a `type` action typed. observation: text that the policy read; None where the screen was all.
    """

    screenshot: bytes | None
    thought: str
    action: str
    tool_result: str = ""
    action_type: str = ""
    typed: str = ""
    url: str = ""
    parse_error: str = ""
    observation: str | None = None


def summarise_step(step: PastStep, characters: int = SUMMARY_CHARACTERS) -> str:
    """Summarise a step in one line, by a rule: its thought, or else its action, then what a tool returned.

    step: without thought and action the line begins with "No action.". characters: maximum length of the line; a longer
    one is cut at its end, where "..." then stands. Returns the line, without a line break.
    """
    text = collapse_whitespace(step.thought or step.action or "No action.")
    if step.tool_result:
        text += " -> " + collapse_whitespace(step.tool_result)
    return truncate_end(text, characters)


def format_outcome(step: PastStep) -> str:
    """Return the tool's result, or a sentence with the parse error that kept the step from acting; else ""."""
    return step.tool_result or (f"No action was carried out: {step.parse_error}." if step.parse_error else "")


def collapse_whitespace(text: str) -> str:
    """Replace each stretch of white space in `text` by one space, and strip its ends."""
    return " ".join(text.split())


def truncate_end(text: str, characters: int) -> str:
    """Cut `text` at its end to at most `characters` characters; the "..." in place of the end is counted."""
    return text if len(text) <= characters else text[: max(0, characters - 3)].rstrip() + "..."[:characters]


def truncate_middle(text: str, characters: int) -> str:
    """Cut the middle out of `text` to leave at most `characters` characters; a tool's last lines matter like its first.

    A line in place of the middle says by how many characters the text is too long. That line is counted, so a few more
    characters are left out than it says. Where it does not fit by itself, its beginning is returned.
    """
    if len(text) <= characters:
        return text
    mark = f"\n[{len(text) - characters} characters left out]\n"
    kept = max(0, characters - len(mark))
    return (text[: kept - kept // 2] + mark + text[len(text) - kept // 2 :])[:characters]


# Digests: one text of bounded length for all steps that are too old for a line of their own (section 2.1), by rules or
# by a language model (`policy/client/language_model.py`).

RULES = "rules"
_KEPT = 8  # newest pages and typed texts that a digest names
_TYPED_CHARACTERS = 24  # stored of each typed text
_PAGE_CHARACTERS = 48


@dataclass(frozen=True)
class StepCounts:
    """Hold counts and newest texts of any number of steps, in bounded space, for a digest by rules.

    actions: (action type, count) in the order of first use; the type is "" for steps without an action. pages, typed:
    the newest distinct URLs and typed texts, newest last.
    """

    actions: tuple[tuple[str, int], ...] = ()
    pages: tuple[str, ...] = ()
    typed: tuple[str, ...] = ()

    def with_steps(self, steps: Iterable[PastStep]) -> StepCounts:
        """Return the counts with `steps` added."""
        actions, pages, typed = dict(self.actions), self.pages, self.typed
        for step in steps:
            actions[step.action_type] = actions.get(step.action_type, 0) + 1
            pages = _newest(pages, truncate_end(collapse_whitespace(step.url), _PAGE_CHARACTERS))
            typed = _newest(typed, truncate_end(collapse_whitespace(step.typed), _TYPED_CHARACTERS))
        return StepCounts(tuple(actions.items()), pages, typed)

    def text(self, characters: int) -> str:
        """Write the counts in at most `characters` characters; oldest pages are dropped first, then oldest texts."""
        pages, typed = self.pages, self.typed
        while True:
            parts = [", ".join(f"{kind or 'no action'} {n}" for kind, n in self.actions)]
            parts += [f"typed {', '.join(repr(text) for text in typed)}"] * bool(typed)
            parts += [f"pages {', '.join(pages)}"] * bool(pages)
            text = "; ".join(parts) + "."
            if len(text) <= characters or not (pages or typed):
                return truncate_end(text, characters)
            pages, typed = (pages[1:], typed) if pages else (pages, typed[1:])


def _newest(kept: tuple[str, ...], one: str) -> tuple[str, ...]:
    return (*(other for other in kept if other != one), one)[-_KEPT:] if one else kept


@dataclass(frozen=True)
class HistorySummary:
    """Hold the digest of the oldest `steps` steps of a trajectory, of at most `policy.summary_max_chars` characters.

    by: its author as stored: rules, the language model's name, or rules and why the model failed. counts: of the rules.
    """

    steps: int = 0
    text: str = ""
    by: str = ""
    counts: StepCounts = field(default=StepCounts(), repr=False)


class Summarizer(Protocol):
    """Make digests of steps that are too old for a line of their own in the prompt.

    name: the author that is stored with a digest. every: number of such steps that must wait before the digest is
    renewed; until then each keeps its line.
    """

    name: str
    every: int

    def digest(self, before: HistorySummary, aged: Sequence[PastStep]) -> HistorySummary:
        """Extend a digest by the steps that follow it; within a process equal arguments give equal digests.

        before: the digest so far, an empty one at first. aged: the steps after it that are too old for a line of their
        own, oldest first. Returns the digest of both; where a language model fails, rules make it.
        """


class RuleSummarizer:
    """Make digests by rules, of at most `characters` characters; they cost nothing, so each step renews the digest."""

    name, every = RULES, 1

    def __init__(self, characters: int) -> None:
        self._characters = characters

    def digest(self, before: HistorySummary, aged: Sequence[PastStep]) -> HistorySummary:
        """Return the digest of the steps of `before` and of `aged`: their counts as text."""
        counts = before.counts.with_steps(aged)
        return HistorySummary(before.steps + len(aged), counts.text(self._characters), self.name, counts)


@dataclass(frozen=True)
class EpisodeMemory:
    """Hold the memory M_t = (W_t, E_t) for the prompt of one step: the last N steps in full, older ones compressed.

    A step is summarised when it leaves the working memory and digested once, so that neither the prompt nor the work of
    a step grows with the trajectory. working: W_t, the last N - 1 steps with their screens (the step being chosen is
    the N-th; N is `history_n_images`). episodic: a line for each of the newest `history_n_text` older steps, and for
    those that are not digested yet; oldest first. before: number of still older steps; 0 where the prompt does not
    mention them. digest: their digest, where `summary_max_chars` asks for one. result: outcome of the newest step,
    where the prompt shows it before the screen that followed. observation: text that the policy reads at this step;
    None where the screen is all.
    """

    working: tuple[PastStep, ...] = ()
    episodic: tuple[str, ...] = ()
    before: int = 0
    digest: str = ""
    result: str = ""
    observation: str | None = None


class StepHistory:
    """Hold the steps of one trajectory so far, and make the `EpisodeMemory` of them for each next step.

    policy: block `policy`. summarizer: makes the digests where `policy.summary_max_chars` asks for them; None: rules.
    digest: of the oldest steps, as of the last `memory()`; an empty one at first.
    """

    def __init__(self, policy: config.PolicySettings, summarizer: Summarizer | None = None) -> None:
        self._policy, self._summarizer = policy, summarizer or RuleSummarizer(policy.summary_max_chars)
        self._steps: list[PastStep] = []
        self.digest = HistorySummary()

    def add(self, step: PastStep) -> None:
        """Append a step that was taken."""
        self._steps.append(step)

    def recall(self, steps: int, text: str, by: str) -> None:
        """Restore a stored digest of the oldest `steps` steps.

        text, by: the digest's text and its author, as stored. Nothing happens where the present digest covers as many
        steps, or fewer steps were added.
        """
        if self.digest.steps < steps <= len(self._steps):
            counts = self.digest.counts.with_steps(self._steps[self.digest.steps : steps])
            self.digest = HistorySummary(steps, text, by, counts)

    def memory(self) -> EpisodeMemory:
        """Make the memory M_t for the next step, without its observation.

        The digest is renewed where enough steps (`Summarizer.every`) wait for it: by a language model this blocks, and
        must not be called from a running event loop.
        """
        policy, count = self._policy, len(self._steps)
        older = count - min(policy.history_n_images - 1, count)
        begin = max(0, older - policy.history_n_text)
        digested = policy.summary_max_chars > 0
        if digested:
            if begin - self.digest.steps >= self._summarizer.every:
                self.digest = self._summarizer.digest(self.digest, self._steps[self.digest.steps : begin])
            begin = min(self.digest.steps, older)
        shows_outcome = self._steps and (policy.history_n_images > 1 or policy.functions)
        result = format_outcome(self._steps[-1]) if shows_outcome else ""
        lines = tuple(summarise_step(step) for step in self._steps[begin:older])
        before, said = (self.digest.steps, self.digest.text) if digested else (0, "")
        return EpisodeMemory(tuple(self._steps[older:]), lines, before, said, result)


def build_memory(history: Sequence[PastStep], policy: config.PolicySettings) -> EpisodeMemory:
    """Make the memory M_t of a whole `history`, oldest step first, with a digest by rules. policy: block `policy`."""
    past = StepHistory(policy)
    for step in history:
        past.add(step)
    return past.memory()
