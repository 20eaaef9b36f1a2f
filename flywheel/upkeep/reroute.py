"""Decide again where trajectories go, from what is on disk: by another threshold, other scorers, a band of doubt.

Nothing is played and no model is asked. What the row contracts said of trajectories and steps stands in `quarantine`
and does not depend on scores, so steps are not read; scores are held against a threshold in SQL, or given anew by
scorers that read final states or steps alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import duckdb

from flywheel.errors import BadInput
from flywheel.schema import TABLES
from flywheel.scoring.panel import Panel
from flywheel.settings import Routing, Settings
from flywheel.stages import score
from flywheel.stages.base import Context
from flywheel.stages.route import INCOMING, STAGE
from flywheel.store import (
    build,
    catalog,
    contracts,
    decisions,
    duplicates,
    frozen,
    judging,
    lineage,
    metrics,
    partitions,
    routing,
)
from flywheel.store.decisions import Decision, Rule
from flywheel.upkeep import again
from flywheel.upkeep.again import Again
from flywheel.workspace import Workspace, label


@dataclass(frozen=True)
class Difference:
    """What another decision changes. moved: `domain`, `from`, `to`, `trajectories`, `examples` (ids, and the reason now
    and then). routed: destination -> trajectories, then. scores: rows that change. stale: recorded stages that read
    what the stores hold now."""

    iteration: int
    moved: tuple[dict[str, Any], ...]
    routed: dict[str, int]
    scores: int
    routes: int
    stale: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Trajectories that go elsewhere."""
        return sum(one["trajectories"] for one in self.moved)


def prepare(ws: Workspace, iteration: int, rule: Rule) -> Difference:
    """Decide an iteration again by the rule; what it gives is built beside the data (`again.staged`), which stay as
    they are. Raises BadInput where it is not routed yet, or the rule cannot be followed."""
    settings = frozen.load(ws, iteration)
    _check(ws, iteration, rule, settings)
    staged = again.staged(ws, iteration)
    own = _own_scorers(ws, iteration, rule, settings)
    if not own:
        ctx = Context(ws, settings, iteration, "score")
        with partitions.writing(staged, "scores", iteration, "score") as writer:
            writer.write(score.judge(ctx, rule))
    with build.connected(ws, iteration, INCOMING, staged) as connection:
        return route(ws, connection, iteration, rule, settings, held=own)


def route(
    ws: Workspace,
    connection: duckdb.DuckDBPyConnection,
    iteration: int,
    rule: Rule,
    settings: Settings,
    *,
    held: bool = True,
    looked: Mapping[str, Any] | None = None,
) -> Difference:
    """The same on a connection. held: the scores of the connection are held against the rule's threshold first. looked:
    what people said since (`Decision.looked`), which is a decision even where nothing moves."""
    staged = again.staged(ws, iteration)
    scores = _judgements(connection, iteration, rule, held=held)
    _broken(connection, iteration)
    decided = (*decisions.read(ws, iteration), Decision(rule, "", (), looked=dict(looked or {})))
    people = decisions.said(decided)
    routing.decide(connection, verified_only=settings.sft.verified_only, band=rule.band, people=people)
    found = difference(ws, connection, iteration, scores)
    if found.routes or scores or looked:
        _write(ws, connection, staged, iteration, settings.routing, scores=bool(scores) and held)
        judging.check_tables(ws, iteration, INCOMING, staged)
    return found


def decision(
    ws: Workspace,
    found: Difference,
    rule: Rule,
    mended: dict[str, Any] | None = None,
    looked: dict[str, Any] | None = None,
) -> Again:
    """What is kept of it."""
    before = partitions.manifest_of(ws, "routes", found.iteration, build.STAGE)
    moved = tuple({name: one[name] for name in ("domain", "from", "to", "trajectories")} for one in found.moved)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    sha256 = tuple(part.sha256 for part in before.parts)
    return Again(found.iteration, Decision(rule, at, sha256, moved, mended or {}, looked or {}, found.stale))


def write(ws: Workspace, found: Iterable[Difference], rule: Rule) -> None:
    """Make what was prepared the workspace's, where it changes anything."""
    if decided := [decision(ws, one, rule) for one in found if one.routes or one.scores]:
        again.carry_out(ws, decided)


