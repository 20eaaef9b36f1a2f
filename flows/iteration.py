"""Run an iteration of the flywheel as a Prefect flow: begin it, run each stage once its inputs are there, close it."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections import Counter
from graphlib import TopologicalSorter
from typing import Any

import httpx
from prefect import flow, tags
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.states import Completed, State

from flows import human_input, stage_run
from flows.notifications import notify
from flows.stage_run import stage_flow
from flows.workspace_lock import is_deployed_run, run_with_workspace_lock
from flywheel import cluster
from flywheel import config as parameters
from flywheel.config import OperationsSettings, Settings, run_lock
from flywheel.config.workspace import Workspace, iteration_label, renew_iteration_run_id
from flywheel.maintenance.rollback import recover_workspace
from flywheel.pipeline import dag, iterations
from flywheel.pipeline.iterations import begin_iteration
from flywheel.pipeline.stage import StageContext, clear_staging, run_stage
from flywheel.pipeline.stages import ingest
from flywheel.store import manifest
from flywheel.store.catalog import compaction
from flywheel.store.versioning import backup, dvc_files, git_tags, stage_records
from flywheel.ui.report import pages
from flywheel.utils.errors import FlywheelError, WorkerLost
from flywheel.utils.files import write_json
from flywheel.utils.progress import announce, report_progress
from tasks import run_history
from tasks.shards import publish_report

_LOOK_S = 1.0  # between looks at stages that are processes of their own
_TOLD = 5  # unused parameters that are named


class StageScheduler:
    """Run the stages of one iteration, each once its inputs are written, `cluster.max_parallel_stages` at once.

    A stage that runs alone runs in this process: a process of its own takes seconds to begin. Parallel stages are
    processes of their own (`flows/stage_run.py`). k: number of the iteration. now: the workspace's settings, whose
    blocks `cluster` and `operations` are used.
    """

    def __init__(self, ws: Workspace, k: int, now: Settings) -> None:
        self._ws, self._k, self._own, self._now = ws, k, stage_records.load_iteration_params(ws, k), now
        self._at_work: list[stage_run.StageProcess] = []
        self._failure: FlywheelError | None = None
        self._lost = Counter[str]()  # how often a stage's process died

    def run(self, until: str | None) -> None:
        """Run the stages up to and including `until`, or all where it is None. Stages done before are skipped.

        Raises the first error of a stage: after it no other stage begins; those that run beside it go on to their end.
        """
        domains = list(self._own.synthesis.domains)
        names = dag.stages_until(until, domains)
        graph = TopologicalSorter(dag.upstream_stages(names, domains))
        graph.prepare()
        ready: list[str] = []
        stage_run.clear_stage_leases(self._ws)
        try:
            while graph.is_active():
                ready = sorted((*ready, *graph.get_ready()), key=names.index)
                if ready and not self._failure and len(self._at_work) < self._now.cluster.max_parallel_stages:
                    name = ready.pop(0)
                    if self._run_or_ask(name, alone=not ready and not self._at_work):
                        graph.done(name)
                elif self._at_work:
                    graph.done(*self._poll_processes())
                else:
                    raise self._failure
        finally:
            self._release_all()

    def _run_or_ask(self, name: str, *, alone: bool) -> bool:
        """Run a stage here and return True, as for one done before; else request its process and return False.

        alone: whether no other stage could run beside it.
        """
        if stage_records.is_stage_done(self._ws, name, self._k):
            report_progress(name, "was done before")
            return True
        longest_s = self._now.operations.stage_timeout_s
        longest_s += self._own.promotion.review_timeout_s if name == "promote" else 0
        longest_s += human_input.route_review_wait_s(self._own.routing, name)
        if alone or self._now.cluster.max_parallel_stages == 1:
            # The iteration has a heartbeat. A stage with one would wait a second at its end for the heartbeat's thread.
            with tags(run_history.stage_tag(name)), temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
                flow = stage_flow.with_options(
                    name=name, flow_run_name=f"{iteration_label(self._k)} {name}", timeout_seconds=longest_s
                )
                flow(str(self._ws.root), self._k, name)
            return True
        self._ask(name, longest_s)
        return False

    def _ask(self, name: str, longest_s: float) -> None:
        self._at_work.append(stage_run.StageProcess(self._ws, self._k, name, self._now.cluster, longest_s))
        announce(name, "is asked for, as a process of its own")

    def _release_all(self) -> None:
        """Release the stages that are at work: there are some where this process is ended by a signal."""
        if self._at_work:
            with get_client(sync_client=True) as client:
                for one in self._at_work:
                    one.release(client)

    def _poll_processes(self) -> list[str]:
        """Wait for a moment, and return the names of the stages that are done since; request lost ones again."""
        time.sleep(_LOOK_S)
        done = []
        with get_client(sync_client=True) as client:
            for one in list(self._at_work):
                try:
                    said, failure = one.poll(client), None
                except FlywheelError as error:
                    said, failure = None, error
                if said is None and failure is None:
                    continue
                self._at_work.remove(one)
                one.release(client)
                if failure is None:
                    report_progress(one.name, f"ended: {said}")
                    done.append(one.name)
                elif self._may_go_on(one.name, failure):
                    self._ask(one.name, one.longest_s)
                else:
                    self._failure = self._failure or failure
        return done

    def _may_go_on(self, name: str, error: FlywheelError) -> bool:
        """Tell whether a failed stage is requested again: one whose process died, `operations.restarts` times."""
        again = isinstance(error, WorkerLost) and not self._failure
        again = again and self._lost[name] < self._now.operations.restarts
        announce(name, f"{error}; it is asked for again" if again else f"failed: {error}")
        self._lost[name] += 1
        return again


@flow(name="iteration", flow_run_name="iteration")
def iteration(
    workspace: str, number: int | None = None, settings: dict[str, Any] | None = None, until: str | None = None
) -> State | None:
    """Run one iteration: every stage from ingest to promote, then report, tag and copy to the remote.

    Stages: ingest, synthesize; rollout, score, route; ct, sft, rl (one a domain), merge; evaluate, promote. An
    iteration that was stopped is resumed: what is finished is skipped. Two runs never work in one workspace: the second
    is skipped, which its state says. A deployed run that fails says why in its state, in one line.

    Args:
        workspace: Folder of the workspace.
        number: The iteration; left out, the one that is not complete, else the next.
        settings: Parameters for an iteration begun now, by their dotted names, such as {"rollout.n_rollouts": 8}.
        until: The stage after which it waits, such as ingest; left out, it goes on to its end.
    """
    return run_with_workspace_lock(
        workspace,
        lambda ws, rules: _run_unless_halted(ws, rules, number, settings or {}, until),
        comes_again=until is None,
    )


def _run_unless_halted(
    ws: Workspace, rules: OperationsSettings, number: int | None, overrides: dict[str, Any], until: str | None
) -> State | None:
    if is_deployed_run():
        iterations.raise_if_halted(ws, rules)
    return _run_iteration(ws, number, overrides, until)


def _run_iteration(ws: Workspace, number: int | None, overrides: dict[str, Any], until: str | None) -> State | None:
    chosen = parameters.load_settings(ws.params, overrides)
    recover_workspace(ws)
    k = iterations.plan_iterations(ws, chosen, 1 if number is None else None, number)[0]
    if iterations.check_iteration_complete(ws, k):
        return Completed(message=f"iteration {iteration_label(k)} is complete: nothing to do")
    begun = ws.frozen_params(k).exists()
    own = stage_records.load_iteration_params(ws, k) if begun else chosen
    dag.stages_until(until, list(own.synthesis.domains))  # raises for an unknown stage
    waits = (
        is_deployed_run() and until == iterations.INGEST and not begun
    )  # a person's command begins with what is there
    if waits and (lacking := iterations.count_missing_recordings(ws, chosen)):
        return Completed(
            name="NothingToDo", message=f"{lacking} recordings are lacking for iteration {iteration_label(k)}"
        )
    iterations.check_iteration(ws, chosen, k)
    iterations.record_base_model(ws, chosen)
    with cluster.open_cluster(ws, own.model_copy(update={"cluster": chosen.cluster})):
        return _run_stages_and_close(ws, chosen, k, until)


def _run_stages_and_close(ws: Workspace, chosen: Settings, k: int, until: str | None) -> State | None:
    rules = chosen.operations
    run_history.mark_killed_runs(ws)
    _begin_iteration(ws, chosen, k)
    run_lock.record_run(ws, k, _begun_by(ws))
    try:
        with stage_records.name_params_file_in_errors(ws, k), tags(*run_history.iteration_run_tags(ws, k)):
            _run_stages(ws, chosen, k, until)
        if until:
            _write_run_history(ws, k)
            return Completed(message=f"iteration {iteration_label(k)} waits after {until}")
        _close_iteration(ws, chosen, k)
    except BaseException as error:  # `flywheel iteration history` says why
        if not isinstance(error, httpx.TransportError):
            with contextlib.suppress(httpx.HTTPError):
                _write_run_history(ws, k, error=str(error) or type(error).__name__)
        raise
    cost, low = _describe_cost(ws, k)
    notify(ws, rules, "done", f"{_summary(ws, k)}; {cost}")
    announce("run", f"iteration {iteration_label(k)} {cost}")
    if low:
        notify(ws, rules, "disk", f"the disk of {ws.root} fills: {cost}")
    return None


def _begun_by(ws: Workspace) -> str:
    if not is_deployed_run():
        return run_lock.RUN_COMMAND
    return run_lock.UP_COMMAND if run_lock.is_supervised(ws) else "a worker of Prefect"


def _run_stages(ws: Workspace, chosen: Settings, k: int, until: str | None) -> None:
    StageScheduler(ws, k, chosen).run(until)
    if until is None:
        with run_history.without_tags():
            publish_report(StageContext.open(ws, k, "report", run_id=flow_run.id or ""))


def _write_run_history(ws: Workspace, k: int, error: str = "") -> None:
    """Store Prefect's record of the iteration's runs until it is a table; the calling run counts as ended."""
    write_json(ws.run_history(k), run_history.read_run_rows(ws, k, ends=flow_run.id, error=error))


def _summary(ws: Workspace, k: int) -> str:
    promoted = manifest.read_promotion(ws, k)
    verdict = f"{'yes' if promoted['promoted'] else 'no'}, {promoted['reason']}"
    return f"iteration {iteration_label(k)} is done; promoted: {verdict}"


def _describe_cost(ws: Workspace, k: int) -> tuple[str, bool]:
    """Describe the disk space that an iteration took and that is free; return also whether under three more fit."""
    stages = dvc_files.read_dvc_lock(dvc_files.dvc_lock_path(ws, k)).values()
    added = sum(out.get("size", 0) for stage in stages for out in stage.get("outs", ()))
    free = shutil.disk_usage(ws.root).free
    return f"added {added / 1e6:,.0f} MB, {free / 1e9:,.1f} GB are free", free < 3 * added


def _begin_iteration(ws: Workspace, settings: Settings, k: int) -> None:
    """Freeze an iteration's parameters and declare its stages to DVC where that is not done; name and tag the run."""
    stage_records.init_dvc_project(ws)
    backup.configure_remote(ws, settings.versioning.remote)
    if not ws.frozen_params(k).exists():
        renew_iteration_run_id(ws, k)
    later = ingest.deferral_rule(ws, settings, k)
    begin_iteration(ws, k, settings, later)
    if unused := [f"{name} {value}" for name, value in iterations.list_unused_settings(ws, k, settings).items()]:
        others = f" and {len(unused) - _TOLD} more" * (len(unused) > _TOLD)
        said = f"goes on with the parameters it began with: {', '.join(unused[:_TOLD])}{others}"
        announce("run", f"iteration {iteration_label(k)} {said} ({ws.relative(ws.frozen_params(k))})")
    with get_client(sync_client=True) as client:
        tagged = sorted({*flow_run.tags, *run_history.iteration_run_tags(ws, k)})
        client.update_flow_run(flow_run.id, name=f"iteration {iteration_label(k)}", tags=tagged)


def _close_iteration(ws: Workspace, settings: Settings, k: int) -> None:
    """End an iteration after its stages: run history as Parquet, compaction, report, git tag, push to the remote."""
    write_json(ws.closing(k), flow_run.id)
    _write_run_history(ws, k)
    ctx = StageContext.open(ws, k, "runs")
    run_stage(dag.find_stage("runs"), ctx)
    stage_records.record_stage(ws, "runs", k)
    clear_staging(ctx)
    compaction.compact_iterations(ws)
    pages.write_report(ws)
    if settings.versioning.git:
        git_tags.tag_iteration(ws, k)
    backup.push_iterations(ws, settings.versioning.remote)
    ws.closing(k).unlink()
