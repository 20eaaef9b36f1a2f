"""A thought that is spoken into a microphone on the annotation page, and what is named where none can be."""

from __future__ import annotations

import re
import shutil
import wave
from contextlib import contextmanager

import numpy as np
import pytest
from annotating import make_desk_workspace, serving, use_told_policy
from anyio.from_thread import start_blocking_portal
from playwright.sync_api import expect
from test_annotation_page import at_step, begin, opened

from flywheel.config import SandboxSettings
from flywheel.envs.browser.driver import chromium
from flywheel.recordings.annotation.journal import read_unfinished
from flywheel.recordings.audio import SAMPLE_RATE
from flywheel.recordings.synthetic.sessions import synthesize_speech
from flywheel.ui.annotate import speech
from flywheel.utils.errors import BadInput

pytestmark = pytest.mark.skipif(shutil.which("flite") is None, reason="no voice without flite")
FAKE = ("--no-sandbox", "--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream")


@contextmanager
def served(tmp_path, monkeypatch):
    use_told_policy(monkeypatch)
    ws, settings = make_desk_workspace(tmp_path)
    with start_blocking_portal() as loop, loop.wrap_async_context_manager(serving(ws, settings)) as both:
        yield both


@contextmanager
def with_voice(browser, tmp_path, text):
    """A page whose microphone says `text` once, and silence after it."""
    samples = np.concatenate(
        [np.zeros(SAMPLE_RATE // 2), synthesize_speech(text, "slt", 1.0), np.zeros(SAMPLE_RATE // 2)]
    )
    path = tmp_path / "voice.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes((samples * 2**15).clip(-(2**15), 2**15 - 1).astype("<i2").tobytes())
    launched = browser.browser_type.launch(
        executable_path=str(chromium.find_chromium(SandboxSettings())),
        args=[*FAKE, f"--use-file-for-fake-audio-capture={path}%noloop"],
    )
    try:
        yield launched, len(samples) / SAMPLE_RATE
    finally:
        launched.close()


def test_a_spoken_thought_is_text_to_edit_before_it_is_kept(browser, tmp_path, monkeypatch):
    with (
        served(tmp_path / "ws", monkeypatch) as (desk, url),
        with_voice(browser, tmp_path, "I turn on the camera") as (speaking, length_s),
        opened(speaking, url, permissions=["microphone"]) as page,
    ):
        begin(page)
        page.keyboard.press("Alt+s")
        # All of it was said; where this looks late, the page has ended the thought by itself after a minute.
        spoken = "|".join(str(n) for n in range(int(length_s) + 1, 60))
        expect(page.locator("#heard")).to_contain_text(re.compile(f"Listening… ({spoken}) s|understood|Heard: "))
        page.evaluate("() => document.querySelector('#speak[aria-pressed=true]')?.click()")
        expect(page.locator("#heard")).to_contain_text(re.compile("Heard: \\w"))
        page.locator(".live textarea").click(position={"x": 20, "y": 20})
        expect(page.locator("#thought")).to_be_focused()
        expect(page.locator("#thought")).to_have_value(re.compile("\\w"))
        heard = page.input_value("#thought")
        page.keyboard.press("End")
        page.keyboard.type(" So it is.")
        page.keyboard.press("Enter")
        at_step(page, 1)
        expect(page.locator("#heard")).to_be_empty()
        (name,) = desk.sessions
        thought = read_unfinished(desk.folder / name).steps[0]["chosen"]["thought"]
        assert thought == f"{heard} So it is."


def test_what_cannot_be_heard_is_named(browser, tmp_path, monkeypatch):
    def missing(settings):
        raise BadInput("the recognizer's model is missing", where="recording.whisper_model", fix="name it")

    monkeypatch.setattr(speech, "open_recognizer", missing)
    with (
        served(tmp_path / "ws", monkeypatch) as (_, url),
        with_voice(browser, tmp_path, "No") as (speaking, _),
        opened(speaking, url, permissions=["microphone"]) as page,
    ):
        begin(page)
        page.click("#speak")
        expect(page.locator("#heard")).to_contain_text(re.compile(r"Listening… \d+ s|whisper"))
        page.evaluate("() => document.querySelector('#speak[aria-pressed=true]')?.click()")
        expect(page.locator("#heard")).to_contain_text("recording.whisper_model")
        expect(page.locator("#speak")).to_be_enabled()


def test_without_a_microphone_the_thought_is_typed(browser, tmp_path, monkeypatch):
    with served(tmp_path / "ws", monkeypatch) as (_, url), opened(browser, url) as page:
        begin(page)
        page.click("#speak")
        expect(page.locator("#heard")).to_contain_text("type the thought")
        expect(page.locator("#speak")).to_have_attribute("aria-pressed", "false")
        page.keyboard.press("1")
        at_step(page, 1)
