"""A deployment on a server and a pool of one's own, as docs/prefect.md has it typed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import minimal_iterations
import pytest
from processes import PATIENCE_S

from flows import code_version
from flows.ops.prefect_server import open_prefect_server
from flywheel.config import run_lock
from flywheel.store.versioning import stage_records


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A workspace, a server, and this process as its client."""
    ws = minimal_iterations.begun(tmp_path_factory.mktemp("own") / "night")
    with mock.patch.dict(os.environ, PWD=str(ws.root)), open_prefect_server(ws):
        from prefect.context import refresh_global_settings_context

        refresh_global_settings_context()
        yield ws
    refresh_global_settings_context()


def prefect(folder: Path, *words: str, exits: int = 0) -> str:
    command = [Path(sys.executable).with_name("prefect"), *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == exits, done.stdout + done.stderr
    return done.stdout


def test_a_worker_runs_what_was_deployed_and_says_where_it_has_other_code(served):
    from prefect.client.orchestration import get_client

    def ran(*parameters: str):
        """The run that was asked for now, after a worker has looked once."""
        asked = prefect(served.root, "deployment", "run", "iteration/night-process", *parameters)
        prefect(served.root, "worker", "start", "--pool", "ours", "--run-once")
        with get_client(sync_client=True) as client:
            (run,) = [one for one in client.read_flow_runs(limit=50) if str(one.id) in asked]
            return run

    prefect(served.root, "work-pool", "create", "ours", "--type", "process")
    deploy = ("--no-prompt", "deploy", "--name", "night-process", "--pool", "ours")
    prefect(served.root, *deploy)
    refused = prefect(served.root, "deployment", "run", "iteration/night-process", "-p", "number=two", exits=1)
    assert "Validation failed for field 'number'" in refused
    first = ran("-p", "until=ingest")
    assert (first.state_name, first.state.message) == ("Completed", "iteration 001 waits after ingest")
    assert first.deployment_version == code_version.compute_code_version()
    assert stage_records.is_stage_done(served, "ingest", 1)
    wrong = ran("-p", "number=7")
    assert (wrong.state_name, wrong.state.message) == ("Failed", "iteration 7 cannot be next (number); the next is 2")
    prefect(served.root, *deploy, "--version", "0.1.0+000000000000")
    other = ran("-p", "until=synthesize")
    assert other.state_name == "Failed"
    assert "this worker has other code" in other.state.message
    assert "deployment night-process" in other.state.message
    assert not stage_records.is_stage_done(served, "synthesize", 1)
    assert not run_lock.is_workspace_busy(served)
