"""Use one or more OpenAI-compatible servers as the policy."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Generic, TypeVar

from flywheel import config
from flywheel.agent.prompt import Context
from flywheel.policy import checkpoint as checkpoints
from flywheel.policy.client.endpoint import PROBE_TIMEOUT_S
from flywheel.policy.client.server_connection import CheckpointWeights, ServerConnection
from flywheel.policy.encoding import Encoder
from flywheel.policy.protocol import Completion, SamplingParams
from flywheel.utils.errors import FlywheelError, PolicyBusy, PolicyError, PolicyTimeout
from flywheel.utils.progress import announce

# Session affinity: which of several servers gets a session's requests.
#
# The first request of a session goes to the server with the fewest running ones, and the further ones go there too: a
# server caches keys and values of what it has read, and each prompt of a trajectory begins like the one before it. A
# hash of the session's name would take no memory, but spread few sessions unevenly (16 on two servers: 10 and 6 in
# every third draw), and a slow server would get as many as a fast one.

Key = TypeVar("T", bound=Hashable)

MAX_SESSIONS = 65_536  # remembered sessions; a forgotten one may go to a server without its prompt in the cache


class SessionAffinity(Generic[Key]):
    """Remembers the sessions' servers. A session moves only where its server may not be asked, and then stays."""

    def __init__(self, kept: int = MAX_SESSIONS) -> None:
        self._kept, self._given = kept, 0
        self._of: OrderedDict[str, Key] = OrderedDict()  # the one that asked last comes last
        self._last: dict[Key, int] = {}  # when each was last given a session

    def find(self, session: str, under_way: Mapping[Key, int]) -> Key:
        """Choose the server of a session's request.

        under_way: running requests of each server that may be asked, one at least. Of equally busy ones it is the one
        that got none for longest. session "": of no session, so that nothing is remembered.
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


# The servers of a policy as one: a server that fails is left out until it answers again with the weights that are
# wanted by then. All of it belongs to one event loop.

FIRST_PAUSE_S = 0.5  # before a failed server is tried again; twice as long after each further failure
LONGEST_PAUSE_S = 30.0
TRIES = 2  # of a request at one server: what fails more often at all of them is the request's own fault
LONGEST = 1.9  # of policy.timeout_s: an answer, where a server was too late; the episode gives its policy up after 2


class ServerPool:
    """Send requests to one of several servers.

    policy: the settings; of each server its own follow from them. A server that is the only one is never left out: its
    errors are the caller's.
    """

    def __init__(self, policy: config.PolicySettings) -> None:
        self._timeout_s = policy.timeout_s
        self._all = [ServerConnection(server) for server in policy.servers]
        self._alone = len(self._all) == 1
        self._out: dict[ServerConnection, FlywheelError] = {}  # with what was last wrong with it
        self._failed: Counter[ServerConnection] = Counter()  # looks in vain since its last answer
        self._places: SessionAffinity[ServerConnection] = SessionAffinity()
        self._returning: set[asyncio.Task[None]] = set()
        self._returned = asyncio.Event()  # set, and replaced, whenever a server comes back

    async def open(self, weights: CheckpointWeights) -> None:
        """Make them answer with these weights. Raises PolicyError where none does."""
        self._weights = weights
        await self._each(self._all, lambda server: server.open(weights, self._timeout_s))
        if len(self._out) == len(self._all):
            raise self._nobody(self._out)

    async def load(self, weights: CheckpointWeights) -> None:
        """Publish to all that answer; who is left out gets the weights before it comes back.

        Raises PolicyError where none takes them within `policy.timeout_s` of the last failure.
        """
        self._weights = weights
        await self._each([server for server in self._all if server not in self._out], self._swap)
        await self._somebody(self._until())

    async def complete(self, context: Context, sampling: SamplingParams) -> Completion:
        """Answer one context, as `PolicyBackend.complete`. When a server fails, another one is asked.

        Where there is no other, one that comes back within `policy.timeout_s` of the beginning is waited for.
        """
        if self._alone:
            return await self._all[0].complete(context, sampling, self._timeout_s)
        began, deadline = _now(), self._until()
        faults: dict[ServerConnection, FlywheelError] = {}
        failed: Counter[ServerConnection] = Counter()
        while True:
            server = await self._choose(sampling.session, failed, faults, deadline)
            left = began + LONGEST * self._timeout_s - _now()
            if left < self._timeout_s / 2:  # what comes of it would say nothing of that server
                raise self._nobody(faults)
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
        """Look no more for those that are left out."""
        for task in self._returning:
            task.cancel()
        await asyncio.gather(*self._returning, return_exceptions=True)

    async def close(self) -> None:
        await asyncio.gather(*(server.close() for server in self._all))

    async def _swap(self, server: ServerConnection) -> None:
        """A hung server is found out at once where there are others; a swap may take minutes."""
        if not self._alone:
            await server.look()
        await server.load(self._weights)

    async def _each(
        self, servers: Iterable[ServerConnection], work: Callable[[ServerConnection], Awaitable[None]]
    ) -> None:
        """The same with several at once: who fails is left out. Raises what is no fault of a server."""
        servers = list(servers)
        for server, fault in zip(
            servers, await asyncio.gather(*map(work, servers), return_exceptions=True), strict=True
        ):
            if isinstance(fault, PolicyError) and not self._alone:
                self._leave_out(server, fault)
            elif fault is not None:
                raise fault

    async def _choose(
        self,
        session: str,
        failed: Counter[ServerConnection],
        faults: dict[ServerConnection, FlywheelError],
        deadline: float,
    ) -> ServerConnection:
        """faults: what went wrong with this request, by server. deadline: of the loop's clock."""
        while True:
            tried_out = [server for server in self._all if failed[server] >= TRIES]
            if len(tried_out) == len(self._all):
                raise self._nobody(faults)
            usable = {one: one.under_way for one in self._all if one not in self._out and one not in tried_out}
            if usable:
                return self._places.find(session, usable)
            try:
                async with asyncio.timeout_at(deadline):
                    await self._returned.wait()
            except TimeoutError:
                raise self._nobody(faults | self._out) from None

    async def _somebody(self, deadline: float) -> None:
        """Once a server is there. Raises PolicyError where there is none until the deadline."""
        while len(self._out) == len(self._all):
            try:
                async with asyncio.timeout_at(deadline):
                    await self._returned.wait()
            except TimeoutError:
                raise self._nobody(self._out) from None

    def _until(self) -> float:
        return _now() + self._timeout_s

    def _nobody(self, faults: dict[ServerConnection, FlywheelError]) -> PolicyError:
        """faults: of each server what was last wrong with it."""
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
        """Until it answers with the newest weights: those that are published meanwhile, it is given too."""
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


