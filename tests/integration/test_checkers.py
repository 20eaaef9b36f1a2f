"""Programs that judge: what they say counts, what is no verdict is an error and no reward, and what the agent left
behind is data to them."""

from __future__ import annotations

import base64
import json
import os
import random
import socket
import textwrap
from pathlib import Path
from typing import Any

import computers
import pytest

from flywheel.agent.actions import CallUser, Finished, Terminal, Wait
from flywheel.config import Settings, parse_settings
from flywheel.envs import cgroups, registry
from flywheel.envs.computer.checker import Checker, CheckerFailed, CheckerVerdict, run_task_checker
from flywheel.envs.computer.home import MachineHome
from flywheel.envs.registry import open_environments
from flywheel.envs.tasks.drawing import make_tasks
from flywheel.utils.errors import BadInput, EnvError

RIGHT = """
import json, pathlib, sys

told = json.load(sys.stdin)
home = pathlib.Path(told["home"])
path = home / "sorted.txt"
lines = path.read_text().splitlines() if path.is_file() else []
wanted = sorted(told["begin"]["words.txt"].split())
share = sum(a == b for a, b in zip(lines, wanted)) / len(wanted)
whole = lines == wanted and told["answer"] == told["values"]["word"]
print("looked at", len(lines), "lines")
print(json.dumps({"score": 1 if whole else share / 2, "reason": f"{len(lines)} lines"}))
"""
MANIFEST = """
kind: terminal
world: sorting
tasks:
  - name: sort
    instruction: Sort words.txt into sorted.txt, and answer {{word}}.
    choose: {{word: [{words}]}}
    max_steps: {{1: 3}}
    begin: {{files: {{words.txt: "pear\\nfig\\napple\\n"}}}}
    end: {{checker: {checker}}}
"""
WORDS = ", ".join(f"word{number}" for number in range(60))


@pytest.fixture
def home(tmp_path) -> Path:
    (tmp_path / "agent").mkdir()
    return tmp_path / "agent"


async def judged(home: Path, code: str, files: dict[str, str] | None = None, **most: Any) -> CheckerVerdict:
    texts = {"check.py": textwrap.dedent(code), **(files or {})}
    coded = {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}
    opened = MachineHome(os.open(home, os.O_RDONLY | os.O_DIRECTORY))
    try:
        program = Checker(program="check.py", files=coded, **most)
        return await run_task_checker(program, opened, 2**26, {"answer": "yes", "begin": {}, "values": {}})
    finally:
        opened.close()


SAYS = "import json, os, sys\ntold = json.load(sys.stdin)\nprint(json.dumps({'score': 1, 'reason': str((%s))}))\n"


@computers.needed
async def test_a_kernel_that_refuses_its_limits_leaves_nothing_open(home, monkeypatch):
    def refuse(*limits):
        raise OSError("refused")

    def opened():
        return sorted(Path("/proc/self/fd").iterdir())

    monkeypatch.setattr(cgroups, "create_cgroup", refuse)
    before = opened()
    with pytest.raises(OSError, match="refused"):
        await judged(home, SAYS % "1")
    assert opened() == before


# -- what it is told, and what it may say -----------------------------------------------------------------------------
@computers.needed
async def test_it_sees_a_copy_of_the_home_and_what_lies_beside_it(home):
    (home / "a").mkdir()
    (home / "a" / "b.txt").write_text("here")
    (home / "a" / "b.txt").chmod(0o751)
    expression = "(open('/home/user/a/b.txt').read(), oct(os.stat('/home/user/a/b.txt').st_mode)[-3:], os.getcwd())"
    assert (await judged(home, SAYS % expression)).reason == "('here', '751', '/tmp')"
    expression = "(open('/opt/checker/gold.txt').read(), told['answer'], told['left_out'])"
    assert (await judged(home, SAYS % expression, {"gold.txt": "x"})).reason == "('x', 'yes', {})"


@computers.needed
@pytest.mark.parametrize(
    "tried",
    ["open('/home/user/new', 'w')", "os.remove('/home/user/kept')", "open('/opt/checker/check.py', 'w')",
     "__import__('socket').create_connection(('1.1.1.1', 53), 2)", "open('/etc/shadow')", "os.listdir('%s')"],
)  # fmt: skip
async def test_it_can_change_nothing_and_reach_nothing(home, tried):
    (home / "kept").write_text("one")
    code = f"import os\ntry:\n    {tried.replace('%s', str(home))}\nexcept OSError:\n    print('{{\"score\": 0.25}}')\n"
    assert await judged(home, code) == CheckerVerdict(score=0.25)
    assert (home / "kept").read_text() == "one"


