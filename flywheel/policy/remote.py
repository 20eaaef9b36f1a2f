"""The policy behind OpenAI-compatible servers: `flywheel serve`, or `vllm serve` for real checkpoints.

One thread with an event loop of its own owns the connections, so callers may sit on any loop, and a call's deadline
does not wait for a caller that is busy.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from flywheel import settings as config
from flywheel.agent.context import Context
from flywheel.errors import PolicyError
from flywheel.policy import checkpoint as checkpoints
from flywheel.policy.encoding import Encoder
from flywheel.policy.protocol import Completion, Sampling
from flywheel.policy.server import Weights
from flywheel.policy.servers import Servers

T = TypeVar("T")


class RemotePolicy:
    """`Policy` over the server or servers that `policy.endpoint` names, answering with the checkpoint in `folder`.

    Opening it publishes that checkpoint where a server has other weights. At most `policy.batch` requests are under
    way at a server and `policy.queue` wait for it; one more raises PolicyBusy. `policy.timeout_s` is the deadline of an
    answer: waiting, every try and the pauses between them.

    Raises ModelError for a folder without a tokeniser or weights, PolicyError (with endpoint and what the server
    said) for a server that cannot be reached, has no such model, or cannot take the weights; of several servers, where
    that is so of all.
    """

    def __init__(self, folder: Path | str, policy: config.Policy) -> None:
        self._policy = policy
        self._servers = Servers(policy)
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
        return self._weights.version

    @property
    def encoder(self) -> Encoder:
        """The trainer's side of the checkpoint: what its prompts are encoded by."""
        return self._weights.encoder

    async def complete(self, context: Context, sampling: Sampling) -> Completion:
        """Answer one context.

        Raises PolicyBusy (queue full, here or at the server), PolicyTimeout, BadInput for what the server finds wrong
        with this request, and PolicyError for a server that fails or whose answer cannot be used; of several servers,
        where all of them do.
        """
        return await asyncio.wrap_future(self._submit(self._servers.complete(context, sampling)))

    async def load(self, checkpoint: Path) -> None:
        """Publish a checkpoint; requests under way end on the weights they began with."""
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
        raise PolicyError("the policy is closed", where="policy.endpoint")

    def _end_thread(self) -> None:
        self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # On the loop of this policy's thread.

    async def _open(self, folder: Path) -> None:
        try:
            weights = await self._read(folder)
            await self._servers.open(weights)
        except BaseException:
            await self._servers.stop()
            await self._servers.close()
            raise
        self._weights = weights

    async def _load(self, folder: Path) -> None:
        weights = await self._read(folder)
        await self._servers.load(weights)
        self._weights = weights

    async def _read(self, folder: Path) -> Weights:
        return await asyncio.to_thread(Weights.read, folder, self._policy.max_image_side)

    async def _drain(self) -> None:
        await self._servers.stop()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)
        await self._servers.stop()  # of those that failed in the end
        await self._servers.close()
