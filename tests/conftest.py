"""Shared by all tests: fixtures, tiers, and the order in which files run."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from unittest import mock

# Two busy processes of two torch threads each stall one another; tests may run beside other work.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Ray gives its workers the lowest priority but four: beside four tests they would get a thirtieth of a core.
os.environ.setdefault("RAY_worker_niceness", "0")
os.environ.setdefault("DVC_NO_ANALYTICS", "1")
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")

import psutil
import pytest
from forked_workers import fork_workers
from hypothesis import settings
from night import NIGHT, by_day

from flywheel.config.workspace import Workspace
from flywheel.envs import isolation

# No deadline for an example: speed is measured in benchmarks/, and these machines are noisy.
settings.register_profile("flywheel", deadline=None, max_examples=500 if NIGHT else 20)
settings.load_profile("flywheel")

# A runner that was started in the background ignores Ctrl-C; so would every command that tests send it to.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED = "PYTEST_XDIST_WORKER" in os.environ  # several workers share the tests

# All that the tests write and copy, 60,000 small files of 1.2 GB in all, costs a third in memory of what it does on a
# disk.
if shutil.disk_usage("/dev/shm").free > 2**33 < psutil.virtual_memory().available:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")

TESTS = Path(__file__).resolve().parent
PROJECT = TESTS.parent


TIERS = ("unit", "integration", "e2e", "exhaustive")  # folders, and marks of the tests in them


def tier(item: pytest.Item) -> str | None:
    """Return the tier of a test: the folder of tests/ that it lies in."""
    return _tier_of_file(item.path)


@cache
def _tier_of_file(path: Path) -> str | None:
    return next((name for name in TIERS if TESTS / name in path.parents), None)


# Where several workers share the tests, heavy tiers begin first, so that no long file ends alone: unit tests fill up.
_ORDER = ("e2e", "exhaustive", "integration", "unit")


# tryfirst: before `-m` chooses by these marks.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by its tier; a case that is marked `exhaustive` (`night.by_day`) belongs to that one alone."""
    if SHARED:
        items.sort(key=lambda item: _ORDER.index(tier(item) or "unit"))
    for item in items:
        if (name := tier(item)) and not item.get_closest_marker("exhaustive"):
            item.add_marker(name)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list) -> None:
    fork_workers(config, specs)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu", action="store_true", help="print CPU seconds of tests and files, ended children's too")


_cpu_before = 0.0
_cpu_of_tests: Counter[str] = Counter()


def _cpu_s() -> float:
    return sum(os.times()[:4])  # user and system, of this process and of the children it has waited for


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo) -> Iterator[None]:
    """Give each report the CPU seconds since the report before it; fixtures' are among them."""
    global _cpu_before
    report = yield
    if call.when == "setup" and not _cpu_before:
        _cpu_before = max(0.0, _cpu_s() - call.duration)  # the first test's fixtures may have waited
    now = _cpu_s()
    report.cpu_s, _cpu_before = now - _cpu_before, now
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _cpu_of_tests[report.nodeid] += getattr(report, "cpu_s", 0.0)  # none of a worker that crashed


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    if config.getoption("--cpu"):
        files: Counter[str] = Counter()
        for test, seconds in _cpu_of_tests.items():
            files[test.partition("::")[0]] += seconds
        terminalreporter.section("CPU seconds")
        for name, seconds in (*_cpu_of_tests.most_common(60), *files.most_common(), ("in all", files.total())):
            terminalreporter.write_line(f"{seconds:8.1f} {name}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Remove what the tests wrote, where all passed; else it is there to be read, and the next run removes it."""
    if not SHARED and exitstatus == pytest.ExitCode.OK and not session.config.getoption("basetemp"):
        shutil.rmtree(session.config._tmp_path_factory.getbasetemp(), ignore_errors=True)


# Of a unit test, with its fixtures: what it began, or reached, outside of this process.
_BEGINS = {"subprocess.Popen", "os.fork", "os.posix_spawn", "socket.connect", "socket.bind"}
_begun: list[str] | None = None


def _watch(event: str, arguments: tuple) -> None:
    if _begun is not None and event in _BEGINS:
        _begun.append(f"{event} {arguments[:2]}")


sys.addaudithook(_watch)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    global _begun
    _begun = [] if tier(item) == "unit" else None


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """Refuse what a unit test begins: it belongs into another tier."""
    global _begun
    yield
    begun, _begun = _begun, None
    assert not begun, f"not a unit test: {begun}"


@pytest.fixture(scope="session")
def project() -> Path:
    """The root of the source."""
    return PROJECT


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers have."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if SHARED else folder


@pytest.fixture(scope="session")
def three_iterations(shared: Path) -> Path:
    """A workspace with iterations 1 to 3 of `made_workspaces`, complete; to be copied."""
    import made_workspaces

    return made_workspaces.once(shared, "three", lambda folder: made_workspaces.made(folder, 3))


@pytest.fixture(scope="session")
def one_iteration(shared: Path) -> Path:
    """A workspace with iteration 1 of `minimal_iterations`, complete; to be copied."""
    import made_workspaces
    import minimal_iterations

    return made_workspaces.once(shared, "turned", minimal_iterations.turned)


@pytest.fixture
def ws(tmp_path: Path) -> Workspace:
    """An empty workspace: paths alone, nothing in it."""
    return Workspace(tmp_path)


@pytest.fixture(params=by_day(["apart", "beside"]))
def isolation_mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Servers of pages are kept apart from this machine, or are not."""
    if request.param == "beside":
        monkeypatch.setattr(isolation, "explain_missing_bwrap", lambda: "the test says so")
    elif isolation.explain_missing_bwrap():
        pytest.skip(isolation.explain_missing_bwrap())
    return request.param


@pytest.fixture(scope="module")
def prefect(tmp_path_factory: pytest.TempPathFactory):
    """The server that `flywheel run` starts, and this process as its client: its address and its workspace. As on
    machines with a proxy in the environment, which serves none of this machine's own addresses."""
    from flows.ops.prefect_server import open_prefect_server

    ws = Workspace(tmp_path_factory.mktemp("served"))
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    with mock.patch.dict(os.environ, proxies), open_prefect_server(ws) as url:
        from prefect.context import refresh_global_settings_context

        refresh_global_settings_context()
        yield url, ws
    refresh_global_settings_context()


@pytest.fixture(scope="module")
def browser():
    """A Chromium, by Playwright."""
    from playwright.sync_api import sync_playwright

    from flywheel.config import SandboxSettings
    from flywheel.envs.browser.driver import chromium

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(
            executable_path=str(chromium.find_chromium(SandboxSettings())), args=["--no-sandbox"]
        )
        yield found
        found.close()


@pytest.fixture(scope="module")
def postgres_server():
    """A PostgreSQL of the module's own."""
    from postgres import postgres

    with postgres() as found:
        yield found


@pytest.fixture
def no_tensor_cores() -> Iterator[None]:
    """For float32, until the test takes them (`fused.take_tensor_cores`)."""
    import torch

    products = torch.backends.cuda.matmul
    before, products.allow_tf32 = products.allow_tf32, False
    yield
    products.allow_tf32 = before
