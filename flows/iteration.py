"""An iteration of the flywheel (section 2.3), whole: lock, beginning, the stages in their order, end.

When a stage runs is decided in `flows/stages.py`. `flywheel run` calls an iteration, and so does a worker told by a
schedule or a person.
"""

from __future__ import annotations

import contextlib
from typing import Any

import httpx
from prefect import flow, tags
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run
from prefect.states import Completed, State

from flows.alone import alone, unwatched
from flows.notify import notify
from flows.stages import Stages
from flywheel import cluster, due, identity, turns
from flywheel import settings as parameters
from flywheel.files import write_json
from flywheel.progress import tell
from flywheel.report import page
from flywheel.settings import Operations, Settings
from flywheel.stages import ingest
from flywheel.stages.base import Context, clear_staging, run_stage
from flywheel.store import closed, frozen, git, manifest, pipeline, remote, versioning
from flywheel.workspace import Workspace, label
from tasks import history
from tasks import tags as named
from tasks.stages import publish_report


@flow(name="iteration", flow_run_name="iteration")
def iteration(
    workspace: str, number: int | None = None, settings: dict[str, Any] | None = None, until: str | None = None
) -> State | None:
    """Turn the flywheel once: ingest, synthesize; rollout, score, route; ct, sft, rl (one a domain), merge; evaluate,
    promote. Then report, tag and copy to the remote.

    Where it was stopped it goes on: what is finished is passed over. Two never work in one workspace: the second one is
    skipped, which its state says. A deployed run that fails says why in one line, its state's.

    Args:
        workspace: Its folder.
        number: The iteration; left out, the one that is not complete, else the next.
        settings: Parameters for an iteration that is begun now, by their dotted names, such as {"rollout.samples": 8}.
        until: The stage after which it waits, such as ingest; left out, it goes on to its end.
    """
    return alone(
        workspace, lambda ws, rules: _looked_at(ws, rules, number, settings or {}, until), comes_again=until is None
    )


def _looked_at(
    ws: Workspace, rules: Operations, number: int | None, overrides: dict[str, Any], until: str | None
) -> State | None:
    if unwatched():
        due.stop(ws, rules)
    return _turn(ws, number, overrides, until)


def _turn(ws: Workspace, number: int | None, overrides: dict[str, Any], until: str | None) -> State | None:
    chosen = parameters.load(ws.params, overrides)
    turns.mend(ws)
    k = turns.plan(ws, chosen, 1 if number is None else None, number)[0]
    if turns.complete(ws, k):
        return Completed(message=f"iteration {label(k)} is complete: nothing to do")
    begun = ws.frozen_params(k).exists()
    own = frozen.load(ws, k) if begun else chosen
    pipeline.until(until, list(own.synthesis.domains))  # refused before it begins
    if until == due.INGEST and not begun and (lacking := due.recordings_lacking(ws, chosen)):
        return Completed(name="NothingToDo", message=f"{lacking} recordings are lacking for iteration {label(k)}")
    turns.look(ws, chosen, k)
    turns.found(ws, chosen)
    with cluster.open_cluster(ws, own.model_copy(update={"cluster": chosen.cluster})):
        return _stages_and_end(ws, chosen, k, until)


def _stages_and_end(ws: Workspace, chosen: Settings, k: int, until: str | None) -> State | None:
    rules = chosen.operations
    history.mark_killed_runs(ws)
    _begin(ws, chosen, k)
    try:
        with frozen.named(ws, k), tags(*named.iteration(ws, k)):
            _stages(ws, chosen, k, until)
        if until:
            _keep_history(ws, k)
            return Completed(message=f"iteration {label(k)} waits after {until}")
        _close(ws, chosen, k)
    except BaseException as error:  # `flywheel history` says why
        if not isinstance(error, httpx.TransportError):
            with contextlib.suppress(httpx.HTTPError):
                _keep_history(ws, k, error=str(error) or type(error).__name__)
        raise
    notify(ws, rules, "done", _summary(ws, k))
    return None


def _stages(ws: Workspace, chosen: Settings, k: int, until: str | None) -> None:
    Stages(ws, k, chosen).run(until)
    if until is None:
        with named.none():
            publish_report(Context.open(ws, k, "report", run_id=flow_run.id or ""))


def _keep_history(ws: Workspace, k: int, error: str = "") -> None:
    """What Prefect knows of the turn, until it is a table: this run as it is about to end."""
    write_json(ws.run_history(k), history.runs_of(ws, k, ends=flow_run.id, error=error))


def _summary(ws: Workspace, k: int) -> str:
    """In a line, for who is told."""
    promoted = manifest.read_promotion(ws, k)
    return f"iteration {label(k)} is done; promoted: {'yes' if promoted['promoted'] else 'no'}, {promoted['reason']}"


def _begin(ws: Workspace, settings: Settings, k: int) -> None:
    """Give an iteration its frozen parameters and its place in DVC's index, nothing where it has them; its name and
    tags to the run."""
    versioning.prepare(ws)
    remote.name(ws, settings.versioning.remote)
    if not ws.frozen_params(k).exists():
        identity.begin_turn(ws, k)
    later = ingest.later(ws, settings, k)
    own = versioning.add_iteration(ws, k, settings, later)
    if own.model_copy(update={"operations": settings.operations}) != settings:
        where = ws.relative(ws.frozen_params(k))
        tell("run", f"iteration {label(k)} goes on with the parameters it began with ({where})")
    with get_client(sync_client=True) as client:
        tagged = sorted({*flow_run.tags, *named.iteration(ws, k)})
        client.update_flow_run(flow_run.id, name=f"iteration {label(k)}", tags=tagged)


def _close(ws: Workspace, settings: Settings, k: int) -> None:
    """After the stages: the run history as Parquet, the report, and git where the workspace is flywheel's own."""
    write_json(ws.closing(k), flow_run.id)
    _keep_history(ws, k)
    ctx = Context.open(ws, k, "runs")
    run_stage(pipeline.get("runs"), ctx)
    versioning.commit(ws, "runs", k)
    clear_staging(ctx)
    closed.bring_up_to_date(ws)
    page.build(ws)
    if settings.versioning.git:
        git.tag(ws, k)
    remote.push(ws, settings.versioning.remote)
    ws.closing(k).unlink()
