"""Sessions of first-party pages follow one another in one browser context and process, and nothing of one is left."""

from __future__ import annotations

import re

import pytest
import pytest_asyncio
from browser_pages import Stage, act, at, browser, html
from hostile import Page, Site, reply

from flywheel.agent.actions import Drag, Hotkey, Hover, Point, Press, Scroll, Type
from flywheel.envs.browser.driver import tab as tabs
from flywheel.envs.suites.catalogue import SUITES_ROOT, get_world, list_worlds
from flywheel.envs.suites.server import WorldServer
from flywheel.envs.tasks.drawing import make_task
from flywheel.utils.errors import EnvError

pytestmark = pytest.mark.asyncio(loop_scope="module")

# What a page can leave, in every way there is. Its mouse, keys, focus and scroll the test leaves.
LEAVES = """<input id=field style="position:absolute;left:0;top:0;width:90px;height:40px">
<div style="height:3000px;width:3000px"></div>
<script>
  window.name = "left";
  localStorage.left = sessionStorage.left = "left";
  document.cookie = "left=1; max-age=10000";
  document.cookie = "elsewhere=1; max-age=10000; path=/p/probe";
  history.scrollRestoration = "manual";
  Object.prototype.left = Array.prototype.left = 1;
  Array.prototype.push = Promise.prototype.then = JSON.parse = () => "left";
  window.left = 1;
  const said = new BroadcastChannel("left");
  setInterval(() => said.postMessage("timer"), 10);
  const tick = () => { said.postMessage("frame"); requestAnimationFrame(tick); };
  requestAnimationFrame(tick);
  for (const kind of ["click", "keydown", "mousemove", "blur", "scroll"])
    for (const on of [window, document]) on.addEventListener(kind, () => {
      said.postMessage(kind);
      sessionStorage.late = localStorage.late = "left";
      document.cookie = "late=1; max-age=10000";
      window.name = "late";
    });
  const text = `const said = new BroadcastChannel("left"); setInterval(() => said.postMessage("worker"), 10);`;
  new Worker(URL.createObjectURL(new Blob([text])));
  navigator.serviceWorker.register("worker.js").catch(() => {});
  navigator.locks.request("left", () => new Promise(() => {}));
  navigator.clipboard.writeText("left");
  window.made = (async () => {
    const made = indexedDB.open("left", 1);
    await new Promise((done) => (made.onsuccess = done));
    made.result.close();
    (await caches.open("left")).put("left", new Response("left"));
    const folder = await navigator.storage.getDirectory();
    await folder.getFileHandle("left", { create: true });
    return await (await fetch("kept")).text();
  })();
</script>"""

# What the next session's page finds.
PROBE = """<style>div { width: 100px; height: 100px; float: left; background: white }
  div:hover { background: red } input:focus { background: blue } a { color: green } a:visited { color: red }</style>
<div id=a></div><div id=b></div><input id=field value=""><a href="leaves">leaves</a>
<script>
  window.heard = [];
  new BroadcastChannel("left").onmessage = (event) => heard.push(event.data);
  for (const kind of ["mouseover", "mousemove", "keydown", "keyup", "pointermove", "focus", "scroll", "storage"])
    addEventListener(kind, () => heard.push(kind), true);
  window.clicked = [];
  addEventListener("click", (event) => clicked.push([event.shiftKey, event.ctrlKey, event.detail, event.movementX]));
</script>"""
FINDS = """(async () => ({
  own: Object.getOwnPropertyNames(window).sort(), name, history: [history.length, history.state,
    history.scrollRestoration], entries: navigation.entries().length, back: navigation.canGoBack,
  stores: [localStorage.length, Object.keys(sessionStorage).filter((key) => !key.includes("flywheel"))],
  cookie: document.cookie, databases: await indexedDB.databases(), caches: await caches.keys(),
  files: await Array.fromAsync((await navigator.storage.getDirectory()).keys()),
  usage: (await navigator.storage.estimate()).usage, workers: (await navigator.serviceWorker.getRegistrations()).length,
  locks: (await navigator.locks.query()).held.length, prototypes: [({}).left, [].left, String(Array.prototype.push),
    String(Promise.prototype.then), String(JSON.parse)], heard, clicked, scroll: [scrollX, scrollY],
  active: document.activeElement.tagName,
  activation: [navigator.userActivation.hasBeenActive, navigator.userActivation.isActive],
  referrer: document.referrer, opener, zoom: [devicePixelRatio, innerWidth, visualViewport.scale],
  now: [performance.now(), Date.now()], chance: [Math.random(), crypto.getRandomValues(new Uint8Array(4)).join()],
  field: field.value, selection: String(getSelection()), title: document.title, hidden: document.visibilityState,
  focused: document.hasFocus() }))()"""
