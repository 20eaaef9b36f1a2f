"""Shared by all tests: fixtures, and the order in which files run."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from unittest import mock

# Two busy processes of two torch threads each stall one another; tests may run beside other work.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("DVC_NO_ANALYTICS", "1")
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")

import pytest
from hypothesis import settings

from flywheel.sandbox import isolation
from flywheel.workspace import Workspace

# No deadline for an example: speed is measured in benchmarks/, and these machines are noisy.
settings.register_profile("flywheel", deadline=None)
settings.load_profile("flywheel")

# A runner that was started in the background ignores Ctrl-C; so would every command that tests send it to.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# `make test` plays every sixth template of a site and each game at some of its levels, `make test-worlds` all at all.
EVERY_LEVEL = bool(os.environ.get("FLYWHEEL_EVERY_LEVEL"))

SHARED = "PYTEST_XDIST_WORKER" in os.environ  # several workers share the tests

PROJECT = Path(__file__).resolve().parent.parent


# Files that take five seconds of a core or more, the longest first (`test_` and `.py` left out). `make test-fast`
# leaves them out. One that is missing here costs nothing but balance.
SLOW = (
    "sites",
    "turn",
    "games",
    "control",
    "env_hostile",
    "third_party",
    "trial",
    "terminal",
    "workers",
    "controls",
    "desktop",
    "phone",
    "adb",
    "escape",
    "shell",
    "tools_hostile",
    "manifest_pages",
    "env_worlds",
    "env_browser",
    "ppo_training",
    "rl_killed",
    "cluster",
    "trainers",
    "pretrain",
    "tools",
    "engines",
    "dialogs",
    "serve",
    "apart",
    "own_pool",
    "checkup",
    "watching_pages",
    "watching_machines",
    "watching",
    "postgres",
    "flows",
    "route_form",
    "review_form",
    "rl_stream",
    "recovery",
    "races",
    "gpu_check",
    "versioning",
    "publisher",
    "policy_servers",
    "policy_servers_real",
    "env_pool",
    "bench_worlds",
    "remote_policy",
    "rl_processes",
    "object_store",
    "page_command",
    "policy_conformance",
    "pool_chaos",
    "recognizer",
    "page_identity",
    "site_ends",
    "recording_ingest",
    "parser_properties",
    "tasks",
    "discard",
    "hostile_settings",
    "catalog",
    "loopback",
    "game_tabs",
    "embedded_policy",
    "dialog_origins",
    "backend",
    "browser_keys",
    "report",
    "explorer",
    "explorer_sql",
    "explorer_pages",
    "explorer_review_page",
    "contracts",
    "page_servers",
    "engine",
    "tab",
    "checkpoints",
    "history",
    "general",
    "supervised",
    "answer_form",
    "merge",
    "route_review",
    "reroute",
    "upkeep",
    "closed",
    "notebook",
    "catalog_file",
    "catalog_views",
    "duplicates",
    "dedup",
    "exchange",
    "resident",
    "whisper",
    "routing",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow files come last; where several workers share them they come first, so that none is left alone at the end."""
    rank = {f"test_{name}": place for place, name in enumerate(SLOW)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank) if SHARED else -1))
    for item in items:
        if item.path.stem in rank:
            item.add_marker("slow")


@pytest.fixture(scope="session")
def project() -> Path:
    """The root of the source."""
    return PROJECT


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`past.three`, which all workers share."""
    import past

    folder = tmp_path_factory.getbasetemp()
    return past.three(folder.parent if SHARED else folder)


@pytest.fixture
def ws(tmp_path: Path) -> Workspace:
    """An empty workspace: paths alone, nothing in it."""
    return Workspace(tmp_path)


@pytest.fixture(params=["apart", "beside"])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Servers of pages are kept apart from this machine, or are not."""
    if request.param == "beside":
        monkeypatch.setattr(isolation, "missing", lambda: "the test says so")
    elif isolation.missing():
        pytest.skip(isolation.missing())
    return request.param


@pytest.fixture(scope="module")
def prefect(tmp_path_factory: pytest.TempPathFactory):
    """The server that `flywheel run` starts, and this process as its client: its address and its workspace."""
    from flows.server import prefect_server

    ws = Workspace(tmp_path_factory.mktemp("served"))
    with mock.patch.dict(os.environ), prefect_server(ws) as url:
        from prefect.context import refresh_global_settings_context

        refresh_global_settings_context()
        yield url, ws
    refresh_global_settings_context()


@pytest.fixture(scope="module")
def browser():
    """A Chromium, by Playwright."""
    from playwright.sync_api import sync_playwright

    from flywheel.sandbox import chromium
    from flywheel.settings import Sandbox

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=str(chromium.find(Sandbox())), args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def cluster():
    """A PostgreSQL of the module's own."""
    from postgres import postgres

    with postgres() as found:
        yield found
