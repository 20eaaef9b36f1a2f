"""Files and folders are there whole or not at all, whoever else writes them and wherever writing ends."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

import pytest

from flywheel.utils import files


def test_a_file_is_as_it_was_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "missing" / "facts"
    with files.atomic_file(path) as first, files.atomic_file(path) as second:  # two processes
        first.write_text("one")
        second.write_text("two")
        assert not path.exists()
    assert path.read_text() == "one"
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_fails_half_way_leaves_what_was_there(tmp_path):
    path = tmp_path / "facts"
    path.write_text("old")
    with contextlib.suppress(ZeroDivisionError), files.atomic_file(path) as temporary:
        temporary.write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_not_written_over_where_that_is_asked(tmp_path):
    path = tmp_path / "secret"
    writing = files.atomic_file(path, over=False)
    writing.__enter__().write_text("mine")
    path.write_text("theirs")
    with pytest.raises(FileExistsError):
        writing.__exit__(None, None, None)
    assert path.read_text() == "theirs"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_replaced_with_all_that_is_in_it(tmp_path):
    path = tmp_path / "model"
    with files.atomic_folder(path) as folder:
        (folder / "old").touch()
    with contextlib.suppress(ZeroDivisionError), files.atomic_folder(path) as folder:
        (folder / "half").touch()
        raise ZeroDivisionError
    assert [one.name for one in path.iterdir()] == ["old"]
    with files.atomic_folder(path) as folder:
        (folder / "new").touch()
    assert [one.name for one in path.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [path]


def test_what_killed_processes_left_is_removed_by_name(tmp_path):
    killed = {name: files.atomic_file(tmp_path / name) for name in ("state.pt", "other.pt")}
    killed["model"] = files.atomic_folder(tmp_path / "model")
    left = {name: writing.__enter__() for name, writing in killed.items()}
    left["state.pt"].write_text("half")
    left["other.pt"].write_text("half")
    (left["model"] / "half").touch()
    (tmp_path / "state.pt").write_text("whole")
    files.remove_unfinished(tmp_path, "state.pt")
    assert {name: path.exists() for name, path in left.items()} == {"state.pt": False, "other.pt": True, "model": True}
    files.remove_unfinished(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["state.pt"]


def test_a_file_is_read_once_for_its_hash_while_it_stays_as_it_is(tmp_path, monkeypatch):
    path, other, read = tmp_path / "part", tmp_path / "other", []
    hashed = files._sha256
    monkeypatch.setattr(files, "_sha256", lambda paths: read.append(paths) or hashed(paths))
    for one in (path, other):
        one.write_text("as it was")
        os.utime(one, ns=(10**18, 10**18))
    monkeypatch.setattr(files.time, "time_ns", lambda: path.stat().st_ctime_ns + 10**10)  # long after
    assert files.cached_sha256(path) == files.cached_sha256(path) == files.sha256_file(other)
    assert read == [(path,), (other,)]
    path.write_text("as it is ")  # as long
    os.utime(path, ns=(10**18 + 1, 10**18 + 1))
    assert files.cached_sha256(path) == hashlib.sha256(b"as it is ").hexdigest()
    other.replace(path)  # of the same size and age as the first
    assert files.cached_sha256(path) == hashlib.sha256(b"as it was").hexdigest()


def test_a_file_that_has_just_changed_is_read_again(tmp_path):
    path = tmp_path / "part"
    for content in (b"one", b"two", b"six"):  # within one tick of the clock, as may be
        path.write_bytes(content)
        assert files.cached_sha256(path) == hashlib.sha256(content).hexdigest()


def test_files_are_hashed_as_one_text_in_their_order(tmp_path):
    first, second = tmp_path / "1", tmp_path / "2"
    first.write_bytes(b"ab")
    second.write_bytes(b"c")
    assert files.cached_sha256(first, second) == hashlib.sha256(b"abc").hexdigest()
    assert files.cached_sha256(second, first) == hashlib.sha256(b"cab").hexdigest()


def test_the_home_of_a_user_that_is_not_known_stays_as_it_is_written(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    assert files.expand_home("~/a") == Path("/home/ada/a")
    assert files.expand_home("~nobody-of-this-name/a") == Path("~nobody-of-this-name/a")