def _check(ws: Workspace, iteration: int, rule: Rule, settings: Settings) -> None:
    if not ws.partition("routes", iteration, build.STAGE).is_dir() or not ws.manifest(iteration).exists():
        what = f"iteration {label(iteration)} is not routed yet"
        raise BadInput(what, where="ITERATION", fix="`flywheel status` says how far it is")
    if rule.scorers and "screens" in Panel(rule.settings(settings)).needs():
        raise BadInput(
            f"a scorer of {', '.join(rule.scorers)} looks at screens: final states and steps alone are judged again",
            where="--scorer",
            fix="name it in routing.scorers of the next iteration",
        )


def _own_scorers(ws: Workspace, iteration: int, rule: Rule, settings: Settings) -> bool:
    """Whether the scores that are there are those of the rule's scorers, in the versions of today."""
    panel = Panel(rule.settings(settings))
    sql = """SELECT DISTINCT domain, split_part(scorer, ':', 1) AS scorer, version
        FROM scores JOIN trajectories USING (trajectory_id, iteration)
        WHERE iteration = ? AND scores.stage = 'score' AND scorer <> ''"""
    with catalog.connect(ws, tables_alone=True) as connection:
        rows = connection.execute(sql, [iteration]).fetchall()
    there: dict[str, set] = {}
    for domain, scorer, version in rows:
        there.setdefault(domain, set()).add((scorer, version))
    if rule.scorers is None and not decisions.rule(ws, iteration).scorers:
        return True  # they were given by the scorers of then, which are asked for again by name alone
    return all(found == {(one.name, one.version) for one in panel.of(domain)} for domain, found in there.items())


def _judgements(connection: duckdb.DuckDBPyConnection, iteration: int, rule: Rule, *, held: bool) -> int:
    """Make the table `judgements`; returns how many of its rows are other ones than before."""
    own = f"FROM scores WHERE iteration = {iteration} AND stage = 'score'"
    if not held:
        connection.execute(f"CREATE TEMP TABLE judgements AS {own}")
        return connection.execute("SELECT count(*) FROM judgements").fetchone()[0]
    connection.execute(f"CREATE TEMP TABLE scores_before AS {own}")
    threshold = "coalesce(asked, threshold)" if rule.threshold is None else f"{rule.threshold!r}"
    connection.execute(
        f"""CREATE TEMP TABLE judgements AS
        SELECT * EXCLUDE (asked, held) REPLACE (held AS threshold,
            CASE WHEN score BETWEEN 0 AND 1 THEN score >= held END AS v) FROM (
            SELECT s.*, asked, CASE WHEN coalesce(scorer, '') = '' THEN threshold ELSE {threshold} END AS held
            FROM scores_before s
                LEFT JOIN (SELECT trajectory_id, any_value(task_id) AS task_id FROM incoming GROUP BY ALL)
                    USING (trajectory_id)
                LEFT JOIN (SELECT task_id, any_value(threshold) AS asked FROM tasks WHERE iteration = {iteration}
                    GROUP BY ALL) USING (task_id))"""
    )
    return connection.execute(
        """SELECT count(*) FROM (SELECT trajectory_id, scorer, score, threshold, v FROM judgements EXCEPT
            SELECT trajectory_id, scorer, score, threshold, v FROM scores_before)"""
    ).fetchone()[0]


def _broken(connection: duckdb.DuckDBPyConnection, iteration: int) -> None:
    """What the contracts say: of trajectories and steps as it was found, of scores anew."""
    names = ", ".join(f"'{one.name}'" for one in contracts.SCORE)
    aside = f"quarantine WHERE iteration = {iteration} AND stage = '{build.STAGE}'"
    connection.execute(
        f"""CREATE TEMP TABLE broken AS SELECT trajectory_id, min_by(reason, place) AS reason FROM (
            SELECT trajectory_id, substr(reason, len('contract: ') + 1) AS reason, 0 AS place FROM {aside}
                AND coalesce(of_table, 'trajectories') = 'trajectories' AND starts_with(reason, 'contract: ')
                AND split_part(substr(reason, len('contract: ') + 1), ':', 1) NOT IN ({names})
            UNION ALL SELECT trajectory_id, reason, 1 FROM ({judging.broken_scores()}))
        GROUP BY ALL"""
    )
    connection.execute(
        f"""CREATE TEMP TABLE orphans AS SELECT of_table, trajectory_id, reason, detail FROM {aside}
            AND of_table <> 'trajectories'"""
    )


