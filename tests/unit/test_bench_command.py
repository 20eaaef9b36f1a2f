"""`flywheel bench`: what is missing for it is told in one line."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from flywheel.cli import bench, main


@pytest.mark.parametrize(
    "script",
    ["import no_such_package.part\n\ndef main(argv): pass\n", "def main(argv):\n    import no_such_package\n"],
    ids=["at once", "later"],
)
def test_a_package_for_development_that_is_missing_is_one_line(tmp_path, monkeypatch, script):
    (tmp_path / "mine.py").write_text(script)
    monkeypatch.setattr(bench, "BENCHMARKS_FOLDER", tmp_path)
    answer = CliRunner().invoke(main, ["bench", "mine"])
    assert answer.exit_code == 2
    assert answer.output.splitlines() == [
        "flywheel: it needs the package no_such_package, which is not installed (flywheel bench mine); "
        "type `make setup-test` in the source folder"
    ]