@computers.needed
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("", r"no verdict \(it is not a JSON object\): ''"),
        ("print('1')", "no verdict"),
        ("print('[1]')", "no verdict"),
        ("print('{}')", r"no verdict \(score: Field required\)"),
        ("print('{\"score\": 1.5}')", r"no verdict \(score: Input should be less than or equal to 1\)"),
        ("print('{\"score\": NaN}')", "no verdict"),
        ("print('{\"score\": true}')", "no verdict"),
        ('print(\'{"score": "1"}\')', "no verdict"),
        ("print('{\"score\": 1}')\nprint('done')", r"no verdict .*'done'"),
        ("print('{\"score\": 1}')\nraise SystemExit(3)", "check.py ended with status 3"),
        ("print('{\"score\": 1}')\n1 / 0", "ended with status 1: ZeroDivisionError: division by zero"),
        ("print('{\"score\": 1}', flush=True)\nimport os; os.kill(os.getpid(), 9)", "ended with status 137"),
        ("while True: print('x' * 9999)", "printed more than 65536 bytes"),
        ("def x(: pass", "ended with status 1: SyntaxError"),
    ],
)
async def test_what_is_no_verdict_is_an_error_in_a_line(home, code, said):
    with pytest.raises(CheckerFailed, match=said) as caught:
        await judged(home, code)
    assert isinstance(caught.value, EnvError)
    assert "\n" not in str(caught.value)


@computers.needed
async def test_one_that_does_not_end_is_ended_with_all_that_it_began(home):
    with pytest.raises(CheckerFailed, match=r"check\.py did not end in 1 s"):
        await judged(home, "while True: pass", seconds=1.0)
    left = "import os\nif os.fork(): print('{\"score\": 1}')\nelse:\n    while True: pass"
    assert await judged(home, left) == CheckerVerdict(score=1.0)  # its child has ended with it


@computers.needed
@pytest.mark.skipif(bool(cgroups.explain_missing_cgroups()), reason="no cgroups")
async def test_memory_and_processes_have_limits(home):
    with pytest.raises(CheckerFailed, match="ended with status"):
        await judged(home, "x = bytearray(2**28)\nprint('{\"score\": 1}')", memory_mb=64)
    bomb = "import os\ntry:\n    for n in range(99):\n        if not os.fork(): __import__('time').sleep(60)\n"
    found = await judged(home, bomb + "except OSError: print('{\"score\": 0.5}')", processes=8)
    assert found.score == 0.5


# -- what the agent left behind ---------------------------------------------------------------------------------------
@computers.needed
async def test_no_code_of_the_agents_is_run(home):
    evil = 'print(\'{"score": 1, "reason": "evil"}\')\nimport os\nos._exit(0)\n'
    site = home / ".local" / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    for folder in (home, site):
        for name in ("sitecustomize.py", "usercustomize.py", "json.py", "pathlib.py", "evil.pth"):
            (folder / name).write_text(evil)
    (home / ".bashrc").write_text(f"echo '{evil}'; exit 0")
    (home / ".pythonrc.py").write_text(evil)
    (home / "check.py").write_text(evil)
    code = SAYS.replace("'score': 1", "'score': 0")
    code = code.replace("import json, os", "import json, os, pathlib, subprocess")
    found = await judged(home, code % "subprocess.run(['python3', '-c', 'print(1)'], capture_output=True).stdout")
    assert (found.score, found.reason) == (0.0, r"b'1\n'")


@computers.needed
async def test_links_that_lead_out_pipes_and_sockets_are_left_out_and_named(home):
    (home / "in").mkdir()
    (home / "in" / "x.txt").write_text("mine")
    good = {"down": "in/x.txt", "own": "/home/user/in", "dangling": "nothing"}
    bad = {"gold": "/opt/checker/gold.txt", "up": "in/../../opt/checker/gold.txt", "out": "/home/user/../../etc/passwd"}
    for name, target in {**good, **bad}.items():
        (home / name).symlink_to(target)
    os.mkfifo(home / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(home / "socket"))
    code = SAYS % "sorted(told['left_out']), sorted(os.listdir('/home/user')), open('/home/user/own/x.txt').read()"
    found = await judged(home, code, {"gold.txt": "gold"})
    assert found.reason == str((sorted([*bad, "pipe", "socket"]), sorted([*good, "in"]), "mine"))


@computers.needed
async def test_files_of_holes_are_copied_with_their_holes(home):
    huge = os.open(home / "huge", os.O_RDWR | os.O_CREAT)
    os.truncate(huge, 10 * 2**30)
    os.pwrite(huge, b"here", 2**30)
    os.close(huge)
    code = "os.path.getsize('/home/user/huge'), os.pread(os.open('/home/user/huge', 0), 4, 2**30)"
    assert (await judged(home, SAYS % code)).reason == str((10 * 2**30, b"here"))


@computers.needed
async def test_more_than_a_home_can_hold_is_left_out(home):
    (home / "large").write_bytes(b"x" * (2**26 + 1))
    (home / "small").write_text("x")
    found = await judged(home, SAYS % "told['left_out'], os.listdir('/home/user')")
    assert found.reason == str(({"large": "too large"}, ["small"]))


# -- a world whose tasks a program judges -----------------------------------------------------------------------------
@pytest.fixture
def workspace(tmp_path) -> Path:
    (tmp_path / "check.py").write_text(RIGHT)
    (tmp_path / "gold.txt").write_text("gold")
    (tmp_path / "mine.yaml").write_text(MANIFEST.format(words=WORDS, checker="{program: check.py, files: [gold.txt]}"))
    yield tmp_path
    registry.find_backend("terminal").own.clear()


