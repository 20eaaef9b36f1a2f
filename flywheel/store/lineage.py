"""Build the rows of the table `lineage`: which artifact came from which, by name.

The kinds and their names: `trajectory` (trajectory_id), `task` (task_id), `run` (Prefect's run id), `import` (data set
and id there), `weights` (the digest in `policy_version`), `checkpoint` (folder relative to the workspace,
`models/iteration=001/sft`; with `@12` its weights after RL's step 12), `dataset` (a store's partition, `sft@001`, and
`sft@001.1` after its first routing decision), `decision` (`decision@001.1`, of `iterations/001/decisions.json`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flywheel.config.workspace import Workspace, iteration_label
from flywheel.store import partitions
from flywheel.store.schema import TABLES, Trajectory

Row = dict[str, Any]


def dataset_name(store: str, iteration: int, version: int = 0) -> str:
    """Return the name in lineage of a store's partition: `dataset_name("sft", 1)` is `sft@001`.

    Trajectories join it and checkpoints train on it. store: `ct` or `sft`; `decision` for a routing decision. version:
    number of the decision that the store follows: 2 gives `sft@001.2`.
    """
    return f"{store}@{iteration_label(iteration)}" + (f".{version}" if version else "")


# Links of a trajectory: SQL of the parent, its kind, relation.
_OF_A_TRAJECTORY = (
    ("task_id", "task", "attempts"),
    ("policy_version", "weights", "acted by"),
    ("run_id", "run", "produced in"),
    ("origin", "import", "imported from"),
    ("if(source = 'augmentation', parent_id, '')", "trajectory", "augmented from"),
)


def routed_links_sql(iteration: int, version: int = 0) -> str:
    """Return SQL of the links from routed trajectories to task, weights, run, data set and store.

    It gives the columns of `lineage`, and reads, when it runs, `trajectory_id`, `task_id`, `policy_version`, `run_id`,
    `origin`, `source` and `parent_id` of the table `incoming`, `trajectory_id` and `destination` of `decided`.
    iteration: whose stores they join. version: of the stores; 0 as first routed.
    """
    links = [
        f"""SELECT trajectory_id AS child, 'trajectory' AS child_kind, {column} AS parent, '{kind}' AS parent_kind,
            '{relation}' AS relation FROM incoming WHERE {column} <> ''"""
        for column, kind, relation in _OF_A_TRAJECTORY
    ]
    return _untimed_links_sql([*links, _holds_links_sql(iteration, version)])


def rerouted_links_sql(iteration: int, version: int, destinations: Iterable[str]) -> str:
    """Return a SELECT of the lineage of stores that were routed again: their trajectories, and the version before.

    version: the new one, from 1. destinations: names of the stores, such as `sft`. It gives the columns of `lineage`,
    and reads, when it runs, `trajectory_id` and `destination` of the table `decided`.
    """
    links = [
        f"""SELECT '{dataset_name(store, iteration, version)}', 'dataset',
            '{dataset_name(store, iteration, version - 1)}', 'dataset', 'decided again from'"""
        for store in destinations
    ]
    return _untimed_links_sql([_holds_links_sql(iteration, version), *links])


def _untimed_links_sql(links: Iterable[str]) -> str:
    return f"SELECT *, CAST(NULL AS BIGINT) AS times FROM ({' UNION ALL '.join(links)}) ORDER BY child, parent"


def _holds_links_sql(iteration: int, version: int) -> str:
    return f"""SELECT destination || '{dataset_name("", iteration, version)}' AS child, 'dataset' AS child_kind,
        trajectory_id AS parent, 'trajectory' AS parent_kind, 'holds' AS relation FROM decided"""


def repaired_links(trajectories: Iterable[str], iteration: int, version: int) -> list[Row]:
    """Build the links from trajectories with a repaired row to the routing decision that repaired it.

    trajectories: their ids. iteration, version: of the decision; versions count from 1. Returns one row of `lineage`
    each, in their order.
    """
    name = dataset_name("decision", iteration, version)
    return [_link(trajectory, "trajectory", name, "decision", "mended by") for trajectory in trajectories]


def counterfactual_links(trajectories: Iterable[Trajectory]) -> list[Row]:
    """Build the links of counterfactual runs, which replay another run from within it, as rows of `lineage`.

    They lead to the run that each began within, its task, and the weights that acted. trajectories: the runs.
    """
    rows = []
    for one in trajectories:
        rows.append(_link(one.trajectory_id, "trajectory", one.parent_id, "trajectory", "counterfactual of"))
        rows.append(_link(one.trajectory_id, "trajectory", one.task_id, "task", "attempts"))
        if one.policy_version:
            rows.append(_link(one.trajectory_id, "trajectory", one.policy_version, "weights", "acted by"))
    return rows


def checkpoint_links(
    checkpoint: str,
    digest: str,
    *,
    parents: Iterable[str] = (),
    datasets: Iterable[str] = (),
    trajectories: Mapping[str, int] | None = None,
    earlier: Mapping[int, str] | None = None,
    restored: Mapping[str, str] | None = None,
    run_id: str = "",
) -> list[Row]:
    """Build the links of a checkpoint, as rows of the table `lineage`.

    checkpoint: folder relative to the workspace. digest: of its weights (`checkpoint_digest`). parents: folders of the
    checkpoints that it began from or merges. datasets: stores that it may have drawn from (`dataset_name`).
    trajectories: where the trainer knows them, those that it was trained on, with the number of samples of each; the
    view `trajectory_lineage` prefers them to `datasets`. earlier: step -> digest of the weights that acted during
    training (RL), which no folder holds. restored: RL's trajectories that began within another -> that one. Of these
    three None is as an empty one. run_id: of the Prefect run that made it; "" if none.
    """
    rows = [_link(digest, "weights", checkpoint, "checkpoint", "weights of")]
    rows += [
        _link(name, "weights", f"{checkpoint}@{step}", "checkpoint", "weights of")
        for step, name in (earlier or {}).items()
        if name != digest
    ]
    rows += [_link(checkpoint, "checkpoint", parent, "checkpoint", "began from") for parent in parents]
    rows += [_link(checkpoint, "checkpoint", name, "dataset", "drew from") for name in datasets]
    rows += [
        _link(checkpoint, "checkpoint", name, "trajectory", "trained on", times)
        for name, times in (trajectories or {}).items()
    ]
    rows += [
        _link(name, "trajectory", parent, "trajectory", "restored from") for name, parent in (restored or {}).items()
    ]
    if run_id:
        rows.append(_link(checkpoint, "checkpoint", run_id, "run", "produced in"))
    return rows


def _link(child: str, child_kind: str, parent: str, parent_kind: str, relation: str, times: int | None = None) -> Row:
    return dict(zip(TABLES["lineage"].names, (child, child_kind, parent, parent_kind, relation, times), strict=True))


def find_weights_names(ws: Workspace, iteration: int, stage: str, checkpoint: str) -> list[str]:
    """Find the digests of a checkpoint's weights in lineage, without reading the weights.

    iteration, stage: which made it. checkpoint: folder relative to the workspace. Returns [] where lineage has none.
    Raises DataError for a partition of lineage that is damaged or lacks files.
    """
    if not ws.partition("lineage", iteration, stage).is_dir():
        return []
    links = partitions.read_partition(ws, "lineage", iteration, stage, ["child", "parent", "relation"]).to_pylist()
    return [link["child"] for link in links if (link["parent"], link["relation"]) == (checkpoint, "weights of")]
