"""Collect what a decision about a promotion rests on, and store a reviewer's decision, one file an iteration.

The stage `promote` copies the decision into the table `reviews`; the file lies with the iteration, so git keeps it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flywheel.config import PromotionSettings
from flywheel.config.workspace import Workspace, iteration_label
from flywheel.envs.base import verdicts_from_rows
from flywheel.evaluation import gate
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.store import labels, lineage, manifest, partitions
from flywheel.store.versioning import dvc_files, stage_records
from flywheel.utils.confidence_intervals import format_difference
from flywheel.utils.errors import BadInput, DataError
from flywheel.utils.files import file_lock, write_json

_FIRST = ("gate_", "success_")  # figures that decide, shown first
_TOLD = 40  # tasks that Prefect's form lists
_GROUPS = {"": "", "seen_": ", known", "unseen_": ", new"}
_LEGEND = "Success on the held-out tasks; *known*: of templates that are trained on, *new*: of those that never are."
_MADE = re.compile(r"models/iteration=(\d+)/")
Row = dict[str, Any]


@dataclass(frozen=True)
class FlippedTask:
    """Hold a task that one of two models solves and the other does not.

    gained: the merged model solves it, the model named `before` does not; False: the reverse. trajectory_id,
    trajectory_before: an episode of the merged model and one of the other.
    """

    gained: bool
    domain: str
    world: str
    instruction: str
    trajectory_id: str
    trajectory_before: str
    before: str


@dataclass(frozen=True)
class PromotionReport:
    """Hold what a decision about a promotion rests on: the gate's judgements, figures, and tasks that differ.

    reasons: what the gate found against each model, in words. figures: rows of the table `metrics`, those that decide
    first. flips: tasks lost, then those gained. note: why the held-out tasks say something else, where they do.
    """

    iteration: int
    reasons: tuple[str, ...]
    figures: tuple[Row, ...]
    flips: tuple[FlippedTask, ...]
    note: str = ""

    def markdown(self, head: str = "") -> str:
        """Write the report as Markdown: what the gate found, the first 40 tasks that differ, a table of success.

        head: its first line; default: the question whether to promote.
        """
        lines = [head or f"Promote the merged model of iteration {iteration_label(self.iteration)}?", ""]
        lines += [f"- {reason}." for reason in self.reasons]
        lines += [f"- {self.note}."] if self.note else []
        lines += ["", "Tasks on which the models differ:", ""] if self.flips else [""]
        lines += [
            f"- {'solved now' if flip.gained else '**no longer solved**'}: {flip.world}, {flip.instruction[:80]} "
            f"(`flywheel data view {flip.trajectory_id}`)"
            for flip in self.flips[:_TOLD]
        ]
        return "\n".join([*lines, "", *self._table()])

    def _table(self) -> Iterator[str]:
        """Yield the lines of a table of success, narrow for Prefect's form; the run's pages have more figures."""
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
                        format_difference(more["value"], more["low"], more["high"]) if more else "",
                    )
                    yield f"| {domain}{words} | {' | '.join(cells)} |"


def _format_share(row: Row | None) -> str:
    return f"{row['value']:.2f}" if row else ""


def build_promotion_report(ws: Workspace, iteration: int, rule: PromotionSettings) -> PromotionReport:
    """Collect what a decision about the promotion of an evaluated iteration rests on.

    rule: block `promotion`; `reasons` name its margin and error rates. Raises DataError where the stage `evaluate` has
    left no metrics, for damaged tables, and where the promotion before it is missing or damaged; KeyError as
    `parse_gate_metrics`.
    """
    metrics = partitions.read_partition(ws, "metrics", iteration, "evaluate")
    figures = [row for row in metrics.to_pylist() if row["step"] == 0]
    figures.sort(key=lambda row: (not row["name"].startswith(_FIRST), row["domain"] != "all"))
    flips = sorted(
        _find_flipped_tasks(ws, iteration), key=lambda one: (one.gained, one.domain, one.world, one.instruction)
    )
    reasons, note = gate.explain_gate_metrics(figures, rule), gate.explain_disagreement(figures, rule)
    return PromotionReport(iteration, tuple(reasons), tuple(figures), tuple(flips), note)


def describe_promotion(ws: Workspace, iteration: int, rule: PromotionSettings) -> str:
    """Describe in a line how the promotion of an evaluated iteration was decided, by whom and why, or how it can be.

    rule: the iteration's block `promotion`. Raises DataError for a damaged record, BadInput for one not evaluated,
    and where its params.yaml is missing or wrong.
    """
    label = f"iteration {iteration_label(iteration)}"
    if dvc_files.is_promotion_decided(ws, iteration):
        made, review = manifest.read_promotion(ws, iteration), read_review(ws, iteration)
        who = "a reviewer" if rule.rule == "review" else f"the rule {rule.rule}"
        if review and review.overrides:
            who = f"{review.reviewer}, who overrode {review.overrides}"
        return f"{label}: {'promoted' if made['promoted'] else 'not promoted'} by {who}: {made.get('reason', '')}"
    if review := read_review(ws, iteration):
        return f"{label}: decided: {review.words}; `flywheel run` carries it out"
    obstacle = find_review_obstacle(ws, iteration)
    if obstacle and not ws.partition("metrics", iteration, "evaluate").is_dir():
        raise obstacle
    if obstacle:
        return f"{label}: the rule {rule.rule} decides it: `flywheel run` goes on"
    return f"{label} waits for a reviewer: type {review_command(iteration)}"


def _find_flipped_tasks(ws: Workspace, iteration: int) -> Iterator[FlippedTask]:
    mine = lineage.find_weights_names(ws, iteration, "merge", ws.relative(ws.model(iteration, "merged")))
    own = {row["task_id"]: row for row in _episodes(ws, iteration) if row["policy_version"] in mine}
    promoted = manifest.read_promotion(ws, iteration - 1)
    known = {one["digest"]: one["model"] for one in (gate.get_best_model(promoted), promoted)}
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
    """Return the episodes of an evaluation, each with its verdict `success`; [] where no scores are stored."""
    if not ws.partition("scores", iteration, "evaluate").is_dir():
        return []  # evaluated before scores of evaluations were kept, or pruned
    found = verdicts_from_rows(partitions.read_partition(ws, "scores", iteration, "evaluate").to_pylist())
    rows = partitions.read_partition(ws, "trajectories", iteration, "evaluate").to_pylist()
    return [row | {"success": found[row["trajectory_id"]].v if row["trajectory_id"] in found else None} for row in rows]


MAX_COMMENT_LENGTH = labels.MAX_COMMENT_CHARACTERS
_WAIT_S = 10.0


@dataclass(frozen=True)
class PromotionDecision:
    """Hold a person's decision about a promotion. promote: yes or no. reviewer: who. comment: why. at: ISO 8601 with
    its zone. earlier: the decisions that it replaced, oldest first, as mappings of these fields. overrides: whose
    decision, already carried out, it reverses: `the rule NAME`, or a reviewer; "": none."""

    promote: bool
    reviewer: str
    comment: str
    at: str
    earlier: tuple[dict[str, Any], ...] = ()
    overrides: str = ""

    @property
    def words(self) -> str:
        """Describe in a few words the decision, who made it and when."""
        return f"{'promote' if self.promote else 'keep'} ({self.reviewer}, {self.at})"

    @property
    def history(self) -> list[PromotionDecision]:
        """Return each decision, oldest first; this one is the last. Raises TypeError where `earlier` holds another
        mapping."""
        return [*(PromotionDecision(**facts) for facts in self.earlier), self]


def review_path(ws: Workspace, iteration: int) -> Path:
    """Return the path of the file with a person's decision about the promotion of `iteration`, which may not exist."""
    return ws.iteration(iteration) / "review.json"


