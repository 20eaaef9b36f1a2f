"""Turn an outcome into rewards per step: format, length and step penalties (section 2.5.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class ShapingConfig:
    """Configure penalties per step (section 2.5.4).

    max_tokens: L_max of a response. buffer: L_buf, tokens below it where the penalty begins (0: no penalty).

    length_penalty: taken at L_max. format_penalty: taken for each step that does not parse. step_penalty: taken by a
    trajectory that uses its whole budget of steps, evenly over them.
    """

    format_penalty: float
    max_tokens: int
    buffer: int
    length_penalty: float
    step_penalty: float = 0.0


def length_penalty(length: int, shaping: ShapingConfig) -> float:
    """Compute min(-(len - (L_max - L_buf)) / L_buf * f, 0): 0 up to L_max - L_buf, -f at L_max (DAPO, eq. 13).

    length: response tokens of a step. Without a buffer it is 0.
    """
    if not shaping.buffer:
        return 0.0
    return min(-(length - (shaping.max_tokens - shaping.buffer)) / shaping.buffer * shaping.length_penalty, 0.0)


def reward_at_end(outcome: float, steps: int) -> tuple[float, ...]:
    """Give the whole outcome with the last step: one reward a step, [steps].

    outcome: score of the episode. steps: how many it has; of 0 there is none to get it.
    """
    return (*(0.0 for _ in range(steps - 1)), outcome) if steps else ()


def reward_as_earned(outcome: float, scores: Sequence[float | None]) -> tuple[float, ...]:
    """Split the outcome over the steps by what each added to the score; the last gets what is missing to the outcome.

    outcome: score of the episode. scores: [steps], of the state that each step was chosen on; None, where none is
    known, is the one before it, 0 where there is none before. Returns [steps]. The sum is the outcome less the first
    score, which is the same for all trajectories of a task, so no policy is preferred that the outcome alone would not
    prefer (potential-based shaping, Ng et al. 1999, at gamma 1).
    """
    known: list[float] = []
    for score in scores:
        known.append(score if score is not None else known[-1] if known else 0.0)
    return tuple(after - before for before, after in pairwise([*known, outcome]))


def shape_rewards(
    outcome: Sequence[float],
    lengths: Sequence[int],
    parse_errors: Sequence[bool],
    shaping: ShapingConfig,
    budget: int = 0,
) -> tuple[float, ...]:
    """Compute the reward of each step of one trajectory, [steps]; it is put on the last token of its step.

    outcome: [steps], what of the verifier's score comes with each step. lengths: [steps], response tokens.
    parse_errors: [steps], whether each step's text held no valid action. shaping: penalties. budget: steps that the
    task allows; 0: no step penalty. Format, length and step penalties as in section 2.5.4 of the UI-TARS-2 report.
    Raises ValueError for lists of different lengths.
    """
    step = shaping.step_penalty / budget if budget else 0.0
    return tuple(
        earned + length_penalty(length, shaping) - (shaping.format_penalty if broken else 0.0) - step
        for earned, length, broken in zip(outcome, lengths, parse_errors, strict=True)
    )
