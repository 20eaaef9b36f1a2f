"""Tasks on real phones, by a manifest: commands that prepare it, commands that tell its state, and what they shall say.

kind: android
world: android
apps: {Settings: com.android.settings}
tasks:
  - name: wifi
    instruction: Turn Wi-Fi {wanted}.
    choose: {wanted: ["on", "off"]}
    max_steps: {1: 10}
    reset: ["am force-stop com.android.settings", "svc wifi enable"]
    state: {wifi: "settings get global wifi_on"}
    wanted: {wifi: "{wanted}"}
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from flywheel.environments import choices, foreign
from flywheel.environments.world import TaskWorld, Template
from flywheel.errors import BadInput

VERIFIER = "android:shown"
SHIPPED = Path(__file__).parent / "android.yaml"


class AndroidTask(BaseModel):
    """choose: placeholders of the other fields' texts, and what is drawn for them. reset: commands. state: name ->
    command; wanted: name -> what that one prints, to the letter."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    instruction: str = Field(min_length=1)
    choose: dict[str, list[dict[str, str] | str]] = {}
    max_steps: dict[int, int] = Field(min_length=1)
    reset: list[str] = []
    state: dict[str, str] = Field(min_length=1)
    wanted: dict[str, str] = Field(min_length=1)

    @model_validator(mode="after")
    def _told(self) -> AndroidTask:
        if lacking := sorted(self.wanted.keys() - self.state.keys()):
            raise ValueError(f"no command tells {', '.join(lacking)}: add it to state")
        return self

    def draw(self, rng: random.Random) -> dict[str, Any]:
        made = {"instruction": self.instruction, "reset": self.reset, "state": self.state, "wanted": self.wanted}
        return choices.filled(made, choices.drawn(self.choose, rng))


class Manifest(BaseModel):
    """apps: name -> package, for the action open_app."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    world: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    apps: dict[str, str] = {}
    tasks: list[AndroidTask] = Field(min_length=1)


class AndroidWorld(TaskWorld):
    environment: ClassVar[str] = "android"
    apps: dict[str, str]
    tasks: dict[str, AndroidTask]

    def draw(self, template: str, level: int, seed: int) -> dict[str, Any]:
        self.budget(template, level)
        rng = random.Random(f"{self.name} {template} {level} {seed}")
        return {**self.tasks[template].draw(rng), "apps": self.apps}


def load(path: Path) -> AndroidWorld:
    """Raises BadInput that names what is wrong in the manifest."""
    manifest = foreign.manifest(path, Manifest)
    tasks = {task.name: task for task in manifest.tasks}
    if len(tasks) < len(manifest.tasks):
        raise BadInput("two tasks have one name", where=path, fix="rename one")
    return AndroidWorld(
        name=manifest.world,
        domain="phone",
        apps=manifest.apps,
        tasks=tasks,
        templates={
            task.name: Template(instruction="{instruction}", verifier=VERIFIER, max_steps=task.max_steps)
            for task in manifest.tasks
        },
        checksum=hashlib.sha256(path.read_bytes()).hexdigest(),
    )


def as_wanted(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """The share of what is wanted that the phone's commands told."""
    wanted = params["wanted"]
    return sum(state["shown"][name].strip() == text for name, text in wanted.items()) / len(wanted)
