"""The annotation page in a browser, as a person works at it: keys, gestures, thoughts, what is kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from annotating import SECRET, make_desk_workspace, serving, use_told_policy
from anyio.from_thread import start_blocking_portal
from playwright.sync_api import expect
from processes import PATIENCE_S

from flywheel.recordings.annotation.journal import is_annotation, read_annotation


@pytest.fixture
def served(tmp_path, monkeypatch):
    use_told_policy(monkeypatch)
    ws, settings = make_desk_workspace(tmp_path)
    with start_blocking_portal() as loop, loop.wrap_async_context_manager(serving(ws, settings)) as both:
        yield both


@pytest.fixture
def page(browser, served) -> Iterator:
    with opened(browser, served[1]) as made:
        yield made


@contextmanager
def opened(browser, url, **more):
    """A page that has logged in, at its first task; what it throws or asks fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 720}, **more)
    context.set_default_timeout(1000 * PATIENCE_S)
    expect.set_options(timeout=1000 * PATIENCE_S)
    made, faults = context.new_page(), []
    made.on("pageerror", lambda error: faults.append(str(error)))
    made.on("dialog", lambda dialog: faults.append("a dialog") or dialog.dismiss())
    made.goto(f"{url}/login")
    made.fill("[name=secret]", SECRET)
    made.click("button")
    yield made
    assert not faults
    context.close()


def begin(page, name: str = "Ada") -> None:
    page.fill("#annotator", name)
    page.click("#who button")
    expect(page.locator("#candidates li")).to_have_count(3)


def at_step(page, step: int) -> None:
    expect(page.locator("#count")).to_have_text(f"step {step} of 5")


def folders(served):
    return sorted(served[0].folder.iterdir())


def test_accept_override_undo_and_keep(page, served):
    begin(page)
    at_step(page, 0)
    page.keyboard.press("1")
    at_step(page, 1)
    page.locator(".live textarea").click(position={"x": 20, "y": 20})
    expect(page.locator("#own-action")).to_contain_text("click(point=")
    expect(page.locator("#thought")).to_be_focused()
    page.keyboard.type("I see the")
    page.keyboard.press("Enter")
    at_step(page, 2)
    page.keyboard.press("t")
    page.keyboard.type("12 words")  # 1 and 2 are no shortcuts while one writes
    page.keyboard.press("Enter")
    expect(page.locator("#thought")).to_be_focused()
    page.keyboard.press("Enter")  # takes the grey words
    at_step(page, 3)
    page.keyboard.press("u")
    at_step(page, 2)
    page.keyboard.press("f")
    page.keyboard.type("seven")
    page.keyboard.press("Enter")
    at_step(page, 3)
    expect(page.locator("#verdict")).to_contain_text("Not solved")
    assert not is_annotation(folders(served)[0])  # it asks once
    page.keyboard.press("f")
    expect(page.locator("#done")).to_contain_text("Kept, 3 steps. Not solved")
    expect(page.locator("#alert")).to_be_hidden()
    expect(page.locator("#who button")).to_be_focused()
    (folder,) = folders(served)
    assert is_annotation(folder)
    state, _ = read_annotation(folder)
    assert [(one["chosen"]["author"], one["chosen"]["action_type"]) for one in state.steps] == [
        ("model", "click"), ("human", "click"), ("human", "finished"),
    ]  # fmt: skip
    assert state.steps[1]["chosen"]["thought"] == "I see the"
    assert "seven" in state.steps[2]["chosen"]["action"]


LATE = """
const Real = window.WebSocket;
window.WebSocket = class extends Real {
  constructor(...given) {
    super(...given);
    this.addEventListener("open", (event) => {
      if (window.through) return;
      event.stopImmediatePropagation();
      window.open_now = () => { window.through = true; this.dispatchEvent(new Event("open")); };
    });
  }
  get readyState() { return window.through ? super.readyState : Real.CONNECTING; }
};
"""


def test_a_task_may_be_asked_for_before_the_server_is_reached(page):
    page.add_init_script(LATE)
    page.reload()
    page.wait_for_function("() => Boolean(window.open_now)")
    page.fill("#annotator", "Ada")
    page.click("#who button")
    page.evaluate("open_now()")
    expect(page.locator("#candidates li")).to_have_count(3)


