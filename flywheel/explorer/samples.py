"""What reviewers label: samples drawn of the trajectories that were routed, shown blind until one has said one's own.

A draw is named by how it is drawn, a seed, its size and the filters: two reviewers who ask for the same get the same
trajectories in the same order.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

import duckdb
from pydantic import BaseModel, Field

from flywheel.explorer import replays
from flywheel.explorer.asking import LISTED, Asking, NotHere, Row
from flywheel.explorer.tokens import Tokens
from flywheel.store import catalog, labels
from flywheel.upkeep import route_review

NEEDED = 2  # reviewers of a trajectory; where they disagree, one more
Queue = Literal["random", "route", "routing", "disagreement", "speech", "decide"]
# Queue -> which of the trajectories `t` it draws from, and their order; `key` puts them at random, by the seed.
_QUEUES: dict[Queue, tuple[str, str]] = {
    "random": ("", "key"),
    # As many of each store. Within a place the order is at random, so that it does not tell the store.
    "route": ("", "row_number() OVER (PARTITION BY destination ORDER BY key), key"),
    # What is asked before an iteration trains (`routing.review`).
    "routing": (
        "SEMI JOIN (SELECT unnest($asked::VARCHAR[]) AS trajectory_id) USING (trajectory_id)",
        "list_position($asked, trajectory_id)",
    ),
    "disagreement": (
        """SEMI JOIN (
            SELECT iteration, trajectory_id FROM scores
            WHERE v IS NOT NULL AND ($iteration IS NULL OR iteration = $iteration)
            GROUP BY ALL HAVING count(DISTINCT v) > 1) USING (iteration, trajectory_id)""",
        "key",
    ),
    "speech": (
        """JOIN (
            SELECT iteration, trajectory_id, min(confidence) AS least FROM thoughts
            WHERE confidence IS NOT NULL AND ($iteration IS NULL OR iteration = $iteration)
            GROUP BY ALL) USING (iteration, trajectory_id)""",
        "least, key",
    ),
    "decide": (
        "SEMI JOIN (FROM human_labels WHERE state = 'to decide') USING (iteration, trajectory_id)",
        "iteration DESC, key",
    ),
}
_ROUTED = "destination IS NOT NULL"
_SHOWN = ("trajectory_id", "iteration", "stage", "domain", "world", "template", "level", "instruction", "steps")


class Draw(BaseModel):
    """iteration: one alone; None: all. reviewer: who asks."""

    reviewer: str
    queue: Queue = "random"
    seed: int = Field(1, ge=0, le=10**9)
    size: int = Field(50, ge=1, le=500)
    iteration: int | None = Field(None, ge=1, le=10**6)
    domain: str = Field("", max_length=100)


class Said(BaseModel):
    """A label, as a page sends it."""

    trajectory_id: str = Field(max_length=200)
    label: str
    comment: str = ""
    reviewer: str
    queue: Queue = "random"


def choices(asking: Asking) -> dict[str, Any]:
    """Iterations, newest first, and domains that have trajectories to draw."""
    rows = asking.rows(f"SELECT DISTINCT iteration, domain FROM {LISTED} WHERE {_ROUTED}")
    return {
        "iterations": sorted({row["iteration"] for row in rows}, reverse=True),
        "domains": sorted({row["domain"] for row in rows}),
        "labels": labels.LABELS,
        "comment": labels.COMMENT,
    }


def queue(asking: Asking, draw: Draw) -> dict[str, Any]:
    """The trajectories of a draw, each with what is left to do of it (`mine`, `open`, `full`), the reviewer's own label
    and, where there is one, what people say together; `candidates`: how many each queue draws from. Raises BadInput."""
    reviewer = labels.reviewer(draw.reviewer)
    own = {"iteration": draw.iteration, "domain": draw.domain or None}
    asked = {"asked": [one.trajectory_id for one in route_review.asked(asking.ws, route_review.newest(asking.ws))]}

    def given(name: Queue) -> dict[str, Any]:
        return own | (asked if name == "routing" else {})

    def work(connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
        rows = catalog.rows(
            connection,
            f"""WITH drawn AS MATERIALIZED (
                SELECT *, row_number() OVER () AS place FROM ({_drawn(draw.queue)} LIMIT {draw.size:d}))
            SELECT d.*, m.label, m.comment, coalesce(h.reviewers, 0) AS reviewers,
                if(m.label IS NULL, NULL, h.state) AS together,
                CASE WHEN m.label IS NOT NULL THEN 'mine'
                    WHEN h.reviewers >= {NEEDED:d} AND $queue <> 'decide' THEN 'full' ELSE 'open' END AS state
            FROM drawn d
                LEFT JOIN (FROM labels WHERE reviewer = $reviewer) m USING (iteration, trajectory_id)
                LEFT JOIN human_labels h USING (iteration, trajectory_id)
            ORDER BY place""",
            given(draw.queue) | {"seed": draw.seed, "queue": draw.queue, "reviewer": reviewer},
        )
        candidates = {
            name: catalog.rows(connection, f"SELECT count(*) AS n FROM {_from(name)}", given(name))[0]["n"]
            for name in _QUEUES
        }
        return {"rows": rows, "candidates": candidates}

    return asking.ask(work)


def _from(name: Queue) -> str:
    return f"""(
        SELECT iteration, trajectory_id, domain, world, instruction, destination FROM {LISTED} WHERE {_ROUTED}
            AND ($iteration IS NULL OR iteration = $iteration) AND ($domain IS NULL OR domain = $domain)) t
        {_QUEUES[name][0]}"""


def _drawn(name: Queue) -> str:
    # By md5, since DuckDB's own hash may be another one in its next version.
    return f"""
        SELECT iteration, trajectory_id, domain, world, instruction
        FROM (SELECT *, md5($seed::VARCHAR || trajectory_id) AS key FROM {_from(name)}) ORDER BY {_QUEUES[name][1]}"""


def item(asking: Asking, tokens: Tokens, trajectory_id: str, reviewer: str) -> dict[str, Any]:
    """A trajectory as its page has it, with `mine`, the reviewer's label. Until there is one, nothing tells what others
    or scorers say; then `others` are the labels of the others. Raises NotHere, BadInput."""
    reviewer = labels.reviewer(reviewer)
    found = replays.load(asking, tokens, trajectory_id)
    columns = 'reviewer, label, comment, "at", queue'
    said = asking.rows(f"SELECT {columns} FROM labels WHERE trajectory_id = $id ORDER BY ALL", {"id": trajectory_id})
    mine = next((row for row in said if row["reviewer"] == reviewer), None)
    if mine is None:
        return {"mine": None, "facts": {name: found["facts"][name] for name in _SHOWN}, "steps": _blind(found["steps"])}
    return found | {"mine": mine, "others": [row for row in said if row is not mine]}


def _blind(steps: list[Row]) -> list[Row]:
    return [step | {"reward": None} for step in steps]


def say(asking: Asking, said: Said) -> None:
    """Keep a label; of a trajectory that is asked about before an iteration trains it is the answer. Raises BadInput,
    NotHere where there is no such trajectory."""
    ws, reviewer, of = asking.ws, labels.reviewer(said.reviewer), {"id": said.trajectory_id}
    known = asking.rows(f"SELECT iteration FROM {LISTED} WHERE trajectory_id = $id ORDER BY iteration DESC LIMIT 1", of)
    if not known:
        raise NotHere(f"there is no trajectory {said.trajectory_id[:80]} here", fix="it may have been discarded")
    newest = route_review.newest(ws)
    if said.queue == "routing" or said.trajectory_id in {one.trajectory_id for one in route_review.asked(ws, newest)}:
        route_review.label_one(
            ws, newest, said.trajectory_id, said.label, reviewer=reviewer, comment=said.comment.strip()
        )
        return
    # How it was drawn does not change with a second label; and the third to see what two dispute is who decides.
    before = asking.rows("SELECT reviewer, queue FROM labels WHERE trajectory_id = $id", of)
    drawn = next((row["queue"] for row in before if row["reviewer"] == reviewer), None)
    disputed = asking.rows("FROM human_labels WHERE trajectory_id = $id AND state = 'to decide'", of)
    labels.append(
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


def agreement(asking: Asking) -> dict[str, Any]:
    """How far reviewers agree, and scorers with them; how many trajectories are in which state."""
    return {
        "pairs": asking.rows("FROM reviewer_agreement"),
        "scorers": asking.rows("FROM scorers_beside_people"),
        "states": asking.rows("SELECT state, count(*) AS n FROM human_labels GROUP BY ALL ORDER BY state"),
        "reviewers": asking.rows("SELECT reviewer, count(*) AS n FROM labels GROUP BY ALL ORDER BY n DESC, reviewer"),
    }
