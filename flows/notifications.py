"""Notify people by a command or a notification block of Prefect's (`operations.notify_*`)."""

from __future__ import annotations

import json
import logging
import os
import subprocess
from typing import Literal

from flywheel.config import OperationsSettings
from flywheel.config.workspace import Workspace
from flywheel.utils.progress import announce

Event = Literal["done", "failed", "crashed", "stopped", "waiting", "params"]
_DEADLINE_S = 30
log = logging.getLogger(__name__)


def notify(ws: Workspace, rules: OperationsSettings, event: Event, text: str) -> None:
    """Notify people of an event; a failure to do so is reported with the run's progress and stops nothing.

    Does nothing where the settings name neither command nor block. rules: block `operations`, which names the command
    and the block. event: its name. text: what happened.
    """
    if rules.notify_command:
        _run_command(ws, rules.notify_command, event, text)
    if rules.notify_block:
        _call_block(ws, rules.notify_block, event, text)


def _run_command(ws: Workspace, command: str, event: str, text: str) -> None:
    message = {"event": event, "text": text, "workspace": str(ws.root)}
    variables = {**os.environ, "FLYWHEEL_EVENT": event, "FLYWHEEL_TEXT": text}
    try:
        done = subprocess.run(
            command,
            shell=True,
            input=json.dumps(message),
            text=True,
            env=variables,
            cwd=ws.root,
            capture_output=True,
            timeout=_DEADLINE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        _not_told("operations.notify_command", error)
        return
    if done.returncode:
        _not_told("operations.notify_command", f"exit code {done.returncode}: {done.stderr.strip()[-200:]}")


def _call_block(ws: Workspace, name: str, event: str, text: str) -> None:
    from prefect.blocks.core import Block

    try:
        block = Block.load(name, _sync=True)
        block.notify(f"{text}\n{ws.root}", subject=f"flywheel: {event}", _sync=True)
    except Exception as error:  # of somebody else's block, anything
        _not_told(f"operations.notify_block: {name}", error)


def _not_told(where: str, why: object) -> None:
    announce("notify", f"nobody could be told ({where}): {why}")
    log.warning("nobody could be told (%s): %s", where, why)
