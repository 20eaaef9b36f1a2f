"""What the accessibility bus told of the focus decides what may be kept of the keys, however late it was told."""

from __future__ import annotations

import threading
from collections import deque

import pytest

from flywheel.recordings.recorder.accessibility import ElementWatch

TEXT, SECRET, NOWHERE = False, True, None


def told(*changes: tuple[float, float, bool | None], heard_s: float = 100.0, keep_text: bool = False) -> ElementWatch:
    """A watch that heard of these changes: after when, before when, what, and by which process (7 where not said)."""
    watch = ElementWatch(keep_text)
    watch._told = deque((*change, 7) if len(change) == 3 else change for change in changes)
    watch._heard_s, watch._news = heard_s, threading.Condition()
    return watch


def test_a_field_that_nothing_is_told_of_counts_as_a_password_field():
    assert told().in_password_field(0.0, 5.0, 5.4, 7) == (True, [])
    assert told(keep_text=True).in_password_field(0.0, 5.0, 5.4, 7) == (False, [])


@pytest.mark.parametrize(
    ("start_s", "already", "came"),
    [
        (1.5, False, []),
        (2.05, True, []),  # it came between 2.0 and 2.1: it may have been there
        (1.8, False, [(2.0, 2.1)]),
        (2.9, True, []),
        (3.15, False, []),  # after the second field lost it, the third has it
    ],
)
def test_the_focus_is_known_from_when_it_was_told(start_s, already, came):
    watch = told((1.0, 1.0, TEXT), (2.0, 2.1, SECRET), (3.0, 3.1, NOWHERE), (3.1, 3.2, TEXT))
    if start_s == 3.15:
        watch = told((1.0, 1.0, TEXT), (2.0, 2.1, SECRET), (3.0, 3.1, NOWHERE), (3.1, 3.11, TEXT))
    assert watch.in_password_field(0.5, start_s, start_s + 0.4, 7) == (already, came)


def test_what_was_told_of_another_window_says_nothing_of_this_one():
    watch = told((1.0, 1.0, TEXT))
    assert watch.in_password_field(0.5, 2.0, 2.4, 7) == (False, [])
    assert watch.in_password_field(1.5, 2.0, 2.4, 7) == (True, [])
    again = told((1.0, 1.0, TEXT), (1.6, 1.7, TEXT))
    assert again.in_password_field(1.5, 2.0, 2.4, 7) == (False, [])


@pytest.mark.parametrize("process", [8, 0])
def test_what_another_program_tells_late_says_nothing_of_this_window(process):
    watch = told((1.6, 1.7, TEXT, process))  # of the program that had the focus before
    assert watch.in_password_field(1.5, 2.0, 2.4, 7) == (True, [])
    assert told((1.6, 1.7, TEXT)).in_password_field(1.5, 2.0, 2.4, 0) == (True, [])  # a window of no known process
    both = told((1.6, 1.7, TEXT), (1.8, 1.9, SECRET, process))
    assert both.in_password_field(1.5, 2.0, 2.4, 7) == (True, [])


def test_a_field_that_loses_the_focus_to_nobody_hides_what_follows():
    watch = told((1.0, 1.0, TEXT), (2.0, 2.0, NOWHERE))
    assert watch.in_password_field(0.5, 2.5, 2.9, 7) == (True, [])
    assert watch.in_password_field(0.5, 1.9, 2.3, 7) == (False, [(2.0, 2.0)])


def test_a_bus_that_is_behind_hides_what_it_has_not_told_of(monkeypatch):
    monkeypatch.setattr("flywheel.recordings.recorder.accessibility._BEHIND_S", 0.0)
    assert told((1.0, 1.0, TEXT), heard_s=2.0).in_password_field(0.5, 1.9, 2.3, 7) == (True, [])
