"""Use one or more OpenAI-compatible servers as the policy: request slots, connections, sessions, failover."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from flywheel import config
from flywheel.agent.prompt import Context
from flywheel.policy import checkpoint as checkpoints
from flywheel.policy.chat_api import ChatAnswer, format_chat_request, parse_chat_answer
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.policy.client.endpoint import PROBE_TIMEOUT_S, PolicyEndpoint, ServedModel
from flywheel.policy.client.publishers import CannotPublish, ServePublisher, VllmPublisher, is_same_checkpoint
from flywheel.policy.devices import release_gpu_memory
from flywheel.policy.encoding import Encoder
from flywheel.policy.protocol import Completion, SamplingParams
from flywheel.utils.errors import BadInput, FlywheelError, PolicyBusy, PolicyError, PolicyTimeout
from flywheel.utils.progress import announce


class RequestSlots:
    """Limit the concurrent requests to a server to `at_once`, first come, first served; for one event loop.

    During a swap of weights no slot is taken (`hold_empty`).
    """

    def __init__(self, at_once: int) -> None:
        self._at_once, self._taken, self._stopped = at_once, 0, False
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._idle, self._swap = asyncio.Event(), asyncio.Lock()
        self._idle.set()

    @property
    def waiting(self) -> int:
        """Return the number of callers that wait for a slot."""
        return len(self._waiters)

    @property
    def free(self) -> bool:
        """Tell whether the next caller of `take` gets a slot without waiting."""
        return not self._stopped and not self._waiters and self._taken < self._at_once

    async def take(self) -> None:
        """Take a slot, or wait for one in order."""
        if self.free:
            self._taken += 1
            self._idle.clear()
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                with contextlib.suppress(ValueError):  # `_go_on` may have removed it already
                    self._waiters.remove(waiter)
            else:  # it got a slot at the moment of its cancellation
                self.give_back()
            raise

    def give_back(self) -> None:
        """Give a slot back."""
        self._taken -= 1
        if not self._taken:
            self._idle.set()
        self._go_on()

    @contextlib.asynccontextmanager
    async def hold_empty(self) -> AsyncIterator[None]:
        """Wait until all slots are given back, and give out none within the block; waiting callers follow after it."""
        async with self._swap:
            self._stopped = True
            try:
                await self._idle.wait()
                yield
            finally:
                self._stopped = False
                self._go_on()

    def _go_on(self) -> None:
        while self._waiters and not self._stopped and self._taken < self._at_once:
            waiter = self._waiters.popleft()
            if not waiter.done():
                self._taken += 1
                self._idle.clear()
                waiter.set_result(None)


@dataclass(frozen=True)
class CheckpointWeights:
    """Hold a checkpoint that is to be published to servers.

    version: digest of its weights. encoder: the encoder that training uses.
    """

    folder: Path
    version: str
    encoder: Encoder

    @classmethod
    def read(cls, folder: Path, max_image_side: int) -> CheckpointWeights:
        """Read the digest and the encoder of the checkpoint in `folder`.

        max_image_side: as in `Encoder`. Raises ModelError without a tokeniser or weights.
        """
        return cls(folder, checkpoint_digest(folder), Encoder.from_folder(folder, max_image_side=max_image_side))


_OWN_SERVER = "give each run a server of its own"


class ServerConnection:
    """Send requests to one policy server, from one event loop; call `open` before `load` and `complete`.

    policy: block `policy`, with one server. The attribute `under_way` counts the requests that are not answered yet,
    waiting ones included.
    """

    def __init__(self, policy: config.PolicySettings) -> None:
        self._policy = policy
        self._endpoint = PolicyEndpoint(policy)
        self.url = self._endpoint.url
        self._chat = f"{self.url}/chat/completions"
        self._turns = RequestSlots(policy.max_num_seqs)
        self._client = self._endpoint.client()
        self._given: list[str] = []  # digests of the weights that this object published, in order
        self._has = 0  # index of the newest of them that is known to answer
        self._publisher: ServePublisher | None = None
        self.under_way = 0

    async def open(self, weights: CheckpointWeights, timeout_s: float) -> None:
        """Find the server's model within `timeout_s`, and publish `weights` if the server has others.

        Also reconnects to a server that failed: it may have restarted, with another API key and its first weights.
        Raises as `PolicyEndpoint.find`, `ServePublisher.publish` and, for a server that sleeps, `VllmPublisher.wake`.
        """
        self._client.headers.update(self._endpoint.headers())
        model = await self._endpoint.find(self._client, timeout_s)
        self._model, self._tells_version = model, bool(model.weight_version)
        kind = ServePublisher if model.owner == "flywheel" else VllmPublisher
        if type(self._publisher) is not kind:
            self._publisher = kind(self._endpoint)
        async with self._swapping():
            await self._wake()
            if model.weight_version != weights.version:
                await self._first_publish(weights, model)
            self._given.append(weights.version)
            self._answers_with(weights)

    async def check_alive(self) -> None:
        """Check that the server answers, within `PROBE_TIMEOUT_S`. Raises as `PolicyEndpoint.find`."""
        await self._endpoint.find(self._client, min(self._policy.timeout_s, PROBE_TIMEOUT_S))

    async def load(self, weights: CheckpointWeights) -> None:
        """Publish `weights`; running requests end on the weights that they began with.

        Raises as `ServePublisher.publish` and, for a server that sleeps, `VllmPublisher.wake`.
        """
        self._given.append(weights.version)
        async with self._swapping():
            await self._wake()
            await self._publish(weights)
            self._answers_with(weights)

    async def complete(self, context: Context, sampling: SamplingParams, timeout_s: float) -> Completion:
        """Answer one context with the weights that were published last, or newer ones if they arrive meanwhile.

        timeout_s: seconds for the wait for a slot, all tries and the pauses between them. Raises as
        `RemotePolicy.complete`, and PolicyError for an answer of other weights or with a prompt other than ours.
        """
        deadline = time.monotonic() + timeout_s
        self.under_way += 1
        try:
            await self._take_turn(timeout_s)
            try:
                least = self._has
                left_s = max(deadline - time.monotonic(), 1e-3)
                adapter = self._publisher.adapter or (self._model.name if self._model.parent else "")
                body = format_chat_request(context, sampling, adapter or self._model.name)
                raw = await self._endpoint.call(self._client, "POST", self._chat, body, timeout_s=left_s)
                answer = parse_chat_answer(raw, where=self._chat)
                if adapter and answer.model != adapter:
                    what = f"the server answered with the model {answer.model!r}, not with the adapter {adapter}"
                    raise PolicyError(what, where=self._chat, fix=_OWN_SERVER)
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
                fix=_OWN_SERVER,
            )
        return completion

    async def close(self) -> None:
        """Close the connections to the server."""
        await self._client.aclose()

    async def _wake(self) -> None:
        if self._policy.sleeps_while_training:
            await asyncio.to_thread(release_gpu_memory)  # a trainer in this process may have filled it
            await VllmPublisher(self._endpoint).wake()

    def _swapping(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Return the context to swap weights in: without requests, for a server whose answers do not name their
        weights."""
        return contextlib.nullcontext() if self._tells_version else self._turns.hold_empty()

    def _answers_with(self, weights: CheckpointWeights) -> None:
        self._has, self._encoder, self._prompt_checked = len(self._given) - 1, weights.encoder, False

    async def _first_publish(self, weights: CheckpointWeights, model: ServedModel) -> None:
        try:
            await self._publish(weights)
        except CannotPublish:
            # Such a server has the weights that it was started with: they may be those of this checkpoint.
            if not await asyncio.to_thread(is_same_checkpoint, model.root, weights.folder, weights.version):
                raise

    async def _publish(self, weights: CheckpointWeights) -> None:
        published = await self._publisher.publish(weights.folder)
        if published != weights.version:
            raise PolicyError(
                f"the folder holds the weights {published} by now, not {weights.version}", where=weights.folder
            )

    async def _take_turn(self, timeout_s: float) -> None:
        if not self._turns.free and self._turns.waiting >= self._policy.max_queue_size:
            what = f"{self._policy.max_num_seqs} requests are under way and {self._turns.waiting} wait"
            fix = "ask less at once, or raise policy.max_num_seqs or policy.max_queue_size"
            raise PolicyBusy(what, where=self._chat, fix=fix)
        try:
            async with asyncio.timeout(timeout_s):
                await self._turns.take()
        except TimeoutError:
            fix = "raise policy.timeout_s or policy.max_num_seqs"
            raise PolicyTimeout(f"no turn in {timeout_s:g} s", where=self._chat, fix=fix) from None

    async def _check_prompt(self, context: Context, answer: ChatAnswer) -> None:
        """Raise PolicyError if the server encoded the prompt otherwise than training will. Only the first answer of
        each checkpoint is checked."""
        if self._prompt_checked:
            return
        ours = await asyncio.to_thread(self._encoder.prompt_ids, context)
        theirs = answer.prompt_token_ids or ()
        told = answer.prompt_token_ids is not None
        if list(theirs) != ours if told else answer.completion.prompt_tokens != len(ours):
            place = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(ours))
            raise PolicyError(
                f"the server's prompt has {answer.completion.prompt_tokens} tokens and the trainer's {len(ours)}; they "
                f"part at token {place}",
                where=self._chat,
                fix="serve the same checkpoint, with its own chat template and image settings",
            )
        self._prompt_checked = True


