"""OSWorld's rules for one value: `{"method": "ge", "ref": 3}`."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from typing import Any

_COMPARED = {name: getattr(operator, name) for name in ("eq", "ne", "le", "lt", "ge", "gt")}
_RANGE = re.compile(r"range\.([te])([te])")  # whether the limits themselves are within: e, or not: t
_APPROX = re.compile(r"approx:[0-9.eE+-]+")
_FLAGS = re.compile(r"re(\.[A-Z]+)*")


def matches(value: Any, rule: Mapping[str, Any]) -> bool:
    """Raises TypeError, ValueError or the like for a value of another kind than the rule speaks of."""
    method, ref = rule["method"], rule["ref"]
    if method in _COMPARED:
        return bool(_COMPARED[method](value, ref))
    if _FLAGS.fullmatch(method):
        flags = re.RegexFlag(0)
        for name in method.split(".")[1:]:
            flags |= re.RegexFlag[name]
        return re.search(ref, value, flags) is not None
    if _APPROX.fullmatch(method):
        return abs(float(value) - ref) <= float(method.split(":")[1])
    if found := _RANGE.fullmatch(method):
        lower, upper = (_COMPARED["l" + found[number]] for number in (1, 2))
        return bool(lower(ref[0], value) and upper(value, ref[1]))
    parts = value.strip("\"'").split(",")
    return parts == list(ref) if method == "str_list_eq" else set(parts) == set(ref)


def unknown(rules: Any) -> str:
    """Which of the methods is not known here; "" where all are."""
    for rule in rules or ():
        method = rule.get("method", "")
        known = method in _COMPARED or method in ("str_list_eq", "str_set_eq")
        if not (known or any(form.fullmatch(method) for form in (_FLAGS, _APPROX, _RANGE))):
            return f"the method {method}"
    return ""
