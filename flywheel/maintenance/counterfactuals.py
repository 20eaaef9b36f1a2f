"""Play on from a step of a stored trajectory with one thing changed, and without the change, and compare the outcomes.

Runs of both sides are trajectories in partitions of their own (`stage=counterfactual` of the trajectory's iteration),
which no stage of the pipeline reads: none is routed, trained on, or counted in P(V=1), headroom or held-out success.
The outcome is stored in `iterations/NNN/counterfactuals/KEY.json`. An episode that is over lies in
`.flywheel/counterfactuals` until all are, so that a kill loses and repeats none.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flywheel.agent.grammar import Grammar
from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.envs import registry
from flywheel.envs.base import Task, verdicts_from_rows
from flywheel.envs.registry import EnvProvider, open_environments
from flywheel.envs.tasks.drawing import task_from_row
from flywheel.policy import checkpoint, open_policy
from flywheel.policy.protocol import PolicyBackend
from flywheel.rewards.scorer import ScorerSet, ScoringInput
from flywheel.rollout.counterfactual import (
    CounterfactualChange,
    ReplayedState,
    format_thought,
    parse_changed_action,
    play_counterfactual,
)
from flywheel.rollout.episode import Episode, EpisodeSlots, read_episode, write_episode
from flywheel.store import lineage, partitions, routing_decisions
from flywheel.store.catalog import database
from flywheel.store.images import image_rows
from flywheel.store.schema import (
    COUNTERFACTUAL,
    TABLES,
    Step,
    Trajectory,
    make_trajectory_id,
    record_from_row,
    record_to_row,
)
from flywheel.store.versioning import git_tags, stage_records
from flywheel.utils import progress
from flywheel.utils.confidence_intervals import format_difference, newcombe_paired_interval, wilson_interval
from flywheel.utils.errors import BadInput, DataError
from flywheel.utils.files import write_json

MAX_RUNS = 256  # of a side
_MAX_TEXT = 4000  # characters of what is changed
_FOLDER = "counterfactuals"  # of an iteration, and of `.flywheel`
# A trajectory is appended last, so that none is seen without its steps. By these columns a row is known to be there.
_TABLES = {
    "images": ("sha256",),
    "steps": ("trajectory_id", "step"),
    "scores": ("trajectory_id", "scorer"),
    "lineage": ("child", "parent", "relation"),
    "trajectories": ("trajectory_id",),
}


@dataclass(frozen=True)
class CounterfactualRequest:
    """Hold which step of which stored trajectory is played again, with which change.

    trajectory_id, step: the state before this step (from 0) is restored. change: what is changed. runs: number of
    episodes of each side, with and without the change. seed: of the sampling, of both sides. policy: folder of the
    checkpoint that plays both; "": the one that acted in the trajectory.
    """

    trajectory_id: str
    step: int
    change: CounterfactualChange
    runs: int = 8
    seed: int = 0
    policy: str = ""


@dataclass(frozen=True)
class _Side:
    """Hold one side: what is changed, the model that plays it, its key, and the trajectory_ids of its runs."""

    change: CounterfactualChange
    model: Path
    digest: str
    key: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Counterfactual:
    """Hold a request that was checked and can be played (`prepare_counterfactual`).

    key: the same for the same question, whatever the number of runs. parent: the stored trajectory; steps, iteration,
    task: its own. settings: of its iteration. sides: without and with the change.
    """

    request: CounterfactualRequest
    key: str
    parent: Trajectory
    steps: tuple[Step, ...]
    iteration: int
    task: Task
    settings: Settings
    sides: tuple[_Side, _Side]


def prepare_counterfactual(ws: Workspace, request: CounterfactualRequest) -> Counterfactual:
    """Check that a stored trajectory can be played again from a step with a change, and find what that needs.

    Nothing is written, no environment is opened. request: the trajectory, the step and the change.
    Raises BadInput for a trajectory or step that is not there, a trajectory without stored steps or whose task no
    environment can begin again, a change that cannot be made or changes nothing, a number of runs out of [1, 256], and
    weights that are not here any more; ModelError for a folder that is no checkpoint; DataError for damaged files.
    """
    if not 1 <= request.runs <= MAX_RUNS:
        raise BadInput(f"{request.runs} runs", where="--runs", fix=f"1 to {MAX_RUNS}")
    name, where = request.trajectory_id, f"trajectory {request.trajectory_id[:80]}"
    rows = _query(ws, "FROM trajectories WHERE trajectory_id = $id ORDER BY iteration DESC LIMIT 1", id=name)
    if not rows:
        raise BadInput("it is not here", where=where, fix="the explorer lists all, and `flywheel query`")
    row = rows[0]
    parent, iteration = record_from_row("trajectories", Trajectory, row), row["iteration"]
    steps = _read_steps(ws, name, iteration, row["stage"])
    if not steps:
        raise BadInput("none of its steps is here: they were pruned, or it crashed", where=where)
    if not 0 <= request.step < len(steps):
        raise BadInput(f"it has no step {request.step}", where=where, fix=f"its steps are 0 to {len(steps) - 1}")
    settings = stage_records.load_iteration_params(ws, iteration)
    task = _read_task(ws, parent, where)
    registry.find_backend(task.environment, where=f"{where}, whose task {task.task_id} cannot be begun again")
    _check_change(request.change, steps[request.step], parent, settings)
    model, digest = _find_player(ws, request.policy, parent, where)
    sides = [_make_side(request, CounterfactualChange(), model, digest, parent, iteration)]
    if request.change.kind == "model":
        model = checkpoint.resolve_checkpoint(request.change.value, ws.root)
        checkpoint.check_checkpoint(model)
        digest = checkpoint.checkpoint_digest(model)
    sides.append(_make_side(request, request.change, model, digest, parent, iteration))
    if request.change.kind == "model" and sides[0].digest == digest:
        raise BadInput("it has the weights that play without the change", where=f"--model {request.change.value}")
    key = _hash_key([side.key for side in sides])
    return Counterfactual(request, key, parent, steps, iteration, task, settings, (sides[0], sides[1]))


def _query(ws: Workspace, sql: str, **values: Any) -> list[dict[str, Any]]:
    def once() -> list[dict[str, Any]]:
        with database.connect_catalog(ws, reads=sql) as connection:
            return database.query_rows(connection, sql, values)

    return partitions.retry_while_replaced(once)


def _read_steps(ws: Workspace, name: str, iteration: int, stage: str) -> tuple[Step, ...]:
    if not ws.partition("steps", iteration, stage).is_dir():
        return ()
    files = partitions.partition_files(ws, "steps", iteration, stage)
    found = partitions.iter_matching_rows(ws, "steps", files, "trajectory_id", {name}, TABLES["steps"].names)
    rows = sorted((row for part in found for row in part.to_pylist()), key=lambda row: row["step"])
    return tuple(record_from_row("steps", Step, row) for row in rows)


def _read_task(ws: Workspace, parent: Trajectory, where: str) -> Task:
    rows = _query(ws, "FROM tasks WHERE task_id = $id ORDER BY iteration DESC LIMIT 1", id=parent.task_id)
    if not rows:
        raise BadInput(f"its task {parent.task_id} is not in the table tasks", where=where, fix="choose another run")
    return task_from_row(rows[0])


def _check_change(change: CounterfactualChange, step: Step, parent: Trajectory, settings: Settings) -> None:
    kind, value = change.kind, change.value
    where = f"--{kind}"
    if kind == "nothing":
        raise BadInput("nothing is changed", where="counterfactual", fix="give --action, --thought, or another change")
    if not value.strip() or len(value) > _MAX_TEXT:
        raise BadInput("it is empty" if not value.strip() else f"{len(value)} characters", where=where)
    if kind == "action":
        parse_changed_action(value, settings.policy, Grammar.of_settings(settings))
    if kind == "thought":
        format_thought(value)
        if not settings.policy.holds_form:
            what = "an answer begins with a given thought only where guided decoding constrains it"
            raise BadInput(what, where="--thought", fix="change the action")
    if kind == "temperature":
        try:
            sound = math.isfinite(float(value)) and float(value) >= 0
        except ValueError:
            sound = False
        if not sound or float(value) == settings.rollout.temperature:
            known = f"{settings.rollout.temperature:g} without the change"
            raise BadInput(f"not another temperature: {value}", where=where, fix=f"0 or more; it is {known}")
    unchanged = {"action": step.action, "thought": step.thought, "instruction": parent.instruction}
    if kind in unchanged and value.strip() == (unchanged[kind] or "").strip():
        raise BadInput("that is what it was", where=where, fix="give another one")


def _find_player(ws: Workspace, policy: str, parent: Trajectory, where: str) -> tuple[Path, str]:
    """Return folder and digest of the checkpoint that plays both sides."""
    if policy:
        folder = checkpoint.resolve_checkpoint(policy, ws.root)
        checkpoint.check_checkpoint(folder)
        return folder, checkpoint.checkpoint_digest(folder)
    fix = "name another that plays both sides: --policy models/iteration=NNN/merged"
    if parent.policy_version is None:
        raise BadInput("no model acted in it", where=where, fix=fix)
    for folder in list_model_folders(ws, parent.policy_version):
        if checkpoint.checkpoint_digest(folder) == parent.policy_version:
            return folder, parent.policy_version
    raise BadInput(f"the weights {parent.policy_version[:16]} that acted are not here", where=where, fix=fix)


def list_model_folders(ws: Workspace, digest: str | None = None) -> list[Path]:
    """List the existing folders of checkpoints that the tables `lineage` and `promotions` name, the newest first.

    digest: of the weights that they held when they were recorded; None: all. Raises as `connect_catalog` and
    `query_rows`.
    """
    found = _query(
        ws,
        """SELECT model FROM (
            SELECT iteration, child AS digest, parent AS model FROM lineage WHERE relation = 'weights of'
            UNION ALL SELECT iteration, digest, model FROM promotions)
        WHERE $digest IS NULL OR digest = $digest GROUP BY model ORDER BY max(iteration) DESC, model""",
        digest=digest,
    )
    folders = (ws.resolve(row["model"]) for row in found if "@" not in row["model"])
    return [folder for folder in folders if (folder / "config.json").is_file() or checkpoint.is_adapter(folder)]


def _make_side(
    request: CounterfactualRequest,
    change: CounterfactualChange,
    model: Path,
    digest: str,
    parent: Trajectory,
    iteration: int,
) -> _Side:
    shown = {"kind": change.kind, "value": digest if change.kind == "model" else change.value}
    key = _hash_key([request.trajectory_id, request.step, request.seed, digest, shown])
    names = (make_trajectory_id(iteration, parent.task_id, n, f"{COUNTERFACTUAL}-{key}") for n in range(request.runs))
    return _Side(change, model, digest, key, tuple(names))


def _hash_key(parts: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def run_counterfactual(
    ws: Workspace, asked: Counterfactual, tell: Callable[[int, int], None] = lambda done, total: None
) -> dict[str, Any]:
    """Play the missing episodes with a change and without it, score and store them, and write the outcome.

    Call it under the workspace's lock; after a kill the next call goes on. asked: of `prepare_counterfactual`. tell:
    called with the number of episodes that are done, and of all. Returns what is written to the iteration's
    `counterfactuals/KEY.json`, and committed where `versioning.git` is set: the request (`key`, `trajectory_id`,
    `task_id`, `iteration`, `step`, `change`, `runs`, `seed`, `weights`, `temperature`, `at`), for each of `without` and
    `with` the `trajectories`, `outcomes` (V; None: not judged), `solved`, `judged`, `rate` with `low` and `high`, and
    `crashed`, and the paired `difference` (`value`, `low`, `high`, `pairs`, `gained`, `lost`). Raises StateNotRestored
    where the state cannot be restored, BadInput and ModelError as `open_policy` and `open_environments`, EnvError where
    these do not open, PolicyError where the policy fails, DataError for a damaged file, DiskFull.
    """
    names = [name for side in asked.sides for name in side.names]
    stored = _read_stored(ws, asked.iteration)
    work = ws.state / _FOLDER
    staged = {(side.key, n): _episode_path(work, side, n) for side in asked.sides for n in range(len(side.names))}
    missing = [
        (side, n)
        for side in asked.sides
        for n, name in enumerate(side.names)
        if name not in stored and not staged[side.key, n].is_file()
    ]
    done = len(names) - len(missing)

    def count(_: Episode | None = None) -> None:
        nonlocal done
        done += _ is not None
        tell(done, len(names))
        progress.report_progress(COUNTERFACTUAL, f"{done} of {len(names)} runs")

    count()
    if missing:
        asyncio.run(_play(ws, asked, missing, staged, count))
    new = {path: read_episode(path) for path in dict.fromkeys(staged.values()) if path.is_file()}
    _store(ws, asked, [episode for episode in new.values() if episode.id not in stored])
    result = _describe_request(asked) | _measure(ws, asked)
    path = ws.iteration(asked.iteration) / _FOLDER / f"{asked.key}.json"
    write_json(path, result)
    if asked.settings.versioning.git:
        message = f"Counterfactual of {asked.parent.trajectory_id}, step {asked.request.step}"
        git_tags.commit_to_git(ws.root, message, (ws.relative(path),))
    for path in new:
        path.unlink()
        with contextlib.suppress(OSError):  # of a killed request for more runs some are left, for when it goes on
            path.parent.rmdir()
    return result


def _episode_path(work: Path, side: _Side, run: int) -> Path:
    return work / side.key / f"{run:03d}.zip"


def count_played(ws: Workspace, asked: Counterfactual) -> int:
    """Count the episodes of a counterfactual, with and without the change, that are over, stored or not.

    Raises DataError for a damaged partition.
    """
    stored, work = _read_stored(ws, asked.iteration), ws.state / _FOLDER
    return sum(
        name in stored or _episode_path(work, side, n).is_file()
        for side in asked.sides
        for n, name in enumerate(side.names)
    )


def _read_stored(ws: Workspace, iteration: int) -> set[str]:
    if not ws.partition("trajectories", iteration, COUNTERFACTUAL).is_dir():
        return set()
    rows = partitions.read_partition(ws, "trajectories", iteration, COUNTERFACTUAL, ["trajectory_id"])
    return set(rows["trajectory_id"].to_pylist())


async def _play(
    ws: Workspace,
    asked: Counterfactual,
    missing: Sequence[tuple[_Side, int]],
    staged: Mapping[tuple[str, int], Path],
    count: Callable[[Episode], None],
) -> None:
    """Play runs, those of one model at once, and write each as it ends."""
    settings, task = asked.settings, asked.task
    slots = EpisodeSlots(settings, [task.environment])
    starts = {
        side.key: ReplayedState(
            asked.parent.trajectory_id,
            asked.steps,
            asked.request.step,
            task,
            settings.policy,
            side.change.value if side.change.kind == "action" else None,
        )
        for side in asked.sides
    }

    async def one(side: _Side, run: int, policy: PolicyBackend, environments: EnvProvider) -> None:
        async with slots.acquire(task):
            episode = await play_counterfactual(
                asked.parent,
                side.change,
                run,
                side.names[run],
                starts[side.key],
                task,
                policy,
                environments,
                at=asked.request.step,
                seed=asked.request.seed,
                iteration=asked.iteration,
                settings=settings,
                temperature=settings.rollout.temperature,
            )
        path = staged[side.key, run]
        path.parent.mkdir(parents=True, exist_ok=True)
        write_episode(path, episode, {})
        count(episode)

    async with open_environments(settings, [task], ws.root) as environments:
        for digest in dict.fromkeys(side.digest for side, _ in missing):
            own = [(side, run) for side, run in missing if side.digest == digest]
            policy = open_policy(own[0][0].model, settings.policy)
            try:
                async with asyncio.TaskGroup() as group:
                    for side, run in own:
                        group.create_task(one(side, run, policy, environments))
            except BaseExceptionGroup as several:
                raise several.exceptions[0] from None  # one cause stops the others
            finally:
                await policy.close()


def _store(ws: Workspace, asked: Counterfactual, episodes: Sequence[Episode]) -> None:
    """Score episodes and append them to the iteration's partitions of counterfactual runs."""
    rule = routing_decisions.current_routing_rule(ws, asked.iteration)
    panel = ScorerSet(rule.apply_to(asked.settings))
    scores = []
    for episode in episodes:
        if episode.trajectory.status != "crashed":  # as an evaluation does: no action at all is a failure
            case = ScoringInput(asked.task, episode.trajectory, episode.steps, episode.images)
            scores += [verdict.row(episode.id) for verdict in panel.score_trajectory(case)]
    images = {sha256: png for episode in episodes for sha256, png in episode.images.items()}
    rows: dict[str, Iterable[dict[str, Any]]] = {
        "images": image_rows(images),
        "steps": (record_to_row("steps", step) for episode in episodes for step in episode.steps),
        "scores": scores,
        "lineage": lineage.counterfactual_links(episode.trajectory for episode in episodes),
        "trajectories": (record_to_row("trajectories", episode.trajectory) for episode in episodes),
    }
    for table, key in _TABLES.items():
        _append(ws, table, asked.iteration, key, list(rows[table]))


