"""Every view and macro of the catalogue beside the same computed in Python, and no key of theirs twice."""

from __future__ import annotations

from collections.abc import Iterable

import awkward_rows
import duckdb
import pytest
from catalog_twice import KEYS, SECOND
from night import NIGHT

from flywheel.config.workspace import Workspace
from flywheel.store.catalog import database
from flywheel.store.schema import TABLES

_VIEWS = "SELECT view_name FROM duckdb_views() WHERE NOT internal"
_MACROS = """SELECT function_name FROM duckdb_functions()
    WHERE NOT internal AND function_type IN ('macro', 'table_macro')"""
_FIGURES = {
    "wilson_low": [(0, 0), (0, 5), (3, 7), (5, 5)],
    "wilson_high": [(0, 0), (0, 5), (3, 7), (5, 5)],
    "pass_at_k": [(n, c, k) for n in range(5) for c in range(n + 1) for k in range(1, 5)],
    "live_group": [(n, c, g) for n in range(6) for c in range(n + 1) for g in range(1, 5)],
}
# What reads more than the tables' partitions, or reads them in another way than by the table's view.
_OF_FILES = (
    "reviews",
    "labels",
    "recording_verdicts",
    "stage_artifacts",
    "route_reviews",
    "fresh_evaluations",
    "iterations",
    "replay",
    "parameters",
)


def arguments(rows: awkward_rows.Rows) -> dict[str, list[tuple]]:
    """What each table macro is asked."""
    some = [(row["trajectory_id"],) for row in rows["trajectories"][::61]] + [("none",)]
    models = [(f"models/iteration=00{k}/{stage}",) for k in (1, 2, 3) for stage in ("ct", "sft", "rl-games")]
    pairs = [(0, 1), (1, 2), (2, 3), (3, 3), (1, 4), (4, 2), (2, 9)]
    asked = {"pass_at": [(1,), (2,), (4,)], "training_of": models, "model_lineage": [*models, ("none",)]}
    asked["pass_at_by_world"] = asked["pass_at"]
    asked |= {"matched_templates": pairs, "held_out_between": pairs, "lost_between": pairs}
    return asked | dict.fromkeys(("steps_of", "replay", "lineage_of"), some)


def same(found: object, expected: object) -> bool:
    if isinstance(found, float) and isinstance(expected, int | float):
        return found == pytest.approx(expected, abs=1e-12)
    if isinstance(found, dict) and isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[name], expected[name]) for name in found)
    return found == expected


def check(name: str, found: list[dict], expected: list[dict]) -> None:
    """As sets of rows: those of one key are the same, and there are no others."""
    key = KEYS.get(name) or tuple(found[0] if found else ())

    def ordered(rows: list[dict]) -> list[dict]:
        return sorted(rows, key=lambda row: repr([row.get(column) for column in key]))

    if name in KEYS:
        keys = [tuple(row[column] for column in key) for row in found]
        assert len(set(keys)) == len(keys), f"{name} has a key twice"
    for row, other in zip(ordered(found), ordered(expected), strict=True):
        assert row.keys() >= other.keys(), name
        told = {column: (row[column], other.get(column)) for column in row if not same(row[column], other.get(column))}
        assert not told, f"{name} {[row[column] for column in key]}: (SQL, Python) {told}"


def check_all(connection: duckdb.DuckDBPyConnection, rows: awkward_rows.Rows, names: Iterable[str]) -> dict[str, int]:
    """Returns how many rows each had."""
    seen = {}
    asked = arguments(rows)
    for name in names:
        compute = SECOND[name]
        if name in _FIGURES:
            for values in _FIGURES[name]:
                ((found,),) = connection.execute(f"SELECT {name}({', '.join(map(str, values))})").fetchall()
                assert same(found, compute(rows, *values)), (name, values)
            seen[name] = 1
            continue
        for values in asked.get(name, [()]):
            call = f"{name}({', '.join(map(repr, values))})" if values else name
            found = database.query_rows(connection, f"FROM {call}")
            check(name, found, compute(rows, *values))
            seen[name] = seen.get(name, 0) + len(found)
    return seen


@pytest.mark.parametrize("seed", range(40 if NIGHT else 1))
def test_each_view_and_macro_is_what_python_computes(seed):
    rows = awkward_rows.draw(seed)
    with awkward_rows.connect(rows) as connection:
        seen = check_all(connection, rows, SECOND)
    assert all(seen.values()), f"nothing to see: {[name for name, n in seen.items() if not n]}"


def test_groups_of_an_iteration_whose_parameters_are_not_known_are_of_eight():
    rows = awkward_rows.draw(3)
    rows["parameter_files"] = []
    with awkward_rows.connect(rows) as connection:
        check_all(connection, rows, ("headroom",))
        sizes = database.query_rows(connection, "SELECT DISTINCT group_size FROM headroom WHERE samples >= 8")
    assert sizes == [{"group_size": 8}]


def test_a_workspace_of_the_same_rows_answers_the_same(tmp_path):
    """Over its files; and there is no view and no macro that is not computed twice."""
    ws, rows = Workspace(tmp_path), awkward_rows.draw(7)
    awkward_rows.write(ws, rows)
    with database.connect_catalog(ws) as connection:
        names = {name for (name,) in connection.execute(f"{_VIEWS} UNION ALL {_MACROS}").fetchall()}
        tables = {*TABLES, "steps_in_files", "score_history"} - {"reviews"}
        assert names - tables == SECOND.keys()
        check_all(connection, rows, SECOND if NIGHT else _OF_FILES)