def test_gestures_become_actions_and_escape_drops_them(page, served):
    begin(page)
    box = page.locator(".live canvas").bounding_box()
    x, y = box["x"] + box["width"] / 4, box["y"] + box["height"] / 4

    def shown(text: str) -> None:
        expect(page.locator("#own-action")).to_contain_text(text)
        page.keyboard.press("Escape")
        expect(page.locator("#own")).to_be_hidden()

    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 80, y + 80, steps=4)
    page.mouse.up()
    shown("drag(")
    page.mouse.wheel(0, 200)
    shown("direction='down'")
    page.mouse.dblclick(x, y)
    shown("left_double(")
    page.mouse.click(x, y, button="right")
    shown("right_single(")
    page.keyboard.press("k")
    page.keyboard.press("Control+a")
    shown("hotkey(key='ctrl a')")
    page.keyboard.press("a")
    page.keyboard.type("wait()")
    page.keyboard.press("Enter")
    shown("wait()")
    page.keyboard.press("a")
    page.keyboard.type("fly()")
    page.keyboard.press("Enter")
    expect(page.locator("#alert")).to_contain_text("not an action")
    expect(page.locator("#own-text")).to_be_focused()
    expect(page.locator("#own-text")).to_have_value("fly()")
    page.keyboard.press("Escape")
    expect(page.locator("#alert")).to_be_hidden()
    page.keyboard.press("a")
    page.keyboard.type("fly()")
    page.keyboard.press("Enter")
    expect(page.locator("#alert")).to_contain_text("not an action")
    page.fill("#own-text", "wait()")
    page.keyboard.press("Enter")
    expect(page.locator("#own-action")).to_have_text("wait()")
    expect(page.locator("#alert")).to_be_hidden()
    page.keyboard.press("Enter")
    at_step(page, 1)


def test_a_name_that_is_refused_is_said_and_begins_nothing(page, served):
    begin(page)
    page.click("#leave")
    expect(page.locator("#start")).to_be_visible()
    page.fill("#annotator", "eve@firm.com")
    page.click("#who button")
    expect(page.locator("#alert")).to_contain_text("no name of a reviewer: 'eve@firm.com'")
    expect(page.locator("#work")).to_be_hidden()
    assert not served[0].sessions


def test_nothing_can_be_begun_before_the_page_can_hear_it(page):
    page.route("**/annotate.js", lambda route: route.abort())
    page.reload()
    page.fill("#annotator", "Bo")
    expect(page.locator("#who button")).to_be_disabled()
    page.keyboard.press("Enter")
    assert not page.url.endswith("?")
    page.unroute("**/annotate.js")
    page.reload()
    begin(page)


def test_keys_take_the_candidates_in_the_order_shown(page, served):
    begin(page)
    page.keyboard.press("1")
    at_step(page, 1)
    expect(page.locator("#candidates li")).to_have_count(3)
    page.keyboard.press("u")
    at_step(page, 0)
    expect(page.locator("#candidates li")).to_have_count(3)
    page.keyboard.press("2")
    at_step(page, 1)
    expect(page.locator("#candidates .number")).to_have_text(["1", "2", "3"])
    expect(page.locator("#candidates .votes")).to_have_text(["1 of 3"] * 3)
    page.keyboard.press("3")
    at_step(page, 2)
    (session,) = served[0].sessions.values()
    assert session.engine.state.steps[1]["candidate"] == 5  # its number among all that was proposed there


def test_what_the_model_says_is_text(page, served):
    begin(page)
    expect(page.locator("#candidates")).to_contain_text("<img src=x onerror=alert(1)>")
    assert page.locator("#candidates img").count() == 0
    page.keyboard.press("2")
    at_step(page, 1)
    page.click("#past summary")
    expect(page.locator("#history")).to_contain_text("<img src=x onerror=alert(1)>")
    assert page.locator("main img").count() == 0


def test_a_tab_that_is_opened_again_goes_on(page, served):
    begin(page)
    page.keyboard.press("1")
    at_step(page, 1)
    page.reload()
    page.get_by_role("button", name="Go on").click()
    at_step(page, 1)
    expect(page.locator("#candidates li")).to_have_count(3)
    page.keyboard.press("1")
    at_step(page, 2)


def test_a_server_that_was_begun_anew_asks_for_the_login(page, served):
    begin(page)
    page.context.clear_cookies()  # as one that does not know them
    page.evaluate("WebSocket.prototype.send = function () { this.close(); }")
    page.keyboard.press("1")
    page.wait_for_url("**/login")


def test_two_tabs_are_not_both_at_work(browser, page, served):
    begin(page)
    with opened(browser, served[1]) as other:
        other.fill("#annotator", "Ada")
        other.evaluate("localStorage.setItem('annotator', 'ada')")
        other.reload()
        other.get_by_role("button", name="Go on").click()
        expect(page.locator("#alert")).to_contain_text("another tab")
        other.keyboard.press("1")
        at_step(other, 1)


def test_let_it_play_and_take_back(page, served):
    begin(page)
    page.fill("#plays", "2")
    page.click("#acts [data-key=p]")
    at_step(page, 2)
    expect(page.locator("#candidates li")).to_have_count(3)
    page.click("#acts [data-key=u]")
    at_step(page, 1)


