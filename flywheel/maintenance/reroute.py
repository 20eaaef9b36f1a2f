"""Decide again where trajectories go (threshold, scorers, band of doubt), and apply decisions atomically."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb

from flywheel import config
from flywheel.config import RoutingSettings, Settings
from flywheel.config.workspace import Workspace, iteration_label
from flywheel.pipeline.stage import StageContext
from flywheel.pipeline.stages import score
from flywheel.pipeline.stages.route import INCOMING, STAGE
from flywheel.rewards.scorer import ScorerSet
from flywheel.store import lineage, manifest, partitions, routing_decisions
from flywheel.store.catalog import database
from flywheel.store.dedup import near_duplicates
from flywheel.store.routing import contracts, training_stores
from flywheel.store.routing_decisions import RoutingDecision, RoutingRule
from flywheel.store.schema import ALL_DOMAINS, TABLES, fraction_metric_row
from flywheel.store.versioning import backup, dvc_files, git_tags, stage_records
from flywheel.utils.errors import BadInput
from flywheel.utils.files import write_json
from flywheel.utils.progress import announce

_QUERIES = database.read_queries("flywheel.maintenance")

# A process that is killed half way loses nothing: all that changes is built beside the data first, in
# `.flywheel/again`. `plan.json`, written there last, is the commit: once it is there the decisions are applied, and the
# next command that changes the workspace finishes it (`resume_pending_decisions`). Every step may be done twice.

_DECIDED_STAGES = ("ingest", "rollout", "score", "route")  # whose partitions may be decided again, in their order


def staged_workspace(ws: Workspace, iteration: int) -> Workspace:
    """Return the workspace in which an iteration's new partitions are built."""
    return Workspace(_pending_folder(ws) / iteration_label(iteration))


def settle_pending_decisions(ws: Workspace) -> None:
    """Finish decisions and repairs whose application was cut off; drop those only prepared, with their copies.

    Finishing is `resume_pending_decisions`, and raises what that does. Call it under the workspace's lock.
    """
    resume_pending_decisions(ws)
    shutil.rmtree(_pending_folder(ws), ignore_errors=True)


def stale_stages(ws: Workspace, iteration: int) -> tuple[str, ...]:
    """List the stages (`sft@004`) of decided iterations that read the stores of `iteration` as they are now, and are
    not done again."""
    found = []
    for k in stage_records.list_iterations(ws):
        if k < iteration or not dvc_files.is_promotion_decided(ws, k):
            continue
        out_of_window = ["sft"] * (k - manifest.read_own_manifest(ws, k)["window"] >= iteration)
        read = {ws.relative(ws.manifest(k)), ws.relative(ws.partition("scores", iteration, "score"))}
        for stage, entry in dvc_files.read_dvc_lock(dvc_files.dvc_lock_path(ws, k)).items():
            paths = {one["path"] for one in entry.get("deps", ())}
            if stage not in (*_DECIDED_STAGES, *out_of_window) and read & paths:
                found.append(f"{stage}@{iteration_label(k)}")
    return tuple(found)


def apply_decisions(ws: Workspace, decided: Mapping[int, RoutingDecision]) -> None:
    """Make decisions, by iteration, the workspace's, as `apply_reroute` does; call it under the workspace's lock."""
    again = [
        {"iteration": k, "version": routing_decisions.store_version(ws, k) + 1, "decision": asdict(one)}
        for k, one in decided.items()
    ]
    chained = [k for k in stage_records.list_iterations(ws) if k >= min(decided) and ws.manifest(k).exists()]
    manifests = {str(k): dvc_files.file_md5(ws.manifest(k)) for k in chained}
    outputs = [dvc_files.recorded_outputs(ws, k).items() for k in decided]
    recorded = {path: out["md5"] for own in outputs for path, out in own}
    write_json(_pending_plan_path(ws), {"again": again, "manifests": manifests, "recorded": recorded})
    resume_pending_decisions(ws)


