"""Near-duplicates: which episodes are near one another, what they weigh, and which tasks are near evaluation."""

from __future__ import annotations

import io
import json
from functools import cache
from itertools import combinations, pairwise

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from night import NIGHT, by_day
from PIL import Image, ImageDraw

from flywheel.store.dedup import episode_similarity
from flywheel.store.dedup import near_duplicates as dedup_near_duplicates
from flywheel.store.dedup.episode_similarity import StepSequences, encode_steps
from flywheel.store.dedup.near_duplicates import (
    REASON_OTHER_TASK,
    REASON_SAME_TASK,
    difference_hash,
    find_near_duplicates,
    find_tasks_near_evaluation,
    hashes_alike,
)

LEAST = 0.8


def click(x: float, y: float) -> tuple:
    return "click", f"click(point='<point>{int(x * 1000)} {int(y * 1000)}</point>')", x, y


def typed(text: str) -> tuple:
    return "type", f"type(content='{text}')", None, None


WAIT = ("wait", "wait()", None, None)
WAY = [click(k / 11, (k * 7 % 11) / 11) for k in range(9)] + [typed("Ada Lovelace")]


def coded(episodes: dict[str, list[tuple]]) -> dict[str, list[int]]:
    rows = [(name, step, *one, None, None) for name, done in episodes.items() for step, one in enumerate(done)]
    columns = ("trajectory_id", "step", "action_type", "action", "x", "y", "x2", "y2")
    kinds = (pa.string(), pa.int32(), pa.string(), pa.string(), *[pa.float64()] * 4)
    made = {
        name: pa.array(values, kind) for name, values, kind in zip(columns, zip(*rows, strict=True), kinds, strict=True)
    }
    database().register("made", pa.table(made))
    table = pa.concat_tables(encode_steps(database(), "FROM made"))
    return dict(zip(table["trajectory_id"].to_pylist(), table["step_codes"].to_pylist(), strict=True))


def table(episodes: dict[str, list[tuple]], **columns: dict[str, str]) -> pa.Table:
    """columns: of some episodes, what is not the same in all."""
    ids = list(episodes)
    steps = coded(episodes)
    same = {"content": "c", "arguments": "", "store": "sft"}
    told = {name: [columns.get(name, {}).get(one, value) for one in ids] for name, value in same.items()}
    screens = dict.fromkeys(("first_image_sha256", "last_image_sha256"), ["screen"] * len(ids))
    return pa.table(
        {
            "trajectory_id": ids,
            **told,
            "step_codes": pa.array([steps[one] for one in ids], pa.list_(pa.uint64())),
            **screens,
        }
    )


@cache
def database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={"threads": 1})


def found(new: pa.Table, known: pa.Table | None = None, *, look_alike: bool = True) -> dict[str, tuple]:
    connection = database()
    connection.register("new", new)
    connection.register("known", new.slice(0, 0) if known is None else known)
    connection.execute("CREATE OR REPLACE TABLE episodes AS SELECT *, true AS new FROM new")
    connection.execute("INSERT INTO episodes SELECT *, false FROM known")
    find_near_duplicates(connection, "FROM episodes", LEAST, lambda pairs: [look_alike] * len(pairs))
    result = connection.execute("SELECT * REPLACE (round(similarity, 3) AS similarity) FROM near_duplicates")
    return {name: tuple(told) for name, *told in result.fetchall()}


def test_a_few_points_spacing_and_case_are_the_same_step():
    off = [click(x + 0.008, y - 0.008 if y else y) if x is not None else typed("ada   LOVELACE") for *_, x, y in WAY]
    assert found(table({"a": WAY, "b": off})) == {
        "a": ("b", 1.0, REASON_SAME_TASK, 0.5),
        "b": ("a", 1.0, REASON_SAME_TASK, 0.5),
    }


def test_one_edited_step_of_ten_is_near_and_half_of_them_are_not():
    edited = [click(0.99, 0.5), *WAY[1:]]
    other = [click(0.99, k / 20) if k % 2 else one for k, one in enumerate(WAY)]
    assert found(table({"a": WAY, "b": edited, "c": other})) == {
        "a": ("b", 0.9, REASON_SAME_TASK, 0.5),
        "b": ("a", 0.9, REASON_SAME_TASK, 0.5),
    }


def test_another_task_on_the_page_is_none_though_one_step_alone_differs():
    edited = [*WAY[:-1], typed("Grace Hopper")]
    assert found(table({"a": WAY, "b": edited}, content={"b": "other"})) == {}


