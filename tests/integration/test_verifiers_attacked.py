"""Attacks on verifiers with what is played for real: suites in browsers, and a page's tasks by their proofs."""

from __future__ import annotations

import json

import pytest
import yaml
from click.testing import CliRunner
from night import by_day

from flywheel.cli.tasks import attack_command
from flywheel.config import Settings
from flywheel.envs import registry
from flywheel.envs.browser.pages.manifest import load_page_manifest
from flywheel.envs.tasks import verification
from flywheel.envs.tasks.page_tasks import make_page_task
from flywheel.synthesis.verifier_attack import run

SAMPLE = [("board", "move"), ("tiles", "clear"), ("shop", "search"), ("phone", "icons"), ("encyclopaedia", "fact")]
PAGE = """<!doctype html><title>Lamp</title><body style="margin:0">
<button style="position:fixed;left:0;top:0;width:50vw;height:100vh" onclick="lamp.push('on')">on</button>
<button style="position:fixed;left:50vw;top:0;width:50vw;height:100vh" onclick="lamp.push('off')">off</button>
<script>const lamp = [];</script>"""


@pytest.mark.parametrize(("world", "template"), by_day(SAMPLE, 3))
async def test_a_sample_of_what_is_stored_comes_out_again(world, template):
    suite = registry.get_task_suite(world)
    (found,) = await run.attack_suite(run.attack_settings(Settings()), suite, 2, [template])
    assert (found.runs, found.gold, found.start, found.false_alarms) == (2, 2, 0, 0), found.refused
    assert found.kill_rate >= 0.95, found.survivors
    assert found.mutations >= 10
    stored = verification.read_verification(world)
    if stored.get("checksum") == suite.checksum:
        rate = verification.find_kill_rate(world, template, suite.checksum)
        assert rate == pytest.approx(found.kill_rate, abs=0.05)


@pytest.fixture
def lamp(tmp_path):
    """A page with a lamp, and tasks of it: by a strict reward, a weak one, a wrong one, and one without a proof."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text(PAGE)
    press = ["click(point='<point>0.25 0.5</point>')", "click(point='<point>0.75 0.5</point>')"]
    task = {"instruction": "Turn the lamp on, then off.", "proof": {"actions": press}, "success": 1, "max_steps": 6}
    tasks = {
        "strict": task | {"reward": "Number(lamp.join() === 'on,off')"},
        "weak": task | {"reward": "Number(lamp.includes('on'))"},
        "wrong": task | {"reward": "Number(lamp.join() === 'off,on')"},
        "unproved": task | {"reward": "lamp.length", "proof": {}},
    }
    path = tmp_path / "lamp.yaml"
    raw = {"name": "lamp", "title": "A lamp", "folder": "site", "seeded": False, "splits": ["train"], "tasks": tasks}
    path.write_text(yaml.safe_dump(raw))
    return path


async def test_a_pages_proof_is_played_and_what_is_done_by_half_must_fail(lamp):
    manifest = load_page_manifest(lamp)
    found = await run.attack_manifest(run.attack_settings(Settings()), manifest, 2)
    assert set(found) == {"strict", "weak", "wrong"}
    assert (found["strict"].gold, found["strict"].start, found["strict"].kill_rate) == (2, 0, 1.0)
    assert found["strict"].false_alarms == 0
    assert found["weak"].gold == 2
    assert found["weak"].kill_rate < 1, "half of the proof is enough for it"
    assert any("half done" in told for told in found["weak"].survivors)
    assert found["wrong"].gold == 0
    run.write_page_verification(manifest, found)
    again = load_page_manifest(lamp)
    rates = {name: make_page_task(again, name, 0, "train").verifier_kill_rate for name in again.variants}
    assert rates["strict"] == 1.0
    assert rates["weak"] < 1.0
    assert rates["wrong"] is rates["unproved"] is None


def test_the_command_tells_what_passes_and_keeps_the_counts(lamp, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    asked = ["--manifest", str(lamp), "--runs", "1", "--write"]
    told = CliRunner().invoke(attack_command, asked)
    assert told.exit_code == 1, told.output
    assert "passes: weak 0: half done" in told.output
    assert "1 tasks tell no solution" in told.output
    entry = yaml.safe_load(lamp.read_text())["tasks"]["strict"]["verification"]
    assert (entry["gold"], entry["start"]) == ("1/1", 0)
    (row,) = json.loads(CliRunner().invoke(attack_command, [*asked[:4], "--json"]).stdout)
    assert (row["name"], row["met"], row["templates"]) == ("lamp", False, 3)
