"""What the gate found of a candidate, as figures of the table `metrics`, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flywheel.evaluation.gate import Judgement, decide, explain
from flywheel.settings import Promotion
from flywheel.store import metrics

_SUFFIX = {"before": "", "best": "_best"}  # of the figures' names, by rival
_NAMES = {"before": "the model before it", "best": "the best model so far"}


def figures(rival: str, judged: Judgement) -> list[dict[str, Any]]:
    """Rows of the table `metrics` that `judgements` makes a judgement of again."""
    end = _SUFFIX[rival]
    interval = {"low": judged.low, "high": judged.high, "n": judged.n}
    return [
        metrics.row(f"gate_difference{end}", judged.difference, **interval),
        metrics.row(f"gate_passing{end}", judged.passing, n=judged.n),
        metrics.row(f"gate_failing{end}", judged.failing, n=judged.n),
        metrics.row(f"gate_discordance{end}", judged.discordance, n=judged.n),
    ]


def judgements(rows: Iterable[Mapping[str, Any]], rule: Promotion) -> dict[str, Judgement]:
    """What `figures` told of each rival; none of one that was not played against."""
    told = {row["name"]: row for row in rows if row["domain"] == metrics.ALL}
    found = {}
    for rival, end in _SUFFIX.items():
        row = told.get(f"gate_difference{end}")
        if row is not None:
            passing, failing, discordance = (
                told[f"gate_{name}{end}"]["value"] for name in ("passing", "failing", "discordance")
            )
            found[rival] = Judgement(
                decide(passing, failing, rule),
                row["value"],
                row["low"],
                row["high"],
                row["n"],
                passing,
                failing,
                discordance,
            )
    return found


def reasons(rows: Iterable[Mapping[str, Any]], rule: Promotion) -> list[str]:
    """A line for each rival: what was found, what the rule makes of it, how often it errs."""
    return [explain(found, rule, _NAMES[rival]) for rival, found in judgements(rows, rule).items()]
