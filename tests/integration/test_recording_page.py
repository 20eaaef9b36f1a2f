"""The page on which a recording is looked through, in a browser."""

from __future__ import annotations

from processes import PATIENCE_S

from flywheel.recordings.recorder import review_page

EVENT = {"at": 1.0, "kind": "click", "x": 0.5, "y": 0.5, "text": "", "screen": None}


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
