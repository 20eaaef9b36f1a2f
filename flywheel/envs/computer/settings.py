"""Declare the settings of the back-ends `terminal` and `computer`."""

from __future__ import annotations

from pydantic import Field

from flywheel.envs.computer.machine import MachineSettings
from flywheel.envs.registry import BackendSettings


class TerminalSettings(BackendSettings):
    """Machines with a shell, Python and files, each apart from this machine and from all others."""

    timeout_s: float = Field(20.0, gt=0)
    """Seconds until a reset or a step must be done."""
    machine: MachineSettings = MachineSettings()
    """What each of them may use."""
    warm: int = Field(1, ge=0, le=64)
    """Machines that have started and wait for a task; about 30 MB each, as much again with a screen."""
    run_s: float = Field(10.0, gt=0, le=3600)
    """Seconds that a step waits for a command, which goes on then, or for Python code, which is interrupted. Below
    `timeout_s` by five seconds at least."""
    result_bytes: int = Field(16_384, ge=256, le=2**24)
    """Bytes that a function returns at most; of more the middle is left out, and a line says so."""
    tools_characters: int = Field(1000, ge=100)
    """Characters in which each observation tells of a task's MCP tools; of more than fit their names."""
    tools_idle_s: float = Field(120.0, gt=0)
    """Seconds after which the session with an MCP server ends that nothing is asked of; the next call begins anew."""
    wait_ms: float = Field(300.0, ge=0, le=60_000)
    """Milliseconds that the action `wait` waits, where it waits for no command."""


class ComputerSettings(TerminalSettings):
    """The same with a screen: an X server, a window manager and a task's applications."""

    machine: MachineSettings = MachineSettings(memory_mb=1536, home_mb=128, processes=512)  # a browser's
    """What each of them may use."""

    width: int = Field(800, ge=320, le=4096)
    """Of the screen, in pixels."""
    height: int = Field(600, ge=240, le=4096)
    """Of the screen, in pixels."""
    after_ms: float = Field(30.0, ge=0, le=10_000)
    """Milliseconds that a step waits at least, until its programs are at rest and the picture is taken."""
    within_ms: float = Field(2000.0, ge=0, le=60_000)
    """Milliseconds after which the picture is taken of a screen that goes on moving."""