ASKS = "(async () => await (await fetch('kept')).text())()"  # how often the server was asked, or what a cache has of it


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage():
    asked = iter(range(1000))
    kept = Page(send=lambda request: reply(request, 200, f"{next(asked)}", {"Cache-Control": "max-age=1000"}))
    with Site({"leaves": html(LEAVES), "probe": html(PROBE), "kept": kept}) as site:
        async with browser() as chromium:
            yield Stage(chromium, site)


async def begin(stage, page: str, **options):
    """A session at a page, drawn once, as an environment begins one: before that a document takes no input."""
    tab = await stage.open(page, **options)
    await tab.screenshot()
    return tab


async def look(tab) -> tuple[dict, list[bytes]]:
    """What the probing page finds, and its screens: as it begins, and after some time, a key and two clicks."""
    # The mouse comes to the corner of an empty page's first document by itself.
    await tab.evaluate("heard = heard.filter((kind) => !/mouse|pointer/.test(kind))")
    first = await tab.evaluate(FINDS)
    await act(tab, Hover(Point(0.9, 0.1)))
    screens = [await tab.screenshot()]
    await tab.evaluate("heard.length = 0")
    await act(tab, Press("a"), 300)
    screens.append(await tab.screenshot())
    notes = [await act(tab, at(150, 50)), await act(tab, at(30, 110))]
    found = {"first": first, "later": await tab.evaluate(FINDS), "notes": notes}
    return found, [*screens, await tab.screenshot()]


async def leave_all(stage) -> str:
    """Play a session that leaves whatever a page and its user can; returns how often the server was asked by then."""
    tab = await begin(stage, "leaves", first_party=True)
    kept = await tab.evaluate("made")
    assert await tab.evaluate(ASKS) == kept  # it is in the browser's cache
    assert await act(tab, at(30, 20)) == "a service worker: denied"
    for action in (Type("left"), Hotkey(("ctrl", "a")), Hotkey(("ctrl", "c")), Drag(Point(0.5, 0.5), Point(0.6, 0.6))):
        await act(tab, action, 20)
    await act(tab, Scroll(Point(0.5, 0.5), "down"), 20)
    await act(tab, at(50, 50), 50)
    await act(tab, Press("shift"), 50)
    assert (tab.hands.clipboard, tab.hands.held) == ("left", ["Shift"])
    await tab.evaluate("for (let i = 0; i < 3; i++) history.pushState({ left: i }, '', `#left${i}`)")
    told = "[scrollY > 0, localStorage.length > 0, document.cookie, history.length]"
    assert await tab.evaluate(told) == [True, True, "left=1; late=1", 4]
    return kept


async def test_nothing_of_a_session_reaches_the_next_one_in_its_process(stage):
    expected = await look(await begin(stage, "probe"))
    assert expected[0]["later"]["heard"]  # the probe hears its own user, and only the user
    for rests in (True, False):
        kept = await leave_all(stage)
        tab = await begin(stage, "leaves", first_party=True)
        context = tab.context.id
        if rests:
            tab.rest()
        tab = await begin(stage, "probe", first_party=True)
        assert tab.context.id == context  # or it tests nothing
        assert await look(tab) == expected
        assert await tab.evaluate(ASKS) != kept


