"""A phone behind an ADB server: its shell and its screen. Whatever goes wrong is one EnvError that says what to do."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from PIL import Image

from flywheel.errors import EnvError, EnvTimeout

T = TypeVar("T")
_STATES = {  # why a phone that is connected cannot be used, and what helps
    "offline": ("is offline", "plug it in again, or run `adb reconnect offline`"),
    "unauthorized": ("has not allowed this computer", "unlock it and accept the question about USB debugging"),
}
_LOOK = "run `adb devices`"


@dataclass(frozen=True)
class Screen:
    """png: whole, of width x height pixels."""

    png: bytes
    width: int
    height: int


def missing() -> str:
    """Why no phone can be reached from here; "" where nothing is missing."""
    try:
        import adbutils  # noqa: F401
    except ImportError:
        return "the package adbutils is not installed"
    return ""


class Phone:
    """Made by `Phone.find`. timeout_s: of one command."""

    def __init__(self, client: Any, serial: str, timeout_s: float) -> None:
        self._client, self.serial, self._timeout_s = client, serial, timeout_s

    @classmethod
    async def find(cls, host: str, port: int, serial: str, timeout_s: float) -> Phone:
        """The phone of a serial number, or the only one ("").

        Raises EnvError where no server answers, and where the phone is missing, offline, unauthorized, or one of many.
        """
        phone = cls(_client(host, port, timeout_s), serial, timeout_s)
        found = await phone._asked(phone._states)
        if serial and serial not in found:
            there = f"; there are {', '.join(found)}" if found else ""
            raise EnvError(f"no phone {serial} is connected{there}", where=f"{host}:{port}", fix=_LOOK)
        if not found:
            raise EnvError("no phone is connected", where=f"{host}:{port}", fix="plug one in, or start an emulator")
        if not serial and len(found) > 1:
            raise EnvError(
                f"{len(found)} phones are connected: {', '.join(found)}", where=f"{host}:{port}",
                fix="name those to use in sandbox.kinds.android.serials",
            )  # fmt: skip
        phone.serial = serial or next(iter(found))
        if (state := found[phone.serial]) != "device":
            why, fix = _STATES.get(state, (f"is in the state {state!r}", _LOOK))
            raise EnvError(f"the phone {why}", where=phone.serial, fix=fix)
        return phone

    async def shell(self, command: str) -> str:
        """What a command printed, without the last line end. Raises EnvError where it fails, or the phone does."""

        def call() -> Any:
            return self._client.device(self.serial).shell2(command, timeout=self._timeout_s, v2=True)

        done = await self._asked(call)
        if done.returncode:
            said = [*(done.stderr or done.stdout).strip().splitlines(), "nothing was said"][0]
            raise EnvError(
                f"`{command[:80]}` failed with code {done.returncode}: {said[:200]}",
                where=self.serial, fix=f"try it: adb -s {self.serial} shell",
            )  # fmt: skip
        return done.stdout.rstrip("\r\n")

    async def screen(self) -> Screen:
        """Raises EnvError where the picture is none, or half of one."""
        png = await self._asked(self._shot)
        try:
            picture = Image.open(io.BytesIO(png), formats=("PNG",))
            picture.load()
        except (OSError, SyntaxError, ValueError) as error:
            said = png[:80].decode("utf-8", "replace").strip() if png[:1] != b"\x89" else str(error)
            raise EnvError(
                f"the phone sent no whole picture: {said or 'nothing'}", where=self.serial,
                fix=f"try it: adb -s {self.serial} exec-out screencap -p",
            ) from None  # fmt: skip
        return Screen(png, *picture.size)

    # -- inside -------------------------------------------------------------------------------------------------------
    def _states(self) -> dict[str, str]:
        return {one.serial: one.state for one in self._client.list()}

    def _shot(self) -> bytes:
        with self._client.device(self.serial).open_transport(timeout=self._timeout_s) as connection:
            connection.send_command("exec:screencap -p")
            connection.check_okay()
            return connection.read_until_close(encoding=None)

    async def _asked(self, call: Callable[[], T]) -> T:
        """adbutils waits in a thread, whose socket has the deadline."""
        from adbutils import AdbError, AdbTimeout

        where = self.serial or "adb"
        try:
            return await asyncio.to_thread(call)
        except (AdbTimeout, TimeoutError):
            raise EnvTimeout(f"the phone did not answer within {self._timeout_s:g} s", where=where, fix=_LOOK) from None
        except ConnectionRefusedError as error:
            raise EnvError(f"no ADB server answers: {error}", where=where, fix="run `adb start-server`") from None
        except (AdbError, EOFError, OSError, ValueError, IndexError) as error:
            said = str(error) or "the connection ended"
            raise EnvError(f"the phone is gone: {said[:200]}", where=where, fix=_LOOK) from None


def _client(host: str, port: int, timeout_s: float) -> Any:
    from adbutils import AdbClient, AdbConnection

    class Connection(AdbConnection):
        def _safe_connect(self) -> Any:
            """As it is, without a server of its own where none answers: nobody would end that one."""
            try:
                return self._create_socket()
            except Exception as error:
                raise ConnectionRefusedError(f"{host}:{port}") from error

    class Client(AdbClient):
        def make_connection(self, timeout: float | None = None) -> AdbConnection:
            made = Connection(host, port)
            made.conn.settimeout(timeout or timeout_s)
            return made

    return Client(host, port)
