"""Talk to one policy server: request slots, publishing of weights, completions."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import httpx

from flywheel import config
from flywheel.agent.prompt import Context
from flywheel.policy.chat_api import ChatAnswer, format_chat_request, parse_chat_answer
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.policy.client.endpoint import PROBE_TIMEOUT_S, PolicyEndpoint, RouteNotFound, ServedModel
from flywheel.policy.encoding import Encoder
from flywheel.policy.protocol import Completion, SamplingParams
from flywheel.utils.errors import BadInput, PolicyBusy, PolicyError, PolicyTimeout

# Request slots of a server: so many at once, the others in order; all are empty during a swap of weights.


class RequestSlots:
    """Belongs to one event loop. at_once: turns that may be taken at the same time."""

    def __init__(self, at_once: int) -> None:
        self._at_once, self._taken, self._stopped = at_once, 0, False
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._idle: asyncio.Future[None] | None = None
        self._swap = asyncio.Lock()

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    @property
    def free(self) -> bool:
        """Whether the next one need not wait."""
        return not self._stopped and not self._waiters and self._taken < self._at_once

    async def take(self) -> None:
        """Take a slot, or wait for one in order."""
        if self.free:
            self._taken += 1
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                with contextlib.suppress(ValueError):  # it may have been passed over already
                    self._waiters.remove(waiter)
            else:  # the turn came at the same moment
                self.give_back()
            raise

    def give_back(self) -> None:
        """Give a slot back."""
        self._taken -= 1
        self._go_on()

    @contextlib.asynccontextmanager
    async def nobody(self) -> AsyncIterator[None]:
        """Wait until all slots are given back, and hold them empty within the block; who waits goes on afterwards."""
        async with self._swap:
            self._stopped = True
            try:
                if self._taken:
                    self._idle = asyncio.get_running_loop().create_future()
                    await self._idle
                yield
            finally:
                self._stopped, self._idle = False, None
                self._go_on()

    def _go_on(self) -> None:
        if self._stopped:
            if not self._taken and self._idle is not None and not self._idle.done():
                self._idle.set_result(None)
            return
        while self._waiters and self._taken < self._at_once:
            waiter = self._waiters.popleft()
            if not waiter.done():
                self._taken += 1
                waiter.set_result(None)


# Publishing weights: one protocol for `flywheel model serve` and `vllm serve`.
#
# A checkpoint travels as a folder that both sides can read under the same path (a shared file system where they are two
# machines). It is named by its content (`checkpoint_digest`), so publishing twice is publishing once.

PUBLISH_S = 600.0  # deadline of one swap: a server reads gigabytes


class WeightPublisher(Protocol):
    """Makes inference answer with a checkpoint's weights. No request is lost: each ends on those it began with."""

    async def version(self) -> str:
        """Return the name of the weights that answer now; "" where the server does not report it."""

    async def publish(self, checkpoint: Path) -> str:
        """Swap the weights; returns their name once they answer.

        Raises ModelError for a folder that is no checkpoint, PolicyError for a server that cannot or does not swap,
        PolicyTimeout after `PUBLISH_S`. The old weights then go on answering (with vLLM: unless it broke off half way;
        publish again).
        """


class CannotPublish(PolicyError):
    """A server that has no way to change its weights."""


class ServePublisher:
    """To `flywheel model serve`, by POST /v1/weights."""

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
            return await self._endpoint.call(client, method, url, body, timeout_s=self._timeout_s)
        except RouteNotFound:
            raise CannotPublish(
                "the server has no route to change its weights", where=url, fix="start vllm with VLLM_SERVER_DEV_MODE=1"
            ) from None


def _identity(checkpoint: Path) -> tuple[str, str]:
    """The folder as the server is told it, and the name of its weights."""
    return str(Path(checkpoint).resolve()), checkpoint_digest(checkpoint)


def choose_publisher(model: ServedModel, endpoint: PolicyEndpoint) -> WeightPublisher:
    """Choose the publisher that a server needs, by the owner of the model in its list."""
    return ServePublisher(endpoint) if model.owner == "flywheel" else VllmPublisher(endpoint)


# One server of a policy: its model, its weights, its slots. All of it belongs to one event loop.


@dataclass(frozen=True)
class CheckpointWeights:
    """A checkpoint that is to answer. version: its digest. encoder: the trainer's side, which encodes its prompts."""

    folder: Path
    version: str
    encoder: Encoder

    @classmethod
    def read(cls, folder: Path, max_image_side: int) -> CheckpointWeights:
        """Read what a server must be given of a checkpoint. Raises ModelError for a folder without a tokeniser or
        weights."""
        return cls(folder, checkpoint_digest(folder), Encoder.from_folder(folder, max_image_side=max_image_side))


