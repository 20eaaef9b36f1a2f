"""Rules of lasers; its search against one that tries every action."""

from __future__ import annotations

import random

import pytest

from flywheel.envs.suites.lasers.rules import LIES, Level, Mirror, reflected
from flywheel.envs.suites.search import shortest


def made(mirrors=(), targets=(), walls=(), side=4, sources=((0, 1, "right", "red"),)) -> Level:
    return Level(
        {
            "cols": side,
            "rows": side,
            "walls": [list(wall) for wall in walls],
            "sources": [dict(zip(("x", "y", "way", "colour"), source, strict=True)) for source in sources],
            "targets": [{"x": x, "y": y, "colour": colour} for x, y, colour in targets],
            "mirrors": [{"x": x, "y": y, "lie": lie, "fixed": fixed} for x, y, lie, fixed in mirrors],
        }
    )


def test_mirrors_reflect_by_how_they_lie():
    right, up, left, down = (1, 0), (0, -1), (-1, 0), (0, 1)
    assert [reflected(step, "/") for step in (right, up, left, down)] == [up, right, down, left]
    assert [reflected(step, "\\") for step in (right, up, left, down)] == [down, left, up, right]


def test_a_beam_goes_over_mirrors_until_something_stops_it():
    level = made(walls=[(2, 3)])
    assert level.beam(0, {}) == [(1, 1), (2, 1), (3, 1)]
    assert level.beam(0, {(2, 1): "\\"}) == [(2 - 1, 1), (2, 1), (2, 2)]  # down to the wall
    assert level.beam(0, {(2, 1): "/", (2, 0): "\\"}) == [(1, 1), (2, 1), (2, 0), (1, 0), (0, 0)]
    assert level.beam(0, {(1, 1): "/", (1, 0): "/"}) == [(1, 1), (1, 0), (2, 0), (3, 0)]


def test_a_target_wants_a_beam_of_its_colour():
    level = made(targets=[(3, 1, "blue"), (2, 1, "red")])
    assert level.hit(()) == {(2, 1)}
    assert not level.won(())


def test_a_way_names_turns_and_moves():
    level = made([(2, 1, "\\", True)], [(2, 0, "red")])
    assert [move for move, _ in level.solve(level.start)] == [("turn", 0)]
    level = made([(0, 3, "\\", False)], [(2, 0, "red")])
    assert [move for move, _ in level.solve(level.start)] == [("move", 0, (2, 1)), ("turn", 0)]
    assert made([], [(2, 0, "red")]).solve(()) is None
    assert made([], [(3, 1, "red")]).solve(()) == []


@pytest.mark.parametrize("seed", range(12))
def test_a_way_is_as_short_as_one_that_tries_every_action(seed):
    rng = random.Random(seed)
    cells = [(x, y) for y in range(3) for x in range(4) if (x, y) not in ((0, 1), (3, 0))]
    rng.shuffle(cells)
    mirrors = [(*cells.pop(), rng.choice(LIES), rng.random() < 0.3) for _ in range(2)]
    targets = [(*cells.pop(), colour) for colour in ("red", "blue")]
    sources = ((0, 1, "right", "red"), (3, 0, rng.choice(("down", "left")), "blue"))
    level = made(mirrors, targets, walls=[cells.pop(), (0, 3), (1, 3), (2, 3), (3, 3)], sources=sources)

    def moves(now):
        taken = {mirror.cell for mirror in now} | level.stops | set(level.targets)
        for number, mirror in enumerate(now):
            yield ("turn", number), level.after(now, ("turn", number))
            for cell in [] if mirror.fixed else [(x, y) for x in range(4) for y in range(4) if (x, y) not in taken]:
                yield ("move", number, cell), level.after(now, ("move", number, cell))

    plain = shortest(level.start, moves, level.won)
    found = level.solve(level.start)
    assert (found is None) == (plain is None)
    if found:
        assert len(found) == len(plain)
        now = level.start
        for move, after in found:
            assert after == level.after(now, move)
            assert (move, after) in list(moves(now))  # it is allowed
            now = after
        assert level.won(now)


def test_a_mirror_is_its_cell_and_lie():
    assert Mirror(1, 2, "/", False).cell == (1, 2)
