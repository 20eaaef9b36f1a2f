"""Scores of LMGame-Bench's games, from the keys of an episode."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import lmgame

from flywheel.utils.errors import BadInput

LEVELS = "Level 1\n######\n#@$? #\n######\n\nLevel 2\n#####\n#@ ?#\n#$* #\n# ? #\n#####\n"
# make_rule_game takes five levels or more.
MORE = "".join(f"\nLevel {n}\n######\n#@ $?#\n######\n" for n in range(3, 7))


@pytest.fixture(scope="module")
def game(tmp_path_factory):
    path = tmp_path_factory.mktemp("levels") / "levels.txt"
    path.write_text(LEVELS + MORE)
    return lmgame.read_levels(path)


@dataclass
class Step:
    action: str | None
    action_type: str | None


def test_points_are_those_of_the_merges_and_end_with_ten_idle_turns():
    board = ((2, 2, 0, 0), (0,) * 4, (0,) * 4, (4, 4, 0, 0))
    assert lmgame.score_2048(board, 7, ["left"]) == 12
    assert lmgame.score_2048(board, 7, [""] * 9 + ["left"]) == 12
    assert lmgame.score_2048(board, 7, [""] * 10 + ["left"]) == 0
    assert lmgame.score_2048(((2, 0, 0, 0), (0,) * 4, (0,) * 4, (0,) * 4), 7, ["left"] * 10 + ["right"]) == 0
    full = ((2, 4, 2, 4), (4, 2, 4, 2), (2, 4, 2, 4), (4, 2, 4, 2))
    assert lmgame.score_2048(full, 7, ["left"]) == 0


@pytest.mark.parametrize(("points", "reported"), [(0, 0.0), (1, 0.0), (1024, 100.0), (4096, 120.0)])
def test_the_reported_figure_is_ten_times_the_binary_logarithm(points, reported):
    assert lmgame.reported_2048(points) == pytest.approx(reported)


def test_a_first_board_has_two_new_tiles():
    for seed in range(30):
        board = lmgame.first_board(seed)
        assert board == lmgame.first_board(seed)
        assert sorted(value for row in board for value in row if value) in ([2, 2], [2, 4], [4, 4])


@pytest.mark.parametrize(
    ("level", "keys", "crates", "solved", "used"),
    [
        (1, [], 0, False, 0),
        (1, ["right"], 1, True, 1),
        (1, ["right", "right"], 1, True, 1),  # a solved level ends
        (1, ["left"] * 5 + ["right"], 0, False, 5),  # five that change nothing end it
        (1, ["left"] * 4 + ["right"], 1, True, 5),
        (2, [], 1, False, 0),
        (2, ["down"], 1, False, 1),
    ],
)
def test_crates_on_pads_are_counted(game, level, keys, crates, solved, used):
    assert lmgame.score_sokoban(game, keys, level) == (crates, solved, used)


def test_keys_that_are_left_are_a_limit(game):
    assert lmgame.score_sokoban(game, ["right"], 1, walks=0) == (0, False, 0)


def test_keys_of_an_episode_are_those_of_its_steps():
    steps = [Step("hotkey(key='left')", "hotkey"), Step("click(point='<point>5 6</point>')", "click"),
             Step("type(content='up')", "type"), Step(None, None), Step("press(key='down')", "press")]  # fmt: skip
    assert lmgame.arrow_keys(type("Episode", (), {"steps": steps})) == ["left", "", "", "", "down"]


def test_what_is_no_file_of_levels_is_bad_input(tmp_path):
    (tmp_path / "a.txt").write_text("Level 1\nabc\n")
    for name, why in (("a.txt", "levels"), ("none.txt", "cannot be read")):
        with pytest.raises(BadInput, match=why):
            lmgame.read_levels(tmp_path / name)
