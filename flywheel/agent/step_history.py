"""Memory M_t = (W_t, E_t) (section 2.1): the last N steps in full, older ones compressed.

    W_t   working memory: the last N - 1 steps with their screens (the step being chosen is the N-th)
    E_t   episodic memory: a line each for the newest `episodic_steps` of the older steps, and, where
          `digest_characters` asks for it, one digest of bounded length for all that is older still

A step is summarised when it leaves the working memory and digested once, so that neither the prompt nor the work of a
step grows with the trajectory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flywheel import settings as config
from flywheel.agent.history_summary import HistorySummary, RuleSummarizer, Summarizer
from flywheel.agent.steps import PastStep, outcome, summarise


@dataclass(frozen=True)
class Memory:
    """working: the newest past steps, kept with their screens; episodic: lines of older ones, oldest first.

    before: how many steps are older than those (0 where nothing is said of them); digest: what is said of them.
    result: what the newest step returned, where that is shown in full beside the screen that followed it. observation:
    what is there to read now, None where the screen is all.
    """

    working: tuple[PastStep, ...] = ()
    episodic: tuple[str, ...] = ()
    before: int = 0
    digest: str = ""
    result: str = ""
    observation: str | None = None


class StepHistory:
    """The steps of one trajectory so far, from which M_t is made at each step.

    digest: of the oldest steps, as the newest `memory()` had it.
    """

    def __init__(self, policy: config.Policy, summarizer: Summarizer | None = None) -> None:
        self._policy, self._summarizer = policy, summarizer or RuleSummarizer(policy.digest_characters)
        self._steps: list[PastStep] = []
        self.digest = HistorySummary()

    def add(self, step: PastStep) -> None:
        self._steps.append(step)

    def recall(self, steps: int, text: str, by: str) -> None:
        """Take a digest of the first `steps` steps as it was stored, where that is newer than the one at hand."""
        if self.digest.steps < steps <= len(self._steps):
            self.digest = self.digest.stored(self._steps[self.digest.steps : steps], steps, text, by)

    def memory(self) -> Memory:
        """M_t for the step that comes next. Renews the digest where enough steps wait for it."""
        policy, count = self._policy, len(self._steps)
        older = count - min(policy.working_steps - 1, count)
        begin = max(0, older - policy.episodic_steps)
        digested = policy.digest_characters > 0
        if digested:
            if begin - self.digest.steps >= self._summarizer.every:
                self.digest = self._summarizer.digest(self.digest, self._steps[self.digest.steps : begin])
            begin = min(self.digest.steps, older)
        told = self._steps and (policy.working_steps > 1 or policy.functions)
        return Memory(
            working=tuple(self._steps[older:]),
            episodic=tuple(summarise(step) for step in self._steps[begin:older]),
            before=self.digest.steps if digested else 0,
            digest=self.digest.text if digested else "",
            result=outcome(self._steps[-1]) if told else "",
        )


def remember(history: Sequence[PastStep], policy: config.Policy) -> Memory:
    """M_t of a whole history at once, its digest by rules."""
    past = StepHistory(policy)
    for step in history:
        past.add(step)
    return past.memory()
