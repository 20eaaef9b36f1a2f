"""The two rules that bound staleness: how many episodes may begin, and which of the finished ones are trained on.

The first is AReaL's (2025, section 5.1): it bounds how much can be under way. Alone it bounds staleness only where
episodes are used in the order in which they began; one that takes long is overtaken without end. The second rule
closes that gap, so that an episode that began with version s is trained on at version s + max_staleness at the latest,
and no batch is larger than another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def capacity(*, max_concurrent: int, running: int, max_staleness: int, version: int, batch: int, accepted: int) -> int:
    """Episodes that may begin now: min(max_concurrent - running, (max_staleness + version + 1) batch - (accepted +
    running)), and 0 where that is negative.

    version: training steps done. accepted: episodes that finished since the run began, those trained on included. One
    that failed is in neither number, so its place is free again.
    """
    return max(0, min(max_concurrent - running, (max_staleness + version + 1) * batch - (accepted + running)))


def choose(
    finished: Mapping[int, int], unfinished: Iterable[int], *, version: int, count: int, max_staleness: int
) -> list[int] | None:
    """The `count` finished ones to train on now, or None where training must wait.

    finished: number -> the version that it began with. unfinished: the versions that the others began with. The oldest
    are taken, and only if those that are left can still be trained on in time, `count` at each later version: of all
    that are left, those due at version d or sooner may be (d - version) count at most. By the rule of `capacity` this
    holds before anything has begun; where it holds at a version it can be kept at the next, by waiting for the oldest.
    """
    oldest = sorted(finished, key=lambda number: (finished[number], number))
    taken, left = oldest[:count], [finished[number] for number in oldest[count:]]
    if len(taken) < count:
        return None
    due = sorted(start + max_staleness for start in (*left, *unfinished))
    in_time = all(place < (last - version) * count for place, last in enumerate(due))
    return taken if in_time else None
