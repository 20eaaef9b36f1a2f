"""What could race with a screenshot: loads that no script can see, and answers of the browser's other threads.

The server answers each request after a time of its own, so what is not waited for differs from reset to reset.
"""

from __future__ import annotations

import itertools
import struct
import time
import zlib

import pytest
import pytest_asyncio
from browser_pages import Stage, browser, html
from hostile import Page, Site, reply

from flywheel.agent.actions import Click, Point, Wait

pytestmark = pytest.mark.asyncio(loop_scope="module")
_LATE = itertools.cycle((0.0, 0.03, 0.004, 0.05, 0.011))  # seconds


def _png(side: int, colour: tuple[int, int, int]) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + bytes(colour) * side) * side
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def late(body: str | bytes, kind: str, status: int = 200) -> Page:
    def send(request) -> None:
        time.sleep(next(_LATE))
        reply(request, status, body, {"Content-Type": kind})

    return Page(send=send)


JS, CSS = "text/javascript", "text/css"
FILES = {
    "a.js": late("import './b.js'; import { c } from './c.js'; export const a = c + 1; show('a');", JS),
    "b.js": late("show('b'); await 0; show('b2');", JS),
    "c.js": late("const { d } = await import('./d.js'); export const c = d + 1; show('c');", JS),
    "d.js": late("export const d = 1; show('d');", JS),
    "mapped.js": late("export default 'mapped';", JS),
    "long.js": late("export const long = [" + "[1,2,{a:3}]," * 30_000 + "]; show('long');", JS),
    "value.json": late('{"value": 42}', "application/json"),
    "sheet.css": late("p { background: url(green.png) }", CSS),
    "imported.css": late("@import url(sheet.css); p { color: white }", CSS),
    "green.png": late(_png(900, (0, 128, 0)), "image/png"),
    "big.png": late(_png(2000, (0, 0, 128)), "image/png"),
    "none.js": late("", JS, 404),
    "worker.js": late("onmessage = (e) => { for (let i = 0; i < 3e6; i++); postMessage(e.data + 1); };", JS),
    "ticks.js": late(
        """const when = () => Math.round(performance.now());
        setInterval(() => postMessage('w' + when() + (Date.now() % 1000) + Math.random().toFixed(3)), 30);
        onmessage = (e) => setTimeout(() => postMessage('late' + when()), e.data);""",
        JS,
    ),
    "loads.js": late(
        """const v = await (await fetch('value.json')).json(); postMessage(v.value);
        setTimeout(() => { postMessage('end'); close() }, 75);""",
        JS,
    ),
}
# The page draws all that happens, and when: in page time, for 300 ms.
_FRAME = """<body style='font:11px monospace'><p id=out style='margin:0;overflow-wrap:anywhere'></p><script>
    const show = (what) => {
        out.textContent += ` ${what instanceof Error ? what.name : what}@${Math.round(performance.now())}`;
    };
</script>"""


def script(body: str, *, after: int | None = None, ahead: str = "") -> str:
    """HTML `ahead` of a script, which runs at once or after so many ms; a timer shows where page time is meanwhile."""
    body = body if after is None else f"setTimeout(async () => {{ {body} }}, {after});"
    return f"{ahead}<script>{body}; setInterval(() => show('t'), 40)</script>"