def read_review(ws: Workspace, iteration: int) -> PromotionDecision | None:
    """Read a person's decision about the promotion of `iteration`; None where nobody has decided. Raises DataError for
    a file that holds no decision."""
    file = review_path(ws, iteration)
    if not file.is_file():
        return None
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
        found = PromotionDecision(**{**raw, "earlier": tuple(raw.get("earlier", ()))})
        if not all(isinstance(one.promote, bool) for one in found.history):
            raise TypeError("promote is neither true nor false")
        return found
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(
            f"not a review: {error}",
            where=ws.relative(file),
            fix="delete it and decide again with `flywheel review promotion`",
        ) from error


def review_command(iteration: int) -> str:
    """Return the command that a reviewer of `iteration` types, in backticks, for a message."""
    return f"`flywheel review promotion --iteration {iteration} --promote --reviewer NAME` (or --keep)"


def find_review_obstacle(ws: Workspace, iteration: int) -> BadInput | None:
    """Return the error that says why nobody can decide the promotion of `iteration` now; None where somebody can.

    Raises BadInput where the iteration's params.yaml is missing or wrong.
    """
    if dvc_files.is_promotion_decided(ws, iteration):
        return BadInput(
            f"the promotion of iteration {iteration_label(iteration)} is decided already",
            where=ws.relative(ws.iteration(iteration)),
            fix=f"`flywheel review promotion --iteration {iteration}` shows how; --override reverses it",
        )
    if not ws.partition("metrics", iteration, "evaluate").is_dir():
        where = ws.relative(ws.iteration(iteration))
        return BadInput(f"iteration {iteration} is not evaluated", where=where, fix="see `flywheel status`")
    rule = stage_records.load_iteration_params(ws, iteration).promotion.rule
    if rule != "review":
        return BadInput(
            f"nobody is asked: promotion.rule is {rule}",
            where=ws.relative(ws.frozen_params(iteration)),
            fix="change it there to review, and decide then",
        )
    return None


