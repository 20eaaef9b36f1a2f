"""A context of the browser for one session: nothing of another is in it.

It has a proxy of its own, which admits what the session may reach, and a folder for the files that it keeps.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flywheel.sandbox.cdp import Connection
from flywheel.sandbox.downloads import Downloads
from flywheel.sandbox.proxy import Proxy


class BrowserContext:
    """id: of the protocol. folder: of its files; it goes with the context."""

    def __init__(
        self, connection: Connection, id: str, proxy: Proxy, folder: Path, limit: int, note: Callable[[str], None]
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
        cls, connection: Connection, place: Path, limit: int, note: Callable[[str], None], fault: Callable[[str], None]
    ) -> BrowserContext:
        """place: where its folder is made. limit: bytes of a download. fault: told of what the proxy refuses."""
        proxy = Proxy(fault)
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
        """Its files go, and what its pages reached, they reach no more. The browser is told by another."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.proxy.close()
