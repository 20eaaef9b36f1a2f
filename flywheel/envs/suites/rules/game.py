"""Load the games that files of rules declare (docs/rule-games.md), and draw and judge their levels."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator

from flywheel.config import DomainName
from flywheel.envs import registry
from flywheel.envs.base import TaskTemplate
from flywheel.envs.suites import catalogue
from flywheel.envs.suites.catalogue import BrowserWorld
from flywheel.envs.suites.levels import first_winnable
from flywheel.envs.suites.rules.engine import RuleLevel
from flywheel.envs.suites.rules.language import MAX_OBJECTS, RuleParser
from flywheel.envs.suites.search import SearchLimit, Way
from flywheel.utils.errors import BadInput, did_you_mean

FOLDER = Path(__file__).parent
_TEMPLATE = "play"
_VERIFIER = "world:score"
_LEAST_LEVELS = 5
SEARCH_LIMIT = 4000  # boards that the search for a way may find in a drawn level
_EXPLORED, _TRIES = 1200, 10  # boards explored to put objects `under` others; how many of them are tried
MAP_LIMIT = 200_000  # and in a map, which nobody draws again


class _Declared(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class RuleObject(_Declared):
    """Declare an object. Two of one layer are never in one cell. draw: its shape; label: its name in the legend."""

    layer: Literal["ground", "floor", "body"]
    draw: Literal["wall", "block", "piece", "thing", "mark", "ground"]
    colour: str
    icon: str = ""
    label: str = Field("", max_length=14)

    @model_validator(mode="after")
    def _known(self) -> RuleObject:
        look = catalogue.load_look()
        for name, kind in ((self.colour, "colours"), (self.icon, "icons")):
            if name and name not in look[kind]:
                raise ValueError(f"no {kind[:-1]} is called {name!r}; {did_you_mean(name, look[kind])}")
        return self


class RuleBoard(_Declared):
    """Declare a level: drawn boards, or `maps` to choose from.

    place: how many cells have an object. lines: walls from side to side, each with a gap that holds this object.
    patches: cells of a connected patch of an object. under: object -> others; it is put where these can be brought, so
    that the board can be won. shortest: least and most keys of the shortest way. max_steps: step
    budget. maps: texts, one character of `legend` a cell.
    """

    cols: int = Field(0, ge=0, le=20)
    rows: int = Field(0, ge=0, le=20)
    place: dict[str, int] = {}
    lines: list[str] = []
    patches: dict[str, int] = {}
    under: dict[str, list[str]] = {}
    maps: list[str] = []
    shortest: list[int] = Field([1, 10_000], min_length=2, max_length=2)
    max_steps: int = Field(ge=1, le=2000)

    @model_validator(mode="after")
    def _either(self) -> RuleBoard:
        if bool(self.maps) == bool(self.cols and self.rows):
            raise ValueError("it has cols, rows and place, or maps")
        if self.lines and min(self.cols, self.rows) < 3:
            raise ValueError("a board with lines has three columns and rows, or more")
        if sum(self.place.values()) > self.cols * self.rows and not self.maps:
            raise ValueError(f"place needs {sum(self.place.values())} cells, and there are {self.cols * self.rows}")
        return self


class RuleGameFile(_Declared):
    """Declare a game: a file of `synthesis.worlds`, with `kind: browser`.

    rules: mechanic -> its rules. win, lose: conditions; all of `win` must hold, one of `lose` ends the game. legend:
    character of the maps -> objects. levels: by number, from 1 on.
    """

    world: str = Field(pattern=r"^[a-z][a-z0-9_]{2,60}$")
    title: str = Field(min_length=1, max_length=60)
    version: int = Field(1, ge=1)
    domain: DomainName = "games"
    instruction: str = Field(min_length=1)
    objects: dict[str, RuleObject] = Field(min_length=2, max_length=MAX_OBJECTS)
    rules: dict[str, list[str]] = {}
    win: list[str] = Field(min_length=1)
    lose: list[str] = []
    legend: dict[str, list[str]] = {}
    levels: dict[int, RuleBoard]


class BoardJudgement(NamedTuple):
    """Hold why a board is no level, "" where it is one; a shortest way; and how many boards the searches found."""

    reason: str
    way: Way
    searched: int


class RuleGame(BrowserWorld):
    """Hold a game that a file of rules declares. program: its rules, compiled. needed: the mechanics that each drawn
    level must need. boards: by level."""

    instruction: str
    program: dict[str, Any]
    needed: tuple[str, ...]
    boards: dict[int, RuleBoard]
    maps: dict[int, list[dict[str, Any]]]

    def draw(self, template: str, level: int, seed: int) -> dict[str, Any]:
        """Draw the params of a task: the program and a board that can be won within the budget.

        Raises BadInput for a template or level that the game has not, DataError where no such board is found.
        """
        self.budget(template, level)
        rng = random.Random(f"{self.name} {template} {level} {seed}")

        def attempt() -> dict[str, Any] | None:
            board = self.draw_board(level, rng)
            judged = self.judge_board(board, level)
            return None if judged.reason else {**self.params_of(board), **describe_way(board, judged.way)}

        return first_winnable(attempt, f"{self.name} level {level}", len(self.maps.get(level, ())) * 50 or 2000)

    def params_of(self, board: Mapping[str, Any]) -> dict[str, Any]:
        """Return the params of a task on a board, without how hard it is."""
        common = {"title": self.title, "version": self.version, "instruction": self.instruction}
        return {**common, **{name: board[name] for name in ("program", "cols", "rows", "cells")}}

    def draw_board(self, level: int, rng: random.Random) -> dict[str, Any]:
        """Draw a board of a level by `rng`, whether it can be won or not: `program`, `cols`, `rows`, `cells`."""
        if level in self.maps:
            return rng.choice(self.maps[level])
        spec, bits = self.boards[level], self.program["bits"]
        cells = [0] * (spec.cols * spec.rows)
        for name in spec.lines:
            _draw_line(cells, spec, bits["wall"], bits[name], rng)
        free = [cell for cell, there in enumerate(cells) if not there]
        for name, size in spec.patches.items():
            for cell in _grow_patch(free, spec.cols, size, rng):
                cells[cell] |= bits[name]
        rng.shuffle(free)
        blocks = {one["name"] for one in self.program["objects"] if one["draw"] == "block"}
        for name, count in spec.place.items():
            for _ in range(min(count, len(free))):
                # At an edge a block can hardly be pushed anywhere.
                inner = (
                    at for at in range(len(free)) if name not in blocks or _is_inner(free[at], spec.cols, spec.rows)
                )
                cells[free.pop(next(inner, -1))] |= bits[name]
        board = {"program": self.program, "cols": spec.cols, "rows": spec.rows, "cells": cells}
        return self._place_under(board, spec, rng) if spec.under else board

    def _place_under(self, board: dict[str, Any], spec: RuleBoard, rng: random.Random) -> dict[str, Any]:
        """Return the board with each object of `spec.under` where some way has brought what it is for; with none of
        them where no way of `spec.shortest` keys is found."""
        bits, start = self.program["bits"], board["cells"]
        found = [
            cells for depth, cells in RuleLevel(board).explore(_EXPLORED, spec.shortest[1]) if depth >= spec.shortest[0]
        ]
        deep = found[9 * len(found) // 10 :]
        for cells in rng.sample(deep, min(_TRIES, len(deep))):
            placed = list(start)
            for name, others in spec.under.items():
                below = sum(bits[other] for other in others)
                for cell, there in enumerate(cells):
                    placed[cell] |= bits[name] if there & below else 0
            new = [after ^ before for after, before in zip(placed, start, strict=True)]
            rivals = [self.program["rivals"][number] for number, name in enumerate(bits) if name in spec.under]
            free = not any(one and before & mask for one, before in zip(new, start, strict=True) for mask in rivals)
            changed = [there | one for there, one in zip(cells, new, strict=True)]
            if free and RuleLevel({**board, "cells": placed}).won(changed):
                return {**board, "cells": placed}
        return board

    def judge_board(self, board: Mapping[str, Any], level: int) -> BoardJudgement:
        """Judge whether a board is a level, by searching it.

        No level is what cannot be won by as many keys as the level allows, is too short, is too large for the search,
        or can be won by as few keys without one of the mechanics (not asked of maps).
        """
        spec, is_map = self.boards[level], level in self.maps
        limit, most, searched = MAP_LIMIT if is_map else SEARCH_LIMIT, min(spec.shortest[1], spec.max_steps), 0
        way: Way = []
        try:
            for mechanic in ("", *(() if is_map else self.needed)):
                one = RuleLevel(board, mechanic)
                try:
                    found = one.solve(limit=limit, most=len(way) or most)
                finally:
                    searched += one.searched
                if one.endless:
                    return BoardJudgement(one.endless, [], searched)
                if mechanic and found is not None and len(found) == len(way):
                    return BoardJudgement(f"{mechanic} is not needed", way, searched)
                if not mechanic and (found is None or len(found) < spec.shortest[0]):
                    return BoardJudgement("unsolvable" if found is None else "too short", found or [], searched)
                way = way or found
        except SearchLimit:
            return BoardJudgement("too large to search", [], searched)
        return BoardJudgement("", way, searched)


def describe_way(board: Mapping[str, Any], way: Way) -> dict[str, Any]:
    """Return how hard a level is: keys of the shortest way, and keys that change something at each of its states, on
    average."""
    level = RuleLevel(board)
    befores = [level.start, *(after for _, after in way[:-1])]
    return {
        "shortest": len(way),
        "branching": round(sum(len(list(level.moves(one))) for one in befores) / len(befores), 2),
    }


def _is_inner(cell: int, cols: int, rows: int) -> bool:
    return 0 < cell % cols < cols - 1 and 0 < cell // cols < rows - 1


def _draw_line(cells: list[int], spec: RuleBoard, wall: int, gap: int, rng: random.Random) -> None:
    """Draw a wall from side to side, with `gap` in one of its free cells."""
    down = rng.random() < 0.5
    across, along = (spec.cols, spec.rows) if down else (spec.rows, spec.cols)
    at = rng.randrange(1, across - 1)
    line = [step * spec.cols + at if down else at * spec.cols + step for step in range(along)]
    free = [cell for cell in line if not cells[cell]]
    for cell in free:
        cells[cell] = wall
    if free:
        cells[rng.choice(free)] = gap


def _grow_patch(free: list[int], cols: int, size: int, rng: random.Random) -> set[int]:
    """Return up to `size` connected cells of `free`."""
    patch = {rng.choice(free)} if free else set()
    while patch and len(patch) < size:
        beside = {
            cell + step
            for cell, step in itertools.product(patch, (1, -1, cols, -cols))
            if abs(step) == cols or (cell + step) // cols == cell // cols
        }
        edge = sorted(beside & set(free) - patch)
        if not edge:
            break
        patch.add(rng.choice(edge))
    return patch


def load_rule_game(path: Path) -> RuleGame:
    """Load the game in the file at `path`. Raises BadInput that names the wrong field."""
    return make_rule_game(registry.validate_suite_manifest(path, RuleGameFile), str(path), path.read_bytes())


def make_rule_game(declared: RuleGameFile, where: str, source: bytes) -> RuleGame:
    """Make the game that a file declares. where: of the file, for errors. source: its bytes, for the checksum.

    Raises BadInput that names the wrong field.
    """

    def wrong(field: str, what: str, fix: str = "mend that field") -> BadInput:
        return BadInput(f"the manifest's {field}: {what}", where=where, fix=fix)

    objects, levels = declared.objects, declared.levels
    if "player" not in objects:
        raise wrong("objects", "none is called player, whom the arrow keys move", "add it")
    looks: dict[tuple[str, ...], str] = {}
    for name, one in objects.items():
        if (other := looks.setdefault((one.draw, one.colour, one.icon), name)) != name:
            raise wrong(f"objects.{name}", f"it looks as {other} does", "give it another colour or icon")
    parser = RuleParser({name: one.layer for name, one in objects.items()})
    bits = {name: 1 << number for number, name in enumerate(objects)}
    program = {
        "objects": [{"name": name, **one.model_dump(exclude={"layer"})} for name, one in objects.items()],
        "bits": bits,
        "rivals": [parser.rivals[bit] for bit in bits.values()],
        "player": bits["player"],
        "rules": [
            {"mechanic": mechanic, **parser.rule(text, f"rules.{mechanic}.{number}", where)}
            for mechanic, texts in declared.rules.items()
            for number, text in enumerate(texts)
        ],
        "win": [parser.condition(text, f"win.{number}", where) for number, text in enumerate(declared.win)],
        "lose": [parser.condition(text, f"lose.{number}", where) for number, text in enumerate(declared.lose)],
    }
    if sorted(levels) != list(range(1, max(len(levels), _LEAST_LEVELS) + 1)):
        raise wrong("levels", f"they are {sorted(levels)}", f"number them from 1 on, {_LEAST_LEVELS} or more")
    maps = {}
    for level, spec in sorted(levels.items()):
        for field, names in (
            ("place", spec.place),
            ("lines", spec.lines),
            ("patches", spec.patches),
            ("under", spec.under),
        ):
            for name in names:
                if name not in objects:
                    raise wrong(f"levels.{level}.{field}", f"no object is called {name!r}", did_you_mean(name, objects))
        for name in itertools.chain.from_iterable(spec.under.values()):
            if name not in objects:
                raise wrong(f"levels.{level}.under", f"no object is called {name!r}", did_you_mean(name, objects))
        for name in spec.patches:
            if objects[name].layer != "ground":
                raise wrong(f"levels.{level}.patches", f"{name} is not of the layer ground", "place it")
        if spec.lines and "wall" not in objects:
            raise wrong(f"levels.{level}.lines", "no object is called wall", "add it")
        if spec.maps:
            maps[level] = []
            for number, text in enumerate(spec.maps):
                board, fault = _read_map(text, declared.legend, bits)
                if fault:
                    raise wrong(f"levels.{level}.maps.{number}", fault)
                maps[level].append({**board, "program": program})
        elif not spec.place.get("player"):
            raise wrong(f"levels.{level}.place", "no player is placed", "add player: 1")
    digest = hashlib.sha256(source + catalogue.world_checksum(FOLDER).encode())
    budgets = {level: spec.max_steps for level, spec in sorted(levels.items())}
    return RuleGame(
        name=declared.world,
        title=declared.title,
        domain=declared.domain,
        kind="game",
        version=declared.version,
        source="rules",
        folder=FOLDER,
        checksum=digest.hexdigest(),
        templates={_TEMPLATE: TaskTemplate(instruction="{instruction}", verifier=_VERIFIER, max_steps=budgets)},
        instruction=declared.instruction,
        program=program,
        needed=tuple(declared.rules),
        boards=levels,
        maps=maps,
    )


def _read_map(text: str, legend: Mapping[str, list[str]], bits: Mapping[str, int]) -> tuple[dict[str, Any], str]:
    """Return the board of a map, and what is wrong with it, or ""."""
    lines = [line.rstrip() for line in text.strip("\n").split("\n")]
    cols, cells = max(map(len, lines)), []
    for character in itertools.chain.from_iterable(line.ljust(cols) for line in lines):
        names = legend.get(character, [] if character in " ." else None)
        if names is None:
            return {}, f"the legend has no {character!r}"
        if unknown := [name for name in names if name not in bits]:
            return {}, f"no object is called {unknown[0]!r}"
        cells.append(sum(bits[name] for name in names))
    fault = "" if any(cell & bits["player"] for cell in cells) else "no player stands on it"
    return {"cols": cols, "rows": len(lines), "cells": cells}, fault
