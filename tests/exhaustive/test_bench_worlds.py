"""`flywheel bench worlds` on small doses: its cases are met, chosen, printed, and references are kept."""

from __future__ import annotations

import json

import pytest

from flywheel.cli import bench
from flywheel.envs.suites import catalogue, references
from flywheel.utils.errors import BadInput

FEW = ["--quick", "--workers", "1", "--pages", "3"]


def lines(capsys) -> dict[str, dict]:
    return {row["case"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}


def test_a_game_is_won_repeated_and_not_won_by_chance(capsys):
    only = ["oracle_games", "random_success", "replay_identical", "levels"]
    assert bench.run_benchmark("worlds", ["--worlds", "shapes", "--levels", "4", *FEW, "--only", *only]) == 0
    rows = lines(capsys)
    assert set(rows) == {"oracle_games", "random_success", "replay_identical", "levels_a_second", "levels_distinct"}
    assert rows["oracle_games"]["by_world"] == {"shapes": 1.0}
    assert rows["replay_identical"]["ours"] == rows["levels_distinct"]["ours"] == 1.0


def test_pages_are_weighed_and_sessions_timed(capsys):
    bench.run_benchmark("worlds", ["--worlds", "shapes", *FEW, "--only", "pages"])  # what is met depends on the machine
    rows = lines(capsys)
    assert set(rows) == {"reset_time", "session_time", "page_weight"}
    assert 5 < rows["page_weight"]["ours"] < 100


def test_what_was_measured_is_kept_and_taken_up_again(capsys, tmp_path):
    few = ["--levels", "1", "--distinct", "3", "--workers", "1", "--pages", "1"]
    run = ["--worlds", "shapes", *few, "--only", "oracle_games", "levels", "--keep", str(tmp_path)]
    bench.run_benchmark("worlds", run)
    first = capsys.readouterr()
    (expert,) = tmp_path.glob("shapes.expert.*.json")
    assert len(list(tmp_path.glob("shapes.levels.*.json"))) == 7
    expert.unlink()
    bench.run_benchmark("worlds", run)
    second = capsys.readouterr()
    assert "7 of 8 parts were measured before" in second.err
    assert second.out == first.out  # the levels' seconds too are those of the first run
    told = json.loads(expert.read_text())
    expert.write_text(json.dumps({**told, "about": {**told["about"], "checksum": "another"}}))
    bench.run_benchmark("worlds", run)
    assert "7 of 8 parts were measured before" in capsys.readouterr().err  # that of other sources is measured again


def test_unknown_cases_and_worlds_are_named():
    with pytest.raises(BadInput, match="'oracle'"):
        bench.run_benchmark("worlds", ["--only", "oracle"])
    with pytest.raises(BadInput, match="'nowhere'"):
        bench.run_benchmark("worlds", ["--worlds", "nowhere"])


@pytest.mark.parametrize("name", catalogue.list_games())
def test_kept_references_are_of_this_version(name):
    world = catalogue.get_world(name)
    kept = references.read_references(world)
    assert (kept.world, kept.version, kept.budget) == (name, world.version, references.BUDGET)
    assert kept.expert.won == 1.0
    assert kept.normalised(kept.random.score) < 1
    assert set(kept.levels) == {str(level) for level in world.levels}
