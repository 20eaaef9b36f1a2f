"""Ingest: shipped sessions become rows of the tables; a damaged one is quarantined with its reason."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import subprocess
import sys
import time

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
from ingesting import ingest_sessions, mark_duplicates
from processes import PATIENCE_S

from flywheel.agent.actions import ParseError
from flywheel.agent.parsing.parser import parse_response
from flywheel.config import PolicySettings, RecordingSettings, Settings, SynthesisSettings
from flywheel.envs.tasks.drawing import make_tasks, task_content, task_from_row
from flywheel.recordings import ingest
from flywheel.recordings.asr.recognizer import Word
from flywheel.recordings.ingest import ingest_session
from flywheel.recordings.session import load_session
from flywheel.rewards.scorers import verifier
from flywheel.store import partitions
from flywheel.store.schema import make_trajectory_id, record_to_row
from flywheel.utils.errors import BadInput

SETTINGS = Settings()
TABLES = {
    "trajectories": "trajectory",
    "steps": "steps",
    "utterances": "thought_rows",
    "events": "event_rows",
    "images": "image_rows",
    "reviews": "review_rows",
    "tasks": "task_row",
}


class FixedRecognizer:
    """Hears `take the tile` in everything: fast, and the same on every machine. confidence: of each word."""

    name = "fixed"
    whole = False

    def __init__(self, confidence: float = 0.9) -> None:
        self.confidence = confidence

    def recognize(self, samples, rate, deadline_s=60.0):
        third = len(samples) / rate / 3
        said = enumerate(("take", "the", "tile"))
        return tuple(Word(word, i * third, (i + 1) * third, self.confidence) for i, word in said)


@pytest.fixture(scope="session")
def recordings(project):
    return project / "recordings"


def _folders(recordings):
    return sorted(path for path in recordings.iterdir() if path.is_dir())


@pytest.fixture
def session(recordings, tmp_path):
    """A copy of a shipped session, to be damaged."""
    return shutil.copytree(recordings / "000-tiles-anna", tmp_path / "000-tiles-anna")


def test_the_shipped_sessions_hold_no_evaluation_task(recordings):
    held_out = {task_content(task) for task in make_tasks(SETTINGS, 0, "eval")}
    worlds, levels = set(), set()
    for folder in _folders(recordings)[:100]:
        loaded = load_session(folder)
        assert loaded.meta.session == folder.name
        assert task_content(loaded.task) not in held_out
        assert verifier.score_final_state(loaded.task, loaded.meta.outcome.state) == loaded.meta.outcome.reward == 1.0
        worlds.add(loaded.task.world)
        levels.add(loaded.meta.level)
    domains = SETTINGS.synthesis.domains
    assert worlds == {world for worlds in domains.values() for world in worlds}
    assert levels == {"expert", "novice"}


def test_a_session_becomes_rows_of_every_table(recordings, ws):
    one = ingest_session(recordings / "000-tiles-anna", FixedRecognizer(), SETTINGS, 3)
    trajectory, steps = one.trajectory, one.steps
    assert trajectory.trajectory_id == make_trajectory_id(3, one.task_row["task_id"], 0, "human-000-tiles-anna")
    assert (trajectory.status, trajectory.source, trajectory.author) == ("completed", "recording", "human")
    assert (trajectory.policy_version, trajectory.steps, trajectory.reward) == ("human", len(steps), 1.0)
    assert verifier.score_final_state(task_from_row(one.task_row), json.loads(trajectory.final_state)) == 1.0
    told = json.loads((recordings / "000-tiles-anna" / "session.json").read_text())
    assert (trajectory.annotator, trajectory.skill) == (told["annotator"], told["level"])
    for step in steps:
        parsed = parse_response(step.raw_text, SETTINGS.policy.coordinates)
        assert not isinstance(parsed.action, ParseError)
        assert parsed.thought == step.thought
        assert step.raw_text.endswith(f"\nAction: {step.action}")
        assert step.token_ids is None
    assert [step.terminated for step in steps] == [False] * (len(steps) - 1) + [True]
    assert {step.image_sha256 for step in steps} == {image["sha256"] for image in one.image_rows}
    # Every utterance belongs to a step, and a step's thought is made of its utterances.
    for thought in one.thought_rows:
        assert thought["text"] == "I take the tile."
        assert thought["text"] in steps[thought["step"]].thought
        assert (thought["recognizer"], thought["refined_by"]) == ("fixed", "rules")
    silent = set(range(len(steps))) - {thought["step"] for thought in one.thought_rows}
    assert all((steps[k].thought == "") == (k in silent) for k in range(len(steps)))
    for table, name in TABLES.items():
        rows = getattr(one, name)
        rows = rows if isinstance(rows, tuple) else (rows,)
        rows = [record_to_row(table, row) if table in ("trajectories", "steps") else row for row in rows]
        assert partitions.write_partition(ws, table, 3, "ingest", rows).rows == len(rows) > 0


def test_clicks_on_nothing_are_slips(recordings):
    """By the truth of the shipped sessions: what is marked was a slip, and most slips are marked."""
    truth = json.loads((recordings / "truth.json").read_text())
    marked, meant = set(), set()
    for name, told in truth.items():
        steps = ingest_session(recordings / name, FixedRecognizer(), SETTINGS, 1).steps
        marked |= {(name, step.step) for step in steps if step.misclick}
        meant |= {(name, step) for step, thought in enumerate(told["thoughts"]) if thought == "Maybe here."}
    assert marked <= meant
    assert len(marked) > len(meant) / 2 > 1


def test_without_names_of_elements_no_click_is_a_slip(recordings, tmp_path):
    """A recorder that names none says nothing of what was hit, and a button that copies changes no screen either."""
    truth = json.loads((recordings / "truth.json").read_text())
    slipped = [name for name, told in truth.items() if "Maybe here." in told["thoughts"]][:6]
    marks = []
    for number, name in enumerate(slipped):
        copied = shutil.copytree(recordings / name, tmp_path / name)
        marks.append([step.misclick for step in ingest_session(copied, FixedRecognizer(), SETTINGS, 1).steps])
        events = [json.loads(line) for line in (copied / "events.jsonl").read_text().splitlines()]
        bare = [event | ({} if event["kind"] == "type" else {"text": ""}) for event in events]
        (copied / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in bare))
        marks[number] = [
            marks[number],
            [s.misclick for s in ingest_session(copied, FixedRecognizer(), SETTINGS, 1).steps],
        ]
    assert any(any(before) for before, _ in marks)
    assert not any(any(after) for _, after in marks)


def test_a_recording_of_a_template_that_is_held_out_is_not_learnt_from(recordings):
    """Else what evaluation calls unseen would have been shown."""
    settings = Settings(synthesis=SynthesisSettings(held_out=["tiles/clear"]))
    shown, other = (
        ingest_session(recordings / name, FixedRecognizer(), settings, 3) for name in ("000-tiles-anna", "001-shop-ben")
    )
    assert shown.trajectory.status == "invalid"
    assert shown.trajectory.error == "tiles/clear is held out for evaluation (synthesis.held_out)"
    assert other.trajectory.status == "completed"


def test_what_was_hardly_understood_is_kept_and_marked_and_is_no_thought_to_learn_from(recordings):
    sure = ingest_session(recordings / "000-tiles-anna", FixedRecognizer(), SETTINGS, 3)
    unsure = ingest_session(recordings / "000-tiles-anna", FixedRecognizer(0.4), SETTINGS, 3)
    assert {(row["low_confidence"], round(row["confidence"], 3)) for row in sure.thought_rows} == {(False, 0.9)}
    assert {(row["low_confidence"], round(row["confidence"], 3)) for row in unsure.thought_rows} == {(True, 0.4)}
    # The rules make as fluent a sentence of it; what is trained on has none of it.
    assert {row["text"] for row in unsure.thought_rows} == {"I take the tile."}
    assert {(step.thought, "tile" in step.raw_text) for step in unsure.steps} == {("", False)}
    assert [step.action for step in unsure.steps] == [step.action for step in sure.steps]
    assert f"{len(unsure.thought_rows)} utterances were hardly understood" in unsure.review_rows[0]["comment"]
    trusting = Settings(recording=RecordingSettings(least_confidence=0.3))
    again = ingest_session(recordings / "000-tiles-anna", FixedRecognizer(0.4), trusting, 3)
    assert again.steps == sure.steps


def _cut(path, keep=0.5):
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])


DAMAGE = {
    "no audio": lambda f: (f / "speech.opus").unlink(),
    "neither Opus, FLAC nor WAV": lambda f: (f / "speech.opus").write_bytes(b"noise"),
    "no events": lambda f: (f / "events.jsonl").unlink(),
    "has no events": lambda f: (f / "events.jsonl").write_text(""),
    "not an event": lambda f: (f / "events.jsonl").write_text('{"time_s": 1'),
    "not in order": lambda f: (f / "events.jsonl").write_text(
        '{"time_s": 2, "kind": "back", "screen": 0}\n{"time_s": 1, "kind": "back", "screen": 0}\n'
    ),
    "screen before event 0 is missing": lambda f: (f / "events.jsonl").write_text(
        '{"time_s": 2, "kind": "back", "screen": 99}\n'
    ),
    "no event is of kind": lambda f: (f / "events.jsonl").write_text('{"time_s": 2, "kind": "wink", "screen": 0}\n'),
    "time_s: Input should be a valid number": lambda f: _time(f, '"5.0"'),
    "time_s: Input should be greater than or equal to 0": lambda f: _time(f, "-2"),
    "time_s stands twice": lambda f: _time(f, '1, "time_s": 2'),
    "screen: Input should be a valid integer": lambda f: (f / "events.jsonl").write_text(
        '{"time_s": 2, "kind": "back", "screen": true}\n'
    ),
    "screen 1 comes twice": lambda f: _rows(f, lambda rows: rows.append(rows[1])),
    "cut off or broken": lambda f: _rows(f, lambda rows: rows[0].update(_named(rows[0]["bytes"][:80]))),
    "the screen is 224 x 224 pixels, and said to be 9 x 224": lambda f: _rows(f, lambda rows: rows[0].update(width=9)),
    "level: Input should be a valid integer": lambda f: _edit(
        f / "session.json", lambda raw: raw["task"].update(level="1")
    ),
    "no world is called 'none'": lambda f: _edit(f / "session.json", lambda raw: raw["task"].update(world="none")),
    "reward: Input should be a valid number": lambda f: _edit(
        f / "session.json", lambda raw: raw["outcome"].update(reward="1.0")
    ),
    "the folder of another": lambda f: _edit(f / "session.json", lambda raw: raw.update(session="b")),
    "no screens": lambda f: (f / "screens.parquet").unlink(),
    "not a whole Parquet file": lambda f: _cut(f / "screens.parquet"),
    "screen 0 is damaged": lambda f: _damage_screen(f / "screens.parquet"),
    "no session.json": lambda f: (f / "session.json").unlink(),
    "session.json does not hold": lambda f: _cut(f / "session.json"),
    "annotator: Field required": lambda f: _edit(f / "session.json", lambda raw: raw.pop("annotator")),
    "not a row of the table tasks": lambda f: _edit(f / "session.json", lambda raw: raw["task"].pop("world")),
}


def _edit(path, change):
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))


def _time(folder, written):
    (folder / "events.jsonl").write_text(f'{{"time_s": {written}, "kind": "back", "screen": 0}}\n')


def _named(data):
    return {"bytes": data, "sha256": hashlib.sha256(data).hexdigest()}


def _rows(folder, change):
    path = folder / "screens.parquet"
    table = pq.read_table(path)
    rows = table.to_pylist()
    change(rows)
    pq.write_table(type(table).from_pylist(rows, schema=table.schema), path)


def _damage_screen(path):
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows[0]["bytes"] = rows[0]["bytes"][:-1] + b"?"
    pq.write_table(type(table).from_pylist(rows, schema=table.schema), path)


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_named_and_quarantined(session, what, ws):
    DAMAGE[what](session)
    one = ingest_session(session, FixedRecognizer(), SETTINGS, 1)
    assert one.trajectory.status == "invalid"
    assert what in one.trajectory.error
    # It says where; the reason stays in the data: no path of this machine in it.
    assert session.name in one.trajectory.error
    assert str(session.parent) not in one.trajectory.error
    assert one.steps == ()
    assert (one.review_rows[0]["decision"], one.review_rows[0]["subject"]) == ("reject", one.trajectory.trajectory_id)
    assert (
        partitions.write_partition(
            ws, "trajectories", 1, "ingest", [record_to_row("trajectories", one.trajectory)]
        ).rows
        == 1
    )
    known = not re.search("session.json|annotator|tasks|level|reward|world", what)
    assert (one.task_row is not None) == known or "world" in what


def test_a_screen_that_is_larger_than_training_takes_is_named_and_quarantined(session):
    accepted = SETTINGS.model_copy(update={"policy": PolicySettings(max_image_side=224)})
    assert ingest_session(session, FixedRecognizer(), accepted, 1).trajectory.status == "completed"
    least = SETTINGS.model_copy(update={"policy": PolicySettings(max_image_side=223)})
    one = ingest_session(session, FixedRecognizer(), least, 1)
    assert (one.trajectory.status, one.steps) == ("invalid", ())
    said = r"the screen is too large: 224 x 224 pixels \(000-tiles-anna/screens\.parquet, screen \w{12}\)"
    assert re.fullmatch(
        said + r"; policy\.max_image_side is 223: raise it, or take smaller screens", one.trajectory.error
    )


def test_separators_in_labels_empty_lines_and_a_byte_order_mark_are_read(session):
    path = session / "events.jsonl"
    lines = path.read_text().splitlines()
    first = json.loads(lines[0]) | {"text": "Price\u2028list\x85\u2029"}
    lines[0] = json.dumps(first, ensure_ascii=False)
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join([*lines, "", " "]).encode())
    meta = session / "session.json"
    meta.write_bytes(b"\xef\xbb\xbf" + meta.read_bytes())
    loaded = load_session(session)
    assert loaded.events[0].text == first["text"]
    assert len(loaded.events) == len(lines)


def test_an_error_that_nobody_foresaw_is_its_own_recordings(session, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("by a\nrecord")

    monkeypatch.setattr(ingest, "align_session", broken)
    one = ingest_session(session, FixedRecognizer(), SETTINGS, 1)
    assert one.trajectory.status == "invalid"
    assert one.trajectory.error.startswith("ZeroDivisionError: by a record (000-tiles-anna)")
    monkeypatch.setattr(ingest, "align_session", lambda *_: (_ for _ in ()).throw(BadInput("of the settings")))
    with pytest.raises(BadInput):
        ingest_session(session, FixedRecognizer(), SETTINGS, 1)


@pytest.mark.exhaustive
def test_processes_agree_with_one_process_and_go_on_past_a_corrupt_session(recordings, tmp_path):
    names = ["003-shapes-dana", "012-shapes-carl"]
    folders = [shutil.copytree(recordings / name, tmp_path / name) for name in names]
    _cut(folders[0] / "screens.parquet")
    together = ingest_sessions(folders, SETTINGS, 1)
    alone = ingest_sessions(folders, Settings(recording=RecordingSettings(processes=1)), 1)
    assert [one.session for one in together] == names
    assert [one.trajectory.status for one in together] == ["invalid", "completed"]

    def stable(one):
        return one.trajectory, one.steps, one.thought_rows, one.event_rows

    assert [stable(one) for one in together] == [stable(one) for one in alone]


def test_a_recognizer_is_opened_once_for_several_lots(recordings, monkeypatch):
    opened = []
    monkeypatch.setattr(ingest, "open_recognizer", lambda settings: opened.append(settings) or FixedRecognizer())
    with contextlib.closing(ingest.AsrWorkerPool(Settings(recording=RecordingSettings(processes=1)))) as listeners:
        lots = [listeners.ingest([recordings / name], 1) for name in ("000-tiles-anna", "003-shapes-dana")]
    assert [one.session for lot in lots for one in lot] == ["000-tiles-anna", "003-shapes-dana"]
    assert len(opened) == 1


@pytest.mark.exhaustive
def test_a_killed_run_leaves_none_of_its_processes(recordings):
    program = (
        "from pathlib import Path\n"
        "from flywheel.recordings.ingest import AsrWorkerPool\n"
        "from flywheel.config import Settings\n"
        "if __name__ == '__main__':\n"
        f"    AsrWorkerPool(Settings()).ingest(list(map(Path, {list(map(str, _folders(recordings)))!r})), 1)\n"
    )
    run = subprocess.Popen([sys.executable, "-c", program])
    try:
        deadline, listening = time.monotonic() + PATIENCE_S, []
        while len(listening) < 2:  # both have opened their recognizer
            assert run.poll() is None
            assert time.monotonic() < deadline
            listening = [one for one in psutil.Process(run.pid).children() if _listens(one)]
    finally:
        run.kill()
        run.wait()
    _, left = psutil.wait_procs(listening, timeout=PATIENCE_S)
    for one in left:
        one.kill()
    assert left == []


def _listens(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return any("pocketsphinx" in one.path for one in process.memory_maps())
    return False


@pytest.mark.exhaustive
def test_a_missing_model_is_the_users_error_in_worker_processes_too(recordings, tmp_path):
    settings = Settings(recording=RecordingSettings(recognizer="whisper", whisper_model=str(tmp_path / "none.pt")))
    with pytest.raises(BadInput, match="no such Whisper checkpoint"):
        ingest_sessions(_folders(recordings)[:2], settings, 1)


def test_duplicates_are_of_earlier_ones_and_the_first_stands(recordings):
    one = ingest_session(recordings / "000-tiles-anna", FixedRecognizer(), SETTINGS, 1)
    first, second = mark_duplicates([one, one], {})
    assert first == one
    assert (second.trajectory.status, second.trajectory.error) == ("invalid", "duplicate of 000-tiles-anna")
    (again,) = mark_duplicates([one], {one.fingerprint: "an-earlier-one"})
    assert again.trajectory.error == "duplicate of an-earlier-one"
    assert again.review_rows[0]["decision"] == "reject"


def test_a_recording_without_speech_has_steps_and_no_thoughts(session):
    import soundfile

    room = np.random.default_rng(0).normal(0, 5e-4, round(14.4 * 16_000))
    soundfile.write(session / "speech.opus", room, 16_000, format="OGG", subtype="OPUS")
    _edit(session / "session.json", lambda raw: raw.pop("audio_sha256"))
    one = ingest_session(session, FixedRecognizer(), SETTINGS, 1)
    assert one.trajectory.status == "completed"
    assert one.thought_rows == ()
    assert {step.thought for step in one.steps} == {""}


HANG = """
import time
from flywheel.recordings import ingest

class Hanging:
    name = "hanging"
    whole = False
    def recognize(self, samples, rate, deadline_s):
        time.sleep(3600)

ingest._GRACE_S = 0.1
ingest._WatchedRecognizer(Hanging()).recognize(None, 16_000, 0.1)
print("went on")
"""


def test_a_process_whose_recognizer_hangs_ends_itself(project):
    done = subprocess.run([sys.executable, "-c", HANG], cwd=project, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    assert "went on" not in done.stdout
