"""Environments that a manager leases on other machines: the same contract, played over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp

from flywheel.agent.actions import Action
from flywheel.agent.packing import pack
from flywheel.environments import kind as kinds
from flywheel.environments import wire
from flywheel.environments.env import Env, StepResult, Task
from flywheel.errors import BadInput, EnvError, EnvTimeout
from flywheel.settings import Settings

log = logging.getLogger(__name__)
CLUSTER = "cluster"  # in place of an address: the manager that the run has itself (`flywheel/cluster/environments.py`)
MANAGER, TOKEN = "FLYWHEEL_SANDBOX_MANAGER", "FLYWHEEL_SANDBOX_TOKEN"  # where the run tells its address; the token
_BEAT_S, _GRACE_S, _ASK_S, _PAUSE_S = 5.0, 5.0, 10.0, 0.25


class ManagedEnvironments:
    """Leases an environment a task. Made by `open_managed`."""

    def __init__(self, settings: Settings, client: aiohttp.ClientSession, manager: str, token: str) -> None:
        self._settings, self._client = settings, client
        self._manager, self._headers = manager, {"Authorization": f"Bearer {token}"}
        self._user = settings.sandbox.user or _user()
        self._identities: dict[str, str] = {}
        self._held: set[str] = set()
        self._why = ""  # the last environment that was asked for was not to be had
        self.counts: Mapping[str, int] = {}

    @asynccontextmanager
    async def env(self, task: Task) -> AsyncIterator[Env]:
        """Raises EnvError where it does not begin, EnvTimeout where none becomes free in `sandbox.wait_s`, BadInput
        where none ever would."""
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(self._settings.sandbox.wait_s) as waiting:
                    env = await self._opened(task.environment, stack)
            except TimeoutError:
                if not waiting.expired():
                    raise
                why = self._why or "the nodes do not answer"
                raise EnvTimeout(
                    f"no environment in {self._settings.sandbox.wait_s:g} s: {why}", where=self._manager
                ) from None
            yield env

    async def beats(self) -> None:
        """Tell the manager that who plays is there; for ever."""
        while True:
            await asyncio.sleep(_BEAT_S)
            if self._held:
                with contextlib.suppress(EnvError):
                    await self._ask("POST", "/sessions/beat", {"sessions": list(self._held)})

    # -- inside -------------------------------------------------------------------------------------------------------
    async def _opened(self, kind: str, stack: AsyncExitStack) -> Env:
        """Tries until there is one: a manager that starts anew is back in a moment, and a node that has just died is
        passed over once it has been silent for long enough. The stack gives it back."""
        limit_s = 2 * kinds.find(kind).limits(self._settings).call_s + _GRACE_S
        while True:
            try:
                if (lease := await self._lease(kind)) is not None:
                    async with AsyncExitStack() as held:
                        await held.enter_async_context(self._holding(lease))
                        remote = _Remote(self._client, lease, limit_s)
                        head, _ = wire.opened(await remote.call("open", limit_s=self._settings.sandbox.wait_s))
                        await stack.enter_async_context(held.pop_all())
                        return next((form for what, form in _FORMS.items() if head.get(what)), _Env)(remote)
            except Unreachable as error:
                self._why = error.what
            await asyncio.sleep(_PAUSE_S)

    async def _lease(self, kind: str) -> dict[str, Any] | None:
        """None where there is no place now."""
        identity = self._identities.get(kind)
        if identity is None:
            identity = self._identities[kind] = wire.identity(kinds.find(kind).identity(self._settings))
        asked = {"user": self._user, "kind": kind, "identity": identity}
        status, said = await self._ask("POST", "/sessions", asked)
        if status < 400:
            return said
        self._why = said.get("error", "")
        if status != 409:
            raise BadInput(self._why, where=said.get("where", "manager"), fix=said.get("fix", ""))
        return None

    @asynccontextmanager
    async def _holding(self, lease: Mapping[str, Any]) -> AsyncIterator[None]:
        self._held.add(lease["session"])
        try:
            yield
        finally:
            self._held.discard(lease["session"])
            await asyncio.shield(self._give_back(lease))

    async def _give_back(self, lease: Mapping[str, Any]) -> None:
        """At the node, so that it ends at once, and at the manager. What does not arrive is reclaimed by silence."""
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            address = f"{lease['address']}/sessions/{lease['session']}"
            async with self._client.delete(address, headers={"X-Lease": lease["note"]}, timeout=_within(_ASK_S)):
                pass
        with contextlib.suppress(EnvError):
            await self._ask("DELETE", f"/sessions/{lease['session']}", {})

    async def _ask(self, method: str, path: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        try:
            async with self._client.request(
                method, self._manager + path, json=body, headers=self._headers, timeout=_within(_ASK_S)
            ) as answer:
                return answer.status, json.loads(await answer.read())
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise Unreachable(
                f"the manager does not answer: {error or type(error).__name__}", where=self._manager
            ) from None


class Unreachable(EnvError):
    """Nobody is there."""


class _Remote:
    """Calls to one session at its node. limit_s: of one call; the environment there keeps its own, which is shorter."""

    def __init__(self, client: aiohttp.ClientSession, lease: Mapping[str, Any], limit_s: float) -> None:
        self._client, self._limit_s = client, limit_s
        self._address, self._headers = f"{lease['address']}/sessions/{lease['session']}", {"X-Lease": lease["note"]}

    async def call(self, name: str, body: bytes = b"", limit_s: float = 0.0) -> bytes:
        limit_s = limit_s or self._limit_s
        try:
            async with self._client.post(
                f"{self._address}/{name}", data=body, headers=self._headers, timeout=_within(limit_s)
            ) as answer:
                data = await answer.read()
        except TimeoutError:
            raise EnvTimeout(f"the node did not answer a {name} in {limit_s:g} s", where=self._address) from None
        except aiohttp.ClientError as error:
            raise Unreachable(f"the node is gone: {error}", where=self._address) from None
        if answer.status >= 400:
            raise wire.error_read(data)
        return data

    async def result(self, name: str, body: bytes) -> StepResult:
        data = await self.call(name, body)
        try:
            return wire.result_read(data)
        except (ValueError, KeyError, TypeError) as error:
            raise EnvError(f"the node's answer cannot be read: {error!r}", where=self._address) from None


class _Env:
    """The contract of `flywheel.environments.env.Env`."""

    def __init__(self, remote: _Remote) -> None:
        self._remote = remote

    async def reset(self, task: Task, seed: int) -> StepResult:
        return await self._remote.result("reset", wire.message({"task": wire.task_sent(task), "seed": seed}))

    async def step(self, action: Action) -> StepResult:
        return await self._remote.result("step", pack([action]).encode())

    async def close(self) -> None:
        await self._remote.call("close")


class _CheckpointableEnv(_Env):
    async def checkpoint(self) -> bytes:
        return wire.opened(await self._remote.call("checkpoint"))[1]

    async def restore(self, checkpoint: bytes) -> StepResult:
        return await self._remote.result("restore", checkpoint)


class _KeepableEnv(_Env):
    async def keep(self) -> bytes:
        return wire.opened(await self._remote.call("keep"))[1]

    async def bring_back(self, kept: bytes) -> StepResult:
        return await self._remote.result("bring_back", kept)


_FORMS = {"checkpoints": _CheckpointableEnv, "keeps": _KeepableEnv}  # by what a node says of its environment


def check(settings: Settings) -> None:
    """What can be known before a run begins. Raises BadInput."""
    if settings.sandbox.manager != CLUSTER:
        _manager(settings)
    elif settings.cluster.engine != "ray":
        raise BadInput("sandbox.manager is cluster, and there is none", where="cluster.engine", fix="set it to ray")
    elif settings.cluster.stages_at_once > 1:
        raise BadInput(
            "sandbox.manager is cluster, which stages beside one another do not share",
            where="cluster.stages_at_once",
            fix="set it to 1, or start a manager (`flywheel sandbox serve`)",
        )


def _manager(settings: Settings) -> tuple[str, str]:
    """Its address and token. Raises BadInput where the settings name none, or there is no token."""
    address = settings.sandbox.manager
    if not address:
        raise BadInput("no manager is named", where="sandbox.manager", fix="name its address, such as http://HOST:4300")
    if address == CLUSTER:
        address = os.environ.get(MANAGER, "")
        if not address:
            fix = "`flywheel run` opens one; elsewhere name a manager's address, or set sandbox.backend to local"
            raise BadInput("no cluster of a run's is open here", where="sandbox.manager: cluster", fix=fix)
    found = os.environ.get(TOKEN, "")
    if not found:
        raise BadInput(f"the manager's token is not in {TOKEN}", where="sandbox.manager", fix=f"export {TOKEN}=...")
    return address.rstrip("/"), found


@asynccontextmanager
async def open_managed(settings: Settings) -> AsyncIterator[ManagedEnvironments]:
    """Raises BadInput where the settings name no manager that there is, or there is no token."""
    known, connector = _manager(settings), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, trust_env=False) as client:
        made = ManagedEnvironments(settings, client, *known)
        beating = asyncio.create_task(made.beats())
        try:
            yield made
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)


def _within(limit_s: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=limit_s)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "nobody"