def _append(ws: Workspace, table: str, iteration: int, key: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    """Append the rows that are not there yet, by the columns `key`."""
    there = ws.partition(table, iteration, COUNTERFACTUAL).is_dir()
    known: set[tuple] = set()
    if there:
        stored = partitions.read_partition(ws, table, iteration, COUNTERFACTUAL, list(key))
        known = set(zip(*(stored[name].to_pylist() for name in key), strict=True))
    new = [row for row in rows if tuple(row[name] for name in key) not in known]
    if there and not new:
        return
    with partitions.open_partition_writer(ws, table, iteration, COUNTERFACTUAL) as writer:
        if there:
            partitions.link_partition_files(ws, writer, table, iteration, COUNTERFACTUAL)
        writer.write(new)


def _describe_request(asked: Counterfactual) -> dict[str, Any]:
    """Describe what was asked, in JSON values."""
    request = asked.request
    return {
        "key": asked.key,
        "trajectory_id": request.trajectory_id,
        "task_id": asked.parent.task_id,
        "iteration": asked.iteration,
        "step": request.step,
        "change": asdict(request.change),
        "runs": request.runs,
        "seed": request.seed,
        "weights": {"without": asked.sides[0].digest, "with": asked.sides[1].digest},
        "temperature": asked.settings.rollout.temperature,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _measure(ws: Workspace, asked: Counterfactual) -> dict[str, Any]:
    """Measure success of both sides, with 95% intervals, and the paired difference. A run whose environment failed
    counts on neither side, and nor does its pair."""
    scores = partitions.read_partition(ws, "scores", asked.iteration, COUNTERFACTUAL).to_pylist()
    rows = partitions.read_partition(
        ws, "trajectories", asked.iteration, COUNTERFACTUAL, ["trajectory_id", "status"]
    ).to_pylist()
    status = {row["trajectory_id"]: row["status"] for row in rows}
    verdicts = verdicts_from_rows(scores)

    def judge(name: str) -> bool | None:
        return verdicts[name].v if name in verdicts else None

    found, outcomes = {}, []
    for name, side in zip(("without", "with"), asked.sides, strict=True):
        judged = [judge(one) for one in side.names]
        solved, n = judged.count(True), len(judged) - judged.count(None)
        low, high = wilson_interval(solved, n)
        crashed = sum(status[one] == "crashed" for one in side.names)
        found[name] = {"trajectories": list(side.names), "outcomes": judged, "solved": solved, "judged": n}
        found[name] |= {"rate": solved / n if n else None, "low": low, "high": high, "crashed": crashed}
        outcomes.append(judged)
    pairs = [(new, old) for old, new in zip(*outcomes, strict=True) if None not in (new, old)]
    gained, lost = pairs.count((True, False)), pairs.count((False, True))
    low, high = newcombe_paired_interval(pairs.count((True, True)), gained, lost, pairs.count((False, False)))
    value = (gained - lost) / len(pairs) if pairs else None
    return found | {
        "difference": {"value": value, "low": low, "high": high, "pairs": len(pairs), "gained": gained, "lost": lost}
    }


def describe_result(found: Mapping[str, Any]) -> list[str]:
    """Describe the outcome that `run_counterfactual` returned in two or three lines: both sides, and the difference."""

    def tell(name: str, words: str) -> str:
        side = found[name]
        rate = "no run was judged" if side["rate"] is None else f"{side['rate']:.2f}"
        crashed = f"; {side['crashed']} crashed, not counted" if side["crashed"] else ""
        counts, interval = f"{side['solved']} of {side['judged']}", f"[{side['low']:.2f}, {side['high']:.2f}]"
        return f"{words}: {counts} succeed, {rate} {interval}{crashed}"

    change, difference = found["change"], found["difference"]
    lines = [tell("without", "without the change"), tell("with", f"with {change['kind']} {change['value'][:60]!r}")]
    if difference["pairs"]:
        told = format_difference(difference["value"], difference["low"], difference["high"])
        pairs = (
            f"{difference['pairs']} pairs of the same seed: {difference['gained']} gained, {difference['lost']} lost"
        )
        lines.append(f"difference: {told} (95%, Newcombe's for pairs; {pairs})")
    return lines


def list_counterfactuals(ws: Workspace, trajectory_id: str | None = None, task_id: str | None = None) -> list[dict]:
    """List the stored outcomes of counterfactuals, as `run_counterfactual` returns them, the newest first.

    trajectory_id, task_id: of the trajectory that was changed; None: of all. Raises DataError for a damaged file.
    """
    found = []
    for path in sorted(ws.root.glob(f"iterations/*/{_FOLDER}/*.json")):
        try:
            one = json.loads(path.read_text(encoding="utf-8"))
            names = one["trajectory_id"], one["task_id"], one["at"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            fix = "restore it from git, or delete it"
            raise DataError(f"not what came of a counterfactual: {error!r}", where=ws.relative(path), fix=fix) from None
        if trajectory_id in (None, names[0]) and task_id in (None, names[1]):
            found.append(one)
    return sorted(found, key=lambda one: one["at"], reverse=True)