# Session affinity: which of several servers gets a session's requests.
#
# The first request of a session goes to the server with the fewest running requests, and the following ones go there
# too: a server caches the keys and values of its prompts, and each prompt of a trajectory shares a prefix with the one
# before. A hash of the session's name would distribute few sessions unevenly, and as many to a slow server as to a fast
# one.

Key = TypeVar("Key", bound=Hashable)

MAX_SESSIONS = 65_536  # remembered sessions; a forgotten one may go to a server that has not cached its prefix


class SessionAffinity(Generic[Key]):
    """Assign sessions (trajectories) to servers, so that all requests of one go to the server that caches its prompts.

    A session moves only if its server is not available, and then stays with the new one. kept: how many sessions are
    remembered.
    """

    def __init__(self, kept: int = MAX_SESSIONS) -> None:
        self._kept, self._given = kept, 0
        self._of: OrderedDict[str, Key] = OrderedDict()  # session -> its server, most recently used last
        self._last: dict[Key, int] = {}  # server -> number of its newest assignment

    def find(self, session: str, under_way: Mapping[Key, int]) -> Key:
        """Choose the server of a session's request.

        session: its name; "": no session, so nothing is remembered. under_way: number of running requests of each
        available server, at least one server. Of equally busy servers it is the one whose newest assignment is oldest.
        """
        place = self._of.get(session)
        if place is None or place not in under_way:
            place = min(under_way, key=lambda one: (under_way[one], self._last.get(one, 0)))
            self._given += 1
            self._last[place] = self._given
        if session:
            self._of[session] = place
            self._of.move_to_end(session)
            if len(self._of) > self._kept:
                self._of.popitem(last=False)
        return place


