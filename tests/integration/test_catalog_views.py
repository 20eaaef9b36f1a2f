"""Views and macros that analysts ask with: each against an answer made in Python, and what their reference says."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import combinations
from statistics import fmean

import duckdb
import pytest
import synthetic
from synthetic_rows import image_row, step, task, trajectory

from flywheel.config.workspace import Workspace
from flywheel.store import partitions
from flywheel.store.catalog import database


@pytest.fixture(scope="module")
def ws(tmp_path_factory) -> Workspace:
    ws, settings = synthetic.workspace(tmp_path_factory.mktemp("views"))
    for k in (1, 2):
        synthetic.incoming(ws, settings, k, tasks=8, samples=4)
        synthetic.routed(ws, settings, k)
        synthetic.outgoing(ws, k)
        steps = partitions.read_partition(ws, "steps", k, "rollout").to_pylist()
        for row in steps[::5]:
            row["parse_error"] = "no action"
        partitions.write_partition(ws, "steps", k, "rollout", steps)
    return ws


@pytest.fixture(scope="module")
def catalog(ws) -> Iterator[duckdb.DuckDBPyConnection]:
    """One connection, for those who ask much."""
    with database.connect_catalog(ws) as connection:
        yield connection


def ask(catalog: Workspace | duckdb.DuckDBPyConnection, sql: str) -> list[dict]:
    asked = database.query_catalog if isinstance(catalog, Workspace) else database.run_query
    return asked(catalog, sql).to_pylist(maps_as_pydicts="strict")


def test_pass_at_k_is_the_share_of_draws_that_hold_a_success(catalog):
    tasks = ask(catalog, "FROM task_success")
    assert {row["samples"] for row in tasks} >= {4}
    for k in (1, 2, 4):
        expected = {}
        for row in tasks:
            samples = [True] * row["verified"] + [False] * (row["samples"] - row["verified"])
            draws = [any(draw) for draw in combinations(samples, k)]
            for name in (row["domain"], "all") if draws else ():
                expected.setdefault((row["iteration"], name), []).append(sum(draws) / len(draws))
        found = {(row["iteration"], row["domain"]): row for row in ask(catalog, f"FROM pass_at({k})")}
        assert {key: row["pass"] for key, row in found.items()} == pytest.approx(
            {key: sum(shares) / len(shares) for key, shares in expected.items()}
        )
        assert {key: row["tasks"] for key, row in found.items()} == {key: len(of) for key, of in expected.items()}


def test_task_success_counts_what_p_v1_counts(catalog):
    sums = "SELECT iteration, sum(verified)::INT AS verified, sum(samples)::INT AS scored"
    assert ask(catalog, f"{sums} FROM task_success GROUP BY ALL ORDER BY ALL") == ask(
        catalog, "SELECT iteration, verified::INT AS verified, scored::INT AS scored FROM p_v1 WHERE domain = 'all'"
    )


def test_each_template_and_level_is_one_row_with_all_of_its_episodes(catalog):
    template_of = {row["task_id"]: row["template"] for row in ask(catalog, "FROM tasks")}
    success = {(row["iteration"], row["trajectory_id"]): row["success"] for row in ask(catalog, "FROM routes")}
    steps, invalid = Counter(), Counter()
    for row in ask(catalog, "FROM steps"):
        steps[row["trajectory_id"]] += 1
        invalid[row["trajectory_id"]] += row["parse_error"] is not None
    episodes = defaultdict(list)
    for row in ask(catalog, "FROM trajectories WHERE stage = 'rollout'"):
        if success.get((row["iteration"], row["trajectory_id"])) is not None:
            key = (
                tuple(row[name] for name in ("iteration", "domain", "world")),
                template_of[row["task_id"]],
                row["level"],
            )
            episodes[key].append(row)
    expected = {}
    for key, of in episodes.items():
        by_task = defaultdict(list)
        for row in of:
            by_task[row["task_id"]].append(success[row["iteration"], row["trajectory_id"]])
        ids = [row["trajectory_id"] for row in of]
        expected[key] = {
            "tasks": len(by_task),
            "samples": max(map(len, by_task.values())),
            "pass_1": fmean(fmean(one) for one in by_task.values()),
            "pass_k": fmean(any(one) for one in by_task.values()),
            "mixed": sum(len(set(one)) == 2 for one in by_task.values()),
            "steps": sum(steps[one] for one in ids),
            "invalid_steps": sum(invalid[one] for one in ids),
            "invalid_step_fraction": sum(invalid[one] for one in ids) / sum(steps[one] for one in ids),
            "invalid_episode_fraction": fmean(invalid[one] > 0 for one in ids),
        }
    assert 0 < sum(row["invalid_steps"] for row in expected.values()) < steps.total()
    rows = ask(catalog, "FROM template_success")
    assert len(rows) == len(expected)
    for row in rows:
        key = (row["iteration"], row["domain"], row["world"]), row["template"], row["level"]
        assert {name: row[name] for name in expected[key]} == pytest.approx(expected[key])


def test_matched_templates_are_what_the_rise_is_the_mean_of(catalog):
    rows = ask(catalog, "FROM matched_templates(1, 2)")
    (rise,) = ask(catalog, "FROM p_v1_rise WHERE iteration = 2 AND domain = 'all'")
    assert rise["slots"] == len(rows) > 1
    assert rise["rise"] == pytest.approx(sum(row["rise"] for row in rows) / len(rows))
    assert [row["rise"] for row in rows] == sorted(row["rise"] for row in rows)
    assert {row["rise"] for row in ask(catalog, "FROM matched_templates(2, 2)")} == {0.0}
    assert ask(catalog, "FROM matched_templates(1, 9)") == []


def test_the_macros_of_one_trajectory_give_what_the_views_of_all_give(catalog):
    of_all = {row["trajectory_id"]: row for row in ask(catalog, "FROM trajectory_lineage")}
    steps: dict[str, list] = {}
    for row in ask(catalog, "FROM steps ORDER BY trajectory_id, step"):
        steps.setdefault(row["trajectory_id"], []).append(row)
    assert {row["trained_checkpoints"] == [] for row in of_all.values()} == {True, False}
    for name, expected in list(of_all.items())[::16]:  # of each stage
        assert database.query_rows(catalog, "FROM lineage_of($id)", {"id": name}) == [expected]
        assert database.query_rows(catalog, "FROM steps_of($id)", {"id": name}) == steps.get(name, [])
    for macro in ("lineage_of", "steps_of", "replay"):
        assert database.query_rows(catalog, f"FROM {macro}('none')") == []


def test_what_trained_a_checkpoint_is_what_was_trained_by_it(catalog):
    pairs = {(row["checkpoint"], row["trajectory_id"]) for row in ask(catalog, "FROM trained_on")}
    assert {checkpoint for checkpoint, _ in pairs} >= {"models/iteration=002/ct", "models/iteration=002/sft"}
    for checkpoint in {checkpoint for checkpoint, _ in pairs}:
        rows = ask(catalog, f"FROM training_of('{checkpoint}')")
        assert {(checkpoint, row["trajectory_id"]) for row in rows} == {one for one in pairs if one[0] == checkpoint}
        assert {row["destination"] for row in rows} == {checkpoint.rpartition("/")[2]}


def test_a_long_replay_has_every_screen_of_its_own_iteration(tmp_path):
    """More screens than DuckDB looks up one by one, some seen twice, one that is nowhere."""
    ws = Workspace(tmp_path)
    row = trajectory("t", task("k", "games", "tiles"), steps=90)
    seen = [image_row(n) for n in range(80)]
    steps = [step(row, n, total=90) | {"image_sha256": seen[n % 80]["sha256"]} for n in range(90)]
    steps[7]["image_sha256"] = "0" * 64
    partitions.write_partition(ws, "trajectories", 3, "rollout", [row])
    partitions.write_partition(ws, "steps", 3, "rollout", steps)
    for k, stage in ((3, "rollout"), (3, "evaluate"), (4, "rollout")):
        partitions.write_partition(ws, "images", k, stage, seen)
    screens = [row["screen"] for row in ask(ws, "FROM replay('t')")]
    assert screens == [None if n == 7 else seen[n % 80]["bytes"] for n in range(90)]


def test_scorers_that_disagree_are_named_with_how_much(tmp_path):
    ws = Workspace(tmp_path)
    kind = task("k", "games", "tiles")
    judged = {"a": (1.0, 1.0), "b": (0.9, 0.2), "c": (0.1, 0.0), "d": (0.3, 0.8), "e": (0.0, 0.1), "f": (1.0, None)}
    partitions.write_partition(ws, "trajectories", 1, "rollout", [trajectory(name, kind) for name in judged])
    rows = [
        {"trajectory_id": name, "scorer": scorer, "score": score, "success": None if score is None else score >= 0.5}
        for name, both in judged.items()
        for scorer, score in zip(("judge", "verifier"), both, strict=True)
    ]
    partitions.write_partition(ws, "scores", 1, "score", rows)
    found = ask(ws, "FROM disagreements")
    assert [(row["trajectory_id"], row["success"]) for row in found] == [
        ("b", {"judge": True, "verifier": False}),
        ("d", {"judge": False, "verifier": True}),
    ]
    assert [row["spread"] for row in found] == pytest.approx([0.7, 0.5])
    (pair,) = ask(ws, "FROM scorer_agreement")
    assert (pair["scorer_a"], pair["scorer_b"], pair["judged"]) == ("judge", "verifier", 5)
    assert (pair["only_a"], pair["only_b"], pair["agreement"]) == (1, 1, pytest.approx(3 / 5))
    assert pair["chance_agreement"] == pytest.approx(0.4 * 0.4 + 0.6 * 0.6)
    assert pair["kappa"] == pytest.approx((0.6 - 0.52) / 0.48)


def test_the_reference_is_what_the_sql_says(project):
    assert (project / "docs/sql.md").read_text(encoding="utf-8") == database.render_catalog_reference()


def test_every_table_and_column_says_what_it_is_where_that_is_asked(ws):
    with database.connect_catalog(ws, reads="FROM duckdb_columns()") as catalog:
        for kind in ("tables", "views", "columns"):
            sql = f"SELECT * FROM duckdb_{kind}() WHERE NOT internal AND coalesce(comment, '') = ''"
            assert ask(catalog, sql) == []
        asked = "SELECT comment FROM duckdb_columns() WHERE (table_name, column_name) = ('steps_in_files', 'x2')"
        (told,) = ask(catalog, asked)
    assert told == {"comment": "where a drag ends, as x"}


def test_every_view_and_macro_says_what_it_is(tmp_path):
    with database.connect_catalog(Workspace(tmp_path)) as connection:
        views = "SELECT view_name FROM duckdb_views() WHERE NOT internal AND comment IS NULL"
        macros = "SELECT function_name FROM duckdb_functions() WHERE NOT internal AND comment IS NULL"
        assert connection.execute(f"{views} UNION ALL {macros}").fetchall() == []
