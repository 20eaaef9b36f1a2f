"""terminal: a machine with a shell, Python and files, read as a text; its settings are `sandbox.kinds.terminal`."""

from __future__ import annotations

from flywheel.computer.kind import ComputerKind
from flywheel.computer.settings import TerminalSettings
from flywheel.environments.kind import KINDS

KINDS["terminal"] = ComputerKind("terminal", TerminalSettings, {})
