"""The kinds `terminal` and `computer`: they keep the contract, do what a task allows, and hold what verifiers read."""

from __future__ import annotations

import base64
import functools
import os
import signal

import computers
import desktops
import pytest
from computers import each_wall, small_world  # noqa: F401 - every test has its verifier

from flywheel.agent import actions as act
from flywheel.agent.actions import (
    CallUser,
    Click,
    Finished,
    Hotkey,
    ListFiles,
    Point,
    ReadFile,
    RunPython,
    Terminal,
    ToolCall,
    Type,
    Wait,
    WriteFile,
)
from flywheel.envs import registry
from flywheel.envs.computer import backend
from flywheel.envs.computer.computer import SDK_ACTION_TYPES, WarmPool
from flywheel.envs.conformance import check_env
from flywheel.envs.registry import open_environments
from flywheel.utils.errors import BadInput, EnvError, EnvTimeout

pytestmark = computers.needed
MIDDLE = Point(0.5, 0.5)
ASK = "python3 -c 'import socket, sys; socket.create_connection((\"localhost\", int(sys.argv[1])))' 2>/dev/null"
MOVES = (Terminal("cd /tmp; ls -a"), RunPython("x = 2\nx"), WriteFile("a/b", "1"), Terminal("pwd"), ListFiles("."))


class opened:
    """An environment of one task, after a reset: `async with opened("terminal") as (env, first)`."""

    def __init__(self, name: str, chosen: dict | None = None, **params) -> None:
        make = desktops.settings if name == "computer" else functools.partial(computers.settings, name)
        self._task = computers.task(name, **params)
        self._settings = make(**{"run_s": computers.RUN_S, **(chosen or {})})

    async def __aenter__(self):
        self._all = open_environments(self._settings, [self._task])
        self._one = (await self._all.__aenter__()).env(self._task)
        env = await self._one.__aenter__()
        try:
            return env, await env.reset(self._task, self._task.seed)
        except BaseException:
            await self.__aexit__()
            raise

    async def __aexit__(self, *_):
        await self._one.__aexit__(None, None, None)
        await self._all.__aexit__(None, None, None)


async def hang(env) -> None:
    """Stop its guest, and with it whatever answers."""
    os.kill(computers.guest(env._computer.machine), signal.SIGSTOP)


# -- the contract -----------------------------------------------------------------------------------------------------
async def test_a_terminal_passes_the_suite(apart):
    task = computers.task("terminal", setup=["mkdir made"], ports={"8000": "/"})
    chosen = computers.settings("terminal", timeout_s=8.0, machine={"walls": apart})
    async with open_environments(chosen, [task]) as environments:
        await check_env(lambda: environments.env(task), task, hang, able=frozenset(SDK_ACTION_TYPES), moves=MOVES)


@pytest.mark.exhaustive
@desktops.needed
async def test_a_computer_passes_the_suite(apart):
    """That with hands alone: tests/integration/test_desktop.py."""
    task, able = computers.task("computer", apps=[["xterm"]]), frozenset(SDK_ACTION_TYPES)
    chosen = desktops.settings(run_s=computers.RUN_S, machine={"walls": apart})
    async with open_environments(chosen, [task]) as environments:
        await check_env(lambda: environments.env(task), task, able=able, moves=(*MOVES, Click(MIDDLE), Type("a")))


# -- what is done, and what is not ------------------------------------------------------------------------------------
async def test_a_task_is_done_when_its_verifier_says_so():
    async with opened("terminal") as (env, first):
        assert (first.observation.text, first.observation.screenshot, first.observation.width) == ("~$", None, 0)
        assert first.info["state"] == {"files": {"notes.txt": "one\ntwo\n"}, "terminated": False}
        assert (await env.step(Terminal("echo no >done.txt"))).reward == 0
        done = await env.step(Terminal("echo yes >done.txt"))
        assert (done.reward, done.terminated, done.info["score"]) == (1.0, True, 1.0)
        with pytest.raises(EnvError, match="over"):
            await env.step(Wait())


async def test_a_terminal_says_what_it_has_not():
    async with opened("terminal") as (env, _):
        for action in (Click(MIDDLE), act.Press("a"), act.Navigate("a"), act.OpenApp("a"), ToolCall("a")):
            result = await env.step(action)
            assert result.info["note"] == f"a terminal has no {act.ACTION_NAMES[type(action)]}"
            assert "result" not in result.info


