"""Benchmarks in parts: each is a file `<benchmark>_<part>.py` with a function `cases(options)`, which gives its figures
one by one."""

from __future__ import annotations

import importlib
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from bench_case import emit_case, exit_code

from flywheel.utils.errors import BadInput


class Parts:
    """The parts of one benchmark. shared: files of its name that are none, but what parts share.

    `parser` takes the options that all parts have; `--only` and `--folder` are there.
    """

    def __init__(self, benchmark: str, description: str | None, shared: Sequence[str]) -> None:
        self._benchmark, self._here = benchmark, Path(__file__).parent
        found = sorted(path.stem.removeprefix(f"{benchmark}_") for path in self._here.glob(f"{benchmark}_*.py"))
        self.names = [part for part in found if part not in shared]
        self.parser = ArgumentParser(prog=f"flywheel bench {benchmark}", description=description)
        self.parser.add_argument("--only", help=f"parts, with commas between: {', '.join(self.names)}")
        folder = Path(f".flywheel/bench-{benchmark}")
        self.parser.add_argument("--folder", type=Path, default=folder, help="where workspaces are made")

    def main(self, argv: Sequence[str] | None) -> int:
        """Raises BadInput for a part that is not there."""
        options = self.parser.parse_args(argv)
        chosen = options.only.split(",") if options.only else self.names
        if unknown := sorted(set(chosen) - set(self.names)):
            raise BadInput(
                f"no part {', '.join(unknown)}",
                where=f"flywheel bench {self._benchmark}",
                fix=f"of: {', '.join(self.names)}",
            )
        options.folder.mkdir(parents=True, exist_ok=True)
        sys.path.insert(0, str(self._here))  # parts are imported when they are chosen
        found = []
        for part in chosen:
            found += map(emit_case, importlib.import_module(f"{self._benchmark}_{part}").cases(options))
        return exit_code(found)
