"""Define the routes of `flywheel model serve`: chat completions, models, weights, health."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from flywheel import config
from flywheel.policy import checkpoint
from flywheel.policy.chat_api import ChatRequest, format_chat_answer, format_chat_chunks, parse_chat_request
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.policy.protocol import Completion
from flywheel.utils.errors import BadInput, FlywheelError, PolicyBusy, PolicyError, PolicyTimeout

if TYPE_CHECKING:
    from flywheel.policy.inference.embedded import EmbeddedPolicy

T = TypeVar("T")
log = logging.getLogger(__name__)

MAX_BODY = 64 << 20  # most bytes of a request's body
_RETRY_AFTER_S = "1"
_GONE = 499  # status for a client that has disconnected; it is never sent


class ApiRequestRefused(Exception):
    """Signal that the server refuses a request.

    status: HTTP status. param: field at fault. code: OpenAI's error code.
    """

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code


class PolicyService:
    """Hold the state that the routes of a policy server share.

    policy: answers the requests. name: name of the model. folder: its checkpoint. key: API key that clients must send.
    settings: block `policy`. The attribute `cut` is an event that ends the running requests when set. Raises ModelError
    where the checkpoint's config.json is damaged.
    """

    def __init__(
        self, policy: EmbeddedPolicy, *, name: str, folder: Path, key: str, settings: config.PolicySettings
    ) -> None:
        self.policy, self.name, self.folder, self.key = policy, name, folder, key
        self.longest = _read_context_length(folder)
        self.max_new_tokens, self.timeout_s = settings.max_new_tokens, settings.timeout_s
        self.started = int(time.time())
        self.closing = False
        self.under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.cut = asyncio.Event()
        self._swap = asyncio.Lock()

    async def drain(self, seconds: float) -> None:
        """Refuse new requests; wait until the running ones are answered, and end them after `seconds`."""
        self.closing = True
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            self.cut.set()
            await self._idle.wait()

    @contextlib.contextmanager
    def count_request(self) -> Iterator[None]:
        """Count a request as running within the block. Raises ApiRequestRefused if the server is closing."""
        if self.closing:
            raise ApiRequestRefused(503, "the server is closing", code="closing")
        self.under_way += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.under_way -= 1
            if not self.under_way:
                self._idle.set()

    async def await_while_connected(self, request: Request, work: Awaitable[T]) -> T:
        """Await `work` and return its result; cancel it if the client disconnects or the server is cut off.

        Raises ClientDisconnect if the client of `request` disconnects first, ApiRequestRefused if `cut` is set first.
        """
        task = asyncio.ensure_future(work)
        gone, cut = asyncio.create_task(_disconnected(request)), asyncio.create_task(self.cut.wait())
        try:
            await asyncio.wait({task, gone, cut}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if gone.done():
                raise ClientDisconnect
            raise ApiRequestRefused(503, "the server closed before the answer was there", code="closing")
        finally:
            for one in (task, gone, cut):
                one.cancel()
            await asyncio.gather(task, gone, cut, return_exceptions=True)

    async def complete(self, asked: ChatRequest) -> tuple[list[Completion], list[int]]:
        """Sample all answers of a request concurrently; return them and the prompt's token ids.

        Raises BadInput where prompt and answer do not fit into the model's context, and as `EmbeddedPolicy.complete`.
        """
        prompt_ids = await asyncio.to_thread(self.policy.encoder.prompt_ids, asked.context)
        new = asked.samples[0].max_new_tokens
        if len(prompt_ids) + new > self.longest:
            what = f"a prompt of {len(prompt_ids)} tokens and {new} new ones do not fit into the model's {self.longest}"
            raise BadInput(what, where="messages", fix="send less, or lower max_tokens")
        tasks = [asyncio.create_task(self.policy.complete(asked.context, sampling)) for sampling in asked.samples]
        try:
            return await asyncio.gather(*tasks), prompt_ids
        finally:
            for task in tasks:  # if one has failed, the others stop
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def swap(self, folder: Path, version: str) -> str:
        """Load the checkpoint in `folder`; return its digest. version: expected digest; "": any.

        Raises BadInput for another digest, and as `EmbeddedPolicy.load`.
        """
        async with self._swap:
            found = await asyncio.to_thread(checkpoint_digest, folder)
            if version and found != version:
                what = f"the folder holds the weights {found}, not {version}"
                raise BadInput(what, where=folder, fix="publish again")
            if found != self.policy.weight_version:
                await self.policy.load(folder)
                self.folder, self.longest = folder, _read_context_length(folder)
        return self.policy.weight_version


def _read_context_length(folder: Path) -> int:
    """Read the model's maximum length in tokens, prompt and answer together; sys.maxsize if none is set."""
    config = checkpoint.read_json_object(checkpoint.find_base_checkpoint(folder) / "config.json")
    return int((config.get("text_config") or config).get("max_position_embeddings") or sys.maxsize)


