"""A manifest's file as a mapping, and each of its faults in one line."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from flywheel.errors import BadInput

NAMES = "lower-case letters, digits, '.', '_' and '-'"
_PATTERNS = {
    "sha256": "64 hexadecimal digits",
    "server.packages": "NAME==VERSION",
    "server.ready": "/PATH",
    "login.address": "/PATH",
    "reward": "/PATH",
    "end": "/PATH",
    "instruction": "/PATH",
    "server.environment": "a name of letters, digits and '_'",
}
# What to write where a field is missing.
_EXAMPLES = {
    "name": "name: my-page",
    "title": "title: My page",
    "instruction": "instruction: Clear the board.",
    "reward": "reward: game.score",
    "success": "success: 1",
    "max_steps": "max_steps: 20",
}
READING = "JavaScript in quotes, {command: [WORD, ...]}, {sqlite: FILE, query: SQL} or {address: /PATH, value: NAME.0}"
# What to write in a field that may be of several forms.
FORMS = {
    "reset": "reload, a JavaScript expression in quotes, or {parameter: NAME}",
    "instruction": "a text, or {expression: JAVASCRIPT}, {command: [WORD, ...]}, {sqlite: FILE, query: SQL}",
    "success": "a number, or a JavaScript expression in quotes",
    "viewport": "[WIDTH, HEIGHT], 64 to 4096 pixels each",
    "package": "pypi:NAME==VERSION, npm:NAME@VERSION or deb:NAME=VERSION, or a list of them",
    "variants": f"a list of names of {NAMES}",
}


def parse(path: Path) -> dict[str, Any]:
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


def told(fault: dict[str, Any], known: Sequence[str]) -> str:
    """One fault of a manifest, as `field: what; what to write`. known: the fields that there are."""
    field, kind, given = str(fault["loc"][0]) if fault["loc"] else "", fault["type"], fault["input"]
    if field in ("state", "server", "login") and len(fault["loc"]) > 1:
        field = f"{field}.{fault['loc'][1]}"
    if kind == "missing" and len(fault["loc"]) == 1:
        return f"{field} is missing: add `{_EXAMPLES[field]}`"
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
    if field in FORMS and kind != "value_error":
        return f"{field}: write {FORMS[field]}"
    if kind.startswith("union_tag"):
        return f"{field}: write {READING}"
    if kind == "string_type" and isinstance(given, bool | int | float):
        return f"{field}: {json.dumps(given)} is not a text: put it in quotes"
    if kind == "string_pattern_mismatch":
        return f"{field}: {given!r} is not of the form: {_PATTERNS.get(field, NAMES)}"
    message = fault["msg"].removeprefix("Value error, ")
    return f"{field}: {message[0].lower()}{message[1:]}" if field else message
