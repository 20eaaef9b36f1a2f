"""Which of several servers a session is asked at.

The first request of a session goes where the fewest are under way, and the further ones go there too: a server keeps
keys and values of what it has read, and each prompt of a trajectory begins like the one before it. By a hash of the
session's name the same would take no memory, but few sessions would then lie unevenly (16 on two servers: 10 and 6 in
every third draw), and a slow server would get as many as a fast one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

KEPT = 65_536  # sessions that are remembered; one that was forgotten may go elsewhere, where it is read anew


class Places(Generic[T]):
    """Remembers the sessions' servers. A session moves only where its server may not be asked, and then stays."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept, self._given = kept, 0
        self._of: OrderedDict[str, T] = OrderedDict()  # the one that asked last comes last
        self._last: dict[T, int] = {}  # when each was last given a session

    def find(self, session: str, under_way: Mapping[T, int]) -> T:
        """under_way: requests at each server that may be asked, one at least. Of equally busy ones, the one that was
        given none for longest. session "": of no session, so that nothing is remembered.
        """
        place = self._of.get(session)
        if place is None or place not in under_way:
            place = min(under_way, key=lambda one: (under_way[one], self._last.get(one, 0)))
            self._given += 1
            self._last[place] = self._given
        if session:
            self._of[session] = place
            self._of.move_to_end(session)
            if len(self._of) > self._kept:
                self._of.popitem(last=False)
        return place
