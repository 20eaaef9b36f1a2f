"""Transactions of Prefect's server on SQLite: one that reads and then writes is not refused for another that wrote."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
import sqlalchemy as sa
from prefect.server.database.configurations import AioSqliteConfiguration
from sqlalchemy.exc import OperationalError

from flows.ops.prefect_server_main import ImmediateSqliteConfiguration


async def _two_at_once(configuration: AioSqliteConfiguration, patience_s: float) -> int:
    """Each reads, lets the other come to the same point for so long, and writes. Returns what both have counted."""
    engine = await configuration.engine()
    async with engine.connect() as connection, connection.begin():
        await connection.execute(sa.text("CREATE TABLE counter (n INTEGER)"))
        await connection.execute(sa.text("INSERT INTO counter VALUES (0)"))
    both_have_read = asyncio.Barrier(2)

    async def count() -> None:
        session = await configuration.session(engine)
        async with session, configuration.begin_transaction(session):
            n = (await session.execute(sa.text("SELECT n FROM counter"))).scalar_one()
            with contextlib.suppress(TimeoutError, asyncio.BrokenBarrierError):  # the other waits for its turn
                await asyncio.wait_for(both_have_read.wait(), patience_s)
            await session.execute(sa.text("UPDATE counter SET n = :n"), {"n": n + 1})

    await asyncio.gather(count(), count())
    async with engine.connect() as connection:
        n = (await connection.execute(sa.text("SELECT n FROM counter"))).scalar_one()
    await engine.dispose()
    return n


def test_transactions_wait_for_their_turn(tmp_path):
    ours = ImmediateSqliteConfiguration(connection_url=f"sqlite+aiosqlite:///{tmp_path}/ours.db")
    assert asyncio.run(_two_at_once(ours, 0.1)) == 2


def test_those_of_prefect_alone_are_refused(tmp_path):
    """Where this fails, Prefect waits by itself, and `WaitsForItsTurn` can go."""
    own = AioSqliteConfiguration(connection_url=f"sqlite+aiosqlite:///{tmp_path}/own.db")
    with pytest.raises(OperationalError, match="database is locked"):
        asyncio.run(_two_at_once(own, 60))
