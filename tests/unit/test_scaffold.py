"""The folder of a new workspace."""

from __future__ import annotations

import errno

import pytest

from flywheel.cli import scaffold
from flywheel.utils.errors import DiskFull


def test_a_full_disk_is_told_of_in_one_line(tmp_path, monkeypatch):
    def fill(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(scaffold.shutil, "copytree", fill)
    with pytest.raises(DiskFull, match="the disk is full"):
        scaffold.create_workspace(tmp_path / "night")
