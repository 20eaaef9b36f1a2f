"""Route trajectories again by another threshold, scorers or band of doubt, and apply such decisions atomically."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb

from flywheel import config
from flywheel.config import Settings
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
from flywheel.store.schema import TABLES
from flywheel.store.versioning import backup, dvc_files, git_tags, stage_records
from flywheel.utils.errors import BadInput
from flywheel.utils.files import write_json
from flywheel.utils.progress import announce

_QUERIES = database.read_queries("flywheel.maintenance")

# A killed process loses nothing: all new partitions are first built in `.flywheel/again`. Writing `plan.json` there is
# the commit: from then on the decisions are applied, and the next command that changes the workspace finishes that
# (`resume_pending_decisions`). Every step may be done twice.

_DECIDED_STAGES = ("ingest", "rollout", "score", "route")  # whose partitions a decision may rewrite, in order


def get_staged_workspace(ws: Workspace, iteration: int) -> Workspace:
    """Return the workspace under `.flywheel/again` in which an iteration's new partitions are built."""
    return Workspace(_pending_folder(ws) / iteration_label(iteration))


def settle_pending_decisions(ws: Workspace) -> None:
    """Finish routing decisions whose application was interrupted, and drop the copies of those that were only prepared.

    Call it under the workspace's lock, before decisions or repairs are prepared. Raises as `resume_pending_decisions`.
    """
    resume_pending_decisions(ws)
    shutil.rmtree(_pending_folder(ws), ignore_errors=True)


