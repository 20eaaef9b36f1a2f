"""The world errands: real applications and a browser on a desktop, with functions in the same home."""

from __future__ import annotations

import computers
import pytest
from night import NIGHT, by_day

from flywheel.agent.actions import Click, Finished, Hotkey, Point, RunPython, Terminal, Wait
from flywheel.envs.computer import desktop
from flywheel.envs.registry import open_environments
from flywheel.envs.suites.chores.world import ERRANDS
from flywheel.envs.tasks.drawing import make_task

LACKING = desktop.list_missing_packages(
    {desktop.BROWSER_PROGRAM: desktop.BROWSER_PROGRAM, "galculator": "galculator", "gnumeric": "gnumeric"}
)
pytestmark = [computers.needed, pytest.mark.skipif(bool(LACKING), reason=f"no errands without {', '.join(LACKING)}")]


def errand(name: str, level: int = 1, seed: int = 3):
    return make_task(ERRANDS, name, level, seed, "train")


@pytest.mark.parametrize("name", by_day([name for name in ERRANDS.families if NIGHT or not name.startswith("ask")], 2))
async def test_an_expert_solves_every_family(name):
    levels = ERRANDS.levels if NIGHT else [1 + list(ERRANDS.families).index(name) % 3]
    tasks = [errand(name, level) for level in levels]
    async with open_environments(settings(), tasks) as environments, environments.env(tasks[0]) as env:
        for task in tasks:
            results = [await env.reset(task, task.seed)]
            for _, action in ERRANDS.play(task.template, task.params):
                if results[-1].terminated:
                    break
                results.append(await env.step(action))
            told = [(result.info.get("result"), result.info.get("note")) for result in results]
            assert results[-1].reward == 1.0, (task.instruction, results[-1].info["state"], told)


async def test_what_a_task_does_not_allow_is_a_note_and_does_nothing():
    tasks = [errand(name) for name in ("ask-gui", "ask-sdk")]
    async with open_environments(settings(), tasks) as environments, environments.env(tasks[0]) as env:
        await env.reset(tasks[0], 3)
        told = (await env.step(Terminal("cat *"))).info
        assert "without functions" in told["note"]
        assert "result" not in told
        await env.reset(tasks[1], 3)
        assert "no click" in (await env.step(Click(Point(0.5, 0.5)))).info["note"]


@pytest.mark.parametrize(("name", "end"), [("ask", "answer"), ("colours", "wanted")])
def test_the_same_question_is_asked_by_all_ways(name, end):
    asked = [errand(f"{name}-{way}", 2, seed=7) for way in ("gui", "sdk", "both")]
    assert len({task.instruction for task in asked}) == len({str(task.params[end]) for task in asked}) == 1
    assert len({task.params["allowed"] for task in asked}) == 3


async def test_a_site_hears_its_form_alone_and_nobody_inside_can_say_it_did():
    task = errand("fill")
    cheats = (
        Terminal("pkill -f http; python3 -m http.server 8000"),  # the port is the machine's first process's
        RunPython("import os, glob\nfor path in glob.glob('/run/served/*'):\n    os.remove(path)\n"),
        RunPython("import socket\ns = socket.socket(socket.AF_UNIX)\ns.bind('/run/served/8001')\n"),
        Finished(""),
    )
    async with open_environments(settings(), [task]) as environments, environments.env(task) as env:
        await env.reset(task, 3)
        told = [(await env.step(action)).info for action in cheats]
    assert "in use" in told[0]["result"]
    assert all("Read-only" in one["result"] for one in told[1:3])
    assert told[-1]["state"]["received"] == []
    assert told[-1]["score"] < 1.0


async def test_what_the_browser_downloads_the_shell_has():
    task = errand("download")
    async with open_environments(settings(), [task]) as environments, environments.env(task) as env:
        await env.reset(task, 3)
        for action in (Hotkey(("tab",)), Hotkey(("enter",)), Wait()):
            await env.step(action)
        told = (await env.step(Terminal(f"cat Downloads/{task.params['table']}"))).info["result"]
    assert told.split("\n", 1)[0] == "name,amount"
    assert task.params["site"][task.params["table"]].strip() in told


def settings():
    return computers.settings("computer", width=800, height=600)
