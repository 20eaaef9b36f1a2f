"""`params.yaml`: settings as a file, read and written."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from flywheel import yaml_text
from flywheel.errors import BadInput
from flywheel.settings import earlier as earlier_names
from flywheel.settings import faults, parameters
from flywheel.settings.tree import Settings

_END = "..."  # YAML's own sign that a document is whole, which is written below the line that announces it
_WHOLE = f"# All parameters. The last line of this file is {_END} (without it, the file is cut off)."
_HEAD = """\
# `flywheel settings NAME` tells which values a parameter takes and its default, which also applies where it is left out
# here. Each iteration keeps its own copy of this file (iterations/NNN/params.yaml), so an edit applies to new ones.
"""
_WIDTH = 120


def load(path: Path, overrides: dict[str, Any] | None = None, *, earlier: bool = False) -> Settings:
    """Read settings from a YAML file; `overrides` maps dotted names to values ("rl.steps": 3). earlier: also parameters
    by which earlier versions wrote the file, which are else refused with the name that they have now.

    Raises BadInput, naming the parameter, for a missing, empty or cut-off file, bad YAML, an unknown name or a bad
    value; what is wrong with an override is said of `--set`.
    """
    try:
        text = path.read_text(encoding="utf-8")
        raw = yaml_text.read(text)
    except FileNotFoundError:
        raise BadInput(
            "no settings file", where=path, fix="run this in a workspace, or make one with `flywheel init DIR`"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInput(f"not valid YAML: {error}", where=path, fix="mend the file at the line named") from None
    if raw is None or raw == {}:
        raise BadInput("the settings file is empty", where=path, fix="restore it, for example with `git checkout`")
    if text.startswith(_WHOLE) and not text.rstrip().endswith(f"\n{_END}"):
        raise BadInput(
            f"the settings file is cut off: its last line is not {_END}",
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
    return parse(earlier_names.upgraded(raw) if earlier else raw, where=str(path), overrides=overrides or {})


def parse(raw: dict[str, Any], *, where: str, overrides: dict[str, Any] | None = None) -> Settings:
    """Validate a mapping; raises BadInput that names each wrong parameter.

    where: the file that `raw` stands in, but for the `overrides`, which were typed.
    """
    try:
        return Settings.model_validate(raw)
    except ValidationError as error:
        found = faults.told(error, Settings)
        typed = bool(overrides) and all(fault.names(overrides) for fault in found)
        raise BadInput(
            "wrong parameter: " + " | ".join(fault.line for fault in found),
            where="--set" if typed else where,
            fix="change it and run again",
        ) from None


def is_parameter(name: str) -> bool:
    """Whether a dotted name is one of the tree: `rl.steps`, `synthesis.domains.games`."""
    return faults.place(name.split("."), Settings) is not None


def dump(settings: Settings) -> str:
    """Settings as YAML, every field written out: what an iteration keeps as its frozen copy."""
    text = yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    return f"{_WHOLE}\n{text}{_END}\n"


def commented(settings: Settings) -> str:
    """The same with each description as a comment above its line: the `params.yaml` that people edit."""
    lines, values = [_WHOLE, _HEAD.rstrip()], settings.model_dump(mode="json")
    for section in parameters.sections():
        lines += ["", *_comment(section.description), f"{section.name}:"] if section.name else [""]
        for one in section.parameters:
            text = "\n".join([*_comment(one.comment), _line(one.name.rpartition(".")[2], one.value(values))])
            lines.append(textwrap.indent(text, "  " if section.name else ""))
    return "\n".join([*lines, _END, ""])


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH - 2, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _line(name: str, value: Any) -> str:
    """Lists stand in one line, as short ones of numbers and names do best."""
    flow = None if isinstance(value, list | dict) else False
    text = yaml.safe_dump(
        {name: value}, sort_keys=False, allow_unicode=True, width=_WIDTH - 20, default_flow_style=flow
    )
    return text.rstrip("\n")