def find_stale_stages(ws: Workspace, iteration: int) -> tuple[str, ...]:
    """List the finished stages (`sft@004`) that read the present stores of `iteration` and will not run again.

    They are of iterations whose promotion is decided. Raises DataError for a missing or damaged manifest, or where
    DVC's file of an iteration is lost; VersioningError or DataError for a damaged dvc.lock.
    """
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
    """Apply routing decisions, whose new partitions are prepared, to the workspace. Call it under the workspace's lock.

    decided: at least one, by iteration. Writes, commits and pushes as `apply_reroute`. Raises as
    `resume_pending_decisions`.
    """
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
    """Finish applying the routing decisions that a killed process began to apply; return their iterations, [] for none.

    Writes, commits and pushes as `apply_reroute`. Call it under the workspace's lock. Raises DataError for
    damaged manifests, decisions or lists of partitions, or where DVC's file of an iteration is lost; VersioningError
    where DVC fails; one of the two for a damaged dvc.lock; BadInput where params.yaml is wrong; FlywheelError where git
    refuses; DiskFull.
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
    k, new = one["iteration"], get_staged_workspace(ws, one["iteration"])
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


# Routing again plays no episode and calls no model. The results of the row contracts are stored in `quarantine` and do
# not depend on scores, so steps are not checked again. Scores are compared with a threshold in SQL, or computed again
# by scorers that read only final states or steps.


@dataclass(frozen=True)
class RouteDifference:
    """Hold what a new routing decision changes in `iteration`.

    moved: rows of `domain`, `from`, `to`, `trajectories` (how many), `examples` (ids, with the old and the new reason).
    routed: destination -> number of trajectories after the change. scores: number of score rows that change, come or
    go. routes: number of route rows that change. verdicts: number of scores whose value or success changes. stale:
    finished stages that read the stores as they are before the change (`find_stale_stages`). changed: rows by domain:
    how often V changes (`to_1`, `to_0`, `none_to_1`, `none_to_0`, `to_none`), how many trajectories `moved`, and how
    many with a changed V are `held`: a broken contract decides their route, not V. scorers: rows by scorer and version:
    how many trajectories it `scored`, on how many it `abstained` or `failed`, the first `reason`, and of how many it
    was `known` before, so that it was not asked.
    """

    iteration: int
    moved: tuple[dict[str, Any], ...]
    routed: dict[str, int]
    scores: int
    routes: int
    verdicts: int
    stale: tuple[str, ...] = ()
    changed: tuple[dict[str, Any], ...] = ()
    scorers: tuple[dict[str, Any], ...] = ()

    @property
    def count(self) -> int:
        """Return the number of trajectories whose destination changes."""
        return sum(one["trajectories"] for one in self.moved)


def prepare_reroute(ws: Workspace, iteration: int, rule: RoutingRule) -> RouteDifference:
    """Route an iteration again by `rule`, in a copy under `.flywheel` (`get_staged_workspace`); the data do not change.

    Call it under the workspace's lock. rule: threshold, scorers with their settings, and band of doubt; where one is
    None, the iteration's own parameters and tasks decide, whatever an earlier decision said. Returns the changes, for
    `apply_reroute`; `settle_pending_decisions` drops the copy. Raises BadInput where the iteration is not routed yet,
    its parameters are missing or wrong, or a scorer of the rule is unknown or refuses its settings; ModelError for an
    outcome reward model whose weights are missing; ContractBroken where the new stores break a contract; DataError for
    a missing or damaged file, or where another process has been writing a partition of the copy for ten minutes;
    VersioningError or DataError for a damaged dvc.lock; FlywheelError where a query needs more memory than it may take;
    DiskFull.
    """
    settings = stage_records.load_iteration_params(ws, iteration)
    check_routed(ws, iteration)
    staged = get_staged_workspace(ws, iteration)
    own = _are_scores_current(ws, iteration, rule, settings)
    if not own:
        ctx = StageContext(ws, settings, iteration, "score")
        with partitions.open_partition_writer(staged, "scores", iteration, "score") as writer:
            writer.write(score.score_trajectories(ctx, rule, reuse=True))
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
    reviewed: Mapping[str, Any] | None = None,
) -> RouteDifference:
    """Route an iteration again on an open connection, and write the result to `get_staged_workspace`.

    connection: of `training_stores.connect_incoming`. rule: threshold, scorers and band of doubt. settings: the
    iteration's. held: whether to compare the stored scores with the rule's threshold; False where
    `get_staged_workspace` has new scores. reviewed: people's answers (`RoutingDecision.looked`), None: none; with them
    the stores are written even where no trajectory moves. Returns the changes. Raises as `prepare_reroute`, but for
    settings and rule; duckdb.Error for a damaged file that `connection` reads.
    """
    staged = get_staged_workspace(ws, iteration)
    decided = routing_decisions.read_decisions(ws, iteration)
    people = routing_decisions.human_verdicts([*decided, RoutingDecision(rule, "", (), looked=dict(reviewed or {}))])
    scores, verdicts = _create_judgements(ws, connection, iteration, rule, people, held=held)
    _create_broken(connection, iteration)
    training_stores.decide_routes(connection, verified_only=settings.sft.verified_only, band=rule.band, people=people)
    found = compare_routes(ws, connection, iteration, scores, verdicts)
    found = replace(found, scorers=tuple(database.query_rows(connection, _QUERIES["scorer_counts"])))
    if found.routes or scores or reviewed:
        _write_stores(ws, connection, staged, iteration, settings, scores=bool(scores) or not held)
        contracts.check_table_contracts(ws, iteration, INCOMING, staged)
    return found


def make_decision(
    ws: Workspace,
    found: RouteDifference,
    rule: RoutingRule,
    mended: dict[str, Any] | None = None,
    reviewed: dict[str, Any] | None = None,
) -> RoutingDecision:
    """Build the routing decision to be stored for the changes `found`, which follow from `rule`.

    mended: how rows were repaired (`QuarantineRepair.how`); None: none were. reviewed: people's answers
    (`RoutingDecision.looked`); None: there were none. Raises DataError for a damaged list of the partition `routes`.
    """
    before = partitions.partition_manifest(ws, "routes", found.iteration, training_stores.ROUTE_STAGE)
    moved = tuple({name: one[name] for name in ("domain", "from", "to", "trajectories")} for one in found.moved)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    sha256 = tuple(part.sha256 for part in before.parts)
    return RoutingDecision(rule, at, sha256, moved, mended or {}, reviewed or {}, found.stale)


def apply_reroute(ws: Workspace, found: Iterable[RouteDifference], rule: RoutingRule) -> None:
    """Apply prepared routes to the workspace; those that change nothing are left out.

    found: what `prepare_reroute` returned, one per iteration. rule: by which they were prepared. Call it under the
    workspace's lock. Writes partitions, decisions, manifests and DVC's records, commits where `versioning.git` is set,
    and pushes to `versioning.remote`; a failed push is only announced. Raises as `make_decision` and
    `resume_pending_decisions`, which finishes an interrupted call.
    """
    if decided := {one.iteration: make_decision(ws, one, rule) for one in found if one.routes or one.scores}:
        apply_decisions(ws, decided)


def is_routed(ws: Workspace, iteration: int) -> bool:
    """Tell whether the iteration's routes and its manifest exist."""
    routes = ws.partition("routes", iteration, training_stores.ROUTE_STAGE)
    return routes.is_dir() and ws.manifest(iteration).exists()


