"""What the docs say in Python of manifests, run as it stands there, on the manifest that stands there."""

from __future__ import annotations

import re

import pytest

from flywheel.envs import isolation

COUNTER = """<!doctype html><title>Counter</title><script>
const game = {clicks: 0, over: false, start(seed) { this.seed = seed; }}
</script><button onclick="game.clicks += 1" style="position:fixed;inset:0">more</button>"""


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def run(code: str):
    names: dict = {}
    exec(compile(code, "docs", "exec"), names)
    return names["result"]


def test_a_page_by_manifest(project, tmp_path, monkeypatch):
    page = (project / "docs" / "third-party.md").read_text()
    (tmp_path / "counter.yaml").write_text(blocks(page, "yaml")[0])
    (tmp_path / "index.html").write_text(COUNTER)
    monkeypatch.chdir(tmp_path)
    assert run(blocks(page, "python")[0]).info["state"]["reward"] == 1


@pytest.mark.skipif(bool(isolation.explain_missing_bwrap()), reason=isolation.explain_missing_bwrap() or "-")
def test_a_world_by_manifest(project, tmp_path, monkeypatch):
    page = (project / "docs" / "computer.md").read_text().partition("### Suites of your own")[2]
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "a.txt").write_text("a")
    (tmp_path / "mine.yaml").write_text(blocks(page, "yaml")[0])
    monkeypatch.chdir(tmp_path)
    assert run(blocks(page, "python")[0]).info["result"].split() in (["a.txt", "march"], ["a.txt", "april"])
