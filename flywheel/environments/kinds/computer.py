"""computer: a desktop, seen in pictures, and functions (shell, Python, files) in one home; a task says which of them it
allows. Its settings are `sandbox.kinds.computer`."""

from __future__ import annotations

from flywheel.computer.kind import ComputerKind
from flywheel.computer.settings import ComputerSettings
from flywheel.environments.kind import KINDS

KINDS["computer"] = ComputerKind(
    "computer", ComputerSettings, {"mousepad": "mousepad", "pcmanfm": "pcmanfm", "xterm": "xterm"}
)
