"""`flywheel record` without a display: its domain, what it does with an empty recording, and when one is taken in."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime

import numpy as np
import pytest
from click.testing import CliRunner

from flywheel.cli import main, record
from flywheel.config import Settings
from flywheel.recordings import audio
from flywheel.recordings.audio import SAMPLE_RATE
from flywheel.recordings.recorder import microphone, recorder
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
    assert "1 recording comes before it, and an iteration takes in 1 (recording.sessions_per_iteration)" in second
    (ws / "params.yaml").write_text("curation:\n  reviewers: 2\n")
    assert "once it is accepted" in keep(ws, recorded(ws, "third", 1)).output


def test_a_workspace_that_takes_in_no_recordings_says_so(ws):
    (ws / "params.yaml").write_text("recording:\n  sessions_per_iteration: 0\n")
    assert (
        "no iteration takes in recordings: set recording.sessions_per_iteration"
        in keep(ws, recorded(ws, "one", 1)).output
    )


def spoken(ws, name: str, seconds: float):
    """What a killed recorder leaves: clicks at 1 and 2 s, and sound from the beginning on."""
    folder = recorded(ws, name, 2)
    (folder / "end.json").unlink()
    (folder / "about.json").write_text(json.dumps(ABOUT | {"sync_s": 0.0}))
    tone = 9000 * np.sin(np.arange(round(seconds * SAMPLE_RATE)) * 2 * np.pi * 300 / SAMPLE_RATE)
    tone.astype("<i2").tofile(folder / microphone.FILE)
    return folder


def test_a_killed_recording_lasts_as_long_as_its_sound(ws):
    meta = recorder.finish_recording(spoken(ws, "killed", 6.0), ws / "one", done=True)
    assert meta.seconds == pytest.approx(6.0, abs=0.1)
    samples = audio.read_audio(ws / "one" / meta.audio)
    audio.check_audio_length(len(samples) / SAMPLE_RATE, meta.seconds, meta.sync_s, ws)


def test_what_is_said_before_an_action_goes_with_it(ws):
    folder = spoken(ws, "cut", 4.0)
    meta = recorder.finish_recording(folder, ws / "one", done=True, cut=[(1.999, 3.0)])
    samples = audio.read_audio(ws / "one" / meta.audio)
    heard = [abs(samples[round(at * SAMPLE_RATE) :][:400]).max() > 0.1 for at in (0.5, 1.05, 1.3, 1.9, 2.5, 3.3)]
    assert heard == [True, True, False, False, False, True]


def test_a_pause_is_told_while_it_records(tmp_path):
    writer, told = recorder.RecordingWriter(tmp_path, recorder.RecordingOptions("Go.", "ann")), []

    def tell(paused: bool) -> None:
        told.append(paused)
        writer.stats.paused = False
        if not paused:
            writer.stopped.set()

    writer.stats.paused = True
    assert writer.wait(tell=tell) == "it was stopped"
    assert told == [True, False]


def test_what_is_not_decided_on_is_told_how_to_look_through(ws, monkeypatch):
    folder = recorded(ws, "left", 1)

    def interrupt(*asked):
        raise KeyboardInterrupt

    monkeypatch.setattr(record, "_decide", interrupt)
    said = CliRunner().invoke(main, ["record", "--unfinished", str(folder), "-w", str(ws)])
    assert (said.exit_code, folder.is_dir()) == (130, True)
    monkeypatch.setattr(record, "_record", interrupt)
    again = CliRunner().invoke(main, ["record", "Press it again.", "-w", str(ws)])
    for told in (said.output, again.output):
        assert f"flywheel record --unfinished {folder} looks it through" in told


def test_a_recording_that_is_at_work_is_neither_looked_through_nor_told_of(ws, monkeypatch):
    folder = recorded(ws, "going", 1)
    monkeypatch.setattr(record, "_record", lambda *asked: (_ for _ in ()).throw(KeyboardInterrupt))
    with recorder.hold_recording(folder):
        said = CliRunner().invoke(main, ["record", "--unfinished", str(folder), "--yes", "-w", str(ws)])
        other = CliRunner().invoke(main, ["record", "Press it again.", "-w", str(ws)])
    assert (said.exit_code, folder.is_dir()) == (2, True)
    assert "still at work" in said.output
    assert "not decided on" not in other.output
    assert CliRunner().invoke(main, ["record", "--unfinished", str(folder), "--yes", "-w", str(ws)]).exit_code == 0
    assert not folder.exists()


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
