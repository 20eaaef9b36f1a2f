"""Start, watch and end one Chromium process with all its children.

It ends when this process dies, `kill -9` included: the browser itself leaves when its debugging pipe closes, and
`child_processes.py` sees to the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
from pathlib import Path

from flywheel.config import SandboxSettings
from flywheel.envs.browser import chromium
from flywheel.envs.browser.driver.cdp import CdpCommandError, CdpConnection, TargetRouter
from flywheel.envs.browser.driver.frames import BeginFrameCapture, FrameCapture, ScreenshotCapture
from flywheel.envs.browser.driver.tab import BrowserTab
from flywheel.utils.child_processes import (
    PrivateFolder,
    ProcessGuard,
    kill_process_group,
    limit_command,
    list_process_group,
    reap_process,
    wait_group_gone,
)
from flywheel.utils.errors import EnvError

log = logging.getLogger(__name__)
_START_TIMEOUT_S = 60.0  # deadline of a start, which a busy machine makes slow
_BASE_FLAGS = (
    "--headless",
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--mute-audio",
    "--no-first-run",
    "--no-default-browser-check",
    "--no-startup-window",
    "--use-mock-keychain",
    "--password-store=basic",
    "--enable-automation",
    "--deny-permission-prompts",
    "--noerrdialogs",
    "--disable-breakpad",
    # no traffic and no work of the browser's own
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--disable-extensions",
    "--disable-client-side-phishing-detection",
    "--disable-domain-reliability",
    "--metrics-recording-only",
    "--disable-search-engine-choice-screen",
    # a page is never put to sleep, or it would answer late
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--disable-hang-monitor",
    "--disable-ipc-flooding-protection",
    # input counts from the first moment, and a scroll is done when it is asked for
    "--allow-pre-commit-input",
    "--disable-smooth-scrolling",
    # pixels: the same on every machine
    "--hide-scrollbars",
    "--disable-lcd-text",
    "--font-render-hinting=none",
    "--force-color-profile=srgb",
    "--disable-partial-raster",  # else edges depend by a shade on what was drawn there before
    "--lang=en-US",
)
# Each browser context has a proxy of its own (`proxy.py`). Requests of the browser outside of any context go to a proxy
# that does not exist. No name but the proxies' is looked up; UDP, which bypasses proxies, is off.
_NETWORK_FLAGS = (
    "--proxy-server=http://nowhere.invalid:9",
    "--proxy-bypass-list=<-loopback>",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--disable-quic",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
)
_DISABLED_FEATURES = (
    "Translate",
    "MediaRouter",
    "OptimizationHints",
    "PaintHolding",
    "BackForwardCache",
    "AcceptCHFrame",
    "AutofillServerCommunication",
    "InterestFeedContentSuggestions",
    "CertificateTransparencyComponentUpdater",
    "DeferRendererTasksAfterInput",  # else a page's tasks wait after an input until the next frame, or 50 ms
    "ScriptStreaming",  # else a module that has come is compiled by another thread, in its own time
    "LocalNetworkAccessChecks",  # documents that we hand on (`page.py`) have no address to tell
    "DestroyProfileOnBrowserClose",
    "GlobalMediaControls",
    "DialMediaRouteProvider",
    "HttpsUpgrades",
)
_BEGIN_FRAME_FLAGS = (
    "--enable-begin-frame-control",
    "--run-all-compositor-stages-before-draw",
    "--disable-new-content-rendering-timeout",
    "--disable-threaded-animation",
    "--disable-threaded-scrolling",
    "--disable-checker-imaging",
    "--disable-image-animation-resync",
)
_PIPE_REDIRECTS = "3<&0 4>&1 </dev/null >/dev/null"  # the browser reads its commands from descriptor 3 and writes to 4
_PROBE_TIMEOUT_S = 20.0
_takes_begin_frames: dict[Path, bool] = {}  # what each build answered


class _EndedAtStart(EnvError):
    """A browser that ended by itself while it was started."""


class Chromium:
    """Hold a running browser. `died` is set as soon as it is gone, by whatever cause."""

    def __init__(
        self,
        process: subprocess.Popen,
        guard: ProcessGuard,
        profile: PrivateFolder,
        connection: CdpConnection,
        settings: SandboxSettings,
        begin_frames: bool,
    ) -> None:
        self._process, self._guard, self.profile = process, guard, profile
        self._connection, self._settings, self._touch = connection, settings, False
        self.frames: FrameCapture = (
            BeginFrameCapture(connection, settings, self.kill) if begin_frames else ScreenshotCapture(connection)
        )
        self.died = asyncio.Event()
        self._buried = False  # its number may be another's by now
        self._targets = TargetRouter(connection)
        connection.closed.add_done_callback(lambda _: self._end())

    @classmethod
    async def start(cls, executable: Path, settings: SandboxSettings, touch: bool = False) -> Chromium:
        """Start the browser `executable`. touch: its tabs are phones. Raises EnvError where it is not up within a
        minute."""
        wanted = settings.frames != "screenshot" and _takes_begin_frames.get(executable, True)
        browser = await cls._launch(executable, settings, wanted)
        try:
            if wanted and executable not in _takes_begin_frames:
                _takes_begin_frames[executable] = await browser._answers_begin_frame()
                if not _takes_begin_frames[executable]:
                    await browser.close()
                    if settings.frames == "begin_frame":
                        raise EnvError(
                            "this build has no HeadlessExperimental.beginFrame",
                            where=executable,
                            fix="set sandbox.frames to auto, or install chromium-headless-shell",
                        )
                    browser = await cls._launch(executable, settings, False)
        except BaseException:
            await browser.close()
            raise
        browser._touch = touch
        return browser

    @classmethod
    async def _launch(cls, executable: Path, settings: SandboxSettings, begin_frames: bool) -> Chromium:
        """With its own sandbox where that works."""
        if chromium.explain_missing_chromium_sandbox(executable, settings):
            return await cls._run(executable, settings, begin_frames, confined=False)
        try:
            return await cls._run(executable, settings, begin_frames, confined=True)
        except _EndedAtStart:
            if settings.chromium_sandbox == "required":
                raise
            browser = await cls._run(executable, settings, begin_frames, confined=False)
        chromium.record_chromium_sandbox_failure(executable)
        log.warning(
            "%s runs without its sandbox: %s",
            executable,
            chromium.explain_missing_chromium_sandbox(executable, settings),
        )
        return browser

    @classmethod
    async def _run(cls, executable: Path, settings: SandboxSettings, begin_frames: bool, *, confined: bool) -> Chromium:
        profile = PrivateFolder()
        reads, browser_writes = os.pipe()
        browser_reads, writes = os.pipe()
        theirs = [browser_reads, browser_writes]
        command = [str(executable), *_list_flags(settings, profile.path, begin_frames, confined)]
        process = guard = browser = None
        try:
            # A session of its own: no Ctrl-C of the terminal reaches it, and one signal ends all its children.
            process = subprocess.Popen(  # noqa: ASYNC220 (a few ms, and the event loop must be its parent)
                limit_command(command, 2 * settings.page_mb, redirect=_PIPE_REDIRECTS),
                stdin=browser_reads,
                stdout=browser_writes,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env=chromium.environment_without_secrets() | {"TZ": "UTC", "LANG": "C.UTF-8"},
            )
            guard = ProcessGuard(process.pid, profile.path)
            while theirs:  # held here, they would hide that the browser is gone
                os.close(theirs.pop())
            connection = await CdpConnection.open(reads, writes)
            browser = cls(process, guard, profile, connection, settings, begin_frames)
            attach = {"autoAttach": True, "waitForDebuggerOnStart": True, "flatten": True}
            await connection.call("Target.setAutoAttach", attach, timeout_s=_START_TIMEOUT_S)
            return browser
        except BaseException as error:
            if browser is not None:
                await browser.close()
            elif process is not None:
                kill_process_group(process.pid)
                process.wait()
                if guard is not None:
                    await guard.release()
            profile.remove()
            if isinstance(error, EnvError | OSError):
                code = process.poll() if process is not None else None
                reason = f"it ended with code {code}" if code is not None else str(error)
                raise (EnvError if code in (None, -signal.SIGKILL) else _EndedAtStart)(
                    f"the browser did not start: {reason}", where=executable, fix="try it by hand with --version"
                ) from error
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)

    # -- what the pool needs --------------------------------------------------------------------------------------
    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return not self.died.is_set()

    async def open_tab(self, width: int, height: int) -> BrowserTab:
        """Open a tab of `width` x `height` pixels, ready for a session.

        Raises EnvError where the browser is gone; the caller keeps the deadline.
        """
        if not self.alive:
            raise EnvError("the browser is gone", where=f"process {self.pid}")
        tab = BrowserTab(
            self.profile.path, self._targets, self._connection, self.frames, self._settings, width, height, self._touch
        )
        await tab.prepare()
        return tab

    def memory(self) -> int:
        """Measure the bytes of memory of the browser and its children, shared pages in proportion (PSS)."""
        total = 0
        for pid in list_process_group(self.pid):
            with contextlib.suppress(OSError, ValueError):
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                total += 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        return total

    def kill(self) -> None:
        """End it at once, with all its children."""
        if not self._buried:
            kill_process_group(self.pid)

    async def close(self) -> None:
        """End it and wait until nothing is left of it; never raises, and may be called twice."""
        self.kill()
        for owner in self._targets.owners.values():
            if isinstance(owner, BrowserTab):
                owner.disconnect()
        self._connection.close()
        await reap_process(self._process)
        if not self._buried:
            await wait_group_gone(self.pid)
        self._buried = True
        await self._guard.release()
        self.profile.remove()

    # -- inside ---------------------------------------------------------------------------------------------------
    async def _answers_begin_frame(self) -> bool:
        tab = await self.open_tab(64, 64)
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                await tab.page.draw()
            return True
        except (CdpCommandError, TimeoutError):
            return False
        finally:
            await tab.close()

    def _end(self) -> None:
        if not self.died.is_set():
            self.died.set()
            self.kill()  # a browser that lost its pipe would leave late, and its children after it


def _list_flags(settings: SandboxSettings, profile: Path, begin_frames: bool, confined: bool) -> list[str]:
    return [
        *_BASE_FLAGS,
        *_NETWORK_FLAGS,
        *(_BEGIN_FRAME_FLAGS if begin_frames else ()),
        *(() if confined else ("--no-sandbox",)),
        f"--disable-features={','.join(_DISABLED_FEATURES)}",
        f"--js-flags=--max-old-space-size={settings.heap_mb}",
        f"--user-data-dir={profile}",
    ]
