"""Whisper as it is used: windows over a long recording, words placed by their times, checkpoints of published shape."""

from __future__ import annotations

import hashlib
from dataclasses import asdict

import numpy as np
import pytest

from flywheel.config import parse_settings
from flywheel.recordings.asr import whisper
from flywheel.recordings.asr.recognizer import RecognitionTimeout, Word
from flywheel.recordings.asr.whisper import Whisper
from flywheel.recordings.audio import SAMPLE_RATE
from flywheel.recordings.utterances import transcribe_utterances
from flywheel.utils.errors import BadInput

# The smallest model that OpenAI has published, and what follows from its shape.
TINY = {
    "n_mels": 80,
    "n_vocab": 51_865,
    "n_audio_ctx": 1_500,
    "n_audio_state": 384,
    "n_audio_head": 6,
    "n_audio_layer": 4,
    "n_text_ctx": 448,
    "n_text_state": 384,
    "n_text_head": 6,
    "n_text_layer": 4,
}
TINY_WEIGHTS = 37_184_640


class Speaker:
    """Someone who says a numbered word each second, and a recognizer that hears what lies in a window.

    Of a word that the window cuts, the half is heard as another word, as recognizers do.
    """

    def __init__(self, words: list[tuple[float, float]]) -> None:
        self.words = [Word(f"w{number}", start, end, 1.0) for number, (start, end) in enumerate(words)]
        self.windows: list[tuple[float, float, str]] = []

    def hear(self, start: float, end: float, context: str) -> list[Word]:
        self.windows.append((start, end, context))
        cut = [Word("half", max(w.start_s, start), min(w.end_s, end), 0.1) for w in self.words]
        whole = [w.start_s >= start and w.end_s <= end for w in self.words]
        near = [w.end_s > start and w.start_s < end for w in self.words]
        return [w if inside else half for w, half, inside, in_ in zip(self.words, cut, whole, near, strict=True) if in_]


def test_each_word_is_heard_once_and_whole_also_where_a_window_cuts_it():
    speaker = Speaker([(n + 0.2, n + 0.9) for n in range(70)] + [(70.2, 70.6)])
    assert list(whisper.stream_windows(71.0, speaker.hear)) == speaker.words
    # w29 (29.2 to 29.9) ends within a second of the window's end: the next begins in the gap before it, at 29.05.
    spans = [(start, end) for start, end, _ in speaker.windows]
    assert spans == [(0.0, 30.0), (pytest.approx(29.05), pytest.approx(59.05)), (pytest.approx(58.05), 71.0)]
    contexts = [context.split() for _, _, context in speaker.windows]
    assert contexts[0] == []
    assert contexts[1] == [f"w{n}" for n in range(29)]
    assert contexts[2] == [f"w{n}" for n in range(58)]


def test_a_word_across_the_end_of_a_window_is_taken_from_the_next():
    speaker = Speaker([(10.0, 11.0), (29.5, 30.5), (31.0, 32.0)])
    assert [word.word for word in whisper.stream_windows(40.0, speaker.hear)] == ["w0", "w1", "w2"]
    assert [start for start, _, _ in speaker.windows] == [0.0, 20.25]


def test_silence_at_the_end_of_a_window_and_a_word_without_end_go_on():
    quiet = Speaker([(3.0, 4.0), (65.0, 66.0)])
    assert [word.word for word in whisper.stream_windows(90.0, quiet.hear)] == ["w0", "w1"]
    assert [start for start, _, _ in quiet.windows] == [0.0, 30.0, 60.0]
    endless = Speaker([(1.0, 200.0)])
    heard = list(whisper.stream_windows(200.0, endless.hear))
    assert {word.word for word in heard} == {"half"}
    assert len(endless.windows) == 7


def test_a_window_that_goes_round_in_a_loop_is_no_context():
    contexts = []

    def hear(start, end, context):
        contexts.append(context)
        texts = ["thank you"] * 40 if start == 0 else ["good"]
        return [Word(text, start + i / 10, start + i / 10 + 0.1, 0.5) for i, text in enumerate(texts)]

    list(whisper.stream_windows(75.0, hear))
    assert contexts == ["", "", "good"]


def test_context_is_bounded():
    speaker = Speaker([(n / 4, n / 4 + 0.2) for n in range(1_000)])
    assert len(list(whisper.stream_windows(250.0, speaker.hear))) == 1_000
    assert max(len(context.split()) for _, _, context in speaker.windows) == whisper.CONTEXT


class Whole:
    """Hears words of known times, some in silence, in a recording as a whole."""

    name = "whole"
    whole = True

    def __init__(self, words):
        self.words, self.asked = words, []

    def recognize(self, samples, rate, deadline_s=60.0):
        self.asked.append((len(samples), deadline_s))
        return tuple(self.words)


