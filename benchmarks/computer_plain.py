"""What parts share: PyAutoGUI at work on a desktop of its own, which is not kept apart from this machine."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

import flywheel
from flywheel.utils.errors import BadInput, EnvTimeout

_GUEST = Path(flywheel.__file__).parent / "envs" / "computer_server"
_READY_S, _RUN_S = 10.0, 300.0


@contextmanager
def desktop(width: int, height: int, apps: Sequence[Sequence[str]]) -> Iterator[tuple[str, Path]]:
    """The name of its display, and its home folder."""
    with tempfile.TemporaryDirectory(prefix="flywheel-plain-") as folder:
        home = Path(folder, "home")
        home.mkdir()
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8"}
        guest = subprocess.Popen([sys.executable, str(_GUEST), "--socket", f"{folder}/guest"], env=environment)
        try:
            with httpx.Client(transport=httpx.HTTPTransport(uds=f"{folder}/guest"), base_url="http://guest") as client:
                _wait(client)
                body = {"width": width, "height": height, "apps": [list(words) for words in apps]}
                told = client.post("/desktop/start", json=body, timeout=_READY_S).raise_for_status().json()
                yield told["display"], home
        finally:
            guest.terminate()
            guest.wait()


def needs_pyautogui() -> None:
    """Raises BadInput where it is not installed: before minutes of measuring, not after them."""
    if importlib.util.find_spec("pyautogui") is None:
        raise BadInput("PyAutoGUI, the peer, is missing", where=sys.executable, fix="`scripts/setup test` does it")


def pyautogui(display: str, program: str, *words: str) -> dict:
    """What a program that has PyAutoGUI at hand prints last, as JSON."""
    head = "import json, sys, time, pyautogui\npyautogui.PAUSE, pyautogui.FAILSAFE = 0, False\n"
    environment = {**os.environ, "DISPLAY": display}
    ran = subprocess.run(
        [sys.executable, "-c", head + program, *words], env=environment, capture_output=True, text=True, check=True,
        timeout=_RUN_S,
    )  # fmt: skip
    return json.loads(ran.stdout.splitlines()[-1])


def _wait(client: httpx.Client) -> None:
    """Until the guest listens: its socket is there a moment before."""
    until = time.monotonic() + _READY_S
    while True:
        with suppress(httpx.ConnectError):
            client.get("/")
            return
        if time.monotonic() > until:
            raise EnvTimeout(f"the guest did not start in {_READY_S:g} s")
        time.sleep(0.01)
