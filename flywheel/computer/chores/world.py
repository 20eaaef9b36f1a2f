"""The world of all families, for whoever has a shell; see the package's head."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from flywheel.agent.actions import Action
from flywheel.computer.chores import (
    archives,
    code,
    configuration,
    databases,
    logs,
    moving,
    services,
    tables,
    texts,
    tools,
)
from flywheel.computer.chores.ending import VERIFIER
from flywheel.computer.chores.family import Family
from flywheel.environments.world import TaskWorld, Template

FAMILIES: dict[str, Family] = {
    **moving.FAMILIES,
    **archives.FAMILIES,
    **texts.FAMILIES,
    **tables.FAMILIES,
    **configuration.FAMILIES,
    **logs.FAMILIES,
    **code.FAMILIES,
    **services.FAMILIES,
    **databases.FAMILIES,
    **tools.FAMILIES,
}


class ChoresWorld(TaskWorld):
    environment: ClassVar[str] = "terminal"

    def draw(self, template: str, level: int, seed: int) -> dict[str, Any]:
        self.budget(template, level)
        return FAMILIES[template].draw(level, random.Random(f"{self.name} {template} {level} {seed}"))


def play(template: str, params: Mapping[str, Any]) -> Iterator[tuple[str, Action]]:
    """What an expert does: a thought and an action at each step."""
    return FAMILIES[template].play(params)


def _checksum() -> str:
    """Of this folder's files: a task is what they draw."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


CHORES = ChoresWorld(
    name="chores",
    domain="computer",
    templates={
        name: Template(instruction=family.instruction, verifier=VERIFIER, max_steps=dict(family.steps))
        for name, family in FAMILIES.items()
    },
    checksum=_checksum(),
)
