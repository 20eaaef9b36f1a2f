"""Mirror the rules of the game lasers (`lasers.js`) in Python; search for the fewest actions that hit every target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from flywheel.envs.suites.search import SearchLimit, Way

Cell = tuple[int, int]
STEPS: dict[str, Cell] = {"up": (0, -1), "right": (1, 0), "down": (0, 1), "left": (-1, 0)}
LIES = ("/", "\\")


@dataclass(frozen=True)
class Mirror:
    """Hold a mirror. lie: its orientation, "/" or "\\". fixed: it can be turned, but not moved."""

    x: int
    y: int
    lie: str
    fixed: bool

    @property
    def cell(self) -> Cell:
        return self.x, self.y


Mirrors = tuple[Mirror, ...]
# ("turn", number of the mirror) or ("move", number of the mirror, to which cell)
Move = tuple[str, int] | tuple[str, int, Cell]


def mirrors(holder: Mapping[str, Any]) -> Mirrors:
    """Read the mirrors of a task's params or of a state."""
    return tuple(Mirror(m["x"], m["y"], m["lie"], m["fixed"]) for m in holder["mirrors"])


def reflected(step: Cell, lie: str) -> Cell:
    """Return the step of a beam after a mirror of this orientation."""
    dx, dy = step
    return (-dy, -dx) if lie == "/" else (dy, dx)


def other(lie: str) -> str:
    return LIES[1 - LIES.index(lie)]


@dataclass(frozen=True)
class _Plan:
    """Hold what a search has settled: the cells that beams cross, with the orientation of the mirror there ("": none).

    turned: mirrors that stay and are turned. away: movable mirrors that have to leave their cell. placed: (cell,
    orientation) of mirrors to be put there. targets: those hit so far.
    """

    settled: dict[Cell, str] = field(default_factory=dict)
    turned: tuple[int, ...] = ()
    away: tuple[int, ...] = ()
    placed: tuple[tuple[Cell, str], ...] = ()
    targets: frozenset[Cell] = frozenset()

    def least(self) -> int:
        return len(self.turned) + max(len(self.away), len(self.placed))


