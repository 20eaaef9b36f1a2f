"""An iteration that finds another run at work comes again: an ingest whose schedule meets its own on a minute would
else keep it out for good."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from prefect.client.orchestration import get_client
from prefect.runtime import deployment, flow_run
from prefect.states import Scheduled

_LATER = "later:"  # and how often it has come again
# Schedules are on whole minutes: after another one, an ingest of each minute would be met each time.
_WAIT_S = 50
_TIMES = 10


def again_later() -> str:
    """Called within a deployed run: it has a run to come in its stead, unless it is the last of so many. Returns what
    is to be told of it, to go on with."""
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(flow_run.id)
        times = max((int(tag.removeprefix(_LATER)) for tag in run.tags if tag.startswith(_LATER)), default=0)
        if times == _TIMES:
            return ""
        client.create_flow_run_from_deployment(
            deployment.id,
            parameters=run.parameters,
            idempotency_key=f"later:{run.id}",
            tags=[*(tag for tag in run.tags if not tag.startswith(_LATER)), f"{_LATER}{times + 1}"],
            state=Scheduled(scheduled_time=datetime.now(UTC) + timedelta(seconds=_WAIT_S)),
        )
    return f"; it comes again in {_WAIT_S} s"
