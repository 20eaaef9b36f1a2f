"""Read and write YAML as people type parameters: `5e-4` is a number, and duplicate names are refused."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import yaml


def format_yaml_inline(value: Any) -> str:
    """Format `value` as YAML in one line: `[1, 2]`, `0.5`, `''`. A text with line breaks is quoted, with `\\n` for each
    break.

    Raises yaml.YAMLError for values that `yaml.safe_dump` cannot represent.
    """
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=math.inf)
    line = text.removesuffix("\n").removesuffix("\n...")
    return json.dumps(value, ensure_ascii=False) if "\n" in line else line  # JSON is YAML


def parse_yaml(text: str) -> Any:
    """Parse the only document in `text`; None where there is none.

    Raises yaml.YAMLError for invalid YAML, several documents, and a duplicate name.
    """
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
    except (ValueError, LookupError, AttributeError) as error:  # a date such as 2026-99-99, or `!!bool maybe`
        raise yaml.YAMLError(str(error)) from None


class _Loader(yaml.SafeLoader):  # not libyaml's CSafeLoader, ten times as fast, which crashes on deep nesting
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := {name for name in names if names.count(name) > 1}:
            raise yaml.constructor.ConstructorError(None, None, f"{min(twice)} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"), list("-+.0123456789")
)