class Level:
    """Hold what a task fixes: board, walls, sources, targets, mirrors at the start; follow beams, search actions."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self.cols, self.rows = params["cols"], params["rows"]
        self.walls = {(x, y) for x, y in params["walls"]}
        self.sources = [((s["x"], s["y"]), STEPS[s["way"]], s["colour"]) for s in params["sources"]]
        self.targets: dict[Cell, str] = {(t["x"], t["y"]): t["colour"] for t in params["targets"]}
        self.stops = self.walls | {cell for cell, _, _ in self.sources}
        self.start = mirrors(params)

    def inside(self, cell: Cell) -> bool:
        return 0 <= cell[0] < self.cols and 0 <= cell[1] < self.rows

    def beam(self, source: int, lies: Mapping[Cell, str]) -> list[Cell]:
        """Return the cells that the beam of a source crosses. lies: orientation of the mirrors, by cell."""
        cell, step, _ = self.sources[source]
        crossed: list[Cell] = []
        while True:
            cell = cell[0] + step[0], cell[1] + step[1]
            if not self.inside(cell) or cell in self.stops:
                return crossed
            crossed.append(cell)
            if cell in lies:
                step = reflected(step, lies[cell])

    def hit(self, now: Mirrors) -> set[Cell]:
        """Return the targets that a beam of their colour crosses."""
        lies = {mirror.cell: mirror.lie for mirror in now}
        found: set[Cell] = set()
        for number, (_, _, colour) in enumerate(self.sources):
            found |= {cell for cell in self.beam(number, lies) if self.targets.get(cell) == colour}
        return found

    def won(self, now: Mirrors) -> bool:
        return len(self.hit(now)) == len(self.targets)

    def after(self, now: Mirrors, move: Move) -> Mirrors:
        mirror = now[move[1]]
        if move[0] == "turn":
            mirror = replace(mirror, lie=other(mirror.lie))
        else:
            mirror = replace(mirror, x=move[2][0], y=move[2][1])
        return (*now[: move[1]], mirror, *now[move[1] + 1 :])

    def solve(self, now: Mirrors, most: int = 20, limit: int = 20_000) -> Way | None:
        """Find the fewest actions that hit every target, (move, mirrors after it) each; None where `most` are too few.

        Deepens iteratively on the number of actions allowed. Beams are followed from their sources; at each cell that
        is not settled yet, every choice that the allowed actions pay for is tried; a beam that misses a target of its
        colour is given up. limit: pieces of beams followed for each number of actions. Raises SearchLimit beyond it.
        """
        if self.won(now):
            return []
        for allowed in range(1, min(most, 2 * len(now) + 1) + 1):
            for plan in self._plans(now, allowed, limit):
                way = self._actions(now, plan)
                if way is not None and len(way) <= allowed:
                    return way
        return None

    def _plans(self, now: Mirrors, allowed: int, limit: int) -> Iterator[_Plan]:
        count = 0
        at = {mirror.cell: number for number, mirror in enumerate(now)}
        movable = sum(not mirror.fixed for mirror in now)

        def choices(plan: _Plan, cell: Cell, step: Cell) -> Iterator[_Plan]:
            """Yield the plans for what may be in a cell that a beam comes to."""
            number = at.get(cell)
            if number is None:
                yield replace(plan, settled={**plan.settled, cell: ""})
                if cell in self.targets or len(plan.placed) == movable:
                    return
                for lie in LIES:
                    ahead = reflected(step, lie)
                    beyond = cell[0] + ahead[0], cell[1] + ahead[1]
                    if self.inside(beyond) and beyond not in self.stops:
                        yield replace(plan, settled={**plan.settled, cell: lie}, placed=(*plan.placed, (cell, lie)))
                return
            mirror = now[number]
            yield replace(plan, settled={**plan.settled, cell: mirror.lie})
            turned = (*plan.turned, number)
            yield replace(plan, settled={**plan.settled, cell: other(mirror.lie)}, turned=turned)
            if not mirror.fixed:
                yield replace(plan, settled={**plan.settled, cell: ""}, away=(*plan.away, number))

        def follow(plan: _Plan, source: int, cell: Cell, step: Cell) -> Iterator[_Plan]:
            nonlocal count
            if plan.least() > allowed:
                return
            count += 1
            if count > limit:
                raise SearchLimit(f"no way found among {limit} pieces of beams", where="lasers.solve")
            colour = self.sources[source][2]
            while True:
                cell = cell[0] + step[0], cell[1] + step[1]
                if not self.inside(cell) or cell in self.stops:
                    if any(wanted == colour and target not in plan.targets for target, wanted in self.targets.items()):
                        return
                    if source + 1 < len(self.sources):
                        yield from follow(plan, source + 1, *self.sources[source + 1][:2])
                    else:
                        yield plan
                    return
                if cell not in plan.settled:
                    break
                if plan.settled[cell]:
                    step = reflected(step, plan.settled[cell])
                elif self.targets.get(cell) == colour:
                    plan = replace(plan, targets=plan.targets | {cell})
            for choice in choices(plan, cell, step):
                lie = choice.settled[cell]
                if self.targets.get(cell) == colour:
                    choice = replace(choice, targets=choice.targets | {cell})
                yield from follow(choice, source, cell, reflected(step, lie) if lie else step)

        yield from follow(_Plan(), 0, *self.sources[0][:2])

    def _actions(self, now: Mirrors, plan: _Plan) -> Way | None:
        """Return the actions of a plan, with the mirrors after each; None where mirrors or free cells do not
        suffice."""
        spare = [number for number, mirror in enumerate(now) if not mirror.fixed and mirror.cell not in plan.settled]
        wanted = list(plan.placed)
        if len(wanted) > len(plan.away) + len(spare):
            return None
        moves: list[Move] = [("turn", number) for number in plan.turned]
        for number in plan.away:  # first those in the way, each to a cell that wants its orientation if there is one
            if wanted:
                cell, lie = next((one for one in wanted if one[1] == now[number].lie), wanted[0])
                wanted.remove((cell, lie))
                moves += self._placed(now, number, cell, lie)
            else:
                taken = {move[2] for move in moves if move[0] == "move"}
                cell = self._aside(now, plan, number, taken)
                if cell is None:
                    return None
                moves.append(("move", number, cell))
        for cell, lie in wanted:
            number = next((one for one in spare if now[one].lie == lie), spare[0])
            spare.remove(number)
            moves += self._placed(now, number, cell, lie)
        way: Way = []
        for move in moves:
            now = self.after(now, move)
            way.append((move, now))
            if self.won(now):
                return way
        return None

    def _placed(self, now: Mirrors, number: int, cell: Cell, lie: str) -> list[Move]:
        move: Move = ("move", number, cell)
        return [move] if now[number].lie == lie else [move, ("turn", number)]

    def _aside(self, now: Mirrors, plan: _Plan, number: int, taken: set[Cell]) -> Cell | None:
        """Return the nearest free cell that no beam crosses; None where there is none."""
        x, y = now[number].cell
        busy = {*plan.settled, *taken, *self.stops, *self.targets, *(mirror.cell for mirror in now)}
        free = [(col, row) for row in range(self.rows) for col in range(self.cols) if (col, row) not in busy]
        return min(free, key=lambda cell: abs(cell[0] - x) + abs(cell[1] - y), default=None)
