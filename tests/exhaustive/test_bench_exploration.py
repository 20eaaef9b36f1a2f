"""The figures of `flywheel bench exploration`, from outcomes that are known."""

from __future__ import annotations

import importlib

import pytest

from flywheel.cli import bench


def test_pass_at_1_and_k_and_what_is_solved_sometimes(monkeypatch):
    monkeypatch.syspath_prepend(str(bench.BENCHMARKS_FOLDER))
    found = importlib.import_module("exploration").found
    assert found([[True, True], [False, False], [True, False], [False]]) == pytest.approx((1.5 / 4, 0.5, 1))
