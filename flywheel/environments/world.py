"""A world: what tasks of one kind of environment are drawn from (section 2.5.1)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from flywheel.errors import BadInput
from flywheel.settings import Domain


class Template(BaseModel):
    """A kind of task. instruction: a format string over the drawn params. max_steps: step budget by level.

    verifier: as the environment's kind knows it. threshold: V = 1 where the score reaches it; None: routing.threshold.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    instruction: str = Field(min_length=1)
    verifier: str = Field(min_length=1)
    threshold: float | None = Field(None, gt=0, le=1)
    max_steps: dict[int, int] = Field(min_length=1)


class TaskWorld(BaseModel, ABC):
    """environment: the kind that its tasks are played in. domain: where it is listed; a workspace may put it into
    another (`synthesis.domains`). checksum: of all that a task of it depends on. once: each template and level is one
    task, the same for all seeds."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    environment: ClassVar[str]
    once: ClassVar[bool] = False
    name: str
    domain: Domain
    templates: dict[str, Template] = Field(min_length=1)
    checksum: str

    @abstractmethod
    def draw(self, template: str, level: int, seed: int) -> dict[str, Any]:
        """The params of one seed's task, JSON values: all that the agent meets, so that two tasks of equal params are
        the same one. Raises BadInput for a template or a level that the world has not."""

    @property
    def levels(self) -> list[int]:
        return sorted({level for template in self.templates.values() for level in template.max_steps})

    def budget(self, template: str, level: int) -> int:
        """The step budget of a template's level. Raises BadInput for a template or a level that the world has not."""
        spec = self.templates.get(template)
        if spec is None:
            raise BadInput(
                f"no template is called {template!r}",
                where=f"world {self.name}",
                fix=f"known are {', '.join(self.templates)}",
            )
        if level not in spec.max_steps:
            raise BadInput(
                f"there is no level {level}",
                where=f"world {self.name}, template {template}",
                fix=f"its levels are {', '.join(map(str, sorted(spec.max_steps)))}",
            )
        return spec.max_steps[level]
