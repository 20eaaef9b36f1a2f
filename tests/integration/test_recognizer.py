"""The recognizer contract: one suite for every back-end, and what each must do besides."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
from speech_measure import edits

from flywheel.config import RecordingSettings
from flywheel.recordings.asr.pocketsphinx import PocketSphinx
from flywheel.recordings.asr.recognizer import RecognitionTimeout, Word, locate_whisper_checkpoint, open_recognizer
from flywheel.recordings.asr.whisper import Whisper
from flywheel.recordings.audio import SAMPLE_RATE, read_audio, speech_segments
from flywheel.recordings.synthetic.sessions import synthesize_speech
from flywheel.recordings.utterances import Utterance, join_broken_utterances, transcribe_utterances
from flywheel.utils.errors import BadInput

SESSION = "000-tiles-anna"
SAID = "so i click the green tile take the black no wait the green leaf take the green leaf okay done"


@pytest.fixture(scope="session")
def speech(project):
    """A shipped session's audio."""
    return read_audio(project / "recordings" / SESSION / "speech.opus")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A Whisper checkpoint in its own format, small, with random weights: the same path as a real one."""
    import torch
    from whisper.model import ModelDimensions
    from whisper.model import Whisper as Model

    torch.manual_seed(0)
    dims = ModelDimensions(
        n_mels=80,
        n_audio_ctx=1500,
        n_audio_state=32,
        n_audio_head=2,
        n_audio_layer=1,
        n_vocab=51864,
        n_text_ctx=64,
        n_text_state=32,
        n_text_head=2,
        n_text_layer=2,
    )
    model = Model(dims)
    with torch.no_grad():
        model.decoder.positional_embedding.normal_(0, 0.1)
    path = tmp_path_factory.mktemp("whisper") / "tiny-random.pt"
    torch.save({"dims": asdict(dims), "model_state_dict": model.state_dict()}, path)
    return path


@pytest.fixture(scope="session", params=["pocketsphinx", "whisper"])
def recognizer(request):
    if request.param == "pocketsphinx":
        return open_recognizer(RecordingSettings())
    path = request.getfixturevalue("checkpoint")
    return open_recognizer(RecordingSettings(recognizer="whisper", whisper_model=str(path)))


class TestConformance:
    def test_words_have_times_within_the_audio_that_do_not_decrease(self, recognizer, speech):
        start, end = speech_segments(speech)[0]
        piece = speech[round(start * SAMPLE_RATE) : round(end * SAMPLE_RATE)]
        at = 0.0
        for word in recognizer.recognize(piece, SAMPLE_RATE):
            assert at <= word.start_s <= word.end_s <= len(piece) / SAMPLE_RATE
            assert 0 <= word.confidence <= 1
            assert word.word == word.word.lower()
            assert word.word
            assert " " not in word.word
            at = word.start_s

    def test_the_same_audio_gives_the_same_words_whatever_came_before(self, recognizer, speech):
        pieces = [speech[round(a * SAMPLE_RATE) : round(b * SAMPLE_RATE)] for a, b in speech_segments(speech)[:2]]
        first = recognizer.recognize(pieces[0], SAMPLE_RATE)
        recognizer.recognize(pieces[1] * np.float32(0.3), SAMPLE_RATE)
        assert recognizer.recognize(pieces[0], SAMPLE_RATE) == first

    def test_no_samples_have_no_words(self, recognizer):
        assert recognizer.recognize(np.zeros(0, np.float32), SAMPLE_RATE) == ()

    def test_other_audio_is_refused(self, recognizer):
        with pytest.raises(BadInput, match="16,000"):
            recognizer.recognize(np.zeros(100, np.float32), 8_000)
        with pytest.raises(BadInput, match="float32 mono"):
            recognizer.recognize(np.zeros((100, 2), np.float32), SAMPLE_RATE)
        with pytest.raises(BadInput, match="float32 mono"):
            recognizer.recognize(np.zeros(100), SAMPLE_RATE)

    def test_a_deadline_that_has_passed_is_named(self, recognizer, speech):
        with pytest.raises(RecognitionTimeout, match="not recognize the speech in time"):
            recognizer.recognize(speech[:SAMPLE_RATE], SAMPLE_RATE, deadline_s=0.0)

    def test_it_works_after_a_deadline_was_missed(self, recognizer, speech):
        with pytest.raises(RecognitionTimeout):
            recognizer.recognize(speech[:SAMPLE_RATE], SAMPLE_RATE, deadline_s=-1.0)
        assert recognizer.recognize(np.zeros(SAMPLE_RATE, np.float32), SAMPLE_RATE) is not None

    def test_its_name_says_which_it_is(self, recognizer):
        assert recognizer.name.startswith(("pocketsphinx-", "whisper-"))


def test_pocketsphinx_hears_what_was_said(speech):
    utterances = transcribe_utterances(PocketSphinx(), speech, 60.0)
    assert edits(SAID.split(), [word.word for one in utterances for word in one.words]) <= 2


@pytest.mark.exhaustive
def test_other_speech_than_about_these_interfaces_is_heard_as_the_stock_recognizer_hears_it():
    """One sentence in our wording and one in none: what the language model of interfaces hears must not stand there."""
    ours, stock = PocketSphinx(), PocketSphinx(adapted=False)
    foreign = synthesize_speech("the lighthouse was built more than a century ago", "slt", 1.0)
    assert ours.recognize(foreign, SAMPLE_RATE) == stock.recognize(foreign, SAMPLE_RATE)
    usual = synthesize_speech("i add it to the cart", "kal16", 1.0)
    heard, other = ([word.word for word in one.recognize(usual, SAMPLE_RATE)] for one in (ours, stock))
    assert heard == ["i", "add", "it", "to", "the", "cart"] != other


def test_speech_about_an_interface_is_told_from_other_english_by_its_likelihood():
    judge = PocketSphinx()._interface
    gains = [
        judge.gain(text.split())
        for text in (
            "well i click the green tile",
            "i drag the purple lighthouse",
            "i paint the purple lighthouse",
            "the ferry to the island runs only in the summer",
        )
    ]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 0 > gains[-1]


def test_what_is_no_whisper_checkpoint_is_refused(tmp_path):
    with pytest.raises(BadInput, match="no such Whisper checkpoint"):
        Whisper(tmp_path / "none.pt")
    (tmp_path / "bad.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(BadInput, match="not a Whisper checkpoint"):
        Whisper(tmp_path / "bad.pt")


def test_a_checkpoint_is_named_from_the_workspace_wherever_the_process_was_started(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine.pt").touch()
    relative = RecordingSettings(recognizer="whisper", whisper_model="models/mine.pt")
    assert locate_whisper_checkpoint(relative, tmp_path).whisper_model == str(tmp_path / "models" / "mine.pt")
    for other in ("base.en", "models", ""):
        assert locate_whisper_checkpoint(RecordingSettings(whisper_model=other), tmp_path).whisper_model == other


class Fake:
    """Hears one word in each second utterance, in the middle of it."""

    name = "fake"
    whole = False

    def __init__(self) -> None:
        self.calls: list[tuple[int, float]] = []

    def recognize(self, samples, rate, deadline_s=60.0):
        self.calls.append((len(samples), deadline_s))
        length = len(samples) / rate
        return (Word("yes", length / 2, length, 1.0),) if len(self.calls) % 2 else ()


def test_transcribing_shifts_the_times_and_leaves_out_what_was_not_understood(speech):
    spans = speech_segments(speech)
    fake = Fake()
    utterances = transcribe_utterances(fake, speech, 60.0)
    assert [(one.start_s, one.end_s) for one in utterances] == spans[::2]
    for one, (start, end) in zip(utterances, spans[::2], strict=True):
        assert one.words[0].start_s == pytest.approx((start + end) / 2, abs=1e-3)
    deadlines = [left for _, left in fake.calls]
    assert deadlines == sorted(deadlines, reverse=True)
    assert deadlines[0] <= 60.0


def utterance(text: str, start: float, end: float) -> Utterance:
    return Utterance(start, end, tuple(Word(word, start, end, 1.0) for word in text.split()))


def test_a_sentence_that_a_pause_has_cut_is_put_together():
    parts = [utterance("i click the", 0, 1), utterance("um purple tile", 1.7, 2.5), utterance("take it", 3.2, 4)]
    assert [one.text for one in join_broken_utterances(parts)] == ["i click the um purple tile", "take it"]
    assert (join_broken_utterances(parts)[0].start_s, join_broken_utterances(parts)[0].end_s) == (0, 2.5)


def test_a_hesitation_by_itself_is_no_utterance():
    parts = [utterance("uh", 0, 0.3), utterance("i press left", 3, 4), utterance("um hmm", 6, 7)]
    assert join_broken_utterances(parts) == parts[1:2]


@pytest.mark.parametrize(
    ("first", "second", "gap"),
    [
        ("i click the", "purple tile", 2.0),
        ("i click the", "i press left", 0.7),
        ("i click the tile", "the red one", 0.7),
    ],
)
def test_other_utterances_stay_apart(first, second, gap):
    parts = [utterance(first, 0, 1), utterance(second, 1 + gap, 2 + gap)]
    assert join_broken_utterances(parts) == parts
