"""`flywheel guest`: the part that acts inside of a machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

import flywheel


@click.command(
    context_settings={"ignore_unknown_options": True},
    epilog="Example: flywheel guest --port 5000 --token-file token.txt",
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def guest(options: tuple[str, ...]) -> None:
    """Act inside of this machine, as a small HTTP server, at a `--port N` with a `--token-file FILE` (or the token in
    FLYWHEEL_GUEST_TOKEN), or at a `--socket FILE`. Its folder runs by itself wherever there is a Python."""
    folder = Path(flywheel.__file__).parent / "guest"
    os.execv(sys.executable, [sys.executable, str(folder), *options])
