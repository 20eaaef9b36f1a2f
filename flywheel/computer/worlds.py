"""The worlds whose tasks are done on computers, and their verifiers, by name."""

from __future__ import annotations

from flywheel.computer import desk
from flywheel.environments.world import TaskWorld
from flywheel.reward.verifier import Verifier

WORLDS: dict[str, TaskWorld] = {desk.DESK.name: desk.DESK}
VERIFIERS: dict[str, Verifier] = {**desk.VERIFIERS}
