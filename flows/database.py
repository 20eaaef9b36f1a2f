"""The database of Prefect's server, looked at before the server begins: what is wrong with it is told in one line.

It is the workspace's own SQLite file, or what Prefect's variable PREFECT_SERVER_DATABASE_CONNECTION_URL names. Prefect
alone reads that: a setting would put a password into files that git keeps.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import sqlalchemy
from prefect.server.database import provide_database_interface
from prefect.server.database.configurations import AioSqliteConfiguration
from prefect.server.database.dependencies import set_database_config
from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction

from flows import empty_database
from flywheel.errors import BadInput, first_line

VARIABLE = "PREFECT_SERVER_DATABASE_CONNECTION_URL"
_POSTGRESQL, _SQLITE = "postgresql+asyncpg", "sqlite+aiosqlite"
_SUCH_AS = f"such as {_POSTGRESQL}://USER:PASSWORD@HOST:5432/NAME"


def look() -> None:
    """Raises BadInput, without the password, where the server could not work on it."""
    text = PREFECT_API_DATABASE_CONNECTION_URL.value()
    url = _address(text)
    if url.drivername == _SQLITE:
        set_database_config(WaitsForItsTurn(connection_url=text))
        _begin(url.database or ":memory:")
        return
    place = f"{VARIABLE}: {url.host or 'this machine'}:{url.port or 5432}/{url.database}"
    try:
        asyncio.run(_prepare())
    except Exception as error:  # of the network, the driver, PostgreSQL or a migration
        raise BadInput(
            f"Prefect's database cannot be used: {_reason(error, url)}",
            where=place,
            fix="mend the variable, start the database, or unset the variable for SQLite in the workspace",
        ) from None


class WaitsForItsTurn(AioSqliteConfiguration):
    """SQLite with transactions that take the right to write when they begin. Prefect's own take it at their first
    write: where another has written since they began to read, SQLite refuses them at once, the server answers 503, and
    the client asks again after two seconds and more, as after each third stage or so."""

    @asynccontextmanager
    async def begin_transaction(
        self, session: AsyncSession, with_for_update: bool = False
    ) -> AsyncGenerator[AsyncSessionTransaction, None]:
        async with super().begin_transaction(session, with_for_update=True) as transaction:
            yield transaction


def _begin(name: str) -> None:
    """Make the file where it is missing. What is wrong with one that is there, the server says itself."""
    if name.startswith((":", "file:")) or (file := Path(name)).exists() or empty_database.copy_to(file):
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    asyncio.run(_prepare())
    empty_database.keep(file)


def _address(text: str) -> sqlalchemy.URL:
    try:
        url = sqlalchemy.make_url(text)
    except (ArgumentError, ValueError):  # its own words may hold the address, and with it the password
        raise BadInput("this is no address of a database", where=VARIABLE, fix=_SUCH_AS) from None
    if url.drivername not in (_POSTGRESQL, _SQLITE):
        raise BadInput(f"Prefect does not take the driver {url.drivername}", where=VARIABLE, fix=_SUCH_AS)
    return url


async def _prepare() -> None:
    """Connect as the server does, and make the tables or bring them up to date, as it is about to do."""
    database = provide_database_interface()
    engine = await database.engine()
    async with engine.connect():
        pass
    await database.create_db()


def _reason(error: BaseException, url: sqlalchemy.URL) -> str:
    """What was first raised says it, in one line; SQLAlchemy packs it into statements and links."""
    while cause := error.__cause__ or getattr(error, "orig", None):
        error = cause
    said = first_line(str(error)) or type(error).__name__
    return said.replace(url.password, "***") if url.password else said
