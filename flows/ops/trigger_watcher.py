"""Start runs that new data trigger, and restart runs whose process died."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.states import Scheduled

from flows.notifications import notify
from flows.ops.deployments import has_other_workers
from flywheel.config import OperationsSettings, Settings, run_lock
from flywheel.config.workspace import Workspace
from flywheel.pipeline import iterations
from flywheel.utils.progress import announce
from tasks import run_history

_DEAD_S = 30.0  # a run that says Running and whose workspace nobody has held for so long has no process
_DIED_S = 10.0
_FIRST_WAIT_S = 10
_RESTART_TAG = "restart:"


class TriggerWatcher:
    """Start due runs of one workspace, and restart dead ones. deployments: ids by name, set anew by whoever deploys."""

    def __init__(self, ws: Workspace, deployments: Mapping[str, UUID]) -> None:
        self._ws, self.deployments = ws, deployments
        self._begun: set[str] = set()
        self._seen: set[UUID] = set()  # dead runs that were dealt with
        self._free_since: float | None = None
        self._looked = float("-inf")

    @cached_property
    def _client(self) -> SyncPrefectClient:
        """Open one client for all calls: each new one reads certificates, which takes a tenth of a second of a core."""
        return get_client(sync_client=True).__enter__()

    def check(self, settings: Settings) -> bool:
        """Start due runs, and look for dead ones every ten seconds. Call it each second.

        settings: the workspace's. Returns whether a run was requested that begins now. Raises as
        `iterations.due_runs`, httpx.HTTPError where Prefect's server does not answer.
        """
        begun = self.start_due_runs(settings)
        if time.monotonic() - self._looked >= _DIED_S:
            self.restart_dead_runs(settings.operations)
            self._looked = time.monotonic()
        return bool(begun)

    def start_due_runs(self, settings: Settings) -> list[str]:
        """Start each due run once, however often this is called; return the reasons of those that this call started.

        settings: the workspace's. Raises as `check`.
        """
        found = [one for one in iterations.due_runs(self._ws, settings) if one.key not in self._begun]
        if not found:
            return []
        for one in found:
            name = iterations.INGEST if one.parameters["until"] == iterations.INGEST else "iteration"
            self._client.create_flow_run_from_deployment(
                self.deployments[name], parameters=one.parameters, idempotency_key=one.key, tags=self._tags()
            )
            self._begun.add(one.key)
            announce("watch", f"{one.why}: {name} begins")
        return [one.why for one in found]

    def restart_dead_runs(self, rules: OperationsSettings) -> None:
        """Restart the newest run of each deployment where it died, `operations.restarts` times, and notify people.

        It begins after 10 seconds, then twice as late each time. rules: block `operations`. Raises httpx.HTTPError
        where Prefect's server does not answer.
        """
        self._mark_runs_of_dead_workers()
        for name, deployment in self.deployments.items():
            run = _newest_run(self._client, deployment)
            if run is None or run.state_type != StateType.CRASHED or run.id in self._seen:
                continue
            self._seen.add(run.id)
            before = max(
                (int(tag.removeprefix(_RESTART_TAG)) for tag in run.tags if tag.startswith(_RESTART_TAG)), default=0
            )
            if before >= rules.restarts:
                notify(self._ws, rules, "crashed", f"{run.name} died again and is left: {_state_message(run)}")
                continue
            now = datetime.now(UTC)
            at = now + timedelta(seconds=_FIRST_WAIT_S * 2**before)
            again = self._client.create_flow_run_from_deployment(
                deployment,
                parameters=run.parameters,
                idempotency_key=f"again:{run.id}",
                tags=[*self._tags(), f"{_RESTART_TAG}{before + 1}"],
                state=Scheduled(scheduled_time=at),
            )
            if again.created and again.created >= now:  # else a watcher before this one did it
                notify(self._ws, rules, "crashed", f"{run.name} died ({_state_message(run)}); it is begun again")
                announce("watch", f"{name} is begun again: {run.name} died")

    def mark_dead_runs(self) -> None:
        """Set runs of killed processes, which are still Running in Prefect and would keep the next one out, to Crashed.

        Call it where no worker of this machine is at work. Raises as `has_other_workers` and `mark_killed_runs`.
        """
        if not run_lock.is_workspace_busy(self._ws):
            others = has_other_workers(self._ws, self._client)  # which may be about to begin what is pending
            run_history.mark_killed_runs(self._ws, worker=others, client=self._client)

    def _mark_runs_of_dead_workers(self) -> None:
        """Set to Crashed runs that died with their worker, which nobody told the server. The lock is only tested, not
        held: a run that is about to take it must not be skipped."""
        if run_lock.is_workspace_busy(self._ws):
            self._free_since = None
            return
        now = time.monotonic()
        self._free_since = now if self._free_since is None else self._free_since
        if now - self._free_since >= _DEAD_S:
            self._free_since = now  # look again after as long a time
            run_history.mark_killed_runs(self._ws, older_than_s=_DEAD_S, client=self._client)

    def _tags(self) -> list[str]:
        return [run_history.workspace_tag(self._ws)]


def _newest_run(client: SyncPrefectClient, deployment: UUID) -> FlowRun | None:
    """Return the deployment's newest run that began: none that is scheduled, was skipped or was cancelled."""
    begun = FlowRunFilterState(type=FlowRunFilterStateType(not_any_=[StateType.SCHEDULED, StateType.CANCELLED]))
    found = client.read_flow_runs(
        flow_run_filter=FlowRunFilter(state=begun),
        deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployment])),
        sort=FlowRunSort.START_TIME_DESC,
        limit=1,
    )
    return found[0] if found else None


def _state_message(run: FlowRun) -> str:
    return (run.state.message if run.state else None) or "without a word"
