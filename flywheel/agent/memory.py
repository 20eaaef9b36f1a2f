"""Memory M_t = (W_t, E_t) (section 2.1): the last N steps in full, older ones as one-line summaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SUMMARY_CHARACTERS = 80


@dataclass(frozen=True)
class PastStep:
    """A step that is over. screenshot: the PNG it was chosen on (None where it was not kept).

    action: serialised in the policy's coordinate space; empty where the model's text held none.
    result: what an SDK function returned, else empty.
    """

    screenshot: bytes | None
    thought: str
    action: str
    result: str = ""


@dataclass(frozen=True)
class Memory:
    """working: the newest past steps, kept with their screens; episodic: summaries of older ones, oldest first."""

    working: tuple[PastStep, ...]
    episodic: tuple[str, ...]


def remember(history: Sequence[PastStep], *, working_steps: int, episodic_steps: int) -> Memory:
    """Split the past. The step being chosen is one of the `working_steps`, so that many less one are kept in full."""
    kept = min(working_steps - 1, len(history))
    older = history[: len(history) - kept]
    recent = older[len(older) - min(episodic_steps, len(older)) :]
    return Memory(tuple(history[len(history) - kept :]), tuple(summarise(step) for step in recent))


def summarise(step: PastStep) -> str:
    """A step in one line, by rule: its thought, or where there is none its action; then what a tool returned."""
    text = " ".join((step.thought or step.action or "No action.").split())
    if step.result:
        text += " -> " + " ".join(step.result.split())
    return text if len(text) <= SUMMARY_CHARACTERS else text[: SUMMARY_CHARACTERS - 3].rstrip() + "..."