def check_routed(ws: Workspace, iteration: int, where: str = "ITERATION") -> None:
    """Raise BadInput where the iteration is not routed yet. where: what named it on the command line."""
    if not is_routed(ws, iteration):
        fix = "its stage `route` comes first: `flywheel run` goes on with it, `flywheel status` says how far it is"
        raise BadInput(f"iteration {iteration_label(iteration)} is not routed yet", where=where, fix=fix)


def _are_scores_current(ws: Workspace, iteration: int, rule: RoutingRule, settings: Settings) -> bool:
    """Tell whether the stored scores were given by the rule's scorers in their present versions, and none failed."""
    panel = ScorerSet(rule.apply_to(settings))
    with database.connect_catalog(ws, tables_alone=True) as connection:
        rows = database.query_rows(connection, _QUERIES["scorer_versions"], {"iteration": iteration})
    there: dict[str, set] = {}
    for row in rows:
        there.setdefault(row["domain"], set()).add((row["scorer"], row["version"]))
    if rule.scorers is None and not routing_decisions.current_routing_rule(ws, iteration).scorers:
        return True  # no scorer is named: the stored scores count, of whatever version
    if any(row["failed"] for row in rows):
        return False
    return all(
        found == {(one.name, one.version) for one in panel.for_domain(domain)} for domain, found in there.items()
    )


def _create_judgements(
    ws: Workspace,
    connection: duckdb.DuckDBPyConnection,
    iteration: int,
    rule: RoutingRule,
    people: Mapping[str, tuple[bool, str]],
    *,
    held: bool,
) -> tuple[int, int]:
    """Create the table `judgements`; return how many of its rows changed, and how many scores in value or success."""
    connection.register("scores_stored", partitions.read_partition(ws, "scores", iteration, "score"))
    connection.execute("CREATE TEMP VIEW scores_before AS FROM scores_stored WHERE current IS NOT false")
    if held:
        connection.execute(_QUERIES["judgements"], {"iteration": iteration, "threshold": rule.threshold})
    else:  # scored again
        own = f"FROM scores WHERE iteration = {iteration} AND stage = 'score'"
        connection.execute(f"CREATE TEMP TABLE judgements AS {own}")
    training_stores.register_people(connection, people)
    changed = (_QUERIES["changed_judgements"], _QUERIES["changed_verdicts"])
    return tuple(connection.execute(sql).fetchall()[0][0] for sql in changed)


def _create_broken(connection: duckdb.DuckDBPyConnection, iteration: int) -> None:
    names = [one.name for one in contracts.SCORE_CONTRACTS]
    broken = _QUERIES["broken"].format(broken_scores=contracts.broken_scores_sql())
    connection.execute(broken, {"iteration": iteration, "anew": names})
    connection.execute(_QUERIES["orphans"], {"iteration": iteration})


