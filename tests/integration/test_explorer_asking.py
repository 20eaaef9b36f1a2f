"""The explorer's questions: each within its time, and those that wait for others too."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from explorer_store import rollouts
from processes import PATIENCE_S

from flywheel.ui.explorer import catalog_reader as explorer_asking
from flywheel.ui.explorer.catalog_reader import CatalogReader
from flywheel.utils.errors import QueryTimeout


def test_who_waits_too_long_for_others_is_told(ws, monkeypatch):
    monkeypatch.setattr(explorer_asking, "_MAX_QUERIES", 1)
    rollouts(ws)
    asking, working, over = CatalogReader(ws, limit_s=2), threading.Event(), threading.Event()

    def work(connection) -> int:
        working.set()
        assert over.wait(PATIENCE_S)
        return 1

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(asking.ask, work)
        assert working.wait(PATIENCE_S)
        try:
            with pytest.raises(QueryTimeout, match="others' questions were at work for 2 s; ask again"):
                asking.rows("SELECT 2")
        finally:
            over.set()
        assert first.result(60) == 1
    assert asking.rows("SELECT 3 AS n") == [{"n": 3}]


def test_a_question_that_takes_too_long_is_ended(ws):
    rollouts(ws)
    asking = CatalogReader(ws, limit_s=3)
    asking.rows("SELECT 1")  # opens the catalogue
    with pytest.raises(QueryTimeout, match="it took longer than 3 s"):
        asking.rows("SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range + b.range = 7")
    assert asking.rows("SELECT 3 AS n") == [{"n": 3}]
