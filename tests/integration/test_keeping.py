"""What is kept of an episode on a computer: what is brought back, what is told to be lost, and nobody is fooled."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import computers
import desktops
import managers
import pytest
from computers import small_world  # noqa: F401 - every test has its verifier
from test_terminal import opened

from flywheel.agent.actions import RunPython, Terminal, Wait
from flywheel.envs.base import Observation, StepResult
from flywheel.envs.conformance import CLAUSES, ConformanceCase
from flywheel.envs.registry import open_environments
from flywheel.utils.errors import EnvError

pytestmark = computers.needed
PICKLED = Path("/tmp/flywheel-pickled")


async def test_what_can_be_kept_is_brought_back_and_the_rest_is_told():
    begin = """mkdir -p "a b"; cd "a b"; count=5; export Y=$'q\\n\\'z'; declare -A table=([k]='v w')
greet() { echo "hi $1"; }
set -- one 'two three'; shopt -s nullglob; umask 077; echo x >x; sleep 999 & mkfifo pipe; : >/tmp/gone"""
    code = "import json as j\nclass C: pass\nkept = same = {'x': {1, 2}}\nlost = C()\ndef f(): pass"
    async with opened("terminal", setup=["sleep 888 &"]) as (env, _):
        await env.step(Terminal(begin))
        await env.step(RunPython(code))
        before = (await env.step(Wait())).observation.text
        kept = await env.save_partial()
        after = await env.step(Terminal("echo $count"))
        assert after.observation.text == before + " echo $count\n5\n~/a b$"  # nobody saw that it was asked
        await env.step(Terminal("rm -r ~/*; cd; count=6; unset -f greet"))
        brought = await env.restore_partial(kept)
        assert brought.info["state"]["files"] == {"a b/": "", "a b/x": "x\n", "notes.txt": "one\ntwo\n"}
        assert brought.observation.text == "~/a b$"
        shown = 'echo $count "$Y" "${table[k]}" $2 $(umask) $# $(shopt nullglob); greet you; ls; ls /tmp'
        said = (await env.step(Terminal(shown))).info["result"]
        assert said == "5 q\n'z v w two three 0077 2 nullglob on\nhi you\nx\n"
        assert (await env.step(RunPython("print(j.dumps(1), kept is same, kept)"))).info[
            "result"
        ] == "1 True {'x': {1, 2}}\n"
        assert "NameError" in (await env.step(RunPython("lost"))).info["result"]
        lost = brought.info["lost"]
        assert {"program: sleep 999", "program: sleep 888", "python: C", "python: f", "python: lost"} <= {*lost}
        assert "file: a b/pipe, which is no file" in lost
        assert not any("shell" in line for line in lost)


async def test_what_a_shell_holds_is_lost_while_it_is_busy():
    async with opened("terminal", chosen={"run_s": 0.2}) as (env, _):
        await env.step(Terminal("sleep 999"))
        kept = await env.save_partial()
        assert "program: sleep 999" in (lost := (await env.restore_partial(kept)).info["lost"])
        assert any(line.startswith("shell: a command was running") for line in lost)
        assert (await env.step(Terminal("echo fresh"))).info["result"] == "fresh\n"


def test_what_a_hostile_session_says_of_itself_stays_in_its_machine():
    """Its Python, its shell and its home are brought back in there, and nothing of them is run out here."""
    PICKLED.unlink(missing_ok=True)
    asyncio.run(_hostile())
    assert not PICKLED.exists()


async def _hostile() -> None:
    bad = """import os
class Bad:
    def __reduce__(self): return (os.system, ("touch /tmp/flywheel-pickled ~/pickled",))
bad = Bad()
"""
    slow = """class Slow:
    def __reduce__(self):
        while True: pass
