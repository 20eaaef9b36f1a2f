"""OSWorld's metrics, each as OSWorld describes it, on files that anyone may have written."""

from __future__ import annotations

import json
import sqlite3
import zipfile
from pathlib import Path
from typing import Any

import pytest

from flywheel.envs.computer.osworld import judge
from flywheel.envs.computer.osworld.inputs import resolve_input
from flywheel.envs.computer.osworld.judge import METRICS, combine_scores, judge_values


@pytest.fixture
def files(tmp_path) -> Any:
    def write(name: str, content: str | bytes) -> str:
        path = Path(tmp_path, name)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return write


def score(func: str, result: Any, expected: Any, **options: Any) -> float:
    return judge_values(func, result, expected, options)[0]


@pytest.mark.parametrize(
    ("func", "result", "expected", "options", "wanted"),
    [
        ("exact_match", "a\n", {"expected": "a\n"}, {}, 1.0),
        ("exact_match", "a", {"expected": "a\n"}, {}, 0.0),
        ("exact_match", None, {"expected": None}, {}, 0.0),
        ("match_in_list", "a", {"expected": ["b", "a"]}, {}, 1.0),
        ("match_in_list", "c", {"expected": ["b", "a"]}, {}, 0.0),
        ("is_in_list", "xays", {"expected": "ay"}, {}, 1.0),
        ("check_include_exclude", "one two", {"include": ["one"], "exclude": ["three"]}, {}, 1.0),
        ("check_include_exclude", "one three", {"include": ["one"], "exclude": ["three"]}, {}, 0.0),
        ("check_include_exclude", "two", {"include": ["one"]}, {}, 0.0),
        ("literal_match", "A", "a", {"ignore_case": True}, 1.0),
        ("literal_match", ["a", 1], ["a", "1"], {"type": "list"}, 1.0),
        ("literal_match", "a", ["a"], {"type": "list"}, 0.0),
        ("is_extension_installed", "x.y", {"type": "not_contain", "expected": "z"}, {}, 1.0),
        ("check_direct_json_object", "{'a': 'b'}\n", {"expected": {"a": "b"}}, {}, 1.0),
        ("check_direct_json_object", "{'a': 'bc'}", {"expected": {"a": "b"}, "expect_in_result": True}, {}, 1.0),
        ("check_direct_json_object", "{'a': 'c'}", {"expected": {"a": ["b", "c"]}, "expect_in_result": True}, {}, 1.0),
        ("check_direct_json_object", "not JSON", {"expected": {"a": "b"}}, {}, 0.0),
        ("check_direct_json_object", "[" * 100_000, {"expected": {"a": "b"}}, {}, 0.0),
        ("check_moved_jpgs", {"children": [{"name": "a"}, {"name": "b"}]}, {"expected": ["b", "a"]}, {}, 1.0),
        ("check_moved_jpgs", {"children": [{"name": "a"}]}, {"expected": ["b", "a"]}, {}, 0.0),
    ],
)
def test_values(func, result, expected, options, wanted):
    assert score(func, result, expected, **options) == wanted


@pytest.mark.parametrize(
    ("func", "text", "rules", "wanted"),
    [
        ("file_contains", "one\ntwo\n", {"expected": ["one", "two"]}, 1.0),
        ("file_contains", "one\n", {"expected": ["one", "two"]}, 0.0),
        ("compare_config", "a = 1\n", {"expected": "a = 1\n"}, 1.0),
        ("check_list", "a1\nb2\n", {"expect": ["^a\\d"], "unexpect": ["c"]}, 1.0),
        ("check_list", "a1\nc2\n", {"expect": ["^a\\d"], "unexpect": ["c"]}, 0.0),
        ("check_line_number", "10:11:12 x\nno\n23:59:60\n", {"expected": "2"}, 1.0),
        ("check_json", '{"a": {"b": [3]}}', {"expect": [{"key": ["a", "b", 0], "method": "ge", "ref": 3}]}, 1.0),
        ("check_json", '{"a": 1}', {"expect": [{"key": ["b"], "method": "ne", "ref": 3}]}, 0.0),
        ("check_json", '{"a": 1}', {"unexpect": [{"key": ["a"], "method": "eq", "ref": 1}]}, 0.0),
        ("check_json", '{"a": 1}', {"unexpect": [{"key": ["b"], "method": "eq", "ref": 1}]}, 1.0),
        ("check_json_settings", '{"a": 1, "b": 2}', {"expected": {"a": 1}}, 1.0),
        ("check_json_settings", '{"a": 2}', {"expected": {"a": 1}}, 0.0),
        ("check_json_keybindings", '// mine\n[{"key": "x"}]', {"expected": {"key": "x"}}, 1.0),
        ("check_json_keybindings", "{}", {"expected": {"key": "x"}}, 0.0),
        ("check_csv", "a,b\n1,2\n", {"expect": [{"a": "1"}], "unexpect": [{"b": "3"}]}, 1.0),
        ("check_csv", "a,b\n1,2\n", {"expect": [{"a": "1", "b": "3"}]}, 0.0),
        ("run_sqlite3", "no database", {"sql": "SELECT 1"}, 1.0),
        ("run_sqlite3", "no database", {"sql": "SELECT count(*) FROM t"}, 0.0),
    ],
)
def test_files_by_rules(files, func, text, rules, wanted):
    assert score(func, files("a", text), rules) == wanted


