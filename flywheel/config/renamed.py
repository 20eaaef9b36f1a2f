"""Hold which settings had another name or value in earlier versions (renamed.json), and rename them in a file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import resources
from typing import Any

import yaml

from flywheel.utils import yaml_text
from flywheel.utils.errors import BadInput

_DECLARED = json.loads(resources.files("flywheel.config").joinpath("renamed.json").read_text(encoding="utf-8"))
RENAMED: dict[str, str] = _DECLARED["names"]  # dotted name in earlier versions -> present name, in the same block
# Present name -> value in earlier versions -> present value.
RENAMED_VALUES: dict[str, dict[str, str]] = _DECLARED["values"]


def describe_renamed(name: str, value: object) -> str:
    """Describe what an earlier dotted `name`, or an earlier `value` of a parameter, is today; "" for others."""
    if name in RENAMED:
        return f"it is {RENAMED[name]} now"
    if isinstance(value, str) and value in (known := RENAMED_VALUES.get(name, {})):
        return f"{value} is {known[value]} now"
    return ""


def rename_block(block: str, values: Any, where: str) -> Any:
    """Replace earlier names and values in the mapping of a block of settings; return the new mapping.

    block: its name. values: what stands below it in the YAML; returned as it is where it is no mapping. where: the
    file, for messages. Raises BadInput for a parameter that is there by both names.
    """
    if not isinstance(values, dict):
        return values
    found: dict[str, Any] = {}
    for leaf, value in values.items():
        name = RENAMED.get(f"{block}.{leaf}", f"{block}.{leaf}")
        new = name.partition(".")[2]
        if new != leaf and new in values:
            raise BadInput(f"{block}.{leaf} is {name} now, and both are there", where=where, fix="delete one of them")
        found[new] = RENAMED_VALUES.get(name, {}).get(value, value) if isinstance(value, str) else value
    return found


_BLOCK = re.compile(r"^(\w+):")
_LEAF = re.compile(r"^( +)(\w+):(?:( +)(['\"]?)([\w.-]+)\4(?=\s|$))?")


def rename_in_text(text: str, where: str) -> tuple[str, list[str]]:
    """Replace earlier names and values of settings in a file's YAML text; return the text and the changes, in words.

    where: the file, for messages. A change reads `rl.alpha -> gae_lambda_alpha`, or for a value `ct.sft_init: newest ->
    latest`. Comments and lines stay; a file whose blocks are written in one line is written anew, without its comments.
    Raises BadInput for bad YAML, and for a parameter that is there by both names.
    """
    try:
        before = yaml_text.parse_yaml(text)
    except yaml.YAMLError as error:
        raise BadInput(f"not valid YAML: {error}", where=where, fix="mend the file at the line named") from None
    wanted = before
    if isinstance(before, dict):
        wanted = {name: rename_block(name, block, where) for name, block in before.items()}
    if wanted == before:
        return text, []
    lines, block, indent = [], "", ""
    for line in text.split("\n"):
        if found := _BLOCK.match(line):
            block, indent = found[1], ""
        elif (found := _LEAF.match(line)) and (indent := indent or found[1]) == found[1]:
            leaf, value = found[2], found[5]
            name = RENAMED.get(f"{block}.{leaf}", f"{block}.{leaf}")
            new = RENAMED_VALUES.get(name, {}).get(value, value)
            renamed_value = "" if value is None else f"{found[3]}{found[4]}{new}{found[4]}"
            line = f"{found[1]}{name.partition('.')[2]}:{renamed_value}{line[found.end() :]}"
        lines.append(line)
    after = "\n".join(lines)
    if yaml_text.parse_yaml(after) != wanted:
        head, end = (text.split("\n", 1)[0] + "\n", "...\n") if text.rstrip().endswith("\n...") else ("", "")
        after = f"{head}{yaml.safe_dump(wanted, sort_keys=False, allow_unicode=True)}{end}"
    return after, list(_list_changes(before, wanted))


def _list_changes(before: dict[str, Any], wanted: dict[str, Any]) -> Iterator[str]:
    for block, values in before.items():
        if isinstance(values, dict) and values != wanted[block]:
            for (old, value), (new, now) in zip(values.items(), wanted[block].items(), strict=True):
                if old != new:
                    yield f"{block}.{old} -> {new}"
                if value != now:
                    yield f"{block}.{new}: {value} -> {now}"
