"""Transcripts that other programs wrote take the place of the recognizer: the same words give the same thoughts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pympi
import pytest
import webvtt
from praatio import textgrid

from flywheel.config import Settings
from flywheel.recordings.asr.recognizer import open_recognizer
from flywheel.recordings.ingest import ingest_session
from flywheel.recordings.session import load_session
from flywheel.recordings.transcripts import read_transcript
from flywheel.recordings.utterances import transcribe_utterances
from flywheel.utils.errors import DataError

SESSION = Path(__file__).parents[2] / "recordings" / "001-shop-ben"
SETTINGS = Settings()


class Deaf:
    """A recognizer that must not be asked."""

    name, whole = "deaf", False

    def recognize(self, samples, rate, deadline_s=60.0):
        raise AssertionError("the recognizer was asked")


@pytest.fixture(scope="module")
def heard():
    session = load_session(SESSION)
    return transcribe_utterances(open_recognizer(SETTINGS.recording), session.samples, 300)


@pytest.fixture(scope="module")
def by_ear():
    return ingest_session(SESSION, open_recognizer(SETTINGS.recording), SETTINGS, 1)


def clock(seconds: float, point: str) -> str:
    whole, rest = divmod(round(seconds * 1000), 1000)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{point}{rest:03}"


def write_vtt(path, heard):
    made = webvtt.WebVTT()
    for one in heard:
        made.captions.append(
            webvtt.Caption(clock(one.start_s, "."), clock(one.end_s, "."), one.text.capitalize() + ".")
        )
    made.save(str(path / "transcript.vtt"))


def write_srt(path, heard):
    made = webvtt.WebVTT()
    for one in heard:
        made.captions.append(webvtt.Caption(clock(one.start_s, "."), clock(one.end_s, "."), one.text))
    with (path / "transcript.srt").open("w") as file:
        made.write(file, format="srt")


def write_elan(path, heard):
    made = pympi.Elan.Eaf(author="nobody")
    made.remove_tier("default")
    made.add_tier("speaker")
    for one in heard:
        made.add_annotation("speaker", round(one.start_s * 1000), round(one.end_s * 1000), one.text)
    made.to_file(str(path / "transcript.eaf"))


def write_grid(path, heard, form="long_textgrid"):
    words = [(word.start_s, word.end_s, word.word) for one in heard for word in one.words]
    phones = [(start, end, "x") for start, end, _ in words]
    made = textgrid.Textgrid()
    for name, rows in (("phones", phones), ("words", words)):
        made.addTier(textgrid.IntervalTier(name, rows, 0, words[-1][1] + 1))
    made.save(str(path / "transcript.TextGrid"), format=form, includeBlankSpaces=True)


@pytest.mark.parametrize("write", [write_vtt, write_srt, write_elan, write_grid], ids=lambda one: one.__name__[6:])
def test_a_foreign_transcript_gives_the_thoughts_of_its_words(tmp_path, heard, by_ear, write):
    folder = tmp_path / SESSION.name
    shutil.copytree(SESSION, folder)
    write(folder, heard)
    made = ingest_session(folder, Deaf(), SETTINGS, 1)
    assert made.trajectory.status == by_ear.trajectory.status == "completed", made.trajectory.error
    assert {row["recognizer"] for row in made.thought_rows} == {next(folder.glob("transcript.*")).name}
    thoughts = [step.thought for step in by_ear.steps]
    assert sum(map(bool, thoughts)) >= 3
    assert [step.thought for step in made.steps] == thoughts


def test_a_transcript_may_stand_without_sound(tmp_path, heard):
    folder = tmp_path / SESSION.name
    shutil.copytree(SESSION, folder)
    (folder / "speech.opus").unlink()
    told = json.loads((folder / "session.json").read_text())
    (folder / "session.json").write_text(json.dumps(told | {"audio": "", "audio_sha256": ""}))
    silent = ingest_session(folder, Deaf(), SETTINGS, 1)
    assert (silent.trajectory.status, silent.thought_rows) == ("completed", ())
    write_vtt(folder, heard)
    assert ingest_session(folder, Deaf(), SETTINGS, 1).thought_rows


@pytest.mark.parametrize("form", ["short_textgrid", "long_textgrid"])
def test_words_keep_their_own_times(tmp_path, heard, form):
    write_grid(tmp_path, heard, form)
    found = read_transcript(tmp_path / "transcript.TextGrid", 1000)
    words = [word for one in heard for word in one.words]
    assert [(w.word, w.start_s, w.end_s) for one in found for w in one.words] == [
        (w.word, pytest.approx(w.start_s, abs=1e-3), pytest.approx(w.end_s, abs=1e-3)) for w in words
    ]


def cut_vtt(path, heard):
    write_vtt(path, heard)
    (path / "transcript.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nMore\n")


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("transcript.vtt", "WEBVTT\n\n00:01.000 --> 00:00.500\nBack", "ends before it begins"),
        ("transcript.vtt", "WEBVTT\n\n1 --> 2\nNo clock", "no times of a cue"),
        ("transcript.srt", "hello", "has no cue"),
        ("transcript.vtt", "WEBVTT\n\n00:01.000 --> 00:02.000\n...", "no word"),
        ("transcript.vtt", "WEBVTT\n\n00:01.000 --> 01:02:02.000\nlong", "goes on to 3722.0 s"),
        ("transcript.eaf", "<ANNOTATION_DOCUMENT>", "is no XML"),
        ("transcript.eaf", "<!DOCTYPE a><ANNOTATION_DOCUMENT/>", "document type"),
        ("transcript.eaf", "<html/>", "its root is 'html'"),
        (
            "transcript.TextGrid",
            'File type = "ooTextFile"\nObject class = "TextGrid"\n\n0\n9\n<exists>\n2\n',
            "cut off",
        ),
        ("transcript.TextGrid", '"ooTextFile"\n"Sound"\n', "does not begin as a TextGrid"),
    ],
)
def test_a_wrong_transcript_is_told_by_its_place(tmp_path, name, text, told):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=name) as refused:
        read_transcript(tmp_path / name, 60)
    assert told in str(refused.value)


def test_two_transcripts_and_two_speakers_are_refused(tmp_path, heard):
    folder = tmp_path / SESSION.name
    shutil.copytree(SESSION, folder)
    cut_vtt(folder, heard)
    assert "transcript.srt and transcript.vtt" in ingest_session(folder, Deaf(), SETTINGS, 1).trajectory.error
    made = pympi.Elan.Eaf(author="nobody")
    for speaker in ("anna", "ben"):
        made.add_tier(speaker)
        made.add_annotation(speaker, 0, 1000, "hello")
    made.to_file(str(tmp_path / "transcript.eaf"))
    with pytest.raises(DataError, match=r"which tier holds what was said.*anna, ben"):
        read_transcript(tmp_path / "transcript.eaf", 60)


def test_captions_that_roll_say_each_line_once_with_the_times_of_their_words(tmp_path):
    (tmp_path / "transcript.vtt").write_text(
        "WEBVTT\nKind: captions\n\nNOTE by nobody\n\n"
        "00:00:01.000 --> 00:00:03.000 align:start position:0%\n \n"
        "open<00:00:01.500><c> the</c><00:00:02.500><c> shop</c>\n\n"
        "00:00:03.000 --> 00:00:03.010\nopen the shop\n \n\n"
        "00:00:03.010 --> 00:00:05.000\nopen the shop\n<v Ann>&amp; it&#39;s</v><00:00:04.000><c> there</c>\n"
    )
    found = read_transcript(tmp_path / "transcript.vtt", 60)
    assert [(w.word, w.start_s, w.end_s) for one in found for w in one.words] == [
        ("open", 1.0, 1.5), ("the", 1.5, 2.5), ("shop", 2.5, 3.0), ("it's", 3.01, 4.0), ("there", 4.0, 5.0)
    ]  # fmt: skip
