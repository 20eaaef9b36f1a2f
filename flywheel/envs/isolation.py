"""Run a command under bubblewrap: its own folder, the system's programs and no network.

A policy that can run code in a page's server (a notebook, a console) runs it here. Without bubblewrap it has all that
this user has; `explain_missing_bwrap` says so.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

_PROBE_S = 10.0
SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
# Parts of /etc without secrets: libraries, certificates, time zone, names of types.
_ETC_NAMES = "alternatives ca-certificates fonts group hosts ld.so.cache ld.so.conf ld.so.conf.d localtime mime.types"
ETC_FILES = tuple(f"/etc/{name}" for name in (*_ETC_NAMES.split(), "nsswitch.conf", "passwd", "ssl"))
# Of /proc nothing may be written: for a process of root's, the kernel's own settings lie there.
_UNSHARE_FLAGS = ("--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL")
_UNSHARE_FLAGS += ("--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev", "--tmpfs", "/tmp")


@functools.cache
def explain_missing_bwrap() -> str:
    """Explain why servers are not kept apart from this machine; "" where they are. It is tried for real, once."""
    program = shutil.which("bwrap")
    if program is None:
        return "bubblewrap is not installed"
    command = wrap_in_bwrap(["true"], Path("/"))
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not work here: {error}"
    complaint = " ".join(tried.stderr.split())
    return f"bubblewrap does not work here: {complaint[:200] or tried.returncode}" if tried.returncode else ""


def wrap_in_bwrap(
    command: Sequence[str], working: Path, writable: Iterable[Path] = (), readable: Iterable[Path] = ()
) -> list[str]:
    """Wrap a command in bubblewrap: no network and no process but its own, no file but the system's programs and these.

    working: folder that it starts in. writable, readable: paths that it may write, or only read. Returns the command.
    """
    words = ["bwrap", *_UNSHARE_FLAGS]
    for path in (*SYSTEM_FOLDERS, *ETC_FILES, *readable, sys.base_prefix):
        words += ["--ro-bind-try", str(path), str(path)]
    for path in writable:
        words += ["--bind", str(path), str(path)]
    return [*words, "--chdir", str(working), "--", *command]


def list_program_folders(program: Path) -> list[Path]:
    """List the folders that a program needs to run: its environment's and its Python's, where it is one of Python."""
    bin_folder = program.parent
    settings = bin_folder.parent / "pyvenv.cfg"
    if not settings.is_file():
        return [bin_folder, program.resolve().parent]
    lines = (line.partition("=") for line in settings.read_text(encoding="utf-8").splitlines())
    base = next((value.strip() for name, _, value in lines if name.strip() == "home"), "")
    return [bin_folder.parent, *([Path(os.path.realpath(base)).parent] if base else [])]
