"""Read and write YAML as people type parameters: `5e-4` is a number, and duplicate names are refused."""

from __future__ import annotations

import math
import re
from typing import Any

import yaml


def format_yaml_inline(value: Any) -> str:
    """Format `value` as YAML in one line: `[1, 2]`, `0.5`, `''`.

    A text with line breaks is quoted, with `\\n` for each break. Raises yaml.YAMLError for values that `yaml.safe_dump`
    cannot represent.
    """
    form = {"default_flow_style": True, "sort_keys": False, "allow_unicode": True, "width": math.inf}
    return yaml.dump(value, Dumper=_InlineDumper, **form).removesuffix("\n").removesuffix("\n...")


class _InlineDumper(yaml.SafeDumper):
    def represent_str(self, data: str) -> yaml.ScalarNode:
        broken = data.splitlines() not in ([], [data])
        return self.represent_scalar("tag:yaml.org,2002:str", data, style='"' if broken else None)


_InlineDumper.add_representer(str, _InlineDumper.represent_str)


def parse_yaml(text: str) -> Any:
    """Parse the only document in `text`; None where there is none.

    Raises yaml.YAMLError for invalid YAML, several documents, and a key that stands twice in a mapping.
    """
    return load_yaml(text, _Loader)


def load_yaml(text: str, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> Any:
    """Parse the only document in `text` by a loader of PyYAML's, for files of other programs; None where there is none.

    Raises yaml.YAMLError for all that the loader cannot read, also where PyYAML raises something else: for deep
    nesting, and for a value that its tag does not allow.
    """
    try:
        return yaml.load(text, loader)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
    except ValueError as error:  # a date such as 2026-99-99
        raise yaml.YAMLError(str(error)) from None
    except (LookupError, AttributeError, TypeError) as error:  # `!!bool maybe`, `!!timestamp x`, `!!map [a]`
        raise yaml.YAMLError(f"a value does not fit its tag ({error!r})") from None


class _Loader(yaml.SafeLoader):  # not libyaml's CSafeLoader, ten times as fast, which crashes on deep nesting
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := {name for name in names if names.count(name) > 1}:
            raise yaml.constructor.ConstructorError(None, None, f"{min(twice)} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"), list("-+.0123456789")
)
