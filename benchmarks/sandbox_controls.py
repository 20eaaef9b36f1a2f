"""The case `native_controls`: each native form control is operated by mouse and by keys, in both ways to have screens.

A control works where the page received what it would receive in a browser with a display (value, and how often it was
told), and where the picker, if there is one, was to be seen: the screen changed where it stands, and what is chosen
from lies in the viewport. Anything else, an error and a lost browser included, is a control that does not work.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
from bench_case import BenchCase
from PIL import Image
from sandbox_controls_pages import CONTROLS, HEIGHT, WIDTH, at, page_of
from sandbox_run import Run

from flywheel.agent.actions import Action, Click, Hotkey, Wait
from flywheel.config import SandboxSettings
from flywheel.envs.browser.driver import chromium
from flywheel.envs.browser.driver.chromium import Chromium
from flywheel.envs.browser.driver.tab import BrowserTab

WAYS = ("begin_frame", "screenshot")


# -- operating ---------------------------------------------------------------------------------------------------------
class Fails(Exception):
    """Why a control does not work."""


@dataclass
class Stage:
    """A browser's tab, and a server of the controls' pages on two origins."""

    browser: Chromium
    url: str
    other: str
    tab: BrowserTab | None = None
    shots: list[bytes] = field(default_factory=list)

    async def open(self, name: str) -> BrowserTab:
        if self.tab is None:
            self.tab = await self.browser.open_tab(WIDTH, HEIGHT)
        number = list(CONTROLS).index(name)
        await self.tab.open(f"{self.url}/{number}", seed=7, allowed=(self.url, self.other))
        await self.tab.observe(50)
        self.shots = [await self.tab.screenshot()]
        return self.tab

    async def act(self, action: Action) -> None:
        await self.tab.do(action)
        await self.tab.observe(50)
        self.shots.append(await self.tab.screenshot())


async def operate(stage: Stage, name: str, how: str) -> None:
    """One control, by `mouse` or by `keys`. Raises Fails, or what the sandbox raises."""
    control, tab = CONTROLS[name], await stage.open(name)
    if how == "mouse":
        place = control.click
        if place == (0, 0):  # the button at the end of a date's field
            place = await tab.evaluate("(b => [b.right - 12, b.y + b.height / 2])(c.getBoundingClientRect())")
        await stage.act(Click(at(*place)))
        steps = list(control.mouse)
    else:
        for _ in range(control.tabs):
            await stage.act(Hotkey(("tab",)))
        steps = [Hotkey(tuple(step.split())) if isinstance(step, str) else step for step in control.keys]
    opened = control.picker and how == "mouse"
    for step in steps:
        if opened:
            await _seen(stage)
        opened = False
        if isinstance(step, str):
            step = Click(at(*await _place(tab, step)))
        await stage.act(step)
        if control.picker and not opened and how == "keys" and step is steps[0]:
            await _seen(stage)
    if control.ask or control.picker or control.changes is not None:
        await stage.act(Wait())
    told = await tab.evaluate(control.ask or "told()")
    wanted = control.value if control.keyed is None or how == "mouse" else control.keyed
    if (told.get("value") or "") != (wanted or ""):
        raise Fails(f"the page has the value {told.get('value')!r}, not {wanted!r}")
    if control.changes is not None and told["changes"] != control.changes:
        raise Fails(f"the page was told {told['changes']} changes, not {control.changes}")


async def _seen(stage: Stage) -> None:
    """The open picker stands in the viewport, and the screen shows it."""
    box = await stage.tab.pickers.call("pickers.box") if stage.tab.pickers.open else None
    if box is None:
        raise Fails("no picker opened")
    if box["x"] < 0 or box["y"] < 0 or box["x"] + box["w"] > WIDTH or box["y"] + box["h"] > HEIGHT:
        raise Fails(f"the picker is not within the screen: {box}")
    before, now = (
        np.asarray(Image.open(io.BytesIO(shot)).convert("RGB"))[
            box["y"] : box["y"] + box["h"], box["x"] : box["x"] + box["w"]
        ]
        for shot in (stage.shots[0], stage.shots[-1])
    )
    if (before != now).any(axis=2).mean() < 0.5 or len(np.unique(now.reshape(-1, 3), axis=0)) < 4:
        raise Fails("the open picker is not to be seen")


async def _place(tab: BrowserTab, text: str) -> tuple[float, float]:
    """Where a text stands in the open picker."""
    found = await tab.pickers.overlay.page.evaluate(f"""(() => {{
        const shown = [...document.querySelectorAll('#picker *')].filter((node) => !node.children.length);
        const node = shown.find((one) => one.textContent.trim() === {text!r} && !one.matches('.pale'));
        if (!node) return null;
        const box = node.getBoundingClientRect();
        return [box.x + box.width / 2, box.y + box.height / 2];
    }})()""")
    if found is None or not (0 <= found[0] < WIDTH and 0 <= found[1] < HEIGHT):
        raise Fails(f"{text!r} does not stand in the picker: {found}")
    return tuple(found)


# -- the case ----------------------------------------------------------------------------------------------------------
@contextlib.asynccontextmanager
async def staged(settings: SandboxSettings) -> AsyncIterator[Stage]:
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), _Handler) for _ in range(2)]
    for server in servers:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    browser = await Chromium.start(chromium.find_chromium(settings), settings)
    try:
        servers[0].other = servers[1].other = other = f"http://127.0.0.1:{servers[1].server_port}"
        yield Stage(browser, f"http://127.0.0.1:{servers[0].server_port}", other)
    finally:
        await browser.close()
        for server in servers:
            server.shutdown()
            server.server_close()


async def tried(way: str, names: Sequence[str] = tuple(CONTROLS)) -> dict[str, str]:
    """Each control by mouse and by keys in one browser: "", or why it does not work."""
    found: dict[str, str] = {}
    async with staged(SandboxSettings(width=WIDTH, height=HEIGHT, frames=way, timeout_s=20.0)) as stage:
        for name in names:
            for how in ("mouse", "keys"):
                try:
                    async with asyncio.timeout(20):
                        await operate(stage, name, how)
                    found[f"{name}, {how}"] = ""
                except Exception as error:  # whatever it is, this control does not work
                    found[f"{name}, {how}"] = f"{type(error).__name__}: {error}"
                    stage.tab = None
                    if not stage.browser.alive:
                        rest = (f"{later}, {by}" for later in names for by in ("mouse", "keys"))
                        return found | {one: "the browser is gone" for one in rest if one not in found}
    return found


async def native_controls(run: Run) -> BenchCase:
    found = {f"{way}: {one}": why for way in WAYS for one, why in (await tried(way)).items()}
    broken = {one: why for one, why in found.items() if why}
    share = 1 - len(broken) / len(found)
    return BenchCase(
        "sandbox",
        "native_controls",
        "fraction",
        share,
        None,
        "none",
        None,
        1.0,
        share >= 1.0,
        {"n": len(found), "ways": list(WAYS), "controls": list(CONTROLS), "broken": broken},
    )


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        number = self.path.strip("/")
        body = page_of(int(number) if number.isdigit() else -1, self.server.other).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass
