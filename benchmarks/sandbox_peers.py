"""The peers of the sandbox's benchmarks: plain Playwright, and BrowserGym in an environment of its own.

BrowserGym pins an old Playwright, so it cannot share this environment. It finds the browser that ours uses through
a folder (`PLAYWRIGHT_BROWSERS_PATH`) in which the browser that its Playwright expects is a link.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, async_playwright

from flywheel.utils.errors import EnvError

VERSION = "0.14.3"  # of BrowserGym
CACHE = Path.home() / ".cache" / "flywheel" / "bench"
_PACKAGES = (("browsergym-core==" + VERSION, "browsergym-miniwob==" + VERSION), ("--no-deps", "miniwob==1.1.0"))
_WORKER = Path(__file__).parent / "sandbox_browsergym.py"
_OPEN_S, _STEP_S, _CLOSE_S = 120.0, 30.0, 20.0


# -- plain Playwright -------------------------------------------------------------------------------------------------
@asynccontextmanager
async def playwright_browsers(executable: Path, count: int) -> AsyncIterator[list[Browser]]:
    async with async_playwright() as playwright:
        browsers = [await playwright.chromium.launch(executable_path=executable) for _ in range(count)]
        yield browsers
        for browser in browsers:
            await browser.close()


async def playwright_round(
    browsers: Sequence[Browser], addresses: Sequence[str], size: tuple[int, int], clicks: Sequence[tuple[float, float]]
) -> tuple[float, dict[str, float]]:
    """Seconds for all pages to take all clicks, each followed by a PNG; and what the pages say of it.

    clicks: shares of the page's width and height. The pages are opened before the clock starts, closed after it.
    """
    width, height = size
    viewport = {"width": width, "height": height}
    contexts = [await browsers[n % len(browsers)].new_context(viewport=viewport) for n in range(len(addresses))]
    pages = [await context.new_page() for context in contexts]
    await asyncio.gather(*(page.goto(address) for page, address in zip(pages, addresses, strict=True)))
    before = await asyncio.gather(*map(_state, pages))

    async def act(page: Page) -> int:
        seen = set()
        for x, y in clicks:
            await page.mouse.click(x * width, y * height)
            seen.add(hash(await page.screenshot()))
        return len(seen)

    begin = time.perf_counter()
    distinct = await asyncio.gather(*map(act, pages))
    seconds = time.perf_counter() - begin
    after = await asyncio.gather(*map(_state, pages))
    for context in contexts:
        await context.close()
    steps = len(pages) * len(clicks)
    passed = sum(new["now"] - old["now"] for new, old in zip(after, before, strict=True)) / steps
    taken = sum(state["clicks"] for state in after) / steps
    return seconds, {"page_ms_a_step": passed, "clicks_taken": taken, "distinct_screens": sum(distinct) / steps}


async def _state(page: Page) -> dict[str, Any]:
    return await page.evaluate("window.__env__.getState()")


# -- BrowserGym -------------------------------------------------------------------------------------------------------
def browsergym_python(named: str, deadline_s: float) -> Path:
    """The Python that has BrowserGym: the one named, or one of the cache, made now where it is missing.

    Raises EnvError where it can't be made within the deadline, with the last line that pip said.
    """
    if named:
        return Path(named)
    folder = CACHE / f"browsergym-{VERSION}"
    python, done = folder / "bin" / "python", folder / "complete"
    if done.exists():
        return python
    print(f"making an environment for BrowserGym {VERSION} in {folder} (about 320 MB)", file=sys.stderr, flush=True)
    end = time.monotonic() + deadline_s
    commands = [[sys.executable, "-m", "venv", "--clear", str(folder)]]
    commands += [[str(python), "-m", "pip", "install", "--quiet", *packages] for packages in _PACKAGES]
    for command in commands:
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=max(end - time.monotonic(), 1))
        except subprocess.CalledProcessError as error:
            last = (error.stderr.strip().splitlines() or ["no message"])[-1]
            raise EnvError(
                f"BrowserGym cannot be installed: {last}",
                where=str(folder),
                fix="is the package registry reachable? or name an environment by --browsergym-python",
            ) from None
        except subprocess.TimeoutExpired:
            raise EnvError(f"BrowserGym was not installed within {deadline_s:g} s", where=str(folder)) from None
    done.touch()
    return python


def _site(python: Path, package: str) -> Path:
    """Folder of a package in another environment."""
    code = f"import importlib.util as u; print(u.find_spec({package!r}).submodule_search_locations[0])"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
    if found.returncode:
        raise EnvError(f"there is no {package} in the environment of BrowserGym", where=str(python))
    return Path(found.stdout.strip())


def miniwob_html(python: Path) -> Path:
    """MiniWoB's pages, which lie in the environment of BrowserGym."""
    return _site(python, "miniwob") / "html"


class BrowserGym:
    """One environment of BrowserGym in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask(self, asked: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        """Raises EnvError where the process has ended or does not answer in time."""
        try:
            async with asyncio.timeout(deadline_s):
                self._process.stdin.write(json.dumps(asked).encode() + b"\n")
                await self._process.stdin.drain()
                line = await self._process.stdout.readline()
        except (TimeoutError, OSError):
            line = b""
        if not line:
            raise EnvError(f"BrowserGym ended, or did not answer within {deadline_s:g} s", where=json.dumps(asked))
        return json.loads(line)

    async def steps(self, count: int) -> list[float]:
        """Seconds of each step whose click was carried out. Raises EnvError where none was."""
        told = await self.ask({"steps": count}, count * _STEP_S)
        if not told["seconds"]:
            raise EnvError(f"BrowserGym's clicks fail: {told['failed']}", where=f"{count} steps")
        return told["seconds"]


@asynccontextmanager
async def browsergym(
    python: Path, pages: str, executable: Path, folder: Path, **options: Any
) -> AsyncIterator[tuple[BrowserGym, list[int]]]:
    """The environment, opened and reset, and the shape of its screenshot. folder: an empty one, for the link.

    pages: address that serves MiniWoB's folder `html`.
    """
    listed = json.loads((_site(python, "playwright") / "driver/package/browsers.json").read_text())["browsers"]
    revision = next(row["revision"] for row in listed if row["name"] == "chromium")
    link = folder / f"chromium-{revision}" / "chrome-linux" / "chrome"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(executable)
    process = await asyncio.create_subprocess_exec(
        python,
        _WORKER,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**24,
        env={**os.environ, "PLAYWRIGHT_BROWSERS_PATH": str(folder), "MINIWOB_URL": f"{pages}/miniwob/"},
    )
    try:
        gym = BrowserGym(process)
        shape = (await gym.ask({"open": options}, _OPEN_S))["shape"]
        yield gym, shape
    finally:
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), _CLOSE_S)
        except TimeoutError:
            process.kill()
            await process.wait()
