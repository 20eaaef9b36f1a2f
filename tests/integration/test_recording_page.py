"""The page on which a recording is looked through, in a browser."""

from __future__ import annotations

import io
import wave

from processes import PATIENCE_S

from flywheel.recordings.recorder import microphone, review_page
from flywheel.recordings.session import InputEvent

EVENT = {"at": 1.0, "kind": "click", "x": 0.5, "y": 0.5, "text": "", "screen": None}


def test_what_was_done_is_told_in_words_and_can_be_heard(browser, tmp_path):
    tab = browser.new_page()
    tab.set_default_timeout(1000 * PATIENCE_S)
    events = [
        InputEvent(1.0, "drag", x=0.1, y=0.2, screen=0),
        InputEvent(2.0, "drop", x=0.6, y=0.7),
        InputEvent(3.0, "type", text="Dear  Eve", screen=0),
        InputEvent(4.0, "key", key="Enter"),
        InputEvent(5.0, "key", key="ctrl s", screen=0),
        InputEvent(6.0, "type", text="[hidden]", screen=0),
    ]
    told = {"instruction": "Write.", "seconds": 7.0, "events": review_page._list_actions(events), "sound": True}
    tab.route("**/recording", lambda route: route.fulfill(json=told))
    tab.route("**/sound/**", lambda route: route.fulfill(body=b""))
    page = review_page._PAGE.read_text("utf-8")
    tab.route("**/key/", lambda route: route.fulfill(body=page, content_type="text/html"))
    tab.goto("http://recording.test/key/")
    tab.get_by_role("button", name="Keep 4 of 4 actions").wait_for()
    *shown, hidden = tab.locator(".what").all_text_contents()
    assert shown == ["Drag ", "Type Dear  Eve and Enter", "Key Ctrl+S"]
    assert "a password field, or a program that does not tell" in hidden
    assert tab.locator("li").first.locator("i").count() == 2
    with tab.expect_request("**/sound/1000/5000"):
        tab.get_by_role("button", name="Listen").nth(1).click()
    tab.close()
    (tmp_path / "speech").write_bytes(bytes(2 * 32000))
    with wave.open(io.BytesIO(microphone.cut_wav(tmp_path / "speech", -1.0, 0.5))) as sound:
        assert (sound.getframerate(), sound.getnframes()) == (16000, 8000)


def test_nothing_is_kept_of_a_recording_whose_actions_are_all_cut(browser):
    tab = browser.new_page()
    tab.set_default_timeout(1000 * PATIENCE_S)
    told = {"instruction": "Press it.", "seconds": 3.0, "events": [EVENT, {**EVENT, "at": 2.0}]}
    tab.route("**/recording", lambda route: route.fulfill(json=told))
    page = review_page._PAGE.read_text("utf-8")
    tab.route("**/key/", lambda route: route.fulfill(body=page, content_type="text/html"))
    tab.goto("http://recording.test/key/")
    keep = tab.get_by_role("button", name="Keep")
    tab.get_by_role("button", name="Cut").first.click()
    assert (keep.text_content(), keep.is_enabled()) == ("Keep 1 of 2 actions", True)
    tab.get_by_role("button", name="Cut").first.click()
    assert (keep.is_enabled(), "Nothing is left to keep" in tab.locator("#told").text_content()) == (False, True)
    tab.get_by_role("button", name="Take back").first.click()
    assert (keep.is_enabled(), tab.locator("#told").text_content()) == (True, "")
    tab.close()
