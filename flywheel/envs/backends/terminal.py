"""Register `terminal`: `computer` without a desktop, a machine with a shell, Python and files that is read as text.

Settings: `sandbox.kinds.terminal`.
"""

from __future__ import annotations

from flywheel.envs.computer.backend import ComputerBackend
from flywheel.envs.computer.machine import TerminalSettings
from flywheel.envs.registry import BACKENDS

BACKENDS["terminal"] = ComputerBackend("terminal", TerminalSettings, {})
