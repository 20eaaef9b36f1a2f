"""Run the Python code that `sdk_routes.PythonSession` sends over a pipe, all of it in one namespace, as a program."""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import os
import pickle
import sys
import traceback
import types
from pathlib import Path
from typing import TextIO


def main() -> None:
    """Answer each line of the first pipe by whether its code failed; arguments: descriptors of the two pipes."""
    asked, told = os.fdopen(int(sys.argv[1])), os.fdopen(int(sys.argv[2]), "w")
    sys.argv = [""]
    sys.path.insert(0, "")
    names: dict = {"__name__": "__main__"}
    _tell(told, False)
    for line in asked:
        said = json.loads(line)
        try:
            error = _HOW[said["as"]](said["code"], names)
        except BaseException:  # of _keep or _bring_back: `_run` catches those of the code
            error = True
        sys.stdout.flush()
        sys.stderr.flush()
        _tell(told, error)


def _tell(told: TextIO, failed: bool) -> None:
    told.write(json.dumps(failed) + "\n")
    told.flush()


def _run(code: str, names: dict) -> bool:
    """Run code and return whether it failed. The value of a last expression is printed, as in a notebook."""
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
    except BaseException as error:  # SystemExit and Ctrl-C too, so that the namespace stays
        shown = traceback.TracebackException.from_exception(error)
        begins = next((n for n, one in enumerate(shown.stack) if one.filename == "<cell>"), len(shown.stack))
        del shown.stack[:begins]  # the frames of this file
        print("".join(shown.format()), end="", file=sys.stderr)
        return True


def _keep(path: str, names: dict) -> bool:
    """Save the namespace to a file: a line of JSON (modules by name, lost names), then a pickle of the rest."""
    modules, held, lost = {}, {}, []
    for name, value in list(names.items()):
        if name in _NOT_ITS_OWN:
            continue
        if isinstance(value, types.ModuleType):
            modules[name] = value.__name__
            continue
        try:
            pickle.loads(pickle.dumps(value))
        except BaseException:
            lost.append(name)
        else:
            held[name] = value
    with Path(path).open("wb") as file:
        file.write(json.dumps({"modules": modules, "lost": lost}).encode() + b"\n")
        pickle.dump(held, file)
    return False


def _bring_back(path: str, names: dict) -> bool:
    with Path(path).open("rb") as file:
        header = json.loads(file.readline())
        for name, module in header["modules"].items():
            with contextlib.suppress(BaseException):  # its file may be gone
                names[name] = importlib.import_module(module)
        names.update(pickle.load(file))
    return False


_NOT_ITS_OWN = ("__name__", "__builtins__")
_HOW = {"code": _run, "keep": _keep, "bring back": _bring_back}

if __name__ == "__main__":
    main()
