"""Check the funnel of made tasks: what is written is read, and what is lost without a reason is refused."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from flywheel.config import Settings
from flywheel.envs.browser.pages.manifest import load_page_manifests
from flywheel.synthesis.funnel import Funnel, FunnelStage, list_funnel_folders, read_funnel, write_funnel
from flywheel.utils.errors import DataError

_FUNNEL = Funnel(
    source="questions",
    made_from="a folder",
    seed=3,
    stages=(
        FunnelStage(name="facts", taken=10, left=40),  # several of one
        FunnelStage(name="one answer", taken=40, left=25, discarded={"two answers": 15}),
    ),
)
_PAGE = """name: page
title: A page
folder: html
instruction: Look.
reward: "1"
success: 1
max_steps: 3
"""


def test_what_is_written_is_read_and_is_no_manifest(tmp_path: Path) -> None:
    made = tmp_path / "made"
    (made / "html").mkdir(parents=True)
    (made / "html/index.html").write_text("<p>page</p>")
    (made / "page.yaml").write_text(_PAGE)
    write_funnel(made, _FUNNEL)
    assert read_funnel(made) == _FUNNEL
    assert json.loads((made / "funnel.json").read_text())["stages"][1] == {
        "name": "one answer",
        "taken": 40,
        "left": 25,
        "discarded": {"two answers": 15},
    }
    assert list(load_page_manifests(["made"], tmp_path)) == ["page"]
    settings = Settings.model_validate({"synthesis": {"manifests": ["made", "made/page.yaml", "circles"]}})
    assert list_funnel_folders(settings, tmp_path) == [made]
    (made / "page").mkdir()
    write_funnel(made / "page", _FUNNEL)
    assert list_funnel_folders(settings, tmp_path) == [made, made / "page"]


def test_no_funnel_is_none(tmp_path: Path) -> None:
    assert read_funnel(tmp_path) is None


@pytest.mark.parametrize("stage", [{"left": 3}, {"left": -1}, {"left": 3, "discarded": {"": 7}}, {"left": 10, "x": 1}])
def test_a_stage_that_loses_without_a_reason_is_refused(stage: dict) -> None:
    with pytest.raises(ValidationError):
        FunnelStage.model_validate({"name": "a", "taken": 10, **stage})


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"\xff", b'{"source": "a", "made_from": "", "seed": 1, "stages": []}']
)
def test_a_damaged_funnel_is_named(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "funnel.json").write_bytes(text)
    with pytest.raises(DataError, match=r"not a funnel.*funnel\.json"):
        read_funnel(tmp_path)