def list_pending_reviews(ws: Workspace) -> list[int]:
    """List the iterations whose promotion a person can decide now, oldest first.

    One that a person has decided stays in the list until the stage `promote` is recorded. Those before the newest one
    with that stage are left out. Raises BadInput where an iteration's params.yaml is missing or wrong.
    """
    found: list[int] = []
    for k in reversed(ws.list_iteration_folders()):
        if dvc_files.is_promotion_decided(ws, k):
            break
        if find_review_obstacle(ws, k) is None:
            found.insert(0, k)
    return found


def find_override_obstacle(ws: Workspace, iteration: int) -> BadInput | None:
    """Return the error that says why the decision on the promotion of `iteration` cannot be reversed; None: it can.

    It can where it is carried out, no later iteration has begun from it, and the model that it is about is there.
    Raises DataError where the promotion of the iteration before is missing or damaged, ModelError as
    `checkpoint_digest`.
    """
    label, later = iteration_label(iteration), [k for k in ws.list_iteration_folders() if k > iteration]
    merged = ws.model(iteration, "merged")
    if not dvc_files.is_promotion_decided(ws, iteration):
        what, fix = f"the promotion of iteration {label} is not decided yet", "see `flywheel status`"
    elif later:
        what = f"iteration {iteration_label(later[0])} began with what iteration {label} decided"
        fix = f"`flywheel iteration rollback {iteration}` sets later ones aside first"
    elif not merged.is_dir():
        what = f"the model that iteration {label} made is not here"
        fix = f"it was pruned, or `dvc checkout {ws.relative(merged)}` brings it back"
    elif checkpoint_digest(merged) == manifest.read_promotion(ws, iteration - 1)["digest"]:
        what, fix = f"iteration {label} made no other model than the one before it", "there is nothing to decide"
    else:
        return None
    return BadInput(what, where=ws.relative(ws.iteration(iteration)), fix=fix)


def record_override(ws: Workspace, iteration: int, *, promote: bool, reviewer: str, comment: str) -> PromotionDecision:
    """Record that a person reverses the decision on the promotion of `iteration`, in its `review.json`.

    The stage `promote` has to run again. promote, reviewer, comment: as for `decide_promotion`; the comment must say
    why. Returns the recorded decision. Raises BadInput where the decision cannot be reversed
    (`find_override_obstacle`, whose errors pass), is the same already, or has no reason; DataError where its record or
    the iteration's promotion is damaged; otherwise as `decide_promotion`.
    """
    if not comment.strip():
        raise BadInput("an override has no reason", fix="say why: it is kept with the decision")
    if why := find_override_obstacle(ws, iteration):
        raise why
    if manifest.is_model_promoted(ws, iteration) == promote:
        what = f"iteration {iteration_label(iteration)} is {'' if promote else 'not '}promoted already"
        raise BadInput(what, fix="there is nothing to override")
    before, rule = read_review(ws, iteration), stage_records.load_iteration_params(ws, iteration).promotion.rule
    overridden = before.reviewer if before else f"the rule {rule}"
    return _write_decision(ws, iteration, promote, reviewer, comment.strip(), overridden)


def decide_promotion(ws: Workspace, iteration: int, *, promote: bool, reviewer: str, comment: str) -> PromotionDecision:
    """Record a person's decision about the promotion of `iteration`, in its `review.json`.

    An earlier decision stays in that file, under `earlier`. Nothing else happens until the stage `promote` reads it.
    promote: yes or no. reviewer: the person's name; its key is stored (`labels.normalise_reviewer`). comment: why; may
    be "". Returns the recorded decision. Raises BadInput where no decision is open, the name cannot be one, the comment
    is too long (MAX_COMMENT_LENGTH), or the iteration's params.yaml is missing or wrong; DataError where the file holds
    no decision, or another process has been deciding for 10 seconds; DiskFull.
    """
    return _write_decision(ws, iteration, promote, reviewer, comment)


def _write_decision(
    ws: Workspace, iteration: int, promote: bool, reviewer: str, comment: str, overrides: str = ""
) -> PromotionDecision:
    reviewer = labels.normalise_reviewer(reviewer)
    if (length := len(comment)) > MAX_COMMENT_LENGTH:
        what = f"a comment may have {MAX_COMMENT_LENGTH:,} characters, this one has {length:,}"
        raise BadInput(what, fix="shorten it")
    with file_lock(ws.state / "review.lock", _WAIT_S, "deciding a promotion"):
        if not overrides and (why := find_review_obstacle(ws, iteration)):
            raise why
        before, earlier = read_review(ws, iteration), ()
        if before:
            facts = asdict(before)
            earlier = (*facts.pop("earlier"), facts)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        decided = PromotionDecision(promote, reviewer, comment, at, earlier, overrides)
        write_json(review_path(ws, iteration), asdict(decided))
    return decided
