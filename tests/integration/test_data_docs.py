"""A page of Data Docs that cannot be written is told, and stops nothing."""

from __future__ import annotations

import subprocess

import pytest

from flywheel.config.workspace import Workspace
from flywheel.store.routing import contracts
from flywheel.store.routing.contracts import data_docs_process, write_data_docs


def test_a_page_that_cannot_be_written_stops_nothing(tmp_path, caplog):
    (tmp_path / "report").write_text("in the way")
    found = contracts.ContractResult(contracts.TRAJECTORY_CONTRACTS[0], 12, 1)
    assert not write_data_docs(Workspace(tmp_path), 1, [found])
    assert "Data Docs are not written" in caplog.text


@pytest.mark.exhaustive
@pytest.mark.parametrize("killed", [False, True])
def test_a_page_whose_process_fails_is_told_and_stops_nothing(tmp_path, caplog, monkeypatch, killed):
    (tmp_path / "report").write_text("in the way")
    started, real = [], subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **more: started.append(real(*a, **more)) or started[-1])
    with data_docs_process(Workspace(tmp_path), 1) as show:
        if killed:
            started[0].kill()
            started[0].wait()
        show([contracts.ContractResult(contracts.TRAJECTORY_CONTRACTS[0], 12, 1)])
    assert f"their process ended with {-9 if killed else 1}" in caplog.text
