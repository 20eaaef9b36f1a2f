"""The policy's server: what it serves, and the errors of asking it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import httpx

from flywheel import settings as config
from flywheel.endpoint import Endpoint, Errors
from flywheel.errors import BadInput, PolicyBusy, PolicyError, PolicyTimeout
from flywheel.policy.serving import key as serving_key

LOOK_S = 10.0  # deadline of a look at what answers


@dataclass(frozen=True)
class Served:
    """A model of the server's list. owner: flywheel, vllm, ...; root: its folder or name; weight_version: or empty."""

    name: str
    owner: str
    root: str
    weight_version: str


class NotFound(PolicyError):
    """The server knows no such route or model."""


class Unreachable(PolicyError):
    """Nothing answers at the server's address, or the connection broke."""


_ERRORS = Errors(
    failed=PolicyError,
    unreachable=Unreachable,
    timeout=PolicyTimeout,
    refused=BadInput,
    unknown=NotFound,
    passing={429: PolicyBusy, 502: PolicyError, 503: PolicyError, 504: PolicyTimeout},
)


class PolicyEndpoint(Endpoint):
    """The one server at `policy.endpoint`; of several, one of `policy.servers`.

    `call` raises PolicyTimeout at the deadline or for a last 504, PolicyBusy for a last 429, NotFound for a 404,
    Unreachable without a connection, BadInput for what the server finds wrong with the request, PolicyError for
    anything else.
    """

    def __init__(self, policy: config.Policy, seed: int = 0) -> None:
        super().__init__(policy, "policy", _ERRORS, seed)
        self.root = self.url.removesuffix("/v1")  # where vLLM has its own routes
        self._policy = policy

    def key(self) -> str:
        """Of a `flywheel serve` of this user, where one is there, else of policy.key_variable."""
        return serving_key.of(self.url) or super().key()

    def _limits(self) -> httpx.Limits:
        return httpx.Limits(max_connections=None, max_keepalive_connections=self._policy.batch)

    async def models(self, client: httpx.AsyncClient, timeout_s: float) -> list[Served]:
        """What the server serves. Raises as `call` does."""
        url = f"{self.url}/models"
        body = await self.call(client, "GET", url, timeout_s=timeout_s)
        try:
            return [
                Served(
                    str(row["id"]),
                    str(row.get("owned_by", "")),
                    str(row.get("root") or ""),
                    str(row.get("weight_version") or ""),
                )
                for row in body["data"]
            ]
        except (KeyError, TypeError, AttributeError):
            raise PolicyError(
                "not a list of models", where=url, fix="the endpoint ends in /v1 for most servers"
            ) from None

    async def find(self, client: httpx.AsyncClient, timeout_s: float) -> Served:
        """The model of policy.model, or where that is empty the first one. Raises NotFound where it is not there."""
        models = await self.models(client, timeout_s)
        found = [model for model in models if self._policy.model in ("", model.name)]
        if found:
            return found[0]
        known = ", ".join(model.name for model in models) or "none"
        raise NotFound(
            f"the server has no model {self._policy.model!r}; it has: {known}",
            where=self.url,
            fix="set policy.model to one of these",
        )


def look(policy: config.Policy) -> str:
    """What answers at the one server of policy.endpoint, in one line. Raises as `PolicyEndpoint.find` does.

    Must not be called from a running event loop.
    """
    endpoint = PolicyEndpoint(policy)

    async def ask() -> Served:
        async with endpoint.client() as client:
            return await endpoint.find(client, min(policy.timeout_s, LOOK_S))

    model = asyncio.run(ask())
    weights = f", weights {model.weight_version}" if model.weight_version else ""
    return f"{endpoint.url}: {model.name} ({model.owner or 'unknown server'}{weights})"
