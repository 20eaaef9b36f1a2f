"""Write commands in messages so that they can be pasted, also where the environment's commands are not on PATH."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from functools import cache
from pathlib import Path

import click

_COMMANDS = re.compile(r"`(flywheel|dvc|prefect)(?=[ `])")


def echo_with_commands(text: str) -> None:
    """Print `text` as a line on standard output, with its commands as `name_commands` writes them."""
    click.echo(name_commands(text))


def name_commands(text: str) -> str:
    """Replace each `flywheel`, `dvc` or `prefect` that begins a command in backticks by what `name_command` returns."""
    return _COMMANDS.sub(lambda found: f"`{name_command(found[1])}", text)


@cache
def name_command(name: str, *, anywhere: bool = False) -> str:
    """Return what to type for the command `name` that the Python environment installs (flywheel, dvc, prefect).

    It is `name` where that is on PATH, or where this program is not the command `flywheel`; else `PYTHON -m flywheel`
    or the path of `name` beside this program. anywhere: make the path absolute, for use in any folder.
    """
    called = Path(sys.argv[0])
    by_module = called.parts[-2:] == ("flywheel", "__main__.py")
    if shutil.which(name) or not (by_module or called.name == "flywheel"):
        return name
    if by_module and name == "flywheel":
        return f"{shlex.quote(sys.executable)} -m flywheel"
    path = (Path(sys.executable) if by_module else called).with_name(name)
    return shlex.quote(os.path.abspath(path) if anywhere else str(path))  # noqa: PTH100 (a link stays as it is)
