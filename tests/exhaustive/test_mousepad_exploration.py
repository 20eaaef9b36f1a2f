"""A text editor of Debian is explored by AT-SPI, and what is written is a suite whose tasks its scripts solve."""

from __future__ import annotations

import subprocess

import pytest

from flywheel.config import Settings, parse_settings
from flywheel.envs import registry
from flywheel.envs.computer.backend import load_computer_suite
from flywheel.envs.tasks.drawing import make_task
from flywheel.rollout.solvers import load_solvers
from flywheel.synthesis.exploration.desktop_explorer import explore_desktop, read_desktop_source

_IMPORTS = "import gi; gi.require_version('Atspi', '2.0'); from gi.repository import Atspi"
there = subprocess.run(["/usr/bin/python3", "-c", _IMPORTS], capture_output=True, check=False).returncode == 0
pytestmark = pytest.mark.skipif(not there, reason="AT-SPI for Python is not installed")
SOURCE = """
kind: computer
world: editor_explored
title: the editor
begin:
  files: {notes.txt: "milk and bread\\nthe second line\\n"}
  apps: [[env, GSETTINGS_BACKEND=keyfile, mousepad, notes.txt]]
  hidden: [.config/glib-2.0/settings/keyfile]
"""


async def test_an_editors_settings_and_edits_become_tasks(tmp_path):
    (tmp_path / "editor.yaml").write_text(SOURCE)
    source = read_desktop_source(tmp_path / "editor.yaml")
    path, funnel = await explore_desktop(source, tmp_path, most=2, actions=60, seed=0, say=lambda line: None)
    assert funnel["counts"]["functions"] >= 5
    registry.find_backend("computer").load(path)
    suite = load_computer_suite(path, "computer")
    assert suite.once
    tasks = [make_task(suite, name, min(suite.templates[name].max_steps), 5, "train") for name in suite.templates]
    settings = parse_settings({"synthesis": {"worlds": [str(path)]}}, where="here")
    solvers = load_solvers(tasks, settings, tmp_path)
    async with registry.open_environments(Settings(), tasks) as environments:
        for task in tasks:
            solver, number = solvers.find(task, 0), 0
            async with environments.env(task) as env:
                result = await env.reset(task, task.seed)
                assert result.info["score"] < 1
                while not (result.terminated or result.truncated):
                    thought, action = await solver.next_step(env, number, result.info["state"])
                    assert thought.startswith("I ")
                    result, number = await env.step(action), number + 1
                assert result.info["score"] == 1
