"""A catalogue that stays open: one opening for many questions, and no answer of yesterday."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from synthetic_rows import image_row, step, task, trajectory

from flows.ops.ui import start_report_server
from flywheel.store import partitions
from flywheel.store.catalog import database
from flywheel.store.catalog.database import CatalogConnection
from flywheel.utils import credentials
from flywheel.utils.files import write_json


@pytest.fixture
def opened(monkeypatch) -> list:
    """Grows by one with each opening of a catalogue."""
    times, connect = [], database.connect_catalog
    monkeypatch.setattr(database, "connect_catalog", lambda ws: times.append(ws) or connect(ws))
    return times


def routes(*names: str) -> list[dict]:
    return [{"trajectory_id": name, "destination": "ct"} for name in names]


def test_it_opens_once_and_again_when_something_came_or_changed(ws, opened):
    resident = CatalogConnection(ws)

    def known(sql: str = "SELECT trajectory_id FROM routes ORDER BY ALL") -> list[str]:
        return resident.run(lambda connection: [*database.run_query(connection, sql).column(0).to_pylist()])

    assert [known(), known()] == [[], []]
    assert len(opened) == 1
    partitions.write_partition(ws, "routes", 1, "route", routes("a"))  # the table's first
    assert [known(), known()] == [["a"], ["a"]]
    partitions.write_partition(ws, "routes", 2, "route", routes("b"))
    assert known() == ["a", "b"]
    partitions.write_partition(ws, "routes", 1, "route", routes("c"))  # replaced
    assert [known(), known()] == [["b", "c"]] * 2
    assert len(opened) == 4
    promoted = "SELECT model FROM promotions"
    assert known(promoted) == []
    write_json(ws.promotion(0), {"model": "models/base", "digest": "d", "iteration": 0, "promoted": True, "reason": ""})
    assert known(promoted) == ["models/base"]


def test_threads_ask_side_by_side_and_times_are_utc_in_each(ws, opened):
    partitions.write_partition(ws, "routes", 1, "route", routes(*(f"t{n:04d}" for n in range(2000))))
    resident = CatalogConnection(ws)
    sql = "SELECT count(*) AS n, max(trajectory_id) AS last, current_setting('TimeZone') AS zone FROM routes"
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: resident.run(lambda c: database.query_rows(c, sql)), range(64)))
    assert answers == [[{"n": 2000, "last": "t1999", "zone": "UTC"}]] * 64
    assert len(opened) == 1


def test_a_trajectory_s_page_is_made_when_it_is_asked_for(ws, opened):
    login = {"Authorization": credentials.basic_auth_header(credentials.workspace_credentials(ws.state))}
    with start_report_server(ws, 0) as server, httpx.Client(headers=login) as client:
        page = f"http://127.0.0.1:{server.server_port}/trajectories/{{}}.html"
        assert client.get(page.format("t1")).status_code == 404
        for number, name in enumerate(("t1", "t2"), 1):
            row = trajectory(name, task("k", "games", "tiles"), steps=1, instruction=f"Clear tile {name}")
            partitions.write_partition(ws, "trajectories", number, "rollout", [row])
            partitions.write_partition(ws, "steps", number, "rollout", [step(row, 0, total=1)])
            partitions.write_partition(ws, "images", number, "rollout", [image_row(0)])
            told = client.get(page.format(name))
            assert told.status_code == 200
            assert f"Clear tile {name}" in told.text
            assert "data:image/png;base64," in told.text
        assert len(opened) == 3
        assert client.get(page.format("t1")).status_code == client.get(page.format("t2")).status_code == 200
        assert len(opened) == 3
        for name in ("..%2F..%2Fparams", "t1'", "none"):
            assert client.get(page.format(name)).status_code == 404
        assert httpx.get(page.format("t1")).status_code == 401
