"""Describe each parameter as data, for `flywheel settings` and for the comments of `params.yaml`."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pydantic import BaseModel

from flywheel.config.renamed import RENAMED
from flywheel.config.settings import Settings
from flywheel.utils.errors import BadInput, did_you_mean


@dataclass(frozen=True)
class ParameterInfo:
    """Describe one parameter. name: dotted. schema: JSON Schema of its values. default: as JSON has it."""

    name: str
    description: str
    schema: dict[str, Any]
    default: Any

    @property
    def values(self) -> str:
        """Which values it takes, in words: `whole number, 1 to 64`."""
        return _describe_schema(self.schema)

    @property
    def comment(self) -> str:
        """The description, and the choices where it does not name them all."""
        choices = [str(one) for one in self.schema.get("enum", ())]
        if all(choice in self.description for choice in choices):
            return self.description
        return f"{self.description} One of {', '.join(choices)}."

    def value(self, values: Mapping[str, Any]) -> Any:
        """Return its value in `values`, settings that were dumped."""
        found: Any = values
        for part in self.name.split("."):
            found = found[part]
        return found


@dataclass(frozen=True)
class ParameterSection:
    """A block of the settings. name: "" of the parameters that stand in no block."""

    name: str
    description: str
    parameters: tuple[ParameterInfo, ...]


@cache
def list_parameter_sections() -> tuple[ParameterSection, ...]:
    """List all blocks with their parameters, in the order of the file."""
    blocks = {name: field.annotation for name, field in Settings.model_fields.items() if _is_block(field.annotation)}
    return tuple(
        ParameterSection(name, _one_line(block.__doc__), tuple(_parameters(block, name)))
        for name, block in {"": Settings, **blocks}.items()
    )


def find_parameter_section(name: str) -> ParameterSection:
    """Find the block called `name`, or the block of the one parameter of that name, with that parameter alone.

    name: of a parameter dotted, as in `params.yaml` (`rl.steps`). Raises BadInput where there is neither, with the
    nearest name.
    """
    for section in list_parameter_sections():
        if name and section.name == name:
            return section
        for parameter in section.parameters:
            if parameter.name == name:
                return replace(section, parameters=(parameter,))
    raise BadInput(f"there is no parameter or block {name or repr(name)}", fix=_suggest_parameter(name))


def _suggest_parameter(name: str) -> str:
    """What was probably meant: `rl.alhpa` is rl.gae_lambda_alpha, which was rl.alpha."""
    blocks = [section.name for section in list_parameter_sections() if section.name]
    names = [parameter.name for section in list_parameter_sections() for parameter in section.parameters]
    meant: dict[str, list[str]] = {block: [block] for block in blocks}
    for name_or_earlier, now in (*zip(names, names, strict=True), *RENAMED.items()):
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
    """Of the block itself, or of the one from which it has the field, where it changes the default alone."""
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
        return f"list of {_describe_schema(schema['items'])}s" + (", not empty" if schema.get("minItems") else "")
    if schema["type"] == "object":
        (inner,) = schema.get("patternProperties", {"": schema.get("additionalProperties")}).values()
        if isinstance(inner, bool):  # of any values
            return "mapping"
        return f"mapping of names, each to a {_describe_schema(inner)}"
    return ", ".join(filter(None, (_TYPES[schema["type"]], _describe_limits(schema))))


def _describe_limits(schema: Mapping[str, Any]) -> str:
    """`1 to 64`, `1 or more`, `above 0`, `0 or more and below 1`; of a text `not empty`."""
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
