"""The report: one self-contained HTML page of a workspace, `report/index.html`. It needs nothing but itself."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from flywheel.files import write_text
from flywheel.report import facts, palette, rl
from flywheel.schema import SCHEMA_VERSION
from flywheel.store import catalog, versioning
from flywheel.workspace import Workspace, label

Row = dict[str, Any]
_SHOWN = 10  # iterations


def build(ws: Workspace, *, everything: bool = False) -> Path:
    """Write the page and return its path. A workspace where nothing has run yet gets a page that says so.

    It shows the newest ten iterations, and those before them in the figures of the whole; everything: all of them.
    """
    with catalog.connect(ws) as connection:
        rows = facts.iterations(connection)
        since = 0 if everything or not rows else max(0, rows[-1]["iteration"] - _SHOWN)
        minute_iterations, minutes = facts.minutes(connection, _order(ws))
        alignment, utterance = facts.alignment(connection, since)
        rl_curves, rl_worlds = rl.curves(connection, since)
        shown = {
            "iterations": [row for row in rows if row["iteration"] > since],
            "earlier": sum(row["iteration"] <= since for row in rows),
            "domains": facts.domains(rows),
            "funnels": facts.funnels(connection),
            "p_v1": facts.p_v1(connection, since),
            "success": facts.success(rows, since),
            "curves": facts.curves(connection, since),
            "rl_curves": rl_curves,
            "rl_worlds": rl_worlds,
            "sampled_less": rl.sampled_less(connection),
            "alignment": alignment,
            "utterance": utterance,
            "replays": facts.replays(connection, facts.domains(rows), since),
            "worlds": facts.worlds(connection),
            "rises": facts.rises(connection, since),
            "by_stage": facts.by_stage(connection, since),
            "looked_at": facts.looked_at(connection, since),
            "quarantine": facts.quarantine(connection, since),
            "minute_iterations": minute_iterations,
            "minutes": minutes,
            "lineage": facts.lineage(connection, since),
        }
    text = render(
        "report.html",
        **shown,
        heading=heading(rows),
        summary=summary(rows),
        figures=figures(rows),
        workspace=ws.root.name,
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        schema_version=SCHEMA_VERSION,
        docs=(ws.report / "docs" / "index.html").exists(),
    )
    path = ws.report / "index.html"
    write_text(path, text)
    return path


def render(template: str, **values: Any) -> str:
    """A template of this package as text, escaped."""
    return _templates().get_template(template).render(palette=palette.css(), **values)


def heading(rows: list[Row]) -> str:
    if not rows:
        return "Nothing has run yet"
    count = len(rows)
    return f"{count} turn{'s' if count > 1 else ''} of the flywheel"


def summary(rows: list[Row]) -> list[tuple[str, bool]]:
    """One paragraph as pieces of text; True where it is stressed."""
    if not rows:
        return [("Type ", False), ("flywheel run", True), (" in this workspace; then build the report again.", False)]
    came = sum(row["trajectories"] + row["recordings"] for row in rows)
    pieces = [
        (f"{came} trajectories", True),
        (" came in: ", False),
        (f"{sum(row['to_sft'] for row in rows)}", True),
        (" were verified and joined the SFT store, ", False),
        (f"{sum(row['to_ct'] for row in rows)}", True),
        (" joined the CT store, ", False),
        (f"{sum(row['to_quarantine'] for row in rows)}", True),
        (" were set aside with a reason. ", False),
    ]
    known = [row for row in rows if row["p_v1"] is not None]
    if len(known) > 1:
        first, last = known[0], known[-1]
        apart = last["p_v1_low"] > first["p_v1_high"] or last["p_v1_high"] < first["p_v1_low"]
        pieces += [
            ("P(V = 1) of the newest model went from ", False),
            (f"{_percent(first['p_v1'])} to {_percent(last['p_v1'])}", True),
            (" over the iterations" + ("" if apart else " (the intervals overlap)") + ". ", False),
        ]
    judged = [row for row in rows if row["promoted"] is not None]
    if judged:
        promoted = [label(row["iteration"]) for row in judged if row["promoted"]]
        pieces.append(
            (f"{len(promoted)} of {len(judged)} merged models were promoted; the newest is ", False)
            if promoted
            else ("No merged model was promoted; the newest is still ", False)
        )
        pieces.append((judged[-1]["model"], True))
        pieces.append((".", False))
    return pieces


def figures(rows: list[Row]) -> list[Row]:
    """The few figures on top: first and last value of what should rise."""
    result = []
    known = [row for row in rows if row["p_v1"] is not None]
    if known:
        first, last = known[0], known[-1]
        result.append(
            {
                "what": "P(V = 1) on new tasks",
                "before": _percent(first["p_v1"]) if len(known) > 1 else "",
                "value": _percent(last["p_v1"]),
                "note": f"95%: {_percent(last['p_v1_low'])} to {_percent(last['p_v1_high'])}",
            }
        )
    for domain in facts.domains(rows):
        known = [row["success"][domain] for row in rows if row["success"].get(domain, {}).get("after") is not None]
        if known:
            result.append(
                {
                    "what": f"Held-out success, {domain}",
                    "before": _percent(known[0]["before"]),
                    "value": _percent(known[-1]["after"]),
                    "note": f"95%: {_percent(known[-1]['after_low'])} to {_percent(known[-1]['after_high'])}",
                }
            )
    spent = sum(row["minutes"] or 0 for row in rows)
    if spent:
        result.append(
            {"what": "Time", "before": "", "value": f"{spent:.1f} min", "note": f"{spent / len(rows):.1f} an iteration"}
        )
    return result


def _order(ws: Workspace) -> tuple[str, ...]:
    """The stages as they run in the newest iteration."""
    begun = versioning.iterations(ws)
    return versioning.stages(ws, begun[-1]) if begun else ()


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f}%"


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("flywheel.report"),
        autoescape=lambda name: name != "style.css",
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