_MAP = '<script type=importmap>{"imports": {"x": "./mapped.js"}}</script>'
_BAR = """<style>@keyframes k { to { width: 150px } }
    #bar { width: 0; height: 5px; background: red; animation: k linear both; animation-timeline: scroll(root) }
</style><div id=bar></div><div style='height:900px'></div>"""
IMPORTS = {
    "at_load": "<script type=module>const m = await import('./a.js'); show(m.a);</script>",
    "of_a_timer": script("import('./a.js').then((m) => show(m.a))", after=50),
    "of_a_click": script("onclick = () => import('./a.js').then((m) => show(m.a))"),
    "of_much": script("import('./long.js').then((m) => show(m.long.length))", after=30),
    "of_nothing": script("import('./none.js').catch(show)", after=30),
    "by_a_map": script("import('x').then((m) => show(m.default))", after=25, ahead=_MAP),
    "of_json_and_styles": script(
        """show((await import('./value.json', {with: {type: 'json'}})).default.value);
        document.adoptedStyleSheets = [(await import('./sheet.css', {with: {type: 'css'}})).default]; show('css')""",
        after=25,
    ),
    "preloaded": script("import('./a.js').then(() => show(1))", after=60, ahead="<link rel=modulepreload href=a.js>"),
}
OTHERS = {
    "style_that_comes_later": script(
        "document.head.insertAdjacentHTML('beforeend', '<link rel=stylesheet href=imported.css>')", after=30
    ),
    "a_class_that_asks_for_a_picture": script(
        "out.className = 'on'", after=30, ahead="<style>.on { background: url(green.png) }</style>"
    ),
    "decode": script(
        """const i = new Image(); i.src = 'big.png'; await i.decode(); show(i.width);
        document.body.prepend(i); i.style.height = '9px'; show((await createImageBitmap(i)).width)""",
        after=30,
    ),
    "other_threads": script(
        """const bytes = new Uint8Array(2e5), r = new FileReader(), c = document.createElement('canvas');
        show(new Uint8Array(await crypto.subtle.digest('SHA-256', bytes))[0]);
        show((await new Blob([bytes]).text()).length);
        r.readAsDataURL(new Blob([bytes])); await new Promise((done) => r.onloadend = done); show('read');
        show((await WebAssembly.compile(new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0]))).constructor.name);
        c.width = c.height = 900; c.toBlob((b) => show(b.type))""",
        after=30,
    ),
    "database": script(
        """const o = indexedDB.open('x', 1); o.onupgradeneeded = () => o.result.createObjectStore('s');
        o.onsuccess = () => {
            show('open');
            const s = o.result.transaction('s', 'readwrite').objectStore('s');
            for (let i = 0; i < 30; i++) s.put(i, i);
            let n = 0;
            s.openCursor().onsuccess = (e) => {
                const at = e.target.result;
                if (at) { n += at.value; at.continue() } else show(n);
            };
        }""",
        after=30,
    ),
    "caches_and_streams": script(
        """const cache = await caches.open('c'); show('open');
        await cache.put('k', new Response('hello')); show(await (await cache.match('k')).text());
        const s = new Blob(['a'.repeat(1e5)]).stream().pipeThrough(new CompressionStream('gzip'));
        show((await new Response(s).arrayBuffer()).byteLength)""",
        after=30,
    ),
    "tasks": script(
        """scheduler.postTask(() => show('late'), {delay: 70}); scheduler.postTask(() => show('task'));
        const c = new MessageChannel(); c.port1.onmessage = () => show('port'); c.port2.postMessage(1);
        navigator.locks.request('l', () => show('lock'));
        const f = document.createElement('iframe'); f.hidden = true; document.body.append(f);
        f.contentWindow.setTimeout(() => show('frame'), 90)"""
    ),
    "observers": script(
        """new ResizeObserver(([e]) => show('size' + e.contentRect.width)).observe(box);
        new IntersectionObserver(([e]) => show('seen' + e.isIntersecting)).observe(box);
        setTimeout(() => { box.style.width = '70px' }, 60)""",
        ahead="<div id=box style='width:50px;height:9px;background:red'></div>",
    ),
    "scroll_driven": script("scrollTo(0, 300)", after=60, ahead=_BAR),
    "view_transition": script(
        "onclick = () => document.startViewTransition(() => show('changed')).finished.then(() => show('over'))"
    ),
    "a_question_to_a_worker": script(
        "const w = new Worker('worker.js'); w.onmessage = (e) => show(e.data); setTimeout(() => w.postMessage(1), 40)"
    ),
    "timers_of_a_worker": script(
        """const w = new Worker('ticks.js'); w.onmessage = (e) => show(e.data);
        setTimeout(() => w.postMessage(70), 40); setTimeout(() => w.terminate(), 210)"""
    ),
    "a_worker_that_loads_and_closes": script(
        "const w = new Worker('loads.js', {type: 'module'}); w.onmessage = (e) => show(e.data)"
    ),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage():
    with Site(dict(FILES)) as site:
        async with browser() as chromium:
            yield Stage(chromium, site)


async def check(stage, body: str, resets: int) -> None:
    runs = set()
    for _ in range(resets):
        tab = await stage.open(html(_FRAME + body))
        screens = [await tab.screenshot()]
        for action in (Click(Point(0.5, 0.9)), Wait(), Wait()):
            await tab.do(action)
            await tab.observe(100)
            screens.append(await tab.screenshot())
        runs.add((*screens, await tab.evaluate("out.textContent")))
        assert tab.time == 300
    assert len(runs) == 1, "\n".join(sorted({run[-1] for run in runs}))


@pytest.mark.parametrize("name", IMPORTS)
async def test_eight_resets_of_one_seed_give_the_same_screens_with_an_import(stage, name):
    await check(stage, IMPORTS[name], 8)


@pytest.mark.parametrize("name", OTHERS)
async def test_resets_of_one_seed_give_the_same_screens_with(stage, name):
    await check(stage, OTHERS[name], 4)
