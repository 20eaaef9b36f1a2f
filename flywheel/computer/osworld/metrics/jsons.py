"""Metrics of JSON (and YAML): files, and values that a command printed."""

from __future__ import annotations

import json
from typing import Any

from flywheel.computer.osworld.metrics import rule
from flywheel.computer.osworld.metrics.metric import FILE, Metric, Options, lines, text

_FAILED = "__EVALUATION_FAILED__"  # a value by which OSWorld's getters say that they have none
_NONE = object()


def values(result: str, rules: Any, options: Options) -> float:
    """Each value that is expected is there and keeps its rule; of those unexpected none is there that keeps it."""
    found = _loaded(result, options)
    for one in rules.get("expect", ()):
        value = _at(found, one["key"])
        if value is _NONE or not rule.matches(value, one):
            return 0.0
    for one in rules.get("unexpect", ()):
        value = _at(found, one["key"])
        if rule.matches(None if value is _NONE else value, one):
            return 0.0
    return 1.0


def _loaded(path: str, options: Options) -> Any:
    if options.get("is_yaml"):
        import yaml

        return yaml.safe_load(text(path))
    return json.loads(text(path))


def _at(value: Any, keys: list) -> Any:
    """What lies there; `_NONE` where there is nothing."""
    for key in keys:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return _NONE
    return value


def direct(result: Any, rules: Any, _: Options) -> float:
    """An object against another, key by key; of a text, quotes of both kinds are taken for JSON's."""
    found = json.loads(result.strip().replace("'", '"')) if isinstance(result, str) else result
    expected = rules["expected"]
    if _FAILED in [value for value in expected.values() if isinstance(value, str)]:
        return 0.0
    compare = _within if rules.get("expect_in_result") else _alike
    in_any_order = bool(expected.get("ignore_list_order"))
    return float(all(compare(value, found.get(key), in_any_order) for key, value in expected.items()))


def _alike(expected: Any, found: Any, in_any_order: bool) -> bool:
    return sorted(expected) == sorted(found) if in_any_order else expected == found


def _within(expected: Any, found: Any, _: bool) -> bool:
    if isinstance(expected, str):
        return expected in found
    return any(one in found if isinstance(found, list) else one == found for one in expected)


def settings(result: str, rules: Any, _: Options) -> float:
    found = json.loads(text(result))
    return float(all(key in found and found[key] == value for key, value in rules["expected"].items()))


def keybindings(result: str, rules: Any, _: Options) -> float:
    """A list of objects; a line of comment may stand ahead of it."""
    said = lines(result)
    for part in (said, said[1:]):
        try:
            found = json.loads("\n".join(part))
        except ValueError:
            continue
        if isinstance(found, list):
            return float(rules["expected"] in found)
    return 0.0


def all_of(result: str, expected: str, _: Options) -> float:
    """OSWorld's order: the file with what must be there comes first."""
    wanted, found = json.loads(text(result)), json.loads(text(expected))
    return float(all(key in found and found[key] == value for key, value in wanted.items()))


METRICS: dict[str, Metric] = {
    "check_json": Metric(
        values, unable=lambda rules, _: rule.unknown([*rules.get("expect", ()), *rules.get("unexpect", ())])
    ),
    "check_direct_json_object": Metric(direct, keys=("expected",)),
    "check_json_settings": Metric(settings, keys=("expected",)),
    "check_json_keybindings": Metric(keybindings, keys=("expected",)),
    "is_included_all_json_objects": Metric(all_of, FILE),
}