@pytest.mark.parametrize(
    "page",
    [
        "<script>addEventListener('pagehide', () => {})</script>",
        "<script>onunload = () => {}</script>",
        "<script>document.addEventListener('visibilitychange', () => {})</script>",
        "<iframe srcdoc='a frame'></iframe>",
        "<script>onclick = () => window.open('probe')</script>",
        "<a download href='probe' style='position:absolute;left:0;top:0;width:80px;height:40px'>load</a>",
    ],
    ids=["pagehide", "unload", "visibility", "frame", "popup", "download"],
)
async def test_a_page_that_could_leave_something_gives_its_context_up(stage, page):
    tab = await begin(stage, page, first_party=True)
    await act(tab, at(20, 20))
    context = tab.context.id
    tab.rest()
    tab = await begin(stage, "probe", first_party=True)
    assert tab.context.id != context


async def test_what_is_open_over_a_page_gives_its_context_up(stage):
    for page, act_on in (
        ("<p>text", Hotkey(("ctrl", "plus"))),
        ("<script>onclick = () => alert(1)</script>", at(20, 20)),
    ):
        tab = await begin(stage, page, first_party=True)
        context = tab.context.id
        await act(tab, act_on)
        tab = await begin(stage, "probe", first_party=True)
        assert tab.context.id != context


async def test_other_sessions_share_no_context(stage):
    """Neither one after a first-party session, nor one before it, nor one of another size."""
    contexts = []
    for options in ({"first_party": True}, {}, {"first_party": True}, {"first_party": True, "viewport": (150, 150)}):
        tab = await begin(stage, "probe", **options)
        contexts.append(tab.context.id)
        tab.rest()
    assert len(set(contexts)) == len(contexts)


async def test_a_context_is_given_up_after_some_sessions(stage, monkeypatch):
    monkeypatch.setattr(tabs, "_MAX_FOLLOW_UPS", 2)
    tab = await begin(stage, "probe")
    contexts = []
    for _ in range(5):
        await begin(stage, "probe", first_party=True)
        contexts.append(tab.context.id)
    assert [contexts.count(one) for one in dict.fromkeys(contexts)] == [3, 2]


async def test_a_page_at_rest_reaches_nothing(stage):
    tab = await begin(stage, "probe", first_party=True)
    tab.rest()
    assert tab.screen == b""
    with pytest.raises(EnvError, match="fetch"):
        await tab.page.evaluate("(async () => await (await fetch('unseen')).text())()")


async def test_our_suites_keep_nothing_outside_of_their_documents():
    """That is why their sessions may follow one another (`PageSession.first_party`)."""
    keeps = re.compile(
        r"localStorage|sessionStorage|indexedDB|\bcaches\b|\.cookie|set_cookie|Worker\(|BroadcastChannel|pushState|"
        r"replaceState|navigator\.(locks|storage)|window\.(open|name)|<iframe|onunload|unload\"|pagehide|"
        r"visibilitychange|import\("
    )
    texts = {path: path.read_text() for path in SUITES_ROOT.rglob("*") if path.suffix in (".html", ".js", ".css")}
    assert len(texts) > 50
    assert [str(path) for path, text in texts.items() if keeps.search(text)] == []


async def test_a_session_of_each_suite_begins_alike_in_a_fresh_context_and_in_a_used_one(stage):
    async with WorldServer() as worlds:
        tab = await begin(stage, "probe")
        screens = {}
        for first_party in (False, True):
            for name in list_worlds():
                world = get_world(name)
                template = sorted(world.templates)[0]
                level = min(world.templates[template].max_steps)
                session = worlds.open(make_task(world, template, level, 4, "train"), 4)
                seen = await tab.open(session.url, seed=4, allowed=session.allowed, first_party=first_party)
                screens.setdefault(name, []).append((await tab.screenshot(), seen["elements"], seen["game"]))
                session.close()
        assert tab.context.id
        assert [name for name, (fresh, used) in screens.items() if fresh != used] == []
