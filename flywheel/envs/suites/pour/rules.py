"""Mirror the rules of the game pour and sort (`pour.js`) in Python; search for pours that sort the tubes."""

from __future__ import annotations

from collections.abc import Iterator

from flywheel.envs.suites.search import Way, best_first

Tube = tuple[str, ...]  # kinds of its symbols, the bottom one first
Tubes = tuple[Tube, ...]
Pour = tuple[int, int]  # from which tube to which


def run(tube: Tube) -> int:
    """Count the symbols of one kind on top of a tube."""
    count = 0
    while count < len(tube) and tube[-1 - count] == tube[-1]:
        count += 1
    return count


def finished(tube: Tube, size: int) -> bool:
    return run(tube) == size


def poured(source: Tube, target: Tube, size: int) -> int:
    """Count the symbols that a pour moves: as many of the top run as there is room for; 0 where it is not allowed.

    size: symbols that a tube holds.
    """
    if not source or finished(source, size) or (target and target[-1] != source[-1]):
        return 0
    return min(run(source), size - len(target))


def sorted_out(tubes: Tubes, size: int) -> bool:
    return all(not tube or finished(tube, size) for tube in tubes)


def pour(tubes: Tubes, move: Pour, size: int) -> Tubes:
    """Return the tubes after an allowed pour. move: (source, target). size: symbols that a tube holds."""
    source, target = tubes[move[0]], tubes[move[1]]
    count = poured(source, target, size)
    after = list(tubes)
    after[move[0]], after[move[1]] = source[:-count], target + source[-count:]
    return tuple(after)


def solve(tubes: Tubes, size: int, limit: int = 20_000, weight: float = 1.5) -> Way | None:
    """Find pours that sort the tubes, (pour, tubes after it) each; None where there are none.

    The order of the tubes does not matter, so the search sorts them, and names a tube by its content. limit: states
    expanded at most. weight: of A*; 1 finds the fewest pours. Raises SearchLimit beyond the limit.
    """
    kinds = len({kind for tube in tubes for kind in tube})

    def moves(state: Tubes) -> Iterator[tuple[tuple[Tube, Tube], Tubes]]:
        for i, source in enumerate(state):
            for j, target in enumerate(state):
                if i == j or state.index(source) != i or state.index(target) not in (j, i):
                    continue  # of equal tubes only the first is tried
                if not poured(source, target, size) or (not target and run(source) == len(source)):
                    continue  # nothing would be gained
                yield (source, target), tuple(sorted(pour(state, (i, j), size)))

    def left(state: Tubes) -> int:
        """Return a lower bound of the pours left: each removes at most one run, and at the end each kind is one run."""
        runs = sum(1 for tube in state for k, kind in enumerate(tube) if k == 0 or kind != tube[k - 1])
        return runs - kinds

    found = best_first(
        tuple(sorted(tubes)), moves, lambda state: sorted_out(state, size), left, limit=limit, weight=weight
    )
    if found is None:
        return None
    way: Way = []
    for (source, target), _ in found:
        i = tubes.index(source)
        move = i, next(j for j, tube in enumerate(tubes) if tube == target and j != i)
        tubes = pour(tubes, move, size)
        way.append((move, tubes))
    return way
