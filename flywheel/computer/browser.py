"""The desktop's browser: a Chromium with a window, which has no network but its machine's own.

Its own sandbox is off: it cannot be made within the machine's, which keeps what a page might break out to apart from
this machine and from all others.
"""

from __future__ import annotations

APP = "browser"  # how a task's `apps` call it; the next word is an address
PROGRAM = "chromium"
_BINARY = "/usr/lib/chromium/chromium"  # what the program's shell wrapper starts, after looking for what is not there
_STILL = (
    "--no-sandbox", "--test-type", "--no-first-run", "--no-default-browser-check", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--disable-extensions",
    "--disable-gpu", "--disable-smooth-scrolling", "--password-store=basic", "--lang=en-US",
    "--hide-crash-restore-bubble",
    "--disable-features=Translate,MediaRouter,OptimizationHints,DownloadBubblePartialView", "--start-maximized",
    "--force-device-scale-factor=1", "--user-data-dir=/tmp/chromium", "--disk-cache-dir=/dev/null",
)  # fmt: skip


def command(address: str) -> list[str]:
    """Of a window at that address. What it downloads goes to the folder Downloads of the home."""
    return [_BINARY, *_STILL, address]
