"""Define, read and check manifests: YAML or JSON files that make third-party web pages tasks."""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    StringConstraints,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

from flywheel.envs.suites import catalogue
from flywheel.utils.errors import BadInput
from flywheel.utils.json_text import refuse_doubled_fields
from flywheel.utils.yaml_text import load_yaml

# Reading a manifest's file; each fault is described in one line.

NAME_FORM = "lower-case letters, digits, '.', '_' and '-'"
_FAULT_HELP = yaml.safe_load(Path(__file__).with_name("manifest_faults.yaml").read_text(encoding="utf-8"))


def parse_manifest_file(path: Path) -> dict[str, Any]:
    """Parse a manifest's file, JSON where its name ends in .json, else YAML; returns its fields by name, unchecked.

    Raises BadInput where it cannot be read, is no mapping, or has a field twice.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".json":
            raw = json.loads(text, object_pairs_hook=refuse_doubled_fields)
        else:
            raw = load_yaml(text, _UniqueKeyLoader)
    except FileNotFoundError:
        raise BadInput("no such manifest", where=path, fix="check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"the manifest cannot be read: {error}", where=path, fix="it is a UTF-8 text file") from None
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        form = "JSON" if path.suffix == ".json" else "YAML"
        fix = "put expressions with ': ' or ' #' in quotes" if form == "YAML" else "mend that place"
        raise BadInput(f"the manifest is not {form}: {error}", where=path, fix=fix) from None
    if not isinstance(raw, dict):
        raise BadInput("the manifest is not a mapping of fields", where=path, fix="begin with `name: my-page`")
    return raw


class _UniqueKeyLoader(yaml.SafeLoader):
    """Load YAML in which no field may occur twice: the second would silently win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        refuse_doubled_fields([(str(key), None) for key in keys])
        return super().construct_mapping(node, deep)


def describe_manifest_fault(fault: dict[str, Any], known: Sequence[str]) -> str:
    """Describe one fault of a manifest in a line: the field, what is wrong, what to write.

    fault: one of the errors of pydantic's ValidationError. known: the names of all fields, to suggest the nearest one.
    """
    field, kind, given = str(fault["loc"][0]) if fault["loc"] else "", fault["type"], fault["input"]
    if field in ("state", "server", "login", "tasks") and len(fault["loc"]) > 1:
        field = ".".join(map(str, fault["loc"][: 3 if field == "tasks" else 2]))
    if kind == "missing" and len(fault["loc"]) == 1:
        return f"{field} is missing: add `{_FAULT_HELP['examples'][field]}`"
    if kind == "extra_forbidden" and len(fault["loc"]) == 1:
        near = difflib.get_close_matches(field, known, 1)
        return f"there is no field {field}" + (f": did you mean {near[0]}?" if near else ": take it out")
    if kind == "missing":
        part = str(fault["loc"][-1])
        return f"{field} is missing" if field.endswith(f".{part}") else f"{field}: {part} is missing"
    if kind == "extra_forbidden":
        return f"{field}: it has no part {fault['loc'][-1]}"
    if given is None:
        return f"{field} is empty: write its value, or take it out"
    if field in _FAULT_HELP["forms"] and kind != "value_error":
        return f"{field}: write {_FAULT_HELP['forms'][field]}"
    if kind.startswith("union_tag"):
        return f"{field}: write {_FAULT_HELP['reading']}"
    if kind == "string_type" and isinstance(given, bool | int | float):
        return f"{field}: {json.dumps(given)} is not a text: put it in quotes"
    if kind == "string_pattern_mismatch":
        return f"{field}: {given!r} is not of the form: {_FAULT_HELP['patterns'].get(field, NAME_FORM)}"
    message = fault["msg"].removeprefix("Value error, ")
    return f"{field}: {message[0].lower()}{message[1:]}" if field else message


# Parts of a manifest: where a value is read, how the page's server is run, how a session logs in.

Expression = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=10_000)]
Words = Annotated[tuple[str, ...], Field(min_length=1)]  # a command, run without a shell
Threshold = Annotated[float, Field(gt=0, le=1)]
Side = Annotated[int, Field(ge=64, le=4096)]  # pixels
Local = Annotated[str, StringConstraints(pattern=r"^/")]  # an address of the page's own server, without its origin
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Requirement = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]+(\[[A-Za-z0-9,._-]+\])?==[A-Za-z0-9.+!]+$")]