# The policy. One thread with an event loop of its own owns the connections, so callers may sit on any loop, and a
# call's deadline does not wait for a caller that is busy.

T = TypeVar("T")


class RemotePolicy:
    """`Policy` over the server or servers that `policy.endpoint` names, answering with the checkpoint in `folder`.

    Opening it publishes that checkpoint where a server has other weights. At most `policy.max_num_seqs` requests are
    under way at a server and `policy.max_queue_size` wait for it; one more raises PolicyBusy. `policy.timeout_s` is the
    deadline of an answer: waiting, every try and the pauses between them.

    Raises ModelError for a folder without a tokeniser or weights, PolicyError (with endpoint and what the server
    said) for a server that cannot be reached, has no such model, or cannot take the weights; of several servers, where
    that is so of all.
    """

    def __init__(self, folder: Path | str, policy: config.PolicySettings) -> None:
        self._policy = policy
        self._servers = ServerPool(policy)
        self._closed = False
        self._lock = threading.Lock()  # between handing work to the loop and closing it
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
        return self._weights.version

    @property
    def encoder(self) -> Encoder:
        """The trainer's side of the checkpoint: what its prompts are encoded by."""
        return self._weights.encoder

    async def complete(self, context: Context, sampling: SamplingParams) -> Completion:
        """Answer one context. sampling: temperature, limit and seed.

        Raises PolicyBusy (queue full, here or at the server), PolicyTimeout, BadInput for what the server finds wrong
        with this request, and PolicyError for a server that fails or whose answer cannot be used; of several servers,
        where all of them do.
        """
        return await asyncio.wrap_future(self._submit(self._servers.complete(context, sampling)))

    async def load(self, checkpoint: Path) -> None:
        """Publish a checkpoint to the servers; requests that are running end on the weights they began with.

        checkpoint: its folder. Raises ModelError for one that cannot be loaded, PolicyError where no server takes it.
        """
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

    async def _read(self, folder: Path) -> CheckpointWeights:
        return await asyncio.to_thread(CheckpointWeights.read, folder, self._policy.max_image_side)

    async def _drain(self) -> None:
        await self._servers.stop()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)
        await self._servers.stop()  # of those that failed in the end
        await self._servers.close()
