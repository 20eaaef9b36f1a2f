"""Games of rules: what each form of rule does on a row of cells, what is refused, and what is asked of a game."""

from __future__ import annotations

import json
import random

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as some
from rule_games import after, board_of, declare, level_of, make

from flywheel.cli import main
from flywheel.config import parse_settings
from flywheel.envs import registry
from flywheel.envs.base import Task
from flywheel.envs.suites import catalogue, oracle, verifiers
from flywheel.envs.suites.rules import game as rules_game
from flywheel.envs.suites.rules import world
from flywheel.envs.suites.rules.engine import EndlessRules, RuleLevel
from flywheel.envs.tasks.drawing import make_tasks
from flywheel.synthesis.rule_games import generator, proposals
from flywheel.synthesis.rule_games.generator import LIBRARY, Refused
from flywheel.utils.errors import BadInput, DataError

PUSH = "> player | crate -> > player | > crate"
PULL = "crate | > player -> > crate | > player"
SLIDE = "late > player ice -> >> player ice"


# -- the engine --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rules", "before", "keys", "then"),
    [
        ([], "p..", "r", ".p."),
        ([], "p#.", "r", "p#."),
        ([], "..p", "r", "..p"),  # the board ends
        ([], "p../#..", "drd", ".../#p."),
        ([], "pc.", "r", "pc."),  # without a rule a crate is a wall
        ([PUSH], "pc.", "r", ".pc"),
        ([PUSH], "pc#", "r", "pc#"),
        ([PUSH], "pcc.", "r", "pcc."),  # one at a time
        ([PUSH, "> crate | crate -> > crate | > crate"], "pcc.", "r", ".pcc"),
        ([PUSH], ".cp", "l", "cp."),
        ([PUSH], "p/c/.", "d", "./p/c"),
        ([PULL], "cp..", "rr", "..cp"),
        ([PULL], "cp#", "r", "cp#"),  # who cannot go pulls nothing
        ([SLIDE], "piii.", "r", ".iiip"),
        ([SLIDE], "pii#", "r", ".iP#"),
        ([PUSH, SLIDE, "late > crate ice -> >> crate ice"], "pciii.", "r", ".piiic"),
        (["> player | crate -> player |"], "pc.", "r", "p.."),  # broken, and you stay
        (["> player | crate -> player |"], "pc.", "rr", ".p."),
        (["late crate | crate -> |"], "p.cc", "r", ".p.."),
        (["right > player | pad -> player | pad"], "po.", "r", "po."),
        (["right > player | pad -> player | pad"], ".op", "l", ".O."),  # a rule of one direction
        (["late [ > player pad ] [ pad no player ] -> [ pad ] [ player pad ]"], "po.o", "r", ".o.O"),
        (["[ > player ] [ crate ] -> [ > player ] [ < crate ]"], "p..c.", "r", ".pc.."),
        (["late crate -> when no pad"], "pc.", "l", "p.."),
        (["late crate -> when no pad"], "pco", "l", "pco"),
        (["late crate -> when count pad 2"], "pcoo", "l", "p.oo"),
        (["late crate -> when some crate on pad and no ice"], "p*c", "l", "po."),
    ],
)  # fmt: skip
def test_a_rule_makes_of_a_board(rules, before, keys, then):
    assert after(rules, before.replace("/", "\n"), keys) == then


def test_late_rules_see_what_moved_and_conditions_see_the_board_at_their_turn():
    crumbling = ["late pad | > player -> wall | > player"]
    assert after(crumbling, "O..", "r") == "#p."
    assert after(crumbling, "O..", "rl") == "#p."  # it cannot go back
    gates = {
        "lever": ["late crate -> ice when some player on pad", "late ice no player -> crate when no player on pad"]
    }
    assert [after(gates, "po.c", keys) for keys in ("", "r", "rl", "rr")] == ["po.c", ".O.i", "po.c", ".opc"]