class ManifestPart(BaseModel):
    """Hold a part of a manifest: it has no unknown fields, and is not changed after it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


_BESIDE_MANIFEST = re.compile(r"""\{manifest\}/([^\s{}'";&|]+)""")


class SeedParameter(ManifestPart):
    """Hold the name of the parameter by which a page's address hands it the seed: `?<parameter>=<seed>`."""

    parameter: str = Field(min_length=1, pattern=r"^[^&=#?\s]+$")


class PageExpression(ManifestPart):
    """Hold the reading of a value by a JavaScript expression, which is evaluated in the page."""

    expression: Expression


class CommandOutput(ManifestPart):
    """Hold the reading of a value from the output of a command, which is run in the session's folder.

    Where it prints nothing, its exit status counts: 0 means 1 or true, 1 means 0 or false.
    """

    command: Words


class DatabaseValue(ManifestPart):
    """Hold the reading of a value from an SQLite database in the session's folder: the first of a query's first row.

    sqlite: path of the database in that folder.
    """

    sqlite: str = Field(min_length=1)
    query: Expression


class ServerAnswer(ManifestPart):
    """Hold the reading of a value from a JSON response of the page's server.

    address: that is requested, path and query. value: path of the value in the response, such as `rows.0.total` or
    `rows.length`; "": the whole.
    """

    address: Local
    value: str = ""


def _reading_form(value: Any) -> str | None:
    if isinstance(value, Mapping):
        return next((name for name in ("command", "sqlite", "address", "expression") if name in value), None)
    forms = {CommandOutput: "command", DatabaseValue: "sqlite", ServerAnswer: "address", PageExpression: "expression"}
    return forms.get(type(value), "text")


OutsideReading = CommandOutput | DatabaseValue | ServerAnswer  # read by us, out of reach of the page's scripts
_Tagged = (
    Annotated[CommandOutput, Tag("command")]
    | Annotated[DatabaseValue, Tag("sqlite")]
    | Annotated[ServerAnswer, Tag("address")]
)
Reading = Annotated[Annotated[Expression, Tag("text")] | _Tagged, Discriminator(_reading_form)]
_Told = Annotated[str, Tag("text")] | Annotated[PageExpression, Tag("expression")]
Instruction = Annotated[_Told | _Tagged, Discriminator(_reading_form)]


class ServerSpec(ManifestPart):
    """Hold how a page's server is run: one process for each session, with its own port and folder.

    `{port}`, `{seed}`, `{variant}` and `{folder}` (the session's) are filled in in command, setup, environment, ready
    and in readings by a command or an address; `{manifest}` (the manifest's folder) only in setup, in such commands and
    in the path of command's program.
    """

    command: Words
    folder: str = ""  # copied for each session; relative to the manifest. "": a session's folder begins empty
    setup: tuple[Words, ...] = ()  # commands that are run in the session's folder before the server starts
    # Packages of PyPI, which `flywheel env page fetch` installs in a virtual environment of their own.
    packages: tuple[Requirement, ...] = ()
    environment: dict[Variable, str] = {}  # variables; of ours it gets only PATH
    ready: Local = "/"  # the server has started once this address answers
    start_s: float = Field(60, gt=0, le=600)  # deadline in seconds of copying the folder, setup and start
    read_s: float = Field(10, gt=0, le=60)  # deadline in seconds of reading one value
    memory_mb: int = Field(2048, ge=64)  # MiB of all its processes, and of files that they write in memory
    disk_mb: int = Field(2048, ge=1)  # MiB of all files of its session
    reads: tuple[str, ...] = ()  # more folders of this machine that it may read


class LoginSpec(ManifestPart):
    """Hold the login before the first page: cookies and headers that the browser sends, a form, or JavaScript."""

    cookies: dict[str, str] = {}
    headers: dict[str, str] = {}  # sent with every request to the page's own origin, and with readings by an address
    address: Local | None = None  # of the page with the form; None: the first page
    fill: dict[str, str] = {}  # CSS selector -> text
    submit: str = ""  # CSS selector of what is clicked after that
    run: Expression | None = None  # JavaScript in place of fill and submit
    done: Expression | None = None  # true on the first page once the login has worked

    @model_validator(mode="after")
    def _together(self) -> LoginSpec:
        if self.run and (self.fill or self.submit):
            raise ValueError("give run, or fill and submit")
        if bool(self.fill) != bool(self.submit):
            raise ValueError("fill and submit go together")
        if self.address and not (self.run or self.fill):
            raise ValueError("address goes with run, or with fill and submit")
        return self


Split = Literal["train", "eval"]


# The manifest, checked before anything is opened: a YAML or JSON file that says where a page comes from, how it is
# reset with a seed, and where its instruction, reward and end are read. Its JavaScript expressions and its commands can
# use the seed and the variant.

SHIPPED_MANIFESTS = Path(__file__).parent / "third_party"  # the manifests that ship with the project
MANIFEST_SUFFIXES = (".yaml", ".yml", ".json")
_SHOWN_CHARACTERS = 80  # of a name that cannot be one
FUNNEL_FILE = "funnel.json"  # stands beside manifests that were made, and is none (`synthesis.funnel`)
PAGE_VERIFIER = "page:reward"  # `session.score_page_reward`
ANSWER_VERIFIER = "page:answer"  # `session.score_page_answer`

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
_PACKAGE_PATTERN = r"^(pypi:[A-Za-z0-9._-]+==|npm:(@[a-z0-9._-]+/)?[a-z0-9._-]+@|deb:[a-z0-9.+-]+=)[A-Za-z0-9.+~:-]+$"
PackageName = Annotated[str, StringConstraints(pattern=_PACKAGE_PATTERN)]


class PageTask(ManifestPart):
    """Hold one task of a manifest's `tasks`; a field that is left out is the manifest's own."""

    instruction: str = Field(min_length=1)
    split: Split | None = None  # its only split; None: the manifest's
    start: str | None = None
    # Texts, one of which the agent must give (`finished(content=...)`): compared as `changes.same_answer` does. With a
    # reward too, both must hold.
    answer: tuple[Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)], ...] = ()
    reward: Reading | None = None
    success: float | Expression | None = None
    floor: float | None = None
    unverified: bool | None = None
    max_steps: int | None = Field(None, ge=1, le=10_000)
    level: int | None = Field(None, ge=1)
    # What is known of the task: JSON values that neither page nor policy sees.
    proof: dict[str, Any] = {}
    verification: dict[str, Any] = {}  # what `flywheel tasks attack` found of its verifier

    @field_validator("answer", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


_OF_TASKS_ALONE = {"split", "answer", "proof", "verification"}  # fields of PageTask that a manifest has not


class PageManifest(ManifestPart):
    """Hold a manifest: one page and its tasks; a comment is the field's description."""

    name: Name  # the tasks' `world`
    title: str = Field(min_length=1)
    domain: Name = "sites"  # unless synthesis.domains names the page in another
    made_by: Literal["page", "questions", "exploration"] = "page"  # what made its tasks
    # Where the page comes from: one of url, folder, package (then `folder` is inside of the packages) and server.
    url: str = ""  # of a page served elsewhere, which must be reachable when tasks are played
    folder: str = ""  # served on 127.0.0.1; relative to the manifest's own folder
    package: tuple[PackageName, ...] = ()  # unpacked one over another into one tree, which is served
    sha256: str = Field("", pattern=r"^([0-9a-f]{64})?$")  # of the packages' tree; `flywheel env page fetch` prints it
    server: ServerSpec | None = None  # one for each session
    login: LoginSpec | None = None  # before the first page
    # The first page, relative to what is served; a query and a #fragment may follow. With `server` the default is /.
    start: str = "index.html"
    alias: dict[str, str] = Field({})  # requested path -> served path, for files that the page expects elsewhere
    files: str = ""  # a folder, relative to the manifest's own, whose files may be uploaded to the page
    variants: tuple[Name, ...] = Field(("page",), min_length=1)  # several tasks of one manifest: {variant} in start
    tasks: dict[Name, PageTask] = {}  # in place of variants: each a task of its own, whose name is its variant
    # How a seed makes a task.
    ready: Expression | None = None  # true once reset may run; for pages that go on loading after their load event
    reset: Literal["reload"] | SeedParameter | Expression = "reload"  # JavaScript statements may return a promise
    seeded: bool = True  # another seed gives another task
    splits: tuple[Split, ...] = Field(("train", "eval"), min_length=1)
    instruction: Instruction  # a text, which may contain {variant}, or a value read after the reset
    # What the verifier reads: score = (reward - floor) / (success - floor), between 0 and 1. A text is an expression,
    # read in the page; a server's state is better read outside of it, where no script of the page can reach.
    reward: Reading  # a number
    success: float | Expression  # the reward at which the task is solved
    floor: float = 0.0  # the reward that scores 0
    # In place of a reward: nothing that can be read tells success, so scorers besides the verifier must judge.
    unverified: bool = False
    threshold: Threshold | dict[Name, Threshold] = 1.0  # the score that solves the task, or that of some variants
    end: Reading | None = None  # true once the page's own game or task is over; None: it never ends itself
    state: dict[Name, Reading] = Field({})  # further values recorded at each step: JSON values
    follow: bool | None = None  # read values on later pages too; None: unless reset is JavaScript
    # How it is played.
    origins: tuple[str, ...] = ()  # more origins that navigation may not leave, such as https://example.org
    viewport: tuple[Side, Side] | None = None  # width, height; None: the settings'
    max_steps: int = Field(ge=1, le=10_000)
    level: int = Field(1, ge=1)
    step_ms: int | None = Field(None, ge=0, le=60_000)  # page time that passes in a step; None: the settings'
    exact: bool = True  # false: its server acts in real time, so that a replay may differ
    settle_ms: int = Field(100, ge=0, le=4_000)  # page time that passes after the reset, before the first screen
    path: Path  # of the manifest file; not written in it
    answer: tuple[str, ...] = ()  # of the one task of `for_variant`; not written in it
    # Hashes of its files by name, which the manifests of its tasks share (`hash_files`); None: computed each time.
    _hashes: dict[str, str] | None = PrivateAttr(None)
    _shared: dict[str, str] = PrivateAttr(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _of_tasks(cls, raw: Any) -> Any:
        """Let the fields that each of `tasks` has be left out of the manifest, and its names be the variants."""
        if isinstance(raw, Mapping) and raw.get("unverified") is True:
            if "reward" in raw or "success" in raw:
                raise ValueError("unverified stands in place of reward and success")
            raw = {**raw, "reward": "0", "success": 1}
        tasks = raw.get("tasks") if isinstance(raw, Mapping) else None
        if not isinstance(tasks, Mapping) or not tasks:
            return raw
        if "variants" in raw or isinstance(raw.get("threshold"), Mapping):
            raise ValueError("tasks stand in place of variants: name each in tasks alone")
        own = {"reward": {"reward", "answer", "unverified"}, "max_steps": {"max_steps"}}
        for name, one in tasks.items():
            for field, those in own.items():
                if field not in raw and isinstance(one, Mapping) and not those & one.keys():
                    raise ValueError(
                        f"tasks: {name} has no {' or '.join(sorted(those - {'unverified'}, reverse=True))}"
                    )
        filled = {"instruction": "as its tasks say", "reward": "1", "success": 1, "max_steps": 1}
        return filled | dict(raw) | {"variants": list(tasks)}

    @field_validator("package", "origins", "variants", "splits", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("origins")
    @classmethod
    def _origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            if _parse_origin(origin) != origin.rstrip("/"):
                raise ValueError(f"{origin!r} is not an origin, such as https://example.org")
        return tuple(origin.rstrip("/") for origin in value)

    @field_validator("alias")
    @classmethod
    def _aliases(cls, value: dict[str, str]) -> dict[str, str]:
        if strange := [path for pair in value.items() for path in pair if not path.startswith("/")]:
            raise ValueError(f"{strange[0]!r} does not begin with /")
        return value

    @model_validator(mode="after")
    def _together(self) -> PageManifest:
        from_folder = bool(self.folder and not self.package)
        if bool(self.url) + from_folder + bool(self.package) + (self.server is not None) != 1:
            raise ValueError("give one of url, folder, package and server")
        outside = [*self.readings, *(f"tasks.{name}.reward" for name in self._task_rewards)]
        if self.server is None and outside:
            raise ValueError(f"{outside[0]} is read outside of the page, which only goes with server")
        if self.server is not None and self.alias:
            raise ValueError("alias goes with folder or package")
        if self.url and _parse_origin(self.url) is None:
            raise ValueError(f"url: {self.url!r} is not an http or https address")
        if self.url and (self.alias or "start" in self.model_fields_set):
            raise ValueError("start and alias go with folder or package: a url names its page itself")
        if self.sha256 and not self.package:
            raise ValueError("sha256 goes with package")
        if isinstance(self.success, float) and self.success <= self.floor:
            raise ValueError(f"success: {self.success:g} is not above floor: {self.floor:g}")
        if isinstance(self.threshold, dict) and (strange := self.threshold.keys() - set(self.variants)):
            raise ValueError(f"threshold: {min(strange)} is no variant")
        if not self.seeded and any(len(set(self.splits_of(variant))) > 1 for variant in self.variants):
            same = "seeded is false, so training and evaluation would have the same task"
            raise ValueError(f"{same}: write splits: [eval] or splits: [train]")
        if self.name in catalogue.list_worlds():
            raise ValueError(f"name: {self.name} is a world's name; choose another")
        if self.variants == ("page",) and "{variant}" in self.url + self.start:
            raise ValueError("start has {variant}, so variants must list them")
        return self

    @property
    def once(self) -> bool:
        """Tell whether each task is the same under every seed (as `TaskSuite.once`)."""
        return not self.seeded

    def splits_of(self, variant: str) -> tuple[Split, ...]:
        """Return the splits that the tasks of `variant` are drawn for: its own task's split, else the manifest's."""
        task = self.tasks.get(variant)
        return (task.split,) if task and task.split else self.splits

    def for_variant(self, variant: str) -> PageManifest:
        """Return the manifest of one variant alone, with the fields of its task; itself where `tasks` has none for it.

        The task's `proof` and `verification` are left out: nothing that opens a page has them.
        """
        task = self.tasks.get(variant)
        if task is None:
            return self
        own = {name: getattr(task, name) for name in PageTask.model_fields if name not in _OF_TASKS_ALONE}
        own = {name: value for name, value in own.items() if value is not None}
        own |= {"reward": "0", "success": 1.0, "floor": 0.0} if own.get("unverified") else {}
        found = self.model_copy(update={**own, "answer": task.answer, "tasks": {}, "variants": (variant,)})
        found._hashes = self._shared
        return found

    def hash_files(self, name: str, compute: Callable[[], str]) -> str:
        """Return a hash of files that `compute` computes: once for all tasks of a manifest (`for_variant`), else anew.

        name: of the files, as the hash is kept.
        """
        if self._hashes is None:
            return compute()
        if name not in self._hashes:
            self._hashes[name] = compute()
        return self._hashes[name]

    @property
    def expressions(self) -> dict[str, str]:
        """Return every expression that is read in the page at each step, by the name of its field."""
        return {field: what for field, what in self._read.items() if isinstance(what, str)}

    @property
    def readings(self) -> dict[str, OutsideReading]:
        """Return what is read outside of the page at each step, by the name of its field."""
        return {field: what for field, what in self._read.items() if isinstance(what, get_args(OutsideReading))}

    @property
    def _read(self) -> dict[str, str | OutsideReading]:
        found: dict[str, Any] = {"reward": self.reward, "end": self.end}
        if isinstance(self.success, str):
            found["success"] = self.success
        if not isinstance(self.instruction, str):
            told = self.instruction
            found["instruction"] = told.expression if isinstance(told, PageExpression) else told
        return found | {f"state.{name}": what for name, what in self.state.items()}

    @property
    def programs(self) -> list[tuple[str, str]]:
        """List the commands that the manifest runs on this machine, and what it installs and reads: (field, words)."""
        if self.server is None:
            return []
        found = [("server.packages", " ".join(self.server.packages)), ("server.reads", " ".join(self.server.reads))]
        found += [("server.setup", shlex.join(words)) for words in self.server.setup]
        found.append(("server.command", shlex.join(self.server.command)))
        return [one for one in found if one[1]] + [
            (field, shlex.join(words)) for field, words in self._command_readings.items()
        ]

    @property
    def _command_readings(self) -> dict[str, Words]:
        of_tasks = {f"tasks.{name}.reward": what for name, what in self._task_rewards.items()}
        asked = {**self.readings, **of_tasks}
        return {field: what.command for field, what in asked.items() if isinstance(what, CommandOutput)}

    @property
    def _task_rewards(self) -> dict[str, OutsideReading]:
        rewards = ((name, one.reward) for name, one in self.tasks.items())
        return {name: what for name, what in rewards if isinstance(what, get_args(OutsideReading))}

    @property
    def scripts(self) -> dict[str, Path]:
        """Return the files and folders that commands name by `{manifest}/...`, where they exist, by sorted name."""
        commands = [self.server.command, *self.server.setup, *self._command_readings.values()] if self.server else []
        named = {name for words in commands for word in words for name in _BESIDE_MANIFEST.findall(word)}
        return {name: path for name in sorted(named) if (path := self.path.parent / name).exists()}

    @property
    def follows(self) -> bool:
        """Tell whether values are read in documents that were not reset.

        Where JavaScript resets the page, a document loaded later has another task, so it is read only where the
        manifest says so (`follow`).
        """
        return not isinstance(self.reset, str) or self.reset == "reload" if self.follow is None else self.follow

    @property
    def origin(self) -> str | None:
        """Return the origin of `url`, `scheme://host:port`; None for a page that is served here."""
        return _parse_origin(self.url) if self.url else None

    @property
    def file_folder(self) -> Path | None:
        """Return the folder of files that may be uploaded; None where there is none."""
        return (self.path.parent / self.files).resolve() if self.files else None

    @property
    def source(self) -> str:
        """Return where the page comes from, in words: its url, packages, server's command or folder."""
        own = " ".join(self.server.packages or self.server.command) if self.server else ""
        return self.url or " ".join(self.package) or own or self.folder

    @property
    def first(self) -> str:
        """Return the path of the first page, relative to what is served."""
        return "" if self.server is not None and "start" not in self.model_fields_set else self.start.lstrip("/")

    @property
    def template(self) -> Path | None:
        """Return the folder that each session of a server gets a copy of; None for none."""
        return self.path.parent / self.server.folder if self.server and self.server.folder else None

    def instruct(self, variant: str) -> str:
        """Return the instruction of `variant` where the manifest gives a text; "" where it is read after the reset.

        A manifest with `tasks` has no text of its own: ask `for_variant(variant)`.
        """
        return self.instruction.replace("{variant}", variant) if isinstance(self.instruction, str) else ""


def load_page_manifest(path: Path) -> PageManifest:
    """Read and check the manifest in the file `path`.

    `files`, `folder` and `server.folder` are relative to the manifest's folder; they must exist, and so must the first
    page in `folder`, where there is no package. Fetched packages, and the folders of `server.reads`, are not checked.
    Raises BadInput that names the file, up to three wrong fields, and what to write.
    """
    raw = parse_manifest_file(path)
    for name in ("path", "answer"):
        if name in raw:
            raise BadInput(f"the manifest has no field {name}", where=path, fix="take it out")
    try:
        manifest = PageManifest.model_validate({**raw, "path": path.resolve()})
    except ValidationError as error:
        known = [name for name in PageManifest.model_fields if name not in ("path", "answer")]
        faults = list(dict.fromkeys(describe_manifest_fault(fault, known) for fault in error.errors()))
        more = f" (and {len(faults) - 3} more)" if len(faults) > 3 else ""
        raise BadInput("the manifest is wrong: " + "; ".join(faults[:3]) + more, where=path) from None
    served = manifest.path.parent / manifest.folder if manifest.folder and not manifest.package else None
    try:
        manifest.model_dump_json()  # as a checksum needs it
        folders = {"files": manifest.file_folder, "folder": served, "server.folder": manifest.template}
        for field, folder in folders.items():
            if folder is not None and not folder.is_dir():
                what = f"{field}: there is no folder {folder}"
                raise BadInput(what, where=path, fix="it is relative to the manifest")
        if served is not None:
            told = any(task.answer or task.proof for task in manifest.tasks.values())
            if told and manifest.path.is_relative_to(served.resolve()):
                what = "the manifest lies in the folder that is served, where its answers can be read"
                raise BadInput(what, where=path, fix="move it beside that folder")
            check_start_page(manifest, served)
    except OSError as error:  # such as a name that is too long for any file
        what = f"a place that it names cannot be looked at: {error.strerror}"
        raise BadInput(what, where=path, fix="mend folder, files or start") from None
    except ValueError as error:
        what = f"it has a character that no path or no file can hold: {error}"
        raise BadInput(what, where=path, fix="take it out") from None
    return manifest


def find_page_manifest(name: str) -> Path:
    """Return the path of a manifest, which is given by its path or by the name of one that ships with the project.

    name: a file of this path (relative to the current folder) goes before a shipped manifest of this name. Raises
    BadInput, which lists the shipped ones, where there is neither, or the file system refuses the name.
    """
    try:
        for path in (Path(name), SHIPPED_MANIFESTS / f"{name}.yaml"):
            if path.is_file():
                return path
    except OSError as error:
        raise _make_name_error(name, error) from None
    known = ", ".join(sorted(path.stem for path in SHIPPED_MANIFESTS.glob("*.yaml")))
    raise BadInput("no such manifest", where=name, fix=f"give its path, or one that ships with flywheel: {known}")


def _make_name_error(name: str, error: OSError) -> BadInput:
    """Return what to raise for a name that the file system refuses, such as one that is too long for any file."""
    where = name if len(name) <= _SHOWN_CHARACTERS else f"{name[:_SHOWN_CHARACTERS]}..."
    what = f"no manifest can be found by this name: {error.strerror}"
    return BadInput(what, where=where, fix="give the path of a file")


def load_page_manifests(entries: Sequence[str], root: Path) -> dict[str, PageManifest]:
    """Load every manifest of `synthesis.manifests`; returns them by the name in the manifest, in order.

    entries: files, folders whose manifests are all loaded (not those of subfolders), names of shipped manifests; a file
    or folder goes before a shipped one of its name, and one named twice is loaded once. root: the folder from which
    relative paths count; a file that is not there is looked for in the current one. Raises BadInput for an entry that
    is none of these, a wrong manifest, a folder without manifests, or a name that two manifests have.
    """
    found: dict[str, PageManifest] = {}
    for entry in entries:
        for path in _list_manifest_files(entry, root):
            manifest = load_page_manifest(path)
            known = found.setdefault(manifest.name, manifest)
            if known.path != manifest.path:
                raise BadInput(f"the name {manifest.name} is that of {known.path} too", where=path, fix="change one")
    return found


def check_start_page(manifest: PageManifest, served: Path) -> None:
    """Check that the first page of each variant of `manifest` is in the served folder.

    served: that folder; where `start` names a folder in it, the page is its index.html. Raises BadInput for a page that
    does not exist or lies outside.
    """
    starts = {manifest.for_variant(variant).start.replace("{variant}", variant) for variant in manifest.variants}
    for address in sorted(starts):
        try:
            start = urlsplit(address).path.lstrip("/")
        except ValueError as error:
            raise BadInput(f"start: {address}: {error}", where=manifest.path, fix="name a page") from None
        if ".." in PurePosixPath(start).parts:
            raise BadInput(f"start: {start} leaves what is served", where=manifest.path, fix="name a page inside of it")
        page = served / start
        if page.is_dir():
            page = page / "index.html"
        if not page.is_file():
            pages = sorted(str(p.relative_to(served)) for p in served.glob("*.htm*"))[:5]
            there = f"there are: {', '.join(pages)}" if pages else "it holds no .html file of its own"
            raise BadInput(f"start: there is no {start} in {served}", where=manifest.path, fix=there)


def format_command_name(manifest: PageManifest) -> str:
    """Return the argument by which commands name a manifest: a shipped one's name, else its path."""
    return manifest.path.stem if manifest.path.parent == SHIPPED_MANIFESTS else str(manifest.path)


def _list_manifest_files(entry: str, root: Path) -> Iterator[Path]:
    place = root / entry
    try:
        is_folder, is_file = place.is_dir(), place.is_file()
    except OSError as error:
        raise _make_name_error(entry, error) from None
    if is_folder:
        files = sorted(p for p in place.iterdir() if p.suffix in MANIFEST_SUFFIXES and p.name != FUNNEL_FILE)
        if not files:
            fix = f"their names end in {', '.join(MANIFEST_SUFFIXES)}"
            raise BadInput("the folder has no manifests", where=place, fix=fix)
        yield from files
    elif is_file:
        yield place
    else:
        yield find_page_manifest(entry)


def _parse_origin(url: str) -> str | None:
    """Return `scheme://host:port`, in lower case, of an http or https address; None for anything else."""
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or re.search(r"\s|@", parts.netloc):
            return None
        port = f":{parts.port}" if parts.port is not None else ""
    except ValueError:
        return None
    return f"{parts.scheme}://{parts.hostname}{port}"