def test_a_key_of_the_screen_is_pressed_in_place_of_the_model(page, served):
    begin(page)
    page.keyboard.press("ArrowDown")
    expect(page.locator("#own-action")).to_have_text("hotkey(key='down')")
    expect(page.locator("#thought")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("1")
    at_step(page, 1)


def test_letters_of_a_thought_are_no_shortcuts_where_its_field_has_no_focus(page, served):
    begin(page)
    page.keyboard.press("1")
    at_step(page, 1)
    page.locator(".live textarea").click(position={"x": 20, "y": 20})
    expect(page.locator("#own-action")).to_contain_text("click(point=")
    page.keyboard.type("No words begin so")
    page.keyboard.press("Tab")  # there is nothing to complete: it stays, and says so
    expect(page.locator("#thought")).to_be_focused()
    expect(page.locator("#own-help")).to_contain_text("no words to complete")
    page.keyboard.press("Tab")
    expect(page.locator("#own-do")).to_be_focused()
    page.keyboard.type("u1")
    expect(page.locator("#thought")).to_be_focused()
    expect(page.locator("#thought")).to_have_value("No words begin sou1")
    at_step(page, 1)


def test_what_is_worded_outlives_a_lost_connection(page, served):
    page.add_init_script(
        "const Made = window.WebSocket;"
        "window.WebSocket = class extends Made { constructor(...given) { super(...given); window.last = this; } };"
    )
    page.reload()
    begin(page)
    page.locator(".live textarea").click(position={"x": 20, "y": 20})
    expect(page.locator("#own-action")).to_contain_text("click(point=")
    page.keyboard.type("Half a")
    page.evaluate("last.close()")
    expect(page.locator("#alert")).to_contain_text("does not answer")
    page.keyboard.type(" thought")
    page.keyboard.press("Enter")  # nothing can be decided now, and the word about it stays
    expect(page.locator("#alert")).to_be_hidden()
    expect(page.locator("#candidates li")).to_have_count(3)
    expect(page.locator("#thought")).to_have_value("Half a thought")
    expect(page.locator("#own-action")).to_contain_text("click(point=")
    page.keyboard.press("Enter")
    at_step(page, 1)
    (session,) = served[0].sessions.values()
    assert session.engine.state.steps[0]["chosen"]["thought"] == "Half a thought"


def test_a_decision_without_an_answer_is_spoken_of(page, served):
    begin(page)
    page.evaluate("WebSocket.prototype.send = () => {}")
    page.keyboard.press("1")
    expect(page.locator("#alert")).to_contain_text("There is no answer yet")


def test_skip_drops_decided_steps_only_when_it_is_pressed_again(page, served):
    begin(page)
    page.keyboard.press("1")
    at_step(page, 1)
    page.click("#skip")
    expect(page.locator("#alert")).to_contain_text("Skip drops the 1 step")
    assert served[0].sessions
    page.click("#skip")
    expect(page.locator("#done")).to_contain_text("Skipped")
    expect(page.locator("#who button")).to_be_focused()
    begin(page)
    page.keyboard.press("1")
    expect(page.locator("#count")).to_contain_text("step 1 of")
    page.click("#leave")
    expect(page.locator("#done")).to_contain_text("Left")
    expect(page.get_by_role("button", name="Go on")).to_have_count(1)


def test_an_unsolved_end_offers_undo_first_and_more_says_that_it_brought_nothing(page, served):
    begin(page)
    page.keyboard.press("m")
    expect(page.locator("#thinking")).to_have_text("It has no other action.")
    page.keyboard.press("f")
    expect(page.locator("#own-do")).to_contain_text("End the task")
    page.keyboard.press("Enter")
    expect(page.locator("#verdict")).to_contain_text("Not solved")
    expect(page.locator("#over .main")).to_contain_text("Undo")
    expect(page.locator("#speak")).to_be_hidden()


def test_on_a_phone_the_task_stands_above_the_screen(browser, served):
    with opened(browser, served[1]) as page:
        page.set_viewport_size({"width": 390, "height": 780})
        begin(page)
        task, screen = (page.locator(one).bounding_box() for one in ("#instruction", ".live"))
        assert task["y"] + task["height"] <= screen["y"] < 200
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_small_screen_with_long_texts(browser, served, scheme):
    with opened(browser, served[1], color_scheme=scheme) as page:
        begin(page)
        page.locator(".live textarea").click(position={"x": 20, "y": 20})
        expect(page.locator("#own-action")).to_be_visible()
        page.evaluate("document.getElementById('instruction').textContent = 'word '.repeat(300)")
        page.evaluate("document.querySelector('.said').textContent = 'x'.repeat(2000)")
        wide, tall = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]")
        assert (wide, tall) <= (1280, 720)
        assert page.locator("#own-do").bounding_box()["y"] < 720 or page.evaluate(
            "(() => { const side = document.querySelector('aside'); return side.scrollHeight > side.clientHeight; })()"
        )
