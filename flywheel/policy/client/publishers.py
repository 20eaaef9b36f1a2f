"""Publish a checkpoint's weights to a model server: `flywheel model serve`, or `vllm serve`.

A checkpoint travels as a folder that both sides can read under the same path (a shared file system where they are two
machines). It is named by its content (`checkpoint_digest`), so publishing twice is publishing once.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import httpx

from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.policy.client.endpoint import PolicyEndpoint, RouteNotFound
from flywheel.utils.errors import BadInput, PolicyError

PUBLISH_S = 600.0  # deadline of one swap: a server reads gigabytes


class CannotPublish(PolicyError):
    """A server that has no way to change its weights."""


class ServePublisher:
    """Make the `flywheel model serve` at `endpoint` answer with a checkpoint's weights.

    Each request ends on the weights that it began with.
    """

    def __init__(self, endpoint: PolicyEndpoint) -> None:
        self._endpoint = endpoint

    async def version(self) -> str:
        """Return the name of the weights that answer now; "" where the server does not report it.

        Raises as `PolicyEndpoint.call`, with a deadline of `PUBLISH_S`.
        """
        async with self._endpoint.client() as client:
            models = await self._endpoint.models(client, PUBLISH_S)
        return models[0].weight_version if models else ""

    async def publish(self, checkpoint: Path) -> str:
        """Swap the weights; returns their name once they answer. checkpoint: its folder.

        Raises ModelError for a folder without weights, CannotPublish for a vLLM without the routes, PolicyTimeout after
        `PUBLISH_S`, PolicyBusy and PolicyError for a server that otherwise does not swap. The old weights then go on
        answering (with vLLM: unless it broke off half way; publish again).
        """
        url = f"{self._endpoint.url}/weights"
        path, version = await asyncio.to_thread(_identity, checkpoint)
        async with self._endpoint.client() as client:
            body = {"path": path, "version": version}
            try:
                answer = await self._endpoint.call(client, "POST", url, body, timeout_s=PUBLISH_S)
            except BadInput as error:  # the folder is a checkpoint as seen from here
                what = f"the server cannot take the weights: {error.what}"
                fix = f"it must be able to read {path} under the same path"
                raise PolicyError(what, where=url, fix=fix) from None
        if not isinstance(answer, dict) or answer.get("weight_version") != version:
            raise PolicyError(f"the server does not answer with the weights {version}", where=url)
        return version


class VllmPublisher(ServePublisher):
    """As `ServePublisher`, to `vllm serve` with VLLM_SERVER_DEV_MODE=1.

    Its way of exchanging weights on disk (vllm/entrypoints/rl/online and serve/dev, 0.32): /pause?mode=wait lets what
    is under way end and holds what comes later; /collective_rpc runs the workers' `reload_weights` with a path;
    /reset_prefix_cache forgets keys and values of the old weights; /update_weight_version names the new ones, and
    /weight_info tells that name; /resume, in any case. Versions without the last two routes (before 0.32) work too,
    but then only the publisher knows the name.
    """

    async def version(self) -> str:
        async with self._endpoint.client() as client:
            with contextlib.suppress(CannotPublish):
                info = await self._route(client, "GET", "/weight_info")
                if isinstance(info, dict):
                    return str(info.get("weight_version") or "")
        return ""

    async def publish(self, checkpoint: Path) -> str:
        path, version = await asyncio.to_thread(_identity, checkpoint)
        async with self._endpoint.client() as client:
            await self._route(client, "POST", "/pause?mode=wait")
            try:
                await self._swap(client, path, version)
            except BaseException:
                with contextlib.suppress(PolicyError):  # the first error is the one to report
                    await self._route(client, "POST", "/resume")
                raise
            await self._route(client, "POST", "/resume")
        return version

    async def _swap(self, client: httpx.AsyncClient, path: str, version: str) -> None:
        call = {"method": "reload_weights", "kwargs": {"weights_path": path}}
        await self._route(client, "POST", "/collective_rpc", call)
        forgotten = await self._route(client, "POST", "/reset_prefix_cache")
        if isinstance(forgotten, dict) and forgotten.get("success") is False:
            raise PolicyError("the server keeps keys and values of the old weights", where=self._endpoint.root)
        with contextlib.suppress(CannotPublish):
            await self._route(client, "POST", "/update_weight_version", {"new_version": version})

    async def _route(self, client: httpx.AsyncClient, method: str, path: str, body: Any = None) -> Any:
        url = self._endpoint.root + path
        try:
            return await self._endpoint.call(client, method, url, body, timeout_s=PUBLISH_S)
        except RouteNotFound:
            what = "the server has no route to change its weights"
            raise CannotPublish(what, where=url, fix="start vllm with VLLM_SERVER_DEV_MODE=1") from None
        except BadInput as error:
            raise PolicyError(error.what, where=url) from None


def _identity(checkpoint: Path) -> tuple[str, str]:
    """The folder as the server is told it, and the name of its weights."""
    return str(Path(checkpoint).resolve()), checkpoint_digest(checkpoint)