@desktops.needed
async def test_what_a_task_does_not_allow_is_not_done():
    async with opened("computer", allowed="sdk", apps=[["xterm"]]) as (env, first):
        assert first.observation.text == "~$"
        for action in (Click(MIDDLE), Type("touch x\n"), Hotkey(("a",))):
            result = await env.step(action)
            assert result.info["note"]
            assert result.observation.screenshot is None  # nor is anything to be read from the screen
        assert (await env.step(Terminal("cat"))).info["result"].startswith("[it waits for keys")
        assert "there\n" in (await env.step(Type("there\n"))).info["result"]  # keys go to the terminal
    async with opened("computer", allowed="gui", apps=[["xterm"]]) as (env, first):
        assert first.observation.text == ""
        for action in (Terminal("touch x"), RunPython("1"), ReadFile("notes.txt"), WriteFile("x", ""), ListFiles(".")):
            result = await env.step(action)
            assert "without functions" in result.info["note"]
            assert "result" not in result.info
        assert "x" not in result.info["state"]["files"]


@desktops.needed
async def test_hands_and_functions_share_one_home_and_one_desktop():
    async with opened("computer", files={"notes.txt": "one\n"}, apps=[["mousepad", "notes.txt"]]) as (env, _):
        for action in (Hotkey(("ctrl", "end")), Type("two\n"), Hotkey(("ctrl", "s"))):
            result = await env.step(action)
        assert result.info["state"]["files"]["notes.txt"] == "one\ntwo\n"
        assert (await env.step(ReadFile("notes.txt"))).info["result"] == "one\ntwo\n"
        assert (await env.step(RunPython("open('notes.txt').read()"))).info["result"] == "'one\\ntwo\\n'\n"
        shown = await env.step(Terminal("xterm -e 'sleep 60' & while ! xwininfo -name xterm 2>&1; do sleep 0.05; done"))
        assert shown.observation.screenshot != result.observation.screenshot


# -- what a task says -------------------------------------------------------------------------------------------------
async def test_a_task_says_what_it_begins_with_and_what_is_held():
    given = {
        "files": {"a/b.txt": "x", "empty/": "", ".config/own.ini": "[a]\n", ".config/other": ""},
        "binary": {"raw.bin": base64.b64encode(bytes(range(256))).decode()},
        "setup": ["cd a; echo secret; x=5; python3 -m http.server 8000 >/dev/null 2>&1 &", "gzip -k a/b.txt"],
        "hidden": [".config/own.ini"],
        "programs": True,
        "ports": {"8000": "/b.txt", "8001": "/"},
    }
    async with opened("terminal", **given) as (env, first):
        assert first.observation.text == "~$"
        done = await env.step(Terminal(f"until {ASK} 8000; do sleep 0.02; done; ls -A"))
        assert done.info["result"].split() == [".config", "a", "empty", "raw.bin"]
        state = (await env.step(Finished("42"))).info["state"]
        assert set(state["files"]) == {"a/", "a/b.txt", "a/b.txt.gz", "empty/", ".config/own.ini", "raw.bin"}
        assert state["ports"] == {"8000": "x", "8001": None}
        assert state["programs"] == ["python3 -m http.server 8000"]
        assert (state["answer"], state["terminated"]) == ("42", True)


ASKED = "python3 -c 'import urllib.request as r; print(r.urlopen(\"http://127.0.0.1:8000%s\").read().decode())'"


async def test_pages_of_a_site_are_named_as_in_a_browser():
    """With the first / or without; / is index.html."""
    async with opened("terminal", site={"/": "first", "/a/b.txt": "second"}) as (env, _):
        for path, text in {"/": "first", "/index.html": "first", "/a/b.txt": "second"}.items():
            assert (await env.step(Terminal(ASKED % path))).info["result"].strip() == text


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"setup": ["true", "echo why; false"]}, "set-up failed .exit status 1.: 'echo why; false': why"),
        ({"setup": ["exit"]}, "exit status None"),
        ({"files": {"a": 1}}, "params.files.a"),
        ({"binary": {"a": "???"}}, "not base64"),
        ({"allowed": "all"}, "params.allowed"),
        ({"site": {"/": "1", "index.html": "2"}}, "params.site: .*two texts of one page"),
        ({"files": {"/usr/x": "1"}}, "Read-only"),
    ],
)
async def test_a_task_that_cannot_begin_is_an_error_of_one_line(params, said):
    with pytest.raises(EnvError, match=said) as raised:
        async with opened("terminal", **params):
            pass
    assert not isinstance(raised.value, EnvTimeout)
    assert "\n" not in str(raised.value)