class ServerConnection:
    """Talk to one server of a policy.

    policy: `endpoint` is this server's URL. under_way: requests that it was given and has not answered yet, those that
    wait for a turn included. Raises BadInput for an endpoint that is not an address.
    """

    def __init__(self, policy: config.PolicySettings) -> None:
        self._policy = policy
        self._endpoint = PolicyEndpoint(policy)
        self.url = self._endpoint.url
        self._chat = f"{self.url}/chat/completions"
        self._turns = RequestSlots(policy.max_num_seqs)
        self._client = self._endpoint.client()
        self._given: list[str] = []  # versions that were published from here, in order
        self._has = 0  # which of them is known to answer
        self.under_way = 0

    async def open(self, weights: CheckpointWeights, timeout_s: float) -> None:
        """Find the model, and publish the weights where it has others. For a server that was away too: it may have
        been started anew, with another key and its first weights.

        timeout_s: until it says what it serves. Raises PolicyError for a server that cannot be reached, has no such
        model or cannot take the weights.
        """
        self._client.headers.update(self._endpoint.headers())
        model = await self._endpoint.find(self._client, timeout_s)
        self._model, self._tells_version = model.name, bool(model.weight_version)
        self._publisher = choose_publisher(model, self._endpoint)
        async with self._swapping():
            if (model.weight_version or await self._publisher.version()) != weights.version:
                await self._first_publish(weights, model)
            self._given.append(weights.version)
            self._answers_with(weights)

    async def look(self) -> None:
        """Check that the server answers, within `PROBE_TIMEOUT_S`. Raises as `open`."""
        await self._endpoint.find(self._client, min(self._policy.timeout_s, PROBE_TIMEOUT_S))

    async def load(self, weights: CheckpointWeights) -> None:
        """Publish; requests under way end on the weights they began with."""
        self._given.append(weights.version)
        async with self._swapping():
            await self._publish(weights)
            self._answers_with(weights)

    async def complete(self, context: Context, sampling: SamplingParams, timeout_s: float) -> Completion:
        """Answer one context with the weights that were last published, or with newer ones that are published
        meanwhile.

        timeout_s: for waiting for a slot, all tries and the pauses between them. Raises as `PolicyBackend.complete`
        does.
        """
        deadline = time.monotonic() + timeout_s
        self.under_way += 1
        try:
            await self._take_turn(timeout_s)
            try:
                least = self._has
                answer = await self._ask(context, sampling, max(deadline - time.monotonic(), 1e-3))
                await self._check_prompt(context, answer)
            finally:
                self._turns.give_back()
        finally:
            self.under_way -= 1
        completion = answer.completion
        if not completion.weight_version:
            return replace(completion, weight_version=self._given[least])
        if completion.weight_version not in self._given[least:]:
            raise PolicyError(
                f"the server answered with the weights {completion.weight_version}, not {self._given[least]}: it was "
                "started anew, or someone else published to it",
                where=self._chat,
                fix="give each run a server of its own",
            )
        return completion

    async def close(self) -> None:
        await self._client.aclose()

    def _swapping(self) -> contextlib.AbstractAsyncContextManager[None]:
        """A server that does not tell in each answer which weights gave it is asked nothing while it swaps."""
        return contextlib.nullcontext() if self._tells_version else self._turns.nobody()

    def _answers_with(self, weights: CheckpointWeights) -> None:
        self._has, self._encoder, self._prompt_checked = len(self._given) - 1, weights.encoder, False

    async def _first_publish(self, weights: CheckpointWeights, model: ServedModel) -> None:
        try:
            await self._publish(weights)
        except CannotPublish:
            # Its weights are those that it was started with, so the folder it was started on will do.
            if not await asyncio.to_thread(_same_folder, model.root, weights.folder):
                raise

    async def _publish(self, weights: CheckpointWeights) -> None:
        published = await self._publisher.publish(weights.folder)
        if published != weights.version:
            raise PolicyError(
                f"the folder holds the weights {published} by now, not {weights.version}", where=weights.folder
            )

    async def _take_turn(self, timeout_s: float) -> None:
        if not self._turns.free and self._turns.waiting >= self._policy.max_queue_size:
            raise PolicyBusy(
                f"{self._policy.max_num_seqs} requests are under way and {self._turns.waiting} wait",
                where=self._chat,
                fix="ask less at once, or raise policy.max_num_seqs or policy.max_queue_size",
            )
        try:
            async with asyncio.timeout(timeout_s):
                await self._turns.take()
        except TimeoutError:
            raise PolicyTimeout(
                f"no turn in {timeout_s:g} s", where=self._chat, fix="raise policy.timeout_s or policy.max_num_seqs"
            ) from None

    async def _ask(self, context: Context, sampling: SamplingParams, timeout_s: float) -> ChatAnswer:
        body = format_chat_request(context, sampling, self._model)
        answer = await self._endpoint.call(self._client, "POST", self._chat, body, timeout_s=timeout_s)
        return parse_chat_answer(answer, where=self._chat)

    async def _check_prompt(self, context: Context, answer: ChatAnswer) -> None:
        """The first answer of each checkpoint: what the server's model read must be what training will encode."""
        if self._prompt_checked:
            return
        ours = await asyncio.to_thread(self._encoder.prompt_ids, context)
        theirs = answer.prompt_token_ids
        same = answer.completion.prompt_tokens == len(ours) if theirs is None else list(theirs) == ours
        if not same:
            theirs = theirs or ()
            place = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(ours))
            raise PolicyError(
                f"the server's prompt has {answer.completion.prompt_tokens} tokens and the trainer's {len(ours)}; they "
                f"part at token {place}",
                where=self._chat,
                fix="serve the same checkpoint, with its own chat template and image settings",
            )
        self._prompt_checked = True


def _same_folder(one: str, other: Path) -> bool:
    return Path(one).resolve() == other.resolve()
