"""Parse the params of a computer's task: what it begins with, the allowed interface, its tools and its judging."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator, model_validator

from flywheel.envs.base import Task
from flywheel.envs.computer.bwrap import SERVER_IN_MACHINE
from flywheel.envs.computer.checker import Checker, FileName
from flywheel.envs.suites import encyclopaedia
from flywheel.utils.errors import EnvError

MCP_SERVERS_FOLDER = f"{SERVER_IN_MACHINE}/servers"
_ARTICLES = Path(encyclopaedia.__file__).parent
TOOL_READABLE_FOLDERS = (_ARTICLES,)  # read by the shipped servers, in addition to the computer server's folder
SHIPPED_TOOL_SERVERS = {
    "search": ["python3", f"{MCP_SERVERS_FOLDER}/search.py", str(_ARTICLES)],
    "sql": ["python3", f"{MCP_SERVERS_FOLDER}/sql.py"],
}
ToolServerName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,32}$")]
_MACHINE_URL = re.compile(r"http://(?:127\.0\.0\.1|localhost):(\d{1,5})(/[!-~]*)?")


class ToolServer(BaseModel):
    """Hold how an MCP server of a task is reached, by exactly one of its fields.

    command: words of a program in the machine, spoken to over its standard input and output. url: address of a
    streamable HTTP server at a port of the machine. shipped: name of one of SHIPPED_TOOL_SERVERS, and further words for
    it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    command: list[str] = []
    url: str = ""
    shipped: list[str] = []

    @model_validator(mode="after")
    def _one(self) -> ToolServer:
        if sum(map(bool, (self.command, self.url, self.shipped))) != 1:
            raise ValueError("give one of command, url, shipped")
        if self.url and not ((found := _MACHINE_URL.fullmatch(self.url)) and 0 < int(found[1]) < 65536):
            raise ValueError(f"{self.url} is not like http://127.0.0.1:8000/mcp, at a port of the machine")
        if self.shipped and self.shipped[0] not in SHIPPED_TOOL_SERVERS:
            raise ValueError(f"no server {self.shipped[0]} ships: {', '.join(SHIPPED_TOOL_SERVERS)} do")
        return self

    @property
    def words(self) -> list[str]:
        """Return the words of the command to run in the machine; [] for a url."""
        return [*SHIPPED_TOOL_SERVERS[self.shipped[0]], *self.shipped[1:]] if self.shipped else self.command


class OsworldMetric(BaseModel):
    """Hold one metric of an OSWorld task, with its inputs.

    func: its name. module: of desktop-env's metrics, whose function judges; "": that of `judge.METRICS` does. result,
    expected: the two sides that it compares, each an object that tells where to find the value. Its keys: `value`: the
    value itself; `command`, with `shell` and `stream`: its output; `printed`: what a step after the episode printed, by
    the file name that it chose; `file`, `files`, `tree`, `last_row`, `slide_part`: paths from the home; `gold`,
    `golds`: names in the task's `gold`; `chrome`: a getter of the browser's settings; `screen_size`, `window_size`,
    `vlc_status`: asked of the desktop. `name`, `names`: of the files in OSWorld's cache, `given`: which of several the
    metric gets. options: of the metric.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    func: str
    module: str = ""
    result: dict[str, Any]
    expected: dict[str, Any]
    options: dict[str, Any]


class OsworldTask(BaseModel):
    """Hold the set-up and judging of an OSWorld task, as a part of a task's params.

    steps: of the set-up, in OSWorld's form, with the content of downloads as base64 in `content`. after: likewise, run
    once the agent has ended. metrics: that judge the end; none where the task is infeasible, which the agent must say.
    conj: how their scores are combined. gold: files that results are compared with, base64 by name. seconds: for the
    set-up, and again for the judging, beyond the deadline of a reset or step.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    steps: list[dict[str, Any]] = []
    after: list[dict[str, Any]] = []
    metrics: list[OsworldMetric] = []
    conj: Literal["and", "or"] = "and"
    gold: dict[FileName, str] = {}
    seconds: float = Field(15.0, gt=0, le=3600)


class ComputerTaskSpec(BaseModel):
    """Hold a computer task's params, all of them optional: docs/computer.md#what-a-task-says.

    Paths are relative to the home; those of folders end in /. binary: base64 by path. checker: a program that judges
    the end. values: placeholder -> text drawn for the task, for the checker. osworld: an OSWorld task's set-up and
    judging.
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
    tools: dict[ToolServerName, ToolServer] = {}
    checker: Checker | None = None
    values: dict[str, str] = {}
    osworld: OsworldTask | None = None

    @field_validator("site")
    @classmethod
    def _site(cls, value: dict[str, str]) -> dict[str, str]:
        """Remove the first / of each path; the empty path becomes `index.html`."""
        pages = {path.removeprefix("/") or "index.html": text for path, text in value.items()}
        if len(pages) < len(value):
            raise ValueError("two texts of one page: / is index.html, and a path may begin with /")
        return pages

    @property
    def judging_s(self) -> float:
        """Return the seconds that programs have to judge the task's end; 0 where none judges it."""
        return sum(one.seconds for one in (self.checker, self.osworld) if one is not None)

    @classmethod
    def of(cls, task: Task) -> ComputerTaskSpec:
        """Parse the task's params. Raises EnvError where they are wrong."""
        try:
            return cls.model_validate(dict(task.params))
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"]))
            raise EnvError(f"params.{field}: {first['msg']}", where=f"task {task.task_id}") from None