def test_one_task_under_two_names_is_found_where_its_screens_are_alike():
    episodes = {"a": WAY, "b": [*WAY[:3], WAIT, *WAY[3:]]}
    told = table(episodes, content={"b": "other"})
    assert found(told)["b"] == ("a", round(10 / 11, 3), REASON_OTHER_TASK, 0.5)
    assert found(told, look_alike=False) == {}
    assert found(table(episodes, content={"b": "other"}, arguments={"b": "7"})) == {}  # it asks for another number


def test_a_success_and_a_failure_are_no_twins():
    assert found(table({"a": WAY, "b": WAY}, store={"b": "ct"})) == {}


def test_of_an_earlier_iteration_only_the_newer_one_is_weighed_down_and_names_it():
    known = table({"z": WAY})
    assert found(table({"a": WAY, "b": WAY}), known) == {
        "a": ("z", 1.0, REASON_SAME_TASK, pytest.approx(1 / 3)),
        "b": ("z", 1.0, REASON_SAME_TASK, pytest.approx(1 / 3)),
    }


@settings(max_examples=150 if NIGHT else 8)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from("cd"), st.integers(0, 2)), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
)
def test_the_order_of_the_rows_changes_nothing(drawn, random):
    """Episodes that end elsewhere, of two tasks, some left short."""
    episodes = {f"t{n:02d}": [*WAY[short:-1], click(end / 5, 0.5)] for n, (end, _, short) in enumerate(drawn)}
    contents = {f"t{n:02d}": content for n, (_, content, _) in enumerate(drawn)}
    one = table(episodes, content=contents)
    places = list(range(len(one)))
    random.shuffle(places)
    result = found(one)
    assert found(one.take(places)) == result
    assert all(0 < weight < 1 and twin != name for name, (twin, _, _, weight) in result.items())


