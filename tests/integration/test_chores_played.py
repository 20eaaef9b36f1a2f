"""The world chores in real terminals: experts solve it, chance does not, other ways to the same end count as well."""

from __future__ import annotations

import io
import random
import tarfile
import zipfile

import computers
import pytest
from night import NIGHT

from flywheel.agent.actions import Finished, RunPython, Terminal, Wait, WriteFile
from flywheel.envs.computer.env import ARCHIVE_READ_BYTES, read_archive
from flywheel.envs.registry import open_environments
from flywheel.envs.suites.chores.world import CHORES
from flywheel.envs.tasks.drawing import make_task
from flywheel.policy.protocol import Completion
from flywheel.rollout.corrections import choose_failures, correct_failures
from flywheel.rollout.episode import run_episode
from flywheel.rollout.solvers import TaskSolvers

pytestmark = computers.needed


def chore(name: str, level: int = 1, seed: int = 3):
    return make_task(CHORES, name, level, seed, "train")


def of_families(names) -> list:
    """Each at one level, in turn; at all levels where that is asked for."""
    levels = CHORES.levels
    return [
        chore(name, level) for n, name in enumerate(names) for level in (levels if NIGHT else [levels[n % len(levels)]])
    ]


async def played(env, task, actions):
    """The last result; what every step told."""
    results = [await env.reset(task, task.seed)]
    for action in actions:
        if results[-1].terminated or results[-1].truncated:
            break
        results.append(await env.step(action))
    return results[-1], [result.info.get("result") for result in results]


@pytest.mark.parametrize("part", range(4))
async def test_an_expert_solves_every_family(part):
    tasks = of_families(list(CHORES.families)[part::4])
    async with (
        open_environments(computers.settings("terminal"), tasks) as environments,
        environments.env(tasks[0]) as env,
    ):
        for task in tasks:
            steps = [action for _, action in CHORES.play(task.template, task.params)]
            assert len(steps) <= task.max_steps
            result, told = await played(env, task, steps)
            assert (result.reward, result.terminated) == (1.0, True), (task.instruction, result.info, told)


class Quitter:
    """A policy that ends each episode at once."""

    weight_version = "quits"

    async def complete(self, context, sampling):
        return Completion("Action: finished()", (1,), (-0.1,), 9, "quits", True)


async def test_a_failed_chore_is_corrected_by_the_experts_way():
    task, settings, solvers = chore(next(iter(CHORES.families)), 2), computers.settings("terminal"), TaskSolvers()
    known = CHORES.play(task.template, task.params)
    async with open_environments(settings, [task]) as environments:
        async with environments.env(task) as env:
            failed = await run_episode(env, Quitter(), task, 0, iteration=1, settings=settings, temperature=0.5)
        assert choose_failures({task.task_id: task}, [failed], 1, solvers) == [failed]
        made, stats = await correct_failures(
            {task.task_id: task}, [failed], environments, settings, solvers, iteration=1, seed=3
        )
    (one,) = made
    assert (one.trajectory.reward, one.trajectory.start_step, stats.without) == (1.0, 0, {})
    thoughts = [thought for thought, _ in known]
    assert [step.thought for step in one.steps] in (thoughts, [*thoughts, "I am done."])


async def test_chance_solves_nothing():
    rng = random.Random(5)
    commands = ("ls", "cat *", "rm -rf *", "touch a.txt", "sort *", "mkdir x", "mv * x", "true", "echo 1 > out.txt")
    tasks = [chore(name, 1 + n % 3, seed=n) for n, name in enumerate(CHORES.families) if NIGHT or n % 3 == 0]
    async with (
        open_environments(computers.settings("terminal"), tasks) as environments,
        environments.env(tasks[0]) as env,
    ):
        for task in tasks:
            actions = [*(Terminal(rng.choice(commands)) for _ in range(3)), Finished(rng.choice(["", "1", "yes"]))]
            assert (await played(env, task, actions))[0].reward < 1.0, task.instruction


@pytest.mark.parametrize(
    ("name", "level", "ways"),
    [
        ("mend", 1, lambda p: [RunPython(f"open('{p['module']}.py', 'w').write({_other(p)!r})"), Finished("")]),
        ("count", 1, lambda p: [Finished(f" {p['answer']}. ")]),
        ("pack", 1, lambda p: [RunPython(f"import shutil; {_packed(p)}")]),
        ("serve", 1, lambda p: [RunPython(_SERVING.format(**p)), Wait(), Wait()]),
    ],
)  # fmt: skip
async def test_another_way_counts_as_well(name, level, ways):
    task = chore(name, level)
    async with open_environments(computers.settings("terminal"), [task]) as environments, environments.env(task) as env:
        result, told = await played(env, task, ways(task.params))
    assert result.reward == 1.0, (result.info, told)


def _packed(p) -> str:
    return f"shutil.make_archive({p['name'][:-4]!r}, 'zip', '.', {p['folder']!r})"


def _other(p) -> str:
    """The right program, said in another way."""
    return p["right"].replace("return 2 * n", "return n + n").replace("return n * n", "return n ** 2")


_SERVING = """
import os, subprocess
subprocess.Popen(["python3", "-m", "http.server", "{port}"], cwd="{folder}", start_new_session=True,
                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
import socket, time
until = time.time() + 2
while time.time() < until:
    try:
        socket.create_connection(("127.0.0.1", {port})); break
    except OSError:
        time.sleep(0.02)
"""


async def test_a_program_that_only_passes_its_test_is_none():
    task = chore("implement")
    p = task.params
    shown = f"def {p['name']}(n):\n    return dict(zip(range(4, 8), {_shown(p)!r})).get(n)\n"
    async with open_environments(computers.settings("terminal"), [task]) as environments, environments.env(task) as env:
        actions = [WriteFile(f"{p['module']}.py", shown), Terminal(f"python3 test_{p['module']}.py"), Finished("")]
        result, told = await played(env, task, actions)
    assert "passed" in told[2]
    assert result.reward < 1.0


def _shown(p) -> list:
    space: dict = {}
    exec(p["right"], space)
    return [space[p["name"]](n) for n in range(4, 8)]


# -- archives that somebody made --------------------------------------------------------------------------------------
def test_archives_of_all_kinds_are_opened():
    files = {"a.txt": "one", "b/c.txt": "zwölf"}
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("b")
        for path, text in files.items():
            archive.writestr(path, text)
    assert read_archive(made.getvalue()) == files
    for how in ("w", "w:gz", "w:bz2", "w:xz"):
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode=how) as archive:
            for path, text in files.items():
                about = tarfile.TarInfo(f"./{path}")
                about.size = len(text.encode())
                archive.addfile(about, io.BytesIO(text.encode()))
        assert read_archive(made.getvalue()) == files


def test_what_is_no_archive_or_a_bomb_is_none():
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(2**26))
    many = io.BytesIO()
    with zipfile.ZipFile(many, "w") as archive:
        for number in range(2000):
            archive.writestr(str(number), "")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as archive:
        about = tarfile.TarInfo("noise")
        about.size = 2**16
        archive.addfile(about, io.BytesIO(random.Random(1).randbytes(about.size)))
    spoilt = bytearray(packed.getvalue())
    spoilt[2**15 : 2**15 + 64] = bytes(64)
    whole = bomb.getvalue()
    for data in (None, b"", b"PK", b"hello", whole, whole[:-30], many.getvalue(), bytes(ARCHIVE_READ_BYTES), spoilt):
        assert read_archive(data) is None