FIRST_PAUSE_S = 0.5  # before a failed server is tried again; doubles after each further failure
LONGEST_PAUSE_S = 30.0
TRIES = 2  # tries of a request at one server: one that fails so often at every server is itself at fault
LONGEST = 1.9  # limit of a request over all servers, as a multiple of policy.timeout_s; an episode waits for 2


class ServerPool:
    """Distribute requests over several servers, in one event loop; call `open` first.

    A server that fails is left out until it answers with the newest weights. A single server is never left out: its
    errors go to the caller.
    """

    def __init__(self, policy: config.PolicySettings) -> None:
        self._timeout_s = policy.timeout_s
        self._all = [ServerConnection(server) for server in policy.servers]
        self._alone = len(self._all) == 1
        self._out: dict[ServerConnection, FlywheelError] = {}  # server that is left out -> its newest error
        self._failed: Counter[ServerConnection] = Counter()  # attempts to bring it back since its last answer
        self._places: SessionAffinity[ServerConnection] = SessionAffinity()
        self._returning: set[asyncio.Task[None]] = set()
        self._returned = asyncio.Event()  # set, and replaced, whenever a server comes back

    async def open(self, weights: CheckpointWeights) -> None:
        """Make the servers answer with `weights`.

        Raises PolicyError where none does; ModelError for weights that cannot be read, and BadInput for a request that
        a server refuses, where one server does.
        """
        self._weights = weights
        await self._run_on_servers(self._all, lambda server: server.open(weights, self._timeout_s))
        if len(self._out) == len(self._all):
            raise self._no_server_error(self._out)

    async def load(self, weights: CheckpointWeights) -> None:
        """Publish `weights` to all servers that are not left out; the others get them before they are used again.

        Raises PolicyError where all fail, and none comes back within `policy.timeout_s` after that; ModelError and
        BadInput as `open`.
        """
        self._weights = weights
        await self._run_on_servers([server for server in self._all if server not in self._out], self._swap)
        deadline = _now() + self._timeout_s
        while len(self._out) == len(self._all):
            await self._wait_for_return(deadline, {})

    async def complete(self, context: Context, sampling: SamplingParams) -> Completion:
        """Answer one context; when a server fails, ask another one.

        If all are left out, wait for one to come back, until `policy.timeout_s` after the beginning. Raises as
        `RemotePolicy.complete`.
        """
        if self._alone:
            return await self._all[0].complete(context, sampling, self._timeout_s)
        began, deadline = _now(), _now() + self._timeout_s
        faults: dict[ServerConnection, FlywheelError] = {}  # what went wrong with this request
        failed: Counter[ServerConnection] = Counter()
        while True:
            tried_out = [server for server in self._all if failed[server] >= TRIES]
            if len(tried_out) == len(self._all):
                raise self._no_server_error(faults)
            usable = {one: one.under_way for one in self._all if one not in self._out and one not in tried_out}
            if not usable:
                await self._wait_for_return(deadline, faults)
                continue
            server = self._places.find(sampling.session, usable)
            left = began + LONGEST * self._timeout_s - _now()
            if left < self._timeout_s / 2:  # too short: a timeout would not show that the server is at fault
                raise self._no_server_error(faults)
            try:
                completion = await server.complete(context, sampling, min(self._timeout_s, left))
            except PolicyBusy as error:
                faults[server], failed[server] = error, TRIES
            except PolicyError as error:
                faults[server] = error
                failed[server] += 1
                self._leave_out(server, error)
            else:
                self._failed.pop(server, None)
                return completion

    async def stop(self) -> None:
        """End the attempts to bring servers back."""
        for task in self._returning:
            task.cancel()
        await asyncio.gather(*self._returning, return_exceptions=True)

    async def close(self) -> None:
        """Close the connections to all servers."""
        await asyncio.gather(*(server.close() for server in self._all))

    async def _swap(self, server: ServerConnection) -> None:
        """Publish the weights to a server. Where there are others, check first that it answers: a swap, which may take
        minutes, would hide that it hangs."""
        if not self._alone:
            await server.check_alive()
        await server.load(self._weights)

    async def _run_on_servers(
        self, servers: Sequence[ServerConnection], work: Callable[[ServerConnection], Awaitable[None]]
    ) -> None:
        """Run `work` for `servers` concurrently, and leave out those where it raises PolicyError. Raises any other
        error; with a single server, every error."""
        faults = await asyncio.gather(*map(work, servers), return_exceptions=True)
        for server, fault in zip(servers, faults, strict=True):
            if isinstance(fault, PolicyError) and not self._alone:
                self._leave_out(server, fault)
            elif fault is not None:
                raise fault

    async def _wait_for_return(self, deadline: float, faults: dict[ServerConnection, FlywheelError]) -> None:
        """Wait until a server comes back. Raises PolicyError at the deadline (event loop's clock). faults: for the
        message."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._returned.wait()
        except TimeoutError:
            raise self._no_server_error(faults | self._out) from None

    def _no_server_error(self, faults: dict[ServerConnection, FlywheelError]) -> PolicyError:
        """Return the error that no server answers. faults: newest error of each server."""
        kinds = {type(error) for error in faults.values()}
        kind = next((one for one in (PolicyBusy, PolicyTimeout) if kinds == {one}), PolicyError)
        what = "; ".join(f"{server.url}: {error.what}" for server, error in faults.items())
        return kind(
            f"none of {len(self._all)} servers answers: {what}",
            where="policy.endpoint",
            fix="start them, or see policy.endpoint",
        )

    def _leave_out(self, server: ServerConnection, fault: FlywheelError) -> None:
        new = server not in self._out
        self._out[server] = fault
        if new:
            announce("policy", f"{server.url} is left out: {fault.what}")
            task = asyncio.create_task(self._bring_back(server))
            self._returning.add(task)
            task.add_done_callback(self._returning.discard)

    async def _bring_back(self, server: ServerConnection) -> None:
        """Try, with growing pauses, until the server answers with the newest weights, also with those that are
        published meanwhile."""
        while server in self._out:
            await asyncio.sleep(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self._failed[server], 9)))
            self._failed[server] += 1
            weights = None
            try:
                while weights is not self._weights:
                    weights = self._weights
                    await server.open(weights, min(self._timeout_s, PROBE_TIMEOUT_S))
            except FlywheelError as error:
                self._out[server] = error
            else:
                del self._out[server]
                self._returned.set()
                self._returned = asyncio.Event()
                announce("policy", f"{server.url} answers again, with the weights {weights.version}")


def _now() -> float:
    return asyncio.get_running_loop().time()


T = TypeVar("T")


class RemotePolicy:
    """Answer contexts by the OpenAI-compatible servers that `policy.endpoint` names (a `PolicyBackend`).

    The constructor publishes the checkpoint in `folder` to servers that have other weights. A thread with its own event
    loop owns the connections, so callers may use any event loop, and a busy caller does not delay a request's timeout.
    At most `policy.max_num_seqs` requests run at a server and `policy.max_queue_size` wait for it. `policy.timeout_s`
    limits a request to one server: the wait for a slot, every try and the pauses between them; over several servers the
    limit is 1.9 times that. Raises BadInput for an endpoint that is not an address or a request that a server refuses,
    ModelError for a folder without a tokeniser or weights, PolicyError (or its PolicyTimeout and PolicyBusy) where no
    server can be reached, has the model and can take the weights.
    """

    def __init__(self, folder: Path | str, policy: config.PolicySettings) -> None:
        self._policy = policy
        self._servers = ServerPool(policy)
        self._closed = False
        self._lock = threading.Lock()  # so that no work is submitted to the loop while it closes
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="remote policy", daemon=True)
        self._thread.start()
        try:
            self._submit(self._open(checkpoints.resolve_checkpoint(folder))).result()
        except BaseException:
            self._end_thread()
            raise

    @property
    def weight_version(self) -> str:
        """Return the digest of the weights that were published last."""
        return self._weights.version

    @property
    def encoder(self) -> Encoder:
        """Return the encoder of the checkpoint, with which training encodes prompts."""
        return self._weights.encoder

    async def complete(self, context: Context, sampling: SamplingParams) -> Completion:
        """Answer one context.

        Raises PolicyBusy (queue full, here or at the server), PolicyTimeout, BadInput for a request that the server
        rejects, PolicyError for a server that fails or whose answer cannot be used, and once the policy is closed. With
        several servers, all but BadInput are raised only where every server fails, or the time of the request is over.
        """
        if sampling.begins:
            what, fix = (
                "a served model's answer cannot begin with a given text",
                "serve it in this process: policy.backend transformers",
            )
            raise BadInput(what, where="policy", fix=fix)
        return await asyncio.wrap_future(self._submit(self._servers.complete(context, sampling)))

    async def load(self, checkpoint: Path) -> None:
        """Publish a checkpoint to the servers; running requests end on the weights that they began with.

        checkpoint: its folder. Raises ModelError for a folder without tokeniser or weights, PolicyError where no server
        takes the weights (PolicyTimeout after 600 seconds) or the policy is closed, BadInput for a request that a
        server refuses. After an error of a server, some may have the new weights: load again.
        """
        await asyncio.wrap_future(self._submit(self._load(Path(checkpoint))))

    async def close(self) -> None:
        """Wait for the running requests, then close the connections and end the thread. May be called twice."""
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

    # on the loop of this policy's thread

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

    async def _read(self, folder: Path) -> CheckpointWeights:
        return await asyncio.to_thread(CheckpointWeights.read, folder, self._policy.max_image_side)

    async def _drain(self) -> None:
        await self._servers.stop()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)
        await self._servers.stop()  # the last requests may have started new attempts
        await self._servers.close()