def compare_routes(
    ws: Workspace, connection: duckdb.DuckDBPyConnection, iteration: int, scores: int, verdicts: int
) -> RouteDifference:
    """Compare the stored routes of `iteration` with the new ones, the table `decided` of `connection`.

    scores: number of score rows that changed. verdicts: number of scores whose value or success changed. Both go into
    the result as they are. Raises DataError for damaged routes, and as `find_stale_stages` and `run_query`;
    duckdb.Error for a damaged file that `connection` reads.
    """
    before = partitions.read_partition(ws, "routes", iteration, training_stores.ROUTE_STAGE)
    connection.register("routes_before", before)
    moved = database.query_rows(connection, _QUERIES["moved_routes"])
    ((routes,),) = connection.execute(_QUERIES["changed_routes"]).fetchall()
    changed = tuple(database.query_rows(connection, _QUERIES["changed_v"]))
    built = training_stores.count_routed(connection)
    stale = find_stale_stages(ws, iteration) if moved else ()
    return RouteDifference(iteration, tuple(moved), built.routed, scores, routes, verdicts, stale, changed)


def _write_stores(
    ws: Workspace,
    connection: duckdb.DuckDBPyConnection,
    staged: Workspace,
    iteration: int,
    settings: Settings,
    *,
    scores: bool,
) -> None:
    """Write the stores, lineage and metrics that follow from `decided` to `staged`; scores: write `judgements` too."""
    if ws.partition("trajectory_hashes", iteration, training_stores.ROUTE_STAGE).is_dir():
        near_duplicates.weigh_duplicates(
            ws, iteration, STAGE.partitions(), connection, settings.routing, staged, again=True
        )
    else:
        connection.execute("CREATE TABLE weights (trajectory_id VARCHAR, weight DOUBLE)")
    stores = training_stores.training_stores_sql(iteration)
    stores.pop("lineage")
    training_stores.write_training_stores(connection, staged, iteration, stores)
    columns = ", ".join(f'"{name}"' for name in TABLES["scores"].names)
    if scores:
        with partitions.open_partition_writer(staged, "scores", iteration, "score") as writer:
            writer.write_query(connection, _QUERIES["scores_of_all_versions"].format(columns=columns))
    write_decision_lineage(ws, connection, staged, iteration)
    write_decision_metrics(ws, connection, staged, iteration, settings)


def write_decision_lineage(
    ws: Workspace,
    connection: duckdb.DuckDBPyConnection,
    staged: Workspace,
    iteration: int,
    further: Iterable[lineage.Row] = (),
) -> None:
    """Write the lineage of the stores' new version to `staged`, beside hard links to the files of earlier versions.

    connection: with the table `decided`. further: more rows. Raises DataError for a damaged list of partitions, or
    where another process has been writing the partition for ten minutes; OSError as `link_partition_files`;
    duckdb.Error for a damaged file that `connection` reads; DiskFull.
    """
    version = routing_decisions.store_version(ws, iteration) + 1
    with partitions.open_partition_writer(staged, "lineage", iteration, training_stores.ROUTE_STAGE) as writer:
        partitions.link_partition_files(ws, writer, "lineage", iteration, training_stores.ROUTE_STAGE)
        links = lineage.rerouted_links_sql(iteration, version, training_stores.DESTINATIONS)
        writer.write_query(connection, links)
        writer.write(further)


def write_decision_metrics(
    ws: Workspace, connection: duckdb.DuckDBPyConnection, staged: Workspace, iteration: int, settings: Settings
) -> None:
    """Write the metrics of the stages `score` and `route` to `staged`, with those that follow from the decision anew.

    Other metrics, such as seconds, stay. connection: with the table `decided`. settings: the iteration's. Raises
    DataError as `read_partition` and `write_partition`, duckdb.Error for a damaged file that `connection` reads,
    DiskFull.
    """
    verdicts = connection.execute(_QUERIES["rollout_verdicts"], {"iteration": iteration}).fetchall()
    domains, group_size = settings.synthesis.domains, settings.rl.group_size
    fresh = {
        "score": score.build_rollout_metrics(verdicts, domains, group_size),
        "route": training_stores.count_routed(connection).metrics,
    }
    for stage in ("score", "route"):
        if not ws.partition("metrics", iteration, stage).is_dir():
            continue
        rows = partitions.read_partition(ws, "metrics", iteration, stage).to_pylist()
        kept = [row for row in rows if row["name"] not in {one["name"] for one in fresh[stage]}]
        rows = [*kept, *({"step": 0, **one} for one in fresh[stage])]
        partitions.write_partition(staged, "metrics", iteration, stage, rows)
