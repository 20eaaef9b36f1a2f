"""Mirror the rules of the game loops (`loops.js`) in Python; find the fewest clicks that close every end."""

from __future__ import annotations

from flywheel.envs.suites.search import Way
from flywheel.envs.suites.turning import OPPOSITE, STEPS, Board, Cell, fewest_turns, replaced, turned


def joined(board: Board, cell: Cell) -> bool:
    """Tell whether every end of the piece in `cell` meets one of a neighbour's."""
    x, y = cell
    for side, (dx, dy) in STEPS.items():
        u, v = x + dx, y + dy
        inside = 0 <= v < len(board) and 0 <= u < len(board[0])
        if board[y][x] & side and not (inside and board[v][u] & OPPOSITE[side]):
            return False
    return True


def closed(board: Board) -> bool:
    return all(joined(board, (x, y)) for y, row in enumerate(board) for x in range(len(row)))


def solve(board: Board) -> Way | None:
    """Return the cells to click, line by line, with the board after each click; None where no layout is closed."""
    wanted = fewest_turns(board)
    if wanted is None:
        return None
    way: Way = []
    for y, row in enumerate(wanted):
        for x, piece in enumerate(row):
            while board[y][x] != piece:
                board = replaced(board, (x, y), turned(board[y][x]))
                way.append(((x, y), board))
    return way
