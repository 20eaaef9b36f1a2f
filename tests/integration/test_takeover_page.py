"""A person takes a watched page over as data, in a browser, from the node's page of sessions to the end."""

from __future__ import annotations

from dataclasses import replace

import managers
import pytest
from anyio.from_thread import start_blocking_portal
from playwright.sync_api import expect
from processes import PATIENCE_S
from takeovers import taken_node
from watched_sessions import log_in

from flywheel.envs.suites import catalogue
from flywheel.envs.tasks.drawing import make_task
from flywheel.recordings.annotation.journal import read_annotation

TASK = replace(make_task(catalogue.get_world("settings"), "two", 2, 3, "train"), max_steps=8)


@pytest.fixture(autouse=True)
def beats(monkeypatch):
    monkeypatch.setenv(managers.TOKEN_VARIABLE, managers.SECRET)
    monkeypatch.setattr(managers.nodes, "_BEAT_S", 0.05)


def test_a_watched_page_is_taken_over_as_data(browser, tmp_path):
    expect.set_options(timeout=1000 * PATIENCE_S)
    sandbox = {"pages": 1, "browsers": 1, "pages_min": 0, "timeout_s": 60.0}
    with (
        start_blocking_portal() as loop,
        loop.wrap_async_context_manager(taken_node(tmp_path, TASK, "browser", sandbox)) as (ws, settings, one, _),
        browser.new_context(viewport={"width": 1280, "height": 720}) as context,
    ):
        page, faults = context.new_page(), []
        page.set_default_timeout(1000 * PATIENCE_S)
        page.on("pageerror", lambda error: faults.append(str(error)))
        log_in(page, one.address)
        page.click(".card")
        page.click("#annotate")
        page.fill("#annotator", "Ada")
        expect(page.locator("#who button")).to_have_text("Take this session over")
        page.click("#who button")
        expect(page.locator("#count")).to_have_text("step 2 of 8")
        expect(page.locator("#proposals")).to_be_hidden()
        expect(page.locator("[data-key=p]")).to_be_hidden()
        page.wait_for_function("() => document.querySelector('.live canvas').width > 0")
        page.locator(".live textarea").click(position={"x": 30, "y": 30})
        expect(page.locator("#thought")).to_be_focused()
        page.keyboard.type("I look.")
        page.keyboard.press("Enter")
        expect(page.locator("#count")).to_have_text("step 3 of 8")
        page.keyboard.press("f")
        expect(page.locator("#own-text")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("#count")).to_have_text("step 4 of 8")  # until then keys decide nothing
        expect(page.locator("#verdict")).to_contain_text("Not solved")
        page.keyboard.press("f")
        expect(page.locator("#done")).to_contain_text("Kept, 4 steps.")
        assert not faults
        (folder,) = (ws.root / settings.annotation.folder).iterdir()
    state, screens = read_annotation(folder)
    assert [step["chosen"]["author"] for step in state.steps] == ["model", "model", "human", "human"]
    assert state.steps[2]["chosen"]["thought"] == "I look."
    assert screens
