"""An empty SQLite database of Prefect's, made once a user and version and copied from then on.

Prefect makes one by more than a hundred migrations in turn, which takes six seconds of a core: with each new workspace.
It holds tables and no rows, so that copies have nothing in common that should be their own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from pathlib import Path

import prefect

from flywheel.files import atomic_file


def copy_to(file: Path) -> bool:
    """Whether there was one to copy. A damaged one is removed."""
    kept = _kept()
    if not kept.is_file():
        return False
    if not _is_sound(kept):
        kept.unlink(missing_ok=True)
        return False
    with atomic_file(file) as part:
        shutil.copyfile(kept, part)
    return True


def keep(file: Path) -> None:
    """Of a database that was just made, for the next ones. It is a matter of speed alone: where there is no room for
    it, or the home folder cannot be written, there is none.
    """
    with (
        contextlib.suppress(OSError, sqlite3.Error),
        atomic_file(_kept()) as part,
        contextlib.closing(sqlite3.connect(file)) as made,
        contextlib.closing(sqlite3.connect(part)) as copy,
    ):
        made.backup(copy)
        copy.execute("PRAGMA journal_mode=DELETE")  # one file, also while it is looked at


def _kept() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    cache = (Path(base) if base else Path.home() / ".cache") / "flywheel" / "prefect"
    return cache / f"empty-{prefect.__version__}.db"


def _is_sound(file: Path) -> bool:
    try:
        with contextlib.closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as connection:
            (said,) = connection.execute("PRAGMA quick_check").fetchone()
            return said == "ok" and bool(connection.execute("SELECT * FROM alembic_version").fetchone())
    except sqlite3.Error:
        return False
