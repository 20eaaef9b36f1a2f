"""Shared by all tests. Fast tests come first; what is marked slow comes last."""

from __future__ import annotations

import os
import signal
from pathlib import Path

# Two busy processes of two torch threads each stall one another; tests may run beside other work.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("DVC_NO_ANALYTICS", "1")
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")

import pytest
from hypothesis import settings

from flywheel.workspace import Workspace

# No deadline for an example: speed is measured in benchmarks/, and these machines are noisy.
settings.register_profile("flywheel", deadline=None)
settings.load_profile("flywheel")

# A runner that was started in the background ignores Ctrl-C; so would every command that tests send it to.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

PROJECT = Path(__file__).resolve().parent.parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)


@pytest.fixture(scope="session")
def project() -> Path:
    """The root of the source."""
    return PROJECT


@pytest.fixture
def ws(tmp_path: Path) -> Workspace:
    """An empty workspace: paths alone, nothing in it."""
    return Workspace(tmp_path)
