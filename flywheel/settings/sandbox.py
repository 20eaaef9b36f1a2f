"""Block `sandbox`: the browsers in which tasks are done, and the other kinds of environments."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from flywheel.settings.block import Block, Domain


class Sandbox(Block):
    """The browsers in which tasks are done: screens, how many run at once, deadlines, memory, pictures of episodes."""

    backend: Literal["local", "manager"] = "local"
    """Where environments are. local: on this machine. manager: on the nodes of the manager."""
    manager: str = Field("", pattern=r"^(cluster|https?://[^\s/]+(:\d+)?/?)?$")
    """Address of the manager, such as http://HOST:4300. Its token is read from FLYWHEEL_SANDBOX_TOKEN. cluster: the run
    has one itself, with the nodes of its Ray cluster that have browsers."""
    user: str = Field("", max_length=100)
    """Name under which the manager counts sessions. Empty: the user's."""
    width: int = Field(224, ge=64, le=4096)
    """Width of the screen, in pixels."""
    height: int = Field(224, ge=64, le=4096)
    """Height of the screen, in pixels."""
    browsers: int = Field(2, ge=1, le=256)
    """Browsers that run at once, at most. There are as many as the load asks for."""
    pages: int = Field(8, ge=1, le=4096)
    """Pages that are open at once over all browsers, at most. An episode takes one."""
    pages_min: int = Field(1, ge=0)
    """Pages that stay open whatever the load."""
    step_ms: int = Field(200, ge=0)
    """Milliseconds that pass on the page's own clock in a step. The clock stands still between steps."""
    timeout_s: float = Field(10.0, gt=0)
    """Seconds until a reset or a step must be done."""
    wait_s: float = Field(600.0, gt=0)
    """Seconds that an episode waits for a free page."""
    lease_s: float = Field(3600.0, gt=0)
    """Seconds after which a page is taken back from its episode."""
    silent_s: float = Field(600.0, gt=0)
    """Seconds without a step after which a page is taken back. Twice policy.timeout_s or more."""
    idle_s: float = Field(60.0, ge=0)
    """Seconds after which a page or browser that nobody uses is closed."""
    recycle_after: int = Field(200, ge=1)
    """Episodes after which a browser is replaced by a fresh one."""
    browser_mb: int = Field(2048, ge=256)
    """Memory, in MB, of a browser and its pages above which it is replaced by a fresh one."""
    page_mb: int = Field(1024, ge=512)
    """Memory, in MB, of one page above which it is ended, which counts as a crash."""
    executable: str = ""
    """The Chromium to use. Empty: the first one found."""
    chromium_sandbox: Literal["auto", "required", "off"] = "auto"
    """Chromium's own sandbox, which keeps a page from this machine. auto: on where the machine allows it."""
    frames: Literal["auto", "begin_frame", "screenshot"] = "auto"
    """How screens are taken. auto: begin_frame where this build of Chromium has it."""
    heap_mb: int = Field(512, ge=64)
    """JavaScript memory of a page, in MB, at most."""
    download_mb: int = Field(50, ge=0)
    """Size, in MB, above which a download is cancelled."""
    record: Literal["none", "failed", "all"] = "none"
    """Episodes kept as animated pictures (PNG), which every browser plays. failed: not solved, or crashed."""
    record_folder: str = Field("episodes", min_length=1)
    """Folder of the kept episodes, in the workspace."""
    record_mb: int = Field(200, ge=1)
    """Size of the folder of kept episodes, in MB, at most. The oldest make room."""
    kinds: dict[Domain, dict[str, Any]] = Field({})
    """Settings of other kinds of environments than browsers, by the kind's name. Each kind says itself what it has."""
