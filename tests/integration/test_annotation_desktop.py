"""A desktop on the annotation page: shown as it is drawn, and done on by steps alone."""

from __future__ import annotations

import desktops
from annotating import make_desk_workspace, serving, use_told_policy
from anyio.from_thread import start_blocking_portal
from playwright.sync_api import expect
from test_annotation_page import begin, opened

BLOCKS = {
    "sandbox": {"timeout_s": 60.0, "kinds": {"computer": {"width": 480, "height": 360, "wait_ms": 30.0, "places": 2}}},
    "synthesis": {
        "train_tasks": 2, "eval_tasks": 2, "domains": {"computer": ["desk"]}, "held_out": [], "levels": [1],
        "excluded_templates": ["desk/write", "desk/sort"],
    },
    "merge": {"weights": {"computer": 1.0}},
}  # fmt: skip
DRAWN = """() => {
  const canvas = document.querySelector(".desktop[data-live] canvas");
  if (canvas?.width !== 480) return false;
  const { data } = canvas.getContext("2d").getImageData(0, 0, 480, 360);
  return new Set(Array.from({ length: 480 * 360 }, (_, n) => data[4 * n])).size > 1;
}"""


@desktops.needed
def test_a_desktop_is_shown_as_it_is_drawn_and_changed_by_steps(browser, tmp_path, monkeypatch):
    use_told_policy(monkeypatch)
    ws, settings = make_desk_workspace(tmp_path, **BLOCKS)
    with (
        start_blocking_portal() as loop,
        loop.wrap_async_context_manager(serving(ws, settings)) as (desk, url),
        opened(browser, url) as page,
    ):
        begin(page)
        page.wait_for_function(DRAWN)  # something is on it
        page.locator(".live textarea").click(position={"x": 200, "y": 150})
        expect(page.locator("#thought")).to_be_focused()
        page.keyboard.type("I look.")
        page.keyboard.press("Enter")
        expect(page.locator("#count")).to_contain_text("step 1 of")
        (session,) = desk.sessions.values()
        assert session.engine.state.steps[0]["chosen"]["thought"] == "I look."
        page.click("#leave")
        expect(page.locator(".desktop")).to_have_count(0)
