"""The page of the report's section 3: what it reads of kept results, and what it says is missing."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from flywheel.cli import main

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def write_page(*options):
    answer = CliRunner().invoke(main, ["paper", *map(str, options)])
    return answer


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    out = tmp_path_factory.mktemp("paper") / "paper.html"
    answer = write_page("-o", out)
    assert answer.exit_code == 0, answer.output
    return answer.output, out.read_text(encoding="utf-8")


def test_every_table_and_figure_of_section_3_has_a_place(page):
    _, text = page
    found = re.findall(r'<section id="([\w-]+)">', text)
    assert found == [
        *("table-1", "table-2", "table-3"),
        *("figure-7", "figure-8", "figure-9", "figure-10a", "figure-10b", "orm", "figure-11", "figure-12", "figure-13"),
        *("figure-14", "figure-15", "quantisation", "merging"),
    ]  # fmt: skip


def test_figures_are_those_of_the_kept_results(page):
    _, text = page
    # docs/measurements/turning.md: +0.183 (0.157 to 0.210) with five seeds, the base 0.138; rl.md: GRPO +0.245.
    assert "2 iterations add +0.183 (+0.157 to +0.210, 95%, 5 seeds)" in text
    assert re.search(r"the base</td><td>13\.8</td>", text)
    assert re.search(r"GRPO</td><td>3</td><td>\+0\.245</td>", text)


def test_every_game_of_lmgame_bench_has_a_row(tmp_path):
    """Theirs stands beside ours where the unit is the same."""
    told = {"model": "0123456789", "interval": [90.0, 100.0], "random": 98.6, "n": 5, "ours": 96.0}
    names = {"2048": 117.1, "sokoban": 0.3, "hexes, like Tetris": None, "gems, like Candy Crush": None}
    lines = [json.dumps(told | {"case": name, "peer": peer, "unit": "points"}) for name, peer in names.items()]
    (tmp_path / "mine" / "lmgame").mkdir(parents=True)
    (tmp_path / "mine" / "lmgame" / "run.jsonl").write_text("\n".join(lines))
    out = tmp_path / "paper.html"
    assert write_page("-o", out, "--results", tmp_path / "mine").exit_code == 0
    text = out.read_text(encoding="utf-8")
    section = text[text.index('<section id="table-3">') : text.index('<section id="figure-7">')]
    ours = section[section.index("<h3>Ours</h3>") :]
    found = re.findall(r'<td class="left">([^<]*)</td>', ours)
    assert found == ["Sokoban", "Super Mario Bros.", "Tetris", "2048", "Candy Crush", "Ace Attorney"]
    assert ">2048</td><td>run</td><td>117.1</td><td>96</td><td>98.6</td>" in ours
    assert ">Tetris</td><td>run</td><td>another unit</td><td>96</td>" in ours
    assert ">Ace Attorney</td><td>–</td><td>–</td><td>not played</td>" in ours


def test_what_has_no_result_is_named_with_its_command(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import paper

    monkeypatch.setattr(paper, "RESULTS", tmp_path)
    entries = paper.build_entries(paper.Results([tmp_path]))
    assert [entry["ours"] for entry in entries] == [None] * len(entries)
    text = paper.render(entries)
    assert text.count("No result is kept.") == len(entries)
    assert "flywheel bench lmgame" in text


def test_results_of_ones_own_count_before_those_of_the_repository(tmp_path):
    case = {"case": "best_of_8", "peer": None, "ours": 0.625, "interval": [0.5, 0.75], "n": 16, "evil": "<script>"}
    (tmp_path / "mine" / "inference").mkdir(parents=True)
    (tmp_path / "mine" / "inference" / "run.jsonl").write_text(json.dumps(case | {"case": "best_of_8 <b>"}) + "\n")
    out = tmp_path / "paper.html"
    assert write_page("-o", out, "--results", tmp_path / "mine").exit_code == 0
    text = out.read_text(encoding="utf-8")
    assert "best of 8 &lt;b&gt;</td><td>0.625</td><td>–</td><td>0.500 to 0.750</td><td>16</td>" in text


@pytest.mark.parametrize(
    ("content", "what"), [(None, "there is no such folder"), ("not json", "it is damaged")], ids=["folder", "file"]
)
def test_what_cannot_be_read_is_one_line(tmp_path, content, what):
    folder = tmp_path / "mine"
    if content:
        (folder / "inference").mkdir(parents=True)
        (folder / "inference" / "run.jsonl").write_text(content)
    answer = write_page("-o", tmp_path / "paper.html", "--results", folder)
    assert answer.exit_code == 2
    assert what in answer.output
    assert len(answer.output.strip().splitlines()) == 1
    assert not (tmp_path / "paper.html").exists()
