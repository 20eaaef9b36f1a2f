"""Load task suites for real phones: commands that prepare a task, and commands that tell its state.

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

from flywheel.envs import registry
from flywheel.envs.base import TaskSuite, TaskTemplate
from flywheel.utils.errors import BadInput

ANDROID_VERIFIER = "android:shown"
SHIPPED_ANDROID_MANIFEST = Path(__file__).parent / "android.yaml"


class AndroidTask(BaseModel):
    """Declare a task of a phone.

    choose: placeholders of the other fields' texts, and what is drawn for them. reset: commands. state: name ->
    command; wanted: name -> what that one prints, to the letter.
    """

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
        return registry.fill_placeholders(made, registry.draw_placeholders(self.choose, rng))


class AndroidManifest(BaseModel):
    """Declare a manifest of phone tasks. apps: name -> package, for the action open_app."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    world: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    apps: dict[str, str] = {}
    tasks: list[AndroidTask] = Field(min_length=1)


class AndroidSuite(TaskSuite):
    environment: ClassVar[str] = "android"
    apps: dict[str, str]
    tasks: dict[str, AndroidTask]

    def draw(self, template: str, level: int, seed: int) -> dict[str, Any]:
        self.budget(template, level)
        rng = random.Random(f"{self.name} {template} {level} {seed}")
        return {**self.tasks[template].draw(rng), "apps": self.apps}


def load_android_suite(path: Path) -> AndroidSuite:
    """Load the suite of the manifest at `path`. Raises BadInput that names what is wrong."""
    manifest = registry.validate_suite_manifest(path, AndroidManifest)
    tasks = {task.name: task for task in manifest.tasks}
    if len(tasks) < len(manifest.tasks):
        raise BadInput("two tasks have one name", where=path, fix="rename one")
    return AndroidSuite(
        name=manifest.world,
        domain="phone",
        apps=manifest.apps,
        tasks=tasks,
        templates={
            task.name: TaskTemplate(instruction="{instruction}", verifier=ANDROID_VERIFIER, max_steps=task.max_steps)
            for task in manifest.tasks
        },
        checksum=hashlib.sha256(path.read_bytes()).hexdigest(),
    )


def score_shown_state(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """Score the share of the wanted texts that the phone's commands printed."""
    wanted = params["wanted"]
    return sum(state["shown"][name].strip() == text for name, text in wanted.items()) / len(wanted)