def test_words_go_by_their_times_to_the_stretch_of_speech_that_they_lie_in():
    rng = np.random.default_rng(0)
    samples = rng.normal(0, 5e-4, 12 * SAMPLE_RATE).astype(np.float32)
    for start, end in ((1, 2), (4, 6)):
        samples[start * SAMPLE_RATE : end * SAMPLE_RATE] += rng.normal(0, 0.1, (end - start) * SAMPLE_RATE).astype(
            np.float32
        )
    words = [Word("a", 1.0, 1.4, 1.0), Word("b", 1.9, 2.5, 1.0), Word("c", 4.0, 5.0, 1.0), Word("no", 8.0, 8.5, 1.0)]
    recognizer = Whole(words)
    first, second = transcribe_utterances(recognizer, samples, 7.0)
    assert [word.word for word in first.words] == ["a", "b"]
    assert second.words == (words[2],)
    assert (first.start_s, second.end_s) == (pytest.approx(0.85, abs=0.05), pytest.approx(6.15, abs=0.05))
    assert recognizer.asked == [(len(samples), 7.0)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A checkpoint of `tiny`'s shape in half precision, as published, with random weights.

    What a token is embedded as says what comes next, so the position alone decides: after the three tokens that begin
    a text it says `click` three times, from the window's begin to its end, and after a context nothing.
    """
    import torch
    from whisper.model import ModelDimensions
    from whisper.model import Whisper as Model

    torch.manual_seed(0)
    model = Model(ModelDimensions(**TINY))
    assert sum(weights.numel() for weights in model.parameters()) == TINY_WEIGHTS
    click, text_end, window_begin, window_end = 2_052, 50_257, 50_364, 51_864
    with torch.no_grad():
        token = model.decoder.token_embedding.weight.normal_(0, 0.05)
        model.decoder.positional_embedding.copy_(100 * token[text_end])
        model.decoder.positional_embedding[:6] = 100 * token[click]
        model.decoder.positional_embedding[6] = 100 * token[window_end]
        model.decoder.ln.bias.copy_(10 * token[window_begin])
    path = tmp_path_factory.mktemp("whisper") / "tiny.pt"
    torch.save({"dims": asdict(model.dims), "model_state_dict": model.half().state_dict()}, path)
    return path


@pytest.mark.exhaustive
def test_a_checkpoint_of_published_shape_hears_a_recording_longer_than_its_window(tiny, tmp_path):
    recognizer = Whisper(tiny)
    assert recognizer.name == "whisper-tiny"
    # The published alignment heads of `tiny`, since the file has its name: six of its 24.
    assert recognizer._model.alignment_heads.indices().shape[1] == 6
    samples = np.memmap(tmp_path / "long", np.float32, "w+", shape=(32 * SAMPLE_RATE,))
    samples[:] = 0.1 * np.sin(np.arange(32 * SAMPLE_RATE) / 30)
    given, once = [], recognizer._window

    def window(piece, context):
        given.append((len(piece), type(piece), context))
        return once(piece, context)

    recognizer._window = window
    words = recognizer.recognize(samples, SAMPLE_RATE, 600.0)
    assert {word.word for word in words} == {"click"}
    # A window alone is in memory, and the second is told what the first said.
    assert given[0] == (30 * SAMPLE_RATE, np.ndarray, "")
    assert given[1][1:] == (np.ndarray, " ".join(["click"] * len(words)))
    times = [time for word in words for time in (word.start_s, word.end_s)]
    assert times == sorted(times)
    assert 0 <= times[0] < times[-1] <= 30
    with pytest.raises(RecognitionTimeout):
        recognizer.recognize(samples, SAMPLE_RATE, 0.0)


def test_a_known_name_is_found_in_the_cache_with_its_checksum_and_never_downloaded(tiny, tmp_path, monkeypatch):
    import whisper

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(whisper, "_download", None)  # to call it would be an error
    with pytest.raises(BadInput, match="tiny is not in the cache, and nothing is downloaded"):
        Whisper("tiny")
    (tmp_path / "whisper").mkdir()
    (tmp_path / "whisper" / "tiny.pt").symlink_to(tiny)
    with pytest.raises(BadInput, match="sha256 differs"):
        Whisper("tiny")
    digest = hashlib.sha256(tiny.read_bytes()).hexdigest()
    monkeypatch.setitem(whisper._MODELS, "tiny", f"https://host/models/{digest}/tiny.pt")
    assert Whisper("tiny").name == "whisper-tiny"


def test_the_language_that_is_spoken_is_whispers_to_know(tiny, monkeypatch):
    recognizer = Whisper(tiny, "de")
    asked = []
    monkeypatch.setattr(recognizer._model, "transcribe", lambda samples, **how: asked.append(how) or {"segments": []})
    assert recognizer.recognize(np.zeros(SAMPLE_RATE, np.float32), SAMPLE_RATE) == ()
    assert asked[0]["language"] == "de"
    with pytest.raises(BadInput, match=r"does not know the language 'qq' \(recording\.language\)"):
        Whisper(tiny, "qq")
    with pytest.raises(BadInput, match=r"recording\.language other than en goes with"):
        parse_settings({"recording": {"language": "de"}}, where="params.yaml")
