"""Draw trajectories for people to label, and store labels and promotion decisions, for the explorer's review pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Literal

import duckdb
from pydantic import BaseModel, Field, StrictBool

from flywheel.config import run_lock
from flywheel.config.workspace import Workspace
from flywheel.evaluation import promotion_review
from flywheel.maintenance import promotion_override, rollback, route_review
from flywheel.pipeline.iterations import newest_iteration
from flywheel.store import labels
from flywheel.store.catalog import database
from flywheel.store.versioning import stage_records
from flywheel.ui.explorer import trajectories
from flywheel.ui.explorer.catalog_reader import OUTCOMES_TABLE, QUERIES, CatalogReader, NotInStore, Row
from flywheel.ui.explorer.media import TokenTexts
from flywheel.ui.report import pages

# Queue, seed, size and filters determine a sample: two reviewers with equal ones get the same trajectories in the same
# order. A reviewer does not see others' labels before giving an own one.

REVIEWERS_NEEDED = 2  # reviewers per trajectory; where they disagree, one more
ReviewQueue = Literal["random", "route", "routing", "disagreement", "speech", "decide"]
# Queue -> condition on the trajectories `t` that it draws from, and their order; `key` is random, by the seed.
_QUEUES: dict[ReviewQueue, tuple[str, str]] = {
    "random": (QUERIES["doubted"], "key"),
    # Equally many of each store. Trajectories of equal row number are in random order, which does not reveal the store.
    "route": (QUERIES["doubted"], "row_number() OVER (PARTITION BY destination ORDER BY key), key"),
    "routing": (QUERIES["routing"], "list_position($asked, trajectory_id)"),
    "disagreement": (QUERIES["disagreement"], "key"),
    "speech": (QUERIES["speech"], "least, key"),
    "decide": (QUERIES["decide"], "iteration DESC, key"),
}
# SQL of each queue's source, for a FROM clause.
_SOURCES = {name: QUERIES["queue_source"].format(joined=joined) for name, (joined, _) in _QUEUES.items()}
_ROUTED = "destination IS NOT NULL"
_BLIND_FACTS = ("trajectory_id", "iteration", "stage", "domain", "world", "template", "level", "instruction", "steps")


class SampleDraw(BaseModel):
    """Hold which trajectories are drawn for a reviewer.

    reviewer: name of that person. queue: the kind of sample. seed: of the draw. size: most trajectories. iteration:
    None: all. domain: "": all. whose: only those that this owner is to label: `mine`, `nobody`, or a person's name;
    "": all.
    """

    reviewer: str
    queue: ReviewQueue = "random"
    seed: int = Field(1, ge=0, le=10**9)
    size: int = Field(50, ge=1, le=500)
    iteration: int | None = Field(None, ge=1, le=10**6)
    domain: str = Field("", max_length=100)
    whose: str = Field("", max_length=100)


class LabelRequest(BaseModel):
    """Hold a label that a page sends.

    seen: reviewers who had labelled the trajectory, as the page showed them: the label is refused where another one has
    since; None: that is not checked.
    """

    trajectory_id: str = Field(max_length=200)
    label: str
    comment: str = ""
    reviewer: str
    queue: ReviewQueue = "random"
    seen: list[str] | None = Field(None, max_length=1000)


class OwnerRequest(BaseModel):
    """Hold who is to label samples, as a page sends it.

    owner: name of that person; "" releases the samples. reviewer: name of the person who decides it. take_over: whether
    samples that another person is to label are given too.
    """

    trajectory_ids: list[str] = Field(min_length=1, max_length=500)
    owner: str
    reviewer: str
    take_over: StrictBool = False


def list_review_choices(asking: CatalogReader) -> dict[str, Any]:
    """List the choices that a reviewer has: iterations, domains, labels.

    asking: reads the store. Returns `iterations`, newest first, and `domains` with trajectories to draw, `labels`, and
    `comment`, the most characters of a comment. Raises as `CatalogReader.rows`.
    """
    rows = asking.rows(f"SELECT DISTINCT iteration, domain FROM {OUTCOMES_TABLE} WHERE {_ROUTED}")
    return {
        "iterations": sorted({row["iteration"] for row in rows}, reverse=True),
        "domains": sorted({row["domain"] for row in rows}),
        "labels": labels.LABELS,
        "comment": labels.MAX_COMMENT_CHARACTERS,
    }


def draw_review_queue(asking: CatalogReader, draw: SampleDraw) -> dict[str, Any]:
    """Draw trajectories for a reviewer to label, as `draw` says, from the store that `asking` reads.

    Returns `rows`, with `place` (from 1), `iteration`, `trajectory_id`, `domain`, `world`, `instruction`, `state`
    (`mine`: the reviewer has labelled it; `open`; `theirs`: another person is to label it; `full`: two have labelled
    it, but in the queue `decide`), `owner` ("": nobody), `label` and `comment` (the reviewer's own, or None),
    `reviewers` (how many have labelled it), `together` (the joint state of all labels; None before the reviewer's own);
    `candidates`: queue -> number of trajectories; `owners`: rows of `owner` and `n`, the samples of the iteration that
    this person is still to label; and `me`, the reviewer's key. Raises BadInput for an invalid name of the reviewer or
    of `whose`, and as `CatalogReader.rows`, `labels.read_sample_owners`, `route_review.open_questions` and
    `route_review.read_waiting`.
    """
    reviewer = labels.normalise_reviewer(draw.reviewer)
    all_owners = labels.read_sample_owners(asking.ws).values()
    owners = {one.trajectory_id: one.owner for one in all_owners if draw.iteration in (None, one.iteration)}
    named = {"": "", "nobody": "", "mine": reviewer}
    name = named[draw.whose] if draw.whose in named else labels.normalise_reviewer(draw.whose)
    own = {
        "iteration": draw.iteration,
        "domain": draw.domain or None,
        "owned": [key for key, owner in owners.items() if owner == name or not name] if draw.whose else None,
        "inside": bool(name),
    }
    newest = newest_iteration(asking.ws)
    asked = [one.trajectory_id for one in route_review.open_questions(asking.ws, newest)]
    asked += [row["trajectory_id"] for row in route_review.read_waiting(asking.ws, draw.iteration or newest)]

    def given(name: ReviewQueue) -> dict[str, Any]:
        return own | ({"asked": asked} if name == "routing" else {})

    def work(connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
        query = QUERIES["queue"].format(source=_SOURCES[draw.queue], order=_QUEUES[draw.queue][1])
        asked_for = {"seed": draw.seed, "size": draw.size, "needed": REVIEWERS_NEEDED, "queue": draw.queue}
        rows = database.query_rows(connection, query, given(draw.queue) | asked_for | {"reviewer": reviewer})
        candidates = {}
        for name, source in _SOURCES.items():
            (found,) = database.query_rows(connection, f"SELECT count(*) AS n FROM {source}", given(name))
            candidates[name] = found["n"]
        return {
            "rows": [_with_owner(row, owners.get(row["trajectory_id"], ""), reviewer) for row in rows],
            "candidates": candidates,
            "owners": [{"owner": owner, "n": n} for owner, n in sorted(Counter(owners.values()).items())],
            "me": reviewer,
        }

    return asking.ask(work)


def _with_owner(row: Row, owner: str, reviewer: str) -> Row:
    state = row["state"]
    if owner and state != "mine":
        state = "open" if owner == reviewer else "theirs"
    return row | {"owner": owner, "state": state}


def assign_review_samples(asking: CatalogReader, said: OwnerRequest) -> None:
    """Give samples to a person, who alone labels them until they are labelled, or release them.

    asking: reads the store. said: which samples, to whom and by whom. Raises NotInStore where there is no such
    trajectory, and as `labels.assign_samples` and `CatalogReader.rows`.
    """
    known = asking.rows(
        f"SELECT trajectory_id, max(iteration) AS iteration FROM {OUTCOMES_TABLE} "
        "WHERE trajectory_id IN (SELECT unnest($ids)) GROUP BY ALL",
        {"ids": said.trajectory_ids},
    )
    samples = {row["trajectory_id"]: row["iteration"] for row in known}
    if missing := [name for name in said.trajectory_ids if name not in samples]:
        raise NotInStore(f"there is no trajectory {missing[0][:80]} here", fix="it may have been discarded")
    labels.assign_samples(asking.ws, samples, said.owner, by=said.reviewer, take_over=said.take_over)


def load_review_item(asking: CatalogReader, tokens: TokenTexts, trajectory_id: str, reviewer: str) -> dict[str, Any]:
    """Load a trajectory for a reviewer to label: scores and others' labels are left out until the reviewer's is given.

    asking: reads the store. tokens: decodes token ids. reviewer: name of the person. Returns `mine`, the reviewer's
    label (None: not given yet), `me`, the reviewer's key, `owner`, who is to label it ("": nobody), `seen`, who else
    has labelled it. While `mine` is None, there are `facts` and `steps` besides; afterwards the trajectory as
    `load_trajectory_detail` returns it, and `others`, the labels of other reviewers. Raises NotInStore where there is
    no such trajectory, BadInput for an invalid reviewer's name, and as `CatalogReader.rows` and
    `labels.read_sample_owners`.
    """
    reviewer = labels.normalise_reviewer(reviewer)
    found = trajectories.load_trajectory_detail(asking, tokens, trajectory_id)
    columns = 'reviewer, label, comment, "at", queue'
    given = asking.rows(f"SELECT {columns} FROM labels WHERE trajectory_id = $id ORDER BY ALL", {"id": trajectory_id})
    mine = next((row for row in given if row["reviewer"] == reviewer), None)
    owner = labels.read_sample_owners(asking.ws).get(trajectory_id)
    standing = {
        "owner": owner.owner if owner else "",
        "me": reviewer,
        "seen": [row["reviewer"] for row in given if row is not mine],
    }
    if mine is None:
        return standing | {
            "mine": None,
            "facts": {name: found["facts"][name] for name in _BLIND_FACTS},
            "steps": blind_steps(found),
        }
    return found | standing | {"mine": mine, "others": [row for row in given if row is not mine]}


def blind_steps(found: Mapping[str, Any]) -> list[Row]:
    """Return a trajectory's steps without rewards, which would tell whether it succeeded.

    found: as `load_trajectory_detail` returns it.
    """
    return [step | {"reward": None} for step in found["steps"]]


def save_review_label(asking: CatalogReader, said: LabelRequest) -> None:
    """Store the label `said` in the reviewer's file; of a trajectory under route review it is the answer there too.

    asking: reads the store. Raises NotInStore where there is no such trajectory, BadInput for an invalid name, label or
    comment, DiskFull, and as `CatalogReader.rows` and `route_review.label_trajectory`.
    """
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
    # A reviewer's second label keeps the queue of the first. Where two reviewers disagree, the third label decides.
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
        said.seen,
    )


def query_agreement(asking: CatalogReader) -> dict[str, Any]:
    """Query how far reviewers agree with one another and with scorers on whether trajectories solved their tasks.

    asking: reads the store. Returns lists of rows: `pairs` (reviewers with one another), `scorers`, `states` (numbers
    of trajectories by the joint state of their labels), `reviewers` (numbers of labels). Raises as
    `CatalogReader.rows`.
    """
    return {
        "pairs": asking.rows("FROM reviewer_agreement"),
        "scorers": asking.rows("SELECT * REPLACE (concat_ws(' ', scorer, version) AS scorer) FROM scorers_vs_humans"),
        "states": asking.rows("SELECT state, count(*) AS n FROM human_labels GROUP BY ALL ORDER BY state"),
        "reviewers": asking.rows("SELECT reviewer, count(*) AS n FROM labels GROUP BY ALL ORDER BY n DESC, reviewer"),
    }


class PromotionRequest(BaseModel):
    """Hold a decision about a promotion that a page sends. override: it reverses one that is carried out."""

    promote: StrictBool
    reviewer: str
    comment: str = ""
    override: StrictBool = False


def list_waiting_promotions(ws: Workspace) -> list[dict[str, Any]]:
    """List the promotions that wait for a person's decision.

    Returns rows of `iteration`, `decisions` so far, oldest first, and whether a process holds the workspace
    (`running`). Raises BadInput where an iteration's params.yaml is missing or wrong, DataError for a damaged
    `review.json`.
    """
    return [{"iteration": k} | _decided(ws, k) for k in promotion_review.list_pending_reviews(ws)]


def list_decisions(asking: CatalogReader) -> list[dict[str, Any]]:
    """List the promotion decision of each evaluated iteration, newest first.

    asking: reads the store. Returns rows of `iteration`, `promoted` (None: not decided), `reason`, `model` (the newest
    afterwards), `said`, the decisions of people and of the rule, oldest first, and `obstacle`, why the decision cannot
    be reversed ("": it can be). Raises as `CatalogReader.rows` and `promotion_review.find_override_obstacle`.
    """
    found = asking.rows(QUERIES["decisions"])
    for row in found:
        obstacle = promotion_review.find_override_obstacle(asking.ws, row["iteration"])
        row["obstacle"] = str(obstacle) if obstacle else ""
    return found


def load_promotion_case(ws: Workspace, iteration: int) -> dict[str, Any]:
    """Load the report that a promotion decision is based on (`build_promotion_report`), and the decisions so far.

    Returns the report's fields, and `open`, whether a decision may be given now, `decisions`, oldest first, and
    `running`, whether a process holds the workspace. Raises BadInput where the iteration is not evaluated, or its
    params.yaml is missing or wrong; DataError for a damaged `review.json`, and as `build_promotion_report`.
    """
    why = promotion_review.find_review_obstacle(ws, iteration)
    if why and not ws.partition("metrics", iteration, "evaluate").is_dir():
        raise why
    rule = stage_records.load_iteration_params(ws, iteration).promotion
    report = promotion_review.build_promotion_report(ws, iteration, rule)
    told = {"reasons": (*report.reasons, *filter(None, [report.note])), "open": why is None}
    return asdict(report) | told | _decided(ws, iteration)


def submit_promotion_decision(ws: Workspace, iteration: int, decision: PromotionRequest) -> dict[str, Any]:
    """Record a decision about a promotion; return the `decisions` so far, and whether a process holds the workspace.

    A decision that reverses another is carried out at once, and the report written anew. Raises as `decide_promotion`:
    BadInput where none is open or the words are not valid, DataError, DiskFull; for an override as
    `override_promotion`, `recover_workspace` and `write_report`, and WorkspaceBusy where a process holds the workspace.
    """
    said = decision.model_dump(exclude={"override"})
    if decision.override:
        with run_lock.hold_workspace(ws):
            rollback.recover_workspace(ws)
            promotion_override.override_promotion(ws, iteration, **said)
            pages.write_report(ws)
    else:
        promotion_review.decide_promotion(ws, iteration, **said)
    return _decided(ws, iteration)


def _decided(ws: Workspace, iteration: int) -> dict[str, Any]:
    review = promotion_review.read_review(ws, iteration)
    names = ("promote", "reviewer", "comment", "at")
    decisions = [{name: getattr(one, name) for name in names} for one in (review.history if review else ())]
    return {"decisions": decisions, "running": run_lock.is_workspace_busy(ws)}
