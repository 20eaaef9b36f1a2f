"""Draw samples for people to label, and take labels and promotion decisions."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Literal

import duckdb
from pydantic import BaseModel, Field, StrictBool

from flywheel.config import run_lock
from flywheel.config.workspace import Workspace
from flywheel.evaluation import promotion_review
from flywheel.maintenance import route_review
from flywheel.pipeline.iterations import newest_iteration
from flywheel.store import labels
from flywheel.store.catalog import database
from flywheel.store.versioning import stage_records
from flywheel.ui.explorer import trajectories
from flywheel.ui.explorer.catalog_reader import OUTCOMES_TABLE, QUERIES, CatalogReader, NotInStore
from flywheel.ui.explorer.media import TokenTexts

# Samples for reviewers to label, from the routed trajectories; others' labels are hidden until one's own is given.
#
# A sample is named by its queue, a seed, its size and the filters: two reviewers who ask for the same get the same
# trajectories in the same order.

REVIEWERS_NEEDED = 2  # reviewers of a trajectory; where they disagree, one more
ReviewQueue = Literal["random", "route", "routing", "disagreement", "speech", "decide"]
# Queue -> condition on the trajectories `t` that it draws from, and their order; `key` is random, by the seed.
_QUEUES: dict[ReviewQueue, tuple[str, str]] = {
    "random": ("", "key"),
    # As many of each store. Within a place the order is at random, so that it does not tell the store.
    "route": ("", "row_number() OVER (PARTITION BY destination ORDER BY key), key"),
    # What is asked before an iteration trains (`routing.review`).
    "routing": (
        "SEMI JOIN (SELECT unnest($asked::VARCHAR[]) AS trajectory_id) USING (trajectory_id)",
        "list_position($asked, trajectory_id)",
    ),
    "disagreement": (QUERIES["disagreement"], "key"),
    "speech": (QUERIES["speech"], "least, key"),
    "decide": (
        "SEMI JOIN (FROM human_labels WHERE state = 'to decide') USING (iteration, trajectory_id)",
        "iteration DESC, key",
    ),
}
_ROUTED = "destination IS NOT NULL"
_BLIND_FACTS = ("trajectory_id", "iteration", "stage", "domain", "world", "template", "level", "instruction", "steps")


class SampleDraw(BaseModel):
    """Name a sample for a reviewer. iteration: one alone; None: all. reviewer: who asks."""

    reviewer: str
    queue: ReviewQueue = "random"
    seed: int = Field(1, ge=0, le=10**9)
    size: int = Field(50, ge=1, le=500)
    iteration: int | None = Field(None, ge=1, le=10**6)
    domain: str = Field("", max_length=100)


class LabelRequest(BaseModel):
    """A label, as a page sends it."""

    trajectory_id: str = Field(max_length=200)
    label: str
    comment: str = ""
    reviewer: str
    queue: ReviewQueue = "random"


def list_review_choices(asking: CatalogReader) -> dict[str, Any]:
    """List what a reviewer may choose: `iterations`, newest first, `domains` with trajectories to draw, `labels`; and
    `comment`, the most characters of one."""
    rows = asking.rows(f"SELECT DISTINCT iteration, domain FROM {OUTCOMES_TABLE} WHERE {_ROUTED}")
    return {
        "iterations": sorted({row["iteration"] for row in rows}, reverse=True),
        "domains": sorted({row["domain"] for row in rows}),
        "labels": labels.LABELS,
        "comment": labels.MAX_COMMENT_CHARACTERS,
    }


def draw_review_queue(asking: CatalogReader, draw: SampleDraw) -> dict[str, Any]:
    """Draw the trajectories of a sample for a reviewer: each with its state (`mine`, `open`, `full`), the reviewer's
    own label and, where there is one, the joint label; `candidates`: how many each queue draws from. Raises BadInput.
    """
    reviewer = labels.normalise_reviewer(draw.reviewer)
    own = {"iteration": draw.iteration, "domain": draw.domain or None}
    asked = [one.trajectory_id for one in route_review.open_questions(asking.ws, newest_iteration(asking.ws))]

    def given(name: ReviewQueue) -> dict[str, Any]:
        return own | ({"asked": asked} if name == "routing" else {})

    def work(connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
        rows = database.query_rows(
            connection,
            f"""WITH drawn AS MATERIALIZED (
                SELECT *, row_number() OVER () AS place FROM ({_draw_query(draw.queue)} LIMIT {draw.size:d}))
            SELECT d.*, m.label, m.comment, coalesce(h.reviewers, 0) AS reviewers,
                if(m.label IS NULL, NULL, h.state) AS together,
                CASE WHEN m.label IS NOT NULL THEN 'mine'
                    WHEN h.reviewers >= {REVIEWERS_NEEDED:d} AND $queue <> 'decide' THEN 'full' ELSE 'open' END AS state
            FROM drawn d
                LEFT JOIN (FROM labels WHERE reviewer = $reviewer) m USING (iteration, trajectory_id)
                LEFT JOIN human_labels h USING (iteration, trajectory_id)
            ORDER BY place""",
            given(draw.queue) | {"seed": draw.seed, "queue": draw.queue, "reviewer": reviewer},
        )
        candidates = {}
        for name in _QUEUES:
            count = f"SELECT count(*) AS n FROM {_queue_source(name)}"
            candidates[name] = database.query_rows(connection, count, given(name))[0]["n"]
        return {"rows": rows, "candidates": candidates}

    return asking.ask(work)


def _queue_source(name: ReviewQueue) -> str:
    return f"""(
        SELECT iteration, trajectory_id, domain, world, instruction, destination FROM {OUTCOMES_TABLE} WHERE {_ROUTED}
            AND ($iteration IS NULL OR iteration = $iteration) AND ($domain IS NULL OR domain = $domain)) t
        {_QUEUES[name][0]}"""


def _draw_query(name: ReviewQueue) -> str:
    # By md5, since DuckDB's own hash may be another one in its next version.
    return f"""
        SELECT iteration, trajectory_id, domain, world, instruction
        FROM (SELECT *, md5($seed::VARCHAR || trajectory_id) AS key FROM {_queue_source(name)})
        ORDER BY {_QUEUES[name][1]}"""


def load_review_item(asking: CatalogReader, tokens: TokenTexts, trajectory_id: str, reviewer: str) -> dict[str, Any]:
    """Load a trajectory as its page has it, with `mine`, the reviewer's label. Until there is one, others' labels and
    scores are hidden; then `others` are the labels of the others. Raises NotInStore, BadInput."""
    reviewer = labels.normalise_reviewer(reviewer)
    found = trajectories.load_trajectory_detail(asking, tokens, trajectory_id)
    columns = 'reviewer, label, comment, "at", queue'
    given = asking.rows(f"SELECT {columns} FROM labels WHERE trajectory_id = $id ORDER BY ALL", {"id": trajectory_id})
    mine = next((row for row in given if row["reviewer"] == reviewer), None)
    if mine is None:
        return {
            "mine": None,
            "facts": {name: found["facts"][name] for name in _BLIND_FACTS},
            "steps": [step | {"reward": None} for step in found["steps"]],
        }
    return found | {"mine": mine, "others": [row for row in given if row is not mine]}


def save_review_label(asking: CatalogReader, said: LabelRequest) -> None:
    """Keep a label; of a trajectory that is asked about before an iteration trains it is the answer. Raises BadInput,
    NotHere where there is no such trajectory."""
    ws, reviewer, of = asking.ws, labels.normalise_reviewer(said.reviewer), {"id": said.trajectory_id}
    known = asking.rows(
        f"SELECT iteration FROM {OUTCOMES_TABLE} WHERE trajectory_id = $id ORDER BY iteration DESC LIMIT 1", of
    )
    if not known:
        raise NotInStore(f"there is no trajectory {said.trajectory_id[:80]} here", fix="it may have been discarded")
    newest = newest_iteration(ws)
    if said.queue == "routing" or said.trajectory_id in {
        one.trajectory_id for one in route_review.open_questions(ws, newest)
    }:
        route_review.label_trajectory(
            ws, newest, said.trajectory_id, said.label, reviewer=reviewer, comment=said.comment.strip()
        )
        return
    # How it was drawn does not change with a second label; and the third to see what two dispute is who decides.
    before = asking.rows("SELECT reviewer, queue FROM labels WHERE trajectory_id = $id", of)
    drawn = next((row["queue"] for row in before if row["reviewer"] == reviewer), None)
    disputed = asking.rows("FROM human_labels WHERE trajectory_id = $id AND state = 'to decide'", of)
    labels.append_label(
        ws,
        labels.Label(
            trajectory_id=said.trajectory_id,
            iteration=known[0]["iteration"],
            label=said.label,
            comment=said.comment.strip(),
            reviewer=reviewer,
            at=datetime.now(UTC).isoformat(),
            queue=drawn or ("decide" if disputed else said.queue),
        ),
    )


def query_agreement(asking: CatalogReader) -> dict[str, Any]:
    """Query how far reviewers agree, and scorers with them; and the number of trajectories in each state."""
    return {
        "pairs": asking.rows("FROM reviewer_agreement"),
        "scorers": asking.rows("FROM scorers_vs_humans"),
        "states": asking.rows("SELECT state, count(*) AS n FROM human_labels GROUP BY ALL ORDER BY state"),
        "reviewers": asking.rows("SELECT reviewer, count(*) AS n FROM labels GROUP BY ALL ORDER BY n DESC, reviewer"),
    }


class PromotionRequest(BaseModel):
    """As a page sends it."""

    promote: StrictBool
    reviewer: str
    comment: str = ""


def list_waiting_promotions(ws: Workspace) -> list[dict[str, Any]]:
    """List promotions that wait, each with the decisions so far, oldest first, and whether a run waits for it."""
    return [{"iteration": k} | _decided(ws, k) for k in promotion_review.list_pending_reviews(ws)]


def load_promotion_case(ws: Workspace, iteration: int) -> dict[str, Any]:
    """Load what a decision rests on. Raises BadInput where no decision is open."""
    if why := promotion_review.find_review_obstacle(ws, iteration):
        raise why
    rule = stage_records.load_iteration_params(ws, iteration).promotion
    return asdict(promotion_review.build_promotion_report(ws, iteration, rule)) | _decided(ws, iteration)


def submit_promotion_decision(ws: Workspace, iteration: int, decision: PromotionRequest) -> dict[str, Any]:
    """Record a decision about a promotion; returns all decisions so far. Raises BadInput where none is open."""
    promotion_review.decide_promotion(ws, iteration, **decision.model_dump())
    return _decided(ws, iteration)


def _decided(ws: Workspace, iteration: int) -> dict[str, Any]:
    review = promotion_review.read_review(ws, iteration)
    names = ("promote", "reviewer", "comment", "at")
    decisions = [{name: getattr(one, name) for name in names} for one in (review.history if review else ())]
    return {"decisions": decisions, "running": run_lock.is_workspace_busy(ws)}
