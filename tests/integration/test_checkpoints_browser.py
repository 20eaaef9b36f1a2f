"""Checkpoints of a page: what follows a restore is what followed the checkpoint, by its state or by its actions."""

from __future__ import annotations

import dataclasses
import json

import pytest
import pytest_asyncio
from browser_pages import SETTINGS, html
from hostile import Site, task_on
from pages import task_of

from flywheel.agent.actions import Click, Finished, Hotkey, Point, Press, Scroll, Type, Wait
from flywheel.envs.browser.driver import chromium
from flywheel.envs.browser.driver.chromium import Chromium
from flywheel.envs.browser.env import BrowserEnv
from flywheel.envs.suites.server import WorldServer
from flywheel.utils.errors import EnvError

pytestmark = pytest.mark.asyncio(loop_scope="module")
# All that a page can keep: its own state, stores, a field with the focus, a scroll, a clock, chance.
_PAGE = """<script>
  let count = 0, said = "";
  const draw = () => { p.textContent = [count, said, localStorage.length].join(" "); };
  window.__env__ = {
    getState: () => ({ count, said, stored: { ...localStorage }, now: performance.now(), chance: CHANCE }),
    setState: (state) => { ({ count, said } = state); draw(); SET },
  };
  const start = () => { TIMER };
</script><p id=p style="height:30px"></p><input id=i style="height:30px"><div style="height:900px"></div><script>
  addEventListener("click", () => {
    count += 1; said += Math.random().toFixed(3); localStorage[count] = said; document.cookie = `n=${count}`; draw();
  });
  start();
</script>"""


@dataclasses.dataclass
class _Session:
    url: str
    allowed: tuple[str, ...]
    restorable: bool
    files: None = None
    viewport = None
    step_ms = None
    prepare = ""
    state_expression = ""

    def state(self, seen):
        return {**(seen["game"] or {}), "score": 0.0}

    def score(self, state):
        return float(state["score"])

    def save_server_state(self):
        return b""

    def restore_server_state(self, kept):
        pass

    def close(self):
        pass


class _Source:
    def __init__(self, site: Site) -> None:
        self.site = site

    def open(self, task, seed):
        return _Session(f"{self.site.url}/p/{task.template}", (f"{self.site.url}/p/",), task.template != "replayed")


def _page(timer: str = "", set_more: str = "", chance: str = "0"):
    return html(_PAGE.replace("TIMER", timer).replace("SET", set_more).replace("CHANCE", chance))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started():
    browser = await Chromium.start(chromium.find_chromium(SETTINGS), SETTINGS)
    yield browser
    await browser.close()


@pytest_asyncio.fixture(loop_scope="module")
async def env(started):
    pages = {
        "still": _page(),
        "replayed": _page(),
        "ticking": _page("setInterval(() => { count += 100; draw(); }, 70);"),
        "forgetful": html(
            _PAGE.replace("({ count, said } = state)", "count = state.count")
            .replace("TIMER", "")
            .replace("SET", "")
            .replace("CHANCE", "0")
        ),
    }
    with Site(pages) as site:
        tab = await started.open_tab(200, 200)
        made = BrowserEnv(tab, _Source(site), SETTINGS)
        yield made
        await made.close()
        await tab.close()


BEFORE = [Click(Point(0.5, 0.05)), Click(Point(0.2, 0.38)), Type("ab"), Scroll(Point(0.5, 0.5), "down")]
AFTER = [Type("c"), Wait(), Click(Point(0.5, 0.9)), Scroll(Point(0.5, 0.5), "up")]


@pytest.mark.parametrize(
    ("page", "before", "by_state"),
    [
        ("still", [BEFORE[0], BEFORE[0], BEFORE[3]], True),
        ("ticking", [BEFORE[0], Wait()], True),
        ("replayed", BEFORE, False),
        ("still", BEFORE, False),  # the field's text is none of the page's state: the pixels tell
        ("forgetful", [BEFORE[0]], False),
        ("still", [BEFORE[0], Press("shift")], False),  # so is a key that is held
    ],
)
async def test_what_follows_a_restore_is_what_followed_the_checkpoint(env, page, before, by_state):
    task = dataclasses.replace(task_on(page), max_steps=50)
    await env.reset(task, 3)
    for action in before:
        reached = await env.step(action)
    kept = await env.checkpoint()
    follow = [await env.step(action) for action in AFTER]
    cookie = await env.tab.evaluate("document.cookie")
    acted = []
    step = env.step
    env.step = lambda action: acted.append(action) or step(action)
    try:
        back = await env.restore(kept)
    finally:
        del env.step
    assert (acted == []) == by_state
    assert back == reached
    assert [await env.step(action) for action in AFTER] == follow
    assert await env.tab.evaluate("document.cookie") == cookie


@pytest.mark.parametrize(("world", "template"), [("merge", "reach"), ("tiles", "clear"), ("shop", "add")])
async def test_worlds_come_back(started, world, template, monkeypatch):
    task = task_of(world, template, level=2)
    async with WorldServer() as server:
        tab = await started.open_tab(224, 224)
        env = BrowserEnv(tab, server, SETTINGS)
        await env.reset(task, task.seed)
        actions = [Hotkey(("left",)), Click(Point(0.5, 0.5)), Hotkey(("up",)), Click(Point(0.3, 0.6))]
        reached = [await env.step(action) for action in actions[:2]][-1]
        kept = await env.checkpoint()
        assert ("page" in json.loads(kept)) == (world != "shop")
        follow = [await env.step(action) for action in actions[2:]]
        resets, reset = [], env.reset
        monkeypatch.setattr(env, "reset", lambda *args: resets.append(args) or reset(*args))
        for number in range(1, 3):
            assert await env.restore(kept) == reached
            assert len(resets) == number  # a game's state has come back: else it is reset again to be played
            assert [await env.step(action) for action in actions[2:]] == follow
        await env.close()
        await tab.close()


async def test_a_checkpoint_of_another_task_or_of_nothing_is_refused(env):
    with pytest.raises(EnvError, match="nothing to keep"):
        await env.checkpoint()
    await env.reset(task_on("still"), 1)
    kept = json.loads(await env.checkpoint())
    for wrong, part in (
        ({**kept, "task": "other"}, "is of task other"),
        ({"task": 1}, "no checkpoint"),
        ([], "no checkpoint"),
    ):
        with pytest.raises(EnvError, match=part):
            await env.restore(json.dumps(wrong).encode())
    with pytest.raises(EnvError, match="no checkpoint"):
        await env.restore(b"\xff")
    assert (await env.step(Finished("x"))).info["state"]["answer"] == "x"
