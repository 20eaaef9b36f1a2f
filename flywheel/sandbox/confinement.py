"""Chromium's own sandbox, which keeps a page that takes over its process from the rest of the machine.

It needs user namespaces or a setuid helper beside the executable, and refuses to run as root. Whether it works is
found by the first start of an executable, at no cost where it does; the answer is kept for this process.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from flywheel.errors import EnvError
from flywheel.settings import Sandbox

ROOT = "flywheel runs as root, and Chromium refuses its sandbox to root"
FAILED = "Chromium does not start with it here: no user namespaces, and no setuid helper"
_FIXES = {
    ROOT: "run flywheel as another user",
    FAILED: "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1 "
    "kernel.apparmor_restrict_unprivileged_userns=0), or apt-get install chromium-sandbox",
}
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|AUTH|CREDENTIAL", re.IGNORECASE)
_failed: set[Path] = set()  # executables that did not start with it


def missing(executable: Path, settings: Sandbox) -> str:
    """Why a browser starts without its sandbox; "": it starts with it, as far as is known.

    Raises EnvError where it is required and cannot be.
    """
    if settings.chromium_sandbox == "off":
        return "sandbox.chromium_sandbox is off"
    why = ROOT if os.geteuid() == 0 else FAILED if executable in _failed else ""
    if why and settings.chromium_sandbox == "required":
        raise EnvError(f"no browser without its sandbox (sandbox.chromium_sandbox): {why}", fix=_FIXES[why])
    return why


def failed(executable: Path) -> None:
    """A browser started without its sandbox and did not with it."""
    _failed.add(executable)


def fix(why: str) -> str:
    """What to type against it."""
    return _FIXES.get(why, "set it to auto, or to required")


def environment() -> dict[str, str]:
    """Ours without what looks like a secret: a page that takes over a process of the browser finds none there."""
    return {name: text for name, text in os.environ.items() if not _SECRET.search(name)}
