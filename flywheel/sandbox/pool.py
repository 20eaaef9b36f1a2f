"""A pool of pages over several browsers: leases, crash recovery, clean end.

A crashed page or a killed browser costs the lease that was on it (`EnvError`); the next lease gets a fresh one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from playwright.async_api import Browser, BrowserContext, Page, Playwright, async_playwright
from playwright.async_api import Error as PlaywrightError

from flywheel.errors import EnvError, EnvTimeout
from flywheel.sandbox import chromium
from flywheel.sandbox.browser import BrowserEnv
from flywheel.settings import Sandbox, Settings
from flywheel.worlds.server import WorldServer

log = logging.getLogger(__name__)
_START_S = 60.0  # deadline of a browser's start, which a busy machine makes slow
_CLOSE_S = 5.0
_LEASE_WAIT_S = 600.0
_FLAGS = (
    "--disable-gpu", "--hide-scrollbars", "--disable-lcd-text", "--font-render-hinting=none", "--no-sandbox",
    "--disable-partial-raster",  # else edges depend by a shade on what was drawn there before
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # pages reach no other machine
)  # fmt: skip


class BrowserPool:
    """`async with BrowserPool(settings.sandbox, server) as pool:`, then `async with pool.env() as env:`."""

    def __init__(self, settings: Sandbox, server: WorldServer) -> None:
        self._settings, self._server = settings, server
        self._executable = chromium.find(settings)
        self._free: asyncio.Queue[_Slot] = asyncio.Queue()

    async def __aenter__(self) -> BrowserPool:
        self._manager = async_playwright()
        playwright = await self._manager.start()
        self._hosts = [_Host(playwright, str(self._executable)) for _ in range(self._settings.browsers)]
        for number in range(self._settings.pages):
            self._free.put_nowait(_Slot(self._hosts[number % len(self._hosts)], self._settings, self._server))
        return self

    async def __aexit__(self, *_: object) -> None:
        for host in self._hosts:
            await host.close()
        await self._manager.__aexit__()

    @asynccontextmanager
    async def env(self) -> AsyncIterator[BrowserEnv]:
        """Lease one page. Raises EnvTimeout where none comes free, EnvError where no browser starts."""
        try:
            async with asyncio.timeout(_LEASE_WAIT_S):
                slot = await self._free.get()
        except TimeoutError:
            raise EnvTimeout(
                f"no page came free within {_LEASE_WAIT_S:g} s", where="browser pool", fix="raise sandbox.pages"
            ) from None
        env = None
        try:
            env = await slot.open()
            yield env
        finally:
            if env is not None:
                await env.close()
                if env.broken:
                    await slot.discard()
            self._free.put_nowait(slot)


class _Host:
    """One browser, started when first needed and again after it died. Its pipe ends it when this process dies."""

    def __init__(self, playwright: Playwright, executable: str) -> None:
        self._playwright, self._executable = playwright, executable
        self._browser: Browser | None = None
        self._lock = asyncio.Lock()

    async def browser(self) -> Browser:
        async with self._lock:
            if self._browser is None or not self._browser.is_connected():
                if self._browser is not None:
                    log.warning("a browser is gone; starting another")
                try:
                    self._browser = await self._playwright.chromium.launch(
                        executable_path=self._executable, args=list(_FLAGS), timeout=_START_S * 1000,
                        handle_sigint=False, handle_sigterm=False, handle_sighup=False,
                    )  # fmt: skip
                except PlaywrightError as error:
                    line = str(error).strip().splitlines()[0]
                    raise EnvError(
                        f"the browser did not start: {line}",
                        where=self._executable,
                        fix="try it by hand with --version",
                    ) from error
            return self._browser

    async def close(self) -> None:
        browser, self._browser = self._browser, None
        if browser is not None:
            with suppress(PlaywrightError, TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await browser.close()


class _Slot:
    """One page with a context of its own, kept over leases while it is sound."""

    def __init__(self, host: _Host, settings: Sandbox, server: WorldServer) -> None:
        self._host, self._settings, self._server = host, settings, server
        self._context: BrowserContext | None = None
        self._env: BrowserEnv | None = None
        self._page: Page | None = None

    async def open(self) -> BrowserEnv:
        if self._env is None or self._env.broken or self._page.is_closed():
            await self.discard()
            try:
                async with asyncio.timeout(_START_S):
                    self._env = await self._fresh(await self._host.browser())
            except PlaywrightError as error:
                line = str(error).strip().splitlines()[0]
                raise EnvError(f"no page could be opened: {line}", where="browser pool") from error
            except TimeoutError:
                raise EnvTimeout(f"no page opened within {_START_S:g} s", where="browser pool") from None
        return self._env

    async def _fresh(self, browser: Browser) -> BrowserEnv:
        self._context = await browser.new_context(
            viewport={"width": self._settings.width, "height": self._settings.height}, accept_downloads=False,
            service_workers="block", locale="en-US", timezone_id="UTC", reduced_motion="reduce",
        )  # fmt: skip
        self._page = page = await self._context.new_page()
        self._context.on("page", lambda popup: asyncio.ensure_future(_quietly(popup.close())))
        page.on("dialog", lambda dialog: asyncio.ensure_future(_quietly(dialog.dismiss())))
        cdp = await self._context.new_cdp_session(page)
        await cdp.send("Page.enable")  # without it, scripts for new documents are not run
        env = BrowserEnv(page, cdp, self._server, self._settings)
        page.on("crash", lambda _: env.crash())
        return env

    async def discard(self) -> None:
        """Throw page and context away. A hung page can hold its context for long: then the browser goes too."""
        context, self._context, self._env, self._page = self._context, None, None, None
        if context is None:
            return
        try:
            async with asyncio.timeout(_CLOSE_S):
                await context.close()
        except TimeoutError:
            log.warning("a page did not close; its browser is started again")
            await self._host.close()
        except PlaywrightError:
            log.debug("the page's browser is gone already")


async def _quietly(closing) -> None:
    with suppress(PlaywrightError):
        await closing


@asynccontextmanager
async def open_sandbox(settings: Settings) -> AsyncIterator[BrowserPool]:
    """World server and browser pool, ready to lease environments: `async with open_sandbox(settings) as pool:`."""
    async with WorldServer() as server, BrowserPool(settings.sandbox, server) as pool:
        yield pool
