"""Weights from the trainer to inference: one protocol for `flywheel serve` and `vllm serve`.

A policy in this process loads them by itself (`Policy.load`).

A checkpoint travels as a folder that both sides can read under the same path (a shared file system where they are two
machines). It is named by its content (`model.digest`), so publishing twice is publishing once.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any, Protocol

import httpx

from flywheel.errors import BadInput, PolicyError
from flywheel.policy.checkpoint import digest
from flywheel.policy.endpoint import NotFound, PolicyEndpoint, Served

PUBLISH_S = 600.0  # deadline of one swap: a server reads gigabytes


class WeightPublisher(Protocol):
    """Makes inference answer with a checkpoint's weights. No request is lost: each ends on those it began with."""

    async def version(self) -> str:
        """Name of the weights that answer now; empty where the server does not tell."""

    async def publish(self, checkpoint: Path) -> str:
        """Swap the weights; returns their name once they answer.

        Raises ModelError for a folder that is no checkpoint, PolicyError for a server that cannot or does not swap,
        PolicyTimeout after `PUBLISH_S`. The old weights then go on answering (with vLLM: unless it broke off half way;
        publish again).
        """


class CannotPublish(PolicyError):
    """A server that has no way to change its weights."""


class ServePublisher:
    """To `flywheel serve`, by POST /v1/weights."""

    def __init__(self, endpoint: PolicyEndpoint, timeout_s: float = PUBLISH_S) -> None:
        self._endpoint, self._timeout_s = endpoint, timeout_s

    async def version(self) -> str:
        async with self._endpoint.client() as client:
            models = await self._endpoint.models(client, self._timeout_s)
        return models[0].weight_version if models else ""

    async def publish(self, checkpoint: Path) -> str:
        url = f"{self._endpoint.url}/weights"
        path, version = await asyncio.to_thread(_identity, checkpoint)
        async with self._endpoint.client() as client:
            body = {"path": path, "version": version}
            try:
                answer = await self._endpoint.call(client, "POST", url, body, timeout_s=self._timeout_s)
            except BadInput as error:  # the folder is a checkpoint as seen from here
                raise PolicyError(
                    f"the server cannot take the weights: {error.what}",
                    where=url,
                    fix=f"it must be able to read {path} under the same path",
                ) from None
        if not isinstance(answer, dict) or answer.get("weight_version") != version:
            raise PolicyError(f"the server does not answer with the weights {version}", where=url)
        return version


class VllmPublisher:
    """To `vllm serve` with VLLM_SERVER_DEV_MODE=1.

    Its way of exchanging weights on disk (vllm/entrypoints/rl/online and serve/dev, 0.32): /pause?mode=wait lets what
    is under way end and holds what comes later; /collective_rpc runs the workers' `reload_weights` with a path;
    /reset_prefix_cache forgets keys and values of the old weights; /update_weight_version names the new ones, and
    /weight_info tells that name; /resume, in any case. Versions without the last two routes (before 0.32) work too,
    but then only the publisher knows the name.
    """

    def __init__(self, endpoint: PolicyEndpoint, timeout_s: float = PUBLISH_S) -> None:
        self._endpoint, self._timeout_s = endpoint, timeout_s

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
                with contextlib.suppress(PolicyError):  # the first fault is the one to be told
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
            return await self._endpoint.call(client, method, url, body, timeout_s=self._timeout_s)
        except NotFound:
            raise CannotPublish(
                "the server has no route to change its weights", where=url, fix="start vllm with VLLM_SERVER_DEV_MODE=1"
            ) from None


def _identity(checkpoint: Path) -> tuple[str, str]:
    """The folder as the server is told it, and the name of its weights."""
    return str(Path(checkpoint).resolve()), digest(checkpoint)


def publisher_of(model: Served, endpoint: PolicyEndpoint) -> WeightPublisher:
    """The publisher that a server needs: by who owns the model in its list."""
    return ServePublisher(endpoint) if model.owner == "flywheel" else VllmPublisher(endpoint)
