"""Compose small games from goals and mechanics (mechanics.yaml), and keep those that pass every gate."""

from __future__ import annotations

import random
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from flywheel.envs.suites.rules.engine import RuleLevel
from flywheel.envs.suites.rules.game import RuleGame, RuleGameFile, load_rule_game, make_rule_game
from flywheel.utils.errors import BadInput, DataError

LIBRARY = yaml.safe_load(resources.files("flywheel.synthesis.rule_games").joinpath("mechanics.yaml").read_text("utf-8"))
LEVELS = 5
_SIDES = (5, 5, 6, 6, 7)  # of the board, by level; a line adds one
_WALLS = (5, 6, 9, 10, 13)
_SHORTEST = 5  # keys that the shortest way of level 1 takes, at least
_RISE = 1  # by how much more than one the least of a level may rise above that of the level before
_LONGEST = 40  # keys of the shortest way of any level, at most
_SAMPLES, _LEAST, _ENOUGH = 300, 3, 4  # boards drawn for a level; how many of them must pass; with so many it is over
_SEARCHED = 8000  # boards that searches may find for one that passes: this bounds what a draw takes
_LOOKS = 200  # tries to find looks that differ
_PLAYERS = 40  # random plays of a level
MOST_RANDOM_WINS = 0.05

GameDeclaration = dict[str, Any]  # what a game's file says


_PLACEHOLDER = re.compile(r"\{(\w+)\}")


class Refused(Exception):
    """Signal that a proposed game fails a gate; its text is the reason, which is counted."""


@dataclass
class Proposal:
    """Hold a game that passed all gates. declared: content of its file. figures: for each level `level`, `refused`,
    `kept`, `shortest` and `random`, for the list of games."""

    declared: GameDeclaration
    game: RuleGame
    figures: list[dict[str, Any]]


@dataclass
class GameFunnel:
    """Hold the numbers of proposed, of accepted and, by reason, of refused games."""

    proposed: int = 0
    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)


# -- composition ------------------------------------------------------------------------------------------------------
def compose_game(rng: random.Random) -> GameDeclaration:
    """Compose a game of a goal and up to three mechanics that go with it, by `rng`; no gate has tried it.

    Returns the content of the game's file. Raises as `declare_game`.
    """
    goals, mechanics = LIBRARY["goals"], LIBRARY["mechanics"]
    goal, wanted = rng.choice(sorted(goals)), rng.choice((2, 2, 2, 3))
    parts = {goal: goals[goal]}
    left = rng.sample(sorted(mechanics), len(mechanics))
    for name in sorted(left, key=lambda one: "needs" in mechanics[one]):  # after what they may need
        barred = {other for part in parts.values() for other in part.get("not_with", ())} | {
            other for other in parts if other in mechanics[name].get("not_with", ())
        }
        needed = mechanics[name].get("needs", "")
        there = not needed or any(needed in part.get("objects", {}) for part in parts.values())
        if len(parts) <= wanted and there and name not in barred and not barred & parts.keys():
            parts[name] = mechanics[name]
    return declare_game({name: part for name, part in {**goals, **mechanics}.items() if name in parts}, rng)


