"""Calls to an OpenAI-compatible server: deadlines, tries, and a named error for all that can go wrong on the way."""

from __future__ import annotations

import asyncio
import email.utils
import json
import os
import random
import time
from dataclasses import dataclass
from typing import Any

import httpx

from flywheel import settings as config
from flywheel.errors import BadInput, FlywheelError, PolicyBusy, PolicyError, PolicyTimeout
from flywheel.policy.serving import key as serving_key

PAUSE_S = 0.25  # the first pause between two tries is up to this long, each further one up to twice as long
LONGEST_PAUSE_S = 8.0
LOOK_S = 10.0  # deadline of a look at what answers
MAX_ANSWER = 64 << 20  # bytes
_PASSING = {429: PolicyBusy, 502: PolicyError, 503: PolicyError, 504: PolicyTimeout}  # states that may pass
_START = "start the server, or see policy.endpoint"


@dataclass(frozen=True)
class Served:
    """A model of the server's list. owner: flywheel, vllm, ...; root: its folder or name; weight_version: or empty."""

    name: str
    owner: str
    root: str
    weight_version: str


class NotFound(PolicyError):
    """The server knows no such route or model."""


class _Passing(Exception):
    """A fault that may pass. retry_after: seconds that the server asked for."""

    def __init__(self, error: FlywheelError, retry_after: float = 0.0) -> None:
        self.error, self.retry_after = error, retry_after


class Endpoint:
    """A server's address and key: of a `flywheel serve` of this user, where one is there, else of policy.key_variable.

    Raises BadInput for an endpoint that is not an address.

    Tries are repeated where the fault may pass (no connection, a connection that breaks, 429, 502, 503, 504), after a
    pause drawn from 0 to a bound that doubles (full jitter), no shorter than the server's Retry-After. The draws come
    from a generator with a seed of its own.
    """

    def __init__(self, policy: config.Policy, seed: int = 0) -> None:
        try:
            address = httpx.URL(policy.endpoint)
        except httpx.InvalidURL as error:
            raise BadInput(f"not an address: {error}", where="policy.endpoint") from None
        if address.scheme not in ("http", "https") or not address.host:
            raise BadInput(
                f"not an address: {policy.endpoint!r}",
                where="policy.endpoint",
                fix="for example http://127.0.0.1:8000/v1",
            )
        self.url = policy.endpoint.rstrip("/")
        self.root = self.url.removesuffix("/v1")  # where vLLM has its own routes
        self._policy = policy
        self._random = random.Random(seed)

    def client(self) -> httpx.AsyncClient:
        """Connections to this server, to be closed. They belong to the event loop that they are used in."""
        key = serving_key.of(self.url) or os.environ.get(self._policy.key_variable, "")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=self._policy.batch)
        # Without limits of its own on time: `call` has a deadline over everything.
        return httpx.AsyncClient(headers=headers, timeout=None, limits=limits)

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
        """The model of policy.model, or where that is empty the first one. Raises PolicyError where it is not there."""
        models = await self.models(client, timeout_s)
        found = [model for model in models if self._policy.model in ("", model.name)]
        if found:
            return found[0]
        known = ", ".join(model.name for model in models) or "none"
        raise PolicyError(
            f"the server has no model {self._policy.model!r}; it has: {known}",
            where=self.url,
            fix="set policy.model to one of these",
        )

    async def call(
        self, client: httpx.AsyncClient, method: str, url: str, body: Any = None, *, timeout_s: float
    ) -> Any:
        """The JSON of the server's answer; None for an empty one.

        timeout_s is the deadline over all tries. Raises PolicyTimeout at the deadline or for a last 504, PolicyBusy
        for a last 429, NotFound for a 404, BadInput for what the server finds wrong with the request, PolicyError for
        anything else.
        """
        tries, fault = self._policy.retries + 1, ""
        deadline = time.monotonic() + timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                for number in range(tries):
                    try:
                        return await self._once(client, method, url, body)
                    except _Passing as passing:
                        fault = f"; before: {passing.error.what}"
                        pause = passing.retry_after + self.pause(number)
                        if number + 1 == tries or time.monotonic() + pause > deadline:
                            raise _after(passing.error, number + 1) from None
                        await asyncio.sleep(pause)
        except TimeoutError:
            raise PolicyTimeout(
                f"no answer in {timeout_s:g} s{fault}",
                where=url,
                fix="see the server's load, or raise policy.timeout_s",
            ) from None

    def pause(self, number: int) -> float:
        """Seconds before the try after the `number`th, counted from 0."""
        return self._random.uniform(0, min(LONGEST_PAUSE_S, PAUSE_S * 2**number))

    async def _once(self, client: httpx.AsyncClient, method: str, url: str, body: Any) -> Any:
        # Encoded here: half a surrogate pair in a text must reach the server, which names it, and not fail in between.
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if content else {}
        try:
            async with client.stream(method, url, content=content, headers=headers) as response:
                content = await _read(response, url)
        except httpx.ConnectError as error:
            fault = PolicyError(f"no connection: {_line(str(error))}", where=url, fix=_START)
            raise _Passing(fault) from None
        except httpx.TransportError as error:
            what = f"the connection broke: {_line(str(error)) or type(error).__name__}"
            raise _Passing(PolicyError(what, where=url, fix=_START)) from None
        except httpx.HTTPError as error:
            raise PolicyError(f"the answer cannot be read: {_line(str(error))}", where=url) from None
        if response.status_code >= 300:
            raise self._refusal(response, content, url)
        try:
            return json.loads(content) if content else None
        except (ValueError, RecursionError):
            raise PolicyError(
                f"the answer is not JSON: {_line(content[:300].decode(errors='replace'))!r}",
                where=url,
                fix="does policy.endpoint name an OpenAI-compatible server, and end in /v1?",
            ) from None

    def _refusal(self, response: httpx.Response, content: bytes, url: str) -> Exception:
        """What is raised for a status that is not a success."""
        status, said = response.status_code, _said(content)
        if status in _PASSING:
            error = _PASSING[status](f"status {status}: {said}", where=url, fix=_FIXES[status])
            return _Passing(error, retry_after(response.headers.get("retry-after", "")))
        if status in (401, 403):
            variable = self._policy.key_variable
            return PolicyError(f"status {status}: {said}", where=url, fix=f"put the server's key into {variable}")
        if status == 404:
            return NotFound(
                f"status 404: {said}", where=url, fix="see policy.model, and whether policy.endpoint ends in /v1"
            )
        kind = BadInput if 400 <= status < 500 else PolicyError
        return kind(f"status {status}: {said}", where=url)


