"""List trajectories by filters and a search, and load one for its page, for the explorer."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import duckdb

from flywheel.store.catalog import database
from flywheel.ui.explorer.catalog_reader import OUTCOMES_TABLE, QUERIES, CatalogReader, NotInStore, Row
from flywheel.ui.explorer.media import TokenTexts
from flywheel.ui.report import replay
from flywheel.utils.errors import BadInput, did_you_mean

# A query of the list is in a URL: `where=world:is:shop&where=steps:least:5&q=mug&in=thoughts&sort=-steps`. Column names
# and operators are looked up and values are bound as parameters, so no part of the URL becomes SQL.

# Operator -> its SQL, with {column} and {value}.
FILTER_OPERATORS = {
    "is": "{column} = {value}",
    "not": "{column} IS DISTINCT FROM {value}",
    "has": "contains(lower({column}::VARCHAR), lower({value}))",
    "least": "{column} >= {value}",
    "most": "{column} <= {value}",
    "empty": "{column} IS NULL",
    "filled": "{column} IS NOT NULL",
}
FOUND_TABLE = "found"  # trajectory_ids with the searched words in their thoughts; the caller registers the table
_BARE_OPERATORS = ("empty", "filled")  # operators without a value
_KINDS = {"VARCHAR": "text", "BOOLEAN": "truth", "TIMESTAMP WITH TIME ZONE": "time"}  # other types are numbers
_SEARCHED = {
    "instructions": "contains(lower(instruction), lower($search))",
    "thoughts": f"trajectory_id IN (SELECT trajectory_id FROM {FOUND_TABLE})",
}
_SEARCHED["both"] = f"({' OR '.join(_SEARCHED.values())})"


@dataclass(frozen=True)
class TrajectoryQuery:
    """Hold a parsed query of the list of trajectories.

    condition, order: SQL. parameters: values of the condition. in_thoughts: words to search in thoughts; "": none.
    """

    condition: str
    parameters: dict[str, Any]
    order: str
    in_thoughts: str


def column_kind(sql_type: str) -> str:
    """Return the kind of a column of the SQL type `sql_type`: text, truth, time or number."""
    return _KINDS.get(sql_type, "number")


def parse_trajectory_query(
    columns: Mapping[str, str], where: Sequence[str] = (), search: str = "", within: str = "both", sort: str = ""
) -> TrajectoryQuery:
    """Parse a query of the list of trajectories, as its URL gives it.

    columns: name -> SQL type. where: filters, `column:operator:value` (`FILTER_OPERATORS`). search: words. within:
    where to search them: instructions, thoughts or both. sort: columns separated by commas, `-` for descending; "": the
    newest iterations first. Raises BadInput for an unknown column, operator or `within`, and a wrong value.
    """
    parameters: dict[str, Any] = {}
    either: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for number, text in enumerate(where):
        name, _, rest = text.partition(":")
        operator, _, typed = rest.partition(":")
        _require_column(columns, name)
        if operator not in FILTER_OPERATORS:
            raise BadInput(
                f"no comparison {operator or text}", where=f"where={text}", fix=did_you_mean(operator, FILTER_OPERATORS)
            )
        value = f"$p{number}"
        if operator not in _BARE_OPERATORS:
            parameters[value[1:]] = typed if operator == "has" else _parse_value(columns[name], typed, text)
            value = value if operator == "has" else f"{value}::{columns[name]}"
        # Several `is` filters of one column are alternatives; all other filters must hold together.
        key = (name, operator, "" if operator == "is" else str(number))
        either[key].append(FILTER_OPERATORS[operator].format(column=f'"{name}"', value=value))
    conditions = [f"({' OR '.join(one)})" for one in either.values()]
    search = search.strip()
    if search:
        if within not in _SEARCHED:
            raise BadInput(f"nothing to search named {within}", where="in", fix=did_you_mean(within, _SEARCHED))
        conditions.append(_SEARCHED[within])
        if within != "thoughts":
            parameters["search"] = search
    in_thoughts = search if within != "instructions" else ""
    return TrajectoryQuery(" AND ".join(conditions) or "true", parameters, _parse_order(columns, sort), in_thoughts)


def _parse_order(columns: Mapping[str, str], sort: str) -> str:
    """Return the SQL of an order: by `sort`, or newest iterations first where it is empty; then by trajectory_id."""
    terms = []
    for text in filter(None, (sort or "-iteration").split(",")):
        _require_column(columns, name := text.removeprefix("-"))
        terms.append(f'"{name}" {"DESC" if text.startswith("-") else "ASC"} NULLS LAST')
    return ", ".join([*terms, "trajectory_id", "iteration"])


def _require_column(columns: Mapping[str, str], name: str) -> None:
    if name not in columns:
        raise BadInput(f"no column {name[:80]}", where="trajectories", fix=did_you_mean(name[:80], columns))


def _parse_value(sql_type: str, typed: str, text: str) -> Any:
    of = column_kind(sql_type)
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


MAX_ROWS = 500  # most rows of a page
_MAX_VALUES = 60  # most values that are counted


def list_trajectory_columns(asking: CatalogReader) -> list[Row]:
    """List the columns that trajectories can be filtered and sorted by: name, type, kind and meaning of each.

    asking: reads the store. Raises as `CatalogReader.rows`.
    """
    return [{**row, "kind": column_kind(row["type"])} for row in asking.columns]


def query_trajectory_page(
    asking: CatalogReader, where: Sequence[str], search: str, within: str, sort: str, offset: int, limit: int
) -> dict[str, Any]:
    """Query a page of the list of trajectories.

    asking: reads the store. where, search, within, sort: as in `parse_trajectory_query`. offset, limit: number of
    matches before the page, and at most on it, which is never more than MAX_ROWS. Returns `rows` of the view
    `trajectory_outcomes`, each with its first `screen` (sha256, or None), and `total`, the number of all matches.
    Raises as `parse_trajectory_query`, `CatalogReader.rows` and `CatalogReader.words`.
    """
    types = {row["name"]: row["type"] for row in asking.columns}
    what = parse_trajectory_query(types, where, search, within, sort)
    found = asking.words(what.in_thoughts) if what.in_thoughts else None

    def work(connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
        if found is not None:
            connection.register(FOUND_TABLE, found)
        total = database.query_rows(
            connection, f"SELECT count(*) AS n FROM {OUTCOMES_TABLE} WHERE {what.condition}", what.parameters
        )
        rows = database.query_rows(
            connection,
            # First the row ids of the page, then their columns: sorting whole rows takes twice as long.
            f"""FROM {OUTCOMES_TABLE} WHERE rowid IN (
                SELECT rowid FROM {OUTCOMES_TABLE} WHERE {what.condition} ORDER BY {what.order}
                LIMIT {min(limit, MAX_ROWS):d} OFFSET {offset:d}) ORDER BY {what.order}""",
            what.parameters,
        )
        screens = asking.index.screens([row["trajectory_id"] for row in rows])
        screens |= _first_screens(connection, [row for row in rows if row["trajectory_id"] not in screens])
        return {"total": total[0]["n"], "rows": [row | {"screen": screens.get(row["trajectory_id"])} for row in rows]}

    return asking.ask(work)


def _first_screens(connection: duckdb.DuckDBPyConnection, rows: Sequence[Row]) -> dict[str, str | None]:
    """Find the first screens of trajectories that are not in the index yet, in all steps of their iterations."""
    if not rows:
        return {}
    found = database.query_rows(
        connection,
        QUERIES["first_screens"],
        {"names": [row["trajectory_id"] for row in rows], "iterations": sorted({row["iteration"] for row in rows})},
    )
    return {row["trajectory_id"]: row["screen"] for row in found}


def count_column_values(asking: CatalogReader, column: str) -> list[Row]:
    """Count the 60 most frequent values of `column` of the view `trajectory_outcomes`.

    asking: reads the store. Returns rows of `value` (as text) and `n`. Raises BadInput for an unknown column, and as
    `CatalogReader.rows`.
    """
    types = {row["name"]: row["type"] for row in asking.columns}
    parse_trajectory_query(types, [f"{column}:filled"])
    return asking.rows(
        f"""SELECT "{column}"::VARCHAR AS value, count(*) AS n FROM {OUTCOMES_TABLE} WHERE "{column}" IS NOT NULL
        GROUP BY ALL ORDER BY n DESC, value LIMIT {_MAX_VALUES:d}"""
    )


def load_trajectory_detail(asking: CatalogReader, tokens: TokenTexts, trajectory_id: str) -> dict[str, Any]:
    """Load everything about a trajectory for its page.

    asking: reads the store. tokens: decodes token ids. Returns `facts` (its row of `trajectory_outcomes`, with the
    model), `task` (None: not known), `steps` (`make_step_row`, with `tokens` and `by`, who chose it), and lists of
    rows: `scores`, `samples` (trajectories of the same task), `family` (those that it began within or that began within
    it), `twins` (near-duplicates), `set_aside` (its quarantined rows). Raises NotInStore where there is no such
    trajectory, and as `CatalogReader.rows`.
    """
    found = asking.ask(lambda connection: _query_detail(connection, trajectory_id))
    if not found:
        raise NotInStore(
            f"there is no trajectory {trajectory_id[:80]} here", fix="it may have been discarded, or rolled back"
        )
    for step in found["steps"]:
        step["tokens"] = tokens.texts(found["facts"]["model"], step.pop("token_ids") or ())
    return found


def _query_detail(connection: duckdb.DuckDBPyConnection, name: str) -> dict[str, Any] | None:
    def rows(sql: str, **values: Any) -> list[Row]:
        return database.query_rows(connection, sql, values)

    found = rows(f"FROM {OUTCOMES_TABLE} WHERE trajectory_id = $id", id=name)
    if not found:
        return None
    outcome = max(found, key=itemgetter("iteration"))
    of = {"id": name, "iteration": outcome["iteration"]}
    (lineage,) = rows(QUERIES["lineage"], run=outcome["run_id"], policy=outcome["policy_version"], id=name)
    return {
        "facts": outcome | lineage,
        "task": next(iter(rows("FROM tasks WHERE task_id = $task LIMIT 1", task=outcome["task_id"])), None),
        "scores": rows("FROM scores WHERE trajectory_id = $id AND iteration = $iteration ORDER BY scorer", **of),
        "samples": rows(QUERIES["samples"], task=outcome["task_id"], **of),
        "family": _query_family(connection, outcome),
        "twins": rows(QUERIES["twins"], id=name),
        "set_aside": rows(QUERIES["set_aside"], **of),
        "steps": _query_steps(connection, name, outcome),
    }


def _query_family(connection: duckdb.DuckDBPyConnection, outcome: Row) -> list[Row]:
    """Query what the trajectory began within and what began within it, and so on; [] where it is alone."""
    asked = {"id": outcome["trajectory_id"]}
    begun = f"SELECT 1 FROM {OUTCOMES_TABLE} WHERE parent_id = $id LIMIT 1"
    if outcome["parent_id"] or database.query_rows(connection, begun, asked):
        return database.query_rows(connection, QUERIES["family"], asked)
    return []


def _query_steps(connection: duckdb.DuckDBPyConnection, name: str, outcome: Row) -> list[Row]:
    iteration = outcome["iteration"]
    steps = database.query_rows(connection, "FROM steps_of($id)", {"id": name})
    shas = sorted({row["image_sha256"] for row in steps if row["image_sha256"]})
    sizes = {
        row["sha256"]: row
        for row in database.query_rows(connection, QUERIES["image_sizes"], {"names": shas, "iteration": iteration})
    }
    utterances: dict[int, list[Row]] = defaultdict(list)
    for row in database.query_rows(connection, QUERIES["utterances"], {"id": name, "iteration": iteration}):
        utterances[row["step"]].append(row)
    by = replay.describe_authors(connection, outcome, steps)
    return [
        make_step_row(row, sizes.get(row["image_sha256"]), utterances[row["step"]]) | {"by": by.get(row["step"])}
        for row in steps
    ]


def make_step_row(row: Row, size: Row | None, said: list[Row]) -> Row:
    """Make the data of a step for a page: the row's values, with its action drawn (`overlay`) and in words (`short`).

    row: of the table `steps`. size: width and height of its screen, in pixels; None: there is no screen. said: rows of
    the step's utterances. Keys besides those of `row`: `screen` (sha256, or None), `width`, `height`, `overlay` (SVG),
    `short`, `said`; `memory` is parsed.
    """
    width, height = (size["width"], size["height"]) if size else (224, 224)
    return {
        **{name: value for name, value in row.items() if name not in ("stage", "trajectory_id", "memory")},
        "screen": row["image_sha256"] if size else None,
        "width": width,
        "height": height,
        "overlay": replay.draw_action_overlay(row, width, height),
        "short": replay.describe_action(row),
        "said": said,
        "memory": _parse_memory(row["memory"]),
    }


def _parse_memory(text: str | None) -> Any:
    """Parse the memory of older steps that a prompt showed; a text that is no JSON is returned as `text`."""
    try:
        return json.loads(text) if text else None
    except ValueError:
        return {"text": text}
