"""What a run says in a log: progress is thinned, what must be read is always there."""

from __future__ import annotations

import io

from rich.console import Console

from flywheel.cli.console import RunConsole
from flywheel.utils.progress import announce, replace_listener, report_progress


def log(act) -> str:
    text = io.StringIO()
    with RunConsole(Console(file=text, width=200)) as screen, replace_listener(screen):
        act()
    return text.getvalue()


def test_a_line_that_matters_is_printed_right_after_its_stage_begins():
    def act() -> None:
        report_progress("promote", "begins")
        announce("promote", "waits for a reviewer: type `flywheel review promotion` [now]")

    assert "waits for a reviewer: type `flywheel review promotion` [now]" in log(act)


def test_progress_is_thinned_but_its_first_line_and_what_is_done_are_there():
    def act() -> None:
        report_progress("rollout", "begins")
        for number in range(50):
            report_progress("rollout", f"shard: {number} of 50")
        report_progress("rollout", "shard done")
        report_progress("rollout", "ended: steps 3")

    said = log(act)
    assert "shard: 0 of 50" in said
    assert said.count(" of 50") < 10
    assert "shard done" in said
    assert "steps 3" in said
