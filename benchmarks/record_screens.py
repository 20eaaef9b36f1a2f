"""Whether each action's stored screen is the one that was shown just before it: a window shows its count of clicks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

from bench_case import BenchCase
from record_display import Window, machine, open_server, play, recorder

_TICK_S = 0.001  # of the server's clock
RATES = (10, 35, 70)  # clicks a second


def cases(options: Any) -> Iterator[BenchCase]:
    for rate in RATES:
        yield _screens(options, rate)


def _screens(options: Any, rate: int) -> BenchCase:
    folder = options.folder / f"screens-{rate}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    clicks = min(options.clicks, 100 * rate)
    # Not two clicks at one place: those would be a double click.
    plan = [(n / rate, "click", 1, 20 + 90 * (n % 4), 100 + 90 * (n // 4 % 3)) for n in range(clicks)]
    with open_server(folder) as name:
        window = Window(name)
        with recorder(folder / "made", name) as made:
            played = play(name, plan, folder)
        drawn = window.close()
    presses = [one for one in made.inputs() if one.kind == "press"]
    right = marked = wrong = 0
    for one, sent in zip(presses, played, strict=True):
        if one.late:
            marked += 1
        elif made.count_on(one.screen) in _shown(drawn, sent):
            right += 1
        else:
            wrong += 1
    extra = {"n": clicks, "marked": marked, "wrong": wrong, "cpu": made.cpu_s / made.wall_s, "peak_mb": made.peak_mb}
    extra |= machine()
    met = wrong == 0 and right == clicks
    return BenchCase("record", f"screens_{rate}", "fraction", right / clicks, None, "", None, 1.0, met, extra)


def _shown(drawn: list[tuple[float, float]], sent: tuple[float, float]) -> set[int]:
    """The counts that the screen may have had within the tick before a click: more than one where it was drawn just
    then."""
    surely = max(count for count, (_, after) in enumerate(drawn) if after <= sent[0] - _TICK_S)
    maybe = max(count for count, (before, _) in enumerate(drawn) if before <= sent[1])
    return set(range(surely, maybe + 1))
