"""Reward shaping (section 2.5.4): the outcome, a format penalty, DAPO's soft length penalty, the budget of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Shaping:
    """max_tokens: L_max of a response. buffer: L_buf, tokens below it where the penalty begins (0: no penalty).

    length_penalty: taken at L_max. format_penalty: taken for each step that does not parse. step_penalty: taken by a
    trajectory that uses its whole budget of steps, evenly over them.
    """

    format_penalty: float
    max_tokens: int
    buffer: int
    length_penalty: float
    step_penalty: float = 0.0


def length_penalty(length: int, shaping: Shaping) -> float:
    """min(-(len - (L_max - L_buf)) / L_buf * f, 0): 0 up to L_max - L_buf, -f at L_max (DAPO, eq. 13)."""
    if not shaping.buffer:
        return 0.0
    return min(-(length - (shaping.max_tokens - shaping.buffer)) / shaping.buffer * shaping.length_penalty, 0.0)


def shape(
    outcome: float, lengths: Sequence[int], parse_errors: Sequence[bool], shaping: Shaping, budget: int = 0
) -> tuple[float, ...]:
    """Reward of each step of one trajectory; each is put on the last token of its step.

    outcome: the verifier's score, which comes with the last step. lengths: response tokens of each step.
    parse_errors: whether each step's text held no valid action. budget: steps that the task allows; 0 is none.
    """
    step = shaping.step_penalty / budget if budget else 0.0
    rewards = [
        length_penalty(length, shaping) - (shaping.format_penalty if broken else 0.0) - step
        for length, broken in zip(lengths, parse_errors, strict=True)
    ]
    if rewards:
        rewards[-1] += outcome
    return tuple(rewards)