slow = Slow()
"""
    async with opened("terminal", chosen={"timeout_s": 60.0}) as (env, _):
        await env.step(RunPython(bad))
        await env.step(Terminal("ln -s /etc/passwd link"))
        await env.restore_partial(await env.save_partial())
        assert (await env.step(Terminal("readlink link; ls -1"))).info["result"].startswith("/etc/passwd\nlink\n")
        await env.step(RunPython(slow))
        await env.step(Terminal("declare() { while :; do :; done; }"))
        kept = await env.save_partial()
        assert (await env.step(Terminal("echo goes on"))).info["result"] == "goes on\n"
        lost = [line.partition(":")[0] for line in (await env.restore_partial(kept)).info["lost"]]
        assert {"shell", "python"} <= {*lost}


@pytest.mark.exhaustive
@desktops.needed
async def test_the_applications_of_a_task_begin_anew():
    apps, files = [["mousepad", "notes.txt"], ["sh", "run"]], {"notes.txt": "one\n", "run": "exec xterm"}
    send = "curl -s -F name=Ada http://127.0.0.1:8000/send >/dev/null"
    async with opened("computer", apps=apps, files=files, site={"index.html": "x"}) as (env, first):
        await env.step(Terminal(send))
        await env.step(Terminal("cd /usr"))
        brought = await env.restore_partial(await env.save_partial())
        assert brought.observation.screenshot == first.observation.screenshot
        assert brought.info["state"]["received"] == [{"name": "Ada"}]
        assert (await env.step(Terminal("pwd; rm ~/run"))).info["result"] == "/usr\n"
        lost = (await env.restore_partial(await env.save_partial())).info["lost"]
        assert any(line.startswith("windows: sh ") for line in lost), lost


# -- who says that it keeps a part ------------------------------------------------------------------------------------
async def test_a_node_keeps_it_too(tmp_path, monkeypatch):
    monkeypatch.setenv(managers.TOKEN_VARIABLE, managers.SECRET)
    task, kinds = computers.task("terminal"), {"terminal": {"run_s": computers.RUN_S, "wait_ms": 10.0}}
    async with (
        managers.manager(tmp_path) as manager,
        managers.node(manager.address, settings=managers.chosen(kinds=kinds), kinds=("terminal",)),
        open_environments(managers.chosen(manager.address, kinds=kinds), [task]) as environments,
    ):
        moves = (Terminal("x=5; cd /tmp"), Terminal("echo $x $PWD"))
        await CLAUSES["keep and bring back"](ConformanceCase(lambda: environments.env(task), task, moves=moves))


class Claims:
    """An environment that keeps its step, but for a flaw."""

    def __init__(self, flaw: str) -> None:
        self._flaw, self._steps, self._task = flaw, -1, None

    def _result(self, **info) -> StepResult:
        shown = f"{self._steps} {id(self)}" if self._flaw == "is seen otherwise elsewhere" else str(self._steps)
        return StepResult(Observation(None, text=shown), truncated=self._steps >= self._task.max_steps, info=info)

    async def reset(self, task, seed) -> StepResult:
        self._steps, self._task = 0, task
        return self._result()

    async def step(self, action) -> StepResult:
        self._steps += 1
        return self._result()

    async def close(self) -> None:
        pass

    async def save_partial(self) -> bytes:
        at_work = self._task is not None and self._steps < self._task.max_steps
        if not at_work and self._flaw not in (("before a reset",) if self._task is None else ("after the end",)):
            raise EnvError("no episode")
        return b"step %d." % self._steps

    async def restore_partial(self, kept: bytes) -> StepResult:
        if not kept.endswith(b".") and self._flaw != "nobody kept":
            raise EnvError("none")
        self._steps = int(kept[5:-1]) if kept.startswith(b"step") and self._flaw != "count of its steps" else 0
        return self._result(**({} if self._flaw == "what is lost" else {"lost": []}))


@pytest.mark.parametrize(
    "flaw",
    ["", "before a reset", "after the end", "count of its steps", "what is lost", "seen otherwise", "nobody kept"],
)
async def test_who_does_not_keep_it_well_is_caught(flaw):
    @asynccontextmanager
    async def made():
        yield Claims("is seen otherwise elsewhere" if flaw == "seen otherwise" else flaw)

    checked = ConformanceCase(made, computers.task("terminal"), moves=(Wait(), Wait()))
    with pytest.raises(EnvError, match=flaw) if flaw else nullcontext():
        await CLAUSES["keep and bring back"](checked)