def declare_game(parts: Mapping[str, Mapping[str, Any]], rng: random.Random) -> GameDeclaration:
    """Make the content of a game's file from its goal and mechanics.

    parts: these, the goal first, by name as in mechanics.yaml. rng: draws looks and the name's end. Raises Refused
    where no distinct looks are found, for an unknown layer, and where the words name an object that is not there.
    """
    looks = _choose_looks(parts, rng)
    movers = " ".join(f"no {name}" for name in LIBRARY["movers"] if name in looks)
    order = ("ground", "floor", "body")
    objects = {
        name: dict(zip(("layer", "draw", "colour", "icon", "label"), look, strict=True)) for name, look in looks.items()
    }
    if strange := {one["layer"] for one in objects.values()} - {*order}:
        raise Refused(f"no layer is called {min(strange)}")
    objects = dict(sorted(objects.items(), key=lambda one: order.index(one[1]["layer"])))
    rules = {}
    for name, part in parts.items():
        more = [rule for other, own in part.get("with", {}).items() if other in looks for rule in own]
        if texts := [rule.replace("{movers}", movers) for rule in (*part.get("rules", ()), *more)]:
            rules[name] = texts
    lines = [part["line"] for part in parts.values() if "line" in part]
    levels = {}
    for level in range(LEVELS):
        side = _SIDES[level] + bool(lines)
        place = {"player": 1}
        for part in parts.values():
            place |= {name: counts[level] for name, counts in part.get("place", {}).items()}
        place["wall"] = max(_WALLS[level] - 3 * len(lines), 2)
        patches = {name: sizes[level] for part in parts.values() for name, sizes in part.get("patches", {}).items()}
        under = {name: others for part in parts.values() for name, others in part.get("under", {}).items()}
        levels[level + 1] = {
            "cols": side, "rows": side, "place": place, "lines": lines, "patches": patches, "under": under,
            "shortest": [_SHORTEST + level, _LONGEST], "max_steps": _LONGEST,
        }  # fmt: skip
    said = {name: f"{one['colour']} {one['label']}" for name, one in objects.items()}
    words = _PLACEHOLDER.sub(
        lambda found: said.get(found[1], found[0]), " ".join(part["words"] for part in parts.values())
    )
    if unknown := _PLACEHOLDER.search(words):
        raise Refused(f"its words name no object of its own: {unknown[0]}")
    words = re.sub(r"\ba (?=[aeiou])", "an ", words)
    goal, *mechanics = parts.values()
    name = "_".join(parts)
    return {
        "kind": "browser",
        "world": f"{name}_{rng.randrange(16**4):04x}",
        "title": " ".join([*(part["name"] for part in mechanics), goal["name"]]),
        "version": 1,
        "instruction": f"The arrow keys move you, the {said['player'].removesuffix(' you')} disc. {words} "
        "Press R to begin the level again.",
        "objects": objects,
        "rules": rules,
        "win": [one for part in parts.values() for one in part.get("win", ())],
        "lose": [one for part in parts.values() for one in part.get("lose", ())],
        "levels": levels,
    }


def _choose_looks(parts: Mapping[str, Mapping[str, Any]], rng: random.Random) -> dict[str, list[str]]:
    """Choose a look for each object, no icon, label or pair of shape and colour twice. Raises Refused."""
    choices = {"player": LIBRARY["player"], "wall": LIBRARY["walls"]}
    alike: dict[str, str] = {}  # two states of a thing, or a thing and its place, share an icon
    for part in parts.values():
        for name, looks in part.get("objects", {}).items():
            choices.setdefault(name, looks)
        alike |= {second: first for first, second in part.get("alike", ())}
    for _ in range(_LOOKS):
        found = {name: rng.choice(looks) for name, looks in choices.items()}
        for second, first in alike.items():
            found[second] = choices[second][choices[first].index(found[first]) % len(choices[second])]
        found = {name: [*LIBRARY["kinds"].get(name, ()), *look][-5:] for name, look in found.items()}
        pairs = [(draw, colour) for _, draw, colour, *_ in found.values()]
        icons = [look[3] for name, look in found.items() if look[3] and name not in alike]
        labels = [look[4] for look in found.values()]
        if all(len(set(one)) == len(one) for one in (pairs, icons, labels)):
            return found
    raise Refused("two objects would look alike")


# -- gates ------------------------------------------------------------------------------------------------------------
def examine_game(declared: GameDeclaration, where: str, rng: random.Random) -> Proposal:
    """Test a game by all gates, and set the range of each level's shortest solutions by the boards that pass.

    declared: content of the game's file; its levels are changed. where: names the game in errors. A level gets the
    range of its shortest ways, which rises from level to level, and a budget from it. Raises Refused: for a file that
    cannot be used, a level of which too few boards pass (`RuleGame.judge_board`), a rule that never fires, or one that
    random keys win too often.
    """
    figures, fired, least = [], Counter(), _SHORTEST
    for level in declared.get("levels", ()):
        game = load_declared(declared, where)
        passed, reasons = _sample_boards(game, level, rng)
        kept = [(board, way) for board, way in passed if len(way) >= least]
        reasons["too short"] += len(passed) - len(kept)
        if len(kept) < _LEAST:
            raise Refused(f"level {level}: too few boards pass, mostly: {reasons.most_common(1)[0][0]}")
        quarter = int(statistics.quantiles([len(way) for _, way in kept], n=4)[0])
        least = min(quarter, least + _RISE)
        kept = [(board, way) for board, way in kept if len(way) >= least]
        most = max(len(way) for _, way in kept)
        if not declared["levels"][level].get("maps"):
            declared["levels"][level] |= {"shortest": [least, most], "max_steps": 2 * most}
        wins = _play_at_random(kept, 2 * most, rng)
        if wins > MOST_RANDOM_WINS:
            raise Refused(f"level {level}: random keys win too often")
        for board, way in kept:
            one = RuleLevel(board)
            one.play(["urdl"[direction] for direction, _ in way])
            fired.update(one.fired)
        for board, _ in passed[:_LEAST]:  # a rule that works against the player need not fire in a solution
            one = RuleLevel(board)
            one.play([rng.choice("urdl") for _ in range(_PLAYERS)])
            fired.update(one.fired)
        shortest = round(statistics.mean(len(way) for _, way in kept), 1)
        figures.append(
            {"level": level, "refused": dict(reasons), "kept": len(kept), "shortest": shortest, "random": wins}
        )
        least += 1
    game = load_declared(declared, where)
    if idle := [rule["text"] for rule in game.program["rules"] if rule["text"] not in fired]:
        raise Refused(f"a rule never fires: {idle[0]}")
    return Proposal(declared, game, figures)


