"""Build the rows of the table `metrics`, whose figures docs/metrics.md explains.

One name a figure, so that a query or a picture works for every stage.
"""

from __future__ import annotations

import math
from typing import Any

from flywheel.utils.confidence_intervals import wilson_interval

ALL_DOMAINS = "all"


def metric_row(
    name: str,
    value: float,
    *,
    domain: str = ALL_DOMAINS,
    step: int = 0,
    low: float | None = None,
    high: float | None = None,
    n: int | None = None,
) -> dict[str, Any]:
    """Build one row of the table `metrics`: a mapping of its columns.

    name: of the figure. value: written as null where it is not finite, so that SQL can average. domain: by default all.
    step: of a curve; 0 for a single figure. low, high: ends of its confidence interval. n: cases that it rests on.
    """
    value = float(value) if math.isfinite(value) else None
    return {"domain": domain, "name": name, "step": step, "value": value, "low": low, "high": high, "n": n}


def fraction_metric_row(
    name: str, successes: int, n: int, *, domain: str = ALL_DOMAINS, step: int = 0
) -> dict[str, Any]:
    """Build a row of `metrics`, as `metric_row`, for the fraction `successes` / `n`, with its 95% Wilson interval.

    name: of the figure. n: cases; of none, value and interval are null. domain: by default all. step: of a curve; 0 for
    a single figure.
    """
    low, high = wilson_interval(successes, n) if n else (None, None)
    value = successes / n if n else math.nan
    return metric_row(name, value, domain=domain, step=step, low=low, high=high, n=n)
