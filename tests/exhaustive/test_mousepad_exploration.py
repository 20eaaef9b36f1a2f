"""A text editor of Debian is explored by AT-SPI, and what is written is a suite whose tasks its scripts solve."""

from __future__ import annotations

import json
import subprocess

import pytest

from flywheel.agent.actions import Finished, actions_from_json
from flywheel.config import Settings
from flywheel.envs import registry
from flywheel.envs.computer.backend import load_computer_suite
from flywheel.envs.tasks.drawing import make_task
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
    proofs = json.loads((tmp_path / "editor_explored" / "funnel.json").read_text())["proofs"]
    registry.find_backend("computer").load(path)
    suite = load_computer_suite(path, "computer")
    assert suite.once
    tasks = [make_task(suite, name, min(suite.templates[name].max_steps), 5, "train") for name in suite.templates]
    async with registry.open_environments(Settings(), tasks) as environments:
        for task in tasks:
            async with environments.env(task) as env:
                result = await env.reset(task, task.seed)
                assert result.info["score"] < 1
                for action in (*actions_from_json(json.dumps(proofs[task.template]["actions"])), Finished()):
                    result = result if result.terminated else await env.step(action)
                assert result.info["score"] == 1
