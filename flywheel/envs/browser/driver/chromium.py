"""Find the Chromium executable, start it with or without its sandbox, watch it, and end it with all its children.

The browser ends when this process dies, even by `kill -9`: it exits when its debugging pipe closes, and
`child_processes.py` ends its children.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import re
import shutil
import signal
import subprocess
from functools import partial
from pathlib import Path

import yaml

from flywheel.config import SandboxSettings
from flywheel.envs.browser.driver import cdp
from flywheel.envs.browser.driver.cdp import BrowserLink, CdpCommandError, CdpConnection
from flywheel.envs.browser.driver.tab import BrowserTab
from flywheel.utils import child_processes
from flywheel.utils.child_processes import PrivateFolder, ProcessGuard
from flywheel.utils.errors import BadInput, EnvError

# The executable.

_PROGRAM_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_LIBRARIES = (Path("/usr/lib/chromium"), Path("/usr/lib/chromium-browser"), Path("/usr/lib64/chromium"))
_INSTALL_FIX = "install one (`apt install chromium-headless-shell` or `playwright install chromium-headless-shell`)"


def find_chromium(settings: SandboxSettings, headed: bool = False) -> Path:
    """Find the browser's executable: that of `sandbox.executable`, or else the first one that is installed.

    `sandbox.executable` is a path (relative to the current folder) or a name on PATH. Where it is empty,
    chromium-headless-shell, chromium and google-chrome (by Debian's names too) are looked for on PATH, then among the
    browsers of `playwright install`. In place of a shell script the binary of the same name is taken, where
    /usr/lib/chromium or a similar folder has it: the script, if killed, would leave the browser running. headed: one
    that has windows. Nothing is started. Raises BadInput where there is none, or not the one that is set.
    """
    for name in (settings.executable,) if settings.executable else _PROGRAM_NAMES[headed:]:
        if found := shutil.which(name):
            return _skip_shell_wrapper(Path(found))
    if settings.executable:
        fix = "name another, or leave it empty to use the first one found"
        raise BadInput("not an executable file", where=f"sandbox.executable: {settings.executable}", fix=fix)
    for path in _list_playwright_browsers():
        if not (headed and "headless" in path.name):
            return path
    raise BadInput("no Chromium is installed", where="sandbox.executable", fix=f"{_INSTALL_FIX}, or set its path there")


_DRIVER_TIMEOUT_S = 30.0


def check_playwright_driver() -> str:
    """Start the Node.js that Playwright brings along, to see whether it works, and return its version (`v22.1.0`).

    A minimal system lacks a library that it needs (libatomic1 in Debian), and Playwright then tells of a closed
    connection alone. Raises BadInput where it does not start within 30 seconds.
    """
    (package,) = importlib.util.find_spec(
        "playwright"
    ).submodule_search_locations  # its import takes a tenth of a second
    node = Path(package, "driver", "node")
    try:
        asked = subprocess.run(
            [node, "--version"], capture_output=True, text=True, timeout=_DRIVER_TIMEOUT_S, check=False
        )
        why = "" if asked.returncode == 0 else asked.stderr.strip() or f"status {asked.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    if why:
        fix = "apt-get install libatomic1, or type scripts/setup again"
        raise BadInput(f"Playwright's driver does not start: {why}", where=node, fix=fix)
    return asked.stdout.strip()


def _skip_shell_wrapper(path: Path) -> Path:
    with path.open("rb") as file:
        if file.read(2) != b"#!":
            return path
    for folder in _LIBRARIES:
        binary = folder / path.name
        if binary.is_file() and os.access(binary, os.X_OK):
            return binary
    return path


def _list_playwright_browsers() -> list[Path]:
    """List the browsers of `playwright install`: headless shells first, of each kind the newest build first."""
    root = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache" / "ms-playwright")
    found = [*root.glob("chromium_headless_shell-*/*/*headless*shell*"), *root.glob("chromium-*/*/chrome")]

    def rank(path: Path) -> tuple[str, int, Path]:
        kind, _, build = path.relative_to(root).parts[0].rpartition("-")
        return kind, int(build) if build.isdecimal() else 0, path

    return sorted((path for path in found if path.is_file() and os.access(path, os.X_OK)), key=rank, reverse=True)


# Chromium's own sandbox confines a page that takes over its process. It needs user namespaces or a setuid helper beside
# the executable, and refuses to run as root. The first start of an executable shows whether it works.

RUNS_AS_ROOT = "flywheel runs as root, and Chromium refuses its sandbox to root"
SANDBOX_FAILED = "Chromium does not start with it here: no user namespaces, and no setuid helper"
_SANDBOX_FIXES = {
    RUNS_AS_ROOT: "run flywheel as another user",
    SANDBOX_FAILED: "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1 "
    "kernel.apparmor_restrict_unprivileged_userns=0), or apt-get install chromium-sandbox",
}
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|AUTH|CREDENTIAL", re.IGNORECASE)
_executables_without_sandbox: set[Path] = set()  # which did not start with their sandbox


def explain_missing_chromium_sandbox(executable: Path, settings: SandboxSettings) -> str:
    """Explain, in a phrase, why a browser starts without Chromium's own sandbox; "" where it starts with it.

    "" too where its sandbox has not been tried yet in this process. executable: path of the browser, as it is started.
    settings: the block `sandbox`. Raises EnvError where these require the sandbox and it cannot work.
    """
    if settings.chromium_sandbox == "off":
        return "sandbox.chromium_sandbox is off"
    why = RUNS_AS_ROOT if os.geteuid() == 0 else SANDBOX_FAILED if executable in _executables_without_sandbox else ""
    if why and settings.chromium_sandbox == "required":
        raise EnvError(f"no browser without its sandbox (sandbox.chromium_sandbox): {why}", fix=_SANDBOX_FIXES[why])
    return why


def suggest_chromium_sandbox_fix(why: str) -> str:
    """Suggest how to get Chromium's sandbox where it is missing. why: from `explain_missing_chromium_sandbox`."""
    return _SANDBOX_FIXES.get(why, "set it to auto, or to required")


def environment_without_secrets() -> dict[str, str]:
    """Return our environment variables without likely secrets, for processes that a page may take over."""
    return {name: text for name, text in os.environ.items() if not _SECRET.search(name)}


# The process.

log = logging.getLogger(__name__)
_START_TIMEOUT_S = 60.0  # deadline of a start, which is slow on a busy machine
_FLAGS = yaml.safe_load(Path(__file__).with_name("chromium_flags.yaml").read_text(encoding="utf-8"))
_NETWORK_FLAGS = _FLAGS["network"]
_PIPE_REDIRECTS = "3<&0 4>&1 </dev/null >/dev/null"  # the browser reads its commands from descriptor 3 and writes to 4
_PROBE_TIMEOUT_S = 20.0
_takes_begin_frames: dict[Path, bool] = {}  # whether each executable has HeadlessExperimental.beginFrame


class _EndedAtStart(EnvError):
    """Report that a browser ended by itself while it was started."""


class Chromium:
    """Hold a running browser, made by `Chromium.start`. died: set as soon as the browser is gone, for any reason."""

    def __init__(
        self,
        process: subprocess.Popen,
        guard: ProcessGuard,
        profile: PrivateFolder,
        connection: CdpConnection,
        settings: SandboxSettings,
        begin_frames: bool,
        touch: bool,
    ) -> None:
        self._process, self._guard, self.profile, self._connection = process, guard, profile, connection
        self.frames = cdp.ScreenshotCapture(connection)
        if begin_frames:
            self.frames = cdp.BeginFrameCapture(connection, settings, self.kill)
        self.died = asyncio.Event()
        self._buried = False  # its process id may be another process's
        self._link = BrowserLink(connection, self.frames, cdp.TargetRouter(connection), settings, profile.path, touch)
        connection.closed.add_done_callback(lambda _: self._end())

    @classmethod
    async def start(cls, executable: Path, settings: SandboxSettings, touch: bool = False) -> Chromium:
        """Start the browser `executable`. settings: the block `sandbox`. touch: its tabs are phones.

        It is started anew without its sandbox, or without begin-frame control, where it cannot have these and the
        settings let it. Raises EnvError where it does not start, each time within a minute, or lacks what they require.
        """
        launch = partial(cls._launch, executable, settings, touch)
        wanted = settings.frames != "screenshot" and _takes_begin_frames.get(executable, True)
        browser = await launch(wanted)
        try:
            if wanted and executable not in _takes_begin_frames:
                _takes_begin_frames[executable] = await browser._answers_begin_frame()
                if not _takes_begin_frames[executable]:
                    await browser.close()
                    if settings.frames == "begin_frame":
                        what = "this build has no HeadlessExperimental.beginFrame"
                        fix = "set sandbox.frames to auto, or install chromium-headless-shell"
                        raise EnvError(what, where=executable, fix=fix)
                    browser = await launch(False)
        except BaseException:
            await browser.close()
            raise
        return browser

    @classmethod
    async def _launch(cls, executable: Path, settings: SandboxSettings, touch: bool, begin_frames: bool) -> Chromium:
        """Start the browser, with its own sandbox where that works."""
        run = partial(cls._run, executable, settings, touch, begin_frames)
        if explain_missing_chromium_sandbox(executable, settings):
            return await run(confined=False)
        try:
            return await run(confined=True)
        except _EndedAtStart:
            if settings.chromium_sandbox == "required":
                raise
            browser = await run(confined=False)
        _executables_without_sandbox.add(executable)
        why = explain_missing_chromium_sandbox(executable, settings)
        log.warning("%s runs without its sandbox: %s", executable, why)
        return browser

    @classmethod
    async def _run(
        cls, executable: Path, settings: SandboxSettings, touch: bool, begin_frames: bool, confined: bool
    ) -> Chromium:
        profile = PrivateFolder()
        reads, browser_writes = os.pipe()
        browser_reads, writes = os.pipe()
        theirs = [browser_reads, browser_writes]
        command = [str(executable), *_list_flags(settings, profile.path, begin_frames, confined)]
        process = guard = browser = None
        try:
            # In its own process session no Ctrl-C of the terminal reaches it, and one signal ends all its children.
            process = subprocess.Popen(  # noqa: ASYNC220 (a few ms, and the event loop must be its parent)
                child_processes.limit_command(command, 2 * settings.page_mb, redirect=_PIPE_REDIRECTS),
                stdin=browser_reads,
                stdout=browser_writes,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env=environment_without_secrets() | {"TZ": "UTC", "LANG": "C.UTF-8"},
            )
            guard = ProcessGuard(process.pid, profile.path)
            while theirs:  # open here, they would hide that the browser is gone
                os.close(theirs.pop())
            connection = await CdpConnection.open(reads, writes)
            browser = cls(process, guard, profile, connection, settings, begin_frames, touch)
            attach = {"autoAttach": True, "waitForDebuggerOnStart": True, "flatten": True}
            await connection.call("Target.setAutoAttach", attach, timeout_s=_START_TIMEOUT_S)
            return browser
        except BaseException as error:
            if browser is not None:
                await browser.close()
            elif process is not None:
                child_processes.kill_process_group(process.pid)
                process.wait()
                if guard is not None:
                    await guard.release()
            profile.remove()
            if isinstance(error, EnvError | OSError):
                code = process.poll() if process is not None else None
                what = f"the browser did not start: {f'it ended with code {code}' if code is not None else error}"
                kind = EnvError if code in (None, -signal.SIGKILL) else _EndedAtStart
                raise kind(what, where=executable, fix="try it by hand with --version") from error
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)

    # -- called by the pool ---------------------------------------------------------------------------------------
    @property
    def pid(self) -> int:
        """Return the id of the browser's process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Tell whether the browser is still there."""
        return not self.died.is_set()

    async def open_tab(self, width: int, height: int) -> BrowserTab:
        """Open a tab of `width` x `height` pixels, without a deadline. Raises EnvError where the browser is gone."""
        if not self.alive:
            raise EnvError("the browser is gone", where=f"process {self.pid}")
        tab = BrowserTab(self._link, (width, height))
        await tab.prepare()
        return tab

    def kill(self) -> None:
        """Kill the browser at once, with all its children."""
        if not self._buried:
            child_processes.kill_process_group(self.pid)

    async def close(self) -> None:
        """Kill the browser and wait until all its processes and files are gone; may be called twice, never raises."""
        self.kill()
        for owner in self._link.targets.owners.values():
            if isinstance(owner, BrowserTab):
                owner.disconnect()
        self._connection.close()
        await child_processes.reap_process(self._process)
        if not self._buried:
            await child_processes.wait_group_gone(self.pid)
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
            self.kill()  # a browser without its pipe would exit late, its children later still


def _list_flags(settings: SandboxSettings, profile: Path, begin_frames: bool, confined: bool) -> list[str]:
    return [
        *_FLAGS["base"],
        *_NETWORK_FLAGS,
        *(_FLAGS["begin_frame"] if begin_frames else ()),
        *(() if confined else ("--no-sandbox",)),
        f"--disable-features={','.join(_FLAGS['disabled_features'])}",
        f"--js-flags=--max-old-space-size={settings.heap_mb}",
        f"--user-data-dir={profile}",
    ]
