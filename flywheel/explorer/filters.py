"""What a reader asks the list of trajectories for, as it stands in an address: filters, a search, an order.

`where=world:is:shop&where=steps:least:5&q=mug&in=thoughts&sort=-steps`. A name is looked up, what is typed is a
parameter: neither becomes SQL.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flywheel.errors import BadInput, known

# operator -> its SQL; {column} and {value} are put in
OPERATORS = {
    "is": "{column} = {value}",
    "not": "{column} IS DISTINCT FROM {value}",
    "has": "contains(lower({column}::VARCHAR), lower({value}))",
    "least": "{column} >= {value}",
    "most": "{column} <= {value}",
    "empty": "{column} IS NULL",
    "filled": "{column} IS NOT NULL",
}
FOUND = "found"  # names of the trajectories in whose thoughts the search stands; who asks brings it
_BARE = ("empty", "filled")  # those that take no value
_KINDS = {"VARCHAR": "text", "BOOLEAN": "truth", "TIMESTAMP WITH TIME ZONE": "time"}  # the others are numbers
_SEARCHED = {
    "instructions": "contains(lower(instruction), lower($search))",
    "thoughts": f"trajectory_id IN (SELECT trajectory_id FROM {FOUND})",
}
_SEARCHED["both"] = f"({' OR '.join(_SEARCHED.values())})"


@dataclass(frozen=True)
class Asked:
    """condition, order: SQL; parameters: the values in it. in_thoughts: what `FOUND` has to hold, empty for nothing."""

    condition: str
    parameters: dict[str, Any]
    order: str
    in_thoughts: str


def kind(sql_type: str) -> str:
    """text, truth, time or number."""
    return _KINDS.get(sql_type, "number")


def asked(
    columns: Mapping[str, str], where: Sequence[str] = (), search: str = "", within: str = "both", sort: str = ""
) -> Asked:
    """columns: name -> SQL's type. Raises BadInput by name."""
    parameters: dict[str, Any] = {}
    either: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for number, text in enumerate(where):
        name, _, rest = text.partition(":")
        operator, _, typed = rest.partition(":")
        _column(columns, name)
        if operator not in OPERATORS:
            raise BadInput(f"no comparison {operator or text}", where=f"where={text}", fix=known(operator, OPERATORS))
        value = f"$p{number}"
        if operator not in _BARE:
            parameters[value[1:]] = typed if operator == "has" else _value(columns[name], typed, text)
            value = value if operator == "has" else f"{value}::{columns[name]}"
        # Two of one column are alternatives where it is one value that is asked for.
        key = (name, operator, "" if operator == "is" else str(number))
        either[key].append(OPERATORS[operator].format(column=f'"{name}"', value=value))
    conditions = [f"({' OR '.join(one)})" for one in either.values()]
    search = search.strip()
    if search:
        if within not in _SEARCHED:
            raise BadInput(f"nothing to search named {within}", where="in", fix=known(within, _SEARCHED))
        conditions.append(_SEARCHED[within])
        if within != "thoughts":
            parameters["search"] = search
    in_thoughts = search if within != "instructions" else ""
    return Asked(" AND ".join(conditions) or "true", parameters, _order(columns, sort), in_thoughts)


def _order(columns: Mapping[str, str], sort: str) -> str:
    """The newest iterations first where nothing is asked; what is equal, by name."""
    terms = []
    for text in filter(None, (sort or "-iteration").split(",")):
        _column(columns, name := text.removeprefix("-"))
        terms.append(f'"{name}" {"DESC" if text.startswith("-") else "ASC"} NULLS LAST')
    return ", ".join([*terms, "trajectory_id", "iteration"])


def _column(columns: Mapping[str, str], name: str) -> None:
    if name not in columns:
        raise BadInput(f"no column {name[:80]}", where="trajectories", fix=known(name[:80], columns))


def _value(sql_type: str, typed: str, text: str) -> Any:
    of = kind(sql_type)
    if of == "number":
        try:
            return float(typed)
        except ValueError:
            raise BadInput(f"not a number: {typed[:80]}", where=f"where={text[:80]}") from None
    if of == "truth":
        if typed not in ("true", "false"):
            raise BadInput(f"neither true nor false: {typed[:80]}", where=f"where={text[:80]}")
        return typed == "true"
    return typed
