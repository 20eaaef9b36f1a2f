"""Report the state of a workspace (`flywheel status`); damage is shown with its repair and hides nothing else."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from flywheel.config import run_lock
from flywheel.config.run_lock import RunAtWork, StageAtWork, format_moment
from flywheel.config.workspace import Workspace, iteration_label
from flywheel.store import partitions
from flywheel.store.catalog import database, run_history
from flywheel.store.versioning import backup, dvc_files, git_tags, stage_records
from flywheel.utils.errors import BadInput, DataError, FlywheelError
from flywheel.utils.progress import format_duration

_SHOWN = 10


@dataclass(frozen=True)
class WorkStatus:
    """Hold how far the run at work is, and the estimate of what is left.

    run: what it is doing. recorded, stages: how many stages of its iteration are recorded, and how many there are.
    usual: seconds that each stage usually takes, by name. left: estimated seconds left of each stage at work, by name,
    where known. seconds_left: of the whole iteration; None where a stage to come has never run, or the run waits for
    people.
    """

    run: RunAtWork
    recorded: int
    stages: int
    usual: Mapping[str, float]
    left: Mapping[str, float]
    seconds_left: float | None

    def facts(self) -> dict[str, Any]:
        """Return the fields of the run and these as one JSON object; times are Unix seconds.

        Each of its `stages` gets `usual` and `left`; the counts are `recorded_stages`, `all_stages`, `seconds_left`.
        """
        known = [
            {**asdict(one), "usual": self.usual.get(one.stage), "left": self.left.get(one.stage)}
            for one in self.run.stages
        ]
        counts = {"recorded_stages": self.recorded, "all_stages": self.stages, "seconds_left": self.seconds_left}
        return {**asdict(self.run), "stages": known, **counts}

    def lines(self) -> Iterator[str]:
        """Yield the status as text: a line for the iteration, then one for each stage at work."""
        run = self.run
        if not self.stages:
            yield f"iteration {iteration_label(run.iteration)} is about to begin ({run.by}, process {run.process})"
            return
        left = "" if self.seconds_left is None else f", about {format_duration(self.seconds_left)} left"
        yield (
            f"iteration {iteration_label(run.iteration)} is at work since {format_moment(run.began)} ({run.by}, "
            f"process {run.process}): {self.recorded} of {self.stages} stages are done{left}; {run.how_to_end} ends it"
        )
        for one in (one for one in run.stages if one.ended is None):
            if one.waits_for:
                yield f"  {one.words}: type {one.answer}, or open `flywheel ui`"
                continue
            facts = [f"  {one.words}", f"{one.share:.0%} done"]
            facts += [f"usually {format_duration(self.usual[one.stage])}"] if one.stage in self.usual else []
            left = self.left.get(one.stage)
            facts += [] if left is None else [f"about {format_duration(left)} left" if left else "longer than usual"]
            yield ", ".join(facts) + (f": {one.line}" if one.line and one.line != "begins" else "")


_SHARE_THAT_TELLS = 0.05  # share of a stage done, from which on its own pace counts


def read_work_status(ws: Workspace) -> WorkStatus | None:
    """Read what the workspace's run is doing, and estimate how long it will take; None where no iteration is at work.

    Where the history of earlier iterations is damaged, which other checks report, `usual` is empty. Raises as
    `run_query`, except DataError.
    """
    if (run := run_lock.read_run_at_work(ws)) is None:
        return None
    k, now = run.iteration, time.time()
    usual: dict[str, float] = {}
    with contextlib.suppress(DataError):
        usual = run_history.query_usual_seconds(ws, k)
    begun = dvc_files.dvc_yaml_path(ws, k).exists()
    recorded, names = dvc_files.recorded_stages(ws, k), stage_records.stage_names(ws, k) if begun else ()
    at_work = {one.stage: one for one in run.stages if one.ended is None}
    left = {name: estimate_seconds_left(one, usual.get(name), now) for name, one in at_work.items()}
    waiting = [name for name in names if name not in (*recorded, dvc_files.LAST_STAGE)]  # the last takes no time
    to_come = [left[name] if name in left else usual.get(name) for name in waiting]
    told = {name: seconds for name, seconds in left.items() if seconds is not None}
    total = None if None in to_come or not names else sum(to_come)
    return WorkStatus(run, len(set(names) & set(recorded)), len(names), usual, told, total)


def estimate_seconds_left(stage: StageAtWork, usual: float | None, now: float) -> float | None:
    """Estimate the seconds until a stage ends, from its usual duration and, the more of it is done, its present pace.

    usual: seconds that it usually takes; None where unknown. The pace counts once a twentieth is done. now: Unix time
    in seconds. Returns None where neither is known, and while the stage waits for people.
    """
    if stage.waits_for:
        return None
    took = max(now - stage.began, 0.0)
    by_pace = took * (1 - stage.share) / stage.share if stage.share >= _SHARE_THAT_TELLS else None
    if usual is None or by_pace is None:
        return by_pace if usual is None else max(usual - took, 0.0)
    return stage.share * by_pace + (1 - stage.share) * max(usual - took, 0.0)


@dataclass(frozen=True)
class WorkspaceStatus:
    """Hold the state of a workspace.

    begun: the iterations. looked_at: those whose files were compared with DVC's records. rows: the view `iterations`;
    empty where a file that it reads is damaged, which `fault` then describes. unknown: why `damage`, `changed` and
    `recorded` could not be determined, or "". damage: recorded outputs that differ on disk. changed: stage
    (`sft@004`) -> path -> change, for stages that differ from their record or have none. recorded: recorded stages by
    iteration. work: the run at work; None: there is none. holder: id of the process that holds the workspace's lock,
    a run or another command; None: none does. ways_on: for each incomplete iteration, in words, the commands that can
    follow. repairs: for each stage of `changed`, in words, the commands that deal with it. orphaned: a line for each
    output that no stage of its iteration writes. drawn_for: numbers of the newest training tasks by the reason for
    which they were drawn (`synthesis.refresh`); {} where all came evenly.
    """

    begun: tuple[int, ...]
    looked_at: tuple[int, ...] = ()
    rows: tuple[dict[str, Any], ...] = ()
    fault: str = ""
    unknown: str = ""
    damage: tuple[backup.DamagedOutput, ...] = ()
    changed: dict[str, dict[str, str]] | None = None
    recorded: dict[int, list[str]] | None = None
    work: WorkStatus | None = None
    holder: int | None = None
    ways_on: Mapping[int, str] = field(default_factory=dict)
    repairs: Mapping[str, str] = field(default_factory=dict)
    orphaned: tuple[str, ...] = ()
    drawn_for: Mapping[str, int] = field(default_factory=dict)


def read_workspace_status(ws: Workspace, *, everything: bool = False) -> WorkspaceStatus:
    """Read the state of a workspace, and compare files of the newest iteration with DVC's records; nothing is changed.

    While that iteration is open, files of the one before are compared too. everything: compare all iterations. It needs
    DVC's lock file; where that cannot be written, `unknown` says so. Raises DataError where DVC's file of an iteration
    is lost, there are data but no recorded iteration, or a `pruned.json` is damaged; VersioningError where DVC fails,
    also for a damaged record, or another process holds its lock for five minutes; FlywheelError where git refuses or
    does not answer.
    """
    backup.check_iterations_recorded(ws)
    begun = tuple(stage_records.list_iterations(ws))
    rows, fault, work, drawn_for = (), "", None, {}
    try:
        work = read_work_status(ws)
        rows, drawn_for = partitions.retry_while_replaced(partial(_query_iterations, ws))
    except FlywheelError as error:
        fault = str(error)
    found = WorkspaceStatus(begun, (), rows, fault, changed={}, work=work, holder=run_lock.workspace_holder(ws))
    found = replace(found, drawn_for=drawn_for)
    if not begun:
        return found
    try:
        git_tags.check_line_ends(ws.root)
    except DataError as error:
        return replace(found, unknown=str(error))
    which = begun if everything else tuple(stage_records.active_iterations(ws))
    try:
        asked = stage_records.iterations_to_compare(ws, which)
        damage, changed = tuple(backup.find_damaged_outputs(ws, asked)), stage_records.changed_stages(ws, asked)
    except OSError as error:  # DVC cannot write its lock file
        return replace(found, unknown=f"what changed is not looked at: {error.strerror}: {error.filename}")
    recorded = {k: dvc_files.recorded_stages(ws, k) for k in which}
    orphaned = ((k, path) for k in which for path in stage_records.find_orphaned_outputs(ws, k))
    ways_on = {k: _ways_on(ws, k) for k in which if not dvc_files.is_iteration_complete(ws, k)}
    places = {name: name.partition("@") for name in changed}
    repairs = {name: dvc_files.explain_change_repair(ws, int(k), stage) for name, (stage, _, k) in places.items()}
    more = {"damage": damage, "changed": changed, "recorded": recorded, "ways_on": ways_on, "repairs": repairs}
    more["orphaned"] = tuple(stage_records.orphaned_output_line(ws, k, path) for k, path in orphaned)
    return replace(found, looked_at=which, **more)


def _ways_on(ws: Workspace, iteration: int) -> str:
    """Name, in words, the commands that can follow for an incomplete iteration while nothing is at work."""
    from flywheel.evaluation import promotion_review  # a second to load: only where an iteration is open
    from flywheel.maintenance import rollback

    ways = ["`flywheel run` goes on with it"]
    if iteration in promotion_review.list_pending_reviews(ws) and not promotion_review.read_review(ws, iteration):
        ways.insert(0, f"{promotion_review.review_command(iteration)} decides its promotion")
    with contextlib.suppress(BadInput):
        rollback.plan_discard(ws, iteration)
        ways.append("`flywheel iteration drop` gives it up")
    return ", ".join(ways)


_DRAWN_FOR = """SELECT substr(name, 7) AS reason, value::BIGINT AS tasks FROM metrics
    WHERE stage = 'synthesize' AND starts_with(name, 'tasks_')
        AND iteration = (SELECT max(iteration) FROM metrics WHERE stage = 'synthesize')"""


def _query_iterations(ws: Workspace) -> tuple[tuple[dict[str, Any], ...], dict[str, int]]:
    """Return the rows of the view `iterations`, and why the newest training tasks were drawn."""
    sql = "FROM iterations"
    with database.connect_catalog(ws, reads=f"{sql}; {_DRAWN_FOR}") as connection:
        rows = tuple(database.query_json_rows(connection, sql))
        drawn_for = {row["reason"]: row["tasks"] for row in database.query_rows(connection, _DRAWN_FOR)}
    return rows, drawn_for


def status_lines(status: WorkspaceStatus) -> Iterator[tuple[str, str]]:
    """Yield the report of `flywheel status` as (style, line); a style is a colour's name (cyan, yellow, red), or "".

    status: of `read_workspace_status`. Where its `unknown` says why files could not be compared, no line about files
    follows.
    """
    if status.work:
        yield from (("cyan", line) for line in status.work.lines())
    elif status.holder:
        yield "cyan", f"another flywheel command is at work here (process {status.holder})"
    if status.drawn_for:
        told = ", ".join(f"{n} {reason}" for reason, n in sorted(status.drawn_for.items()))
        yield "", f"the newest training tasks were drawn for: {told} (`synthesis.refresh`)"
    if status.unknown:
        yield "yellow", status.unknown
        return
    yield from _damage_lines(status.damage)
    yield from (("yellow", line) for line in status.orphaned)
    waiting = []
    for name, changes in (status.changed or {}).items():
        stage, _, iteration = name.partition("@")
        if stage not in status.recorded.get(int(iteration), ()):
            waiting.append(int(iteration))
        elif not set(changes) <= {one.path for one in status.damage}:  # damage is listed above
            changed_paths = ", ".join(f"{path} ({change})" for path, change in changes.items())
            repair = status.repairs.get(name, "`flywheel run` does it again")
            yield "yellow", f"{name}: changed since it was recorded: {changed_paths}; {repair}"
    for k in sorted(set(waiting)):
        if status.work and status.work.run.iteration == k:
            continue
        done, ways = len(status.recorded.get(k, ())), status.ways_on.get(k, "`flywheel run` goes on with it")
        yield (
            "yellow",
            f"iteration {iteration_label(k)} is not complete ({done} of {done + waiting.count(k)} stages): {ways}",
        )
    if status.begun and not status.changed and not status.damage:
        yield "", "every stage is recorded in DVC and unchanged"
    if len(status.looked_at) < len(status.begun):
        looked_at = " and ".join(map(iteration_label, status.looked_at))
        yield "", f"looked at is {looked_at}: `flywheel status --all` looks at all"


def _damage_lines(damage: tuple[backup.DamagedOutput, ...]) -> Iterator[tuple[str, str]]:
    if len(damage) > _SHOWN and not any(one.kept == "cache" for one in damage):
        first = f"({damage[0].path}, ...): type {damage[0].repair_command}"
        yield "red", f"{len(damage)} recorded files and folders are not here {first}"
        return
    for one in damage[:_SHOWN]:
        yield "red", f"{one.path} is {one.change} since {one.stage} was recorded: type {one.repair_command}"
    if len(damage) > _SHOWN:
        yield "red", f"and {len(damage) - _SHOWN} more: `dvc checkout --force` brings all of them back"
