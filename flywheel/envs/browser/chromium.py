"""Find the Chromium executable, and whether its own sandbox works here."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from flywheel.config import SandboxSettings
from flywheel.utils.errors import BadInput, EnvError

# The executable.

_PROGRAM_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_LIBRARIES = (Path("/usr/lib/chromium"), Path("/usr/lib/chromium-browser"), Path("/usr/lib64/chromium"))
_INSTALL_FIX = "install one (`apt install chromium-headless-shell` or `playwright install chromium-headless-shell`)"


def find_chromium(settings: SandboxSettings) -> Path:
    """Find the browser's executable: that of `sandbox.executable`, or else the first one that is installed.

    `sandbox.executable` is a path (relative to the current folder) or a name on PATH. Where it is empty,
    chromium-headless-shell, chromium and google-chrome are looked for on PATH, then what `playwright install` fetched.
    A binary under lib/chromium goes before a shell wrapper of the same name, which would orphan it when killed. Nothing
    is started. Raises BadInput that says what to type where there is none, or none of the name that is set.
    """
    if settings.executable:
        found = shutil.which(settings.executable)
        if found is None:
            raise BadInput(
                "not an executable file",
                where=f"sandbox.executable: {settings.executable}",
                fix="name another, or leave it empty to use the first one found",
            )
        return _skip_shell_wrapper(Path(found))
    for name in _PROGRAM_NAMES:
        found = shutil.which(name)
        if found is not None:
            return _skip_shell_wrapper(Path(found))
    for path in _list_playwright_browsers():
        return path
    raise BadInput("no Chromium is installed", where="sandbox.executable", fix=f"{_INSTALL_FIX}, or set its path there")


def _skip_shell_wrapper(path: Path) -> Path:
    for folder in _LIBRARIES:
        binary = folder / path.name
        if binary.is_file() and os.access(binary, os.X_OK):
            return binary
    return path


def _list_playwright_browsers() -> list[Path]:
    """Browsers fetched by `playwright install`, newest first."""
    root = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache" / "ms-playwright")
    found = [*root.glob("chromium_headless_shell-*/*/*headless*shell*"), *root.glob("chromium-*/*/chrome")]
    return sorted((path for path in found if path.is_file() and os.access(path, os.X_OK)), reverse=True)


# Chromium's own sandbox, which confines a page that takes over its process.
#
# It needs user namespaces or a setuid helper beside the executable, and refuses to run as root. The first start of an
# executable shows whether it works, at no cost where it does; this process remembers the answer.

RUNS_AS_ROOT = "flywheel runs as root, and Chromium refuses its sandbox to root"
SANDBOX_FAILED = "Chromium does not start with it here: no user namespaces, and no setuid helper"
_SANDBOX_FIXES = {
    RUNS_AS_ROOT: "run flywheel as another user",
    SANDBOX_FAILED: "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1 "
    "kernel.apparmor_restrict_unprivileged_userns=0), or apt-get install chromium-sandbox",
}
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|AUTH|CREDENTIAL", re.IGNORECASE)
_executables_without_sandbox: set[Path] = set()  # executables that did not start with it


def explain_missing_chromium_sandbox(executable: Path, settings: SandboxSettings) -> str:
    """Explain why the browser `executable` starts without its sandbox; "": it starts with it, as far as is known.

    Raises EnvError where `sandbox.chromium_sandbox` requires it and it cannot be.
    """
    if settings.chromium_sandbox == "off":
        return "sandbox.chromium_sandbox is off"
    why = RUNS_AS_ROOT if os.geteuid() == 0 else SANDBOX_FAILED if executable in _executables_without_sandbox else ""
    if why and settings.chromium_sandbox == "required":
        raise EnvError(f"no browser without its sandbox (sandbox.chromium_sandbox): {why}", fix=_SANDBOX_FIXES[why])
    return why


def record_chromium_sandbox_failure(executable: Path) -> None:
    """Record that the browser `executable` started without its sandbox and did not with it."""
    _executables_without_sandbox.add(executable)


def suggest_chromium_sandbox_fix(why: str) -> str:
    """Suggest what to type where the sandbox is missing. why: as `explain_missing_chromium_sandbox` says it."""
    return _SANDBOX_FIXES.get(why, "set it to auto, or to required")


def environment_without_secrets() -> dict[str, str]:
    """Give our environment without what looks like a secret, for processes that a page may take over."""
    return {name: text for name, text in os.environ.items() if not _SECRET.search(name)}
