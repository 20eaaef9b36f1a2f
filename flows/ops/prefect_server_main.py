"""Run Prefect's server in this process (`python -m`), on a checked database, for its own host and origin alone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import sqlite3
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import prefect
import sqlalchemy
import uvicorn
from prefect.server.api.server import create_app
from prefect.server.database import provide_database_interface
from prefect.server.database.configurations import AioSqliteConfiguration
from prefect.server.database.dependencies import set_database_config
from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL, get_current_settings
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction

from flywheel.utils.errors import BadInput, first_line
from flywheel.utils.files import atomic_file
from flywheel.utils.local_server import OwnHostOnly

# An empty SQLite database of Prefect's, made once for each user and version, and copied after that.
#
# Prefect makes one by more than a hundred migrations. A copy saves 5.1 seconds of a core for each new
# workspace. It holds tables and no rows, so that copies share no ids.


def copy_empty_database(file: Path) -> bool:
    """Copy the cached empty database to `file`; return whether there was one. A damaged one is removed."""
    kept = _cached_database_path()
    if not kept.is_file():
        return False
    if not _is_sound(kept):
        kept.unlink(missing_ok=True)
        return False
    with atomic_file(file) as part:
        shutil.copyfile(kept, part)
    return True


def cache_empty_database(file: Path) -> None:
    """Cache a copy of the empty database `file` that was just made, for the next workspaces.

    The cache only saves time: where there is no room for it, or the home folder cannot be written, nothing is cached.
    """
    with (
        contextlib.suppress(OSError, sqlite3.Error),
        atomic_file(_cached_database_path()) as part,
        contextlib.closing(sqlite3.connect(file)) as made,
        contextlib.closing(sqlite3.connect(part)) as copy,
    ):
        made.backup(copy)
        copy.execute("PRAGMA journal_mode=DELETE")  # one file, also while it is read


def _cached_database_path() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    cache = (Path(base) if base else Path.home() / ".cache") / "flywheel" / "prefect"
    return cache / f"empty-{prefect.__version__}.db"


def _is_sound(file: Path) -> bool:
    try:
        with contextlib.closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as connection:
            (verdict,) = connection.execute("PRAGMA quick_check").fetchone()
            return verdict == "ok" and bool(connection.execute("SELECT * FROM alembic_version").fetchone())
    except sqlite3.Error:
        return False


# The database is checked before the server starts; what is wrong with it is reported in one line.
#
# It is the workspace's own SQLite file, or what Prefect's variable PREFECT_SERVER_DATABASE_CONNECTION_URL names.
# Prefect alone reads that: a setting would put a password into files that git keeps.

VARIABLE = "PREFECT_SERVER_DATABASE_CONNECTION_URL"
_POSTGRESQL, _SQLITE = "postgresql+asyncpg", "sqlite+aiosqlite"
_SUCH_AS = f"such as {_POSTGRESQL}://USER:PASSWORD@HOST:5432/NAME"


def prepare_database() -> None:
    """Check the database of Prefect's settings and migrate it; of SQLite, only create the file where it is missing.

    Raises BadInput, without the password, where it cannot be used.
    """
    text = PREFECT_API_DATABASE_CONNECTION_URL.value()
    url = _parse_address(text)
    if url.drivername == _SQLITE:
        set_database_config(ImmediateSqliteConfiguration(connection_url=text))
        _create_sqlite_file(url.database or ":memory:")
        return
    place = f"{VARIABLE}: {url.host or 'this machine'}:{url.port or 5432}/{url.database}"
    try:
        asyncio.run(_migrate())
    except Exception as error:  # of the network, the driver, PostgreSQL or a migration
        raise BadInput(
            f"Prefect's database cannot be used: {_reason(error, url)}",
            where=place,
            fix="mend the variable, start the database, or unset the variable for SQLite in the workspace",
        ) from None


class ImmediateSqliteConfiguration(AioSqliteConfiguration):
    """Begin SQLite's transactions with the right to write.

    Prefect's own take it at their first write: where another has written since they began to read, SQLite refuses them
    at once, the server answers 503, and the client retries after two seconds and more. Saves 2.0 to 2.6 s in 2 of 25
    small stages.
    """

    @asynccontextmanager
    async def begin_transaction(
        self, session: AsyncSession, with_for_update: bool = False
    ) -> AsyncGenerator[AsyncSessionTransaction, None]:
        """Begin a transaction with the right to write, whatever `with_for_update` says."""
        async with super().begin_transaction(session, with_for_update=True) as transaction:
            yield transaction


def _create_sqlite_file(name: str) -> None:
    """Create the file where it is missing. The server itself reports what is wrong with an existing one."""
    if name.startswith((":", "file:")) or (file := Path(name)).exists() or copy_empty_database(file):
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    asyncio.run(_migrate())
    cache_empty_database(file)


def _parse_address(text: str) -> sqlalchemy.URL:
    try:
        url = sqlalchemy.make_url(text)
    except (ArgumentError, ValueError):  # its own words may hold the address, and with it the password
        raise BadInput("this is no address of a database", where=VARIABLE, fix=_SUCH_AS) from None
    if url.drivername not in (_POSTGRESQL, _SQLITE):
        raise BadInput(f"Prefect does not take the driver {url.drivername}", where=VARIABLE, fix=_SUCH_AS)
    return url


async def _migrate() -> None:
    """Connect as the server does, and make the tables or bring them up to date, as it is about to do."""
    database = provide_database_interface()
    engine = await database.engine()
    async with engine.connect():
        pass
    await database.create_db()


def _reason(error: BaseException, url: sqlalchemy.URL) -> str:
    """Return the root error in one line, without the password; SQLAlchemy wraps it in statements and links."""
    while cause := error.__cause__ or getattr(error, "orig", None):
        error = cause
    reason = first_line(str(error)) or type(error).__name__
    return reason.replace(url.password, "***") if url.password else reason


# The server, as `prefect server start` starts it, but that it answers to its own host and origin alone, which Prefect
# does not check. `python -m flows.ops.prefect_server_main SOCKET`: the descriptor of the socket to listen at; its
# settings are in the environment.


def serve_prefect(listener: socket.socket) -> None:
    """Serve Prefect's API and pages on `listener`, a bound socket, until a signal ends this process.

    Requests for other hosts or from other sites' pages are refused (`OwnHostOnly`).
    """
    server = get_current_settings().server
    config = uvicorn.Config(
        OwnHostOnly(create_app(final=True), [listener.getsockname()[1]]),
        timeout_keep_alive=server.api.keepalive_timeout,
        ws_ping_interval=server.api.websocket_ping_interval,
        ws_ping_timeout=server.api.websocket_ping_timeout,
        log_level=server.logging_level.lower(),
    )
    uvicorn.Server(config).run(sockets=[listener])


def _main(descriptor: str) -> int:
    try:
        prepare_database()
    except BadInput as error:
        print(error, flush=True)
        return error.exit_code
    serve_prefect(socket.socket(fileno=int(descriptor)))
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
