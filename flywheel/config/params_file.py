"""Read, check and write the settings as `params.yaml`, and describe each parameter for `flywheel settings`."""

from __future__ import annotations

import difflib
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from flywheel.config import renamed
from flywheel.config.settings import Settings
from flywheel.utils import yaml_text
from flywheel.utils.errors import BadInput, did_you_mean
from flywheel.utils.files import write_text


@dataclass(frozen=True)
class ParameterInfo:
    """Hold the description of a parameter.

    name: dotted; of one that stands in no block, without a dot. description: in words. schema: JSON Schema of its
    values. default: as JSON has it.
    """

    name: str
    description: str
    schema: dict[str, Any]
    default: Any

    @property
    def values(self) -> str:
        """Describe which values it takes: `whole number, 1 to 64`."""
        return _describe_schema(self.schema)

    @property
    def comment(self) -> str:
        """Return the comment in `params.yaml`: the description, with the choices added where it does not name all."""
        choices = [str(one) for one in self.schema.get("enum", ())]
        if all(choice in self.description for choice in choices):
            return self.description
        return f"{self.description} One of {', '.join(choices)}."

    def value(self, values: Mapping[str, Any]) -> Any:
        """Return the parameter's value in `values`, a dump of settings by `model_dump(mode="json")`.

        Raises KeyError where they lack it.
        """
        found: Any = values
        for part in self.name.split("."):
            found = found[part]
        return found


@dataclass(frozen=True)
class ParameterSection:
    """Hold the description of a block of settings, with its parameters in the order of the file.

    name: "" for the parameters that stand in no block. description: in words.
    """

    name: str
    description: str
    parameters: tuple[ParameterInfo, ...]


@cache
def list_parameter_sections() -> tuple[ParameterSection, ...]:
    """List all blocks with their parameters, in the order of the file.

    The parameters that stand in no block come first, as a section without a name.
    """
    blocks = {name: field.annotation for name, field in Settings.model_fields.items() if _is_block(field.annotation)}
    return tuple(
        ParameterSection(name, _one_line(block.__doc__), tuple(_parameters(block, name)))
        for name, block in {"": Settings, **blocks}.items()
    )


def find_parameter_section(name: str) -> ParameterSection:
    """Find the block called `name`; or the block of the parameter called `name`, with that parameter alone.

    name: of a block, or of a parameter, dotted as in `params.yaml` (`rl.steps`); earlier names are not found. Raises
    BadInput, with the nearest name or else those that exist, where there is neither.
    """
    for section in list_parameter_sections():
        if name and section.name == name:
            return section
        for parameter in section.parameters:
            if parameter.name == name:
                return replace(section, parameters=(parameter,))
    raise BadInput(f"there is no parameter or block {name or repr(name)}", fix=_suggest_parameter(name))


def _suggest_parameter(name: str) -> str:
    """Suggest what was probably meant: for `rl.alhpa`, rl.gae_lambda_alpha, whose earlier name is rl.alpha."""
    blocks = [section.name for section in list_parameter_sections() if section.name]
    names = [parameter.name for section in list_parameter_sections() for parameter in section.parameters]
    meant: dict[str, list[str]] = {block: [block] for block in blocks}
    for name_or_earlier, now in (*zip(names, names, strict=True), *renamed.RENAMED.items()):
        for said in {name_or_earlier, name_or_earlier.rpartition(".")[2]}:
            meant.setdefault(said, []).append(now)
    if near := difflib.get_close_matches(name, meant, 1, cutoff=0.7):
        return f"did you mean {' or '.join(meant[near[0]])}?"
    if (block := name.partition(".")[0]) in blocks:
        return f"`flywheel settings {block}` tells which there are"
    return did_you_mean(name, blocks)


