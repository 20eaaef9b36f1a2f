"""The PostgreSQL of the benchmarks, for tests; they are skipped where it is not installed."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator

import pytest

from flywheel.cli import bench

_SPEC = importlib.util.spec_from_file_location(
    "orchestration_postgres", bench.BENCHMARKS_FOLDER / "orchestration_postgres.py"
)
_made = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_made)
PASSWORD, Postgres = _made.PASSWORD, _made.Postgres


@contextlib.contextmanager
def postgres() -> Iterator[Postgres]:
    """Ended with the block, and with this process."""
    with contextlib.ExitStack() as open_until_the_end:
        try:
            cluster = open_until_the_end.enter_context(_made.postgres())
        except _made.NotInstalled as error:
            pytest.skip(str(error))
        yield cluster
