"""Tasks that write themselves: questions, general tasks, games and attacked verifiers, each by its own figures.

Each case is a script beside this one, `synthesis_CASE.py`, whose `run` returns a line of figures with `met`.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Sequence
from pathlib import Path

_FOUND = {path.stem.removeprefix("synthesis_"): importlib.import_module(path.stem)
          for path in sorted(Path(__file__).parent.glob("synthesis_*.py"))}  # fmt: skip
CASES = {name: module for name, module in _FOUND.items() if hasattr(module, "run")}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases and print a JSON line for each; return 1 where one is not met."""
    parser = argparse.ArgumentParser(prog="flywheel bench synthesis", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), help="cases; all where left out")
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="few of each: that it works")
    for name, module in CASES.items():
        if hasattr(module, "add_options"):
            module.add_options(parser.add_argument_group(name))
    args = parser.parse_args(argv)
    met = True
    for name in args.only:
        line = {"bench": "synthesis", "case": name, **CASES[name].run(args)}
        print(json.dumps(line), flush=True)
        met = met and bool(line["met"])
    return int(not met)
