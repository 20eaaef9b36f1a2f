"""Solve boards whose pieces turn in their cells, so that every end of a piece meets one of a neighbour's.

A piece is the sum of the sides that its ends point to; a board is rows of pieces, 0 for an empty cell. A click turns a
piece a quarter clockwise.
"""

from __future__ import annotations

from collections.abc import Iterator

from flywheel.envs.suites.search import SearchLimit

UP, RIGHT, DOWN, LEFT = 1, 2, 4, 8
STEPS = {UP: (0, -1), RIGHT: (1, 0), DOWN: (0, 1), LEFT: (-1, 0)}
OPPOSITE = {UP: DOWN, RIGHT: LEFT, DOWN: UP, LEFT: RIGHT}
Board = tuple[tuple[int, ...], ...]
Cell = tuple[int, int]  # column, row


def turned(piece: int, times: int = 1) -> int:
    """Return the piece after `times` quarter turns clockwise."""
    for _ in range(times % 4):
        piece = (piece << 1 & 15) | piece >> 3
    return piece


def turns(piece: int, wanted: int) -> int:
    """Return the fewest quarter turns clockwise from `piece` to `wanted`. Raises ValueError if none leads there."""
    return [turned(piece, times) for times in range(4)].index(wanted)


def ways_to_lie(piece: int) -> tuple[int, ...]:
    """List the orientations of a piece, fewest turns first."""
    return tuple(dict.fromkeys(turned(piece, times) for times in range(4)))


def replaced(board: Board, cell: Cell, piece: int) -> Board:
    """Return `board` with `piece` in the `cell` (x, y)."""
    x, y = cell
    row = (*board[y][:x], piece, *board[y][x + 1 :])
    return (*board[:y], row, *board[y + 1 :])


def total_turns(board: Board, layout: Board) -> int:
    """Count the quarter turns that take `board` to `layout`."""
    return sum(turns(a, b) for row, wanted in zip(board, layout, strict=True) for a, b in zip(row, wanted, strict=True))


def fewest_turns(board: Board) -> Board | None:
    """Find the layout of `board` without an open end that takes the fewest turns; None where there is none.

    Exact, by dynamic programming: cells are laid one by one, and for each set of ends that wait for a later cell (one
    bit for each column, one for the cell to the right) only the cheapest layout so far is kept.
    """
    rows, cols = len(board), len(board[0])
    across = 1 << cols  # the bit of an end that points to the right
    kept: dict[int, int] = {0: 0}  # waiting ends -> fewest turns
    came: list[dict[int, tuple[int, int]]] = []  # for each cell: waiting ends -> those before it, and its piece
    for y in range(rows):
        for x in range(cols):
            following: dict[int, int] = {}
            steps: dict[int, tuple[int, int]] = {}
            here = 1 << x
            choices = [(piece, turns(board[y][x], piece)) for piece in ways_to_lie(board[y][x])]
            for waiting, spent in kept.items():
                above, before = bool(waiting & here), bool(waiting & across)
                rest = waiting & ~here & ~across
                for piece, cost in choices:
                    if bool(piece & UP) != above or bool(piece & LEFT) != before:
                        continue
                    if (piece & RIGHT and x == cols - 1) or (piece & DOWN and y == rows - 1):
                        continue
                    ends = rest | (here if piece & DOWN else 0) | (across if piece & RIGHT else 0)
                    if ends not in following or spent + cost < following[ends]:
                        following[ends] = spent + cost
                        steps[ends] = (waiting, piece)
            kept = following
            came.append(steps)
    if 0 not in kept:
        return None
    ends, pieces = 0, []
    for steps in reversed(came):
        ends, piece = steps[ends]
        pieces.append(piece)
    pieces.reverse()
    return tuple(tuple(pieces[y * cols : (y + 1) * cols]) for y in range(rows))


def connected_layouts(board: Board, limit: int = 3000) -> Iterator[Board]:
    """Yield every layout of `board` without an open end in which all pieces are connected.

    Raises SearchLimit after `limit` guesses.
    """
    rows, cols = len(board), len(board[0])
    cells = [(x, y) for y in range(rows) for x in range(cols)]
    guesses = 0

    def narrow(lies: dict[Cell, tuple[int, ...]], changed: list[Cell]) -> bool:
        """Remove the orientations that neighbours rule out; return False where a cell has none left."""
        while changed:
            x, y = changed.pop()
            for side, (dx, dy) in STEPS.items():
                there = x + dx, y + dy
                here = lies[x, y]
                if there not in lies:
                    continue
                may, must = any(piece & side for piece in here), all(piece & side for piece in here)
                if may and not must:
                    continue
                other = OPPOSITE[side]
                left = tuple(piece for piece in lies[there] if bool(piece & other) == must)
                if not left:
                    return False
                if len(left) < len(lies[there]):
                    lies[there] = left
                    changed.append(there)
        return True

    def together(lies: dict[Cell, tuple[int, ...]]) -> bool:
        """Tell whether all pieces may still be connected."""
        pieces = [cell for cell in cells if board[cell[1]][cell[0]]]
        seen, stack = {pieces[0]}, [pieces[0]]
        while stack:
            x, y = stack.pop()
            for side, (dx, dy) in STEPS.items():
                there = x + dx, y + dy
                if there in lies and there not in seen and any(piece & side for piece in lies[x, y]):
                    seen.add(there)
                    stack.append(there)
        return len(seen) == len(pieces)

    def lay(lies: dict[Cell, tuple[int, ...]]) -> Iterator[Board]:
        nonlocal guesses
        open_cells = [cell for cell in cells if len(lies[cell]) > 1]
        if not open_cells:
            yield tuple(tuple(lies[x, y][0] for x in range(cols)) for y in range(rows))
            return
        cell = min(open_cells, key=lambda c: len(lies[c]))
        for piece in lies[cell]:
            guesses += 1
            if guesses > limit:
                raise SearchLimit(f"not all layouts seen in {limit} guesses", where="turning.connected_layouts")
            guess = {**lies, cell: (piece,)}
            if narrow(guess, [cell]) and together(guess):
                yield from lay(guess)

    start: dict[Cell, tuple[int, ...]] = {}
    for x, y in cells:
        outward = sum(side for side, (dx, dy) in STEPS.items() if not (0 <= x + dx < cols and 0 <= y + dy < rows))
        start[x, y] = tuple(piece for piece in ways_to_lie(board[y][x]) if not piece & outward)
    if all(start.values()) and narrow(start, list(cells)) and together(start):
        yield from lay(start)


_NAMES = {1: "end", 3: "bend", 5: "straight piece", 7: "fork", 15: "cross"}


def name_piece(piece: int) -> str:
    """Name the kind of a piece, whatever its orientation."""
    return _NAMES[min(ways_to_lie(piece))]


def describe_place(cell: Cell, cols: int, rows: int) -> str:
    """Say in words where on a board of `cols` x `rows` cells `cell` is."""
    column = ("left", "middle", "right")[3 * cell[0] // cols]
    row = ("upper", "middle", "lower")[3 * cell[1] // rows]
    if row == column:
        return "middle"
    return f"{row} {column}" if "middle" not in (row, column) else {"upper": "top", "lower": "bottom"}.get(row, column)
