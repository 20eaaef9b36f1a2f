"""The sound of a recorded session in the explorer: a shipped session, its waveform, and what is no sound of it."""

from __future__ import annotations

import json
import shutil

import pytest
import soundfile
from explorer_store import explorer
from explorer_tabs import open_page
from night import by_day
from playwright.sync_api import expect
from synthetic_rows import image_row, step, task, trajectory

from flywheel.config.workspace import Workspace
from flywheel.recordings import audio
from flywheel.store.partitions import write_partition
from flywheel.store.schema import session_trajectory_id
from flywheel.utils.files import write_json

AHEAD_S = 1.5  # of the screen's clock, before the sound's
NAME = "001-shop-ben"


@pytest.fixture
def ws(tmp_path, project) -> Workspace:
    """A workspace that has taken in one shipped session; two of its utterances belong to its first and third step."""
    found = Workspace(tmp_path / "ws")
    shutil.copytree(project / "recordings" / NAME, found.root / "recordings" / NAME)
    chosen = {"id": NAME, "path": f"recordings/{NAME}", "sha256": "0" * 64}
    write_json(found.root / "iterations" / "001" / "sessions.json", {"sessions": [chosen]})
    asked = task("k1", "sites", "shop")
    mine = trajectory(session_trajectory_id(1, "k1", NAME), asked, source="recording", author="human", steps=3)
    played = trajectory("t1", asked)
    first, *_, last = audio.speech_segments(audio.read_audio(found.root / "recordings" / NAME / "speech.opus"))
    said = [
        {"trajectory_id": mine["trajectory_id"], "utterance": n, "step": at, "asr_text": "add it", "text": "I add it."}
        | {"start_s": start + AHEAD_S, "end_s": end + AHEAD_S, "words": [], "alignment_score": 1.0}
        | {"recognizer": "none", "refined_by": "rules", "confidence": 1.0, "low_confidence": False}
        for n, (at, (start, end)) in enumerate(((0, first), (2, last)))
    ]
    write_partition(found, "tasks", 1, "ingest", [asked])
    write_partition(found, "trajectories", 1, "ingest", [mine])
    write_partition(found, "trajectories", 1, "rollout", [played])
    write_partition(found, "steps", 1, "ingest", [step(mine, n, total=3) for n in range(3)])
    write_partition(found, "images", 1, "ingest", [image_row(n) for n in range(3)])
    write_partition(found, "utterances", 1, "ingest", said)
    return found


def test_the_waveform_is_that_of_the_file_and_knows_both_clocks(ws):
    name, path = session_trajectory_id(1, "k1", NAME), ws.root / "recordings" / NAME / "speech.opus"
    with explorer(ws) as (_, client):
        found = client.get(f"/api/trajectories/{name}/waveform").json()
        assert found["seconds"] == pytest.approx(soundfile.info(path).duration, abs=0.01)
        assert found["offset_s"] == AHEAD_S
        assert len(found["peaks"]) <= 1_200
        assert 0.1 < max(found["peaks"]) <= 1.0
        whole = client.get(f"/sound/{name}")
        assert (whole.content, whole.headers["content-type"]) == (path.read_bytes(), "audio/ogg")
        part = client.get(f"/sound/{name}", headers={"range": "bytes=4-9"})
        assert (part.status_code, part.content) == (206, path.read_bytes()[4:10]), (
            "who goes to a place reads from there"
        )


def test_what_has_no_sound_here_says_so(ws):
    name, folder = session_trajectory_id(1, "k1", NAME), ws.root / "recordings" / NAME
    with explorer(ws) as (_, client):

        def told(of: str) -> tuple[int, str]:
            said = client.get(f"/api/trajectories/{of}/waveform")
            assert client.get(f"/sound/{of}").status_code == said.status_code
            return said.status_code, said.json()["error"]

        assert told("t1") == (404, "no sound was recorded with this trajectory")
        assert told("none") == (404, "no sound was recorded with this trajectory")
        folder.rename(ws.root / "elsewhere")
        status, said = told(name)
        assert (status, said.startswith("the recording does not lie here any more")) == (404, True)


@pytest.mark.parametrize("named", by_day(["../../../secret.wav", "/etc/passwd", "session.json", "link.wav"]))
def test_a_session_cannot_name_a_file_outside_of_it(ws, named):
    folder = ws.root / "recordings" / NAME
    soundfile.write(ws.root.parent / "secret.wav", [0.5] * 16_000, 16_000)
    (folder / "link.wav").symlink_to(ws.root.parent / "secret.wav")
    told = json.loads((folder / "session.json").read_text(encoding="utf-8")) | {"audio": named}
    (folder / "session.json").write_text(json.dumps(told), encoding="utf-8")
    with explorer(ws) as (_, client):
        assert client.get(f"/sound/{session_trajectory_id(1, 'k1', NAME)}").status_code == 404


def test_another_sound_in_its_place_is_shown_without_marks_and_a_damaged_one_is_told(ws):
    path = ws.root / "recordings" / NAME / "speech.opus"
    asked = f"/api/trajectories/{session_trajectory_id(1, 'k1', NAME)}/waveform"
    with explorer(ws) as (_, client):
        soundfile.write(path, [0.0, 0.5] * 8_000, 16_000, format="WAV")
        other = client.get(asked).json()
        assert (other["seconds"], other["offset_s"]) == (1.0, None)
        path.write_bytes(path.read_bytes()[:20_000])
        damaged = client.get(asked)
        assert damaged.status_code >= 400
        assert "speech.opus" in damaged.json()["error"]


def test_the_page_draws_it_and_an_utterance_leads_to_its_step(browser, ws):
    name = session_trajectory_id(1, "k1", NAME)
    with explorer(ws) as (server, _):
        tab = open_page(browser, server)
        tab.goto(f"{server.url}/trajectories/{name}?step=1")
        sound = tab.get_by_role("region", name="Sound")
        expect(sound.get_by_text("2 utterances; the microphone's clock is 1.5 s behind the screen's")).to_be_visible()
        marks = sound.locator("[part~=region]")
        expect(marks).to_have_count(2)
        marks.nth(1).click()
        expect(tab.get_by_role("heading", name="Step 2")).to_be_visible()
        expect(tab.get_by_role("button", name="Listen")).to_be_enabled()
        assert tab.faults == []
        tab.context.close()


@pytest.mark.exhaustive
def test_a_trajectory_of_the_model_has_no_place_for_sound(browser, ws):
    write_partition(ws, "steps", 1, "rollout", [step(trajectory("t1", task("k1", "sites", "shop")), 0, total=1)])
    with explorer(ws) as (server, _):
        tab = open_page(browser, server)
        tab.goto(f"{server.url}/trajectories/t1")
        expect(tab.get_by_role("region", name="Steps")).to_be_visible()
        expect(tab.get_by_role("region", name="Sound")).to_have_count(0)
        tab.context.close()