def test_rules_that_never_end_are_named_and_undo_their_turn():
    flip = level_of([PUSH, "late [ crate ] [ wall ] -> [ wall ] [ crate ]"], "p.c#")
    with pytest.raises(EndlessRules, match=r"a rule never ends \(late \[ crate \] \[ wall \]"):
        flip.turn(flip.start, 1)
    assert flip.after(flip.start, 1) == flip.start
    assert flip.endless.startswith("a rule never ends: late [ crate ]")
    swap = "late [ crate ] [ wall ] -> [ wall ] [ crate ]"
    assert make({"own": [swap]}).judge_board(board_of([swap], "p.c#o"), 1).reason == f"a rule never ends: {swap}"
    spin = level_of(["late player -> >> player"], "p...")
    with pytest.raises(EndlessRules, match="never end"):
        spin.turn(spin.start, 1)


def test_a_shortest_way_is_found_and_scores_tell_how_far_one_is():
    level = level_of([PUSH], "####\n# o#\n#  ###\n#*p  #\n#  c #\n#  ###\n####".replace(" ", "."))
    way = level.solve()
    assert len(way) == 33  # the first level of a public set whose shortest way is known to take 33 keys
    assert [level.score(cells) for _, cells in way[-2:]] == [0.5, 1.0]
    assert level_of([PUSH], "pc#").solve() is None
    gems = level_of(["late player crate -> player"], "pcc", win=["no crate"], objects={**declare()["objects"],
        "crate": {"layer": "floor", "draw": "thing", "colour": "orange", "icon": "bell"}})  # fmt: skip
    assert [gems.score(gems.play("r" * n)) for n in range(3)] == [0.0, 0.5, 1.0]
    lost = level_of([], "p*", lose=["some player"])
    assert (lost.won(lost.start), lost.score(lost.start), list(lost.moves(lost.start))) == (False, 0.999, [])


def _any_part_boards(seed: int):
    """A board of a game of all of the library's mechanics that `seed` chooses."""
    rng = random.Random(seed)
    while True:
        try:
            game = generator.load_declared(generator.compose_game(rng), "here")
            return game, game.draw_board(rng.randint(1, 5), rng)
        except Refused:
            continue


@settings(max_examples=40, deadline=None)
@given(seed=some.integers(0, 10**6), keys=some.text("urdlx", max_size=30))
def test_no_turn_puts_two_of_a_layer_into_a_cell_or_moves_a_wall(seed, keys):
    game, board = _any_part_boards(seed)
    level, program = RuleLevel(board), game.program
    wall = program["bits"]["wall"]
    for end in range(len(keys) + 1):
        cells = level.play(keys[:end])
        assert [there & wall for there in cells] == [there & wall for there in level.start]
        for mask in program["rivals"]:
            assert all((there & mask).bit_count() <= 1 for there in cells)
        assert 0 <= level.score(cells) <= 1
        assert (level.score(cells) == 1) == level.won(cells)


