"""A PostgreSQL of one's own: made with initdb in a temporary folder, on 127.0.0.1 at a free port, ended with us."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import asyncpg
import psutil

from flywheel.utils.errors import BadInput, FlywheelError

USER, PASSWORD = "flywheel", "not-to-be-printed"
VARIABLE = "PREFECT_SERVER_DATABASE_CONNECTION_URL"
DATABASES = ("sqlite", "postgres")
_DEADLINE_S = 120


class NotInstalled(BadInput):
    """There is no PostgreSQL on this machine."""


class Postgres:
    """One cluster: stopped and started, it keeps its port and what is in it."""

    def __init__(self, command: list[str | Path], folder: Path) -> None:
        self.port = _free_port()
        at = ["-p", str(self.port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
        self._command = [*command, "-D", folder / "data", *at, "-c", "fsync=off"]
        self._folder, self._log = folder, folder / "log"

    def start(self) -> None:
        """Raises FlywheelError where it does not answer."""
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(
                self._command, cwd=self._folder, stdout=out, stderr=out, stdin=subprocess.DEVNULL
            )
        deadline = time.monotonic() + _DEADLINE_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise FlywheelError(f"PostgreSQL ended while starting:\n{self._log.read_text()}")
            try:
                self.run("select 1")
                return
            except (OSError, asyncpg.CannotConnectNowError):
                time.sleep(0.05)
        raise FlywheelError(f"PostgreSQL gave no answer in {_DEADLINE_S} s:\n{self._log.read_text()}")

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)  # its fast shutdown: who is connected is cut off
        self._process.wait(_DEADLINE_S)

    def kill(self) -> None:
        """With SIGKILL, as the kernel does where memory is short; its own processes end by themselves then."""
        own = psutil.Process(self._process.pid).children()
        self._process.kill()
        self._process.wait(_DEADLINE_S)
        psutil.wait_procs(own, timeout=_DEADLINE_S)

    def url(self, database: str, password: str = PASSWORD) -> str:
        """As Prefect wants it."""
        return f"postgresql+asyncpg://{USER}:{password}@127.0.0.1:{self.port}/{database}"

    def new(self, name: str) -> str:
        """An empty database; its address."""
        self.run(f'create database "{name}"')
        return self.url(name)

    def run(self, statement: str, database: str = "postgres") -> list[asyncpg.Record]:
        return asyncio.run(_run(self.port, statement, database))


@contextlib.contextmanager
def postgres() -> Iterator[Postgres]:
    """Ended with the block, and with this process. Raises NotInstalled, FlywheelError."""
    programs = _programs()
    if programs is None:
        raise NotInstalled("PostgreSQL is not installed", fix="`scripts/setup test` does it")
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))  # its user need not be its owner, who may be root
    try:
        (folder / "password").write_text(PASSWORD)
        as_user = _as_user(folder)
        asked = ["--auth=scram-sha-256", f"--username={USER}", f"--pwfile={folder / 'password'}", "--no-sync"]
        make = [*as_user, programs / "initdb", *asked, "--pgdata", folder / "data"]
        done = subprocess.run(make, cwd=folder, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
        if done.returncode:
            raise FlywheelError(f"initdb failed: {done.stderr}")
        cluster = Postgres([*as_user, programs / "postgres"], folder)
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.stop()
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def database(name: str) -> Iterator[Postgres | None]:
    """Within the block servers of Prefect's that are started work on it: `sqlite`, each workspace's own (None), or
    `postgres`, one of a cluster that ends with the block."""
    if name == "sqlite":
        yield None
        return
    with postgres() as cluster, mock.patch.dict(os.environ, {VARIABLE: cluster.new("bench")}):
        yield cluster


def suffix(cluster: Postgres | None) -> str:
    """What the names of figures end in."""
    return "_postgres" if cluster else ""


def _programs() -> Path | None:
    """The folder of the newest PostgreSQL's programs, which Debian keeps out of PATH."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    found = debian[-1] if debian else shutil.which("initdb")
    return Path(found).resolve().parent if found else None


def _as_user(folder: Path) -> list[str]:
    """What a command begins with: it ends with us, and is not run as root, which PostgreSQL refuses."""
    words = ["setpriv", "--pdeathsig", "INT"]
    if os.geteuid():
        return words
    try:
        user = pwd.getpwnam("postgres")
    except KeyError:
        user = pwd.getpwnam("nobody")
    for path in (folder, *folder.iterdir()):
        os.chown(path, user.pw_uid, user.pw_gid)
    return [*words, f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def _run(port: int, statement: str, database: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(
        host="127.0.0.1", port=port, user=USER, password=PASSWORD, database=database, timeout=_DEADLINE_S
    )
    try:
        return await connection.fetch(statement)
    finally:
        await connection.close()
