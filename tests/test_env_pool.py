"""The pool of browsers: crashes, kills, and a clean end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import pytest_asyncio
from pages import swallow, task_of

from flywheel.agent.actions import Wait
from flywheel.errors import BadInput, EnvError
from flywheel.rollout.pool import rollout
from flywheel.sandbox import chromium
from flywheel.sandbox.pool import open_sandbox
from flywheel.settings import Rollout, Sandbox, Settings
from flywheel.store.routing import route

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool():
    """A pool of one page."""
    async with open_sandbox(Settings(sandbox=Sandbox(browsers=1, pages=1, timeout_s=30))) as opened:
        yield opened


async def test_a_task_whose_page_does_not_load_is_named_and_quarantined_not_scored(pool, monkeypatch):
    task = task_of("shop", "add")
    new_session = pool._server.new_session
    monkeypatch.setattr(pool._server, "new_session", lambda *given: new_session(*given) + "/no/such/page")
    async with pool.env() as env:
        with pytest.raises(EnvError, match="the page does not load: it answered status 404"):
            await env.reset(task, 0)
    (episode,) = await rollout(
        [task], 1, StillPolicy(), pool, iteration=1, settings=Settings(rollout=Rollout(retries=1)), temperature=1.0
    )
    assert episode.trajectory["status"] == "crashed"
    assert "does not load" in episode.trajectory["error"]
    (decision,) = route([episode.trajectory], [], 1.0)
    assert decision["destination"] == "quarantine"
    assert "does not load" in decision["reason"]


class StillPolicy:
    """Never asked: no screen comes."""

    weight_version = "still"


async def test_a_crashed_page_costs_its_lease_and_no_more(pool):
    task = task_of("tiles", "clear")
    async with pool.env() as env:
        await env.reset(task, 0)
        crash = asyncio.ensure_future(swallow(env._cdp.send("Page.crash")))
        with pytest.raises(EnvError, match="crashed in a step"):
            await env.step(Wait())
        crash.cancel()
        with pytest.raises(EnvError, match="broken"):
            await env.reset(task, 0)
    async with pool.env() as env:
        assert (await env.reset(task, 0)).info["score"] == 0


async def test_a_killed_browser_costs_its_lease_and_no_more(pool):
    task = task_of("shop", "add")
    async with pool.env() as env:
        await env.reset(task, 0)
        inspector = await env._page.context.browser.new_browser_cdp_session()
        processes = (await inspector.send("SystemInfo.getProcessInfo"))["processInfo"]
        os.kill(next(process["id"] for process in processes if process["type"] == "browser"), signal.SIGKILL)
        with pytest.raises(EnvError):
            await env.step(Wait())
    async with pool.env() as env:
        assert (await env.reset(task, 0)).info["score"] == 0


async def test_an_error_of_the_user_of_a_lease_frees_the_page(pool):
    async def fail():
        async with pool.env() as env:
            await env.reset(task_of("tiles", "clear"), 0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with pool.env() as env:
        await env.reset(task_of("tiles", "clear"), 0)


_HOLD = """
import asyncio
from flywheel.settings import Sandbox, Settings
from flywheel.sandbox.pool import open_sandbox
from flywheel.synthesis.tasks import make_tasks

async def main():
    settings = Settings(sandbox=Sandbox(browsers=1, pages=1, timeout_s=60))
    async with open_sandbox(settings) as pool, pool.env() as env:
        await env.reset(make_tasks(settings, 0, "eval")[0], 0)
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_no_browser_outlives_a_killed_parent():
    root = Path(__file__).parent.parent
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", _HOLD, stdout=asyncio.subprocess.PIPE, cwd=root)
    try:
        assert await parent.stdout.readline() == b"ready\n"
        family = _descendants(parent.pid)
        assert any("chrom" in name for _, name in family)
    finally:
        parent.kill()
        await parent.wait()
    deadline = time.monotonic() + 20
    while left := [pid for pid, _ in family if _alive(pid)]:
        assert time.monotonic() < deadline, f"still there: {left}"
        await asyncio.sleep(0.05)


async def test_a_missing_browser_says_what_to_type(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))
    with pytest.raises(BadInput, match="playwright install"):
        chromium.find(Sandbox())
    with pytest.raises(BadInput, match="no-such-browser"):
        chromium.find(Sandbox(executable="no-such-browser"))
    shell = tmp_path / "chromium_headless_shell-1" / "linux" / "headless_shell"
    shell.parent.mkdir(parents=True)
    shell.touch(mode=0o755)
    assert chromium.find(Sandbox()) == shell


async def test_a_browser_that_does_not_start_is_an_env_error(tmp_path):
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    settings = Settings(sandbox=Sandbox(browsers=1, pages=1, executable=str(broken)))
    async with open_sandbox(settings) as pool:
        with pytest.raises(EnvError, match="did not start"):
            await pool.env().__aenter__()


def _descendants(pid: int) -> list[tuple[int, str]]:
    """Processes below `pid`, with their names."""
    children: dict[int, list[tuple[int, str]]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
        children.setdefault(int(rest[1]), []).append((int(stat.parent.name), name))
    found, queue = [], [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += [child for child, _ in below]
    return found


def _alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False
