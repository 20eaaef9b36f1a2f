"""What a run says in a log: progress is thinned, what must be read is always there."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from flywheel.cli.command_names import name_command, name_commands
from flywheel.cli.console import RunConsole, _format_change
from flywheel.utils.progress import announce, replace_listener, report_progress, report_time_left


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


def test_the_time_that_is_left_is_shown():
    assert "about 4.2 min left, by what the stages took before" in log(lambda: report_time_left(250))


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        (0.2, 0.5, "0.20→[green]0.50[/]"),
        (0.5, 0.2, "0.50→[red]0.20[/]"),
        (0.0, 0.0, "0.00→[default]0.00[/]"),
        (None, 0.5, "-→0.50"),  # no progress, as nothing is known of before
        (0.2, None, "-"),
    ],
)
def test_held_out_success_has_the_colour_of_its_change(before, after, shown):
    assert _format_change({"before": before, "after": after}) == shown


@pytest.mark.parametrize(
    ("called", "typed"),
    [
        (".venv/bin/flywheel", "`.venv/bin/flywheel run` or `.venv/bin/dvc pull`, `git add`, flywheel"),
        ("/my own/flywheel", "`'/my own/flywheel' run` or `'/my own/dvc' pull`, `git add`, flywheel"),
        ("/usr/bin/pytest", "`flywheel run` or `dvc pull`, `git add`, flywheel"),  # no command of ours
    ],
)
def test_commands_in_messages_can_be_pasted(monkeypatch, called, typed):
    """Their path is told where they are not on PATH; what the environment does not install stays."""
    name_command.cache_clear()
    monkeypatch.setattr("sys.argv", [called])
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert name_commands("`flywheel run` or `dvc pull`, `git add`, flywheel") == typed
    assert typed.partition(" or ")[0] in log(lambda: announce("data", "type `flywheel run`"))
    name_command.cache_clear()
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    assert name_commands("`flywheel run` or `dvc pull`") == "`flywheel run` or `dvc pull`"
    name_command.cache_clear()
