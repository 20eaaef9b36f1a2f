"""Third-party pages by manifest alone: what a manifest says, checked before anything is opened.

A manifest is a YAML or JSON file that makes a web page which nobody here wrote a task: where the page comes from (an
address, a folder, packages of a registry, a server that is started for each session), how it is reset with a seed,
where its instruction, its reward and its end are read. It holds JavaScript expressions and commands, but no code of
ours. `seed` and `variant` are known in all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import Field, StringConstraints, ValidationError, field_validator, model_validator

from flywheel.errors import BadInput
from flywheel.sandbox import manifest_text
from flywheel.sandbox.manifest_parts import (
    Expression,
    Instruction,
    Login,
    Outside,
    Parameter,
    Part,
    Read,
    Reading,
    Server,
    Split,
)
from flywheel.worlds import catalogue

THIRD_PARTY = Path(__file__).parent / "third_party"  # the manifests that ship with the project
SUFFIXES = (".yaml", ".yml", ".json")
VERIFIER = "page:reward"  # `reading.page_reward`

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
_PACKAGE = r"^(pypi:[A-Za-z0-9._-]+==|npm:(@[a-z0-9._-]+/)?[a-z0-9._-]+@|deb:[a-z0-9.+-]+=)[A-Za-z0-9.+~:-]+$"
PackageName = Annotated[str, StringConstraints(pattern=_PACKAGE)]


class PageManifest(Part):
    """One page and its tasks. What is left out has the default beside it."""

    name: Name  # the tasks' `world`
    title: str = Field(min_length=1)
    domain: Name = "sites"  # unless synthesis.domains names it in another
    # Where the page comes from: one of url, folder, package (with `folder` a folder inside of the packages) and server.
    url: str = ""  # a page that is served elsewhere; it must be reachable when tasks are played
    folder: str = ""  # served on 127.0.0.1; relative to the manifest's own folder
    package: tuple[PackageName, ...] = ()  # unpacked one over another into one tree, which is served
    sha256: str = Field("", pattern=r"^([0-9a-f]{64})?$")  # of the packages' tree: `flywheel page fetch` tells it
    server: Server | None = None  # one for each session
    login: Login | None = None  # before the first page
    # The first page, relative to what is served; a query and a #fragment may follow. A server's own: the root.
    start: str = "index.html"
    alias: dict[str, str] = Field({})  # path asked for -> path that is served, for what the page expects elsewhere
    files: str = ""  # a folder, relative to the manifest's own: what the page may be given where it asks for a file
    variants: tuple[Name, ...] = Field(("page",), min_length=1)  # several tasks of one manifest: {variant} in start
    # From a seed to a task.
    ready: Expression | None = None  # true when reset may run; for pages that go on loading after their load event
    reset: Literal["reload"] | Parameter | Expression = "reload"  # JavaScript may be statements, or give a promise
    seeded: bool = True  # another seed gives another task
    splits: tuple[Split, ...] = Field(("train", "eval"), min_length=1)
    instruction: Instruction  # a text, in which {variant} may stand, or what is read after the reset
    # What the verifier reads: score = (reward - floor) / (success - floor), between 0 and 1. An expression is read in
    # the page; what a server did is better read outside of it, where no script of the page can reach.
    reward: Reading  # a number
    success: float | Expression  # the reward at which the task is solved
    floor: float = 0.0  # the reward that scores 0
    end: Reading | None = None  # true when the page's own game or task is over; none: it never ends by itself
    state: dict[Name, Reading] = Field({})  # what else is recorded at each step: JSON values
    follow: bool | None = None  # read on pages that the first one leads to, too; none: unless reset is JavaScript
    # How it is played.
    origins: tuple[str, ...] = ()  # more origins that navigation may not leave, such as https://example.org
    viewport: tuple[int, int] | None = None  # width, height; none: the settings' own
    max_steps: int = Field(ge=1, le=10_000)
    level: int = Field(1, ge=1)
    step_ms: int | None = Field(None, ge=0, le=60_000)  # page time that passes in a step; none: the settings' own
    exact: bool = True  # false: what its server does in its own time may show, so that a replay may differ
    settle_ms: int = Field(100, ge=0, le=4_000)  # page time that passes after the reset, before the first screen
    path: Path  # of the manifest file; not written in it

    @field_validator("package", "origins", "variants", "splits", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("viewport")
    @classmethod
    def _seen(cls, value: tuple[int, int] | None) -> tuple[int, int] | None:
        if value is not None and not all(64 <= side <= 4096 for side in value):
            raise ValueError(f"write {manifest_text.FORMS['viewport']}")
        return value

    @field_validator("origins")
    @classmethod
    def _origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            if _origin(origin) != origin.rstrip("/"):
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
        if self.server is None and self.readings:
            raise ValueError(f"{next(iter(self.readings))} is read outside of the page, which only goes with server")
        if self.server is not None and self.alias:
            raise ValueError("alias goes with folder or package")
        if self.url and _origin(self.url) is None:
            raise ValueError(f"url: {self.url!r} is not an http or https address")
        if self.url and (self.alias or "start" in self.model_fields_set):
            raise ValueError("start and alias go with folder or package: a url names its page itself")
        if self.sha256 and not self.package:
            raise ValueError("sha256 goes with package")
        if isinstance(self.success, float) and self.success <= self.floor:
            raise ValueError(f"success: {self.success:g} is not above floor: {self.floor:g}")
        if not self.seeded and len(set(self.splits)) > 1:
            raise ValueError(
                "seeded is false, so training and evaluation would have the same task: "
                "write splits: [eval] or splits: [train]"
            )
        if self.name in catalogue.names():
            raise ValueError(f"name: {self.name} is a world's name; choose another")
        if self.variants == ("page",) and "{variant}" in self.url + self.start:
            raise ValueError("start has {variant}, so variants must list them")
        return self

    @property
    def expressions(self) -> dict[str, str]:
        """Every expression that is read in the page at each step, by the name of its field."""
        return {field: what for field, what in self._read.items() if isinstance(what, str)}

    @property
    def readings(self) -> dict[str, Outside]:
        """What is read outside of the page at each step, by the name of its field."""
        return {field: what for field, what in self._read.items() if isinstance(what, get_args(Outside))}

    @property
    def _read(self) -> dict[str, str | Outside]:
        found: dict[str, Any] = {"reward": self.reward, "end": self.end}
        if isinstance(self.success, str):
            found["success"] = self.success
        if not isinstance(self.instruction, str):
            told = self.instruction
            found["instruction"] = told.expression if isinstance(told, Read) else told
        return found | {f"state.{name}": what for name, what in self.state.items()}

    @property
    def follows(self) -> bool:
        """Whether documents that were not reset are read. Where JavaScript resets the page, one that was loaded anew
        poses another task than the one that was asked, so what it says counts only where the manifest says so."""
        return not isinstance(self.reset, str) or self.reset == "reload" if self.follow is None else self.follow

    @property
    def origin(self) -> str | None:
        """Origin of the address; None for what is served here."""
        return _origin(self.url) if self.url else None

    @property
    def file_folder(self) -> Path | None:
        """The folder of the session's files; None where there is none."""
        return (self.path.parent / self.files).resolve() if self.files else None

    @property
    def source(self) -> str:
        """Where the page comes from, in words."""
        own = " ".join(self.server.packages or self.server.command) if self.server else ""
        return self.url or " ".join(self.package) or own or self.folder

    @property
    def first(self) -> str:
        """The first page, relative to what is served."""
        return "" if self.server is not None and "start" not in self.model_fields_set else self.start.lstrip("/")

    @property
    def template(self) -> Path | None:
        """The folder that each session of a server gets a copy of."""
        return self.path.parent / self.server.folder if self.server and self.server.folder else None

    def instruct(self, variant: str) -> str:
        """The instruction where it is a text; "" where it is read after the reset."""
        return self.instruction.replace("{variant}", variant) if isinstance(self.instruction, str) else ""


