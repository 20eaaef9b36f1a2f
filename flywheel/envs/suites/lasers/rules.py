"""The rules of lasers, as `lasers.js` has them, and a search for the fewest actions that hit every target."""

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
    """lie: "/" or "\\". fixed: it turns, but stays in its cell."""

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
    """Those of params or of a state."""
    return tuple(Mirror(m["x"], m["y"], m["lie"], m["fixed"]) for m in holder["mirrors"])


def reflected(step: Cell, lie: str) -> Cell:
    """Where a beam goes on behind a mirror."""
    dx, dy = step
    return (-dy, -dx) if lie == "/" else (dy, dx)


def other(lie: str) -> str:
    return LIES[1 - LIES.index(lie)]


@dataclass(frozen=True)
class _Plan:
    """What a search has settled: of cells that beams cross, the lie of the mirror there ("": none).

    turned: mirrors that stay and lie the other way. away: movable ones that have to leave their cell. placed: cells
    that get one. targets: those hit so far.
    """

    settled: dict[Cell, str] = field(default_factory=dict)
    turned: tuple[int, ...] = ()
    away: tuple[int, ...] = ()
    placed: tuple[tuple[Cell, str], ...] = ()
    targets: frozenset[Cell] = frozenset()

    def least(self) -> int:
        return len(self.turned) + max(len(self.away), len(self.placed))


class Level:
    """What does not change: the params of a task."""

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
        """Return the cells that a beam crosses. lies: of the mirrors, by cell."""
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
        """Targets that a beam of their colour crosses."""
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
        """Fewest actions that hit every target: moves with the mirrors after them; None where `most` are too few.

        Beams are followed from their sources; at each cell that is not settled yet all is tried that costs no more
        actions than are allowed, which are one more each time; a beam that leaves out a target of its colour is given
        up. limit: pieces of beams followed at one number of actions. Raises SearchLimit beyond it.
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
            """What may be in a cell that a beam comes to."""
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
        """The actions of a plan; None where too few mirrors are left for it."""
        spare = [number for number, mirror in enumerate(now) if not mirror.fixed and mirror.cell not in plan.settled]
        wanted = list(plan.placed)
        if len(wanted) > len(plan.away) + len(spare):
            return None
        moves: list[Move] = [("turn", number) for number in plan.turned]
        for number in plan.away:  # those in the way first, each to a place of its lie if there is one
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
        """The nearest free cell that no beam crosses."""
        x, y = now[number].cell
        busy = {*plan.settled, *taken, *self.stops, *self.targets, *(mirror.cell for mirror in now)}
        free = [(col, row) for row in range(self.rows) for col in range(self.cols) if (col, row) not in busy]
        return min(free, key=lambda cell: abs(cell[0] - x) + abs(cell[1] - y), default=None)
