"""Read what an OSWorld metric compares (files, folder trees, browser settings) from a copy of the machine's home."""

from __future__ import annotations

import json
import os
import posixpath
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

_MAX_DEPTH, _MAX_ENTRIES = 64, 10_000
MAX_FILE_BYTES = 2**25  # bytes of a file that is read: a sparse file may claim any size


def resolve_input(got: dict[str, Any], home: str, cache: Path | None = None) -> Any:
    """Return the value that one side of a metric (its result or expected) describes; None where its file is missing.

    got: the side, as of `OsworldMetric`, with paths of the checker's sandbox. home: path of the home's copy. cache:
    folder into which files are copied under their names of OSWorld's cache; None: the files' own paths are returned.
    """
    if "file" in got:
        return _file(got["file"], got.get("name", ""), cache)
    if "files" in got:
        names = got.get("names") or [""] * len(got["files"])
        found = [_file(path, name, cache) for path, name in zip(got["files"], names, strict=True)]
        given = [found[number] for number in got.get("given", range(len(found)))]
        return given[0] if len(given) == 1 else given
    if "tree" in got:
        path = got["tree"]
        return _folder_entry(path, _MAX_DEPTH, [_MAX_ENTRIES]) if Path(path).is_dir() else None
    if "chrome" in got:
        return CHROME_GETTERS[got["chrome"]](Path(home, ".config/google-chrome"))
    if "last_row" in got:
        return _last_row(got["last_row"])
    if "slide_part" in got:
        return _slide_part(got["slide_part"], home, cache)
    return got["value"]


def _file(path: str, name: str, cache: Path | None) -> str | None:
    if (found := _existing_file(path)) is None or cache is None:
        return found
    place = cache / (name or Path(path).name)
    place.write_bytes(Path(found).read_bytes())
    return str(place)


def _existing_file(path: str) -> str | None:
    return path if Path(path).is_file() and Path(path).stat().st_size <= MAX_FILE_BYTES else None


def _folder_entry(path: str, depth: int, left: list[int]) -> dict[str, Any]:
    """Return a folder's tree as OSWorld's server does. depth, left: levels and entries that may still be listed."""
    children = []
    for entry in sorted(os.scandir(path), key=lambda one: one.name):
        left[0] -= 1
        if left[0] < 0:
            break
        if entry.is_dir(follow_symlinks=False) and depth:
            children.append(_folder_entry(entry.path, depth - 1, left))
        else:
            children.append({"type": "file", "name": entry.name})
    return {"type": "directory", "name": Path(path).name, "children": children}


# Parts of documents.

_RELATIONSHIP = "{http://schemas.openxmlformats.org/package/2006/relationships}Relationship"
_BACKGROUND = "{http://schemas.openxmlformats.org/presentationml/2006/main}bgPr"
_PICTURE = "{http://schemas.openxmlformats.org/drawingml/2006/main}blip"
_EMBEDDED = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}embed"
_SLIDES = "ppt/slides"


def _slide_part(got: dict[str, Any], home: str, cache: Path | None) -> str | None:
    """Return the path of a slide's sound or background picture, as a file; None where it has none.

    A sound may lie outside the presentation, in the home.
    """
    try:
        with zipfile.ZipFile(got["file"]) as book:
            number = got["slide"] + 1
            target = _find_target(book, got["kind"], f"slide{number}.xml")
            if target is None:
                return None
            if target.startswith("file://"):
                place = Path(home, Path(target[7:]).relative_to("/home/user"))
                return _file(str(place), got["name"], cache)
            member = posixpath.normpath(posixpath.join(_SLIDES, target))
            if book.getinfo(member).file_size > MAX_FILE_BYTES:
                return None
            content = book.read(member)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile, ElementTree.ParseError):
        return None
    place = (cache or Path("/tmp")) / got["name"]
    place.write_bytes(content)
    return str(place)


def _find_target(book: zipfile.ZipFile, kind: str, slide: str) -> str | None:
    relations = [*_read_xml(book, f"{_SLIDES}/_rels/{slide}.rels").iter(_RELATIONSHIP)]
    if kind == "audio":
        return next((one.attrib["Target"] for one in relations if "audio" in one.attrib["Type"]), None)
    pictures = (
        picture.attrib[_EMBEDDED]
        for background in _read_xml(book, f"{_SLIDES}/{slide}").iter(_BACKGROUND)
        for picture in background.iter(_PICTURE)
    )
    wanted = next(pictures, None)
    return next((one.attrib["Target"] for one in relations if one.attrib["Id"] == wanted), None)


def _read_xml(book: zipfile.ZipFile, member: str) -> ElementTree.Element:
    if book.getinfo(member).file_size > MAX_FILE_BYTES:
        raise ValueError(f"{member} is too large")
    return ElementTree.fromstring(book.read(member))


def _last_row(path: str) -> list[str] | None:
    """Return the texts of the last row of a spreadsheet's first sheet."""
    if _existing_file(path) is None:
        return None
    import pandas

    return pandas.read_excel(path).iloc[-1].astype(str).tolist()


# Settings of the browser, from its profile.


def _read_settings(folder: Path, name: str) -> dict[str, Any]:
    path = _existing_file(str(folder / name))
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8")) if path else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _setting(folder: Path, *keys: str, default: Any = None, name: str = "Default/Preferences") -> Any:
    value: Any = _read_settings(folder, name)
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            return default
        value = value[key]
    return value


def _as_word(value: Any) -> str:
    return "true" if value else "false"


def _history(folder: Path) -> list[tuple] | None:
    if (path := _existing_file(str(folder / "Default/History"))) is None:
        return None
    try:
        with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as connection:
            return connection.execute("SELECT url, title, last_visit_time FROM urls").fetchall()
    except sqlite3.Error:
        return None


_FONT_SIZES = {"default_fixed_font_size": 13, "default_font_size": 16, "minimum_font_size": 13}
_ENGINE = ("default_search_provider_data", "template_url_data", "short_name")
CHROME_GETTERS: dict[str, Callable[[Path], Any]] = {
    "default_search_engine": lambda folder: _setting(folder, *_ENGINE, default="Google"),
    "bookmarks": lambda folder: _setting(folder, "roots", default=[], name="Default/Bookmarks"),
    "profile_name": lambda folder: _setting(folder, "profile", "name"),
    "chrome_font_size": lambda folder: _setting(folder, "webkit", "webprefs", default=_FONT_SIZES),
    "enabled_experiments": lambda folder: _setting(
        folder, "browser", "enabled_labs_experiments", default=[], name="Local State"
    ),
    "enable_do_not_track": lambda folder: _as_word(_setting(folder, "enable_do_not_track")),
    "enable_enhanced_safety_browsing": lambda folder: _as_word(_setting(folder, "safebrowsing", "enhanced")),
    "new_startup_page": lambda folder: _as_word(
        _setting(folder, "session") is None or _setting(folder, "session", "restore_on_startup") == 5
    ),
    "data_delete_automacally": lambda folder: _as_word(
        _setting(folder, "profile", "default_content_setting_values") is not None
    ),
    "find_unpacked_extension_path": lambda folder: [
        one["path"]
        for one in _setting(folder, "extensions", "settings", default={}).values()
        if isinstance(one, dict) and "path" in one
    ],
    "history": _history,
}