def chosen(**more: Any) -> Settings:
    block = {"domains": {"office": ["sorting"]}, "worlds": ["mine.yaml"], "held_out": [], "levels": [1]}
    return parse_settings(
        {"synthesis": {**block, "train_tasks": 1, **more}, "merge": {"weights": {"office": 1.0}}}, where="t"
    )


def test_its_text_is_part_of_the_world(workspace):
    settings = chosen()
    registry.load_external_suites(settings, workspace)
    seen = {registry.get_task_suite("sorting").checksum}
    for name in ("check.py", "gold.txt"):
        with (workspace / name).open("a") as file:
            file.write("# more\n")
        registry.load_external_suites(settings, workspace)
        seen.add(registry.get_task_suite("sorting").checksum)
    assert len(seen) == 3
    (task,) = make_tasks(settings, 1, "train", workspace)
    assert task.params["checker"]["files"].keys() == {"check.py", "gold.txt"}
    assert json.loads(json.dumps(task.params)) == task.params


@pytest.mark.parametrize(
    ("checker", "said"),
    [
        ("{program: none.py}", "there is no checker's file none.py beside the manifest"),
        ("{program: /bin/true}", "there is no checker's file /bin/true beside the manifest"),
        ("{program: gold.txt}", "the checker gold.txt cannot be executed"),
        ("{program: check.py, files: [check.py]}", "two of a checker's files are called check.py"),
        ("{program: check.py, seconds: 0}", r"end\.checker\.seconds: Input should be greater than 0"),
        ("{program: check.py, network: yes}", r"end\.checker\.network: Extra inputs"),
        ("{files: [gold.txt]}", r"end\.checker\.program: Field required"),
        ("{program: check.py}, free: [words.txt]", "end.free means nothing where a checker decides"),
    ],
)
def test_what_is_wrong_with_one_is_told_in_a_line(workspace, checker, said):
    (workspace / "mine.yaml").write_text(MANIFEST.format(words=WORDS, checker=checker))
    with pytest.raises(BadInput, match=said) as caught:
        registry.load_external_suites(chosen(), workspace)
    assert "mine.yaml" in str(caught.value)


@computers.needed
async def test_an_experts_end_passes_and_mutated_ends_do_not(workspace):
    (task,) = make_tasks(chosen(), 1, "train", workspace)
    word, rng = task.params["values"]["word"], random.Random(1)
    right = Terminal("sort words.txt > sorted.txt")
    mutations = [
        [right, Finished(f"{word}x")],
        [right, CallUser()],
        [Terminal("ln -s /opt/checker/gold.txt sorted.txt"), Finished(word)],
        [right, Terminal(f"sed -i {rng.randint(1, 3)}d sorted.txt"), Finished(word)],
        [right, Wait(), Wait()],
        [Finished(word)],
    ]
    async with open_environments(computers.settings("terminal", warm=0), [task]) as envs, envs.env(task) as env:
        for _ in range(2):  # the same twice
            begun = await env.reset(task, 1)
            assert (begun.info["score"], "checked" in begun.info["state"]) == (0.0, False)
            assert (await env.step(right)).info["score"] == 0.0  # it is judged at the end
            last = await env.step(Finished(word))
            assert (last.reward, last.terminated) == (1.0, True)
            assert last.info["state"]["checked"] == {"score": 1.0, "reason": "3 lines"}
        for actions in mutations:
            await env.reset(task, 1)
            last = [await env.step(action) for action in actions][-1]
            assert last.terminated or last.truncated
            assert last.info["score"] <= 0.5, actions


@computers.needed
async def test_one_that_breaks_is_a_crash_of_the_episode(workspace):
    (workspace / "check.py").write_text("1 / 0\n")
    (task,) = make_tasks(chosen(), 1, "train", workspace)
    async with open_environments(computers.settings("terminal", warm=0), [task]) as envs, envs.env(task) as env:
        await env.reset(task, 1)
        with pytest.raises(EnvError, match=r"the checker check\.py ended with status 1: ZeroDivisionError"):
            await env.step(Finished("x"))
        with pytest.raises(EnvError, match="broken"):
            await env.step(Finished("x"))


@computers.needed
async def test_any_program_can_be_one(workspace):
    shell = workspace / "check.sh"
    shell.write_text('#!/bin/sh\ngrep -q fig "$HOME/../home/user/sorted.txt" && echo \'{"score": 1}\' || exit 1\n')
    shell.chmod(0o755)
    (workspace / "mine.yaml").write_text(MANIFEST.format(words=WORDS, checker="{program: check.sh}, answer: '{word}'"))
    (task,) = make_tasks(chosen(), 1, "train", workspace)
    async with open_environments(computers.settings("terminal", warm=0), [task]) as envs, envs.env(task) as env:
        await env.reset(task, 1)
        await env.step(Terminal("sort words.txt > sorted.txt"))
        assert (await env.step(Finished("no"))).info["score"] == 0.0  # the answer must be right too
        await env.reset(task, 1)
        await env.step(Terminal("sort words.txt > sorted.txt"))
        assert (await env.step(Finished(task.params["answer"]))).reward == 1.0
