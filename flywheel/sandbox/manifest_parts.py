"""Parts of a manifest: where a value is read, how a page's own server is run, how one logs in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, StringConstraints, Tag, model_validator

Expression = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=10_000)]
Words = Annotated[tuple[str, ...], Field(min_length=1)]  # a command: no shell reads it
Local = Annotated[str, StringConstraints(pattern=r"^/")]  # an address of the page's own server, without its origin
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Requirement = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]+(\[[A-Za-z0-9,._-]+\])?==[A-Za-z0-9.+!]+$")]


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Parameter(Part):
    """The page takes its seed from its address: `?<parameter>=<seed>`."""

    parameter: str = Field(min_length=1, pattern=r"^[^&=#?\s]+$")


class Read(Part):
    """A JavaScript expression, evaluated in the page."""

    expression: Expression


class Output(Part):
    """What a command prints that is run in the session's folder; where it prints nothing, its exit status: 0 is 1 or
    true, 1 is 0 or false."""

    command: Words


class Row(Part):
    """The first value of the first row of a query to an SQLite database in the session's folder."""

    sqlite: str = Field(min_length=1)
    query: Expression


class Answer(Part):
    """What the server answers to us, as JSON. value: the way into it, such as `rows.0.total` or `rows.length`."""

    address: Local
    value: str = ""


def _form(value: Any) -> str | None:
    if isinstance(value, Mapping):
        return next((name for name in ("command", "sqlite", "address", "expression") if name in value), None)
    forms = {Output: "command", Row: "sqlite", Answer: "address", Read: "expression"}
    return forms.get(type(value), "text")


Outside = Output | Row | Answer  # read by us, out of the reach of the page's scripts
Reading = Annotated[
    Annotated[Expression, Tag("text")]
    | Annotated[Output, Tag("command")]
    | Annotated[Row, Tag("sqlite")]
    | Annotated[Answer, Tag("address")],
    Discriminator(_form),
]
Instruction = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[Read, Tag("expression")]
    | Annotated[Output, Tag("command")]
    | Annotated[Row, Tag("sqlite")]
    | Annotated[Answer, Tag("address")],
    Discriminator(_form),
]


class Server(Part):
    """A program that serves the page: one for each session, at a port and in a folder of its own.

    In command, setup, environment and the readings `{port}`, `{seed}`, `{variant}`, `{folder}` (the session's) and,
    but for command and environment, `{manifest}` (the folder that the manifest lies in) stand for what they name.
    """

    command: Words
    folder: str = ""  # copied for each session; relative to the manifest. Empty: an empty one
    setup: tuple[Words, ...] = ()  # commands that are run in the session's folder before
    packages: tuple[Requirement, ...] = ()  # of PyPI, which `flywheel page fetch` installs in an environment of its own
    environment: dict[Variable, str] = {}  # nothing of ours is handed on but PATH
    ready: Local = "/"  # it has started when this address answers
    start_s: float = Field(60, gt=0, le=600)  # deadline of copy, setup and start
    read_s: float = Field(10, gt=0, le=60)  # deadline of one reading
    memory_mb: int = Field(2048, ge=64)  # of all its processes
    reads: tuple[str, ...] = ()  # more folders of this machine that it may read


class Login(Part):
    """What comes before the first page: cookies and headers that the browser sends, a form that is filled in, or
    JavaScript."""

    cookies: dict[str, str] = {}
    headers: dict[str, str] = {}  # sent with every request to the page's own server
    address: Local | None = None  # of the page with the form; none: the first page
    fill: dict[str, str] = {}  # CSS selector -> text
    submit: str = ""  # CSS selector of what is clicked at last
    run: Expression | None = None  # JavaScript in place of fill and submit
    done: Expression | None = None  # true on the first page when one is logged in

    @model_validator(mode="after")
    def _together(self) -> Login:
        if self.run and (self.fill or self.submit):
            raise ValueError("give run, or fill and submit")
        if bool(self.fill) != bool(self.submit):
            raise ValueError("fill and submit go together")
        if self.address and not (self.run or self.fill):
            raise ValueError("address goes with run, or with fill and submit")
        return self


Split = Literal["train", "eval"]