def _is_block(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _parameters(block: type[BaseModel], name: str) -> Iterator[ParameterInfo]:
    default, schemas = block().model_dump(mode="json"), block.model_json_schema()["properties"]
    names = [name for base in block.__mro__ for name in inspect.get_annotations(base)]  # its own first
    for field in (name for name in dict.fromkeys(names) if name in block.model_fields):
        if not _is_block(block.model_fields[field].annotation):
            told = ("default", "title", "description")
            schema = {key: value for key, value in schemas[field].items() if key not in told}
            yield ParameterInfo(f"{name}.{field}".lstrip("."), _description(block, field), schema, default[field])


def _description(block: type[BaseModel], field: str) -> str:
    """Return the field's description; where a block only changes the default, that of the block it inherits from."""
    bases = (base for base in block.__mro__ if issubclass(base, BaseModel) and field in base.model_fields)
    return _one_line(next(filter(None, (base.model_fields[field].description for base in bases)), ""))


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


_TYPES = {"integer": "whole number", "number": "number", "boolean": "true or false", "null": "null", "string": "text"}


def _describe_schema(schema: Mapping[str, Any]) -> str:
    if forms := schema.get("anyOf"):
        return ", or ".join(map(_describe_schema, forms))
    if choices := schema.get("enum"):
        return f"one of {', '.join(map(str, choices))}"
    if schema["type"] == "array":
        inner = _describe_schema(schema["items"])
        some = inner.replace("one of", "any of", 1) if "enum" in schema["items"] else f"{inner}s"
        return f"list of {some}" + (", not empty" if schema.get("minItems") else "")
    if schema["type"] == "object":
        (inner,) = schema.get("patternProperties", {"": schema.get("additionalProperties")}).values()
        if isinstance(inner, bool):  # of any values
            return "mapping"
        return f"mapping of names, each to a {_describe_schema(inner)}"
    return ", ".join(filter(None, (_TYPES[schema["type"]], _describe_limits(schema))))


def _describe_limits(schema: Mapping[str, Any]) -> str:
    """Describe a schema's limits: `1 to 64`, `1 or more`, `above 0`, `0 or more and below 1`; of a text `not empty`."""
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None and most is not None:
        return f"{least} to {most}"
    marks = {
        "minimum": "{} or more",
        "exclusiveMinimum": "above {}",
        "maximum": "at most {}",
        "exclusiveMaximum": "below {}",
        "minLength": "not empty",
    }
    return " and ".join(text.format(schema[key]) for key, text in marks.items() if key in schema)


@dataclass(frozen=True)
class SettingsFault:
    """Hold one fault of the settings.

    parameter: dotted; "" where the message itself names several. renamed: whether its name or value is an earlier one.
    """

    parameter: str
    message: str
    renamed: bool = False

    @property
    def line(self) -> str:
        """Return the fault in one line."""
        return f"{self.parameter}: {self.message}" if self.parameter else self.message

    def names(self, parameters: Iterable[str]) -> bool:
        """Tell whether the fault concerns one of `parameters` (dotted names), or a block or an entry of one."""
        mentioned = {self.parameter} if self.parameter else set(re.findall(r"[a-z_]+(?:\.[a-z_]+)+", self.message))
        return any(
            f"{one}.".startswith(f"{name}.") or f"{name}.".startswith(f"{one}.")
            for one in mentioned
            for name in parameters
        )


def list_settings_faults(error: ValidationError, settings: type[BaseModel]) -> list[SettingsFault]:
    """List the faults of pydantic's validation `error` in its order, one for each parameter, also for union types.

    settings: the class that was validated; the names are dotted from it on.
    """
    by_name: dict[str, list[str]] = {}
    earlier: set[str] = set()
    for fault in error.errors():
        path = [str(part) for part in fault["loc"]]
        found = resolve_parameter_path(path, settings)
        name = ".".join(path if found is None else found)
        if hint := renamed.describe_renamed(".".join(path), fault["input"]):
            earlier.add(name)
        by_name.setdefault(name, []).append(hint or _describe_fault(fault, path, settings))
    told = ((name, ", or ".join(dict.fromkeys(messages))) for name, messages in by_name.items())
    return [SettingsFault(name, message, name in earlier) for name, message in told]


def resolve_parameter_path(path: Sequence[str], block: type[BaseModel]) -> list[str] | None:
    """Return the part of `path` that names a parameter, or an entry of a list or mapping; None where there is none.

    path: parts of a dotted name, or of an error's location in pydantic, which ends in tags of its own (the tried type
    of a union): they are left out. block: the class of settings that the path begins in.
    """
    if not path or path[0] not in block.model_fields:
        return None
    inner = block.model_fields[path[0]].annotation
    if isinstance(inner, type) and issubclass(inner, BaseModel):
        rest = resolve_parameter_path(path[1:], inner) if len(path) > 1 else []
        return None if rest is None else [path[0], *rest]
    if typing.get_origin(inner) in (typing.Union, types.UnionType) or not re.fullmatch(r"\w+", "".join(path[1:2])):
        return [path[0]]
    return list(path[:2])


def _describe_fault(fault: dict[str, Any], path: Sequence[str], settings: type[BaseModel]) -> str:
    if fault["type"] != "extra_forbidden":
        return fault["msg"].removeprefix("Value error, ").replace("Input should", "must")
    block: type[BaseModel] = settings
    for part in path[:-1]:
        block = block.model_fields[part].annotation
    near = difflib.get_close_matches(path[-1], block.model_fields, 1)
    return "there is no such parameter" + (f"; did you mean {near[0]}?" if near else "")


_END_MARK = "..."  # YAML's own mark of a document's end; the first line announces it
_WHOLE_FILE_LINE = f"# All parameters. The last line of this file is {_END_MARK} (without it, the file is cut off)."
_HEAD = """\
# `flywheel settings NAME` tells which values a parameter takes and its default, which also applies where it is left out
# here. Each iteration keeps its own copy of this file (iterations/NNN/params.yaml), so an edit applies to new ones.
"""
_WIDTH = 120
MIGRATE_FIX = "type the new name; `flywheel workspace migrate` does so in the files of a workspace"


def load_settings(path: Path, overrides: dict[str, Any] | None = None) -> Settings:
    """Load settings from a YAML file, apply the overrides of `--set`, and check the whole.

    path: `params.yaml` or an iteration's copy. overrides: dotted name -> value ("rl.steps": 3) in place of the file's;
    None: none. What neither names has its default. Raises BadInput, naming the parameter, for a file that is missing,
    unreadable, empty or cut off, bad YAML, an unknown name or a bad value; where an override is wrong, the error names
    `--set`.
    """
    try:
        text = path.read_text(encoding="utf-8")
        raw = yaml_text.parse_yaml(text)
    except FileNotFoundError:
        raise BadInput(
            "no settings file", where=path, fix="run this in a workspace, or make one with `flywheel init DIR`"
        ) from None
    except OSError as error:
        raise BadInput(f"the settings file cannot be read: {error.strerror}", where=path, fix="mend the path") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInput(f"not valid YAML: {error}", where=path, fix="mend the file at the line named") from None
    if raw is None or raw == {}:
        raise BadInput("the settings file is empty", where=path, fix="restore it, for example with `git checkout`")
    if text.startswith(_WHOLE_FILE_LINE) and not text.rstrip().endswith(f"\n{_END_MARK}"):
        raise BadInput(
            f"the settings file is cut off: its last line is not {_END_MARK}",
            where=path,
            fix="restore it, for example with `git checkout`",
        )
    if not isinstance(raw, dict):
        raise BadInput("the settings file must be a mapping", where=path, fix="see params.yaml of the project")
    for name, value in (overrides or {}).items():
        block = raw
        *parents, leaf = name.split(".")
        for part in parents:
            block = block.setdefault(part, {})
            if not isinstance(block, dict):
                raise BadInput(f"{name}: {part} is not a block of settings", where="--set", fix=f"see {path}")
        block[leaf] = value
    return parse_settings(raw, where=str(path), overrides=overrides or {})


def parse_settings(raw: dict[str, Any], *, where: str, overrides: dict[str, Any] | None = None) -> Settings:
    """Validate a mapping of blocks and parameters, and return it as settings; what it lacks has its default.

    where: the file that `raw` comes from, for messages. overrides: the values of `raw` that came from `--set`, by
    dotted name; they are not applied here; where only they are wrong, the error names `--set`. Raises BadInput for
    wrong parameters.
    """
    try:
        return Settings.model_validate(raw)
    except ValidationError as error:
        found = list_settings_faults(error, Settings)
        typed = bool(overrides) and all(fault.names(overrides) for fault in found)
        raise BadInput(
            "wrong parameter: " + " | ".join(fault.line for fault in found),
            where="--set" if typed else where,
            fix=MIGRATE_FIX if any(fault.renamed for fault in found) else "change it and run again",
        ) from None


def is_settings_parameter(name: str) -> bool:
    """Tell whether the dotted `name` is a parameter, an entry of one or a block: `rl.steps`, `rl`."""
    return resolve_parameter_path(name.split("."), Settings) is not None


def dump_settings(settings: Settings) -> str:
    """Render settings as the YAML text of an iteration's frozen copy, with every field and no comments.

    By a mark at its end `load_settings` sees whether a file was cut off.
    """
    text = yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    return f"{_WHOLE_FILE_LINE}\n{text}{_END_MARK}\n"


def add_missing_settings(path: Path) -> None:
    """Add what blocks and top-level parameters an iteration's own `params.yaml` lacks, with this version's defaults.

    path: of that file; what stands in it stays as it is. It is for DVC, which needs each block that a stage declares.
    Raises as `load_settings` and `write_text`.
    """
    values = load_settings(path).model_dump(mode="json")
    text = path.read_text(encoding="utf-8")
    there = yaml_text.parse_yaml(text)
    missing = {name: value for name, value in values.items() if name not in there}
    if missing:
        added = yaml.safe_dump(missing, sort_keys=False, allow_unicode=True)
        write_text(path, text.removesuffix(f"{_END_MARK}\n") + f"{added}{_END_MARK}\n")


def dump_commented_settings(settings: Settings) -> str:
    """Render settings as the text of the `params.yaml` that people edit: each description is a comment above its line.

    By a mark at its end `load_settings` sees whether a file was cut off.
    """
    lines, values = [_WHOLE_FILE_LINE, _HEAD.rstrip()], settings.model_dump(mode="json")
    for section in list_parameter_sections():
        lines += ["", *_comment(section.description), f"{section.name}:"] if section.name else [""]
        for parameter in section.parameters:
            line = _line(parameter.name.rpartition(".")[2], parameter.value(values))
            text = "\n".join([*_comment(parameter.comment), line])
            lines.append(textwrap.indent(text, "  " if section.name else ""))
    return "\n".join([*lines, _END_MARK, ""])


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH - 2, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _line(name: str, value: Any) -> str:
    """Write a parameter as YAML. Lists and mappings stand in one line, which suits short ones."""
    flow = None if isinstance(value, list | dict) else False
    form = {"sort_keys": False, "allow_unicode": True, "width": _WIDTH - 20, "default_flow_style": flow}
    return yaml.safe_dump({name: value}, **form).rstrip("\n")
