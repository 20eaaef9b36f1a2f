"""Register the back-end `terminal`: a machine with a shell, Python and files and no desktop, which is read as text.

Its settings are `sandbox.kinds.terminal`.
"""

from __future__ import annotations

from flywheel.envs.computer.backend import ComputerBackend
from flywheel.envs.computer.machine import TerminalSettings
from flywheel.envs.registry import BACKENDS

BACKENDS["terminal"] = ComputerBackend("terminal", TerminalSettings, {})