def difference(ws: Workspace, connection: duckdb.DuckDBPyConnection, iteration: int, scores: int) -> Difference:
    """Between the routes of the workspace and the table `decided`. scores: rows that changed."""
    connection.register("routes_before", partitions.read(ws, "routes", iteration, build.STAGE))
    moved = catalog.rows(
        connection,
        """SELECT i.domain, b.destination AS "from", d.destination AS "to", count(*) AS trajectories,
            (list({'trajectory_id': trajectory_id, 'reason': b.reason, 'then': d.reason} ORDER BY trajectory_id))[:3]
                AS examples
        FROM routes_before b JOIN decided d USING (trajectory_id)
            JOIN (SELECT trajectory_id, any_value(domain) AS domain FROM incoming GROUP BY ALL) i USING (trajectory_id)
        WHERE b.destination <> d.destination GROUP BY ALL ORDER BY trajectories DESC, 1, 2, 3""",
    )
    (routes,) = connection.execute(
        """SELECT count(*) FROM (SELECT trajectory_id, destination, reason, score, v FROM decided EXCEPT
            SELECT trajectory_id, destination, reason, score, v FROM routes_before)"""
    ).fetchone()
    built = build.figures(connection)
    stale = again.stale(ws, iteration) if moved else ()
    return Difference(iteration, tuple(moved), built.routed, scores, routes, stale)


def _write(
    ws: Workspace,
    connection: duckdb.DuckDBPyConnection,
    staged: Workspace,
    iteration: int,
    settings: Routing,
    *,
    scores: bool,
) -> None:
    """scores: whether they are written too."""
    if ws.partition("signatures", iteration, build.STAGE).is_dir():
        duplicates.find(ws, iteration, STAGE.partitions(), connection, settings, staged, again=True)
    else:
        connection.execute("CREATE TABLE weights (trajectory_id VARCHAR, weight DOUBLE)")
    stores = routing.stores(iteration)
    stores.pop("lineage")
    build.write(connection, staged, iteration, stores)
    columns = ", ".join(f'"{name}"' for name in TABLES["scores"].names)
    if scores:
        with partitions.writing(staged, "scores", iteration, "score") as writer:
            for batch in build.batches(connection, f"SELECT {columns} FROM judgements ORDER BY trajectory_id, scorer"):
                writer.write(batch.cast(TABLES["scores"]))
    link(ws, connection, staged, iteration)
    measure(ws, connection, staged, iteration)


def link(
    ws: Workspace,
    connection: duckdb.DuckDBPyConnection,
    staged: Workspace,
    iteration: int,
    further: Iterable[lineage.Row] = (),
) -> None:
    """Lineage of the new version, beside that of those before it, whose files are taken as they are."""
    version = decisions.version(ws, iteration) + 1
    with partitions.writing(staged, "lineage", iteration, build.STAGE) as writer:
        partitions.take(ws, writer, "lineage", iteration, build.STAGE)
        for batch in build.batches(connection, lineage.decided_again(iteration, version, routing.DESTINATIONS)):
            writer.write(batch.cast(TABLES["lineage"]))
        writer.write(further)


def measure(ws: Workspace, connection: duckdb.DuckDBPyConnection, staged: Workspace, iteration: int) -> None:
    """The figures of `score` and `route` that follow from the decision; their seconds stay."""
    verdicts = connection.execute(
        f"""SELECT i.domain, count(*) FILTER (WHERE d.v), count(*) FROM decided d
        JOIN (SELECT trajectory_id, domain, task_id FROM incoming WHERE stage = 'rollout') i USING (trajectory_id)
        WHERE d.v IS NOT NULL AND task_id IN
            (SELECT task_id FROM tasks WHERE iteration = {iteration} AND stage = 'synthesize' AND split = 'train')
        GROUP BY ALL"""
    ).fetchall()
    by_domain = {domain: (verified, judged) for domain, verified, judged in verdicts}
    by_domain[metrics.ALL] = tuple(sum(one[n] for one in verdicts) for n in (1, 2))
    fresh = {"route": build.figures(connection).metrics}
    for stage in ("score", "route"):
        if not ws.partition("metrics", iteration, stage).is_dir():
            continue
        rows = partitions.read(ws, "metrics", iteration, stage).to_pylist()
        if stage == "score":
            fresh[stage] = [
                metrics.share("p_v1", *by_domain.get(row["domain"], (0, 0)), domain=row["domain"])
                for row in rows
                if row["name"] == "p_v1"
            ]
        kept = [row for row in rows if row["name"] not in {one["name"] for one in fresh[stage]}]
        partitions.write(staged, "metrics", iteration, stage, [*kept, *({"step": 0, **one} for one in fresh[stage])])
