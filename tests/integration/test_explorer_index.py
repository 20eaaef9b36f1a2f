"""The index of the explorer's list: which words are found, and that it follows the store."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from explorer_store import explorer
from processes import PATIENCE_S
from synthetic_rows import step, task, trajectory

from flywheel.config.workspace import Workspace
from flywheel.store import partitions
from flywheel.ui.explorer import search_index
from flywheel.ui.explorer.search_index import ThoughtIndex
from flywheel.utils.errors import DataError, FlywheelError, QueryTimeout

THOUGHTS = {
    "a": ["I open the Settings page", "now I press Größe"],
    "b": ["press the red button", "see the list"],
    "c": ["打开设置页面", None],
    "d": ["a \ufeff\x00 'quote' \"double\" foo_bar", "OR"],
}


def write(ws: Workspace, iteration: int, thoughts: dict[str, list[str | None]]) -> None:
    of = task("k0", "sites", "shop")
    rows = [trajectory(name, of, steps=len(said)) for name, said in thoughts.items()]
    made = [
        {
            **step(row, n, total=row["steps"]),
            "thought": said,
            "image_sha256": f"{row['trajectory_id']}{n}" if n else None,
        }
        for row in rows
        for n, said in enumerate(thoughts[row["trajectory_id"]])
    ]
    partitions.write_partition(ws, "tasks", iteration, "synthesize", [of])
    partitions.write_partition(ws, "trajectories", iteration, "rollout", rows)
    partitions.write_partition(ws, "steps", iteration, "rollout", made)


def found(index: ThoughtIndex, text: str) -> set[str]:
    return set(index.find(text)["trajectory_id"].to_pylist())


@pytest.fixture
def index(ws):
    write(ws, 1, THOUGHTS)
    index = ThoughtIndex(ws, limit_s=60)
    index.begin()
    return index


@pytest.fixture
def read(monkeypatch) -> list[int]:
    """The iterations whose steps were read."""
    known, seen = search_index._trajectories, []
    monkeypatch.setattr(search_index, "_trajectories", lambda ws, k, stage: seen.append(k) or known(ws, k, stage))
    return seen


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("press", {"a", "b"}),
        ("PRESS the RED", {"b"}),
        ("press the re", {"b"}),  # the last word may be unfinished
        ("pres the", set()),
        ("red press", set()),  # in their order
        ("grosse", set()),
        ("große", {"a"}),
        ("grösse", set()),
        ("grobe", set()),
        ("page now", set()),  # not from one step into the next
        ("button see", set()),
        ("设置", {"c"}),
        ("打开设", {"c"}),
        ("设打", set()),
        ("foo-bar", {"d"}),
        ("quote double", {"d"}),
        ('"', set()),
        ("\0", set()),
        ("", set()),
        ('red" OR "x', set()),
        ("press*", {"a", "b"}),
        ("thoughts:press", set()),
        ("NOT press", set()),
        ("NEAR(press red)", set()),
    ],
)
def test_words_are_found_in_their_order_and_nothing_typed_is_a_command(index, text, names):
    assert found(index, text) == names


def test_each_partition_is_read_once_and_what_is_gone_is_not_found(ws, read):
    write(ws, 1, THOUGHTS)
    index = ThoughtIndex(ws, limit_s=60)
    index.begin()
    assert found(index, "press") == {"a", "b"}
    write(ws, 2, {"e": ["press too"]})
    index.begin()
    assert found(index, "press") == {"a", "b", "e"}
    assert read == [1, 2]
    write(ws, 2, {"f": ["release"]})
    index.begin()
    assert (found(index, "press"), found(index, "release")) == ({"a", "b"}, {"f"})
    assert read == [1, 2, 2]
    again = ThoughtIndex(ws, limit_s=60)  # another process
    again.begin()
    assert (found(again, "press"), read) == ({"a", "b"}, [1, 2, 2])


def test_where_most_of_it_is_gone_it_is_made_anew(ws, index):
    assert found(index, "press") == {"a", "b"}
    write(ws, 1, {"e": ["press too"]})
    index.begin()
    assert found(index, "press") == {"e"}
    write(ws, 2, {"f": ["press now"]})
    shutil.rmtree(ws.data / "steps" / "iteration=001")
    index.begin()
    assert found(index, "press") == {"f"}
    with search_index.open_index(ws.state / "explorer" / "index.sqlite") as connection:
        assert connection.execute("SELECT count(*) FROM trajectory").fetchone() == (1,)


def test_first_screens_are_known(index):
    assert found(index, "press")
    assert index.screens(["a", "c", "none"]) == {"a": "a1", "c": "c1"}
    assert index.screens([]) == {}


@pytest.mark.parametrize("damage", ["no database" * 1000, "version"])
def test_a_file_that_is_of_no_use_is_made_anew(ws, index, damage):
    assert found(index, "press") == {"a", "b"}
    path = ws.state / "explorer" / "index.sqlite"
    if damage == "version":
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA user_version = 99")
        connection.close()
    else:
        path.write_text(damage, encoding="utf-8")
    index = ThoughtIndex(ws, limit_s=60)
    index.begin()
    assert found(index, "press") == {"a", "b"}


def test_a_damaged_file_of_the_store_is_named_and_mended(ws, index):
    assert found(index, "press")
    write(ws, 2, {"e": ["press too"]})
    (path,) = partitions.partition_files(ws, "steps", 2, "rollout")
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    index.begin()
    with pytest.raises(DataError, match="steps/iteration=002"):
        index.find("press")
    path.write_bytes(whole)
    index.begin()
    assert found(index, "press") == {"a", "b", "e"}


def test_where_it_cannot_be_written_the_list_goes_on_without(ws):
    write(ws, 1, THOUGHTS)
    ws.state.mkdir(exist_ok=True)
    (ws.state / "explorer").write_text("in its place", encoding="utf-8")
    index = ThoughtIndex(ws, limit_s=60)
    index.begin()
    with pytest.raises(FlywheelError, match="the index of words cannot be used"):
        index.find("press")
    assert index.screens(["a"]) == {}
    with explorer(ws) as (_, client):
        rows = client.get("/api/trajectories?sort=trajectory_id").json()["rows"]
        assert [row["screen"] for row in rows] == ["a1", "b1", "c1", "d1"]
        answer = client.get("/api/trajectories?q=press&in=thoughts")
        assert (answer.status_code, "the index of words" in answer.json()["error"]) == (500, True)


def test_a_search_waits_for_new_words_within_its_limit(ws, monkeypatch):
    over = threading.Event()
    monkeypatch.setattr(search_index, "update_index", lambda *_: over.wait(PATIENCE_S) and ())
    index = ThoughtIndex(ws, limit_s=0.01)
    index.begin()
    with pytest.raises(QueryTimeout, match="still being indexed"):
        index.find("press")
    over.set()


def test_a_file_that_another_process_makes_at_the_same_time_is_waited_for(ws, monkeypatch):
    """SQLite does not wait by itself where a file is to get its journal, and another writes."""
    write(ws, 1, THOUGHTS)
    path = ws.state / "explorer" / "index.sqlite"
    path.parent.mkdir(parents=True)
    other, waited = sqlite3.connect(path, isolation_level=None), []
    other.execute("CREATE TABLE one (number)")
    other.execute("BEGIN IMMEDIATE")

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            other.execute("ROLLBACK")

    monkeypatch.setattr(search_index.time, "sleep", sleep)
    assert search_index.update_index(path, ws, search_index.list_step_partitions(ws)) == ()
    assert len(waited) == 3
    other.close()


def test_several_processes_make_one_index(ws, read):
    write(ws, 1, THOUGHTS)
    several = [ThoughtIndex(ws, limit_s=60) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ThoughtIndex.begin, several))
        assert list(pool.map(lambda one: found(one, "press"), several)) == [{"a", "b"}] * 4
    assert several[0].find("press").num_rows == 2
    assert read == [1]
