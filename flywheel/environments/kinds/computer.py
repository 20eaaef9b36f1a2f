"""computer: a desktop, seen in pictures, and functions (shell, Python, files) in one home; a task says which of them it
allows. Its settings are `sandbox.kinds.computer`."""

from __future__ import annotations

from flywheel.computer import browser
from flywheel.computer.kind import ComputerKind
from flywheel.computer.settings import ComputerSettings
from flywheel.environments.kind import KINDS

_APPS = ("mousepad", "pcmanfm", "xterm", "galculator", "gnumeric", browser.PROGRAM)  # Debian's packages, and programs

KINDS["computer"] = ComputerKind("computer", ComputerSettings, {name: name for name in _APPS})
