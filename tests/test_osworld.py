"""Tasks of OSWorld's: its own files and others in its form are played and judged here, or left out with the reason."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import computers
import desktops
import pytest
from click.testing import CliRunner

from flywheel.agent.actions import Action, CallUser, Finished, Hotkey, Terminal, Type
from flywheel.cli import main
from flywheel.environments import catalogue, foreign, kind
from flywheel.environments.router import open_environments
from flywheel.errors import BadInput, EnvError
from flywheel.settings import Settings, parse
from flywheel.synthesis import check as synthesis
from flywheel.synthesis.tasks import make_task, make_tasks

THEIRS = Path(__file__).parent / "data" / "osworld"
PHOTOS = {
    "monk252520thailand252520wat252520arun252520scaled25255B225255D.jpg", "hong-kong-china.jpg", "hk_group_photo.jpg",
    "us_3.png", "emnlp2023.jpg",
}  # fmt: skip
EXPECTED = {"type": "rule", "rules": {"expected": "yes\n"}}


def execute(command: str | list[str]) -> dict[str, Any]:
    return {"type": "execute", "parameters": {"command": command, "shell": isinstance(command, str)}}


def printed(command: str) -> dict[str, Any]:
    return {"type": "vm_command_line", "command": command, "shell": True}


def mine(path: str) -> dict[str, Any]:
    return {"type": "vm_file", "path": f"/home/user/{path}", "dest": path}


def gold(name: str) -> dict[str, Any]:
    return {"type": "cloud_file", "path": f"https://example.org/gold/{name}", "dest": name}


def example(evaluator: Mapping[str, Any], config: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "id": "0", "snapshot": "os", "instruction": "Do {it}.", "source": "", "trajectory": "trajectories/",
        "related_apps": ["os"], "config": config or [], "evaluator": evaluator, **more,
    }  # fmt: skip


def forget() -> None:
    for of in ("terminal", "computer"):
        kind.find(of).own.clear()


class Workspace:
    """A folder with a manifest, task files and copies of what they download."""

    def __init__(self, root: Path) -> None:
        self.root, self.said = root, {"tasks": ["tasks"], "files": "files", "max_steps": 6}
        for name in ("tasks", "files"):
            (root / name).mkdir()

    def add(self, name: str, task: Mapping[str, Any] | str) -> None:
        text = task if isinstance(task, str) else json.dumps({**task, "id": name})
        (self.root / "tasks" / f"{name}.json").write_text(text)

    def file(self, name: str, content: str) -> None:
        (self.root / "files" / name).write_text(content)

    def load(self, of: str = "terminal") -> Any:
        forget()
        manifest = {"kind": of, "world": "theirs", "osworld": self.said}
        (self.root / "world.json").write_text(json.dumps(manifest))
        foreign.register_all(self.settings, self.root)
        return catalogue.get("theirs")

    @property
    def settings(self) -> Settings:
        block = {"domains": {"office": ["theirs"]}, "worlds": ["world.json"], "levels": [1], "held_out": 0.25}
        return parse({"synthesis": block, "merge": {"weights": {"office": 1.0}}}, where="test")


@pytest.fixture
def workspace(tmp_path) -> Workspace:
    yield Workspace(tmp_path)
    forget()


# -- which are played -------------------------------------------------------------------------------------------------
@desktops.needed
def test_their_own_files_are_read_and_those_that_cannot_be_played_are_told(workspace):
    shutil.copytree(THEIRS / "os", workspace.root / "tasks", dirs_exist_ok=True)
    world = workspace.load("computer")
    left = {name.removeprefix("tasks_")[:8]: why for name, why in world.left_out.items()}
    assert {name.removeprefix("tasks_")[:8] for name in world.tasks} == {"b3d4a89c", "4783cc41"}
    assert left["e0df059f"] == "the rights of root: sudo"
    assert left["f9be0997"] == "GNOME or a service of the system: gsettings"
    assert left["13584542"] == "a getter that is not here: vm_terminal_output"
    assert left["23393935"].startswith("a file of the internet, of which no copy is given: monk25")
    (finding,) = [one for one in kind.find("computer").examine(workspace.settings) if one.name == "theirs"]
    assert finding.detail.startswith("2 of 6 tasks are played; 1 need ")
    for name in PHOTOS:
        workspace.file(name, name)
    assert len(workspace.load("computer").tasks) == 3
    assert {why.partition(":")[0] for why in workspace.load("terminal").left_out.values()} >= {
        "a screen, which the kind terminal has not"
    }


RIGHT = {"func": "exact_match", "result": printed("echo yes"), "expected": EXPECTED}


@pytest.mark.parametrize(
    ("task", "why"),
    [
        (example(RIGHT, [{"type": "chrome_open_tabs", "parameters": {}}]), "not carried out here: chrome"),
        (example(RIGHT, [{"type": "launch", "parameters": {"command": ["no-such"]}}]), "not installed: no-such"),
        (example(RIGHT, [{"type": "launch", "parameters": {"command": "xterm"}}]), "a screen, .*: launches xterm"),
        (example(RIGHT, [execute("cd /tmp; FOO=1 no-such -x | cat")]), "not installed: no-such"),
        (example(RIGHT, [execute(["bash", "-c", "true && no-such"])]), "not installed: no-such"),
        (example(RIGHT, [execute("echo 'a; sudo b' | sh -c 'x' && sudo ls")]), "the rights of root: sudo"),
        (example(RIGHT, [execute("python3 -c 'import urllib' https://x.org/a")]), "the internet: https://x.org/a"),
        (example(RIGHT, proxy=True), "the internet: it asks for a proxy"),
        (example(RIGHT, related_apps=["os", "no gimp"]), ""),
        (example(RIGHT, related_apps=["picard"]), "not installed: picard"),
        (example({**RIGHT, "result": {"type": "accessibility_tree"}}), "getter that is not here: accessibility_tree"),
        (example({**RIGHT, "func": "compare_videos"}), "metric that is not here: compare_videos"),
        (example({**RIGHT, "func": "compare_config", "result": mine("../b")}), "outside of the home: /home/user/../b"),
        (example({**RIGHT, "result": {"type": "list_directory", "path": "/etc"}}), "outside of the home: /etc"),
        (example({**RIGHT, "expected": gold("none.txt"), "func": "compare_csv"}), "no copy is given: none.txt"),
        (example(RIGHT, [{"type": "download", "parameters": {"files": [{"url": "x", "path": "/a"}]}}]), "home: /a"),
        (example({"func": "check_json", "result": mine("a"), "expected": {"type": "rule", "rules": {
            "expect": [{"key": ["a"], "method": "spreadsheet_range", "ref": []}]}}}), "with the method spread"),
    ],
)  # fmt: skip
def test_what_cannot_be_played_is_left_out_by_name(workspace, task, why):
    workspace.add("it", task)
    workspace.add("good", example(RIGHT))
    world = workspace.load()
    assert ("tasks_it" in world.tasks) is (why == "")
    if why:
        assert [*world.left_out] == ["tasks_it"]
        assert re.search(why, world.left_out["tasks_it"]), world.left_out["tasks_it"]


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("{", "no task of OSWorld: Expecting property name"),
        ("[]", "the task's whole: Input should be"),
        ({"instruction": "x"}, "the task's evaluator: Field required"),
        (example({}), "the task's evaluator.func: Field required"),
        (example({"func": []}), "the task's evaluator: .*func names no metric"),
        (example({**RIGHT, "func": ["exact_match", "exact_match"]}), "result has not one entry for each of func"),
        (example({**RIGHT, "result": [printed("a")]}), "result is a list, and func is none"),
        (example({**RIGHT, "conj": "xor"}), "the task's evaluator.conj: Input should be 'and' or 'or'"),
        (example({**RIGHT, "expected": {}}), "evaluator.expected: exact_match wants rules"),
        (example({**RIGHT, "expected": {"type": "rule", "rules": {}}}), "rules: exact_match wants expected"),
        (example({**RIGHT, "expected": {"type": "rule"}}), "the task's evaluator.expected: KeyError 'rules'"),
        (example({**RIGHT, "func": "compare_csv"}), "evaluator.expected: compare_csv wants a file"),
        (example({**RIGHT, "result": {"type": "vm_command_line"}}), "the task's evaluator.result: KeyError 'command'"),
        (example(RIGHT, [execute("")]), "the task's config.0.parameters: ValueError command is not"),
        (example(RIGHT, [{"type": "sleep", "parameters": {}}]), "the task's config.0.parameters: KeyError 'seconds'"),
        (example(RIGHT, [{"kind": "sleep"}]), "the task's config.0.type: Field required"),
    ],
)
def test_what_is_wrong_in_a_task_file_is_told_with_its_field(workspace, task, said):
    workspace.add("it", task)
    with pytest.raises(BadInput, match=said) as caught:
        workspace.load()
    assert "it.json" in str(caught.value)
    assert "\n" not in str(caught.value)
    workspace.said["leave_out"] = {"it": "broken"}
    workspace.add("good", example(RIGHT))
    assert workspace.load().left_out == {"tasks_it": "left out by the manifest: broken"}


def test_what_is_wrong_in_the_manifest_is_told(workspace):
    with pytest.raises(BadInput, match=r"no task can be played here .*no file ends in \.json"):
        workspace.load()
    workspace.said["tasks"] = ["nowhere"]
    with pytest.raises(BadInput, match="there is no nowhere beside the manifest"):
        workspace.load()
    (workspace.root / "world.json").write_text("{kind: terminal, world: theirs}")
    with pytest.raises(BadInput, match="it has tasks, or osworld"):
        foreign.register_all(workspace.settings, workspace.root)


def test_the_command_tells_of_each(workspace):
    workspace.add("good", example(RIGHT))
    workspace.add("bad", example(RIGHT, [execute("sudo ls")]))
    asked = ["osworld", str(workspace.root / "tasks"), "--kind", "terminal"]
    told = json.loads(CliRunner().invoke(main, [*asked, "--json"]).output)
    assert told == {
        "played": ["tasks_good"],
        "left_out": {"tasks_bad": "the rights of root: sudo"},
        "reasons": {"the rights of root": 1},
    }
    shown = CliRunner().invoke(main, asked).output
    assert "1 of 2 tasks are played" in shown
    workspace.add("worse", "{")
    assert CliRunner().invoke(main, asked).exit_code == 2


def test_judging_has_time_enough(workspace):
    workspace.add("it", example(RIGHT))
    workspace.said["seconds"] = 90
    workspace.load()
    with pytest.raises(BadInput, match=r"judging a task of theirs may take 90 s, .*raise timeout_s to 90"):
        kind.find("terminal").check(Settings())


# -- drawn ----------------------------------------------------------------------------------------------------------
def test_each_is_one_task_and_evaluation_has_its_own(workspace):
    for number in range(8):
        workspace.add(f"n{number}", example({**RIGHT, "result": printed(f"echo {number}")}))
    world = workspace.load()
    settings = workspace.settings
    assert synthesis.check(settings, 1, workspace.root) == {"terminal"}
    drawn = {split: make_tasks(settings, 1, split, workspace.root) for split in ("train", "eval")}
    names = {split: {task.template for task in tasks} for split, tasks in drawn.items()}
    assert len(names["eval"]) == 2
    assert names["train"]
    assert not names["train"] & names["eval"]
    assert all(len(tasks) == len(names[split]) for split, tasks in drawn.items())
    assert drawn["train"][0].instruction == "Do {it}."
    assert make_task(world, "tasks_n0", 1, 1, "train").params == make_task(world, "tasks_n0", 1, 2, "train").params


# -- played ---------------------------------------------------------------------------------------------------------
async def played(workspace: Workspace, name: str, actions: list[Action], of: str = "terminal") -> tuple[float, str]:
    """The reward, and the reason."""
    workspace.load(of)
    task = make_task(catalogue.get("theirs"), f"tasks_{name}", 1, 1, "train")
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
