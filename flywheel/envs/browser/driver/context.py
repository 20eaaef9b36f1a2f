"""Make and dispose of browser contexts, one a session, with their proxy and downloads."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flywheel.envs.browser.driver.cdp import CdpConnection
from flywheel.envs.browser.driver.proxy import SessionProxy

_MAX_NAME = 120  # characters
_MAX_FILES = 100  # of one session
_BEGIN_S = 0.5  # that a step waits for a file to begin, where one was asked for
_DOWNLOAD_S = 2.0  # and for it to be there


class Downloads:
    """Files that pages give the user, kept in the session's folder under their own names.

    folder: where they lie. limit: bytes of one file. cancel: stops a download by its id. note: tells the user of it.
    """

    def __init__(self, folder: Path, limit: int, cancel: Callable[[str], None], note: Callable[[str], None]) -> None:
        self.folder, self._limit, self._cancel, self._note = folder, limit, cancel, note
        self._names: dict[str, str] = {}  # of the ones under way
        self._waited: set[str] = set()  # of those, the ones that were waited for
        self._count = self._asked = 0  # that began, and that should

    def expect(self, files: int) -> None:
        """Expect that so many files begin, or have just begun."""
        self._asked += files

    async def settle(self) -> None:
        """Wait a moment for those that were asked for to begin, and for those under way to be there."""
        await _wait_until(lambda: self._asked <= self._count, _BEGIN_S)
        await _wait_until(lambda: self._waited.issuperset(self._names), _DOWNLOAD_S)
        self._asked, self._waited = self._count, set(self._names)  # what has not come yet may come when it will

    def begins(self, params: Mapping[str, Any]) -> None:
        guid, name = params["guid"], safe_file_name(params["suggestedFilename"])
        self._count += 1
        if self._count > _MAX_FILES:
            self._cancel(guid)
            self._note(f"a download was refused: there are {_MAX_FILES} already")
            return
        self._names[guid] = name

    def goes_on(self, params: Mapping[str, Any]) -> None:
        guid, state = params["guid"], params["state"]
        name = self._names.get(guid)
        if name is None:
            return
        if state == "completed":
            del self._names[guid]
            target = _free_path(self.folder / name)
            try:
                (self.folder / guid).rename(target)
            except OSError as error:
                self._note(f"the download {name} could not be kept: {error.strerror}")
                return
            self._note(f"downloaded {target.name} ({target.stat().st_size} bytes)")
        elif state == "canceled":
            del self._names[guid]
            self._note(f"the download {name} failed")
        elif max(params["receivedBytes"], params["totalBytes"]) > self._limit:
            del self._names[guid]
            self._cancel(guid)
            self._note(f"the download {name} was cancelled: it is longer than {self._limit // 2**20} MiB")


def safe_file_name(name: str) -> str:
    """Make a file name that stays in its folder, whatever a server called the file."""
    name = re.sub(r"[\x00-\x1f/\\\x7f]", "_", name).strip(" .")
    return name[-_MAX_NAME:] or "download"


def _free_path(path: Path) -> Path:
    """`a.txt`, or `a (1).txt` where that is taken."""
    number, free = 0, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.stem} ({number}){path.suffix}")
    return free


async def _wait_until(holds: Callable[[], bool], seconds: float) -> None:
    """Wait until something holds, and no longer than so many seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110 (the browser tells nobody else)
                await asyncio.sleep(0.005)


class BrowserContext:
    """A browser context for one session, with a proxy that admits what the session may reach.

    id: of the protocol. folder: of the session's files; it goes with the context.
    """

    def __init__(
        self,
        connection: CdpConnection,
        id: str,
        proxy: SessionProxy,
        folder: Path,
        limit: int,
        note: Callable[[str], None],
    ) -> None:
        self._connection, self.id, self.proxy, self.folder = connection, id, proxy, folder
        own = {"browserContextId": id}
        self.downloads = Downloads(
            folder, limit, lambda guid: connection.post("Browser.cancelDownload", {"guid": guid, **own}), note
        )
        connection.post("Browser.grantPermissions", {"permissions": [], **own})  # all others are denied
        connection.post(
            "Browser.setDownloadBehavior",
            {"behavior": "allowAndName", "downloadPath": str(folder), "eventsEnabled": True, **own},
        )

    @classmethod
    async def open(
        cls,
        connection: CdpConnection,
        place: Path,
        limit: int,
        note: Callable[[str], None],
        fault: Callable[[str], None],
    ) -> BrowserContext:
        """Open a context. place: where its folder is made. limit: bytes of a download. fault: told of refused hosts."""
        proxy = SessionProxy(fault)
        await proxy.start()
        wanted = {"disposeOnDetach": True, "proxyServer": proxy.address, "proxyBypassList": "<-loopback>"}
        try:
            made = await connection.send("Target.createBrowserContext", wanted)
        except BaseException:
            proxy.close()
            raise
        folder = Path(tempfile.mkdtemp(prefix="downloads-", dir=place))
        return cls(connection, made["browserContextId"], proxy, folder, limit, note)

    async def cookies(self) -> list[dict[str, Any]]:
        return (await self._connection.send("Storage.getCookies", {"browserContextId": self.id}))["cookies"]

    async def set_cookies(self, cookies: Sequence[Mapping[str, Any]]) -> None:
        await self._connection.send("Storage.setCookies", {"cookies": list(cookies), "browserContextId": self.id})

    def forget(self) -> None:
        """Remove its files and close its proxy. The caller tells the browser."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.proxy.close()
