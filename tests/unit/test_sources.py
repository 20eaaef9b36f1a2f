"""No work is left undone in the sources."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("word", ["TODO", "FIXME", "XXX"])
def test_nothing_is_left_undone(project, word):
    for package in ("flywheel", "flows", "tasks"):
        for path in sorted((project / package).rglob("*.py")):
            assert word not in path.read_text(encoding="utf-8"), path
