"""The X server's time becomes the recorder's, and a screen says whether it was the one that an action saw."""

from __future__ import annotations

import pytest

from flywheel.recordings.recorder.x11_capture import Frame, ServerClock

WRAP_MS = 1 << 32


class Clocks:
    """A server's clock and ours, which a test moves; the answer to a question takes 2 ms each way."""

    def __init__(self, monkeypatch, server_ms: float = 5_000.0) -> None:
        self.now, self.server_ms = 100.0, server_ms
        monkeypatch.setattr("flywheel.recordings.recorder.x11_capture.time.monotonic", lambda: self.now)

    def look(self):
        for _ in range(3):
            self.pass_s(0.002)
            said = int(self.server_ms) % WRAP_MS
            self.pass_s(0.002)
            yield said, self.now

    def pass_s(self, seconds: float, server: float | None = None) -> None:
        self.now += seconds
        self.server_ms += (seconds if server is None else server) * 1000


@pytest.fixture
def clocks(monkeypatch):
    return Clocks(monkeypatch)


def happens(clocks: Clocks, clock: ServerClock, late_s: float = 0.001) -> tuple[float, float]:
    """Something happens, and is heard of later: when by the clock, and when in truth."""
    at, server_ms = clocks.now, int(clocks.server_ms) % WRAP_MS
    clocks.pass_s(late_s)
    return clock.seconds(server_ms, clocks.now), at


def test_an_event_has_the_time_of_its_happening_however_late_it_is_heard_of(clocks):
    clock = ServerClock(clocks.look)
    for late_s in (0.001, 0.02, 0.0, 0.4, 3.0, 0.001):
        clocks.pass_s(0.5)
        said, true = happens(clocks, clock, late_s)
        assert said == pytest.approx(true, abs=0.004)


@pytest.mark.parametrize("jump_s", [-3600.0, -2.0, 2.0, 3600.0])
def test_a_clock_that_jumps_is_read_anew(clocks, jump_s):
    clock = ServerClock(clocks.look)
    happens(clocks, clock)
    clocks.pass_s(0.0, server=jump_s)  # as by a sleep that one of the clocks counts
    clocks.pass_s(0.1)
    said, true = happens(clocks, clock)
    assert said == pytest.approx(true, abs=0.004)


def test_clocks_that_drift_apart_stay_together_for_eight_hours(clocks):
    clock, worst = ServerClock(clocks.look), 0.0
    for _ in range(8 * 60 * 2):
        clocks.pass_s(30.0, server=30.0 * (1 - 50e-6))
        said, true = happens(clocks, clock)
        worst = max(worst, abs(said - true))
    assert worst < 0.01  # by then they are 1.4 s apart


def test_the_servers_clock_begins_anew_after_49_days(monkeypatch):
    clocks = Clocks(monkeypatch, WRAP_MS - 500.0)
    clock = ServerClock(clocks.look)
    for _ in range(5):
        clocks.pass_s(0.3)
        said, true = happens(clocks, clock)
        assert said == pytest.approx(true, abs=0.004)


def test_a_frame_is_late_by_as_long_as_something_else_was_shown():
    frame = Frame(1, 1, b"1234")
    frame.spans += [[10.0, 10.5], [11.0, float("inf")]]
    assert [round(frame.late(at), 3) for at in (10.2, 10.5, 10.7, 11.0, 11.1, 99.0)] == [0, 0, 0.2, 0.5, 0, 0]
    assert frame.late(9.8) < 0  # it was read after that
    assert frame.late(10.0) < 0
