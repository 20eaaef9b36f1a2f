"""What runs a session's Python: code by a pipe, one after another, in one namespace. See `python.py`."""

from __future__ import annotations

import ast
import json
import os
import sys
import traceback
from typing import TextIO


def main() -> None:
    asked, told = os.fdopen(int(sys.argv[1])), os.fdopen(int(sys.argv[2]), "w")
    sys.argv = [""]
    sys.path.insert(0, "")
    names: dict = {"__name__": "__main__"}
    _tell(told, False)
    for line in asked:
        error = _run(json.loads(line), names)
        sys.stdout.flush()
        sys.stderr.flush()
        _tell(told, error)


def _tell(told: TextIO, failed: bool) -> None:
    told.write(json.dumps(failed) + "\n")
    told.flush()


def _run(code: str, names: dict) -> bool:
    """Whether it failed. The value of a last line that is an expression is printed, as a notebook does."""
    try:
        tree = ast.parse(code, "<cell>")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<cell>", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
            if value is not None:
                names["_"] = value
                print(repr(value))
        return False
    except BaseException as error:  # SystemExit and Ctrl-C too: what was computed stays
        shown = traceback.TracebackException.from_exception(error)
        begins = next((n for n, one in enumerate(shown.stack) if one.filename == "<cell>"), len(shown.stack))
        del shown.stack[:begins]  # what is ours
        print("".join(shown.format()), end="", file=sys.stderr)
        return True


if __name__ == "__main__":
    main()