def create_policy_app(service: PolicyService) -> Starlette:
    """Create the Starlette application that serves `service`; every route but `/health` requires its key."""

    async def health(request: Request) -> Response:
        state = "closing" if service.closing else "ok"
        return JSONResponse({"status": state, "under_way": service.under_way}, 503 if service.closing else 200)

    async def models(request: Request) -> Response:
        row = {
            "id": service.name,
            "object": "model",
            "created": service.started,
            "owned_by": "flywheel",
            "root": str(service.folder),
            "max_model_len": service.longest,
            "weight_version": service.policy.weight_version,
        }
        return JSONResponse({"object": "list", "data": [row]})

    async def completions(request: Request) -> Response:
        raw = await _body(request, service.timeout_s)
        with service.count_request():
            asked = await asyncio.to_thread(
                parse_chat_request, raw, max_new_tokens=service.max_new_tokens, seed=lambda: secrets.randbits(31)
            )
            if asked.model != service.name:
                message = f"The model `{asked.model[:80]}` does not exist; this server has `{service.name}`"
                raise ApiRequestRefused(404, message, param="model", code="model_not_found")
            answers, prompt_ids = await service.await_while_connected(request, service.complete(asked))
            head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": service.name}
            spell = service.policy.encoder.tokenizer.decode
            if asked.stream:
                chunks = list(format_chat_chunks(head, asked, answers, prompt_ids, spell))
                return StreamingResponse(_events(chunks), media_type="text/event-stream")
            return JSONResponse(format_chat_answer(head, asked, answers, prompt_ids, spell))

    async def weights(request: Request) -> Response:
        folder, version = _checkpoint(await _body(request, service.timeout_s))
        with service.count_request():
            before = service.policy.weight_version
            now = await service.swap(folder, version)
            return JSONResponse({"weight_version": now, "previous": before})

    routes = [
        Route("/health", health),
        Route("/v1/models", _guarded(service, models)),
        Route("/v1/chat/completions", _guarded(service, completions), methods=["POST"]),
        Route("/v1/weights", _guarded(service, weights), methods=["POST"]),
    ]
    return Starlette(routes=routes, exception_handlers={404: _no_route, 405: _no_route})


Handler = Callable[[Request], Awaitable[Response]]


def _guarded(service: PolicyService, handler: Handler) -> Handler:
    """Wrap a handler: require the key, and turn exceptions into OpenAI error responses."""

    async def guarded(request: Request) -> Response:
        try:
            sent = request.headers.get("authorization", "")
            if not hmac.compare_digest(sent.encode(), f"Bearer {service.key}".encode()):
                raise ApiRequestRefused(401, "Incorrect API key provided", code="invalid_api_key")
            return await handler(request)
        except ClientDisconnect:
            return Response(status_code=_GONE)
        except ApiRequestRefused as refusal:
            return _error(refusal.status, refusal.message, refusal.param, refusal.code)
        except FlywheelError as error:
            return _policy_error(service, error)
        except Exception:
            log.exception("a request failed")
            return _error(500, "the server failed; its log says how", None, None)

    return guarded


def _policy_error(service: PolicyService, error: FlywheelError) -> Response:
    if isinstance(error, BadInput):
        return _error(400, str(error), error.where or None, None)
    kinds = ((PolicyBusy, 429, "queue_full"), (PolicyTimeout, 504, "deadline"))
    kinds += ((PolicyError, 503, "closing"),) if service.closing else ()
    status, code = next(((status, code) for kind, status, code in kinds if isinstance(error, kind)), (500, None))
    return _error(status, str(error), None, code)


_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


def _error(status: int, message: str, param: str | None, code: str | None) -> Response:
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    headers = {"Retry-After": _RETRY_AFTER_S} if status in (429, 503) else {}
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return JSONResponse(body, status, headers=headers)


async def _no_route(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    return _error(status, f"no route {request.method} {request.url.path}", None, None)


async def _body(request: Request, timeout_s: float) -> bytes:
    """Read the body, MAX_BODY bytes at most. It must be declared JSON, which a web page cannot send without CORS."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        found = kind[:80] or "of no type"
        raise ApiRequestRefused(415, f"the body is {found}: send it with Content-Type: application/json")
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_BODY:
                    what = f"the body is larger than {MAX_BODY >> 20} MiB: send fewer or smaller screens"
                    raise ApiRequestRefused(413, what)
    except TimeoutError:
        raise ApiRequestRefused(408, f"the body did not arrive within {timeout_s:g} s") from None
    return bytes(body)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _checkpoint(raw: bytes) -> tuple[Path, str]:
    """Parse the body of a weights request to its folder and expected version ("": any). Raises BadInput."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise BadInput("the body is not JSON", fix='send {"path": folder, "version": name}') from None
    path, version = (body.get("path"), body.get("version") or "") if isinstance(body, dict) else (None, "")
    if not isinstance(path, str) or not isinstance(version, str) or not path or "\0" in path:
        raise BadInput("no folder is named", where="path", fix='send {"path": folder, "version": name}')
    return Path(path), version


async def _events(chunks: list[dict[str, Any]]):
    for chunk in chunks:
        yield f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"
    yield "data: [DONE]\n\n"
