"""The policy behind an OpenAI-compatible server: `flywheel serve`, or `vllm serve` for real checkpoints.

One thread with an event loop of its own owns the connections, so callers may sit on any loop, and a call's deadline
does not wait for a caller that is busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from flywheel import settings as config
from flywheel.agent.context import Context
from flywheel.errors import PolicyBusy, PolicyError, PolicyTimeout
from flywheel.policy import checkpoint as checkpoints
from flywheel.policy.checkpoint import digest
from flywheel.policy.encoding import Encoder
from flywheel.policy.endpoint import PolicyEndpoint, Served
from flywheel.policy.protocol import Completion, Sampling
from flywheel.policy.publisher import CannotPublish, publisher_of
from flywheel.policy.turns import Turns
from flywheel.policy.wire_answer import Answer, read_answer
from flywheel.policy.wire_request import write_request

T = TypeVar("T")


class RemotePolicy:
    """`Policy` over a server that `policy.endpoint` names, answering with the checkpoint in `folder`.

    Opening it publishes that checkpoint where the server has other weights. At most `policy.batch` requests are under
    way and `policy.queue` wait; one more raises PolicyBusy. `policy.timeout_s` is the deadline of an answer: waiting,
    every try and the pauses between them.

    Raises ModelError for a folder without a tokeniser or weights, PolicyError (with endpoint and what the server
    said) for a server that cannot be reached, has no such model, or cannot take the weights.
    """

    def __init__(self, folder: Path | str, policy: config.Policy) -> None:
        self._policy = policy
        self._endpoint = PolicyEndpoint(policy)
        self._url = f"{self._endpoint.url}/chat/completions"
        self._turns = Turns(policy.batch)
        self._closed = False
        self._lock = threading.Lock()  # between handing work to the loop and closing it
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="remote policy", daemon=True)
        self._thread.start()
        try:
            self._submit(self._open(checkpoints.resolve(folder))).result()
        except BaseException:
            self._end_thread()
            raise

    @property
    def weight_version(self) -> str:
        return self._version

    @property
    def encoder(self) -> Encoder:
        """The trainer's side of the checkpoint: what its prompts are encoded by."""
        return self._encoder

    async def complete(self, context: Context, sampling: Sampling) -> Completion:
        """Answer one context.

        Raises PolicyBusy (queue full, here or at the server), PolicyTimeout, BadInput for what the server finds wrong
        with this request, and PolicyError for a server that fails or whose answer cannot be used.
        """
        return await asyncio.wrap_future(self._submit(self._complete(context, sampling)))

    async def load(self, checkpoint: Path) -> None:
        """Publish a checkpoint to the server; requests under way end on the weights they began with."""
        await asyncio.wrap_future(self._submit(self._load(Path(checkpoint))))

    async def close(self) -> None:
        """End once everything under way is answered. May be called twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            drained = asyncio.run_coroutine_threadsafe(self._drain(), self._loop)
        await asyncio.wrap_future(drained)
        await asyncio.to_thread(self._end_thread)

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        with self._lock:
            if not self._closed:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise PolicyError("the policy is closed", where=self._endpoint.url)

    def _end_thread(self) -> None:
        self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # On the loop of this policy's thread.

    async def _open(self, folder: Path) -> None:
        version = await asyncio.to_thread(digest, folder)
        self._encoder = await asyncio.to_thread(self._read_encoder, folder)
        self._client = self._endpoint.client()
        try:
            model = await self._endpoint.find(self._client, self._policy.timeout_s)
            self._model, self._tells_version = model.name, bool(model.weight_version)
            self._publisher = publisher_of(model, self._endpoint)
            if (model.weight_version or await self._publisher.version()) != version:
                await self._first_publish(folder, model)
        except BaseException:
            await self._client.aclose()
            raise
        self._version, self._versions = version, {version}
        self._prompt_checked = False

    def _read_encoder(self, folder: Path) -> Encoder:
        return Encoder.from_folder(folder, max_image_side=self._policy.max_image_side)

    async def _first_publish(self, folder: Path, model: Served) -> None:
        try:
            await self._publisher.publish(folder)
        except CannotPublish:
            # Its weights are those that it was started with, so the folder it was started on will do.
            if not await asyncio.to_thread(_same_folder, model.root, folder):
                raise

    async def _load(self, folder: Path) -> None:
        """A server that does not tell in each answer which weights gave it is asked nothing while it swaps."""
        encoder = await asyncio.to_thread(self._read_encoder, folder)
        self._versions.add(await asyncio.to_thread(digest, folder))
        async with contextlib.nullcontext() if self._tells_version else self._turns.nobody():
            self._version = await self._publisher.publish(folder)
            self._encoder, self._prompt_checked = encoder, False

    async def _complete(self, context: Context, sampling: Sampling) -> Completion:
        deadline = time.monotonic() + self._policy.timeout_s
        await self._take_turn()
        try:
            version = self._version
            answer = await self._ask(context, sampling, max(deadline - time.monotonic(), 1e-3))
            await self._check_prompt(context, answer)
        finally:
            self._turns.give_back()
        completion = answer.completion
        if not completion.weight_version:
            return replace(completion, weight_version=version)
        if completion.weight_version not in self._versions:
            raise PolicyError(
                f"the server answered with the weights {completion.weight_version}, not {self._version}: someone else "
                "published to it",
                where=self._url,
                fix="give each run a server of its own",
            )
        return completion

    async def _take_turn(self) -> None:
        if not self._turns.free and self._turns.waiting >= self._policy.queue:
            raise PolicyBusy(
                f"{self._policy.batch} requests are under way and {self._turns.waiting} wait",
                where=self._url,
                fix="ask less at once, or raise policy.batch or policy.queue",
            )
        try:
            async with asyncio.timeout(self._policy.timeout_s):
                await self._turns.take()
        except TimeoutError:
            raise PolicyTimeout(
                f"no turn in {self._policy.timeout_s:g} s",
                where=self._url,
                fix="raise policy.timeout_s or policy.batch",
            ) from None

    async def _ask(self, context: Context, sampling: Sampling, timeout_s: float) -> Answer:
        body = write_request(context, sampling, self._model)
        answer = await self._endpoint.call(self._client, "POST", self._url, body, timeout_s=timeout_s)
        return read_answer(answer, where=self._url)

    async def _check_prompt(self, context: Context, answer: Answer) -> None:
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
                where=self._url,
                fix="serve the same checkpoint, with its own chat template and image settings",
            )
        self._prompt_checked = True

    async def _drain(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)
        await self._client.aclose()


def _same_folder(one: str, other: Path) -> bool:
    return Path(one).resolve() == other.resolve()