@pytest.mark.parametrize(
    ("func", "text", "gold", "options", "wanted"),
    [
        ("compare_text_file", "a  b\n", "a b", {"ignore_blanks": True}, 1.0),
        ("compare_text_file", "A", "a", {"ignore_case": True}, 1.0),
        ("compare_text_file", "a ", "a", {}, 0.0),
        ("diff_text_file", "a\nb\n", "a\nc\n", {}, 0.5),
        ("compare_python_pure_text", "#!/bin/x\nif 1:\n\tpass  \n\n", "if 1:\n    pass\n", {}, 1.0),
        ("compare_result_files", "There are 42.", "42", {}, 1.0),
        ("compare_result_files", "41.99999999", "42", {}, 1.0),
        ("compare_result_files", "forty", "42", {}, 0.0),
        ("compare_csv", "A,1 \n", "a,1\n", {"strict": False, "ignore_case": True}, 1.0),
        ("compare_csv", "A,1\n", "a,1\n", {}, 0.0),
        ("is_included_all_json_objects", '{"a": 1}', '{"a": 1, "b": 2}', {}, 1.0),
    ],
)
def test_files_by_others(files, func, text, gold, options, wanted):
    assert score(func, files("a", text), files("gold", gold), **options) == wanted


def test_any_of_several_files_will_do(files):
    several = [files("one", "x\n"), files("two", "y\n")]
    assert score("compare_csv", files("a", "y\n"), several) == 1.0
    assert score("compare_csv", files("a", "z\n"), several) == 0.0


def test_archives(files, tmp_path):
    def packed(name: str, **members: str) -> str:
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for path, text in members.items():
                archive.writestr(path, text)
        return str(tmp_path / name)

    gold = packed("gold", a="1", b="2")
    assert score("compare_zip_files", packed("same", b="2", a="1"), gold) == 1.0
    assert score("compare_zip_files", packed("other", a="1", b="3"), gold) == 0.0
    assert score("compare_zip_files", packed("more", a="1", b="2", c=""), gold) == 0.0
    assert score("compare_zip_files", files("none", "PK"), gold) == 0.0


def test_a_database_is_asked(tmp_path):
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.execute("CREATE TABLE t (n)")
        connection.execute("INSERT INTO t VALUES (1)")
    assert score("run_sqlite3", str(tmp_path / "a.db"), {"sql": "SELECT count(*) FROM t"}) == 1.0


