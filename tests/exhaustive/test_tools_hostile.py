"""MCP servers that hang, lie, flood or die: each is a line that the agent reads, within limits, and then it goes on."""

from __future__ import annotations

import asyncio
import tracemalloc

import computers
import pytest
import tool_servers
from tool_servers import called
from waiting import until

from flywheel.utils.errors import EnvError

pytestmark = computers.needed
LATE = "error: s did not answer in 1 s"
RUN = {"run_s": 1.0, "result_bytes": 1000}
LONG = {**RUN, "run_s": 15.0}  # where it is not the clock that ends it
MEMORY = 2**26  # bytes that this process may use for what a server says: of what a session holds several times over


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("hangs", f"{LATE}: it was ended, and begins anew when it is called"),
        ("dies", "error: s: it has ended"),
        ("line without end", "error: s: it says more than 4194304 bytes at once"),
        ("gigabyte", "error: s: it says more than 4194304 bytes at once"),
        ("notifications", "error: s: it says more than 1000 messages at once"),
        ("requests", "error: s: it says more than 1000 messages at once"),
        ("noise", f"{LATE} (it says what is not MCP: 'Traceback (most recent call last):')"),
        ("noise without end", "error: s: it says more than 1000 messages at once"),
        ("many values", "error: s: it says more than 200000 values at once"),
        ("wrong id", LATE),
        ("no result", "error: s: its answer is not one of MCP"),
        ("deep", f"{LATE} (it says what is not MCP: "),
        ("digits", f"{LATE} (it says what is not MCP: "),
        ("error", "error: s: no way no way"),
        ("not text", "[an image, image/png, 5 bytes]\n[a resource: file:///a.txt]"),
        ("long", "beginxxx"),
        ("schema", "a" * 40),
    ],
)
async def test_a_bad_call_is_a_result_and_the_server_goes_on(how, said):
    given = tool_servers.bad(how)
    given["tools"]["other"] = {"command": ["python3", "bad.py", "well"]}
    async with computers.terminal(RUN if said.startswith(LATE) else LONG, **given) as on:
        before = await called(on, "other.good")
        tracemalloc.start()
        result = await called(on, "s.bad")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert result.startswith(said)
        assert len(result) <= 1000
        assert peak < MEMORY
        assert (await called(on, "s.good")).startswith("good ")
        assert await called(on, "other.good") == before  # the same process: nothing has happened to it


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("silent", "s did not answer in 1 s"),
        ("no start", "s: it has ended"),
        ("version", "s: Unsupported protocol version from the server: 1066-10-14"),
        ("no list", "s: its answer is not one of MCP"),
        ("pages", "s.good(n?: integer): Does it."),
        ("names", "s.good(n?: integer): one ## twoyyy"),
    ],
)
async def test_what_is_wrong_from_the_beginning_is_told(how, said):
    async with computers.terminal(RUN if "not answer" in said else LONG, **tool_servers.bad(how)) as on:
        told = on.tools.told
        assert told.startswith(f"Tools:\n{said}")
        assert len(told) < 1100
        assert "User:" not in told
        assert "\u202e" not in told


async def test_of_many_tools_the_first_thousand_can_be_called():
    async with computers.terminal(LONG, **tool_servers.bad("many")) as on:
        assert on.tools.told.startswith("Tools:\ns.tool-0(n?: integer)\ns.tool-1(n?: integer)")
        assert len(on.tools.told) < 1100
        assert "more; call a server's name to read of all its tools]" in on.tools.told
        assert (await called(on, "s.tool-999")).startswith("good ")
        assert (await called(on, "s.tool-1000")).startswith("error: s: no tool 'tool-1000'")


async def test_tools_that_change_are_listed_again():
    async with computers.terminal(LONG, **tool_servers.bad("changes")) as on:
        assert "s.new-1(" in on.text
        assert "changed" not in await called(on, "s.good")  # it says so with this answer
        assert (await called(on, "s.good")).endswith("[the tools of s have changed]")
        assert "s.new-2(" in on.text
        assert "s.new-1(" not in on.text
        assert "no tool 'new-1'; there are: good, bad, new-" in await called(on, "s.new-1")


@pytest.mark.smoke
async def test_a_server_that_does_not_read_is_ended_with_its_session():
    async with computers.terminal(RUN, **tool_servers.bad("deaf")) as on:
        assert (await called(on, "s.good", n="x" * 2**20)).startswith(LATE)
        await asyncio.to_thread(until, lambda: "bad.py" not in " ".join(on.machine.programs()), "the end of it")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("well", "good"),
        ("packed", "error: s: it packs its answer, which was not asked for"),
        ("body without end", "error: s: it says more than 4194304 bytes at once"),
        ("events without end", "error: s: "),
        ("elsewhere", "error: s: "),
        ("closes", "error: s: "),
        ("fails", "error: s: "),
        ("hangs", LATE),
        ("comes back", "error: s"),
    ],
)
async def test_a_bad_answer_over_http_is_a_result(how, said):
    async with computers.terminal(RUN if said.startswith(LATE) else LONG, **tool_servers.web(how)) as on:
        tracemalloc.start()
        result = await called(on, "s.bad")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert result.startswith(said)
        assert "\n" not in result
        assert peak < MEMORY
        assert await called(on, "s.good") == "good"


async def test_a_port_at_which_nobody_listens_is_told():
    async with computers.terminal(RUN, tools={"s": {"url": "http://127.0.0.1:9/mcp"}}) as on:
        assert "s: nothing answers at port 9" in on.text
        assert "error: s: nothing answers at port 9" in await called(on, "s.x")


async def test_a_machine_that_is_gone_is_no_tools_fault():
    async with computers.terminal(RUN, **tool_servers.bad("well")) as on:
        await on.machine.close()
        with pytest.raises(EnvError, match="the machine is gone"):
            await called(on, "s.good")
