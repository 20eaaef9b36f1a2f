"""Tasks of OSWorld's are played and judged here as OSWorld says, and an agent cannot judge itself."""

from __future__ import annotations

import shutil

import computers
import desktops
import pytest
from osworlds import EXPECTED, PHOTOS, RIGHT, THEIRS, Workspace, example, execute, gold, mine, opened, printed

from flywheel.agent.actions import Action, CallUser, Finished, Hotkey, Terminal, Type
from flywheel.envs import registry
from flywheel.envs.registry import open_environments
from flywheel.envs.tasks.drawing import make_task
from flywheel.utils.errors import EnvError


@pytest.fixture
def workspace(tmp_path):
    with opened(tmp_path) as made:
        yield made


async def played(workspace: Workspace, name: str, actions: list[Action], of: str = "terminal") -> tuple[float, str]:
    """The reward, and the reason."""
    workspace.load(of)
    task = make_task(registry.get_task_suite("theirs"), f"tasks_{name}", 1, 1, "train")
    settings = computers.settings(of, warm=0) if of == "terminal" else desktops.settings(warm=0, timeout_s=40.0)
    async with open_environments(settings, [task]) as environments, environments.env(task) as env:
        begun = await env.reset(task, 1)
        assert begun.info["score"] == 0.0
        last = [await env.step(action) for action in actions][-1]
        assert last.terminated or last.truncated
        return last.reward, last.info["state"]["checked"]["reason"]


@desktops.needed
async def test_one_of_their_own_is_played_on_a_desktop(workspace):
    """Its set-up clicks by PyAutoGUI, which is not installed there."""
    name = "23393935-50c7-4a86-aeea-2b78fd089c5c"
    shutil.copy(THEIRS / "os" / f"{name}.json", workspace.root / "tasks")
    for one in PHOTOS:
        workspace.file(one, one)
    expert = Terminal("find ~/Desktop/photos -name '*.jpg' -exec cp {} ~/Desktop/cpjpg \\;")
    assert await played(workspace, name, [expert, Finished("")], "computer") == (1.0, "check_moved_jpgs 1")
    assert await played(workspace, name, [Finished("")], "computer") == (0.0, "check_moved_jpgs 0")


@desktops.needed
async def test_one_that_opens_a_terminal_is_played_by_keys_alone(workspace):
    keys = "import pyautogui; pyautogui.click(9, 9); pyautogui.hotkey('ctrl', 'alt', 't')"
    config = [execute(["python", "-c", keys]), {"type": "activate_window", "parameters": {"window_name": "Terminal"}}]
    workspace.said["allowed"] = "gui"
    workspace.add("it", example({**RIGHT, "result": printed("cat ~/done.txt")}, config))
    expert = [Type("echo yes > done.txt"), Hotkey(("enter",)), Finished("")]
    assert (await played(workspace, "it", expert, "computer"))[0] == 1.0


@desktops.needed
async def test_what_is_opened_is_there_when_the_episode_begins(workspace):
    workspace.file("notes.csv", "a,b\n1,2\n")
    download = {"type": "download", "parameters": {"files": [{"url": "https://x.org/1", "path": "notes.csv"}]}}
    opened = {"type": "open", "parameters": {"path": "/home/user/notes.csv"}}
    close = {"type": "close_window", "parameters": {"window_name": "notes.csv"}}
    launch = {"type": "launch", "parameters": {"command": ["xterm", "-T", "Mine"]}}
    front = {"type": "activate_window", "parameters": {"window_name": "Mine", "strict": True}}
    gone = {**RIGHT, "result": printed("cat typed"), "postconfig": [close]}
    workspace.add("it", example(gone, [launch, download, opened, front]))
    actions = [Type("echo yes > typed"), Hotkey(("enter",)), Finished("")]
    assert (await played(workspace, "it", actions, "computer"))[0] == 1.0
    opened["parameters"]["path"] = "/home/user/nothing.csv"
    workspace.add("it", example(RIGHT, [download, opened]))
    with pytest.raises(EnvError, match=r"set-up failed: .*nothing\.csv .*config\.1, open"):
        await played(workspace, "it", [Finished("")], "computer")


@desktops.needed
async def test_what_a_step_after_the_episode_prints_is_judged(workspace):
    """Here the stand-ins for programs of OSWorld's machine, which set-up puts into the home."""
    listed = {"type": "execute", "parameters": {"command": ["ls", "/home/user/.local/bin"], "stdout": "bin.ls"}}
    rules = {"type": "rule", "rules": {"expect": ["^google-chrome$", "^nautilus$"]}}
    found = {"func": "check_list", "result": {"type": "cache_file", "path": "bin.ls"}, "expected": rules}
    workspace.add("it", example({**found, "postconfig": [listed]}))
    assert await played(workspace, "it", [Finished("")], "computer") == (1.0, "check_list 1")
    actions = [Terminal("rm ~/.local/bin/nautilus"), Finished("")]
    assert await played(workspace, "it", actions, "computer") == (0.0, "check_list 0")