# -- files -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rules": {"push": ["> player | crat -> player |"]}}, "rules.push.0: no object is called 'crat'; did you"),
        ({"rules": {"push": ["> player | crate > player"]}}, "rules.push.0: a rule has one `->`"),
        ({"rules": {"push": ["> player | crate -> player"]}}, "rules.push.0: both sides must have equally many cells"),
        ({"rules": {"push": ["player > -> player"]}}, "rules.push.0: '>' stands before no object"),
        ({"rules": {"push": ["[ player ] crate -> [ player ]"]}}, "rules.push.0: 'crate' stands at a wrong place"),
        ({"rules": {"push": ["[ player -> [ player ]"]}}, "rules.push.0: a bracket is not closed"),
        ({"rules": {"push": ["player -> >> player"]}}, "rules.push.0: `>>` belongs to late rules"),
        ({"rules": {"push": ["late player -> > player"]}}, "write `>>` for what is to move once more"),
        ({"rules": {"push": ["player crate -> player"]}}, "two objects of one layer cannot be in one cell"),
        ({"rules": {"push": ["no player -> crate"]}}, "must name an object that is there"),
        ({"rules": {"push": ["player -> no player"]}}, "`no` on the left"),
        ({"rules": {"push": ["late crate -> when each pad"]}}, "rules.push.0: not `all A on B`"),
        ({"win": ["all crate"]}, "win.0: not `all A on B`"),
        ({"lose": ["no playr"]}, "lose.0: no object is called 'playr'"),
        ({"levels": {1: {"max_steps": 9, "maps": ["pco"]}}}, r"levels: they are \[1\] .*number them from 1"),
        ({"board": "cco"}, "levels.1.maps.0: no player stands on it"),
        ({"board": "pcz"}, "levels.1.maps.0: the legend has no 'z'"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_told_by_field(changes, told):
    with pytest.raises(BadInput, match=told) as caught:
        make(**changes)
    assert "\n" not in str(caught.value)


def test_objects_that_look_alike_and_unknown_fields_are_refused(tmp_path):
    objects = declare()["objects"]
    with pytest.raises(BadInput, match=r"objects\.player: it looks as crate does"):
        make(objects={**objects, "player": {**objects["crate"], "label": "me"}})
    with pytest.raises(BadInput, match="none is called player"):
        make(objects={name: one for name, one in objects.items() if name != "player"})
    for changes, told in (
        ({"extra": 1}, "the manifest's extra"),
        (
            {"objects": {**objects, "pad": {**objects["pad"], "colour": "mauve"}}},
            "objects.pad: .*no colour is called 'mauve'",
        ),
        (
            {"levels": {1: {"max_steps": 9, "cols": 2, "rows": 2, "place": {"wall": 9}}}},
            "levels.1: .*place needs 9 cells",
        ),
    ):
        path = tmp_path / "game.yaml"
        path.write_text(yaml.safe_dump({"kind": "browser", **declare(), **changes}))
        with pytest.raises(BadInput, match=told):
            validate_and_load(path)


def validate_and_load(path):
    return registry.find_backend("browser").load(path)


def test_a_level_that_cannot_be_won_or_searched_is_no_level(monkeypatch):
    with pytest.raises(DataError, match="rows level 1"):
        make(board="pc#o").draw("play", 1, 1)
    monkeypatch.setattr(rules_game, "SEARCH_LIMIT", 100)
    placed = {"max_steps": 99, "cols": 6, "rows": 6, "place": {"player": 1, "crate": 3, "pad": 3}}
    game = make(levels={level: placed for level in range(1, 6)})
    reasons = [game.judge_board(game.draw_board(1, random.Random(seed)), 1).reason for seed in range(3)]
    assert "too large to search" in reasons


def test_a_mechanic_that_is_not_needed_makes_no_level():
    placed = {"cols": 4, "rows": 1, "place": {"player": 1, "crate": 1, "pad": 1}, "max_steps": 9}
    levels = {level: placed for level in range(1, 6)}
    game = make({"push": [PUSH], "slide": [SLIDE]}, levels=levels)
    bits = game.program["bits"]
    board = {"program": game.program, "cols": 4, "rows": 1, "cells": [bits["player"], bits["crate"], bits["pad"], 0]}
    assert game.judge_board(board, 1).reason == "slide is not needed"
    board["cells"][1] |= bits["ice"]
    assert game.judge_board(board, 1).reason == "unsolvable"  # who has pushed it slides on, and pushes it over the pad
    other = make({"push": [PUSH]}, levels=levels)
    assert other.judge_board({**board, "program": other.program}, 1).reason == ""


# -- tasks -------------------------------------------------------------------------------------------------------------
@pytest.fixture
def loaded(tmp_path):
    """A workspace's folder with a game's file, loaded by its settings."""
    path = tmp_path / "games" / "rows.yaml"
    path.parent.mkdir()
    board = {"cols": 4, "rows": 4, "place": {"player": 1, "crate": 1, "pad": 1, "wall": 1}, "shortest": [3, 12]}
    levels = {level: {**board, "max_steps": 30} for level in range(1, 6)}
    path.write_text(yaml.safe_dump({"kind": "browser", **declare(levels=levels)}))
    yield tmp_path
    catalogue.LOADED_GAMES.clear()


def settings_of(*worlds: str):
    block = {"domains": {"games": ["rows"]}, "worlds": list(worlds), "held_out": [], "train_tasks": 4, "levels": [1, 2]}
    return parse_settings({"synthesis": block, "merge": {"weights": {"games": 1.0}}}, where="test")


def test_tasks_are_drawn_from_a_file_wherever_its_workspace_lies(loaded, tmp_path_factory):
    tasks = make_tasks(settings_of("games/rows.yaml"), 1, "train", loaded)
    assert {task.level for task in tasks} == {1, 2}
    assert {(task.world, task.domain, task.environment, task.verifier) for task in tasks} == {
        ("rows", "games", "browser", "world:score")
    }
    for task in tasks:
        way = world.solve(task.params)
        assert len(way) == task.params["shortest"]
        assert 3 <= len(way) <= 12
    moved = tmp_path_factory.mktemp("moved") / "again"
    loaded.rename(moved)
    assert make_tasks(settings_of("games/rows.yaml"), 1, "train", moved) == tasks
    with pytest.raises(BadInput, match="a world is called rows already"):
        registry.register_external_suite({}, catalogue.get_world("rows"), moved)
    moved.rename(loaded)


def played(task: Task, keys: str) -> dict:
    """The state that the page publishes after `keys`."""
    level = RuleLevel(task.params)
    cells = level.play(keys)
    told = {"won": level.won(cells), "score": level.score(cells), "terminated": level.won(cells), "moves": len(keys)}
    return {"cells": list(cells), "keys": keys, "elements": [], **told}


def test_the_verifier_plays_the_keys_again_and_believes_no_page(loaded):
    for task in make_tasks(settings_of("games/rows.yaml"), 1, "train", loaded):
        keys = "".join("urdl"[direction] for direction, _ in world.solve(task.params))
        catalogue.LOADED_GAMES.clear()  # as on another machine, which has no file of the game
        assert verifiers.score_state(task, played(task, keys)) == 1.0
        assert verifiers.score_state(task, played(task, "x" + keys)) == 1.0
        for short in (keys[:-1], ""):
            lying = {**played(task, short), "won": True, "score": 1.0}
            assert verifiers.score_state(task, lying) < 1.0
            assert verifiers.score_state(task, {**lying, "cells": played(task, keys)["cells"]}) == 0.0


def test_the_expert_wins_from_any_state_even_from_a_dead_end(loaded):
    rng = random.Random(1)
    for task in make_tasks(settings_of("games/rows.yaml"), 1, "train", loaded):
        keys = "".join(rng.choice("urdl") for _ in range(12))
        for _ in range(40):
            step = oracle.next_expert_step(task, played(task, keys))
            if step is None:
                break
            ((key,),) = (step[1].keys,)
            keys += "x" if key == "r" else key[0]
        assert played(task, keys)["won"]


# -- composition -------------------------------------------------------------------------------------------------------
def test_each_part_of_the_library_makes_a_sound_file_with_its_own_words():
    parts = {**LIBRARY["goals"], **LIBRARY["mechanics"]}
    alone = [{goal: LIBRARY["goals"][goal]} for goal in LIBRARY["goals"]]
    alone += [
        {goal: LIBRARY["goals"][goal], name: part}
        for name, part in LIBRARY["mechanics"].items()
        for goal in ("gems", "crates", "vanish", "mirror")
        if goal not in part.get("not_with", ())
        and part.get("needs", goal) in {goal, *LIBRARY["goals"][goal]["objects"]}
    ]
    used = set()
    for chosen in alone:
        declared = generator.declare_game(chosen, random.Random(7))
        game = generator.load_declared(declared, "here")
        assert "{" not in declared["instruction"]
        assert all(one["label"] in declared["instruction"] for one in declared["objects"].values()
                   if one["label"] not in ("wall", "you") and "lever" not in one["label"] and "open" not in one["label"]
                   and "place" not in one["label"]), declared["instruction"]  # fmt: skip
        assert game.levels == [1, 2, 3, 4, 5]
        used |= chosen.keys()
    assert used >= parts.keys() - {"plate", "hole", "order"}


def test_games_are_the_same_for_a_seed_and_pass_all_gates(tmp_path):
    def propose(_):
        place = {"player": 1, "crate": 4, "wall": 4}
        levels = {n: {"cols": 3 + n, "rows": 5, "place": place, "max_steps": 40} for n in range(1, 6)}
        declared = declare({"take": ["late player crate -> player"]}, levels=levels, win=["no crate"])
        declared["objects"]["crate"] = {"layer": "floor", "draw": "thing", "colour": "orange", "icon": "bell"}
        return declared

    made = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        funnel = generator.GameFunnel()
        listed = [generator.write_game(one, folder) for one in generator.make_games(2, 3, propose, 3, funnel)]
        made.append({path.name: path.read_bytes() for path in folder.iterdir()})
        assert funnel.proposed == funnel.accepted + sum(funnel.refused.values())
    assert made[0] == made[1]
    assert "its rules are those of another" in funnel.refused
    (one,) = listed
    assert one["checksum"] == find_suite(tmp_path / "a" / one["file"]).checksum
    assert max(figure["random"] for figure in one["levels"]) <= generator.MOST_RANDOM_WINS
    game = find_suite(tmp_path / "a" / one["file"])
    least = [game.boards[level].shortest[0] for level in game.levels]
    assert least == sorted(set(least))
    for level in game.levels:
        params = game.draw("play", level, 5)
        assert len(RuleLevel(params).solve()) == params["shortest"] <= game.budget("play", level)
    catalogue.LOADED_GAMES.clear()


def find_suite(path):
    return registry.find_backend("browser").load(path)


def test_the_command_counts_why_proposals_were_refused(tmp_path, monkeypatch):
    def refuse(_):
        raise Refused("no")

    monkeypatch.setattr(generator, "compose_game", refuse)
    ran = CliRunner().invoke(main, ["tasks", "games", "-o", str(tmp_path / "out"), "--count", "1", "--json"])
    assert json.loads(ran.output) == {"proposed": 40, "accepted": 0, "refused": {"no": 40}, "games": []}
    assert json.loads((tmp_path / "out" / "games.json").read_text()) == []
    asked = CliRunner().invoke(main, ["tasks", "games", "-o", str(tmp_path / "out"), "--model"])
    assert asked.exit_code == 2  # no language model is named


def test_what_has_an_idle_rule_or_is_won_by_chance_is_refused():
    board = {"cols": 5, "rows": 5, "place": {"player": 1, "crate": 1, "pad": 1}, "max_steps": 40}
    levels = {level: board for level in range(1, 6)}
    idle = declare({"push": [PUSH, "late ice -> pad"]}, levels=levels)
    easy = declare({"take": ["late player crate -> player"]}, levels=levels, win=["no crate"])
    easy["objects"]["crate"] = {"layer": "floor", "draw": "thing", "colour": "orange", "icon": "bell"}
    for declared, told in (
        (idle, "a rule never fires: late ice -> pad|too few boards pass"),
        (easy, "random keys win|too few boards pass"),
    ):
        with pytest.raises(Refused, match=told):
            generator.examine_game(declared, "here", random.Random(1))


ANSWER = """```yaml
name: Bomb
objects: {bomb: [[floor, thing, black, ball, bomb]]}
rules: [late player bomb -> player]
place: {bomb: [1, 2, 3, 4, 5]}
words: Walk over a {bomb} to take it.
```"""


class FakeModel:
    def __init__(self, answer: str) -> None:
        self.answer = answer

    def complete(self, system: str, user: str) -> str:
        return self.answer


def test_a_language_models_mechanic_goes_through_the_same_gates():
    declared = proposals.propose_by_model(FakeModel(ANSWER))(random.Random(2))
    assert "black bomb" in declared["instruction"]
    assert generator.load_declared(declared, "here").program["bits"]["bomb"]
    for answer, told in (
        ("I cannot do that.", "no mechanic"),
        ("", "no mechanic"),
        (ANSWER.replace("words", "word"), "no mechanic"),
        (ANSWER.replace("{bomb}", "{bom}"), "name no object"),
        (ANSWER.replace("[1, 2, 3, 4, 5]", "[1]"), "no mechanic"),
        (ANSWER.replace("[[floor", "[[sky"), "no layer is called sky"),
    ):
        with pytest.raises(Refused, match=told):
            proposals.propose_by_model(FakeModel(answer))(random.Random(2))
    funnel = generator.GameFunnel()
    wrong = proposals.propose_by_model(FakeModel(ANSWER.replace("late player bomb", "late player bob")))
    assert list(generator.make_games(1, 1, wrong, 3, funnel)) == []
    assert (funnel.proposed, funnel.accepted, sum(funnel.refused.values())) == (3, 0, 3)
    assert all("no object is called 'bob'" in reason for reason in funnel.refused)
