"""terminal: a machine with a shell, Python and files, read as a text; its settings are `sandbox.kinds.terminal`."""

from __future__ import annotations

from flywheel.envs.computer.backend import ComputerBackend
from flywheel.envs.computer.machine import TerminalSettings
from flywheel.envs.registry import BACKENDS

BACKENDS["terminal"] = ComputerBackend("terminal", TerminalSettings, {})