def look(policy: config.Policy) -> str:
    """What answers at policy.endpoint, in one line. Raises as `Endpoint.find` does.

    Must not be called from a running event loop.
    """
    endpoint = Endpoint(policy)

    async def ask() -> Served:
        async with endpoint.client() as client:
            return await endpoint.find(client, min(policy.timeout_s, LOOK_S))

    model = asyncio.run(ask())
    weights = f", weights {model.weight_version}" if model.weight_version else ""
    return f"{endpoint.url}: {model.name} ({model.owner or 'unknown server'}{weights})"


_FIXES = {
    429: "ask less at once (policy.batch), or raise policy.retries",
    502: _START,
    503: _START,
    504: "see the server's load, or raise policy.timeout_s",
}


def _after(error: FlywheelError, tries: int) -> FlywheelError:
    return error if tries == 1 else type(error)(f"{error.what} ({tries} tries)", where=error.where, fix=error.fix)


async def _read(response: httpx.Response, url: str) -> bytes:
    content = bytearray()
    async for piece in response.aiter_bytes():
        content += piece
        if len(content) > MAX_ANSWER:
            raise PolicyError(f"an answer of more than {MAX_ANSWER >> 20} MiB", where=url)
    return bytes(content)


def _said(content: bytes) -> str:
    """What the server said, in its own words: the message of OpenAI's error body, or the first line."""
    text = content[:2000].decode(errors="replace")
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return _line(text) or "no reason given"
    error = body.get("error", body.get("detail")) if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return _line(message if isinstance(message, str) else text)


def retry_after(value: str) -> float:
    """Seconds of a Retry-After header, in seconds or as a date; 0 where there is none."""
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError):
        return 0.0


def _line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0][:200]
