"""Eight hours of a recording, by a clock that is ahead of ours: files grow evenly, and memory does not."""

from __future__ import annotations

import sys
import tracemalloc
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import soundfile  # noqa: F401 (its own memory is none of a recording's)
from night import by_day

from flywheel.recordings.recorder.gestures import RawInput
from flywheel.recordings.recorder.recorder import RecordingOptions, RecordingWriter, finish_recording
from flywheel.recordings.session import load_session

SCREENS_BYTES = 40_000_000
HOURS_S = 8 * 3600.0
INTERNED = 1_000_000  # more than the table of interned strings takes between two sizes, in a process of all tests
OPTIONS = RecordingOptions("Sort the mails.", "ada", speech=False)


class Day(RecordingWriter):
    """A recorder whose inputs are given to it. Each tenth one is a click, on a screen of its own; the others type."""

    def work(self, count: int, after: int, until: int) -> None:
        for number in range(after, until):
            at_s = self._began + HOURS_S * number / count
            click = number % 20 < 2
            kind = ("press", "release") if click else ("key_down", "key_up")
            key = {"x": 5, "y": 5, "button": 1} if click else {"x": 5, "y": 5, "key": "a", "text": "a"}
            one = RawInput(at_s, kind[number % 2], **key)
            if self._begins_action(one):
                png = (b"%d " % number + bytes(SCREENS_BYTES // (count // 10))).strip
                frame = SimpleNamespace(number=None, time_s=at_s, width=20, height=10, url="", png=png)
                one = replace(one, screen=self._bind(frame))
            self._keep(one)
        self._inputs.flush()


def settle_interned_strings() -> None:
    """Let the interpreter's table of interned strings, which holds the names in paths, be made anew.

    It is made anew after so many names, of the same size while as many are alive, and one that was made before memory
    was traced would count as growth of its whole size: 1.9 MB or 3.8 MB, at once, whatever is recorded.
    """
    for number in range(INTERNED):
        sys.intern(f"name {number}")


@pytest.mark.parametrize("count", by_day([20_000, 400_000]))
def test_eight_hours_are_recorded_and_kept(tmp_path, count):
    day = Day(tmp_path / "day", OPTIONS)
    day._open_folder(20, 10, {})
    memory, sizes, quarter = [], [0], count // 4
    tracemalloc.start()
    settle_interned_strings()
    for part in range(4):
        day.work(count, part * quarter, (part + 1) * quarter)
        memory.append(tracemalloc.get_traced_memory()[0])
        sizes.append((tmp_path / "day" / "input.jsonl").stat().st_size)
    day.stopped.set()
    day._close_folder([], 0)
    assert memory[3] - memory[0] < 2**20  # 70 bytes an input would be more
    grown = [after - before for before, after in pairwise(sizes)]
    assert max(grown) < 1.1 * min(grown)
    assert day.stats.inputs == count
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    meta = finish_recording(tmp_path / "day", tmp_path / "session", done=True)
    # Of its inputs and events, and of a few screens; all of these are more.
    assert tracemalloc.get_traced_memory()[1] - before < 3000 * count + SCREENS_BYTES / 2
    tracemalloc.stop()
    assert meta.seconds == pytest.approx(HOURS_S, rel=0.02)
    session = load_session(tmp_path / "session")
    assert len(session.screens) == day.stats.screens
    clicks = [event for event in session.events if event.kind == "click"]
    assert len(clicks) == count // 20
    assert [session.screens[one.screen].bytes.split()[0] for one in clicks[:2]] == [b"0", b"20"]
