"""One browser process: started, watched and ended, with all its children, whatever happens to this process.

Three things end it when this process dies, `kill -9` included: the browser itself leaves when its debugging pipe
closes; the kernel kills it (`setpriv --pdeathsig`, where there is one); and a guard, a shell that waits on a pipe held
by this process alone, kills the whole process group.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flywheel.errors import EnvError
from flywheel.sandbox.cdp import CommandError, Connection
from flywheel.sandbox.frames import BeginFrames, Frames, Screenshots
from flywheel.sandbox.profiles import Profile
from flywheel.sandbox.tab import Tab
from flywheel.settings import Sandbox

log = logging.getLogger(__name__)
_START_S = 60.0  # deadline of a start, which a busy machine makes slow
_CLOSE_S = 5.0
_FLAGS = (
    "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--mute-audio", "--no-first-run",
    "--no-default-browser-check", "--no-startup-window", "--use-mock-keychain", "--password-store=basic",
    "--enable-automation", "--deny-permission-prompts", "--noerrdialogs", "--disable-breakpad",
    # no traffic and no work of the browser's own
    "--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--disable-sync",
    "--disable-extensions", "--disable-client-side-phishing-detection", "--disable-domain-reliability",
    "--metrics-recording-only", "--disable-search-engine-choice-screen", 
    # a page is never put to sleep, or it would answer late
    "--disable-background-timer-throttling", "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding", "--disable-hang-monitor", "--disable-ipc-flooding-protection",
    # input counts from the first moment, and a scroll is done when it is asked for
    "--allow-pre-commit-input", "--disable-smooth-scrolling",
    # pixels: the same on every machine
    "--hide-scrollbars", "--disable-lcd-text", "--font-render-hinting=none", "--force-color-profile=srgb",
    "--disable-partial-raster",  # else edges depend by a shade on what was drawn there before
    "--lang=en-US",
)  # fmt: skip
_FEATURES_OFF = (
    "Translate", "MediaRouter", "OptimizationHints", "PaintHolding", "BackForwardCache", "AcceptCHFrame",
    "AutofillServerCommunication", "InterestFeedContentSuggestions", "CertificateTransparencyComponentUpdater",
    "DeferRendererTasksAfterInput",  # else a page's tasks wait after an input until the next frame, or 50 ms
    "DestroyProfileOnBrowserClose", "GlobalMediaControls", "DialMediaRouteProvider", "HttpsUpgrades",
)  # fmt: skip
_BEGIN_FRAME = (
    "--enable-begin-frame-control", "--run-all-compositor-stages-before-draw",
    "--disable-new-content-rendering-timeout", "--disable-threaded-animation", "--disable-threaded-scrolling",
    "--disable-checker-imaging", "--disable-image-animation-resync",
)  # fmt: skip
# The browser reads its commands from descriptor 3 and writes to 4; the shell puts the pipes there and is replaced.
_LAUNCH = 'ulimit -c 0; ulimit -d "$0"; exec "$@" 3<&0 4>&1 </dev/null >/dev/null'
# $0: the process group, $1: the profile. A line says that all is well; the pipe's end without one, that we died.
_GUARD = 'trap "" INT TERM HUP; read -r _ || { kill -9 -- "-$0"; rm -rf "$1"; }'
_PROBE_S = 20.0
_takes_begin_frames: dict[Path, bool] = {}  # what each build answered


class Chromium:
    """A running browser. `died` is set as soon as it is gone, by whatever cause."""

    def __init__(
        self, process: subprocess.Popen, guard: subprocess.Popen, life: int, profile: Profile, connection: Connection,
        settings: Sandbox, begin_frames: bool,
    ) -> None:  # fmt: skip
        self._process, self._guard, self._life, self.profile = process, guard, life, profile
        self._connection, self._settings = connection, settings
        self.frames: Frames = BeginFrames(connection, settings, self.kill) if begin_frames else Screenshots(connection)
        self.died = asyncio.Event()
        self._buried = False  # its number may be another's by now
        self._tabs: dict[str, Tab] = {}  # by browser context
        connection.listen("", self._hear)
        connection.closed.add_done_callback(lambda _: self._end())

    @classmethod
    async def start(cls, executable: Path, settings: Sandbox, hosts: tuple[str, ...] = ()) -> Chromium:
        """Start a browser. hosts: machines that its pages may reach beside this one.

        Raises EnvError where none comes up within a minute.
        """
        wanted = settings.frames != "screenshot" and _takes_begin_frames.get(executable, True)
        browser = await cls._launch(executable, settings, hosts, wanted)
        try:
            if wanted and executable not in _takes_begin_frames:
                _takes_begin_frames[executable] = await browser._answers_begin_frame()
                if not _takes_begin_frames[executable]:
                    await browser.close()
                    if settings.frames == "begin_frame":
                        raise EnvError(
                            "this build has no HeadlessExperimental.beginFrame", where=executable,
                            fix="set sandbox.frames to auto, or install chromium-headless-shell",
                        )  # fmt: skip
                    browser = await cls._launch(executable, settings, hosts, False)
        except BaseException:
            await browser.close()
            raise
        return browser

    @classmethod
    async def _launch(cls, executable: Path, settings: Sandbox, hosts: tuple[str, ...], begin_frames: bool) -> Chromium:
        profile = Profile()
        reads, browser_writes = os.pipe()
        browser_reads, writes = os.pipe()
        guard_reads, life = os.pipe()
        theirs = [browser_reads, browser_writes, guard_reads]
        command = ["/bin/sh", "-c", _LAUNCH, str(2 * settings.page_mb * 1024)]
        if setpriv := shutil.which("setpriv"):
            command += [setpriv, "--pdeathsig", "KILL"]
        command += [str(executable), *_flags(settings, profile.path, hosts, begin_frames)]
        process = guard = browser = None
        try:
            # A session of its own: no Ctrl-C of the terminal reaches it, and one signal ends all its children.
            process = subprocess.Popen(  # noqa: ASYNC220 (a few ms, and the event loop must be its parent)
                command, stdin=browser_reads, stdout=browser_writes, stderr=subprocess.DEVNULL,
                start_new_session=True, env={**os.environ, "TZ": "UTC", "LANG": "C.UTF-8"},
            )  # fmt: skip
            guard = subprocess.Popen(  # noqa: ASYNC220
                ["/bin/sh", "-c", _GUARD, str(process.pid), str(profile.path)], stdin=guard_reads,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            while theirs:  # held here, they would hide that the browser is gone
                os.close(theirs.pop())
            connection = await Connection.open(reads, writes)
            browser = cls(process, guard, life, profile, connection, settings, begin_frames)
            attach = {"autoAttach": True, "waitForDebuggerOnStart": True, "flatten": True}
            await connection.call("Target.setAutoAttach", attach, timeout_s=_START_S)
            return browser
        except BaseException as error:
            for descriptor in (life,) if browser is None else ():
                os.close(descriptor)
            if browser is not None:
                await browser.close()
            elif process is not None:
                process.kill()
                process.wait()
            profile.remove()
            if isinstance(error, EnvError | OSError):
                code = process.poll() if process is not None else None
                said = f"it ended with code {code}" if code is not None else str(error)
                raise EnvError(
                    f"the browser did not start: {said}", where=executable, fix="try it by hand with --version"
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

    @property
    def tabs(self) -> int:
        return len(self._tabs)

    async def open_tab(self, width: int, height: int) -> Tab:
        """A tab, ready for a session. Raises EnvError where the browser is gone; the caller keeps the deadline."""
        if not self.alive:
            raise EnvError("the browser is gone", where=f"process {self.pid}")
        tab = Tab(self, self._connection, self.frames, self._settings, width, height)
        await tab.prepare()
        return tab

    def adopt(self, context: str, tab: Tab | None) -> None:
        """Targets of a browser context belong to a tab; None: to none any more."""
        if tab is None:
            self._tabs.pop(context, None)
        else:
            self._tabs[context] = tab

    def memory(self) -> int:
        """Bytes of memory that the browser and its children hold, shared pages counted in proportion (PSS)."""
        total = 0
        for pid in _group(self.pid):
            with contextlib.suppress(OSError, ValueError):
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                total += 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        return total

    def kill(self) -> None:
        """End it at once, with all its children."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if not self._buried:
                os.killpg(self.pid, signal.SIGKILL)

    async def close(self) -> None:
        """End it and wait until nothing is left of it; never raises, and may be called twice."""
        self.kill()
        self._connection.close()
        await _ended(self._process)
        await self._children_gone()
        self._buried = True
        if self._life >= 0:
            life, self._life = self._life, -1
            with contextlib.suppress(OSError):
                os.write(life, b"well\n")
            os.close(life)
        await _ended(self._guard)
        self.profile.remove()

    # -- inside ---------------------------------------------------------------------------------------------------
    async def _answers_begin_frame(self) -> bool:
        tab = await self.open_tab(64, 64)
        try:
            async with asyncio.timeout(_PROBE_S):
                await tab.page.draw()
            return True
        except (CommandError, TimeoutError):
            return False
        finally:
            await tab.close()

    async def _children_gone(self) -> None:
        """Whoever is left of the group is dying, and has the profile open until then."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                while _group(self.pid):
                    self.kill()
                    await asyncio.sleep(0.01)

    def _end(self) -> None:
        if not self.died.is_set():
            self.died.set()
            self.kill()  # a browser that lost its pipe would leave late, and its children after it

    def _hear(self, method: str, params: Mapping[str, Any]) -> None:
        if method == "Target.attachedToTarget":
            info, session = params["targetInfo"], params["sessionId"]
            tab = self._tabs.get(info.get("browserContextId", ""))
            if tab is not None and info["type"] == "page":
                tab.attached(session, info)
                return
            if info["type"] == "page":  # the page that some builds begin with, or one of a tab that is closed
                self._connection.post("Target.closeTarget", {"targetId": info["targetId"]})
            self._connection.post("Runtime.runIfWaitingForDebugger", session=session)
        elif method == "Target.detachedFromTarget":
            for tab in list(self._tabs.values()):
                tab.detached(params["sessionId"])


def _flags(settings: Sandbox, profile: Path, hosts: tuple[str, ...], begin_frames: bool) -> list[str]:
    reached = ", ".join(f"EXCLUDE {host}" for host in ("127.0.0.1", *hosts))
    return [
        *_FLAGS, *(_BEGIN_FRAME if begin_frames else ()), f"--disable-features={','.join(_FEATURES_OFF)}",
        f"--js-flags=--max-old-space-size={settings.heap_mb}", f"--user-data-dir={profile}",
        f"--host-resolver-rules=MAP * ~NOTFOUND, {reached}",  # pages reach no other machine
    ]  # fmt: skip


async def _ended(process: subprocess.Popen) -> None:
    """A process that was killed is reaped; one that the kernel cannot end within the deadline is left to it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_S):
            while process.poll() is None:  # noqa: ASYNC110 (the kernel tells nobody)
                await asyncio.sleep(0.002)


def _group(leader: int) -> list[int]:
    """Process ids of a process group, but for those that are dead and wait to be reaped."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, _, group = stat.read_text().rsplit(")", 1)[1].split()[:3]
            if int(group) == leader and state not in "ZX":
                found.append(int(stat.parent.name))
    return found
