"""A workspace's servers have a password, which no other user can have read."""

from __future__ import annotations

from pathlib import Path

import pytest

from flywheel.utils import credentials
from flywheel.utils.errors import DataError


def test_credentials_stay(tmp_path: Path) -> None:
    first = credentials.workspace_credentials(tmp_path / "state")
    assert first.startswith("flywheel:")
    assert len(first) > 30
    assert credentials.workspace_credentials(tmp_path / "state") == first
    assert credentials.credentials_path(tmp_path / "state").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(("text", "mode"), [("", 0o600), ("flywheel:known\n", 0o644)])
def test_a_password_that_others_may_know_is_replaced(tmp_path: Path, text: str, mode: int) -> None:
    path = credentials.credentials_path(tmp_path)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    made = credentials.workspace_credentials(tmp_path)
    assert len(made) > 30
    assert made != text.strip()
    assert path.stat().st_mode & 0o077 == 0


def test_a_password_file_that_is_not_utf_8_is_told_with_its_place(tmp_path: Path) -> None:
    path = credentials.credentials_path(tmp_path)
    path.touch(0o600)
    path.write_bytes("flywheel:pässwort\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"is not UTF-8.*delete the file") as caught:
        credentials.workspace_credentials(tmp_path)
    assert caught.value.where == str(path)
    path.unlink()
    assert len(credentials.workspace_credentials(tmp_path)) > 30
