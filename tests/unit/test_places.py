"""Which server of several a session is given to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flywheel.policy.client.remote import SessionAffinity

SESSIONS = st.lists(st.text("abcdefgh", min_size=1, max_size=3), min_size=1, max_size=60)
LOADS = st.dictionaries(st.integers(0, 4), st.integers(0, 9), min_size=1)


@given(servers=st.integers(1, 5), sessions=st.integers(1, 40), answered=st.booleans())
def test_sessions_lie_evenly(servers, sessions, answered):
    """All at once, or each answered before the next one comes."""
    places, under_way = SessionAffinity(), dict.fromkeys(range(servers), 0)
    given_to = dict.fromkeys(range(servers), 0)
    for number in range(sessions):
        chosen = places.find(str(number), under_way)
        given_to[chosen] += 1
        under_way[chosen] += not answered
    assert max(given_to.values()) - min(given_to.values()) <= 1


@given(sessions=SESSIONS, loads=st.lists(LOADS, min_size=60, max_size=60))
def test_a_session_moves_only_from_a_server_that_may_not_be_asked(sessions, loads):
    places, was = SessionAffinity(), {}
    for session, under_way in zip(sessions, loads, strict=False):
        chosen = places.find(session, under_way)
        assert chosen in under_way
        if was.get(session) in under_way:
            assert chosen == was[session]
        else:
            assert under_way[chosen] == min(under_way.values())
        was[session] = chosen


@given(sessions=st.sets(st.text("abcdefgh", min_size=1, max_size=3), min_size=1, max_size=40), out=st.integers(0, 3))
def test_a_server_that_goes_moves_its_own_sessions_alone_and_none_when_it_comes_back(sessions, out):
    places, everywhere = SessionAffinity(), dict.fromkeys(range(4), 0)
    before = {session: places.find(session, everywhere) for session in sorted(sessions)}
    left = {place: 0 for place in everywhere if place != out}
    without = {session: places.find(session, left) for session in sorted(sessions)}
    assert {one for one in sessions if without[one] != before[one]} == {one for one in sessions if before[one] == out}
    assert {session: places.find(session, everywhere) for session in sorted(sessions)} == without


@given(names=st.lists(st.sampled_from(["", "a", "b", "c", "d"]), max_size=30))
def test_what_is_remembered_is_bounded(names):
    places = SessionAffinity(kept=2)
    for name in names:
        places.find(name, {0: 0, 1: 0})
    assert len(places._of) <= 2
    assert "" not in places._of
