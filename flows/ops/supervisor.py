"""Supervise Prefect's server, worker and deployments of one workspace (`flywheel workspace up`), until a signal comes.

`python -m flows.ops.supervisor WORKSPACE PORT`. It restarts the server and the worker where they die, and starts runs
that new data trigger or that replace a dead one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import psutil

from flows.notifications import notify
from flows.ops.prefect_server import open_prefect_server
from flows.ops.ui import start_report_server
from flows.ops.worker import run_worker, terminate_run
from flywheel import config
from flywheel.config import Settings, run_lock
from flywheel.config.workspace import Workspace
from flywheel.ui.explorer.app import serve_explorer as explorer
from flywheel.utils.errors import BadInput, FlywheelError, first_line
from flywheel.utils.files import write_json
from flywheel.utils.progress import announce, replace_listener

if TYPE_CHECKING:
    from flows.ops.trigger_watcher import TriggerWatcher

_BEGUN_BY_A_WORKER = "PREFECT__FLOW_RUN_ID"  # environment variable of a run that a worker started
_LOOK_S = 1.0
_PAUSE_S = 10.0  # after an error
_END_S = 60.0
_START_S = 180.0


def start_supervisor(ws: Workspace, port: int) -> dict:
    """Start the supervisor in the background; return its addresses, as `find_supervisor`, once all servers answer.

    It outlives this process, and writes to the workspace's `.flywheel/up.log`. One that runs already stays. port: of
    Prefect's server; the report has the next one, the explorer the one after. Raises BadInput or FlywheelError, with
    the last line of its log, where it ends at once; FlywheelError where it does not answer within three minutes.
    """
    if found := find_supervisor(ws):
        return found
    _note_path(ws).unlink(missing_ok=True)
    log = ws.state / "up.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        keeper = subprocess.Popen(
            [sys.executable, "-P", "-m", "flows.ops.supervisor", str(ws.root), str(port)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if keeper.poll() is not None:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            kind = BadInput if keeper.returncode == BadInput.exit_code else FlywheelError
            raise kind(f"it did not come up: {lines[-1] if lines else 'without a word'}", where=log)
        if found := find_supervisor(ws):
            return found
        time.sleep(0.2)
    keeper.terminate()
    raise FlywheelError(f"it did not come up in {_START_S:g} s", where=log, fix="read its log")


def stop_supervisor(ws: Workspace) -> bool:
    """End the supervisor, and with it server, worker and the current run; return whether one ran.

    Finished parts of the run are kept. Raises FlywheelError where the supervisor does not end within a minute.
    """
    found = find_supervisor(ws)
    if not found:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(found["pid"], signal.SIGTERM)
    deadline = time.monotonic() + _END_S
    while run_lock.is_supervised(ws):
        if time.monotonic() > deadline:
            raise FlywheelError(
                f"process {found['pid']} does not end", where=ws.state / "up.log", fix=f"kill -9 {found['pid']}"
            )
        time.sleep(0.1)
    return True


def find_supervisor(ws: Workspace) -> dict:
    """Find the workspace's supervisor: its `pid`, and the URLs of `prefect`'s pages, the `report` and the `explorer`.

    Returns {} where none is up, or one is still starting.
    """
    if not run_lock.is_supervised(ws):
        return {}
    try:
        return json.loads(_note_path(ws).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # it is starting
        return {}


def supervise(ws: Workspace, port: int) -> None:
    """Run the supervisor in this process until SIGTERM or Ctrl-C, or until the workspace is removed.

    port: of Prefect's server; the report has the next one, the explorer the one after. Raises BadInput where one is
    taken, params.yaml is wrong, or a schedule cannot be read; WorkspaceBusy where another supervisor is up; otherwise
    as `open_prefect_server`. A later error of params.yaml, Prefect or a disk is announced, and tried again.
    """
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    lock = run_lock.supervisor_lock_path(ws)
    alone = run_lock.hold_exclusively(lock, "it is up already", fix="`flywheel workspace down` ends it")
    with (
        alone,
        start_report_server(ws, port + 1) as report,
        explorer(ws, port + 2) as pages,
        open_prefect_server(ws, port) as url,
    ):
        from flows.ops.deployments import deploy_workspace, work_pool_name  # after the server has configured Prefect
        from flows.ops.trigger_watcher import TriggerWatcher

        seen, chosen = ws.params.stat().st_mtime_ns, config.load_settings(ws.params)
        watcher = TriggerWatcher(ws, deploy_workspace(ws, chosen.operations))
        watcher.mark_dead_runs()
        with run_worker(work_pool_name(ws)) as worker, _publish_note(ws, url, report.server_port, pages.url):
            pages.beside.prefect, pages.beside.report = url, f"http://127.0.0.1:{report.server_port}"
            announce("watch", f"up: Prefect at {url}")
            while not over.wait(_LOOK_S) and ws.root.is_dir():
                worker.restart_if_dead()
                try:
                    if (now := ws.params.stat().st_mtime_ns) != seen:
                        chosen = apply_changed_params(ws, chosen, watcher)
                        seen = now
                    if watcher.check(chosen):
                        worker.poll_now()
                except (FlywheelError, httpx.HTTPError, OSError) as error:
                    announce("watch", f"not now: {first_line(str(error))}")
                    over.wait(_PAUSE_S)
        if ws.root.is_dir():
            _terminate_orphan_run(ws)
            watcher.mark_dead_runs()  # what was at work died with the worker


def apply_changed_params(ws: Workspace, before: Settings, watcher: TriggerWatcher) -> Settings:
    """Load params.yaml, deploy its schedules and return its settings; where it is wrong, notify and return `before`.

    watcher: gets the new deployments. Raises httpx.HTTPError where Prefect does not answer.
    """
    from flows.ops.deployments import deploy_workspace

    try:
        chosen = config.load_settings(ws.params)
        watcher.deployments = deploy_workspace(ws, chosen.operations)
    except BadInput as error:
        told = f"params.yaml is wrong, and what it said before holds until it is mended: {error}"
        announce("watch", told)
        notify(ws, before.operations, "params", told)
        return before
    announce("watch", "params.yaml has changed: the schedules are as it says now")
    return chosen


@contextlib.contextmanager
def _publish_note(ws: Workspace, url: str, port: int, explorer: str) -> Iterator[None]:
    """Let others find the supervisor within the block (`find_supervisor`)."""
    report = f"http://127.0.0.1:{port}/{ws.report_page.name}"
    write_json(_note_path(ws), {"pid": os.getpid(), "prefect": url, "report": report, "explorer": explorer})
    try:
        yield
    finally:
        _note_path(ws).unlink(missing_ok=True)


def _terminate_orphan_run(ws: Workspace) -> None:
    """End a run whose worker was killed: it would go on without one. A run that a person typed is left alone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        if (pid := run_lock.workspace_holder(ws)) and _BEGUN_BY_A_WORKER in (run := psutil.Process(pid)).environ():
            terminate_run(run)


def _note_path(ws: Workspace) -> Path:
    return ws.state / "up.json"


def _main(root: str, port: str) -> int:
    def say(stage: str, line: str) -> None:
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {stage}: {line}", flush=True)

    try:
        with replace_listener(say):
            supervise(Workspace.find(root), int(port))
    except FlywheelError as error:
        print(error, flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
