"""A checkpoint is bytes: what follows it in another process is what followed it here."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys

import pytest
import yaml
from night import by_day
from pages import task_of

from flywheel.agent.actions import Click, Hotkey, Point, Type, Wait
from flywheel.config import parse_settings
from flywheel.envs.browser.pages import manifest
from flywheel.envs.browser.pool import open_browser_pool
from flywheel.envs.tasks.drawing import task_to_row
from flywheel.envs.tasks.page_tasks import make_page_task

ACTIONS = (Hotkey(("left",)), Type("red"), Click(Point(0.1, 0.3)), Wait())
PAGE = (
    "<canvas width=200 height=200></canvas><script>let n = 0; onclick = () => { n += 1; }; setInterval(() => {"
    "const pen = document.querySelector('canvas').getContext('2d'); pen.fillStyle = `hsl(${n * 40} 80% 50%)`;"
    "pen.fillRect(Math.random() * 180, Math.random() * 180, 20, 20) }, 30)</script>"
)
ELSEWHERE = """
import asyncio, json, sys
from pathlib import Path
from test_checkpoint_bytes import ACTIONS, digests, settings_of
from flywheel.envs.conformance import resume_checkpoint
from flywheel.envs.browser.pool import open_browser_pool
from flywheel.envs.tasks.drawing import task_from_row

async def main():
    asked = json.load(sys.stdin)
    async with open_browser_pool(settings_of(asked["folder"]), Path(asked["folder"])) as pool:
        kept = bytes.fromhex(asked["checkpoint"])
        actions = ACTIONS[: asked["count"]]
        print(json.dumps(digests(await resume_checkpoint(pool.env, task_from_row(asked["task"]), kept, actions))))

asyncio.run(main())
"""


def settings_of(folder):
    sandbox = {"browsers": 1, "pages": 1, "timeout_s": 60}
    return parse_settings({"sandbox": sandbox, "synthesis": {"manifests": [str(folder)]}}, where="test")


def digests(results):
    """What was seen and told, short enough to print."""
    return [
        [hashlib.sha256(r.observation.screenshot).hexdigest(), json.dumps(r.info, sort_keys=True), r.observation.url]
        for r in results
    ]


def _page(folder):
    (folder / "index.html").write_text(PAGE)
    said = {
        "name": "sparks",
        "title": "Sparks",
        "folder": ".",
        "instruction": "Click.",
        "reward": "n",
        "success": 9,
        "max_steps": 9,
    }
    (folder / "page.yaml").write_text(yaml.safe_dump(said))
    return make_page_task(manifest.load_page_manifest(folder / "page.yaml"), "page", 5, "eval")


@pytest.mark.parametrize("world", by_day(["shop", "merge", "sparks"]))
async def test_another_process_goes_on_from_the_bytes(tmp_path, project, world):
    own = _page(tmp_path)
    task = own if world == "sparks" else task_of(world, {"shop": "add", "merge": "reach"}[world])
    async with open_browser_pool(settings_of(tmp_path), tmp_path) as pool, pool.env() as env:
        await env.reset(task, task.seed)
        reached = await env.step(Click(Point(0.5, 0.5)))
        kept = await env.checkpoint()
        here = [reached]
        for action in ACTIONS:
            if not (here[-1].terminated or here[-1].truncated):
                here.append(await env.step(action))
    asked = {"task": task_to_row(task), "checkpoint": kept.hex(), "folder": str(tmp_path), "count": len(here) - 1}
    there = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        ELSEWHERE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await there.communicate(json.dumps(asked).encode())
    assert there.returncode == 0
    assert json.loads(said) == digests(here)
