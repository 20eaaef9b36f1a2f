"""The worlds whose tasks are done on computers, and their verifiers, by name."""

from __future__ import annotations

from flywheel.computer import desk
from flywheel.computer.chores import ending
from flywheel.computer.chores.world import CHORES, ERRANDS
from flywheel.computer.osworld import world as osworld
from flywheel.environments.world import TaskWorld
from flywheel.reward.verifier import Verifier

WORLDS: dict[str, TaskWorld] = {one.name: one for one in (desk.DESK, CHORES, ERRANDS)}
VERIFIERS: dict[str, Verifier] = {
    **desk.VERIFIERS,
    ending.VERIFIER: ending.as_wanted,
    osworld.VERIFIER: osworld.as_judged,
}
