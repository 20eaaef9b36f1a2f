"""Who has what: no place is given twice, none is lost, and a manager that starts anew knows what the last one knew."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Container
from dataclasses import asdict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from night import examples

from flywheel.envs.remote import manager
from flywheel.envs.remote.manager import LeaseLedger, LeasePolicy, NoCapacity
from flywheel.utils.errors import BadInput, DataError

TERMS = LeasePolicy(lease_s=100, silent_s=10, node_silent_s=20, per_user=5)
PLACES = {"page": (3, "x"), "desk": (1, "y")}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path, clock):
    made = LeaseLedger(tmp_path / "state.db", TERMS, clock)
    made.register("a", "1", "http://a", PLACES)
    yield made
    made.close()


def lease(ledger: LeaseLedger, user: str = "ann", kind: str = "page"):
    return ledger.lease(user, kind, PLACES[kind][1])[0].id


def test_the_node_with_the_most_room_is_taken(ledger):
    ledger.register("b", "1", "http://b", {"page": (6, "x")})
    taken = [ledger.lease("ann", "page", "x")[1].id for _ in range(3)]
    taken += [ledger.lease("ben", "page", "x")[1].id for _ in range(5)]
    assert (taken.count("a"), taken.count("b")) == (3, 5)
    ledger.lease("ann", "page", "x")
    with pytest.raises(NoCapacity, match="all places for page are taken"):
        ledger.lease("cleo", "page", "x")


async def test_sessions_are_ended_again_once_the_file_can_be_written(ledger, clock, monkeypatch):
    lease(ledger)
    clock.now += 1000
    own, failed, done = ledger.reclaim, [], asyncio.Event()

    def reclaim():
        if not failed:
            failed.append(True)
            raise sqlite3.OperationalError("database or disk is full")
        done.set()
        return own()

    monkeypatch.setattr(manager, "_RECLAIM_S", 0.01)
    monkeypatch.setattr(ledger, "reclaim", reclaim)
    application = manager.manager_application(ledger, "a token")
    application.freeze()
    await application.startup()
    async with asyncio.timeout(30):
        await done.wait()
    await application.cleanup()
    assert failed
    assert not ledger.sessions


def test_what_waiting_would_not_help_is_told(ledger):
    with pytest.raises(NoCapacity, match="no node has environments of the kind phone"):
        ledger.lease("ann", "phone", "x")
    with pytest.raises(BadInput, match="by other settings"):
        ledger.lease("ann", "page", "another")


def test_a_user_has_a_limit(ledger):
    ledger.register("b", "1", "http://b", {"page": (9, "x")})
    first, *_ = [lease(ledger) for _ in range(5)]
    with pytest.raises(NoCapacity, match="ann has 5 sessions"):
        lease(ledger)
    lease(ledger, "ben")
    ledger.release(first)
    lease(ledger)


def test_silence_and_age_end_a_session(ledger, clock):
    silent, heard = lease(ledger), lease(ledger)
    clock.now += 9
    assert ledger.record_user_heartbeat([heard, "never"]) == ["never"]
    ledger.beat("a", "1", [])
    clock.now += 2
    assert ledger.reclaim() == {silent: "nobody is heard of"}
    for _ in range(10):
        clock.now += 9
        ledger.record_user_heartbeat([heard])
        ledger.beat("a", "1", [])
    assert ledger.reclaim() == {heard: "overdue"}
    assert ledger.beat("a", "1", [silent, heard]) == [silent, heard]  # the node is told


def test_a_silent_node_goes_with_its_sessions_and_one_that_began_anew_has_none(ledger, clock):
    first = lease(ledger)
    ledger.register("a", "2", "http://a", PLACES)
    assert first not in ledger.sessions
    second = lease(ledger)
    with pytest.raises(KeyError):
        ledger.beat("a", "1", [second])
    clock.now += 21
    assert ledger.reclaim() == {second: "the node is silent"}
    assert ledger.nodes == {}
    with pytest.raises(KeyError):
        ledger.beat("a", "2", [])  # it has to register


def test_a_draining_node_is_leased_no_more(ledger):
    first = lease(ledger)
    ledger.drain("a")
    with pytest.raises(NoCapacity):
        lease(ledger)
    assert first in ledger.sessions
    ledger.register("a", "2", "http://a", PLACES)  # a start does not undo it
    with pytest.raises(NoCapacity):
        lease(ledger)
    ledger.drain("a", draining=False)
    lease(ledger)


def test_a_database_with_tables_of_the_same_names_is_refused(tmp_path):
    with sqlite3.connect(tmp_path / "theirs.db") as theirs:
        theirs.execute("CREATE TABLE nodes (id, parent)")
        theirs.execute("INSERT INTO nodes VALUES (1, 2)")
    with pytest.raises(DataError, match="not a manager's file"):
        LeaseLedger(tmp_path / "theirs.db", TERMS)


def test_a_file_that_is_none_of_ours_is_refused(tmp_path):
    (tmp_path / "state.db").write_text("no database at all, and long enough to be taken for one" * 100)
    with pytest.raises(DataError, match="not a manager's file"):
        LeaseLedger(tmp_path / "state.db", TERMS)


class Life(RuleBasedStateMachine):
    """Any order of leases, ends, silences and starts."""

    def __init__(self) -> None:
        super().__init__()
        import tempfile
        from pathlib import Path

        self.folder = tempfile.TemporaryDirectory()
        self.path, self.clock, self.boot = Path(self.folder.name) / "state.db", Clock(), 0
        self.clock = Clock()
        self.ledger = LeaseLedger(self.path, TERMS, self.clock)
        self.live: list[str] = []  # in the order of their leases: their names are drawn anew in each try

    def teardown(self) -> None:
        self.ledger.close()
        self.folder.cleanup()

    @rule(node=st.sampled_from("ab"), anew=st.booleans())
    def register(self, node, anew):
        self.boot += anew
        known = self.ledger.nodes.get(node)
        boot = known.boot if known and not anew else str(self.boot)
        if known and boot != known.boot:
            self._end({one.id for one in self.ledger.sessions.values() if one.node == node})
        self.ledger.register(node, boot, f"http://{node}", PLACES)

    @rule(user=st.sampled_from(["ann", "ben"]), kind=st.sampled_from(["page", "desk"]))
    def lease(self, user, kind):
        with contextlib.suppress(NoCapacity):
            self.live.append(self.ledger.lease(user, kind, PLACES[kind][1])[0].id)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release(self, data):
        one = self.live[data.draw(st.integers(0, len(self.live) - 1))]
        assert self.ledger.release(one)
        assert not self.ledger.release(one)
        self.live.remove(one)

    @rule(seconds=st.integers(1, 15), heard=st.booleans())
    def wait(self, seconds, heard):
        self.clock.now += seconds
        if heard:
            self.ledger.record_user_heartbeat(self.live)
        for node in self.ledger.nodes.values():
            self.ledger.beat(node.id, node.boot, [])
        self._end(self.ledger.reclaim())

    def _end(self, ended: Container[str]) -> None:
        self.live = [one for one in self.live if one not in ended]

    @rule()
    def start_anew(self):
        nodes, sessions = self.ledger.nodes, self.ledger.sessions
        self.ledger.close()
        self.ledger = LeaseLedger(self.path, TERMS, self.clock)
        assert {one: (node.address, node.places, node.draining) for one, node in self.ledger.nodes.items()} == {
            one: (node.address, node.places, node.draining) for one, node in nodes.items()
        }
        now = self.clock.now
        assert {one: {**asdict(found), "heard": now} for one, found in sessions.items()} == {
            one: asdict(found) for one, found in self.ledger.sessions.items()
        }

    @invariant()
    def what_is_taken_is_what_is_there(self):
        assert set(self.ledger.sessions) == set(self.live)
        for node in self.ledger.nodes.values():
            for kind, (places, _) in node.places.items():
                here = sum(one.node == node.id and one.kind == kind for one in self.ledger.sessions.values())
                assert node.taken[kind] == here <= places
        for user in ("ann", "ben"):
            assert sum(one.user == user for one in self.ledger.sessions.values()) <= TERMS.per_user


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