def test_of_a_small_group_all_pairs_are_looked_at_and_of_a_crowd_those_that_are_alike():
    small, crowd = 5, episode_similarity.CROWDED_GROUP + 6
    group = np.repeat([3, 1, 2], [small, crowd, 1])
    done = [[k << 40] * 4 for k in range(small)] + [[k // 2 << 40, 5 << 40, 7 << 40, 9 << 40] for k in range(crowd)]
    pairs = episode_similarity.candidate_pairs(
        group, StepSequences.from_lists(pa.array([*done, done[0]], pa.list_(pa.uint64())))
    )
    told = {tuple(pair) for pair in pairs.tolist()}
    assert len(told) == len(pairs)
    assert {pair for pair in told if pair[0] < small} == set(combinations(range(small), 2))
    assert all(left < right and group[left] == group[right] for left, right in told)
    assert {(small + k, small + k + 1) for k in range(0, crowd, 2)} <= told


def test_many_episodes_are_compared_some_at_a_time_and_none_of_a_task_is_left_alone(monkeypatch):
    """Tasks of one to five samples, in so many batches that tasks lie across their ends."""
    monkeypatch.setattr(dedup_near_duplicates, "_EPISODES_PER_BATCH", 700)
    sizes = [k % 5 + 1 for k in range(2_000)]
    names = [f"t{k:04d}-{sample}" for k, size in enumerate(sizes) for sample in range(size)]
    numbers = [k for k, size in enumerate(sizes) for _ in range(size)]
    done = [[k << 40, 1 << 40, 2 << 40, 3 << 40, place << 45] for place, k in enumerate(numbers)]
    same = {"arguments": "", "store": "sft", "first_image_sha256": "screen", "last_image_sha256": "screen"}
    told = pa.table(
        {
            "trajectory_id": names,
            "content": [f"c{k}" for k in numbers],
            **{name: [value] * len(names) for name, value in same.items()},
            "step_codes": pa.array(done, pa.list_(pa.uint64())),
        }
    )
    weights = {name: weight for name, (*_, weight) in found(told).items()}
    many = {name: sizes[k] for name, k in zip(names, numbers, strict=True) if sizes[k] > 1}
    assert weights == {name: pytest.approx(1 / size) for name, size in many.items()}


@pytest.mark.parametrize(
    "order", by_day(["trajectory_id, step", "step, trajectory_id", "trajectory_id DESC, step DESC"])
)
def test_steps_are_put_in_order_where_they_do_not_lie_so(monkeypatch, order):
    monkeypatch.setattr(episode_similarity, "_ROWS_PER_BATCH", 100)
    database().execute(
        f"""CREATE OR REPLACE TABLE played AS SELECT 't' || (k // 7)::VARCHAR AS trajectory_id,
        (k % 7)::INTEGER AS step, 'type' AS action_type, k::VARCHAR AS action, NULL::DOUBLE AS x, NULL::DOUBLE AS y,
        NULL::DOUBLE AS x2, NULL::DOUBLE AS y2 FROM range(7 * 900) _(k) ORDER BY {order}"""
    )
    table = pa.concat_tables(encode_steps(database(), "FROM played"))
    told = dict(zip(table["trajectory_id"].to_pylist(), table["step_codes"].to_pylist(), strict=True))
    hashed = database().execute("SELECT md5_number_lower('type ' || k::VARCHAR) FROM range(7 * 900) _(k)").fetchall()
    done = [number >> 25 for (number,) in hashed]
    found = {name: [code >> 25 for code in codes] for name, codes in told.items()}
    assert found == {f"t{k}": done[7 * k : 7 * k + 7] for k in range(900)}


def test_each_trajectory_comes_once_from_many_files_that_two_threads_read(tmp_path):
    """Its steps may lie at the end of one file and the beginning of the next one."""
    rows = [(f"t{k // 15:04d}", k % 15, "click", "click()", k % 7 / 7, 0.5, None, None) for k in range(15 * 400)]
    columns = ("trajectory_id", "step", "action_type", "action", "x", "y", "x2", "y2")
    kinds = (pa.string(), pa.int32(), pa.string(), pa.string(), *[pa.float64()] * 4)
    values = zip(columns, zip(*rows, strict=True), kinds, strict=True)
    made = pa.table({name: pa.array(column, kind) for name, column, kind in values})
    for first in range(0, len(rows), 100):
        pq.write_table(made.slice(first, 100), tmp_path / f"{first:05d}.parquet")
    connection = duckdb.connect(config={"threads": 2})
    for _ in range(5):  # which thread is the first is chance
        table = pa.concat_tables(encode_steps(connection, f"FROM read_parquet('{tmp_path}/*.parquet')"))
        assert table["trajectory_id"].to_pylist() == [f"t{k:04d}" for k in range(400)]
        assert {len(codes) for codes in table["step_codes"].to_pylist()} == {15}


@given(st.lists(st.lists(st.integers(0, 3), max_size=9), min_size=2, max_size=6))
def test_similarity_is_levenshteins_and_equal_says_when_it_is_1(words):
    """Against the recursion by its definition, on steps that lie far apart."""

    def edits(left: tuple, right: tuple) -> int:
        if not left or not right:
            return len(left) + len(right)
        swapped = edits(left[1:], right[1:]) + (left[0] != right[0])
        return min(swapped, edits(left[1:], right) + 1, edits(left, right[1:]) + 1)

    short = [word[:4] for word in words]
    sequences = StepSequences.from_lists(pa.array([[k << 40 for k in word] for word in short], pa.list_(pa.uint64())))
    pairs = np.array(list(pairwise(range(len(short)))))
    expected = [
        1 - edits(tuple(short[i]), tuple(short[j])) / max(len(short[i]), len(short[j]), 1) for i, j in pairs.tolist()
    ]
    assert episode_similarity.sequence_similarity(sequences, pairs).tolist() == pytest.approx(expected)
    assert episode_similarity.sequences_equal(sequences, pairs).tolist() == [value == 1 for value in expected]


def screen(*boxes: tuple[int, int, int, int]) -> bytes:
    picture = Image.new("RGB", (320, 240), "white")
    draw = ImageDraw.Draw(picture)
    for box in boxes:
        draw.rectangle(box, fill="navy")
    out = io.BytesIO()
    picture.save(out, "png")
    return out.getvalue()


def test_a_caret_leaves_a_screen_alike_and_another_page_does_not():
    page = screen((20, 20, 150, 90), (180, 120, 300, 220))
    caret = screen((20, 20, 150, 90), (180, 120, 300, 220), (60, 150, 61, 160))
    other = screen((160, 10, 300, 60), (10, 130, 100, 230))
    assert hashes_alike(difference_hash(page), difference_hash(caret))
    assert not hashes_alike(difference_hash(page), difference_hash(other))


def task(name: str, **columns) -> dict:
    same = {"world": "shop", "template": "buy", "level": 1, "seed": 5, "params": json.dumps({"item": "Mug", "n": 2})}
    return {"task_id": name, "instruction": "Buy 2 mugs", **same, **columns}


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"seed": 9, "params": '{"n": 2, "item": " mug"}'}, "the content of e1"),
        ({"params": '{"item": "pen", "n": 2}', "instruction": "buy 2 mugs!"}, "instruction and seed of e1"),
        ({"seed": 9, "params": '{"item": "pen", "n": 2}'}, None),
        ({"level": 2, "seed": 9}, None),
    ],
)
def test_what_is_near_an_evaluation_task(columns, why):
    near = find_tasks_near_evaluation([task("t1", **columns)], [task("e2", seed=77, level=3), task("e1")])
    assert near == ({"t1": why} if why else {})
