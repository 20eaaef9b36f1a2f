"""Desktops: the environment keeps its contract, its world can be solved, text arrives to the letter, a crash is one."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace

import desktops
import processes
import pytest

from flywheel.agent.actions import (
    Click,
    Drag,
    Finished,
    Hotkey,
    LeftDouble,
    LeftTriple,
    Navigate,
    Point,
    Press,
    Release,
    RightSingle,
    Type,
    TypeAt,
    Wait,
)
from flywheel.envs.computer.desktop import Desktop, UnsupportedAction, translate_action
from flywheel.envs.conformance import check_env
from flywheel.envs.registry import open_environments
from flywheel.envs.suites.desk import world
from flywheel.envs.suites.desk.world import DESK, score_desk_files
from flywheel.envs.tasks.drawing import make_task
from flywheel.utils.errors import BadInput, EnvError, EnvTimeout

EVERY_PLANE = "plain ASCII {}~ 中文 日本 한국 Ελλάδα жук é e\u0301 \u0301 😀🎉 👨\u200d👩\u200d👧 עברית\tTab\nnew line"
MIDDLE = Point(0.5, 0.5)
TASKS = [(template, level) for template in DESK.templates for level in DESK.levels]


def desk_task(template: str, level: int = 1, seed: int = 5, **changes):
    return replace(make_task(DESK, template, level, seed, "train"), **changes)


def _process(desktop: Desktop) -> int:
    """What all that runs in it descends from."""
    return desktop.machine._begun.process.pid


async def played(env, task, steps):
    """What came of the last of the actions that the episode had room for."""
    result = await env.reset(task, task.seed)
    for action in steps:
        if result.terminated or result.truncated:
            break
        result = await env.step(action)
    return result


# -- actions, without a desktop ---------------------------------------------------------------------------------------
def test_actions_become_acts_in_pixels():
    assert translate_action(LeftDouble(Point(0.5, 0.25)), 200, 100) == [
        {"type": "move", "x": 100, "y": 25},
        *[{"type": kind, "button": "left"} for kind in ("down", "up", "down", "up")],
    ]
    assert translate_action(Hotkey(("ctrl", "shift", "s")), 200, 100) == [
        *({"type": "key_down", "key": key} for key in ("Control", "Shift", "s")),
        *({"type": "key_up", "key": key} for key in ("s", "Shift", "Control")),
    ]
    drag = translate_action(Drag(Point(0, 0), Point(0.5, 0.5)), 200, 100)
    assert [drag[0], drag[-2]] == [{"type": "move", "x": 0, "y": 0}, {"type": "move", "x": 100, "y": 50}]
    assert [act["type"] for act in drag[1:-2]] == ["down"] + ["move"] * (len(drag) - 4)
    assert translate_action(Wait(), 200, 100) == translate_action(Finished("done"), 200, 100) == []


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (Click(Point(1.0, 0.5)), "outside"),
        (Drag(MIDDLE, Point(0.5, float("nan"))), "outside"),
        (Hotkey(("hyper", "x")), "'hyper'"),
        (Hotkey(()), "no key"),
        (Press("\0"), "no key"),
        (Navigate("http://example.invalid/"), "no navigate"),
        (Type("e" * 100_000), "10000 characters"),
    ],
)
def test_what_a_hand_cannot_do_is_said(action, said):
    with pytest.raises(UnsupportedAction, match=said):
        translate_action(action, 200, 100)


# -- the world --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("template", "level"), TASKS)
def test_only_the_wanted_files_are_worth_one(template, level):
    params = DESK.draw(template, level, 3)
    before, wanted = params["files"], params["wanted"]
    assert params == DESK.draw(template, level, 3) != DESK.draw(template, level, 4)
    assert score_desk_files(params, {"files": wanted}) == 1.0
    assert score_desk_files(params, {"files": before}) == 0.0
    for path in wanted:
        lacking = {name: text for name, text in wanted.items() if name != path}
        assert score_desk_files(params, {"files": lacking}) <= 0.5
        assert score_desk_files(params, {"files": wanted | {path: "something else"}}) <= 0.5
    assert score_desk_files(params, {"files": wanted | {"more.txt": ""}}) <= 0.5


def test_a_verifier_that_there_is_not_is_named():
    from flywheel.envs.registry import find_backend

    with pytest.raises(BadInput, match="files_are"):
        find_backend("computer").verifier(desk_task("write", verifier="file_are"))


# -- desktops ---------------------------------------------------------------------------------------------------------
@pytest.mark.exhaustive
@desktops.needed
async def test_the_environment_passes_the_suite():
    task = desk_task("write")

    async def hang(env) -> None:
        """Stop its guest, and with it whatever answers."""
        for pid, name in processes.descendants(_process(env._computer.desktop)):
            if name.startswith("python"):
                os.kill(pid, signal.SIGSTOP)

    async with open_environments(desktops.settings(timeout_s=8.0, run_s=3.0, warm=0), [task]) as environments:
        await check_env(lambda: environments.env(task), task, hang)


@desktops.needed
async def test_an_expert_solves_every_template_and_chance_does_not():
    tasks = [desk_task(template, 2) for template in DESK.templates]
    async with open_environments(desktops.settings(), tasks) as environments, environments.env(tasks[0]) as env:
        for task in tasks:
            steps = [action for _, action in world.play_desk_task(task.template, task.params)]
            result = await played(env, task, steps)
            assert (result.reward, result.terminated) == (1.0, True), (task.template, result.info)
            assert result.info["state"]["files"] == task.params["wanted"]
            early = await played(env, task, [*steps[:-1], Finished()])
            assert early.terminated
            assert early.reward < 1.0, task.template


@pytest.mark.exhaustive
@desktops.needed
async def test_text_of_every_plane_arrives_to_the_letter():
    async with desktops.opened({"notes.txt": ""}, [["mousepad", "notes.txt"]]) as desktop:
        for _ in range(8):  # more characters than keys
            await desktop.do(Type(EVERY_PLANE))
        await desktop.do(Type("".join(map(chr, range(0x4E00, 0x4E00 + 300)))))
        await desktop.do(Hotkey(("ctrl", "s")))
        written = desktop.machine.home.read("notes.txt", 2**16).decode()
        assert written.rstrip("\n") == EVERY_PLANE * 8 + "".join(map(chr, range(0x4E00, 0x4E00 + 300)))


@desktops.needed
async def test_hands_do_what_hands_do():
    text = "".join(f"line {number}\n" for number in range(200))
    async with desktops.opened({"notes.txt": text}, [["mousepad", "notes.txt"]]) as desktop:
        _, menu = await desktop.do(RightSingle(MIDDLE))
        _, closed = await desktop.do(Hotkey(("esc",)))
        assert menu != closed
        await desktop.do(Click(Point(0.5, 0.6)))  # the text's cursor goes there
        await desktop.do(Type("here "))
        await desktop.do(LeftDouble(Point(0.5, 0.7)))
        await desktop.do(Press("shift"))
        await desktop.do(Type("k"))
        await desktop.do(Release("shift"))
        await desktop.do(Hotkey(("ctrl", "s")))
        lines = desktop.machine.home.read("notes.txt", 2**16).decode().splitlines()
        assert "here " in "\n".join(lines)
        assert not lines[0].startswith("here"), "the click did not arrive"
        assert [line for line in lines if line.endswith("K") or line.startswith("K")]


@desktops.needed
async def test_three_clicks_select_a_line_and_text_goes_to_its_point():
    text = "".join(f"some words of line {number}\n" for number in range(40))
    async with desktops.opened({"notes.txt": text}, [["mousepad", "notes.txt"]]) as desktop:
        for y in (0.5, 0.4, 0.3, 0.2):  # GTK counts clicks by a timer: a busy machine may break three into two and one
            await desktop.do(LeftTriple(Point(0.1, y)))
            await desktop.do(Type("all of it"))
            await desktop.do(Hotkey(("ctrl", "s")))
            lines = desktop.machine.home.read("notes.txt", 2**16).decode().splitlines()
            if "all of it" in lines:
                break
        assert len(lines) == 40
        assert lines.count("all of it") == 1
        note, _ = await desktop.do(TypeAt(Point(0.1, 0.7), "here "))
        outside, _ = await desktop.do(TypeAt(Point(0.1, 1.0), "nowhere"))
        await desktop.do(Hotkey(("ctrl", "s")))
        after = desktop.machine.home.read("notes.txt", 2**16).decode().splitlines()
        assert (note, "outside" in outside, len(after)) == ("", True, 40)
        (changed,) = [number for number, (one, other) in enumerate(zip(lines, after, strict=True)) if one != other]
        assert changed > lines.index("all of it")
        assert after[changed].replace("here ", "") == lines[changed]
        await desktop.do(TypeAt(Point(0.1, 0.5), "alone", clear=True))
        await desktop.do(Hotkey(("ctrl", "s")))
        assert desktop.machine.home.read("notes.txt", 2**16).decode().strip() == "alone"


@desktops.needed
async def test_two_clicks_in_two_steps_are_no_double_click():
    async with desktops.opened({"notes.txt": "word word word\n"}, [["mousepad", "notes.txt"]]) as desktop:
        for _ in range(2):
            await desktop.do(Click(Point(0.3, 0.5)))
        await desktop.do(Type("x"))
        await desktop.do(Hotkey(("ctrl", "s")))
        assert "word word word" in desktop.machine.home.read("notes.txt", 2**16).decode()


@desktops.needed
async def test_links_out_of_the_home_are_not_followed():
    from flywheel.envs.computer.env import read_home_files

    async with desktops.opened({"a.txt": "a"}, [["xterm"]]) as desktop:
        await desktop.do(Type("ln -s /etc/passwd secret; mkfifo pipe; head -c 99999 /dev/zero >big; echo >done\n"))
        while desktop.machine.home.read("done", 8) is None:
            await desktop.do(Wait())
        found = read_home_files(desktop.machine.home)
        assert found["secret"] == "a link"
        assert found["pipe"] == "no file"
        assert found["big"].startswith("sha256:")
        assert found["a.txt"] == "a"


@desktops.needed
async def test_a_desktop_has_no_network_and_sees_no_other():
    async with desktops.opened({}, [["xterm"]]) as one, desktops.opened({"mine.txt": ""}, [["xterm"]]) as other:
        await one.do(Type("ls /sys/class/net /tmp/.X11-unix /proc | wc -l >n; (ls / /home /root; ps ax) >all 2>&1\n"))
        while one.machine.home.read("n", 8) in (None, b""):
            await one.do(Wait())
        assert b"mine.txt" not in (one.machine.home.read("all", 2**16) or b"")
        assert other.machine.home.read("mine.txt", 8) == b""


@desktops.needed
async def test_an_x_server_that_is_killed_is_a_crash_and_never_a_reward():
    task = desk_task("sort")
    async with open_environments(desktops.settings(), [task]) as environments:
        async with environments.env(task) as env:
            await env.reset(task, task.seed)
            server = next(pid for pid, name in processes.descendants(_process(env._computer.desktop)) if name == "Xvnc")
            os.kill(server, signal.SIGKILL)
            with pytest.raises(EnvError, match="X server") as raised:
                await env.step(Wait())
            assert not isinstance(raised.value, EnvTimeout)
            with pytest.raises(EnvError, match="broken"):
                await env.step(Wait())
        async with environments.env(task) as env:
            assert (await env.reset(task, task.seed)).observation.width == 480


@desktops.needed
async def test_an_application_that_is_gone_is_seen_as_such():
    async with desktops.opened({}, [["xterm"]]) as desktop:
        before = desktops.picture(await desktop.screenshot())
        _, after = await desktop.do(Type("exit\n"))
        assert desktops.picture(after).getcolors(1)
        assert not before.getcolors(1)
        assert (await desktop.state())["windows"] == []


@desktops.needed
async def test_nothing_is_left_of_a_desktop_and_vnc_answers_while_it_is_there(tmp_path):
    async with desktops.opened({}, [["xterm"]]) as desktop:
        pids = [pid for pid, _ in processes.descendants(_process(desktop))]
        folder = desktop.machine._folder
        reader, writer = await desktop.vnc()
        assert (await asyncio.wait_for(reader.readexactly(12), processes.PATIENCE_S)).startswith(b"RFB 003.")
        writer.close()
    assert pids
    assert await processes.gone(pids)
    assert not folder.exists()