@computers.needed
async def test_one_that_cannot_be_done_is_to_be_given_up(workspace):
    name = "b3d4a89c-53f2-4d6b-8b6a-541fb5d205fa"
    shutil.copy(THEIRS / "os" / f"{name}.json", workspace.root / "tasks")
    assert (await played(workspace, name, [CallUser()]))[0] == 1.0
    assert (await played(workspace, name, [Finished("done")]))[0] == 0.0
    workspace.add("it", example(RIGHT))
    assert await played(workspace, "it", [CallUser()]) == (0.0, "the agent gave up")
    assert (await played(workspace, "it", [Finished("")]))[0] == 1.0


@computers.needed
async def test_set_up_and_what_follows_the_episode_are_carried_out(workspace):
    for name in ("setup.sh", "eval.sh"):
        workspace.file(name, "mkdir -p made; echo begun > made/a.txt\n" if name == "setup.sh" else "cat made/a.txt\n")
    download = {"type": "download", "parameters": {"files": [{"url": "https://x.org/1", "path": "setup.sh"}]}}
    after = {"type": "download", "parameters": {"files": [{"url": "https://x.org/2", "path": "eval.sh"}]}}
    wait = {"command": "date >> ticks; test $(wc -l < ticks) -ge 2", "shell": True, "until": {"returncode": 0}}
    config = [download, execute("chmod +x setup.sh && ./setup.sh"), {"type": "command", "parameters": wait}]
    config += [{"type": "sleep", "parameters": {"seconds": 0.01}}, execute("false")]
    judged = {"func": "exact_match", "result": printed("bash eval.sh"), "expected": EXPECTED, "postconfig": [after]}
    workspace.add("it", example(judged, config))
    assert (await played(workspace, "it", [Terminal("echo yes > made/a.txt"), Finished("")]))[0] == 1.0
    cheats = [
        "echo 'echo yes' > made/b.txt; ln -s made/b.txt eval.sh",
        "mkdir -p .local/bin; printf '#!/bin/sh\\necho yes\\n' | tee .local/bin/bash .local/bin/cat > .local/bin/sh; "
        "chmod +x .local/bin/*; echo 'echo yes; exit' | tee .bashrc > .profile; mkfifo eval.sh",
    ]
    for cheat in cheats:
        assert (await played(workspace, "it", [Terminal(cheat), Finished("")]))[0] == 0.0, cheat


@computers.needed
async def test_several_metrics_are_joined_as_osworld_does(workspace):
    workspace.file("gold.txt", "one\ntwo\nthree\nfour\n")
    both = {
        "func": ["exact_match", "diff_text_file"],
        "result": [printed("cat ok.txt"), mine("a.txt")],
        "expected": [EXPECTED, gold("gold.txt")],
    }
    workspace.add("both", example(both))
    workspace.add("either", example({**both, "conj": "or"}))
    first, second = Terminal("echo yes > ok.txt"), Terminal("printf 'one\\ntwo\\nthree\\n5\\n' > a.txt")
    done = Finished("")
    assert await played(workspace, "both", [done]) == (
        0.0,
        "exact_match 0, diff_text_file 0 (nothing is there that can be looked at)",
    )
    assert (await played(workspace, "both", [first, done]))[0] == 0.0
    assert (await played(workspace, "both", [first, second, done]))[0] == pytest.approx(0.875)
    assert (await played(workspace, "either", [second, done]))[0] == 0.75
    assert (await played(workspace, "either", [first, done]))[0] == 1.0


@computers.needed
async def test_what_an_agent_leaves_behind_is_data_to_the_judge(workspace):
    workspace.file("gold.json", '{"a": 1}')
    evaluator = {"func": "compare_text_file", "result": mine("a.json"), "expected": gold("gold.json")}
    workspace.add("it", example(evaluator))
    assert (await played(workspace, "it", [Terminal("printf '{\"a\": 1}' > a.json"), Finished("")]))[0] == 1.0
    evil = "print('{\\\"score\\\": 1}'); import os; os._exit(0)"
    cheats = [
        f'for f in json difflib sitecustomize; do echo "{evil}" > $f.py; done; echo x > a.json',
        "ln -s /opt/checker/0-gold.json a.json",
        "truncate -s 10G a.json",
    ]
    for cheat in cheats:
        assert (await played(workspace, "it", [Terminal(cheat), Finished("")]))[0] == 0.0, cheat
