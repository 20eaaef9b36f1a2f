"""Words of the command line: few in the first help, those of earlier versions refused with the one of today."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from night import by_day

from flywheel.cli import RENAMED_COMMANDS, RENAMED_OPTIONS, main
from flywheel.cli.bench import BENCHMARKS_FOLDER


def refusal(*words: str) -> str:
    """The one line with which the command refuses its words."""
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2, result.output
    (line,) = result.output.splitlines()
    assert line.startswith("flywheel: ")
    return line


def options_of(command: str) -> set[str]:
    found, words = main, command.split()
    for word in words:
        found = found.get_command(None, word)
    return {name for one in found.params for name in (*one.opts, *one.secondary_opts)}


def test_the_first_help_has_few_entries_with_one_line_each():
    shown = CliRunner().invoke(main, ["--help"], terminal_width=80).output
    assert len(main.table) <= 21
    for name in main.table:
        (line,) = [line for line in shown.splitlines() if line.startswith(f"  {name} ")]
        assert len(line.split()) > 3
    lines = shown[shown.index("Commands:") :].splitlines()
    assert len([line for line in lines if line.startswith("  ")]) == len(main.table)


@pytest.mark.parametrize("old", RENAMED_COMMANDS)
def test_a_command_of_an_earlier_version_is_refused_with_the_one_of_today(old):
    new = RENAMED_COMMANDS[old]
    assert f"`flywheel {old}` is `flywheel {new}` now" in refusal(*old.split())
    assert f"`flywheel {old}` is `flywheel {new}` now" in refusal(*old.split(), "--write")
    assert tuple(new.split()) in [*main.iterate_commands()]
    assert tuple(old.split()) not in [*main.iterate_commands()]


@pytest.mark.parametrize(
    ("command", "old"), by_day([(command, old) for command, known in RENAMED_OPTIONS.items() for old in known], 17)
)
def test_an_option_of_an_earlier_version_is_refused_with_the_one_of_today(command, old):
    new = RENAMED_OPTIONS[command][old]
    for typed in ((old, "1"), (f"{old}=1",)) if old.startswith("--") else ((old, "1"),):
        assert f"{old} is `{new}` now" in refusal(*command.split(), *typed)
    if not command.startswith("bench "):
        words = new.split()[1:] if new.startswith("flywheel ") else [*command.split(), new]
        assert words[-1] in options_of(" ".join(words[:-1]))


def test_a_benchmark_has_the_options_of_today():
    for command, known in RENAMED_OPTIONS.items():
        bench, _, name = command.partition(" ")
        if bench == "bench":
            source = (BENCHMARKS_FOLDER / f"{name}.py").read_text()
            assert [new for old, new in known.items() if f'"{new}"' not in source or f'"{old}"' in source] == [], name


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("rnu", "run"),
        ("stauts", "status"),
        ("iteration rolback", "iteration rollback"),
        ("gc", "workspace gc"),
        ("drop", "iteration drop"),
        ("env server nod", "env server node"),
        ("data verify", "workspace verify"),
    ],
)
def test_an_unknown_command_gets_the_one_that_was_probably_meant(words, meant):
    assert f"did you mean `flywheel {meant}`?" in refusal(*words.split())


def test_a_word_that_is_like_none_gets_no_guess():
    line = refusal("xyzzy")
    assert "No such command 'xyzzy'" in line
    assert "did you mean" not in line
