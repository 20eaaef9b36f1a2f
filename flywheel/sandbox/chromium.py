"""Which Chromium runs the pages."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from flywheel.errors import BadInput
from flywheel.settings import Sandbox

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_LIBRARIES = (Path("/usr/lib/chromium"), Path("/usr/lib/chromium-browser"), Path("/usr/lib64/chromium"))
_FIX = "install one (`apt install chromium-headless-shell` or `playwright install chromium-headless-shell`)"


def find(settings: Sandbox) -> Path:
    """The executable set in `sandbox.executable`, else chromium-headless-shell, chromium, google-chrome, playwright's.

    A binary under lib/chromium goes before a shell wrapper of the same name, which would orphan it when killed.
    Raises BadInput that says what to type where there is none.
    """
    if settings.executable:
        found = shutil.which(settings.executable)
        if found is None:
            raise BadInput(
                "not an executable file",
                where=f"sandbox.executable: {settings.executable}",
                fix="name another, or leave it empty to use the first one found",
            )
        return _unwrapped(Path(found))
    for name in _NAMES:
        found = shutil.which(name)
        if found is not None:
            return _unwrapped(Path(found))
    for path in _playwright():
        return path
    raise BadInput("no Chromium is installed", where="sandbox.executable", fix=f"{_FIX}, or set its path there")


def _unwrapped(path: Path) -> Path:
    for folder in _LIBRARIES:
        binary = folder / path.name
        if binary.is_file() and os.access(binary, os.X_OK):
            return binary
    return path


def _playwright() -> list[Path]:
    """Browsers fetched by `playwright install`, newest first."""
    root = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache" / "ms-playwright")
    found = [*root.glob("chromium_headless_shell-*/*/*headless*shell*"), *root.glob("chromium-*/*/chrome")]
    return sorted((path for path in found if path.is_file() and os.access(path, os.X_OK)), reverse=True)
