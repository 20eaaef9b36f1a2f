"""What a task's params say to a computer: what it begins with, what may be done there, what its verifier reads."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flywheel.computer.checker import Checker
from flywheel.computer.osworld.task import OsworldTask
from flywheel.computer.tools.named import Name, ToolServer
from flywheel.environments.env import Task
from flywheel.errors import EnvError


class Given(BaseModel):
    """All of it may be missing. Paths count from the home; those of folders end in /.

    site: pages of a web site by path, at port 8000 (`site.py`); the state holds what it has received. files: texts by
    path; binary: base64 by path. setup: shell commands, run in their order before the episode, each in the home. apps:
    commands, each with its words, of applications that are open (with a screen alone); `browser` and an address is one.
    allowed: the screen, the functions, or both. hidden: paths of hidden files that the state holds too. programs:
    whether it holds what runs. ports: what it holds of services here, an address's path by the port. packed: archives
    (zip, tar) whose files it holds. probe: commands, each with its words, run once the agent says that it is done; what
    they print it holds. tools: MCP servers by the names that their tools are called with. checker: a program that
    judges the end (`checker.py`); values: what was drawn for the task, for it to read. osworld: a task of OSWorld's,
    with its own set-up and judgement.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)
    site: dict[str, str] = {}
    files: dict[str, str] = {}
    binary: dict[str, str] = {}
    setup: list[str] = []
    apps: list[list[str]] = []
    allowed: Literal["gui", "sdk", "both"] = "both"
    hidden: list[str] = []
    programs: bool = False
    ports: dict[Annotated[str, Field(pattern=r"^[1-9][0-9]{0,4}$")], str] = {}
    packed: dict[str, Any] = {}
    probe: list[list[str]] = []
    tools: dict[Name, ToolServer] = {}
    checker: Checker | None = None
    values: dict[str, str] = {}
    osworld: OsworldTask | None = None

    @property
    def judging_s(self) -> float:
        """Seconds that a program has to judge the end; 0 where none does."""
        return sum(one.seconds for one in (self.checker, self.osworld) if one is not None)

    @classmethod
    def of(cls, task: Task) -> Given:
        """Raises EnvError where the task's params are none."""
        try:
            return cls.model_validate(dict(task.params))
        except ValidationError as error:
            first = error.errors()[0]
            said = ".".join(map(str, first["loc"]))
            raise EnvError(f"params.{said}: {first['msg']}", where=f"task {task.task_id}") from None
