"""Register the back-end `computer`: a desktop, seen in pictures, and functions (shell, Python, files) on one machine.

A task says which of the two it allows. Its settings are `sandbox.kinds.computer`.
"""

from __future__ import annotations

from flywheel.envs.computer import desktop
from flywheel.envs.computer.backend import ComputerBackend
from flywheel.envs.computer.machine import ComputerSettings
from flywheel.envs.registry import BACKENDS

# Names of programs, each also that of its Debian package.
_APPS = ("mousepad", "pcmanfm", "xterm", "galculator", "gnumeric", desktop.BROWSER_PROGRAM)

BACKENDS["computer"] = ComputerBackend("computer", ComputerSettings, {name: name for name in _APPS})
