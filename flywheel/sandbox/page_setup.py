"""What a new page is told first, and what runs in its documents and workers ahead of their own scripts: clock, chance,
loads, what is refused."""

from __future__ import annotations

import json
from typing import Any

from flywheel.sandbox import scripts
from flywheel.sandbox.loads import PATTERNS, POLICY

# Worklets wait too, whatever the filter says: who is not told of one cannot let it go on.
_WORKERS = {
    "autoAttach": True,
    "waitForDebuggerOnStart": True,
    "flatten": True,
    "filter": [{"type": "iframe", "exclude": True}, {}],
}


# What a phone's browser says of itself; the version is nobody's.
_PHONE = (
    "Mozilla/5.0 (Linux; Android 14; Phone) AppleWebKit/537.36 (KHTML, like Gecko) "
    "Chrome/140.0.0.0 Mobile Safari/537.36"
)
_TOUCH: list[tuple[str, dict[str, Any]]] = [
    ("Emulation.setTouchEmulationEnabled", {"enabled": True, "maxTouchPoints": 5}),
    ("Emulation.setUserAgentOverride", {"userAgent": _PHONE, "platform": "Linux armv81"}),
]


def commands(width: int, height: int, touch: bool = False) -> list[tuple[str, dict[str, Any]]]:
    """Methods of the protocol with their parameters. touch: a phone's page, which has fingers for a mouse."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": touch}
    media = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    return [
        ("Page.enable", {}),
        ("Inspector.enable", {}),
        # No animation moves by itself: a frame that is drawn before the clock knows of one shows its beginning.
        ("Animation.enable", {}),
        ("Animation.setPlaybackRate", {"playbackRate": 0}),
        ("Input.setInterceptDrags", {"enabled": True}),
        ("Page.setInterceptFileChooserDialog", {"enabled": True}),
        ("Target.setAutoAttach", _WORKERS),
        ("Emulation.setDeviceMetricsOverride", metrics),
        ("Emulation.setFocusEmulationEnabled", {"enabled": True}),
        ("Emulation.setEmulatedMedia", {"features": media}),
        # Each document is asked for at our hands: where it may go, and which time it is.
        ("Fetch.enable", {"patterns": PATTERNS}),
        *(_TOUCH if touch else ()),
    ]


def document_script(seed: int, start: float, patience: float) -> str:
    """start: page time in ms. patience: real ms that loads are waited for."""
    config = {"seed": seed, "start": start, "patience": patience, "policy": POLICY}
    return scripts.DOCUMENT.replace("= CONFIG;", f"= {json.dumps(config)};")


def worker_script(seed: int, start: float) -> str:
    return scripts.WORKER.replace("= CONFIG", f"= {json.dumps({'seed': seed, 'start': start})}")
