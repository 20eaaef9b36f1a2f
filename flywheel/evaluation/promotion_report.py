"""Collect what a decision about a promotion rests on, for a page and for Prefect's form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flywheel.config import PromotionSettings
from flywheel.config.workspace import Workspace, iteration_label
from flywheel.envs.verdict import verdicts_from_rows
from flywheel.evaluation import baselines, gate
from flywheel.store import lineage, manifest, partitions

_FIRST = ("gate_", "success_")  # figures that decide, shown first
_TOLD = 40  # tasks in Prefect's form
_GROUPS = {"": "", "seen_": ", known", "unseen_": ", new"}
_LEGEND = "Success on the held-out tasks; *known*: of templates that are trained on, *new*: of those that never are."
_MADE = re.compile(r"models/iteration=(\d+)/")
Row = dict[str, Any]


@dataclass(frozen=True)
class FlippedTask:
    """A task on which two models differ, by an episode of each. gained: the merged model solves it, and the one that
    `before` names does not; else the other way round."""

    gained: bool
    domain: str
    world: str
    instruction: str
    trajectory_id: str
    trajectory_before: str
    before: str


@dataclass(frozen=True)
class PromotionReport:
    """Hold what a decision about a promotion rests on.

    reasons: what the rule `non_inferiority` would say against each model, with its error rates. figures: rows of the
    table `metrics`, those that decide first. flips: tasks lost, then those gained.
    """

    iteration: int
    reasons: tuple[str, ...]
    figures: tuple[Row, ...]
    flips: tuple[FlippedTask, ...]

    def markdown(self) -> str:
        lines = [f"Promote the merged model of iteration {iteration_label(self.iteration)}?", ""]
        lines += [f"The rule `non_inferiority` would say: {reason}." for reason in self.reasons]
        lines += ["", "Tasks on which the models differ:", ""] if self.flips else [""]
        lines += [
            f"- {'solved now' if flip.gained else '**no longer solved**'}: {flip.world}, {flip.instruction[:80]} "
            f"(`flywheel data view {flip.trajectory_id}`)"
            for flip in self.flips[:_TOLD]
        ]
        return "\n".join([*lines, "", *self._table()])

    def _table(self) -> Iterator[str]:
        """Narrow, for Prefect's form; the figures' own intervals, and other figures, are on the run's pages."""
        found = {(row["domain"], row["name"]): row for row in self.figures if row["value"] is not None}
        yield from (_LEGEND, "", "| tasks | n | before | merged | difference |", "|---|---|---|---|---|")
        for domain in dict.fromkeys(domain for domain, _ in found):
            for group, words in _GROUPS.items():
                before, after, more = (
                    found.get((domain, f"success_{group}{end}")) for end in ("before", "after", "difference")
                )
                if after:
                    cells = (
                        str(after["n"] or ""),
                        _format_share(before),
                        _format_share(after),
                        _format_difference(more),
                    )
                    yield f"| {domain}{words} | {' | '.join(cells)} |"


def _format_share(row: Row | None) -> str:
    return f"{row['value']:.2f}" if row else ""


def _format_difference(row: Row | None) -> str:
    """With its 95% interval."""
    if row is None:
        return ""
    return f"{row['value']:+.2f}" + ("" if row["low"] is None else f" [{row['low']:.2f}, {row['high']:.2f}]")


def build_promotion_report(ws: Workspace, iteration: int, rule: PromotionSettings) -> PromotionReport:
    """Collect what a decision about the promotion of an evaluated iteration rests on; nothing is written.

    rule: block `promotion`. Lost tasks come before gained ones. Raises DataError where the stage `evaluate` has left no
    metrics.
    """
    metrics = partitions.read_partition(ws, "metrics", iteration, "evaluate")
    figures = [row for row in metrics.to_pylist() if row["step"] == 0]
    figures.sort(key=lambda row: (not row["name"].startswith(_FIRST), row["domain"] != "all"))
    flips = sorted(
        _find_flipped_tasks(ws, iteration), key=lambda one: (one.gained, one.domain, one.world, one.instruction)
    )
    return PromotionReport(iteration, tuple(gate.explain_gate_metrics(figures, rule)), tuple(figures), tuple(flips))


def _find_flipped_tasks(ws: Workspace, iteration: int) -> Iterator[FlippedTask]:
    mine = lineage.find_weights_names(ws, iteration, "merge", ws.relative(ws.model(iteration, "merged")))
    own = {row["task_id"]: row for row in _episodes(ws, iteration) if row["policy_version"] in mine}
    promoted = manifest.read_promotion(ws, iteration - 1)
    known = {one["digest"]: one["model"] for one in (baselines.get_best_model(promoted), promoted)}
    for digest, model in known.items():
        made = _MADE.match(model)
        # Its held-out tasks are not played again: the episodes lie where it was evaluated first.
        first = int(made[1]) if made else 1
        theirs = {
            row["task_id"]: row
            for k in dict.fromkeys((first, iteration))
            for row in _episodes(ws, k)
            if row["policy_version"] == digest
        }
        for task in own.keys() & theirs.keys():
            now, before = own[task], theirs[task]
            if None not in (now["success"], before["success"]) and now["success"] != before["success"]:
                names = (now["trajectory_id"], before["trajectory_id"], model)
                yield FlippedTask(now["success"], now["domain"], now["world"], now["instruction"], *names)


def _episodes(ws: Workspace, iteration: int) -> list[Row]:
    """Of an evaluation, each with its verdict `success`."""
    if not ws.partition("scores", iteration, "evaluate").is_dir():
        return []  # evaluated before scores of evaluations were kept, or pruned
    found = verdicts_from_rows(partitions.read_partition(ws, "scores", iteration, "evaluate").to_pylist())
    rows = partitions.read_partition(ws, "trajectories", iteration, "evaluate").to_pylist()
    return [row | {"success": found[row["trajectory_id"]].v if row["trajectory_id"] in found else None} for row in rows]
