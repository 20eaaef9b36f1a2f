"""A page of Data Docs that cannot be written is told, and stops nothing."""

from __future__ import annotations

import subprocess

import pytest

from flywheel.store import contracts, judging
from flywheel.store.expectations import page, write_page
from flywheel.workspace import Workspace


def test_a_page_that_cannot_be_written_stops_nothing(tmp_path, caplog):
    (tmp_path / "report").write_text("in the way")
    found = judging.Judged(contracts.TRAJECTORY[0], 12, 1)
    assert not write_page(Workspace(tmp_path), 1, [found])
    assert "Data Docs are not written" in caplog.text


@pytest.mark.parametrize("killed", [False, True])
def test_a_page_whose_process_fails_is_told_and_stops_nothing(tmp_path, caplog, monkeypatch, killed):
    (tmp_path / "report").write_text("in the way")
    started, real = [], subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **more: started.append(real(*a, **more)) or started[-1])
    with page(Workspace(tmp_path), 1) as show:
        if killed:
            started[0].kill()
            started[0].wait()
        show([judging.Judged(contracts.TRAJECTORY[0], 12, 1)])
    assert f"their process ended with {-9 if killed else 1}" in caplog.text
