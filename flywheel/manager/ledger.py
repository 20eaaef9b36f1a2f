"""Who has what: nodes and sessions, in memory, and in a SQLite file from which a manager that was killed goes on.

What a crash may not lose (a lease, its end, a node) is written before it is answered. When a session was last heard of
is not: after a start all count as just heard of.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flywheel.errors import BadInput, DataError

_TABLES = """
CREATE TABLE IF NOT EXISTS nodes (id TEXT PRIMARY KEY, boot TEXT, address TEXT, places TEXT, draining INTEGER);
CREATE TABLE IF NOT EXISTS sessions (
    id TEXT PRIMARY KEY, user TEXT, node TEXT, kind TEXT, identity TEXT, since REAL, until REAL);
"""


class NoPlace(Exception):
    """No node has a free place of this kind, or the user has as many as may be."""


@dataclass
class Node:
    """places: sessions at once by kind, and the identity of the kind's settings. boot: another after each start."""

    id: str
    boot: str
    address: str
    places: dict[str, tuple[int, str]]
    heard: float
    draining: bool = False
    taken: Counter[str] = field(default_factory=Counter)


@dataclass
class Session:
    id: str
    user: str
    node: str
    kind: str
    identity: str
    since: float
    until: float
    heard: float


@dataclass(frozen=True)
class Terms:
    """lease_s: that a session may live. silent_s: without a word from who has it. node_silent_s: without a word from a
    node. per_user: sessions at once, 0: as many as there are."""

    lease_s: float = 3600.0
    silent_s: float = 60.0
    node_silent_s: float = 30.0
    per_user: int = 0


class Ledger:
    """clock: seconds since 1970. One thread at a time. Raises DataError where the file is not a manager's."""

    def __init__(self, path: Path, terms: Terms, clock: Callable[[], float] = time.time) -> None:
        self._terms, self._clock = terms, clock
        self.nodes: dict[str, Node] = {}
        self.sessions: dict[str, Session] = {}
        self.ended: Counter[str] = Counter()  # sessions by why they ended, since the start
        self._by_user: Counter[str] = Counter()
        try:
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(_TABLES)
            self._read()
        except sqlite3.Error as error:
            raise DataError(f"not a manager's file: {error}", where=path, fix="name another --state") from None

    def register(self, node: str, boot: str, address: str, places: Mapping[str, tuple[int, str]]) -> None:
        """A node that has started, or that a manager has not heard of. What it had before its start is gone."""
        known = self.nodes.get(node)
        if known is not None and known.boot != boot:
            self._end([one for one in self.sessions.values() if one.node == node], "the node began anew")
        taken = known.taken if known is not None else Counter()
        new = Node(node, boot, address, dict(places), self._clock(), bool(known and known.draining), taken)
        self.nodes[node] = new
        self._keep_node(new)

    def beat(self, node: str, boot: str, has: Iterable[str]) -> list[str]:
        """A node is there and has these sessions: those of them that are over. Raises KeyError for a node that has to
        register."""
        known = self.nodes[node]
        if known.boot != boot:
            raise KeyError(node)
        known.heard = self._clock()
        return [one for one in has if one not in self.sessions or self.sessions[one].node != node]

    def lease(self, user: str, kind: str, identity: str) -> tuple[Session, Node]:
        """A session on the node that has the most room. Raises NoPlace, and BadInput where waiting would not help: all
        nodes that have the kind play by other settings."""
        if self._terms.per_user and self._by_user[user] >= self._terms.per_user:
            raise NoPlace(f"{user} has {self._terms.per_user} sessions, which is as many as a user may have")
        having = [node for node in self.nodes.values() if kind in node.places]
        if not having:
            raise NoPlace(f"no node has environments of the kind {kind}: start one by `flywheel sandbox node`")
        alike = [node for node in having if node.places[kind][1] == identity]
        if not alike:
            raise BadInput(
                f"the nodes play {kind} by other settings than this run", where="sandbox",
                fix="give them the run's params.yaml: flywheel sandbox node --workspace",
            )  # fmt: skip
        free = [node for node in alike if not node.draining and node.taken[kind] < node.places[kind][0]]
        if not free:
            raise NoPlace(f"all places for {kind} are taken")
        node = min(free, key=lambda one: one.taken[kind] / one.places[kind][0])
        now = self._clock()
        session = Session(secrets.token_urlsafe(12), user, node.id, kind, identity, now, now + self._terms.lease_s, now)
        self._db.execute(
            "INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?)",
            (session.id, user, node.id, kind, identity, session.since, session.until),
        )
        self._add(session)
        return session, node

    def release(self, session: str) -> bool:
        """Whether it was there."""
        found = self.sessions.get(session)
        if found is not None:
            self._end([found], "released")
        return found is not None

    def heard(self, sessions: Iterable[str]) -> list[str]:
        """Who has them is there. Those that are over."""
        over, now = [], self._clock()
        for one in sessions:
            if (found := self.sessions.get(one)) is not None:
                found.heard = now
            else:
                over.append(one)
        return over

    def reclaim(self) -> dict[str, str]:
        """End what is overdue, or nobody is heard of any more: why, by session."""
        now, found = self._clock(), {}
        for node in [one for one in self.nodes.values() if now - one.heard > self._terms.node_silent_s]:
            found |= self._end([one for one in self.sessions.values() if one.node == node.id], "the node is silent")
            del self.nodes[node.id]
            self._db.execute("DELETE FROM nodes WHERE id = ?", (node.id,))
        late = [one for one in self.sessions.values() if now > one.until]
        silent = [one for one in self.sessions.values() if now <= one.until and now - one.heard > self._terms.silent_s]
        return found | self._end(late, "overdue") | self._end(silent, "nobody is heard of")

    def drain(self, node: str, draining: bool = True) -> None:
        """Lease nothing there any more; what is there goes on. Raises KeyError where there is none."""
        self.nodes[node].draining = draining
        self._keep_node(self.nodes[node])

    def close(self) -> None:
        self._db.close()

    # -- inside -------------------------------------------------------------------------------------------------------
    def _read(self) -> None:
        now = self._clock()
        for node, boot, address, places, draining in self._db.execute("SELECT * FROM nodes"):
            self.nodes[node] = Node(node, boot, address, _places(places), now, bool(draining))
        for row in self._db.execute("SELECT * FROM sessions"):
            self._add(Session(*row, heard=now))

    def _add(self, session: Session) -> None:
        self.sessions[session.id] = session
        self._by_user[session.user] += 1
        if session.node in self.nodes:
            self.nodes[session.node].taken[session.kind] += 1

    def _end(self, sessions: Iterable[Session], why: str) -> dict[str, str]:
        found = {}
        for one in sessions:
            self._db.execute("DELETE FROM sessions WHERE id = ?", (one.id,))
            del self.sessions[one.id]
            self._by_user[one.user] -= 1
            if one.node in self.nodes:
                self.nodes[one.node].taken[one.kind] -= 1
            self.ended[why] += 1
            found[one.id] = why
        return found

    def _keep_node(self, node: Node) -> None:
        places = ";".join(f"{kind}={count}={identity}" for kind, (count, identity) in node.places.items())
        row = (node.id, node.boot, node.address, places, node.draining)
        self._db.execute("INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?, ?)", row)


def _places(text: str) -> dict[str, Any]:
    parts = (one.split("=") for one in text.split(";") if one)
    return {kind: (int(count), identity) for kind, count, identity in parts}