def load_declared(declared: GameDeclaration, where: str) -> RuleGame:
    """Load a declared game as a suite would. where: names it in errors. Raises Refused for a wrong declaration."""
    try:
        file = RuleGameFile.model_validate({name: value for name, value in declared.items() if name != "kind"})
        return make_rule_game(file, where, dump_game(declared).encode())
    except ValidationError as error:
        fault = error.errors()[0]
        raise Refused(f"wrong field {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from None
    except BadInput as error:
        raise Refused(error.what.removeprefix("the manifest's ")) from None


def _sample_boards(game: RuleGame, level: int, rng: random.Random) -> tuple[list[tuple[Any, Any]], Counter[str]]:
    passed, reasons, searched = [], Counter(), 0
    for _ in range(_SAMPLES):
        if len(passed) == _ENOUGH or searched > _SEARCHED * (len(passed) + 1):
            break
        board = game.draw_board(level, rng)
        judged = game.judge_board(board, level)
        searched += judged.searched
        if judged.reason:
            reasons[judged.reason] += 1
        else:
            passed.append((board, judged.way))
    return passed, reasons


def _play_at_random(kept: list[tuple[Any, Any]], budget: int, rng: random.Random) -> float:
    """Return the share of `_PLAYERS` plays by random arrow keys that win within the budget."""
    wins = 0
    for number in range(_PLAYERS):
        level = RuleLevel(kept[number % len(kept)][0])
        cells = level.start
        for _ in range(budget):
            cells = level.after(cells, rng.randrange(4))
            if level.won(cells) or level.lost(cells):
                wins += level.won(cells)
                break
    return wins / _PLAYERS


def make_games(
    count: int, seed: int, propose: Callable[[random.Random], GameDeclaration], most: int, funnel: GameFunnel
) -> Iterator[Proposal]:
    """Propose games until `count` have passed the gates, or `most` were proposed; yield each game that passes.

    seed: of the random generators, one a proposal; the same arguments give the same games where `propose` does.
    propose: makes a declaration by a random generator, or raises Refused. funnel: is changed, and counts
    what happens; games that it has accepted already count towards `count`.
    """
    known: set[str] = set()
    for number in range(most):
        if funnel.accepted == count:
            return
        rng = random.Random(f"{seed} {number}")
        funnel.proposed += 1
        try:
            declared = propose(rng)
            key = repr((sorted(map(str, declared.get("rules", {}).values())), declared.get("win")))
            if key in known:
                raise Refused("its rules are those of another")
            found = examine_game(declared, f"proposal {number}", rng)
        except (Refused, DataError) as error:
            funnel.refused[re.sub(r"level \d+", "a level", str(error))] += 1
            continue
        known.add(key)
        funnel.accepted += 1
        yield found


def write_game(one: Proposal, folder: Path) -> dict[str, Any]:
    """Write a game's file NAME.yaml into `folder`, which must exist; return its entry in the list of games.

    An existing file is replaced. The entry has `file` (its name), fields of the game's manifest such as `name`, `title`
    and `checksum`, and `levels` (`figures` of a Proposal). Raises OSError where the file cannot be written.
    """
    path = folder / f"{one.game.name}.yaml"
    path.write_text(dump_game(one.declared), encoding="utf-8")
    told = ("name", "title", "domain", "kind", "version", "checksum", "templates", "instruction")
    return {"file": path.name, **load_rule_game(path).model_dump(mode="json", include=set(told)), "levels": one.figures}


def dump_game(declared: GameDeclaration) -> str:
    """Return the YAML text of a game's file."""
    return yaml.safe_dump(declared, sort_keys=False, allow_unicode=True, width=120)
