"""The store at sizes far beyond a laptop's day: what writing, routing, reading, asking and damage cost, and what holds.

    flywheel bench store --only write_route,train_read --trajectories 20000

Each part is a file `store_<part>.py` with a function `cases(options)`, which gives its figures one by one. Workspaces
of made-up trajectories (`store_synthetic.py`) lie in `--folder` and are used again.
"""

from __future__ import annotations

import importlib
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from flywheel.bench import emit, exit_code
from flywheel.errors import BadInput

SHARED = {"synthetic"}  # no part, but what parts share


def main(argv: Sequence[str] | None = None) -> int:
    here = Path(__file__).parent
    sys.path.insert(0, str(here))  # parts are imported when they are chosen
    parts = sorted(path.stem.removeprefix("store_") for path in here.glob("store_*.py"))
    parts = [part for part in parts if part not in SHARED]
    parser = ArgumentParser(prog="flywheel bench store", description=__doc__)
    parser.add_argument("--only", help=f"parts, with commas between: {', '.join(parts)}")
    parser.add_argument("--trajectories", type=int, default=20_000, help="of the large store, of 15 steps each")
    parser.add_argument("--folder", type=Path, default=Path(".flywheel/bench-store"), help="where workspaces are made")
    parser.add_argument("--seed", type=int, default=2026)
    options = parser.parse_args(argv)
    chosen = options.only.split(",") if options.only else parts
    if unknown := sorted(set(chosen) - set(parts)):
        raise BadInput(f"no part {', '.join(unknown)}", where="flywheel bench store", fix=f"of: {', '.join(parts)}")
    options.folder.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(here))
    found = []
    for part in chosen:
        found += map(emit, importlib.import_module(f"store_{part}").cases(options))
    return exit_code(found)
