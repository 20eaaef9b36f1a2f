"""Git's commands are waited for, and one that does not end is a line."""

from __future__ import annotations

import subprocess

import pytest

from flywheel.store.versioning import git_tags
from flywheel.utils.errors import FlywheelError


def test_a_git_that_does_not_answer_is_told_with_what_was_asked(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\ncase "$*" in *add*) exec sleep 600 ;; esac\n', encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setattr(git_tags, "_DEADLINE_S", 1)
    with pytest.raises(FlywheelError, match=r"git did not answer in 1 s \(.*add --all\)") as told:
        git_tags.init_git(tmp_path)
    assert told.value.where == str(tmp_path)


def test_a_change_of_other_files_makes_no_commit(tmp_path):
    git_tags.init_git(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).write_text("1", encoding="utf-8")
    git_tags.commit_to_git(tmp_path, "Both", ("--all",))

    def commits() -> list[str]:
        command = ["git", "-C", str(tmp_path), "log", "--format=%s"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")

    before = commits()
    (tmp_path / "b").write_text("2", encoding="utf-8")
    git_tags.commit_to_git(tmp_path, "Nothing", ("a",))
    assert commits() == before
    git_tags.commit_to_git(tmp_path, "Second", ("b",))
    assert commits()[0] == "Second"
