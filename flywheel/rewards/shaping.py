"""Turn an episode's outcome into a reward for each step, with format, length and step penalties (section 2.5.4)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from flywheel.config import Settings


def length_penalty(length: int, settings: Settings) -> float:
    """Compute the penalty of a long response, 0 or less (DAPO, eq. 13): min(-(len - (L_max - L_buf)) / L_buf * f, 0).

    It is 0 up to L_max - L_buf and -f at L_max. length: response tokens of a step. settings: L_max is
    policy.max_new_tokens, L_buf rl.length_buffer (0: no penalty), f rl.length_penalty.
    """
    longest, rl = settings.policy.max_new_tokens, settings.rl
    if not rl.length_buffer:
        return 0.0
    return min(-(length - (longest - rl.length_buffer)) / rl.length_buffer * rl.length_penalty, 0.0)


def reward_at_end(outcome: float, steps: int) -> tuple[float, ...]:
    """Give the whole `outcome`, an episode's score, to the last of `steps` steps.

    Returns a reward for each step, [steps]; () for no steps.
    """
    return (*(0.0 for _ in range(steps - 1)), outcome) if steps else ()


def reward_as_earned(outcome: float, scores: Sequence[float | None]) -> tuple[float, ...]:
    """Split the outcome over the steps by what each added to the score; the last step gets the rest.

    outcome: score of the episode. scores: [steps], of the state that each step was chosen on; None where it is not
    known, which counts as the score before it, or 0 at the beginning. Returns [steps]. The sum is the outcome less the
    first score, which is the same for all trajectories of a task, so no policy is preferred that the outcome alone
    would not prefer (potential-based shaping, Ng et al. 1999, at gamma 1).
    """
    known: list[float] = []
    for score in scores:
        known.append(score if score is not None else known[-1] if known else 0.0)
    return tuple(after - before for before, after in pairwise([*known, outcome]))


def shape_rewards(
    outcome: Sequence[float], lengths: Sequence[int], parse_errors: Sequence[bool], settings: Settings, budget: int = 0
) -> tuple[float, ...]:
    """Compute the reward of each step of one trajectory, [steps]; it is put on the last token of its step.

    outcome: [steps], part of the verifier's score that each step gets, as `reward_at_end` or `reward_as_earned` splits
    it. lengths: [steps], response tokens. parse_errors: [steps], whether each step's text held no valid action.
    settings: of the penalties. budget: steps that the task allows; 0: no step penalty. Format, length and step
    penalties as in section 2.5.4 of the UI-TARS-2 report: rl.format_penalty for each step that does not parse,
    `length_penalty` for a long response, rl.step_penalty for a trajectory that uses its whole budget, evenly over its
    steps. Raises ValueError for lists of different lengths.
    """
    step = settings.rl.step_penalty / budget if budget else 0.0
    return tuple(
        earned + length_penalty(length, settings) - (settings.rl.format_penalty if broken else 0.0) - step
        for earned, length, broken in zip(outcome, lengths, parse_errors, strict=True)
    )