def test_spreadsheets(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")

    def book(name: str, *rows: tuple[Any, ...], title: str = "Sums", freeze: str | None = None) -> str:
        made = openpyxl.Workbook()
        made.active.title, made.active.freeze_panes = title, freeze
        for row in rows:
            made.active.append(row)
        made.save(tmp_path / name)
        return str(tmp_path / name)

    data = {"type": "sheet_data", "sheet_idx0": 0, "sheet_idx1": "ENSums"}
    frozen = {"type": "freeze", "sheet_idx0": "RI0", "sheet_idx1": "EI0"}
    gold = book("gold.xlsx", ("a", 1), ("b", 2.00001), freeze="A2")
    right = book("right.xlsx", ("a", 1), ("b", 2.0), (None, None), freeze="A2")
    assert score("compare_table", right, gold, rules=[data, frozen, {"type": "sheet_name"}]) == 1.0
    assert score("compare_table", book("x.xlsx", ("a", 1), ("b", 3)), gold, rules=[data]) == 0.0
    assert (
        score("compare_table", book("y.xlsx", ("a", 1), ("b", 2), title="X"), gold, rules=[{"type": "sheet_name"}])
        == 0.0
    )
    assert score("compare_table", book("z.xlsx", ("a", 1), ("b", 2)), gold, rules=[frozen]) == 0.0


@pytest.mark.parametrize(
    ("value", "method", "ref", "wanted"),
    [
        ("Abc", "re.I", "^a", True), ("Abc", "re", "^a", False), (3, "range.te", [2, 3], True),
        (2, "range.te", [2, 3], False), ("2.04", "approx:0.05", 2, True), ("'a,b'", "str_set_eq", ["b", "a"], True),
        ("a,b", "str_list_eq", ["b", "a"], False), (1, "lt", 2, True),
    ],
)  # fmt: skip
def test_rules(value, method, ref, wanted):
    assert judge.matches_rule(value, {"method": method, "ref": ref}) is wanted
    unable = METRICS["check_json"].unable
    assert unable({"expect": [{"method": method}]}, {}) == ""
    assert unable({"expect": [{"method": f"{method}!"}]}, {}) == f"the method {method}!"


def test_a_gold_file_that_cannot_be_read_judges_nothing(files):
    with pytest.raises(json.JSONDecodeError):
        score("is_included_all_json_objects", files("a", "{}"), files("gold", "{"))
    with pytest.raises(zipfile.BadZipFile):
        score("compare_zip_files", files("b", "x"), files("gold", "y"))


def test_metrics_are_joined():
    assert (combine_scores([1.0, 0.5], "and"), combine_scores([1.0, 0.0], "and"), combine_scores([0.2, 0.5], "or")) == (
        0.75,
        0.0,
        0.5,
    )


def test_what_was_found_is_looked_at_where_it_lies(files, tmp_path):
    path = files("a", "x")
    assert resolve_input({"file": path}, "") == path
    assert resolve_input({"file": str(tmp_path / "none")}, "") is None
    assert resolve_input({"files": [path, str(tmp_path)]}, "") == [path, None]
    tree = {"type": "directory", "name": tmp_path.name, "children": [{"type": "file", "name": "a"}]}
    assert (resolve_input({"tree": str(tmp_path)}, ""), resolve_input({"tree": path}, "")) == (tree, None)
    assert resolve_input({"value": None}, "") is None


def test_none_scores_where_there_is_nothing():
    assert {judge_values(func, None, {"expected": []}, {})[0] for func in METRICS} == {0.0}


# A result without content that gets the full score: the task's author must ask for more beside it (docs/libraries.md).
_PLEASED_BY_NOTHING = {"is_included_all_json_objects"}
_EMPTY = {
    "check_json": ("{}", {"expect": [{"key": ["a"], "method": "eq", "ref": 1}]}),
    "check_csv": ("", {"expect": [{"a": "1"}]}),
    "check_list": ("", {"expect": ["a"]}),
    "check_line_number": ("", {"expected": "1"}),
    "check_json_settings": ("{}", {"expected": {"a": 1}}),
    "check_json_keybindings": ("[]", {"expected": {"key": "x"}}),
    "compare_config": ("", {"expected": "a"}),
    "file_contains": ("", {"expected": ["a"]}),
    "is_included_all_json_objects": ("{}", '{"a": 1}'),
    "diff_text_file": ("", "a\n"),
    "run_sqlite3": ("", {"sql": "SELECT count(*) FROM t"}),
}
_WITHOUT_FILE = {
    "check_include_exclude": ("", {"include": ["a"]}),
    "is_extension_installed": ("", {"type": "contain", "expected": "a"}),
    "check_direct_json_object": ("{}", {"expected": {"a": "b"}}),
    "check_moved_jpgs": ({"children": []}, {"expected": ["a"]}),
    "is_in_list": ([], {"expected": "a"}),
    "match_in_list": ("", {"expected": ["a"]}),
    "literal_match": ("", "a"),
    "exact_match": ("", {"expected": "a"}),
    "compare_answer": ("", {"expected": "a"}),
}
_SPREADSHEETS_AND_ARCHIVES = {"compare_table", "compare_zip_files"}  # an empty file is none of theirs


def test_a_result_without_content_is_no_success(files):
    others = {
        func: ("", "a\n") for func in METRICS if func not in {*_EMPTY, *_WITHOUT_FILE, *_SPREADSHEETS_AND_ARCHIVES}
    }
    found = {func: score(func, nothing, wanted) for func, (nothing, wanted) in _WITHOUT_FILE.items()}
    for func, (nothing, wanted) in {**_EMPTY, **others}.items():
        found[func] = score(func, files("a", nothing), files("gold", wanted) if isinstance(wanted, str) else wanted)
    assert found.keys() | _SPREADSHEETS_AND_ARCHIVES == METRICS.keys()
    assert {func for func, value in found.items() if value} == _PLEASED_BY_NOTHING
