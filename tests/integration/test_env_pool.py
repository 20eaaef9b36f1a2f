"""The pool on real browsers: crashes, kills, hung pages, and a clean end however the process ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
import pytest_asyncio
from night import by_day
from pages import script, task_of
from processes import descendants, gone
from routed_rows import route

from flywheel.agent.actions import Wait
from flywheel.config import RolloutSettings, SandboxSettings, Settings
from flywheel.envs.browser.driver import chromium
from flywheel.envs.browser.fleet import Closed, Crashed, Started
from flywheel.envs.browser.pool import PoolWatchdog, open_browser_pool
from flywheel.envs.registry import EnvRouter
from flywheel.rollout.episode import run_rollout
from flywheel.store.schema import record_to_row
from flywheel.utils import child_processes
from flywheel.utils.errors import BadInput, EnvError, EnvTimeout

pytestmark = pytest.mark.asyncio(loop_scope="module")
TILES = task_of("tiles", "clear")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool():
    """A pool of one page."""
    async with open_browser_pool(Settings(sandbox=SandboxSettings(browsers=1, pages=1, timeout_s=30))) as opened:
        yield opened


async def test_a_task_whose_page_does_not_load_is_named_and_quarantined_not_scored(pool, monkeypatch):
    task = task_of("shop", "add")
    new_session = pool.source.new_session
    monkeypatch.setattr(pool.source, "new_session", lambda *given: new_session(*given) + "/no/such/page")
    async with pool.env() as env:
        with pytest.raises(EnvError, match="the page does not load: it answered status 404"):
            await env.reset(task, 0)
    (episode,) = await run_rollout(
        [task],
        1,
        StillPolicy(),
        EnvRouter({"browser": pool}),
        iteration=1,
        settings=Settings(rollout=RolloutSettings(retries=1)),
        temperature=1.0,
    )
    assert episode.trajectory.status == "crashed"
    assert "does not load" in episode.trajectory.error
    (decision,) = route([record_to_row("trajectories", episode.trajectory)], [])
    assert decision["destination"] == "quarantine"
    assert "does not load" in decision["reason"]


class StillPolicy:
    """Never asked: no screen comes."""

    weight_version = "still"


async def test_a_crashed_page_costs_its_session_and_no_more(pool):
    async with pool.env() as env:
        await env.reset(TILES, 0)
        with pool.events.stream(Crashed) as crashes:
            with pytest.raises(EnvError):
                await env.tab.page.send("Page.crash")
            assert (await anext(crashes)).session == env.session
        with pytest.raises(EnvError):
            await env.reset(TILES, 0)
    async with pool.env() as env:
        assert (await env.reset(TILES, 0)).info["score"] == 0


@pytest.mark.exhaustive
async def test_a_killed_browser_costs_its_session_and_no_more(pool):
    async with pool.env() as env:
        await env.reset(TILES, 0)
        os.kill(env.page.host.pid, signal.SIGKILL)
        with pytest.raises(EnvError):
            await env.step(Wait())
    async with pool.env() as env:
        assert (await env.reset(TILES, 0)).info["score"] == 0


async def test_an_error_of_the_user_of_a_lease_frees_the_page(pool):
    async def fail():
        async with pool.env() as env:
            await env.reset(TILES, 0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with pool.env() as env:
        await env.reset(TILES, 0)


async def test_a_page_that_hangs_by_itself_is_ended_and_its_neighbour_does_not_notice():
    """In one browser, with no call under way in either page."""
    settings = Settings(sandbox=SandboxSettings(browsers=1, pages=2, timeout_s=3))
    async with open_browser_pool(settings) as pool, pool.env() as sound:
        async with pool.env() as hung:
            await hung.reset(TILES, 0)
            before = await sound.reset(TILES, 0)
            await script(
                hung,
                "void new Promise(r => { const c = new MessageChannel(); c.port1.onmessage = () => {"
                "for(;;); }; c.port2.postMessage(0); })",
            )
            await pool.watchdog.end_hung_pages()
            with pytest.raises(EnvTimeout, match="hangs"):
                await hung.step(Wait())
        assert (await sound.step(Wait())).info["state"] == before.info["state"]
        async with pool.env() as fresh:
            await fresh.reset(TILES, 0)
        assert fresh.page.host is sound.page.host


async def test_a_page_that_takes_too_much_memory_is_ended_and_its_neighbour_does_not_notice():
    settings = SandboxSettings(browsers=1, pages=2, timeout_s=30)
    async with open_browser_pool(Settings(sandbox=settings)) as pool, pool.env() as greedy, pool.env() as modest:
        await greedy.reset(TILES, 0)
        await modest.reset(TILES, 0)
        await script(greedy, "window.kept = new Uint8Array(2e8).fill(1), 0")
        await pool.watchdog.limit_memory()
        await greedy.step(Wait())
        # The limit comes down, rather than the page's need up: the test would take a gigabyte.
        pool.watchdog = PoolWatchdog(pool, settings.model_copy(update={"page_mb": 200}))
        await pool.watchdog.limit_memory()
        with pytest.raises(EnvError, match=r"crashed|gone|died"):
            await greedy.step(Wait())
        await modest.step(Wait())
        status = await pool.status()
    assert 50 < status.memory_mb < 900
    assert len(status.browsers[0].pids) >= 3


async def test_a_recording_plays_in_a_browser(pool, tmp_path):
    async with pool.env(record=tmp_path) as env:
        await env.reset(TILES, 0)
        for _ in range(3):
            await env.step(Wait())
    (film,) = tmp_path.iterdir()
    numbers = ",".join(map(str, film.read_bytes()))
    async with pool.env() as env:
        await env.reset(TILES, 0)
        frames = await script(
            env,
            f"(async () => {{ const d = new ImageDecoder({{type: 'image/png', data: new Uint8Array([{numbers}])}});"
            "await d.tracks.ready; await d.completed; const t = d.tracks.selectedTrack;"
            "const {image} = await d.decode({frameIndex: 3});"
            "return [t.animated, t.frameCount, image.displayWidth]; })()",
        )
    assert frames == [True, 4, 224]


@pytest.mark.exhaustive
async def test_step_history_stays_flat_as_browsers_are_replaced():
    """Each browser serves its share and no more; nothing of the old ones stays."""
    settings = SandboxSettings(browsers=1, pages=1, timeout_s=30, recycle_after=4)
    async with open_browser_pool(Settings(sandbox=settings)) as pool:
        events = pool.events.stream(Started, Closed)
        for _ in range(12):
            async with pool.env() as env:
                await env.reset(TILES, 0)
    seen = [event async for event in events if not event.page]
    started = [event.browser for event in seen if isinstance(event, Started)]
    closed = [(event.browser, event.why) for event in seen if isinstance(event, Closed)]
    assert len(set(started)) == 3
    assert closed == [(pid, "episodes") for pid in started]
    assert await gone(started)


# -- the end of the process ---
_HOLD = """
import asyncio, sys
from flywheel.config import SandboxSettings, Settings
from flywheel.envs.browser.pool import open_browser_pool
from flywheel.envs.tasks.drawing import make_tasks

