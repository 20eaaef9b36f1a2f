"""Run one `flywheel` command in this process and write down which files' functions it executes, and in what order.

`python -P trajectory_path_trace.py OUT BEGINS ENDS WORDS...`; it imports nothing of the side that it traces.
OUT: a JSON list, one entry a file: its path from the root of that side and the first of its functions. BEGINS: the end
of the path of a file with a class of environments; nothing counts until its first `step`. ENDS: the name of a function
of torch.optim; what comes after its first return does not count. Each may be empty: all counts.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType


class FileTracer:
    """Collect the files of a package, in the order in which they are first entered, between the two marks."""

    def __init__(self, package: Path, begins: str, ends: str) -> None:
        self._package, self._root = f"{package}{os.sep}", package.parent
        self._begins, self._ends = begins, ends
        self.open = not begins
        self._closed = False
        self._seen: set[CodeType] = set()
        self.files: dict[str, str] = {}

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        """The profile function. A return counts as a call does: what was entered before the first mark goes on."""
        if event not in ("call", "return") or self._closed:
            return
        code = frame.f_code
        if self._ends and event == "return" and code.co_name == self._ends and "/torch/optim/" in code.co_filename:
            self._closed = True
            return
        if code in self._seen or not code.co_filename.startswith(self._package):
            return
        if not self.open:
            if not (code.co_name == "step" and code.co_filename.endswith(self._begins)):
                return
            self.open = True
        if _is_function(code) and not _is_importing(frame):
            self._seen.add(code)
            self.files.setdefault(str(Path(code.co_filename).relative_to(self._root)), code.co_qualname)


def _is_function(code: CodeType) -> bool:
    """Neither a module nor the body of a class, which importing runs, nor a template, which Jinja compiles."""
    return bool(code.co_flags & inspect.CO_OPTIMIZED) and code.co_filename.endswith(".py")


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def run_traced(out: str, begins: str, ends: str, *words: str) -> None:
    root = Path(os.environ["PYTHONPATH"].split(os.pathsep)[0]).resolve()
    from flywheel.cli import main

    tracer = FileTracer(root / "flywheel", begins, ends)
    sys.argv = ["flywheel", *words]
    threading.setprofile(tracer)
    sys.setprofile(tracer)
    try:
        main()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        Path(out).write_text(json.dumps(list(tracer.files.items())), encoding="utf-8")


if __name__ == "__main__":
    run_traced(*sys.argv[1:])
