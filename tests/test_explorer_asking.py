"""The explorer's questions: those that take long wait in a queue of their own."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from explored import rollouts

from flywheel.errors import QueryTimeout
from flywheel.explorer.asking import Asking


def test_long_questions_wait_for_one_another_and_nobody_else_does(ws):
    """One is at work and holds the only place; others wait for it until their time is over, and too many are turned
    away at once."""
    rollouts(ws)
    asking, working, over = Asking(ws, limit_s=2), threading.Event(), threading.Event()

    def work(connection) -> int:
        working.set()
        assert over.wait(60)
        return 1

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(asking.ask, work, long=True)
        assert working.wait(60)
        try:
            with pytest.raises(QueryTimeout, match="others' questions were at work for 2 s"):
                asking.ask(lambda connection: 2, long=True)
            assert asking.rows("SELECT 3 AS n") == [{"n": 3}]
            with ThreadPoolExecutor(20) as many:
                asked = [many.submit(asking.ask, lambda connection: 4, long=True) for _ in range(20)]
            refused = [str(one.exception(60)) for one in asked]
            assert any("12 questions that take long are at work or wait" in said for said in refused)
            assert len(refused) == 20
        finally:
            over.set()
        assert first.result(60) == 1
    assert asking.ask(lambda connection: 5, long=True) == 5