async def test_services_that_misbehave_are_none():
    """Each is a service that an agent could start."""
    serve = (
        "import socket\ns = socket.create_server(('127.0.0.1', 8000))\n"
        "while True:\n  c = s.accept()[0]; c.recv(999)\n  try: c.sendall({})\n  except OSError: pass\n  {}"
    )
    answers = {
        "b'HTTP/1.0 500 no\\r\\n\\r\\nbody'": None,
        "b'HTTP/1.0 302 go\\r\\nLocation: http://localhost:8000/x\\r\\n\\r\\n'": None,
        "b'nonsense'": None,
        "b''": None,
        "b'HTTP/1.0 200 ok\\r\\n\\r\\n' + b'x' * 10**7": None,
        "b'HTTP/1.0 200 ok\\r\\nContent-Length: 99\\r\\n\\r\\nshort'": None,
        "b'HTTP/1.0 200 ok\\r\\n\\r\\n\\xff'": "\ufffd",
    }
    async with opened("terminal", ports={"8000": "/"}) as (env, first):
        assert first.info["state"]["ports"] == {"8000": None}
        for answer, wanted in answers.items():
            await env.step(WriteFile("serve.py", serve.format(answer, "c.close()")))
            await env.step(Terminal(f"pkill -f serve.py; python3 serve.py & until {ASK} 8000; do sleep 0.02; done"))
            assert (await env.step(Terminal("true"))).info["state"]["ports"] == {"8000": wanted}, answer
        await env.step(WriteFile("serve.py", serve.format("b'HTTP/1.0 200 ok\\r\\n'", "import time; time.sleep(99)")))
        await env.step(Terminal("pkill -f serve.py; python3 serve.py &"))
        assert (await env.step(Terminal("true"))).info["state"]["ports"] == {"8000": None}


async def test_what_ends_an_episode():
    async with opened("terminal") as (env, _):
        assert (await env.step(CallUser())).terminated
        task = computers.task("terminal")
        await env.reset(task, 5)
        result = await env.step(Finished("x"))
        assert (result.terminated, result.reward, result.info["state"]["answer"]) == (True, 0.0, "x")


async def test_a_guest_that_is_gone_is_a_crash_and_the_next_lease_is_sound():
    task = computers.task("terminal")
    async with open_environments(computers.settings("terminal", warm=0), [task]) as environments:
        async with environments.env(task) as env:
            await env.reset(task, 5)
            os.kill(computers.guest(env._computer.machine), signal.SIGKILL)
            with pytest.raises(EnvError, match="gone") as raised:
                await env.step(Terminal("true"))
            assert not isinstance(raised.value, EnvTimeout)
            with pytest.raises(EnvError, match="broken"):
                await env.step(Wait())
        async with environments.env(task) as env:
            assert (await env.reset(task, 5)).observation.text == "~$"


async def test_nothing_is_left_of_what_waited():
    made = []

    class Opened:
        async def close(self):
            made.remove(self)

    async def start():
        made.append(one := Opened())
        return one

    async with WarmPool(start, 3) as warm:
        taken = await warm.take()
        assert (await warm.take()) is not taken
        warm.fill()
    assert len(made) == 2
    assert taken in made


# -- the kinds --------------------------------------------------------------------------------------------------------
def test_kinds_have_the_worlds_that_name_them():
    assert set(registry.find_backend("computer").suites()) == {
        world.name for world in backend.SHIPPED_COMPUTER_SUITES.values() if world.environment == "computer"
    }
    assert "desk" not in registry.find_backend("terminal").suites()


def test_a_step_must_have_time_for_its_command():
    with pytest.raises(BadInput, match="run_s is 30") as raised:
        registry.find_backend("terminal").check(computers.settings("terminal", run_s=30.0))
    assert "raise timeout_s to 35" in str(raised.value)
    with pytest.raises(BadInput, match=r"sandbox\.kinds\.terminal\.width"):
        registry.find_backend("terminal").check(computers.settings("terminal", width=800))


def test_only_what_changes_an_episode_is_its_identity():
    terminal, plain = registry.find_backend("terminal"), computers.settings("terminal")
    assert terminal.identity(plain) == terminal.identity(computers.settings("terminal", warm=7, timeout_s=99.0))
    assert terminal.identity(plain) != terminal.identity(computers.settings("terminal", result_bytes=999))
