"""Pages that hang, crash, flee, flood and forge: a named error or a no-op, and the session beside is unmoved."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from dataclasses import dataclass

import pytest
import pytest_asyncio
from hostile import BUTTON, QUIET, Page, Site, Source, endless, redirect, silence, task_on
from hostile_pages import ASKS, AT_CLICK, AT_RESET, COVERED, FLEES, FOR_EVER, GOES_ON, UNUSABLE
from night import in_smoke

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, Click, Drag, Hotkey, Point, Wait
from flywheel.config import SandboxSettings
from flywheel.envs.browser.pool import BrowserPool
from flywheel.utils.errors import EnvError, EnvTimeout

pytestmark = pytest.mark.asyncio(loop_scope="module")
_PATIENT_S = 20.0  # deadline of a reset or step, for pages that do answer
_HASTY_S = 4.0  # for pages that never do
_GUARD_S = 120.0  # a test that is still running then has met a call without a deadline
_SIZE = 200
_PAUSE_S = 0.5  # before the second play of the quiet page, and twice as long before each next: they take a whole core
_ENTER = Hotkey(("enter",))


@dataclass
class Stage:
    """One browser with two pages: what is hostile, and a quiet session beside it."""

    pool: BrowserPool
    site: Site
    other: Site
    calm: list[bytes]

    async def beside(self, over: asyncio.Event) -> None:
        """Play the quiet page, now and then, until `over`; every screen is as it was when nothing ran beside it."""
        for pause_s in (_PAUSE_S * 2**n for n in itertools.count()):
            async with self.pool.env() as env:
                assert await quiet(env) == self.calm
            if over.is_set():
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), pause_s)

    @contextlib.asynccontextmanager
    async def watched(self):
        """The quiet page is played beside the block, the last time until after it."""
        over = asyncio.Event()
        beside = asyncio.create_task(self.beside(over))
        try:
            async with asyncio.timeout(_GUARD_S):
                yield
        finally:
            over.set()
            async with asyncio.timeout(_GUARD_S):
                await beside


async def quiet(env) -> list[bytes]:
    result = await env.reset(task_on(QUIET), 7)
    screens = [result.observation.screenshot]
    for action in (Click(Point(0.3, 0.3)), Wait(), Click(Point(0.7, 0.7))):
        screens.append((await env.step(action)).observation.screenshot)
    return screens


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage():
    async with opened(_PATIENT_S) as one:
        yield one


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hasty():
    async with opened(_HASTY_S) as one:
        yield one


@contextlib.asynccontextmanager
async def opened(deadline_s: float):
    pages = {name: page for name, (page, _) in (GOES_ON | ASKS | COVERED | AT_CLICK).items()} | FLEES | UNUSABLE
    pages |= {"alerts_for_ever": FOR_EVER}
    with Site(pages) as site, Site({QUIET: Page()}) as other:
        site.filled = lambda text: text.replace("{site}", site.url).replace("{other}", other.url)
        site.pages |= {
            "silence": Page(send=silence(site.over)),
            "never_answers": Page(send=silence(site.over)),
            "never_ends": Page(send=endless(site.over, {"Content-Type": "text/html"}, b"<p>more</p>")),
            "endless": Page(
                send=endless(site.over, {"Content-Disposition": "attachment; filename=endless.bin"}, b"x" * 4096)
            ),
            "redirect_elsewhere": Page(send=redirect(lambda path: other.url + "/p/quiet")),
            "moves_away_at_once": Page(send=redirect(lambda path: other.url + "/p/quiet")),
        }
        settings = SandboxSettings(browsers=1, pages=2, width=_SIZE, height=_SIZE, timeout_s=deadline_s)
        async with BrowserPool(settings, Source(site)) as pool:
            async with pool.env() as env:
                calm = await quiet(env)
            assert len(set(calm)) == len(calm)  # the quiet page shows what disturbs it
            yield Stage(pool, site, other, calm)


async def click_and_wait(env) -> None:
    for action in (BUTTON, Wait()):
        assert (await env.step(action)).reward == 0


async def play(stage: Stage, page: str, *actions: Action):
    """The results of a reset and of the actions on one page, beside the quiet session; it is scored 0 all along."""
    async with stage.watched(), stage.pool.env() as env:
        results = [await env.reset(task_on(page), 7)]
        for action in actions:
            results.append(await env.step(action))
    assert all(result.reward == 0 and not result.terminated for result in results)
    return results


@pytest.mark.parametrize("name", in_smoke(GOES_ON))
async def test_a_page_that_misbehaves_goes_on(stage, name):
    results = await play(stage, name, BUTTON, Wait(), BUTTON)
    told = GOES_ON[name][1]
    if told is not None:
        assert sorted(results[2].info["state"]["told"]) == told
    if name not in ("beforeunload", "document_write", "file_chooser"):  # a list of files takes the second click
        assert results[-1].info["state"]["clicks"] == 2


@pytest.mark.parametrize("name", ASKS)
async def test_a_page_that_asks_again_and_again_is_answered_in_the_end(stage, name):
    asked = 0
    async with stage.watched(), stage.pool.env() as env:
        result, actions = await env.reset(task_on(name), 7), [BUTTON]
        while actions or "dialog" in result.info["state"]:
            asked += "dialog" in result.info["state"]
            result = await env.step(_ENTER if "dialog" in result.info["state"] else actions.pop())
    assert 5 < asked <= 20
    assert sorted(result.info["state"]["told"]) == ASKS[name][1]


async def test_a_page_that_asks_for_ever_is_a_named_error(hasty):
    """Once it is heard no more, it is a loop."""
    async with hasty.watched(), hasty.pool.env() as env:
        await env.reset(task_on("alerts_for_ever"), 7)
        result = await env.step(BUTTON)
        for _ in range(9):
            assert "dialog" in result.info["state"]
            result = await env.step(_ENTER)
        with pytest.raises(EnvTimeout):
            await env.step(_ENTER)


@pytest.mark.parametrize("name", COVERED)
async def test_a_popup_covers_its_opener_until_the_way_back(stage, name):
    """However many a click asks for: one is shown, and one step back leads to the page that opened it."""
    _, covered, back = await play(stage, name, BUTTON, act.NavigateBack())
    assert "opened" in covered.info["note"]
    assert "frames" in covered.info["state"]  # of the quiet page
    assert (back.info["state"]["clicks"], back.info["state"]["told"]) == (1, COVERED[name][1])


async def test_page_time_passes_as_ever_where_built_ins_are_broken(stage):
    results = await play(stage, "broken_builtins", Wait(), Wait())
    assert [result.info["state"]["now"] for result in results] == [0, 200, 400]
    assert [element["name"] for element in results[-1].info["state"]["elements"]] == ["button"]


async def test_downloads_stay_in_the_session(stage, tmp_path):
    """A name that climbs out of the folder is no more than a name."""
    before = set(tmp_path.parent.parent.glob("*.txt"))
    await play(stage, "many_downloads", BUTTON, Wait())
    assert set(tmp_path.parent.parent.glob("*.txt")) == before


@pytest.mark.parametrize("name", FLEES)
async def test_a_page_does_not_leave_its_site(stage, name):
    """Whatever it tries, the other server is not asked, and the agent is on a page of the task or gets an error."""
    hits = dict(stage.other.hits)
    if name == "crash_page":
        with contextlib.suppress(EnvError):
            await play(stage, name, BUTTON, Wait())
    else:
        results = await play(stage, name, BUTTON, Wait(), Wait())
        assert "told" in results[-1].info["state"]
    assert stage.other.hits == hits


@pytest.mark.parametrize("name", AT_RESET)
async def test_a_page_that_cannot_be_opened_is_a_named_error(hasty, name):
    hits = dict(hasty.other.hits)
    async with hasty.watched(), hasty.pool.env() as env:
        with pytest.raises(AT_RESET[name]):
            await env.reset(task_on(name), 7)
    assert hasty.other.hits == hits


@pytest.mark.parametrize("name", in_smoke(AT_CLICK))
async def test_a_page_that_dies_of_a_click_is_a_named_error(hasty, name):
    """expected: the error, or None where either an error or a sound page will do."""
    expected = AT_CLICK[name][1]
    async with hasty.watched(), hasty.pool.env() as env:
        await env.reset(task_on(name), 7)
        if expected is None:
            with contextlib.suppress(EnvError):
                await click_and_wait(env)
            return
        with pytest.raises(expected):
            await click_and_wait(env)
        with pytest.raises(EnvError):
            await env.step(Wait())


@pytest.mark.parametrize(
    "action",
    [
        Click(Point(1.0, 0.5)),
        Click(Point(-0.01, 0.5)),
        Click(Point(float("nan"), 0.5)),
        Click(Point(0.5, float("inf"))),
        Drag(Point(0.5, 0.35), Point(0.5, 7.0)),
        act.Scroll(Point(2.0, 2.0), "down"),
        act.Navigate("file:///etc/passwd"),
        act.Navigate("javascript:alert(1)"),
        act.Navigate("about:blank"),
        act.Navigate("chrome://crash"),
        act.Navigate("data:text/html,x"),
    ],
)
async def test_an_action_that_cannot_be_done_is_noted_and_does_nothing(stage, action):
    first, after = await play(stage, "fullscreen", action)
    assert after.info["note"]
    assert after.observation.screenshot == first.observation.screenshot


async def test_a_session_finds_nothing_of_the_one_before(stage):
    """Storage of every kind, cookies, the name of the window and the history are fresh."""
    stage.site.pages["leaves_traces"] = Page(
        load="""
        tell([localStorage.length, sessionStorage.length, document.cookie, window.name, history.length].join());
        localStorage.setItem("a", "1"); sessionStorage.setItem("a", "1"); document.cookie = "a=1; max-age=9999";
        window.name = "left"; indexedDB.open("left");
        indexedDB.databases().then((found) => tell(found.map((one) => one.name).filter((n) => n !== "left").join()));
        caches?.open("left");
        """
    )
    told = []
    async with stage.pool.env() as env:
        for _ in range(2):
            await env.reset(task_on("leaves_traces"), 7)
            result = await env.step(Wait())
            while len(result.info["state"]["told"]) < 2:  # a database answers when it likes
                result = await env.step(Wait())
            told.append(result.info["state"]["told"])
    assert told[0] == told[1]
    assert told[0][0].startswith("0,0,,,")
