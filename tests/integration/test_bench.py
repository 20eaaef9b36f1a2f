"""`flywheel bench`: finds the scripts, passes options on, prints their lines and says by its exit code what was met."""

from __future__ import annotations

import json
import textwrap

import pytest
from bench_case import BenchCase, compare_with_peer, exit_code
from click.testing import CliRunner

from flywheel.cli import bench, main
from flywheel.cli.bench import list_benchmarks
from flywheel.utils.errors import BadInput

KEYS = ["bench", "case", "unit", "ours", "peer", "peer_name", "ratio", "goal", "met"]
SCRIPT = '''
    """What it measures.

    And how.
    """
    from beside import PEER

    from bench_case import compare_with_peer, emit_case, exit_code

    def main(argv):
        if "--help" in argv:
            return print("--ours: of one")
        ours = float(argv[argv.index("--ours") + 1]) if argv else 1.0
        case = compare_with_peer("one", "speed", "things/s", ours=ours, peer=PEER, peer_name="rest", goal=4.0)
        return exit_code([emit_case(case)])
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "one.py").write_text(textwrap.dedent(SCRIPT))
    (tmp_path / "beside.py").write_text('"""No benchmark: what scripts share."""\n\nPEER = 2.0\n')
    monkeypatch.setattr(bench, "BENCHMARKS_FOLDER", tmp_path)
    return tmp_path


def flywheel(*arguments):
    result = CliRunner().invoke(main, ["bench", *arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.mark.parametrize(("ours", "ratio", "code"), [("8", 4.0, 0), ("7.9", 3.95, 1)])
def test_a_script_gets_its_options_and_its_goal_makes_the_exit_code(folder, ours, ratio, code):
    exited, output = flywheel("one", "--ours", ours)
    line = json.loads(output)
    assert list(line) == KEYS
    assert (line["ratio"], line["met"], exited) == (ratio, code == 0, code)


def test_without_a_name_they_are_listed_with_what_they_measure(folder):
    assert flywheel() == (0, "one        What it measures.\n")


@pytest.mark.parametrize("asked", ["-h", "--help"])
def test_help_after_a_name_is_the_benchmarks_own(folder, asked):
    assert flywheel("one", asked) == (0, "--ours: of one\n")
    code, output = flywheel(asked)
    assert (code, "after NAME, its options" in " ".join(output.split())) == (0, True)


def test_an_unknown_name_is_bad_input(folder):
    code, output = flywheel("two")
    assert code == 2
    assert "no benchmark 'two' (flywheel bench); one of one" in " ".join(output.split())


def test_an_installed_package_has_no_benchmarks_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "BENCHMARKS_FOLDER", tmp_path / "benchmarks")
    with pytest.raises(BadInput, match="run from the source folder"):
        list_benchmarks()
    assert flywheel("policy")[0] == 2


def test_the_project_has_its_benchmarks():
    found = list_benchmarks()
    assert "policy" in found
    assert all(found.values())


def test_a_line_has_its_nine_keys_first_and_numbers_that_can_be_read():
    case = compare_with_peer(
        "b", "c", "s", ours=1 / 3, peer=0.0, peer_name="p", goal=1.0, n=3, all=[1 / 3, float("nan")]
    )
    line = json.loads(case.line())
    assert list(line) == [*KEYS, "n", "all"]
    assert (line["ours"], line["ratio"], line["met"], line["all"]) == (0.3333, None, False, [0.3333, None])


def test_one_case_that_is_not_met_is_enough():
    met = BenchCase("b", "c", "s", 1.0, None, "none", None, None, True)
    assert exit_code([met, met]) == 0
    assert exit_code([met, BenchCase("b", "c", "s", 1.0, None, "none", None, 2.0, False)]) == 1
