"""Which texts in SQL are questions, and the statements that DuckDB makes of one."""

from __future__ import annotations

import re
from dataclasses import dataclass

import duckdb

from flywheel.errors import BadInput
from flywheel.store import catalog

_SELECT, _EXPLAIN, _CREATE = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN, duckdb.StatementType.CREATE)
_KINDS = "SELECT, FROM, WITH, PIVOT, DESCRIBE, SHOW, SUMMARIZE, EXPLAIN"


@dataclass(frozen=True)
class Question:
    """Its statements, of which the last one answers. plan: that is how DuckDB would answer, not the answer."""

    statements: tuple[duckdb.Statement, ...]
    plan: bool = False


def of(connection: duckdb.DuckDBPyConnection, sql: str) -> Question:
    """The one question of a text. Raises BadInput where it is none, several, or a command."""
    found = _statements(connection, sql)
    if not found:
        raise BadInput("the query is empty", fix="type one query")
    if any(token.startswith(b";") for token in _tokens(sql)[:-1]):
        raise BadInput("these are several statements", fix="type one query")
    if _is_pivot(found):
        return Question(tuple(found))
    if len(found) != 1:
        raise _unnamed()
    if found[0].type == _SELECT:
        return Question((found[0],))
    if found[0].type == _EXPLAIN:
        return Question(tuple(_statements(connection, _explained(connection, sql))), plan=True)
    raise _refused(found[0])


def _is_pivot(found: list[duckdb.Statement]) -> bool:
    """Of one statement: a query with a PIVOT that does not name its values. DuckDB makes a temporary type of them
    first, which ends with the transaction."""
    *types, last = (one.type for one in found)
    return set(types) == {_CREATE} and last == _SELECT


def _explained(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    """The text as it may be run: EXPLAIN alone or with ANALYZE, of what is a SELECT when it stands alone."""
    tokens = _tokens(sql)
    analyze = bool(re.match(rb"analyze\b", tokens[1], re.IGNORECASE))
    inner = b"".join(tokens[2 if analyze else 1 :]).decode()
    asked = _statements(connection, inner)
    if len(asked) != 1:
        raise _unnamed()
    if asked[0].type != _SELECT:
        raise _refused(asked[0])
    return f"EXPLAIN {'ANALYZE ' if analyze else ''}{inner}"


def _tokens(sql: str) -> list[bytes]:
    """Each token with what follows it up to the next: blanks, comments. What precedes the first is left out."""
    text = sql.encode()
    starts = [place for place, _ in duckdb.tokenize(sql)]
    return [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]


def _statements(connection: duckdb.DuckDBPyConnection, sql: str) -> list[duckdb.Statement]:
    try:
        return connection.extract_statements(sql)
    except duckdb.Error as error:
        raise catalog.told(connection, error) from None


def _unnamed() -> BadInput:
    return BadInput("a PIVOT within a command names its values", fix="PIVOT ... ON x IN (...)")


def _refused(asked: duckdb.Statement) -> BadInput:
    kind = asked.type.name.lower().replace("_", " ")
    return BadInput(f"{kind} is no question", fix=f"here data are read: {_KINDS}")