def load(path: Path) -> PageManifest:
    """Read and check one manifest. Raises BadInput that names file, field and what to write."""
    raw = manifest_text.parse(path)
    if "path" in raw:
        raise BadInput("the manifest has no field path", where=path, fix="take it out")
    try:
        manifest = PageManifest.model_validate({**raw, "path": path.resolve()})
    except ValidationError as error:
        known = [name for name in PageManifest.model_fields if name != "path"]
        faults = list(dict.fromkeys(manifest_text.told(fault, known) for fault in error.errors()))
        more = f" (and {len(faults) - 3} more)" if len(faults) > 3 else ""
        raise BadInput("the manifest is wrong: " + "; ".join(faults[:3]) + more, where=path) from None
    if manifest.files and not manifest.file_folder.is_dir():
        raise BadInput(
            f"files: there is no folder {manifest.file_folder}", where=path, fix="it is relative to the manifest"
        )
    if manifest.folder and not manifest.package:
        folder = manifest.path.parent / manifest.folder
        if not folder.is_dir():
            raise BadInput(f"folder: there is no folder {folder}", where=path, fix="it is relative to the manifest")
        check_start(manifest, folder)
    if manifest.template is not None and not manifest.template.is_dir():
        raise BadInput(
            f"server.folder: there is no folder {manifest.template}", where=path, fix="it is relative to the manifest"
        )
    return manifest


