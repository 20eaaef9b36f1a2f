"""computer: a desktop, seen in pictures, and functions (shell, Python, files) in one home; a task says which of them it
allows. Its settings are `sandbox.kinds.computer`."""

from __future__ import annotations

from flywheel.envs.computer import desktop
from flywheel.envs.computer.backend import ComputerBackend
from flywheel.envs.computer.machine import ComputerSettings
from flywheel.envs.registry import BACKENDS

# Debian's packages, and programs.
_APPS = ("mousepad", "pcmanfm", "xterm", "galculator", "gnumeric", desktop.BROWSER_PROGRAM)

BACKENDS["computer"] = ComputerBackend("computer", ComputerSettings, {name: name for name in _APPS})
