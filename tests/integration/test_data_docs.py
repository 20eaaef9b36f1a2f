"""Data Docs: what each contract promises, what it found and since when, in a page that needs nothing else."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flywheel.config.workspace import Workspace
from flywheel.store.routing import contracts
from flywheel.store.routing.contracts import ContractResult, RowContract, write_data_docs


def held(**broken: int) -> list[ContractResult]:
    return [ContractResult(RowContract(name, f"{name} & <all>", ""), 1234, count) for name, count in broken.items()]


def page(ws: Workspace) -> str:
    return (ws.report / "docs" / "index.html").read_text()


def since(ws: Workspace) -> dict[str, str]:
    rows = re.findall(r"<code>(\w+)</code></td><td>\1 .*?</tr>", page(ws), re.DOTALL)
    return {name: re.search(rf"<code>{name}<.*?(\w+ since \d+)", page(ws), re.DOTALL)[1] for name in rows}


def test_each_contract_has_its_promise_its_rows_and_since_when(tmp_path):
    ws = Workspace(tmp_path)
    for k, broken in enumerate([{"a": 0, "b": 2}, {"a": 0, "b": 0}, {"a": 3, "b": 0}, {"a": 1, "b": 0, "c": 0}], 1):
        assert write_data_docs(ws, k, held(**broken))
    assert since(ws) == {"a": "broken since 003", "b": "holds since 002", "c": "holds since 004"}
    text = page(ws)
    assert "1 of 3 contracts are broken" in text
    assert "a &amp; &lt;all&gt;" in text
    assert text.count('<td class="n">1234</td>') == 3
    assert all(one.promise in text for one in contracts.TABLE_CONTRACTS)
    write_data_docs(ws, 2, held(a=0))  # done again after a rollback: what came later is no past of it
    assert since(ws) == {"a": "holds since 001"}
    assert "All 1 contracts hold" in page(ws)


@given(st.lists(st.fixed_dictionaries({}, optional={"a": st.integers(0, 1), "b": st.integers(0, 1)}), max_size=40))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_since_when_is_known_however_long_ago_and_the_file_stays_small(tmp_path_factory, history):
    ws = Workspace(tmp_path_factory.mktemp("ws"))
    told = {}
    for k, broken in enumerate(history, 1):
        write_data_docs(ws, k, held(**broken))
        for name, count in broken.items():
            before = told.get(name)
            told[name] = (count, before[1] if before and before[0] == count else k)
        assert since(ws) == {
            name: f"{'broken' if told[name][0] else 'holds'} since {told[name][1]:03d}" for name in broken
        }
        stored = json.loads((ws.state / "contracts.json").read_text())
        assert len(stored) <= 10 + 2  # those that are shown, and where the two contracts last changed


def test_the_page_asks_for_nothing_else(tmp_path):
    """It is read offline, and from a folder that was copied."""
    write_data_docs(Workspace(tmp_path), 1, held(a=0))
    assert not re.search(r"(src|href|url|import|@import|script)\s*[=(\"']", page(Workspace(tmp_path)))


@pytest.mark.parametrize("damaged", ["", "[1]", '{"x": {}}', "\0", '{"1": 5}', '{"1": {"a": 3}}'])
def test_what_was_found_before_may_be_lost(tmp_path, damaged):
    ws = Workspace(tmp_path)
    ws.state.mkdir()
    (ws.state / "contracts.json").write_text(damaged)
    assert write_data_docs(ws, 3, held(a=1))
    assert since(ws) == {"a": "broken since 003"}


def test_a_page_that_cannot_be_written_stops_nothing(tmp_path, caplog):
    (tmp_path / "report").write_text("in the way")
    assert not write_data_docs(Workspace(tmp_path), 1, held(a=1))
    assert "Data Docs are not written" in caplog.text
