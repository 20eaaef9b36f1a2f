"""The programs that make recordings: wrong input is one line, and nothing is made."""

from __future__ import annotations

import sys

import pytest

from flywheel.recordings.synthetic import demonstrations, sessions


@pytest.mark.parametrize("program", [demonstrations, sessions])
@pytest.mark.parametrize("text", [None, "rl: {steps: no}\n"])
def test_parameters_that_are_missing_or_wrong_are_one_line(tmp_path, monkeypatch, capsys, program, text):
    path = tmp_path / "params.yaml"
    if text:
        path.write_text(text)
    monkeypatch.setattr(sys, "argv", ["make", str(tmp_path / "made"), "--params", str(path)])
    with pytest.raises(SystemExit) as ended:
        program.main()
    told = capsys.readouterr().err
    assert (ended.value.code, told.count("\n"), str(path) in told) == (2, 1, True)
    assert not list((tmp_path / "made").iterdir())
