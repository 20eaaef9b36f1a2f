"""Desktops for tests; where a machine cannot show one, the tests are passed over and say why."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest
from PIL import Image

from flywheel.config import Settings, parse_settings
from flywheel.envs.computer import desktop
from flywheel.envs.computer.desktop import Desktop
from flywheel.envs.computer.machine import MachineSettings

LACKING = desktop.list_missing_packages({"mousepad": "mousepad", "pcmanfm": "pcmanfm", "xterm": "xterm"})
needed = pytest.mark.skipif(bool(LACKING), reason=f"no desktop without {', '.join(LACKING)}")


def settings(**chosen) -> Settings:
    """Small screens, and waits that are as short as determinism lets them be."""
    small = {"width": 480, "height": 360, "wait_ms": 30.0}
    return parse_settings({"sandbox": {"kinds": {"computer": small | chosen}}}, where="test")


@asynccontextmanager
async def opened(files: Mapping[str, str], apps: Sequence[Sequence[str]]) -> AsyncIterator[Desktop]:
    made = await Desktop.start(480, 360, MachineSettings())
    try:
        for path, text in files.items():
            await made.machine.put(path, text.encode())
        await made.launch(apps)
        yield made
    finally:
        await made.close()


def picture(png: bytes) -> Image.Image:
    return Image.open(io.BytesIO(png)).convert("RGB")
