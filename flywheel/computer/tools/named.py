"""How a task names a server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints, model_validator

from flywheel.computer.walls import INSIDE
from flywheel.worlds import encyclopaedia

SERVERS = f"{INSIDE}/servers"
_ARTICLES = Path(encyclopaedia.__file__).parent
READABLE = (_ARTICLES,)  # what the servers that ship read beside the guest's own folder
SHIPPED = {"search": ["python3", f"{SERVERS}/search.py", str(_ARTICLES)], "sql": ["python3", f"{SERVERS}/sql.py"]}
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,32}$")]
_URL = re.compile(r"http://(?:127\.0\.0\.1|localhost):(\d{1,5})(/[!-~]*)?")


class ToolServer(BaseModel):
    """One of: `command`, the words of a program of the machine, spoken to by its standard input and output; `url`, an
    address of streamable HTTP at a port of the machine; `shipped`, a server of SHIPPED and further words for it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    command: list[str] = []
    url: str = ""
    shipped: list[str] = []

    @model_validator(mode="after")
    def _one(self) -> ToolServer:
        if sum(map(bool, (self.command, self.url, self.shipped))) != 1:
            raise ValueError("give one of command, url, shipped")
        if self.url and not ((found := _URL.fullmatch(self.url)) and 0 < int(found[1]) < 65536):
            raise ValueError(f"{self.url} is not like http://127.0.0.1:8000/mcp, at a port of the machine")
        if self.shipped and self.shipped[0] not in SHIPPED:
            raise ValueError(f"no server {self.shipped[0]} ships: {', '.join(SHIPPED)} do")
        return self

    @property
    def words(self) -> list[str]:
        """Of the program to run; none for a url."""
        return [*SHIPPED[self.shipped[0]], *self.shipped[1:]] if self.shipped else self.command
