"""Call an OpenAI-compatible server, with deadlines, retries and named errors."""

from __future__ import annotations

import asyncio
import email.utils
import json
import os
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import httpx

from flywheel.config import LanguageModelSettings, PolicySettings
from flywheel.policy.server import process as server_process
from flywheel.utils.errors import BadInput, FlywheelError, PolicyBusy, PolicyError, PolicyTimeout, first_line

PAUSE_S = 0.25  # bound of the first pause between two tries; it doubles with each further pause
LONGEST_PAUSE_S = 8.0
MAX_ANSWER = 64 << 20  # bytes


class _Transient(Exception):
    """Signal a temporary fault. error: raised to the caller after the last try. retry_after: seconds that the server
    asked to wait."""

    def __init__(self, error: FlywheelError, retry_after: float = 0.0) -> None:
        self.error, self.retry_after = error, retry_after


class ChatEndpoint:
    """Call one OpenAI-compatible server, with retries; the policy and the language model each have a subclass.

    settings: block with the address. seed: of the random pauses. A call is retried, its block's `retries` times, after
    a temporary fault (no connection, a broken connection, a status in `passing`): it waits for the server's
    Retry-After, plus a pause drawn from 0 to a bound that doubles, from 0.25 s to 8 s (full jitter). block: name of the
    settings' block, for messages. The other class variables are error classes: `refused` for a request that the server
    rejects (4xx), `unknown` for a route or model that it does not have. Raises BadInput for an endpoint that is not an
    address.
    """

    block: ClassVar[str]
    failed: ClassVar[type[FlywheelError]]
    unreachable: ClassVar[type[FlywheelError]]
    timeout: ClassVar[type[FlywheelError]]
    refused: ClassVar[type[FlywheelError]]
    unknown: ClassVar[type[FlywheelError]]
    passing: ClassVar[Mapping[int, type[FlywheelError]]]

    def __init__(self, settings: PolicySettings | LanguageModelSettings, seed: int = 0) -> None:
        self._settings = settings
        place = f"{self.block}.endpoint"
        try:
            address = httpx.URL(settings.endpoint)
            host = address.host  # decoded here
        except (httpx.InvalidURL, UnicodeError) as error:
            raise BadInput(f"not an address: {error}", where=place) from None
        if address.scheme not in ("http", "https") or not host:
            fix = "for example http://127.0.0.1:8000/v1"
            raise BadInput(f"not an address: {settings.endpoint!r}", where=place, fix=fix)
        self.url = settings.endpoint.rstrip("/")
        self.limits = httpx.Limits(max_connections=None)
        self._random = random.Random(seed)

    def key(self) -> str:
        """Return the API key; "" where the variable that `key_variable` names is not set."""
        return os.environ.get(self._settings.key_variable, "")

    def headers(self) -> dict[str, str]:
        """Return the headers with the present API key: a restarted server may have another."""
        return {"Authorization": f"Bearer {key}"} if (key := self.key()) else {}

    def client(self) -> httpx.AsyncClient:
        """Return a new HTTP client for this server. The caller closes it, and uses it in one event loop only."""
        # No timeouts in the client, as `call` has a deadline. Certificates, which take 20 ms to read, only for https.
        encrypted = self.url.lower().startswith("https:")
        return httpx.AsyncClient(verify=encrypted, headers=self.headers(), timeout=None, limits=self.limits)

    async def call(
        self,
        client: httpx.AsyncClient,
        method: str,
        url: str,
        body: Any = None,
        *,
        timeout_s: float,
        reads_json: bool = True,
    ) -> Any:
        """Send a request and return the JSON of the answer; None for an empty one.

        client: from `client()`. method, url: of the request. body: sent as JSON; None sends no body. timeout_s: limit
        of all tries together, in seconds. reads_json: False ignores the body of the answer and returns None. Raises the
        class variable `timeout` after `timeout_s`; `unreachable` without a connection, or one that breaks, and the
        class that `passing` has for the status, both also sooner where the next pause would outlast `timeout_s`;
        `unknown` for 404, `refused` for another 4xx, and `failed` otherwise: 401, 403, another status from 300 on, an
        answer that cannot be read, is not JSON or has over 64 MiB.
        """
        tries, fault = self._settings.retries + 1, ""
        deadline = time.monotonic() + timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                for number in range(tries):
                    try:
                        return await self._once(client, method, url, body, reads_json)
                    except _Transient as passing:
                        fault = f"; before: {passing.error.what}"
                        pause = passing.retry_after + self.pause(number)
                        if number + 1 == tries or time.monotonic() + pause > deadline:
                            error, more = passing.error, f" ({number + 1} tries)" if number else ""
                            raise type(error)(error.what + more, where=error.where, fix=error.fix) from None
                        await asyncio.sleep(pause)
        except TimeoutError:
            raise self.timeout(f"no answer in {timeout_s:g} s{fault}", where=url, fix=self._slow) from None

    def pause(self, number: int) -> float:
        """Return the seconds to wait after a failed try, drawn at random. number: of the try, from 0."""
        return self._random.uniform(0, min(LONGEST_PAUSE_S, PAUSE_S * 2**number))

    async def _once(self, client: httpx.AsyncClient, method: str, url: str, body: Any, reads_json: bool) -> Any:
        # Encoded as ASCII JSON here, as half a surrogate pair in a text must reach the server, whose error names it.
        sent = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if sent else {}
        content = bytearray()
        try:
            async with client.stream(method, url, content=sent, headers=headers) as response:
                async for piece in response.aiter_bytes():
                    content += piece
                    if len(content) > MAX_ANSWER:
                        raise self.failed(f"an answer of more than {MAX_ANSWER >> 20} MiB", where=url)
        except httpx.ConnectError as error:
            what = f"no connection: {first_line(str(error))}"
            raise _Transient(self.unreachable(what, where=url, fix=self._start)) from None
        except httpx.TransportError as error:
            what = f"the connection broke: {first_line(str(error)) or type(error).__name__}"
            raise _Transient(self.unreachable(what, where=url, fix=self._start)) from None
        except httpx.HTTPError as error:
            raise self.failed(f"the answer cannot be read: {first_line(str(error))}", where=url) from None
        if response.status_code >= 300:
            raise self._refusal(response, content, url)
        try:
            return json.loads(content) if content and reads_json else None
        except (ValueError, RecursionError):
            what = f"the answer is not JSON: {first_line(content[:300].decode(errors='replace'))!r}"
            fix = f"does {self.block}.endpoint name an OpenAI-compatible server, and end in /v1?"
            raise self.failed(what, where=url, fix=fix) from None

    def _refusal(self, response: httpx.Response, content: bytearray, url: str) -> Exception:
        """Return the exception for a response whose status is not a success."""
        status = response.status_code
        what = f"status {status}: {_server_message(content)}"
        if status in self.passing:
            fix = self._slow if status in (408, 504) else self._start
            if status == 429:
                fix = f"ask less at once, or raise {self.block}.retries"
            error = self.passing[status](what, where=url, fix=fix)
            return _Transient(error, parse_retry_after(response.headers.get("retry-after", "")))
        if status in (401, 403):
            return self.failed(what, where=url, fix=f"put the server's key into {self._settings.key_variable}")
        if status == 404:
            fix = f"see {self.block}.model, and whether {self.block}.endpoint ends in /v1"
            return self.unknown(what, where=url, fix=fix)
        return (self.refused if 400 <= status < 500 else self.failed)(what, where=url)

    @property
    def _start(self) -> str:
        return f"start the server, or see {self.block}.endpoint"

    @property
    def _slow(self) -> str:
        return f"see the server's load, or raise {self.block}.timeout_s"


