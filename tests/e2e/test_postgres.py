"""Prefect's server on PostgreSQL: what its variable names is used, or refused in a line; a restart is not noticed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from unittest import mock

import minimal_iterations
import pytest
from postgres import PASSWORD
from processes import PATIENCE_S

from flows.ops.prefect_server import open_prefect_server
from flywheel.store.versioning import stage_records
from flywheel.utils.errors import BadInput

_VARIABLE = "PREFECT_SERVER_DATABASE_CONNECTION_URL"


@pytest.fixture(scope="module")
def served(postgres_server, tmp_path_factory):
    """A workspace whose server works on a database of its own, and this process as its client."""
    ws = minimal_iterations.begun(tmp_path_factory.mktemp("postgres") / "small")
    with mock.patch.dict(os.environ, {_VARIABLE: postgres_server.new("served")}), open_prefect_server(ws):
        from prefect.context import refresh_global_settings_context

        refresh_global_settings_context()
        yield ws
    refresh_global_settings_context()


@contextlib.contextmanager
def named(url: str):
    from prefect.server.database.dependencies import temporary_database_config
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL, temporary_settings

    with temporary_settings({PREFECT_API_DATABASE_CONNECTION_URL: url}), temporary_database_config(None):
        yield


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda url: url.replace(PASSWORD, f"{PASSWORD}-wrong"), "password authentication failed"),
        (lambda url: url.replace("/postgres", "/nowhere"), 'database "nowhere" does not exist'),
        (lambda url: url.replace(url.split("@")[1], "127.0.0.1:1/postgres"), r"call failed .* 127.0.0.1:1/postgres"),
        (lambda url: url.replace("+asyncpg", ""), r"driver postgresql .* such as postgresql\+asyncpg:"),
        (lambda url: url.replace("@127.0.0.1:", "@127.0.0.1:port"), "no address of a database"),
        (lambda url: f"{PASSWORD} in words", "no address of a database"),
    ],
    ids=["password", "database", "port", "driver", "number", "words"],
)
def test_what_cannot_be_used_is_told_in_a_line_without_the_password(postgres_server, change, words):
    from flows.ops import prefect_server_main

    with named(change(postgres_server.url("postgres"))), pytest.raises(BadInput, match=words) as raised:
        prefect_server_main.prepare_database()
    assert _VARIABLE in str(raised.value)
    assert PASSWORD not in str(raised.value)


@pytest.mark.smoke
def test_one_who_may_make_no_tables_is_told(postgres_server):
    from flows.ops import prefect_server_main

    postgres_server.run("create role reader login password 'reads-alone'")
    url = postgres_server.new("not_theirs").replace(f"flywheel:{PASSWORD}", "reader:reads-alone")
    with named(url), pytest.raises(BadInput, match="permission denied"):
        prefect_server_main.prepare_database()


@pytest.mark.parametrize("command", [["run"], ["workspace", "up"]], ids=" ".join)
def test_a_command_ends_before_anything_begins(postgres_server, tmp_path, command):
    ws = minimal_iterations.begun(tmp_path / "small")
    wrong = {**os.environ, _VARIABLE: postgres_server.url("postgres", f"{PASSWORD}-wrong")}
    wrong.pop("PREFECT_API_URL", None)
    flywheel = Path(sys.executable).with_name("flywheel")
    done = subprocess.run(
        [flywheel, *command, "-w", ws.root], env=wrong, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == BadInput.exit_code, done.stderr
    assert "password authentication failed" in done.stderr
    assert stage_records.list_iterations(ws) == []
    logs = [path.read_text(errors="replace") for path in ws.state.rglob("*.log")]
    assert not [text for text in (done.stdout, done.stderr, *logs) if PASSWORD in text]


def test_an_iteration_and_its_history_are_kept_there(postgres_server, served):
    from flows.iteration import iteration
    from flywheel.store.catalog import run_history

    iteration(str(served.root), until="synthesize")
    states = {run["name"]: run["state_name"] for run in postgres_server.run("select * from flow_run", "served")}
    assert states == {"iteration 001": "Completed", "001 ingest": "Completed", "001 synthesize": "Completed"}
    assert not (served.prefect_home / "prefect.db").exists()
    told = {row["stage"]: row["state"] for row in run_history.query_stage_history(served, [1])}
    assert {told["ingest"], told["synthesize"]} == {"Completed"}


def test_a_database_that_is_begun_again_is_not_noticed(postgres_server, served):
    from prefect.client.orchestration import get_client

    found, began = [], threading.Event()

    def ask() -> None:
        with get_client(sync_client=True) as client:
            client.read_work_pools()  # who never had an answer does not ask again
            postgres_server.stop()
            began.set()
            found.extend(client.read_flow_runs())

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    assert began.wait(PATIENCE_S)
    asking.join(1.0)  # it has had its refusal, or is about to
    postgres_server.start()
    asking.join(PATIENCE_S)
    assert not asking.is_alive()
    assert {run.name for run in found} == {"iteration 001", "001 ingest", "001 synthesize"}
