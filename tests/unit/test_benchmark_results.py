"""Results of a benchmark in a Parquet file: a row a (task, seed, budget), and what is still to be played."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from flywheel.cli import main
from flywheel.evaluation.benchmarks.benchmark import TaskResult
from flywheel.evaluation.benchmarks.result_table import ResultTable
from flywheel.utils.errors import BadInput

RESULTS = [
    TaskResult("b", 0, 50, 1.0, parts={"t": 1.0}, seconds=2.5, category="c"),
    TaskResult("a", 1, 50, 0.0),
    TaskResult("a", 0, 50, None, "gone"),
    TaskResult("a", 0, 100, 0.5),
]


def test_results_come_back_sorted_and_whole(tmp_path):
    table = ResultTable(tmp_path / "new" / "r.parquet", "osworld")
    table.add(RESULTS[:2])
    table.add(RESULTS[2:])
    assert table.read() == sorted(RESULTS, key=lambda one: one.key)
    assert pq.read_table(table.path).num_rows == 4


def test_what_is_scored_is_not_played_again_and_a_fault_is(tmp_path):
    table = ResultTable(tmp_path / "r.parquet", "osworld")
    table.add(RESULTS)
    wanted = [("a", 0, 50), ("a", 1, 50), ("a", 0, 100), ("b", 0, 50), ("b", 0, 100), ("a", 0, 50)]
    assert table.list_missing(wanted) == [("a", 0, 50), ("b", 0, 100)]
    table.add([TaskResult("a", 0, 50, 1.0)])
    assert table.list_missing(wanted) == [("b", 0, 100)]
    assert len(table.read()) == 4


def test_a_file_of_another_benchmark_or_form_is_refused_and_stays(tmp_path):
    path = tmp_path / "r.parquet"
    ResultTable(path, "osworld").add(RESULTS)
    with pytest.raises(BadInput, match="it holds results of osworld"):
        ResultTable(path, "swe-bench").add(RESULTS)
    assert len(ResultTable(path, "osworld").read()) == 4
    pq.write_table(pa.table({"x": [1]}), path)
    with pytest.raises(BadInput, match="its columns"):
        ResultTable(path, "osworld").read()
    path.write_bytes(b"no Parquet")
    with pytest.raises(BadInput, match="no Parquet file"):
        ResultTable(path, "osworld").add(RESULTS)
    assert path.read_bytes() == b"no Parquet"


def test_the_command_scores_a_folder_and_the_parquet_file_alike(tmp_path):
    (tmp_path / "runs" / "os" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "os" / "a" / "result.txt").write_text("0.5\n")
    (tmp_path / "runs" / "os" / "b").mkdir()
    (tmp_path / "runs" / "os" / "b" / "traj.jsonl").write_text("")
    table = str(tmp_path / "r.parquet")
    first = CliRunner().invoke(
        main, ["env", "benchmark", "score", "osworld", str(tmp_path / "runs"), "-o", table, "--json"]
    )
    assert first.exit_code == 0, first.output
    told = json.loads(first.output)
    assert (told["official"], told["mean"], told["faults"]) == (0.5, 0.5, 1)
    second = CliRunner().invoke(main, ["env", "benchmark", "score", "osworld", table, "--json"])
    assert json.loads(second.output) == told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["tasks", "osword", "."], "did you mean osworld"),
        (["tasks", "terminal-bench", "."], "no task.toml and no task.yaml"),
        (["tasks", "osworld", ".", "--python", "."], "tasks get no Python"),
        (["score", "swe-bench", "."], "no report"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path, monkeypatch, words, told):
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(main, ["env", "benchmark", *words])
    assert answer.exit_code == 2
    assert told in answer.output
    assert len(answer.output.splitlines()) == 1