def resume_pending_decisions(ws: Workspace) -> list[int]:
    """Finish the pending decisions that had begun to be applied; returns their iterations, none where there were none.

    Writes, commits and pushes what `apply_reroute` does. Call it under the workspace's lock. Raises DataError for
    damaged manifests, decisions or lists of partitions, or where DVC's file of an iteration is lost; VersioningError
    where DVC fails; one of the two for a damaged dvc.lock; BadInput where params.yaml is wrong, FlywheelError where git
    refuses, DiskFull.
    """
    try:
        plan = json.loads(_pending_plan_path(ws).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    for one in plan["again"]:
        _apply_decision(ws, one)
    before = {int(k): md5 for k, md5 in plan["manifests"].items()}
    for k in sorted(before):
        if k - 1 in before:
            manifest.relink_manifest(ws, k)
        if dvc_files.is_promotion_decided(ws, k):
            named = [(before[j], ws.manifest(j)) for j in (k - 1, k) if j in before]
            now = {ws.relative(path): (old, dvc_files.describe_output(path)) for old, path in named}
            outputs = dvc_files.recorded_outputs(ws, k)
            made = {path: (plan["recorded"].get(path, ""), one) for path, one in outputs.items()}
            dvc_files.update_lock_entries(ws, k, {**made, **now})
    which = [one["iteration"] for one in plan["again"]]
    versions, labels = config.load_settings(ws.params).versioning, ", ".join(map(iteration_label, which))
    if versions.git:
        git_tags.commit_to_git(ws.root, f"Decided again: iteration {labels}", ("iterations",))
    shutil.rmtree(_pending_folder(ws))
    backup.push_iterations(ws, versions.remote)
    announce("again", f"iteration {labels}: what was decided again is in place")
    return which


def _apply_decision(ws: Workspace, one: dict[str, Any]) -> None:
    k, new = one["iteration"], staged_workspace(ws, one["iteration"])
    changed = set()
    for path in sorted(new.data.glob("*/iteration=*/stage=*")):
        table, stage = path.parts[-3], path.name.removeprefix("stage=")
        partitions.adopt_partition(ws, new, table, k, stage)
        changed.add(stage)
    decided = routing_decisions.read_decisions(ws, k)[: one["version"] - 1]
    routing_decisions.write_decisions(ws, k, (*decided, routing_decisions.parse_decision(one["decision"])))
    manifest.rewrite_manifest(ws, k)
    recorded = set(dvc_files.recorded_stages(ws, k))
    for stage in _DECIDED_STAGES:
        if stage in recorded and (stage in changed or stage in ("score", "route")):
            stage_records.record_stage(ws, stage, k)


def _pending_folder(ws: Workspace) -> Path:
    return ws.state / "again"


def _pending_plan_path(ws: Workspace) -> Path:
    return _pending_folder(ws) / "plan.json"


# Routing again: nothing is played and no model is asked. The results of the row contracts stand in `quarantine` and do
# not depend on scores, so steps are not read; scores are compared with a threshold in SQL, or given anew by scorers
# that read final states or steps alone.


@dataclass(frozen=True)
class RouteDifference:
    """Describe what another decision changes in `iteration`.

    moved: rows of `domain`, `from`, `to`, `trajectories`, `examples` (ids, and the reason now and then). routed:
    destination -> trajectories, then. scores, routes: how many rows of these tables are written anew, also for another
    threshold alone. verdicts: scores that are others then, or say otherwise. stale: recorded stages that read what the
    stores hold now.
    """

    iteration: int
    moved: tuple[dict[str, Any], ...]
    routed: dict[str, int]
    scores: int
    routes: int
    verdicts: int
    stale: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Trajectories that go elsewhere."""
        return sum(one["trajectories"] for one in self.moved)


def prepare_reroute(ws: Workspace, iteration: int, rule: RoutingRule) -> RouteDifference:
    """Route an iteration again by other rules, in a copy under `.flywheel` (`staged_workspace`); the data stay.

    Call it under the workspace's lock. rule: threshold, scorers and band of doubt; what is None is as the iteration's
    own parameters and tasks say, whatever an earlier decision said. Returns what would change, for `apply_reroute`;
    `settle_pending_decisions` drops the copy. Raises BadInput where the iteration is not routed yet, its parameters are
    missing or wrong, or a scorer of the rule is unknown, looks at screens or refuses its settings; ContractBroken where
    the stores would break a contract; DataError for a missing or damaged file, DiskFull.
    """
    settings = stage_records.load_iteration_params(ws, iteration)
    _check_rule(ws, iteration, rule, settings)
    staged = staged_workspace(ws, iteration)
    own = _are_scores_current(ws, iteration, rule, settings)
    if not own:
        ctx = StageContext(ws, settings, iteration, "score")
        with partitions.open_partition_writer(staged, "scores", iteration, "score") as writer:
            writer.write(score.score_trajectories(ctx, rule))
    with training_stores.connect_incoming(ws, iteration, INCOMING, staged) as connection:
        return reroute_on_connection(ws, connection, iteration, rule, settings, held=own)


def reroute_on_connection(
    ws: Workspace,
    connection: duckdb.DuckDBPyConnection,
    iteration: int,
    rule: RoutingRule,
    settings: Settings,
    *,
    held: bool = True,
    looked: Mapping[str, Any] | None = None,
) -> RouteDifference:
    """Route an iteration again on an open connection, into `staged_workspace`; returns what would change.

    held: compare the connection's scores with the rule's threshold first. looked: people's answers
    (`RoutingDecision.looked`), which make a decision even where nothing moves.
    """
    staged = staged_workspace(ws, iteration)
    scores, verdicts = _create_judgements(ws, connection, iteration, rule, held=held)
    _create_broken(connection, iteration)
    decided = routing_decisions.read_decisions(ws, iteration)
    people = routing_decisions.human_verdicts([*decided, RoutingDecision(rule, "", (), looked=dict(looked or {}))])
    training_stores.decide_routes(connection, verified_only=settings.sft.verified_only, band=rule.band, people=people)
    found = compare_routes(ws, connection, iteration, scores, verdicts)
    if found.routes or scores or looked:
        _write_stores(ws, connection, staged, iteration, settings.routing, scores=bool(scores) and held)
        contracts.check_table_contracts(ws, iteration, INCOMING, staged)
    return found


def make_decision(
    ws: Workspace,
    found: RouteDifference,
    rule: RoutingRule,
    mended: dict[str, Any] | None = None,
    looked: dict[str, Any] | None = None,
) -> RoutingDecision:
    """Make the decision that is stored of a changed routing.

    found: what changes. mended: how rows were repaired. looked: people's answers.
    """
    before = partitions.partition_manifest(ws, "routes", found.iteration, training_stores.ROUTE_STAGE)
    moved = tuple({name: one[name] for name in ("domain", "from", "to", "trajectories")} for one in found.moved)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    sha256 = tuple(part.sha256 for part in before.parts)
    return RoutingDecision(rule, at, sha256, moved, mended or {}, looked or {}, found.stale)


def apply_reroute(ws: Workspace, found: Iterable[RouteDifference], rule: RoutingRule) -> None:
    """Make prepared routes the workspace's; those that change nothing are left out.

    found: what `prepare_reroute` returned, one an iteration. rule: by which they were prepared. Call it under the
    workspace's lock. Writes partitions, decisions, manifests and DVC's records, commits where `versioning.git` is set,
    and pushes to `versioning.remote`; a remote out of reach is announced. `resume_pending_decisions` finishes one that
    was cut off; raises what that does.
    """
    if decided := {one.iteration: make_decision(ws, one, rule) for one in found if one.routes or one.scores}:
        apply_decisions(ws, decided)


def is_routed(ws: Workspace, iteration: int) -> bool:
    """Tell whether the iteration's stores and its manifest are there."""
    routes = ws.partition("routes", iteration, training_stores.ROUTE_STAGE)
    return routes.is_dir() and ws.manifest(iteration).exists()


def _check_rule(ws: Workspace, iteration: int, rule: RoutingRule, settings: Settings) -> None:
    if not is_routed(ws, iteration):
        what = f"iteration {iteration_label(iteration)} is not routed yet"
        raise BadInput(what, where="ITERATION", fix="`flywheel status` says how far it is")
    if rule.scorers and "screens" in ScorerSet(rule.apply_to(settings)).needs():
        raise BadInput(
            f"a scorer of {', '.join(rule.scorers)} looks at screens: final states and steps alone are judged again",
            where="--scorer",
            fix="name it in routing.scorers of the next iteration",
        )


def _are_scores_current(ws: Workspace, iteration: int, rule: RoutingRule, settings: Settings) -> bool:
    """Tell whether the scores that are there are those of the rule's scorers, in the versions of today."""
    panel = ScorerSet(rule.apply_to(settings))
    with database.connect_catalog(ws, tables_alone=True) as connection:
        rows = database.query_rows(connection, _QUERIES["scorer_versions"], {"iteration": iteration})
    there: dict[str, set] = {}
    for row in rows:
        there.setdefault(row["domain"], set()).add((row["scorer"], row["version"]))
    if rule.scorers is None and not routing_decisions.current_routing_rule(ws, iteration).scorers:
        return True  # they were given by the scorers of then, which are asked for again by name alone
    return all(
        found == {(one.name, one.version) for one in panel.for_domain(domain)} for domain, found in there.items()
    )


def _create_judgements(
    ws: Workspace, connection: duckdb.DuckDBPyConnection, iteration: int, rule: RoutingRule, *, held: bool
) -> tuple[int, int]:
    """Make the table `judgements`; returns how many of its rows are other ones than before, and how many of the scores
    say otherwise."""
    connection.register("scores_before", partitions.read_partition(ws, "scores", iteration, "score"))
    if held:
        connection.execute(_QUERIES["judgements"], {"iteration": iteration, "threshold": rule.threshold})
        changed = _QUERIES["changed_judgements"]
    else:  # given anew
        own = f"FROM scores WHERE iteration = {iteration} AND stage = 'score'"
        connection.execute(f"CREATE TEMP TABLE judgements AS {own}")
        changed = "SELECT count(*) FROM judgements"
    return tuple(connection.execute(sql).fetchall()[0][0] for sql in (changed, _QUERIES["changed_verdicts"]))


def _create_broken(connection: duckdb.DuckDBPyConnection, iteration: int) -> None:
    names = [one.name for one in contracts.SCORE_CONTRACTS]
    broken = _QUERIES["broken"].format(broken_scores=contracts.broken_scores_sql())
    connection.execute(broken, {"iteration": iteration, "anew": names})
    connection.execute(_QUERIES["orphans"], {"iteration": iteration})


def compare_routes(
    ws: Workspace, connection: duckdb.DuckDBPyConnection, iteration: int, scores: int, verdicts: int
) -> RouteDifference:
    """Compare the workspace's routes with the table `decided`. scores: number of rows that changed; verdicts: of those
    that say otherwise."""
    before = partitions.read_partition(ws, "routes", iteration, training_stores.ROUTE_STAGE)
    connection.register("routes_before", before)
    moved = database.query_rows(connection, _QUERIES["moved_routes"])
    ((routes,),) = connection.execute(_QUERIES["changed_routes"]).fetchall()
    built = training_stores.count_routed(connection)
    stale = stale_stages(ws, iteration) if moved else ()
    return RouteDifference(iteration, tuple(moved), built.routed, scores, routes, verdicts, stale)


def _write_stores(
    ws: Workspace,
    connection: duckdb.DuckDBPyConnection,
    staged: Workspace,
    iteration: int,
    settings: RoutingSettings,
    *,
    scores: bool,
) -> None:
    """scores: whether they are written too."""
    if ws.partition("trajectory_hashes", iteration, training_stores.ROUTE_STAGE).is_dir():
        near_duplicates.weigh_duplicates(ws, iteration, STAGE.partitions(), connection, settings, staged, again=True)
    else:
        connection.execute("CREATE TABLE weights (trajectory_id VARCHAR, weight DOUBLE)")
    stores = training_stores.training_stores_sql(iteration)
    stores.pop("lineage")
    training_stores.write_training_stores(connection, staged, iteration, stores)
    columns = ", ".join(f'"{name}"' for name in TABLES["scores"].names)
    if scores:
        with partitions.open_partition_writer(staged, "scores", iteration, "score") as writer:
            writer.write_query(connection, f"SELECT {columns} FROM judgements ORDER BY trajectory_id, scorer")
    write_decision_lineage(ws, connection, staged, iteration)
    write_decision_metrics(ws, connection, staged, iteration)


def write_decision_lineage(
    ws: Workspace,
    connection: duckdb.DuckDBPyConnection,
    staged: Workspace,
    iteration: int,
    further: Iterable[lineage.Row] = (),
) -> None:
    """Lineage of the new version, beside that of those before it, whose files are taken as they are."""
    version = routing_decisions.store_version(ws, iteration) + 1
    with partitions.open_partition_writer(staged, "lineage", iteration, training_stores.ROUTE_STAGE) as writer:
        partitions.link_partition_files(ws, writer, "lineage", iteration, training_stores.ROUTE_STAGE)
        links = lineage.rerouted_links_sql(iteration, version, training_stores.DESTINATIONS)
        writer.write_query(connection, links)
        writer.write(further)


def write_decision_metrics(
    ws: Workspace, connection: duckdb.DuckDBPyConnection, staged: Workspace, iteration: int
) -> None:
    """Write the figures of `score` and `route` that follow from the decision; their seconds stay."""
    verdicts = connection.execute(_QUERIES["rollout_verdicts"], {"iteration": iteration}).fetchall()
    by_domain = {domain: (verified, judged) for domain, verified, judged in verdicts}
    by_domain[ALL_DOMAINS] = tuple(sum(verdict[n] for verdict in verdicts) for n in (1, 2))
    fresh = {"route": training_stores.count_routed(connection).metrics}
    for stage in ("score", "route"):
        if not ws.partition("metrics", iteration, stage).is_dir():
            continue
        rows = partitions.read_partition(ws, "metrics", iteration, stage).to_pylist()
        if stage == "score":
            fresh[stage] = [
                fraction_metric_row("p_v1", *by_domain.get(row["domain"], (0, 0)), domain=row["domain"])
                for row in rows
                if row["name"] == "p_v1"
            ]
        kept = [row for row in rows if row["name"] not in {one["name"] for one in fresh[stage]}]
        rows = [*kept, *({"step": 0, **one} for one in fresh[stage])]
        partitions.write_partition(staged, "metrics", iteration, stage, rows)
