"""The protocol over pipes, and the process behind it."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest
import pytest_asyncio
from browser_pages import browser
from hypothesis import given
from hypothesis import strategies as st

from flywheel.envs.browser.driver.cdp import CdpCommandError, CdpConnection
from flywheel.utils.child_processes import list_process_group, measure_memory
from flywheel.utils.errors import EnvError, EnvTimeout

in_module_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium():
    async with browser() as started:
        yield started


@in_module_loop
async def test_commands_written_at_once_are_answered_each(chromium):
    tab = await chromium.open_tab(64, 64)
    answers = await asyncio.gather(*(tab.page.evaluate(f"'{n}'.repeat(300000)") for n in range(5)))
    assert [(answer[0], len(answer)) for answer in answers] == [(str(n), 300000) for n in range(5)]
    await tab.close()


@in_module_loop
async def test_a_command_that_is_refused_says_which(chromium):
    with pytest.raises(CdpCommandError, match=r"wasn't found \(No.suchCommand\)"):
        await chromium._connection.send("No.suchCommand")


@in_module_loop
async def test_a_command_that_is_not_answered_meets_its_deadline(chromium):
    tab = await chromium.open_tab(64, 64)
    with pytest.raises(EnvTimeout, match=r"did not answer Runtime\.evaluate within 0\.05 s"):
        await chromium._connection.call(
            "Runtime.evaluate", {"expression": "for(;;);"}, tab.page.session, timeout_s=0.05
        )
    await tab.close()


@in_module_loop
async def test_what_a_killed_browser_was_asked_fails_at_once_and_nothing_is_left():
    async with browser() as started:
        tab = await started.open_tab(64, 64)
        asked = tab.page.send("Runtime.evaluate", {"expression": "new Promise(() => {})", "awaitPromise": True})
        family = list_process_group(started.pid)
        assert len(family) > 2
        assert sum(process.mb for process in measure_memory([started.pid])[started.pid]) > 1
        os.kill(started.pid, signal.SIGKILL)
        with pytest.raises(EnvError, match="gone"):
            await asked
        await started.died.wait()
        with pytest.raises(EnvError, match="gone"):
            await tab.page.evaluate("1")
        with pytest.raises(EnvError, match="gone"):
            await started.open_tab(64, 64)
    assert not list_process_group(started.pid)
    assert not started.profile.path.exists()


@in_module_loop
async def test_a_browser_is_closed_twice_without_harm():
    async with browser() as started:
        await started.close()
        assert not started.alive


@given(
    st.lists(
        st.one_of(st.text(max_size=30), st.integers(), st.dictionaries(st.text(max_size=5), st.text())), max_size=6
    ),
    st.lists(st.integers(1, 40), min_size=1, max_size=40),
)
@pytest.mark.exhaustive
def test_messages_arrive_whole_however_the_pipe_cuts_them(values, cuts):
    async def run():
        connection, heard = CdpConnection(), []
        connection.listen("s", lambda method, params: heard.append((method, params["value"])))
        waiting = [asyncio.get_running_loop().create_future() for _ in values]
        stream = b""
        for number, value in enumerate(values):
            connection._waiting[number] = (waiting[number], "A.b", "")
            stream += json.dumps({"id": number, "result": {"value": value}}).encode() + b"\0"
            stream += (
                json.dumps({"method": f"E.{number}", "params": {"value": value}, "sessionId": "s"}).encode() + b"\0"
            )
        at = 0
        while at < len(stream):
            for cut in cuts:
                connection.data_received(stream[at : at + cut])
                at += cut
        assert [answer.result()["value"] for answer in waiting] == values
        assert heard == [(f"E.{number}", value) for number, value in enumerate(values)]

    asyncio.run(run())
