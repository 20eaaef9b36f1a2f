"""Third-party pages by manifest alone: what a manifest says, checked before anything is opened.

A manifest is a YAML or JSON file that makes a web page which nobody here wrote a task: where the page comes from (an
address, a folder, packages of a registry), how it is reset with a seed, where its instruction, its reward and its end
are read. It holds JavaScript expressions, but no code of ours. `seed` and `variant` are known in all of them.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator, model_validator

from flywheel.errors import BadInput
from flywheel.worlds import catalogue

THIRD_PARTY = Path(__file__).parent / "third_party"  # the manifests that ship with the project
SUFFIXES = (".yaml", ".yml", ".json")
VERIFIER = "page:reward"  # flywheel.reward.verifiers

Expression = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=10_000)]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
_PACKAGE = r"^(pypi:[A-Za-z0-9._-]+==|npm:(@[a-z0-9._-]+/)?[a-z0-9._-]+@|deb:[a-z0-9.+-]+=)[A-Za-z0-9.+~:-]+$"
PackageName = Annotated[str, StringConstraints(pattern=_PACKAGE)]
# What to write where a field is missing.
_EXAMPLES = {
    "name": "name: my-page", "title": "title: My page", "instruction": "instruction: Clear the board.",
    "reward": "reward: game.score", "success": "success: 1", "max_steps": "max_steps: 20",
}  # fmt: skip
# What to write in a field that may be of several forms.
_FORMS = {
    "reset": "reload, a JavaScript expression in quotes, or {parameter: NAME}",
    "instruction": "a text, or {expression: JAVASCRIPT}",
    "success": "a number, or a JavaScript expression in quotes",
    "viewport": "[WIDTH, HEIGHT], 64 to 4096 pixels each",
    "package": "pypi:NAME==VERSION, npm:NAME@VERSION or deb:NAME=VERSION, or a list of them",
    "variants": "a list of names of lower-case letters, digits, '.', '_' and '-'",
}


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Parameter(_Part):
    """The page takes its seed from its address: `?<parameter>=<seed>`."""

    parameter: str = Field(min_length=1, pattern=r"^[^&=#?\s]+$")


class Read(_Part):
    """A JavaScript expression, evaluated in the page."""

    expression: Expression


class Manifest(_Part):
    """One page and its tasks. What is left out has the default beside it."""

    name: Name  # the tasks' `world`
    title: str = Field(min_length=1)
    domain: Literal["games", "sites"] = "sites"
    # Where the page comes from: one of url, folder and package (with `folder` a folder inside of the packages).
    url: str = ""  # a page that is served elsewhere; it must be reachable when tasks are played
    folder: str = ""  # served on 127.0.0.1; relative to the manifest's own folder
    package: tuple[PackageName, ...] = ()  # unpacked one over another into one tree, which is served
    sha256: str = Field("", pattern=r"^([0-9a-f]{64})?$")  # of the packages' tree: `flywheel page fetch` tells it
    start: str = "index.html"  # the first page, relative to what is served; a query and a #fragment may follow
    alias: dict[str, str] = {}  # path asked for -> path that is served, for what the page expects elsewhere
    variants: tuple[Name, ...] = Field(("page",), min_length=1)  # several tasks of one manifest: {variant} in start
    # From a seed to a task.
    ready: Expression | None = None  # true when reset may run; for pages that go on loading after their load event
    reset: Literal["reload"] | Parameter | Expression = "reload"  # JavaScript may be statements, or give a promise
    seeded: bool = True  # another seed gives another task
    splits: tuple[Literal["train", "eval"], ...] = Field(("train", "eval"), min_length=1)
    instruction: str | Read  # a text, in which {variant} may stand, or an expression read after the reset
    # What the verifier reads: score = (reward - floor) / (success - floor), between 0 and 1.
    reward: Expression  # a number
    success: float | Expression  # the reward at which the task is solved
    floor: float = 0.0  # the reward that scores 0
    end: Expression | None = None  # true when the page's own game or task is over; none: it never ends by itself
    state: dict[Name, Expression] = {}  # what else is recorded at each step: JSON values
    follow: bool | None = None  # read on pages that the first one leads to, too; none: unless reset is JavaScript
    # How it is played.
    origins: tuple[str, ...] = ()  # more origins that navigation may not leave, such as https://example.org
    viewport: tuple[int, int] | None = None  # width, height; none: the settings' own
    max_steps: int = Field(ge=1, le=10_000)
    level: int = Field(1, ge=1)
    step_ms: int | None = Field(None, ge=0, le=60_000)  # page time that passes in a step; none: the settings' own
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
            raise ValueError(f"write {_FORMS['viewport']}")
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
    def _together(self) -> Manifest:
        if bool(self.url) + bool(self.folder and not self.package) + bool(self.package) != 1:
            raise ValueError("give one of url, folder and package")
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
        """Every expression that is read at each step, by the name of its field."""
        found = {"reward": self.reward}
        if self.end is not None:
            found["end"] = self.end
        if isinstance(self.success, str):
            found["success"] = self.success
        if isinstance(self.instruction, Read):
            found["instruction"] = self.instruction.expression
        return found | {f"state.{name}": text for name, text in self.state.items()}

    @property
    def follows(self) -> bool:
        """Whether documents that were not reset are read. Where JavaScript resets the page, one that was loaded anew
        poses another task than the one that was asked, so what it says counts only where the manifest says so."""
        return not isinstance(self.reset, str) or self.reset == "reload" if self.follow is None else self.follow

    @property
    def origin(self) -> str | None:
        """Origin of the address; None for what is served here."""
        return _origin(self.url) if self.url else None

    def instruct(self, variant: str) -> str:
        """The instruction where it is a text; "" where the page tells it."""
        return "" if isinstance(self.instruction, Read) else self.instruction.replace("{variant}", variant)


def load(path: Path) -> Manifest:
    """Read and check one manifest. Raises BadInput that names file, field and what to write."""
    raw = _parse(path)
    if "path" in raw:
        raise BadInput("the manifest has no field path", where=path, fix="take it out")
    try:
        manifest = Manifest.model_validate({**raw, "path": path.resolve()})
    except ValidationError as error:
        faults = list(dict.fromkeys(_told(fault) for fault in error.errors()))
        more = f" (and {len(faults) - 3} more)" if len(faults) > 3 else ""
        raise BadInput("the manifest is wrong: " + "; ".join(faults[:3]) + more, where=path) from None
    if manifest.folder and not manifest.package:
        folder = manifest.path.parent / manifest.folder
        if not folder.is_dir():
            raise BadInput(f"folder: there is no folder {folder}", where=path, fix="it is relative to the manifest")
        check_start(manifest, folder)
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


def load_all(entries: Sequence[str], root: Path) -> dict[str, Manifest]:
    """Every manifest that `synthesis.manifests` names, by name: files, folders of files, names of shipped ones.

    root: what relative paths are relative to. Raises BadInput for an entry that is none of these, a folder without
    manifests, or a name that two manifests have.
    """
    found: dict[str, Manifest] = {}
    for entry in entries:
        for path in _files(entry, root):
            manifest = load(path)
            known = found.setdefault(manifest.name, manifest)
            if known.path != manifest.path:
                raise BadInput(f"the name {manifest.name} is that of {known.path} too", where=path, fix="change one")
    return found


def check_start(manifest: Manifest, served: Path) -> None:
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


def _parse(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        raw = json.loads(text, object_pairs_hook=_once) if path.suffix == ".json" else yaml.load(text, _Loader)
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


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if twice := {key for key in keys if keys.count(key) > 1}:
        raise ValueError(f"{sorted(twice)[0]} stands twice")
    return dict(pairs)


class _Loader(yaml.SafeLoader):
    """YAML in which no field may stand twice: the second would silently win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        _once([(str(key), None) for key in keys])
        return super().construct_mapping(node, deep)