def find(name: str) -> Path:
    """A manifest by its path, or by the name of one that ships with the project. Raises BadInput."""
    if Path(name).is_file():
        return Path(name)
    shipped = THIRD_PARTY / f"{name}.yaml"
    if shipped.is_file():
        return shipped
    known = ", ".join(sorted(path.stem for path in THIRD_PARTY.glob("*.yaml")))
    raise BadInput("no such manifest", where=name, fix=f"give its path, or one that ships with flywheel: {known}")


def load_all(entries: Sequence[str], root: Path) -> dict[str, PageManifest]:
    """Every manifest that `synthesis.manifests` names, by name: files, folders of files, names of shipped ones.

    root: what relative paths are relative to. Raises BadInput for an entry that is none of these, a folder without
    manifests, or a name that two manifests have.
    """
    found: dict[str, PageManifest] = {}
    for entry in entries:
        for path in _files(entry, root):
            manifest = load(path)
            known = found.setdefault(manifest.name, manifest)
            if known.path != manifest.path:
                raise BadInput(f"the name {manifest.name} is that of {known.path} too", where=path, fix="change one")
    return found


def check_start(manifest: PageManifest, served: Path) -> None:
    """Raises BadInput where a first page is not among what is served, or lies outside of it."""
    for variant in manifest.variants:
        start = urlsplit(manifest.start.replace("{variant}", variant)).path.lstrip("/")
        if ".." in PurePosixPath(start).parts:
            raise BadInput(f"start: {start} leaves what is served", where=manifest.path, fix="name a page inside of it")
        page = served / start
        if page.is_dir():
            page = page / "index.html"
        if not page.is_file():
            pages = sorted(str(p.relative_to(served)) for p in served.glob("*.htm*"))[:5]
            there = f"there are: {', '.join(pages)}" if pages else "it holds no .html file of its own"
            raise BadInput(f"start: there is no {start} in {served}", where=manifest.path, fix=there)


def called(manifest: PageManifest) -> str:
    """How a command names a manifest."""
    return manifest.path.stem if manifest.path.parent == THIRD_PARTY else str(manifest.path)


def _files(entry: str, root: Path) -> Iterator[Path]:
    place = root / entry
    if place.is_dir():
        files = sorted(path for path in place.iterdir() if path.suffix in SUFFIXES)
        if not files:
            raise BadInput("the folder has no manifests", where=place, fix=f"their names end in {', '.join(SUFFIXES)}")
        yield from files
    elif place.is_file():
        yield place
    else:
        yield find(entry)


def _origin(url: str) -> str | None:
    """`https://host:port` of an http address, lower case; None for anything else."""
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or re.search(r"\s|@", parts.netloc):
            return None
        port = f":{parts.port}" if parts.port is not None else ""
    except ValueError:
        return None
    return f"{parts.scheme}://{parts.hostname}{port}"