def _server_message(content: bytearray) -> str:
    """Return the server's error message: that of OpenAI's error body, or the first line of the text."""
    text = content[:2000].decode(errors="replace")
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return first_line(text) or "no reason given"
    error = body.get("error", body.get("detail")) if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return first_line(message if isinstance(message, str) else text)


def parse_retry_after(value: str) -> float:
    """Parse a Retry-After header, in seconds or as a date, to seconds; 0 where there is none."""
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError):
        return 0.0


PROBE_TIMEOUT_S = 10.0  # deadline of the request for a server's list of models


@dataclass(frozen=True)
class ServedModel:
    """Hold what a server tells of one model that it serves.

    name: its id. owner: the serving program, such as flywheel or vllm. root: its folder or Hugging Face name.
    weight_version: digest of its weights; "" where the server does not report it. parent: the base model of an adapter;
    "" for a whole model.
    """

    name: str
    owner: str
    root: str
    weight_version: str
    parent: str = ""


class RouteNotFound(PolicyError):
    """Signal that the server has no such route or model."""


class PolicyUnreachable(PolicyError):
    """Signal that nothing answers at the server's address, or that the connection broke."""


class PolicyEndpoint(ChatEndpoint):
    """Call one policy server: that of `policy.endpoint`, or one of `policy.servers` where there are several.

    `call` raises PolicyTimeout, PolicyUnreachable, PolicyBusy, RouteNotFound and BadInput (a refused request) so, and
    PolicyError for all else.
    """

    block, failed, unreachable, timeout = "policy", PolicyError, PolicyUnreachable, PolicyTimeout
    refused, unknown = BadInput, RouteNotFound
    passing: ClassVar = {429: PolicyBusy, 502: PolicyError, 503: PolicyError, 504: PolicyTimeout}

    def __init__(self, policy: PolicySettings, seed: int = 0) -> None:
        super().__init__(policy, seed)
        self.root = self.url.removesuffix("/v1")  # where vLLM has its own routes
        self.limits = httpx.Limits(max_connections=None, max_keepalive_connections=policy.max_num_seqs)

    def key(self) -> str:
        """Return the API key of the policy server.

        It is that of the server that this user runs at the address, else that in the variable of policy.key_variable;
        "" for none.
        """
        return server_process.find_server_key(self.url) or super().key()

    async def models(self, client: httpx.AsyncClient, timeout_s: float) -> list[ServedModel]:
        """List the models that the server serves, within `timeout_s`.

        Raises PolicyError for an answer that is no such list, and as `call` does.
        """
        url = f"{self.url}/models"
        body = await self.call(client, "GET", url, timeout_s=timeout_s)
        names = ("owned_by", "root", "weight_version", "parent")
        try:
            return [ServedModel(str(row["id"]), *(str(row.get(name) or "") for name in names)) for row in body["data"]]
        except (KeyError, TypeError, AttributeError):
            fix = "the endpoint ends in /v1 for most servers"
            raise PolicyError("not a list of models", where=url, fix=fix) from None

    async def find(self, client: httpx.AsyncClient, timeout_s: float) -> ServedModel:
        """Find the server's model with the name policy.model, or its first one where that is "", within `timeout_s`.

        Raises RouteNotFound where the server has no such model, and as `call` does.
        """
        models = await self.models(client, timeout_s)
        found = [model for model in models if self._settings.model in ("", model.name)]
        if found:
            return found[0]
        known = ", ".join(model.name for model in models) or "none"
        what = f"the server has no model {self._settings.model!r}; it has: {known}"
        raise RouteNotFound(what, where=self.url, fix="set policy.model to one of these")


def describe_policy_server(policy: PolicySettings) -> str:
    """Describe in one line what the server at `policy.endpoint` serves: address, model, owner, weights.

    policy: block `policy`, with one server. Raises PolicyUnreachable or PolicyTimeout (after 10 s, or
    `policy.timeout_s` where that is less) where the server does not answer, RouteNotFound where it lacks the model or
    the route, PolicyBusy or PolicyError for another error, BadInput for an endpoint that is no address or a request
    that the server refuses. Must not be called from a running event loop (RuntimeError).
    """
    endpoint = PolicyEndpoint(policy)

    async def ask() -> ServedModel:
        async with endpoint.client() as client:
            return await endpoint.find(client, min(policy.timeout_s, PROBE_TIMEOUT_S))

    model = asyncio.run(ask())
    weights = f", weights {model.weight_version}" if model.weight_version else ""
    return f"{endpoint.url}: {model.name} ({model.owner or 'unknown server'}{weights})"
