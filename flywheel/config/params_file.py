"""Read, check and write `params.yaml`."""

from __future__ import annotations

import difflib
import re
import textwrap
import types
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from flywheel.config import parameters, renamed
from flywheel.config.settings import Settings
from flywheel.utils import yaml_text
from flywheel.utils.errors import BadInput

# Faults of settings, in words: each by the parameter's dotted name, with near or known names.


@dataclass(frozen=True)
class SettingsFault:
    """Describe one fault of the settings.

    parameter: dotted; empty where the message itself names several. renamed: it, or its value, is an earlier one.
    """

    parameter: str
    message: str
    renamed: bool = False

    @property
    def line(self) -> str:
        return f"{self.parameter}: {self.message}" if self.parameter else self.message

    def names(self, parameters: Iterable[str]) -> bool:
        """Tell whether it is about one of these parameters, or a block or an entry of one."""
        mentioned = {self.parameter} if self.parameter else set(re.findall(r"[a-z_]+(?:\.[a-z_]+)+", self.message))
        return any(
            f"{one}.".startswith(f"{name}.") or f"{name}.".startswith(f"{one}.")
            for one in mentioned
            for name in parameters
        )


def list_settings_faults(error: ValidationError, settings: type[BaseModel]) -> list[SettingsFault]:
    """List the faults of a validation error in the order met, each once: a field of several forms gets one line.

    error: pydantic's. settings: the class that was validated.
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
    """Return the part of a path that names a parameter, an entry of a list or mapping included; None where there is
    none.

    Behind a field pydantic puts tags of its own too (which form of a union was tried): they are left out.
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


# `params.yaml`: settings as a file, read and written.

_END_MARK = "..."  # YAML's own sign that a document is whole, which is written below the line that announces it
_WHOLE_FILE_LINE = f"# All parameters. The last line of this file is {_END_MARK} (without it, the file is cut off)."
_HEAD = """\
# `flywheel settings NAME` tells which values a parameter takes and its default, which also applies where it is left out
# here. Each iteration keeps its own copy of this file (iterations/NNN/params.yaml), so an edit applies to new ones.
"""
_WIDTH = 120
MIGRATE_FIX = "type the new name; `flywheel workspace migrate` does so in the files of a workspace"


def load_settings(path: Path, overrides: dict[str, Any] | None = None) -> Settings:
    """Load settings from a YAML file; `overrides` maps dotted names to values ("rl.steps": 3), which win over its own.

    What neither names has its default. Raises BadInput, naming the parameter, for a missing, empty or cut-off file, bad
    YAML, an unknown name or a bad value; what is wrong with an override is said of `--set`.
    """
    try:
        text = path.read_text(encoding="utf-8")
        raw = yaml_text.parse_yaml(text)
    except FileNotFoundError:
        raise BadInput(
            "no settings file", where=path, fix="run this in a workspace, or make one with `flywheel init DIR`"
        ) from None
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
    """Validate a mapping of blocks and parameters; what it lacks has its default.

    where: the file that `raw` stands in, for messages. overrides: those of `raw` that were typed, by dotted name; they
    are not applied here, and where they alone are wrong, `--set` is named. Raises BadInput that names each wrong
    parameter.
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
    """Tell whether a dotted name is a parameter, not a block: `rl.steps`, `synthesis.domains.games`."""
    return resolve_parameter_path(name.split("."), Settings) is not None


def dump_settings(settings: Settings) -> str:
    """Render settings as YAML, every field written out: what an iteration keeps as its frozen copy.

    A mark at its end shows `load_settings` whether a file was cut off.
    """
    text = yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    return f"{_WHOLE_FILE_LINE}\n{text}{_END_MARK}\n"


def dump_commented_settings(settings: Settings) -> str:
    """Render the settings as `params.yaml` that people edit: each description is a comment above its line.

    A mark at its end shows `load_settings` whether a file was cut off.
    """
    lines, values = [_WHOLE_FILE_LINE, _HEAD.rstrip()], settings.model_dump(mode="json")
    for section in parameters.list_parameter_sections():
        lines += ["", *_comment(section.description), f"{section.name}:"] if section.name else [""]
        for parameter in section.parameters:
            line = _line(parameter.name.rpartition(".")[2], parameter.value(values))
            text = "\n".join([*_comment(parameter.comment), line])
            lines.append(textwrap.indent(text, "  " if section.name else ""))
    return "\n".join([*lines, _END_MARK, ""])


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH - 2, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _line(name: str, value: Any) -> str:
    """Lists stand in one line, as short ones of numbers and names do best."""
    flow = None if isinstance(value, list | dict) else False
    form = {"sort_keys": False, "allow_unicode": True, "width": _WIDTH - 20, "default_flow_style": flow}
    return yaml.safe_dump({name: value}, **form).rstrip("\n")
