"""Set up the applications of OSWorld's tasks in a machine's home: settings, and scripts that stand for programs."""

from __future__ import annotations

import shlex
from pathlib import Path

import yaml

from flywheel.envs.computer.bwrap import MACHINE_HOME
from flywheel.envs.computer.desktop import BROWSER_BINARY, BROWSER_OPTIONS
from flywheel.envs.computer.machine import Machine
from flywheel.envs.computer.osworld.commands import STAND_INS

_SETTINGS: dict[str, str] = yaml.safe_load(Path(__file__).with_name("applications.yaml").read_text(encoding="utf-8"))
_SCRIPTS_FOLDER = ".local/bin"
CHROME_FOLDER = ".config/google-chrome"  # of OSWorld's browser, from the home
_CHROME_LINK = ".local/lib/chrome"  # by this name `pkill chrome` finds it
# Theirs has another profile, and extensions.
_LEFT_OUT_OPTIONS = ("--user-data-dir", "--disable-extensions")


def stand_in_path(name: str) -> str:
    """Return the path, in a machine, of the script that is run in place of the program `name` of OSWorld's machine."""
    return f"{MACHINE_HOME}/{_SCRIPTS_FOLDER}/{name}"


async def prepare_applications(machine: Machine) -> None:
    """Write the applications' settings, and the scripts that stand for programs, into the home of a fresh machine.

    Raises as `Machine.request`.
    """
    for path, text in _SETTINGS.items():
        await machine.put(path, text.encode())
    for name, program in STAND_INS.items():
        await machine.put(f"{_SCRIPTS_FOLDER}/{name}", _stand_in_script(program).encode())
    scripts = [stand_in_path(name) for name in STAND_INS]
    await machine.call("/execute", {"command": ["chmod", "755", *scripts], "shell": False})
    link = f"mkdir -p .local/lib && ln -s {BROWSER_BINARY} {_CHROME_LINK}"
    await machine.call("/execute", {"command": link, "shell": True})


def _stand_in_script(program: str) -> str:
    words = [program]
    if program == "chromium":
        options = [one for one in BROWSER_OPTIONS if not one.startswith(_LEFT_OUT_OPTIONS)]
        words = [f"{MACHINE_HOME}/{_CHROME_LINK}", *options, f"--user-data-dir={MACHINE_HOME}/{CHROME_FOLDER}"]
    return f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n'
