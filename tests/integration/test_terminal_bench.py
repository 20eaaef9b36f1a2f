"""Tasks of Terminal-Bench, made here in both versions' forms, played in a sandbox and judged by their own tests."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from flywheel.cli import main
from flywheel.envs.isolation import explain_missing_bwrap
from flywheel.evaluation.benchmarks import container_recipe
from flywheel.evaluation.benchmarks.container_recipe import InstalledPackages
from flywheel.evaluation.benchmarks.terminal_bench import TaskFolder, read_task_folder
from flywheel.evaluation.benchmarks.terminal_bench_machine import (
    AGENTS,
    SandboxLimits,
    TaskSandbox,
    open_sandbox,
    play_task,
)

pytestmark = pytest.mark.skipif(bool(explain_missing_bwrap()), reason="bubblewrap does not work here")
INSTALLED = InstalledPackages({"coreutils": "9"}, {"pytest": pytest.__version__}, Path(sys.executable))
LIMITS = SandboxLimits(memory_mb=1024, processes=128)
RECIPE = """FROM python:3.13-slim-bookworm
ENV PLACE=/data
WORKDIR /app
COPY given/ /app/
COPY given/name.txt $PLACE/renamed.txt
RUN apt-get update && apt-get install -y coreutils && \\
    wc -c < name.txt > size.txt
"""
TESTS = """from pathlib import Path


def test_size():
    assert Path("/app/size.txt").read_text().strip() == "3"
    assert Path("/data/renamed.txt").read_text() == "Ada"


def test_answer():
    assert Path("/app/answer.txt").read_text() == "Hello, Ada!"
"""
VERIFIER = """#!/bin/bash
curl -LsSf https://astral.sh/uv/0.9.5/install.sh | sh
source $HOME/.local/bin/env
uvx -p 3.13 -w pytest==VERSION pytest /tests/test_outputs.py -rA
if [ $? -eq 0 ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
"""
SOLUTION = "#!/bin/bash\nprintf 'Hello, %s!' $(cat name.txt) > answer.txt\n"


def make_task(folder: Path, version: int, **changed: str) -> TaskFolder:
    """Write a task in the form of `version`. changed: recipe, tests, verifier, solution in place of those above."""
    verifier = changed.get("verifier", VERIFIER).replace("VERSION", pytest.__version__)
    tests, solution = changed.get("tests", TESTS), changed.get("solution", SOLUTION)
    context = folder if version == 1 else folder / "environment"
    files = {
        context / "Dockerfile": changed.get("recipe", RECIPE),
        context / "given" / "name.txt": "Ada",
        folder / "tests" / "test_outputs.py": tests,
    }
    if version == 1:
        files |= {
            folder / "task.yaml": "instruction: Greet.\ncategory: files\nmax_test_timeout_sec: 60\n",
            folder / "docker-compose.yaml": "services:\n  client:\n    build:\n      dockerfile: Dockerfile\n",
            folder
            / "run-tests.sh": f"pip install pytest=={pytest.__version__}\npytest $TEST_DIR/test_outputs.py -rA\n",
            folder / "solution.sh": solution,
        }
    else:
        files |= {
            folder / "task.toml": "[verifier]\ntimeout_sec = 60.0\n",
            folder / "instruction.md": "Greet.",
            folder / "tests" / "test.sh": verifier,
            folder / "solution" / "solve.sh": solution,
        }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return read_task_folder(folder)


@pytest.mark.parametrize("version", [1, 2])
def test_the_reference_solution_scores_1_and_nothing_scores_0(tmp_path, version):
    task = make_task(tmp_path, version)
    scores = {name: play_task(task, agent, INSTALLED, name="t", limits=LIMITS) for name, agent in AGENTS.items()}
    assert {name: (one.score, one.fault) for name, one in scores.items()} == {"oracle": (1.0, ""), "nop": (0.0, "")}
    if version == 1:
        assert scores["nop"].parts["test_size"] == 1.0


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"recipe": "FROM ubuntu:24.04\nRUN false\n"}, "the image cannot be built"),
        ({"recipe": "FROM ubuntu:24.04\nRUN apt-get install -y no-such-package\n"}, "the image cannot be built"),
        ({"verifier": "exit 1\n"}, "the verifier wrote no reward"),
        ({"verifier": "echo many > /logs/verifier/reward.txt\n"}, "reward.txt holds no number"),
    ],
    ids=["build", "package", "no reward", "no number"],
)
def test_what_breaks_around_the_agent_is_a_fault_and_never_0(tmp_path, changed, fault):
    result = play_task(make_task(tmp_path, 2, **changed), AGENTS["nop"], INSTALLED, name="t", limits=LIMITS)
    assert result.score is None
    assert fault in result.fault


def test_an_agent_sees_no_tests_and_its_own_reward_does_not_count(tmp_path):
    seen = []

    def cheat(sandbox: TaskSandbox, task: TaskFolder, seconds: float) -> None:
        seen.append(sandbox.run("ls /tests /solution", seconds).status)
        sandbox.run("echo 1 > /logs/verifier/reward.txt; mkdir -p /tests; touch /tests/conftest.py", seconds)

    result = play_task(make_task(tmp_path, 2), cheat, INSTALLED, name="t", limits=LIMITS)
    assert seen[0] != 0
    assert result.score == 0.0


@pytest.mark.exhaustive
def test_a_link_of_an_agents_leads_to_nothing_of_this_machine(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()

    def link(sandbox: TaskSandbox, task: TaskFolder, seconds: float) -> None:
        sandbox.run(f"rm -rf /tests; ln -s {outside} /tests; cat {outside}/*", seconds)

    make_task(tmp_path / "task", 2)
    play_task(read_task_folder(tmp_path / "task"), link, INSTALLED, name="t", limits=LIMITS)
    assert not list(outside.iterdir())


@pytest.mark.exhaustive
def test_services_that_the_agent_starts_run_while_the_tests_do(tmp_path):
    def serve(sandbox: TaskSandbox, task: TaskFolder, seconds: float) -> None:
        sandbox.run("setsid sleep 1000 & echo $! > /app/pid", seconds)

    tests = "import os\n\n\ndef test_it_runs():\n    os.kill(int(open('/app/pid').read()), 0)\n"
    result = play_task(make_task(tmp_path, 2, tests=tests), serve, INSTALLED, name="t", limits=LIMITS)
    assert result.score == 1.0


def test_a_command_is_ended_at_its_deadline_and_the_sandbox_has_no_network():
    with open_sandbox(INSTALLED, LIMITS) as sandbox:
        assert sandbox.run("sleep 1000", 0.2).late
        assert sandbox.run("echo alive", 20).output == "alive\n"
        assert sandbox.run("cat /proc/net/route | wc -l", 20).output.strip() == "1"
        assert sandbox.run("python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 53), 2)'", 20).status != 0


def test_a_killed_evaluation_goes_on_where_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(container_recipe, "list_installed_packages", lambda _: INSTALLED)
    for name in ("a", "b"):
        make_task(tmp_path / "tasks" / name, 1)
    words = [
        "env",
        "benchmark",
        "play",
        str(tmp_path / "tasks"),
        "--agent",
        "oracle",
        "-o",
        str(tmp_path / "r.parquet"),
        "--json",
    ]
    first = CliRunner().invoke(main, [*words, "--task", "a"])
    assert first.exit_code == 0, first.output
    second = CliRunner().invoke(main, words)
    assert "b 0: 1 (" in second.stderr
    assert "a 0:" not in second.stderr
    told = json.loads(second.stdout)
    assert (told["official"], told["episodes"], told["faults"]) == (1.0, 2, 0)
