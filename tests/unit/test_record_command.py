"""`flywheel record` without a display: its domain, what it does with an empty recording, and when one is taken in."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner

from flywheel.cli import main, record
from flywheel.config import Settings
from flywheel.utils.errors import BadInput

ABOUT = {
    "instruction": "Press it.",
    "annotator": "ben",
    "level": "expert",
    "domain": "sites",
    "width": 100,
    "height": 100,
    "sync_s": None,
    "started_at": datetime(2026, 1, 1, tzinfo=UTC).isoformat(),
}


@pytest.fixture
def ws(tmp_path):
    (tmp_path / "params.yaml").write_text("recording:\n  sessions_per_iteration: 1\n")
    (tmp_path / "dvc.yaml").touch()
    return tmp_path


def recorded(ws, name: str, clicks: int):
    """What a recorder leaves: one screen, and so many clicks on it."""
    folder = ws / "recordings" / f"{name}.recording"
    (folder / "screens").mkdir(parents=True)
    (folder / "about.json").write_text(json.dumps(ABOUT))
    (folder / "end.json").write_text(json.dumps({"seconds": 9.0}))
    (folder / "screens" / "000000.png").write_bytes(b"png")
    digest = hashlib.sha256(b"png").hexdigest()
    screen = {"screen": 0, "time_s": 0.0, "width": 100, "height": 100, "sha256": digest}
    (folder / "screens.jsonl").write_text(json.dumps(screen) + "\n")
    places = [{"time_s": n + 1, "x": 5, "y": 5, "button": 1} for n in range(clicks)]
    rows = [
        row
        for one in places
        for row in ({**one, "kind": "press", "screen": 0}, {**one, "kind": "release", "time_s": one["time_s"] + 0.1})
    ]
    (folder / "input.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def keep(ws, folder):
    return CliRunner().invoke(main, ["record", "--unfinished", str(folder), "--yes", "-w", str(ws)])


def test_a_recording_without_an_action_is_removed_and_told(ws):
    folder = recorded(ws, "still", 0)
    said = keep(ws, folder)
    assert (said.exit_code, folder.exists(), list((ws / "recordings").iterdir())) == (1, False, [])
    assert "nothing was done in this recording" in said.output


def test_a_folder_that_is_no_recording_stays(ws):
    (ws / "recordings" / "own").mkdir(parents=True)
    (ws / "recordings" / "own" / "letter").touch()
    assert keep(ws, ws / "recordings" / "own").exit_code == 2
    assert (ws / "recordings" / "own" / "letter").exists()


def test_the_last_line_says_when_an_iteration_takes_it_in(ws):
    (ws / "recordings" / "000-bundled").mkdir(parents=True)
    (ws / "recordings" / "000-bundled" / "session.json").write_text("{}")
    first, second = (keep(ws, recorded(ws, name, 1)).output for name in ("first", "second"))
    assert "the next iteration takes it in" in first, "before those of the package"
    assert "1 recordings come before it, and an iteration takes in 1 (recording.sessions_per_iteration)" in second
    (ws / "params.yaml").write_text("curation:\n  reviewers: 2\n")
    assert "once it is accepted" in keep(ws, recorded(ws, "third", 1)).output


def test_a_domain_that_was_not_named_is_one_of_the_workspace(capsys):
    settings = Settings()
    assert record._choose_domain(None, "sites", settings) == "sites"
    assert record._choose_domain(None, "computer", None) == "computer"
    assert capsys.readouterr().out == ""
    assert record._choose_domain(None, "computer", settings) == "games"
    assert "the workspace has no computer; --domain names another: games, sites, control" in capsys.readouterr().out
    assert record._choose_domain("control", "computer", settings) == "control"
    with pytest.raises(BadInput, match="the workspace has no domain computer"):
        record._choose_domain("computer", "sites", settings)
