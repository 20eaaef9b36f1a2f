"""The servers of a policy as one: sessions are shared out (`places.py`), and a server that fails is left out until it
answers again with the weights that are wanted by then. All of it belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

from flywheel import settings as config
from flywheel.agent.context import Context
from flywheel.errors import FlywheelError, PolicyBusy, PolicyError, PolicyTimeout
from flywheel.policy.endpoint import LOOK_S
from flywheel.policy.places import Places
from flywheel.policy.protocol import Completion, Sampling
from flywheel.policy.server import Server, Weights
from flywheel.progress import tell

FIRST_PAUSE_S = 0.5  # before a server that failed is looked at again; each further time without an answer twice as long
LONGEST_PAUSE_S = 30.0
TRIES = 2  # of a request at one server: what fails more often at all of them is the request's own fault
LONGEST = 1.9  # of policy.timeout_s: an answer, where a server was too late; the episode gives its policy up after 2


class Servers:
    """policy: the settings; of each server its own follow from them. A server that is the only one is never left out:
    its errors are the caller's.
    """

    def __init__(self, policy: config.Policy) -> None:
        self._timeout_s = policy.timeout_s
        self._all = [Server(one) for one in policy.servers]
        self._alone = len(self._all) == 1
        self._out: dict[Server, FlywheelError] = {}  # with what was last wrong with it
        self._failed: Counter[Server] = Counter()  # looks in vain since its last answer
        self._places: Places[Server] = Places()
        self._returning: set[asyncio.Task[None]] = set()
        self._returned = asyncio.Event()  # set, and replaced, whenever a server comes back

    async def open(self, weights: Weights) -> None:
        """Make them answer with these weights. Raises PolicyError where none does."""
        self._weights = weights
        await self._each(self._all, lambda server: server.open(weights, self._timeout_s))
        if len(self._out) == len(self._all):
            raise self._nobody(self._out)

    async def load(self, weights: Weights) -> None:
        """Publish to all that answer; who is left out gets the weights before it comes back.

        Raises PolicyError where none takes them within `policy.timeout_s` of the last failure.
        """
        self._weights = weights
        await self._each([server for server in self._all if server not in self._out], self._swap)
        await self._somebody(self._until())

    async def complete(self, context: Context, sampling: Sampling) -> Completion:
        """As `Policy.complete`. What a server fails at is asked of another one; where none is there, one that comes
        back within `policy.timeout_s` of the beginning is waited for.
        """
        if self._alone:
            return await self._all[0].complete(context, sampling, self._timeout_s)
        began, deadline = _now(), self._until()
        faults: dict[Server, FlywheelError] = {}
        failed: Counter[Server] = Counter()
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

    async def _swap(self, server: Server) -> None:
        """A hung server is found out at once where there are others; a swap may take minutes."""
        if not self._alone:
            await server.look()
        await server.load(self._weights)

    async def _each(self, servers: Iterable[Server], work: Callable[[Server], Awaitable[None]]) -> None:
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
        self, session: str, failed: Counter[Server], faults: dict[Server, FlywheelError], deadline: float
    ) -> Server:
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

    def _nobody(self, faults: dict[Server, FlywheelError]) -> PolicyError:
        """faults: of each server what was last wrong with it."""
        kinds = {type(error) for error in faults.values()}
        kind = next((one for one in (PolicyBusy, PolicyTimeout) if kinds == {one}), PolicyError)
        what = "; ".join(f"{server.url}: {error.what}" for server, error in faults.items())
        return kind(
            f"none of {len(self._all)} servers answers: {what}",
            where="policy.endpoint",
            fix="start them, or see policy.endpoint",
        )

    def _leave_out(self, server: Server, fault: FlywheelError) -> None:
        new = server not in self._out
        self._out[server] = fault
        if new:
            tell("policy", f"{server.url} is left out: {fault.what}")
            task = asyncio.create_task(self._bring_back(server))
            self._returning.add(task)
            task.add_done_callback(self._returning.discard)

    async def _bring_back(self, server: Server) -> None:
        """Until it answers with the newest weights: those that are published meanwhile, it is given too."""
        while server in self._out:
            await asyncio.sleep(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self._failed[server], 9)))
            self._failed[server] += 1
            weights = None
            try:
                while weights is not self._weights:
                    weights = self._weights
                    await server.open(weights, min(self._timeout_s, LOOK_S))
            except FlywheelError as error:
                self._out[server] = error
            else:
                del self._out[server]
                self._returned.set()
                self._returned = asyncio.Event()
                tell("policy", f"{server.url} answers again, with the weights {weights.version}")


def _now() -> float:
    return asyncio.get_running_loop().time()