def _told(fault: dict[str, Any]) -> str:
    """One fault of a manifest, as `field: what; what to write`."""
    field, kind, given = str(fault["loc"][0]) if fault["loc"] else "", fault["type"], fault["input"]
    if field == "state" and len(fault["loc"]) > 1:
        field = f"state.{fault['loc'][1]}"
    if kind == "missing" and len(fault["loc"]) == 1:
        return f"{field} is missing: add `{_EXAMPLES[field]}`"
    if kind == "extra_forbidden" and len(fault["loc"]) == 1:
        near = difflib.get_close_matches(field, [name for name in Manifest.model_fields if name != "path"], 1)
        return f"there is no field {field}" + (f": did you mean {near[0]}?" if near else ": take it out")
    if given is None:
        return f"{field} is empty: write its value, or take it out"
    if field in _FORMS and kind != "value_error":
        return f"{field}: write {_FORMS[field]}"
    if kind == "string_type" and isinstance(given, bool | int | float):
        return f"{field}: {json.dumps(given)} is not a text: put it in quotes"
    if kind == "string_pattern_mismatch":
        need = "64 hexadecimal digits" if field == "sha256" else "lower-case letters, digits, '.', '_' and '-'"
        return f"{field}: {given!r} is not of the form: {need}"
    message = fault["msg"].removeprefix("Value error, ")
    return f"{field}: {message[0].lower()}{message[1:]}" if field else message


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
