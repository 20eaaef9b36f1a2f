"""What metrics of OSWorld's tasks compare is found in files that anyone may have written."""

from __future__ import annotations

import json
import sqlite3
import zipfile
from pathlib import Path
from typing import Any

import pytest

from flywheel.envs.computer.osworld.inputs import CHROME_GETTERS, resolve_input

_RELATIONS = "http://schemas.openxmlformats.org/package/2006/relationships"
_KINDS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


def write_presentation(path: Path, target: str, kind: str = "audio", slide: str = "<p/>", **members: bytes) -> None:
    relation = f'<Relationship Id="r1" Type="{_KINDS}/{kind}" Target="{target}"/>'
    with zipfile.ZipFile(path, "w") as book:
        book.writestr("ppt/slides/slide1.xml", slide)
        book.writestr(
            "ppt/slides/_rels/slide1.xml.rels", f'<Relationships xmlns="{_RELATIONS}">{relation}</Relationships>'
        )
        for name, content in members.items():
            book.writestr(f"ppt/media/{name}", content)


def find_part(path: Path, cache: Path, kind: str = "audio", slide: int = 0, home: str = "/nowhere") -> bytes | None:
    asked = {"file": str(path), "slide": slide, "kind": kind, "name": "part"}
    found = resolve_input({"slide_part": asked}, home, cache)
    return None if found is None else Path(found).read_bytes()


@pytest.fixture
def cache(tmp_path):
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


def test_a_slides_sound_is_found_inside_and_in_the_home(tmp_path, cache):
    path = tmp_path / "it.pptx"
    write_presentation(path, "../media/sound", sound=b"inside")
    assert find_part(path, cache) == b"inside"
    assert find_part(path, cache, slide=1) is None
    assert find_part(path, cache, kind="background") is None
    (tmp_path / "sound.mp3").write_bytes(b"beside")
    write_presentation(path, "file:///home/user/sound.mp3")
    assert find_part(path, cache, home=str(tmp_path)) == b"beside"


def test_a_slides_background_is_the_picture_that_it_names(tmp_path, cache):
    fill = f'<p:bgPr xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main" xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" xmlns:r="{_KINDS}"><a:blip r:embed="r1"/></p:bgPr>'  # noqa: E501
    path = tmp_path / "it.pptx"
    write_presentation(path, "../media/picture", "image", f"<p>{fill}</p>", picture=b"PNG")
    assert find_part(path, cache, kind="background") == b"PNG"
    write_presentation(path, "../media/picture", "image", f"<p>{fill.replace('r1', 'r2')}</p>", picture=b"PNG")
    assert find_part(path, cache, kind="background") is None


@pytest.mark.parametrize(
    "target",
    ["file:///etc/passwd", "file:///home/user2/x", "../../../../../etc/passwd", "/etc/passwd", "http://a/b", ""],
)
def test_a_slide_leads_nowhere_but_into_itself_and_the_home(tmp_path, cache, target):
    path = tmp_path / "it.pptx"
    write_presentation(path, target)
    assert find_part(path, cache, home=str(tmp_path)) is None


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"no archive"])
def test_what_is_no_presentation_has_no_parts(tmp_path, cache, content):
    path = tmp_path / "it.pptx"
    path.write_bytes(content)
    assert find_part(path, cache) is None


def test_of_several_files_the_chosen_are_given_and_all_lie_side_by_side(tmp_path, cache):
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    paths = [str(tmp_path / name) for name in ("one", "two", "gone")]
    asked = {"files": paths, "names": ["1.txt", "2.txt", "3.txt"], "given": [1]}
    assert resolve_input(asked, "", cache) == str(cache / "2.txt")
    assert sorted(path.name for path in cache.iterdir()) == ["1.txt", "2.txt"]
    assert resolve_input({**asked, "given": [0, 2]}, "", cache) == [str(cache / "1.txt"), None]
    assert resolve_input({**asked, "given": [0, 1]}, "") == paths[:2]


def write_profile(home: Path, **files: Any) -> Path:
    folder = home / ".config/google-chrome"
    (folder / "Default").mkdir(parents=True)
    for name, content in files.items():
        path = folder / "Local State" if name == "state" else folder / "Default" / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def test_the_browsers_settings_are_read_from_its_profile(tmp_path):
    settings = {
        "default_search_provider_data": {"template_url_data": {"short_name": "Bing"}}, "enable_do_not_track": True,
        "profile": {"name": "Thomas", "default_content_setting_values": {}}, "safebrowsing": {"enhanced": True},
        "session": {"restore_on_startup": 4}, "webkit": {"webprefs": {"default_font_size": 24}},
        "extensions": {"settings": {"a": {"path": "/home/user/it"}, "b": {}, "c": 1}},
    }  # fmt: skip
    bookmarks = {"roots": {"bookmark_bar": {"children": []}}}
    state = {"browser": {"enabled_labs_experiments": ["x@1"]}}
    folder = write_profile(tmp_path, Preferences=settings, Bookmarks=bookmarks, state=state)
    with sqlite3.connect(folder / "Default/History") as history:
        history.execute("CREATE TABLE urls (url, title, last_visit_time)")
        history.execute("INSERT INTO urls VALUES ('http://a', 'A', 5)")
    assert {name: resolve_input({"chrome": name}, str(tmp_path)) for name in CHROME_GETTERS} == {
        "default_search_engine": "Bing", "bookmarks": bookmarks["roots"], "profile_name": "Thomas",
        "chrome_font_size": {"default_font_size": 24}, "enabled_experiments": ["x@1"], "enable_do_not_track": "true",
        "enable_enhanced_safety_browsing": "true", "new_startup_page": "false", "data_delete_automacally": "true",
        "find_unpacked_extension_path": ["/home/user/it"], "history": [("http://a", "A", 5)],
    }  # fmt: skip


@pytest.mark.parametrize("content", ["", "[]", "{", '{"profile": 1, "webkit": []}', '{"extensions": {"settings": {}}}'])
def test_a_profile_that_is_broken_has_the_browsers_defaults(tmp_path, content):
    folder = write_profile(tmp_path, Preferences=content, Bookmarks=content, state=content)
    (folder / "Default/History").write_text("no database")
    found = {name: resolve_input({"chrome": name}, str(tmp_path)) for name in CHROME_GETTERS}
    assert (found["default_search_engine"], found["bookmarks"], found["history"]) == ("Google", [], None)
    assert (found["enable_do_not_track"], found["new_startup_page"]) == ("false", "true")