async def main():
    settings = Settings(sandbox=SandboxSettings(browsers=2, pages=2, timeout_s=60))
    async with open_browser_pool(settings) as pool, pool.env() as one, pool.env() as two:
        for env in (one, two):
            await env.reset(make_tasks(settings, 0, "eval")[0], 0)
        for host in pool.fleet.hosts:
            print(host.chromium.profile.path, flush=True)
        print("ready", flush=True)
        if "raise" in sys.argv:
            raise ZeroDivisionError
        if "wait" in sys.argv:
            await asyncio.Event().wait()

asyncio.run(main())
"""
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("how", "number"),
    by_day([("return", 0), ("raise", 0), ("wait", signal.SIGINT), ("wait", signal.SIGTERM), ("wait", signal.SIGKILL)]),
)
async def test_nothing_outlives_its_process(how, number):
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _HOLD, how, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=ROOT
    )
    folders, family = [], []
    try:
        while (line := (await child.stdout.readline()).decode().strip()) != "ready":
            assert line, (await child.stderr.read()).decode()
            folders.append(Path(line))
        family = descendants(child.pid)
        if number:
            assert sum("chrom" in name for _, name in family) >= 4
            child.send_signal(number)
        await asyncio.wait_for(child.wait(), 60)
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    assert len(folders) == 2
    assert await gone(pid for pid, _ in family)
    if number in (signal.SIGTERM, signal.SIGKILL):
        assert set(child_processes.remove_abandoned_folders()) >= {folder for folder in folders if folder.exists()}
    assert not any(folder.exists() for folder in folders)


async def test_a_missing_browser_says_what_to_type(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))
    with pytest.raises(BadInput, match="playwright install"):
        chromium.find_chromium(SandboxSettings())
    with pytest.raises(BadInput, match="no-such-browser"):
        chromium.find_chromium(SandboxSettings(executable="no-such-browser"))
    shell = tmp_path / "chromium_headless_shell-1" / "linux" / "headless_shell"
    shell.parent.mkdir(parents=True)
    shell.touch(mode=0o755)
    assert chromium.find_chromium(SandboxSettings()) == shell
    for name in ("chromium_headless_shell-999", "chromium_headless_shell-1148", "chromium-2000"):
        newer = tmp_path / name / "linux" / ("chrome" if name == "chromium-2000" else "headless_shell")
        newer.parent.mkdir(parents=True)
        newer.touch(mode=0o755)
    assert chromium.find_chromium(SandboxSettings()).parts[-3] == "chromium_headless_shell-1148"


async def test_a_script_is_passed_over_for_its_binary_and_another_binary_of_the_name_is_not(monkeypatch, tmp_path):
    library = tmp_path / "lib" / "chromium"
    monkeypatch.setattr(chromium, "_LIBRARIES", (library,))
    found = {}
    for name, content in ((library, b"\x7fELF"), (tmp_path / "own", b"\x7fELF"), (tmp_path / "script", b"#!/bin/sh\n")):
        name.mkdir(parents=True)
        found[name.name] = name / "chromium"
        found[name.name].write_bytes(content)
        found[name.name].chmod(0o755)
    for chosen, right in (("own", "own"), ("script", "chromium")):
        assert chromium.find_chromium(SandboxSettings(executable=str(found[chosen]))) == found[right]


async def test_a_browser_that_does_not_start_is_an_env_error(tmp_path):
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    settings = Settings(sandbox=SandboxSettings(browsers=1, pages=1, executable=str(broken)))
    async with open_browser_pool(settings) as pool:
        with pytest.raises(EnvError, match="did not start"):
            await pool.env().__aenter__()
