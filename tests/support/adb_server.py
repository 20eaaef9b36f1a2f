"""A server that speaks ADB's protocol as the one of the platform tools does, over phones that are not there.

Host services (version, devices, features, state, transports), `shell:`, `shell,v2:`, `exec:`, `sync:` (stat, list,
send, receive). Debian's `adb` takes it for its own server.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Mapping

from fake_android import FakeAndroid

_VERSION = 41  # of the protocol between client and server
_FEATURES = b"shell_v2,cmd"


class Refused(Exception):
    """What the server answers with FAIL."""


class AdbServer:
    """phones: by serial number; may change at any moment. hangs: so many commands of phones, the next ones, get no
    answer. dies_after: commands of phones until all of them go offline in the middle of their answer; None: never."""

    def __init__(self, phones: Mapping[str, FakeAndroid]) -> None:
        self.phones, self.hangs, self.dies_after = dict(phones), 0, None
        self.port = 0
        self._calls: dict[asyncio.Task, asyncio.StreamWriter] = {}
        self._over = asyncio.Event()

    async def __aenter__(self) -> AdbServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self._over.set()
        for writer in self._calls.values():
            writer.close()
        await asyncio.gather(*self._calls, return_exceptions=True)

    # -- one connection -----------------------------------------------------------------------------------------------
    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = asyncio.current_task()
        self._calls[call] = writer
        try:
            phone = None
            while phone is None:
                phone = self._host(await _request(reader), writer)
            await self._service(phone, await _request(reader), reader, writer)
        except Refused as refused:
            writer.write(b"FAIL" + _block(str(refused).encode()))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._calls.pop(call)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
                writer.close()

    def _host(self, asked: str, writer: asyncio.StreamWriter) -> FakeAndroid | None:
        """Answers a service of the host. A transport gives the phone that all that follows is for; others end it."""
        said = None
        match asked.split(":"):
            case ["host", "version"]:
                said = b"%04x" % _VERSION
            case ["host", "devices"]:
                said = "".join(f"{serial}\t{one.state}\n" for serial, one in self.phones.items()).encode()
            case ["host", "devices-l"]:
                said = "".join(
                    f"{serial:22} {one.state} product:fake\n" for serial, one in self.phones.items()
                ).encode()
            case ["host", "features" | "host-features"]:
                said = _FEATURES
            case ["host-serial", serial, "features"]:
                self._find(serial)
                said = _FEATURES
            case ["host-serial", serial, "get-state"]:
                said = self._find(serial).state.encode()
            case ["host", "transport", serial]:
                return self._okay(writer, self._find(serial))
            case ["host", "transport-any"]:
                return self._okay(writer, self._find(""))
            case ["host", "tport", "serial", serial]:
                return self._okay(writer, self._find(serial), struct.pack("<Q", 1))
            case ["host", "tport", "any"]:
                return self._okay(writer, self._find(""), struct.pack("<Q", 1))
        if said is None:
            raise Refused("unknown host service")
        writer.write(b"OKAY" + _block(said))
        raise ConnectionAbortedError  # one answer a connection

    def _okay(self, writer: asyncio.StreamWriter, phone: FakeAndroid, more: bytes = b"") -> FakeAndroid:
        writer.write(b"OKAY" + more)
        return phone

    def _find(self, serial: str) -> FakeAndroid:
        if not serial and len(self.phones) > 1:
            raise Refused("more than one device/emulator")
        phone = self.phones.get(serial) if serial else next(iter(self.phones.values()), None)
        if phone is None:
            raise Refused(f"device '{serial}' not found" if serial else "no devices/emulators found")
        if phone.state != "device":
            raise Refused(f"device {phone.state}")
        return phone

    # -- services of a phone ------------------------------------------------------------------------------------------
    async def _service(
        self, phone: FakeAndroid, asked: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self.hangs:
            self.hangs -= 1
            await self._over.wait()
        kind, _, command = asked.partition(":")
        if kind == "sync":
            writer.write(b"OKAY")
            return await _sync(phone, reader, writer)
        if kind.split(",")[0] not in ("shell", "exec"):
            raise Refused("unknown service")
        writer.write(b"OKAY")
        out, err, code = phone.run(command)
        if self.dies_after is not None:
            self.dies_after -= 1
            if self.dies_after < 0:
                for one in self.phones.values():
                    one.state = "offline"
                out = out[: len(out) // 2]
                writer.write(struct.pack("<BI", 1, len(out) + 1) + out if ",v2" in kind else out)
                return None
        if ",v2" in kind:
            for number, data in ((1, out), (2, err), (3, bytes([code]))):
                if data:
                    writer.write(struct.pack("<BI", number, len(data)) + data)
        else:
            writer.write(out + err)
        return None


async def _request(reader: asyncio.StreamReader) -> str:
    length = int(await reader.readexactly(4), 16)
    return (await reader.readexactly(length)).decode()


def _block(data: bytes) -> bytes:
    return b"%04x" % len(data) + data


async def _sync(phone: FakeAndroid, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        asked, length = struct.unpack("<4sI", await reader.readexactly(8))
        if asked == b"QUIT":
            return
        path = (await reader.readexactly(length)).decode()
        if asked == b"STAT":
            data = phone.files.get(path)
            there = (0o100644, len(data), 1) if data is not None else (0, 0, 0)
            writer.write(struct.pack("<4sIII", b"STAT", *there))
        elif asked == b"LIST":
            for name, data in phone.files.items():
                short = name.removeprefix(path.rstrip("/") + "/").encode()
                writer.write(struct.pack("<4sIIII", b"DENT", 0o100644, len(data), 1, len(short)) + short)
            writer.write(struct.pack("<4sIIII", b"DONE", 0, 0, 0, 0))
        elif asked == b"SEND":
            phone.files[path.rpartition(",")[0]] = await _received(reader)
            writer.write(struct.pack("<4sI", b"OKAY", 0))
        elif asked == b"RECV" and path in phone.files:
            data = phone.files[path]
            for at in range(0, len(data), 65536):
                part = data[at : at + 65536]
                writer.write(struct.pack("<4sI", b"DATA", len(part)) + part)
            writer.write(struct.pack("<4sI", b"DONE", 0))
        else:
            said = b"No such file or directory"
            writer.write(struct.pack("<4sI", b"FAIL", len(said)) + said)
        await writer.drain()


async def _received(reader: asyncio.StreamReader) -> bytes:
    kept = b""
    while True:
        kind, length = struct.unpack("<4sI", await reader.readexactly(8))
        if kind == b"DONE":
            return kept
        kept += await reader.readexactly(length)
