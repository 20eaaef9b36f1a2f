"""Input that no scene can be drawn of, and recordings of scenes' sessions that are damaged, get one clear line."""

from __future__ import annotations

import json
import random

import pytest

from flywheel.config import Settings
from flywheel.envs.screens import layouts
from flywheel.recordings.synthetic.sessions import make_sessions, sessions_match_settings
from flywheel.utils.errors import BadInput, DataError


@pytest.mark.parametrize(
    ("kind", "level", "count", "says"),
    [
        ("shape", 1, None, "no kind of scene is called 'shape'.*did you mean shapes"),
        ("shapes", 0, None, "no scene has the level 0.*use 1 to 4"),
        ("shapes", layouts.SCENE_LEVELS + 1, None, "no scene has the level 5"),
        ("shapes", 1, 0, "no scene holds 0 elements"),
    ],
)
def test_a_scene_that_cannot_be_drawn_is_refused(kind, level, count, says):
    with pytest.raises(BadInput, match=says):
        layouts.draw_scene(kind, level, random.Random(0), 100, count)


def test_a_scene_asks_about_no_more_elements_than_wanted():
    scene = layouts.draw_scene("shapes", layouts.SCENE_LEVELS, random.Random(0), 100, count=1)
    assert len(scene.shown) == 1


@pytest.mark.parametrize(
    ("truth", "session", "where"),
    [
        *((text, None, "truth.json") for text in ("{", "3", "[]", '""', '[["000-a", {}]]')),
        *((None, text, "session.json") for text in ("{", "[]")),
    ],
)
def test_damaged_shipped_sessions_are_named(tmp_path, truth, session, where):
    (tmp_path / "000-a").mkdir()
    (tmp_path / "truth.json").write_text(truth or json.dumps({"000-a": {}}))
    (tmp_path / "000-a" / "session.json").write_text(session or "{}")
    with pytest.raises(DataError, match=f"the recording cannot be read.*{where}"):
        sessions_match_settings(tmp_path, Settings())


async def test_a_damaged_list_of_sessions_is_named_before_any_is_made(tmp_path):
    (tmp_path / "truth.json").write_text("[]")
    with pytest.raises(DataError, match=r"the recording cannot be read.*truth\.json"):
        await make_sessions(tmp_path, 1, Settings())


def test_sessions_without_a_list_of_them_fit_any_settings(tmp_path):
    assert sessions_match_settings(tmp_path, Settings())
