"""Measure how far reviewers agree beyond chance: Krippendorff's alpha and Gwet's AC1, with bootstrap intervals.

Both are for names without an order, and take any number of raters, also another number for each subject. Alpha
(Krippendorff, Computing Krippendorff's Alpha-Reliability, 2011) takes for chance what the answers of all raters mixed
would give: where nearly all answers are the same, it is low however much raters agree. AC1 (Gwet, Computing inter-rater
reliability and its variance in the presence of high agreement, 2008) is made for that case. Read both.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

_RESAMPLES = 1000
_LEAST = 3  # subjects: of fewer, all samples are nearly the same, and an interval would say nothing


@dataclass(frozen=True)
class Agreement:
    """Hold figures of how far raters agree. n: subjects with two answers or more. alike: share of pairs of answers that
    are the same. alpha, ac1: at most 1, 0 for chance; None where chance cannot be told (alpha: all answers are the
    same). low, high: ends of the 95% interval; None where fewer than three are compared."""

    n: int
    alike: float | None = None
    alpha: float | None = None
    alpha_low: float | None = None
    alpha_high: float | None = None
    ac1: float | None = None
    ac1_low: float | None = None
    ac1_high: float | None = None

    @property
    def words(self) -> str:
        """Describe the figures in a line."""
        parts = [f"{self.n} compared", *([] if self.alike is None else [f"{self.alike:.0%} alike"])]
        for name, title in (("alpha", "alpha"), ("ac1", "AC1")):
            value, low, high = (getattr(self, one) for one in (name, f"{name}_low", f"{name}_high"))
            interval = "(interval not known)" if low is None else f"[{low:.2f}, {high:.2f}]"
            parts.append(f"{title} not known" if value is None else f"{title} {value:.2f} {interval}")
        return ", ".join(parts)


def measure_agreement(answers: Sequence[Sequence[Hashable]], categories: int, seed: int = 0) -> Agreement:
    """Measure how far raters agree in their answers.

    answers: for each subject, one from each rater who gave one. categories: how many different answers could be given,
    2 or more. seed: of the bootstrap, which draws subjects anew, a thousand times. Where no subject has two answers,
    `n` is 0 and all figures are None.
    """
    answers, n = [said for said in answers if said], sum(len(said) > 1 for said in answers)
    if not n:
        return Agreement(0)
    names = {name: place for place, name in enumerate(dict.fromkeys(one for said in answers for one in said))}
    counts = np.zeros((len(answers), max(categories, len(names))))
    for row, said in zip(counts, answers, strict=True):
        np.add.at(row, [names[one] for one in said], 1)
    draws = np.random.default_rng(seed).multinomial(len(counts), np.full(len(counts), 1 / len(counts)), _RESAMPLES)
    whole, drawn = (_coefficients(counts, one) for one in (np.ones((1, len(counts))), draws.astype(float)))
    figures = {"alike": float(whole["alike"][0])}
    for name in ("alpha", "ac1"):
        if np.isfinite(whole[name][0]):
            figures[name] = float(whole[name][0])
            if n >= _LEAST:
                low, high = np.quantile(drawn[name][np.isfinite(drawn[name])], (0.025, 0.975))
                figures |= {f"{name}_low": float(low), f"{name}_high": float(high)}
    return Agreement(n, **figures)


def _coefficients(counts: np.ndarray, times: np.ndarray) -> dict[str, np.ndarray]:
    """Compute the coefficients of each sample of subjects.

    counts: [subjects, categories], answers of each kind. times: [samples, subjects], how often each was drawn. Returns
    arrays [samples]; NaN where chance cannot be told.
    """
    raters = counts.sum(1, keepdims=True)
    several = counts * (raters > 1)  # a single answer agrees with none; AC1 takes it for chance all the same
    pairs = (several * (several - 1)).sum(1) / np.maximum(raters[:, 0] - 1, 1)  # pairs of the same answer, an answer's
    total, values = times @ several.sum(1), times @ several
    with np.errstate(invalid="ignore", divide="ignore"):
        by_chance = (values * (total[:, None] - values)).sum(1) / (total * (total - 1))
        alpha = 1 - (1 - times @ pairs / total) / by_chance
        alike = times @ (pairs / raters[:, 0]) / (times @ (raters[:, 0] > 1))
        share = times @ (counts / raters) / times.sum(1, keepdims=True)
        chance = (share * (1 - share)).sum(1) / (counts.shape[1] - 1)
        return {"alike": alike, "alpha": alpha, "ac1": (alike - chance) / (1 - chance)}
