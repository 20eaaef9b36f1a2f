"""Lease environments on other machines from a manager, and play them over HTTP: the client of a run."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from typing import Any, TypeVar

import aiohttp

from flywheel.agent.actions import Action
from flywheel.config import Settings
from flywheel.envs import registry
from flywheel.envs.base import Env, StepResult, Task
from flywheel.envs.remote import protocol
from flywheel.utils.errors import BadInput, EnvError, EnvTimeout

log = logging.getLogger(__name__)
T = TypeVar("T")
CLUSTER_MANAGER = "cluster"  # instead of an address: the manager of the run's cluster (`flywheel/cluster/env_nodes.py`)
MANAGER_VARIABLE = "FLYWHEEL_SANDBOX_MANAGER"  # environment variable with that manager's address
TOKEN_VARIABLE = "FLYWHEEL_SANDBOX_TOKEN"
_BEAT_S, _GRACE_S, _PAUSE_S, _ASK_TIMEOUT = 5.0, 5.0, 0.25, aiohttp.ClientTimeout(total=10.0)


class RemoteEnvs:
    """Lease an environment from a manager for each task (an `EnvProvider`); made by `open_remote_envs`.

    settings: of the run. client: the HTTP session. manager: its address, without a slash at the end. token: the
    manager's.
    """

    def __init__(self, settings: Settings, client: aiohttp.ClientSession, manager: str, token: str) -> None:
        self._settings, self._client = settings, client
        self._manager, self._headers = manager, {"Authorization": f"Bearer {token}"}
        self._user = settings.sandbox.user or _user_name()
        self._identities: dict[str, str] = {}
        self._held: set[str] = set()
        self._why = ""  # why the last request for an environment failed
        self.counts: Mapping[str, int] = {}

    @asynccontextmanager
    async def env(self, task: Task) -> AsyncIterator[Env]:
        """Lease an environment of the back-end that `task` names until the block ends.

        Raises EnvError where the node cannot open it, EnvTimeout where none is free within `sandbox.acquire_timeout_s`
        or manager or node do not answer until then, BadInput where none ever would be: no such back-end, wrong settings
        of it, or the manager or the node refuses.
        """
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(self._settings.sandbox.acquire_timeout_s) as waiting:
                    env = await self._open_env(task.environment, stack)
            except TimeoutError:
                if not waiting.expired():
                    raise
                late = f"no environment in {self._settings.sandbox.acquire_timeout_s:g} s"
                why = self._why or "the nodes do not answer"
                raise EnvTimeout(f"{late}: {why}", where=self._manager) from None
            yield env

    async def send_user_heartbeats(self) -> None:
        """Send the manager heartbeats of all held leases, every 5 seconds for ever; a failed one is sent again."""
        while True:
            await asyncio.sleep(_BEAT_S)
            if self._held:
                with contextlib.suppress(EnvError):
                    await self._ask("POST", "/sessions/beat", {"sessions": list(self._held)})

    # -- inside -------------------------------------------------------------------------------------------------------
    async def _open_env(self, kind: str, stack: AsyncExitStack) -> Env:
        """Try until an environment is leased and open, also while manager or node are gone; `stack` gives it back."""
        limit_s = 2 * registry.find_backend(kind).limits(self._settings).call_s + _GRACE_S
        while True:
            try:
                if (lease := await self._lease(kind)) is not None:
                    async with AsyncExitStack() as held:
                        await held.enter_async_context(self._holding(lease))
                        remote = _RemoteSession(self._client, lease, limit_s)
                        head, _ = await remote.message("open", self._settings.sandbox.acquire_timeout_s)
                        await stack.enter_async_context(held.pop_all())
                        return next((form for what, form in _ENV_CLASSES.items() if head.get(what)), _RemoteEnv)(remote)
            except RemoteUnreachable as error:
                self._why = error.what
            await asyncio.sleep(_PAUSE_S)

    async def _lease(self, kind: str) -> dict[str, Any] | None:
        """Ask the manager for a lease; None where no environment is free. Raises BadInput where the manager refuses."""
        if kind not in self._identities:
            chosen = registry.find_backend(kind).identity(self._settings)
            self._identities[kind] = protocol.hash_backend_settings(chosen)
        asked = {"user": self._user, "kind": kind, "identity": self._identities[kind]}
        status, answer = await self._ask("POST", "/sessions", asked)
        if status < 400:
            if not {"session", "address", "note"} <= answer.keys():
                raise BadInput("what answers there is no manager", where=self._manager, fix="name its address")
            return answer
        self._why = str(answer.get("error") or f"it answers with status {status}")
        if status != 409:
            raise BadInput(self._why, where=answer.get("where", "manager"), fix=answer.get("fix", ""))
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
        """End a lease at the node, at once, and at the manager; if both fail, the missing heartbeats end it."""
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            address = f"{lease['address']}/sessions/{lease['session']}"
            async with self._client.delete(address, headers={"X-Lease": lease["note"]}, timeout=_ASK_TIMEOUT):
                pass
        with contextlib.suppress(EnvError):
            await self._ask("DELETE", f"/sessions/{lease['session']}", {})

    async def _ask(self, method: str, path: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        try:
            async with self._client.request(
                method, self._manager + path, json=body, headers=self._headers, timeout=_ASK_TIMEOUT
            ) as answer:
                return answer.status, dict(json.loads(await answer.read()))
        except (aiohttp.ClientError, TimeoutError, ValueError, TypeError) as error:
            why = f"the manager does not answer: {error or type(error).__name__}"
            raise RemoteUnreachable(why, where=self._manager) from None


class RemoteUnreachable(EnvError):
    """Signal that the manager, or a node, does not answer."""


class _RemoteSession:
    """Call one session at its node. limit_s: timeout of a call; that of the node's environment is shorter."""

    def __init__(self, client: aiohttp.ClientSession, lease: Mapping[str, Any], limit_s: float) -> None:
        self._client, self._limit_s = client, limit_s
        self._address, self._headers = f"{lease['address']}/sessions/{lease['session']}", {"X-Lease": lease["note"]}

    async def call(self, name: str, body: bytes = b"", limit_s: float = 0.0) -> bytes:
        """Post a call and return the response's bytes.

        name: one of `node_session.CALLS`. body: as `protocol` encodes it. limit_s: timeout in seconds; 0: the
        session's. Raises the error of the node's environment, EnvTimeout, or RemoteUnreachable.
        """
        limit_s = limit_s or self._limit_s
        address, timeout = f"{self._address}/{name}", aiohttp.ClientTimeout(total=limit_s)
        try:
            async with self._client.post(address, data=body, headers=self._headers, timeout=timeout) as answer:
                data = await answer.read()
        except TimeoutError:
            raise EnvTimeout(f"the node did not answer a {name} in {limit_s:g} s", where=self._address) from None
        except aiohttp.ClientError as error:
            raise RemoteUnreachable(f"the node is gone: {error}", where=self._address) from None
        if answer.status >= 400:
            raise protocol.decode_error(data)
        return data

    async def result(self, name: str, body: bytes) -> StepResult:
        """Post a call whose response is a result. Raises as `call`, and EnvError where it cannot be decoded."""
        return self._decoded(protocol.decode_result, await self.call(name, body))

    async def message(self, name: str, limit_s: float = 0.0) -> tuple[dict[str, Any], bytes]:
        """Post a call without a body; return the object and the bytes of its response. Raises as `result`."""
        return self._decoded(protocol.decode_message, await self.call(name, limit_s=limit_s))

    def _decoded(self, decode: Callable[[bytes], T], data: bytes) -> T:
        try:
            return decode(data)
        except (ValueError, KeyError, TypeError) as error:
            raise EnvError(f"the node's answer cannot be read: {error!r}", where=self._address) from None


class _RemoteEnv:
    """Play a leased environment (an `Env`, and a `StepListener`)."""

    def __init__(self, remote: _RemoteSession) -> None:
        self._remote, self._said = remote, []

    def announce(self, chosen: Mapping[str, Any]) -> None:
        self._said.append(chosen)

    async def reset(self, task: Task, seed: int) -> StepResult:
        self._said = []
        return await self._remote.result("reset", protocol.encode_message({"task": asdict(task), "seed": seed}))

    async def step(self, action: Action) -> StepResult:
        said, self._said = self._said, []
        return await self._remote.result("step", protocol.encode_step(action, said))

    async def close(self) -> None:
        await self._remote.call("close")


class _RemoteCheckpointableEnv(_RemoteEnv):
    async def checkpoint(self) -> bytes:
        return (await self._remote.message("checkpoint"))[1]

    async def restore(self, checkpoint: bytes) -> StepResult:
        return await self._remote.result("restore", checkpoint)


class _RemotePartialCheckpointableEnv(_RemoteEnv):
    async def save_partial(self) -> bytes:
        return (await self._remote.message("save_partial"))[1]

    async def restore_partial(self, kept: bytes) -> StepResult:
        return await self._remote.result("restore_partial", kept)


# By the capability that a node reports of its environment.
_ENV_CLASSES = {"checkpoints": _RemoteCheckpointableEnv, "keeps": _RemotePartialCheckpointableEnv}


def check_manager_settings(settings: Settings) -> None:
    """Check `sandbox.manager` and what it needs before a run begins, without asking the manager.

    Raises BadInput where no manager is named or its token is not in the variable FLYWHEEL_SANDBOX_TOKEN; for
    `sandbox.manager: cluster`, where the engine is not ray or stages run side by side.
    """
    if settings.sandbox.manager != CLUSTER_MANAGER:
        _manager_address_and_token(settings)
    elif settings.cluster.engine != "ray":
        raise BadInput("sandbox.manager is cluster, and there is none", where="cluster.engine", fix="set it to ray")
    elif settings.cluster.max_parallel_stages > 1:
        raise BadInput(
            "sandbox.manager is cluster, which stages beside one another do not share",
            where="cluster.max_parallel_stages",
            fix="set it to 1, or start a manager (`flywheel env server manager`)",
        )


def _manager_address_and_token(settings: Settings) -> tuple[str, str]:
    address = settings.sandbox.manager
    if not address:
        raise BadInput("no manager is named", where="sandbox.manager", fix="name its address, such as http://HOST:4300")
    if address == CLUSTER_MANAGER:
        address = os.environ.get(MANAGER_VARIABLE, "")
        if not address:
            fix = "`flywheel run` opens one; elsewhere name a manager's address, or set sandbox.backend to local"
            raise BadInput("no cluster of a run's is open here", where="sandbox.manager: cluster", fix=fix)
    found = os.environ.get(TOKEN_VARIABLE, "")
    if not found:
        what, fix = f"the manager's token is not in {TOKEN_VARIABLE}", f"export {TOKEN_VARIABLE}=..."
        raise BadInput(what, where="sandbox.manager", fix=fix)
    return address.rstrip("/"), found


@asynccontextmanager
async def open_remote_envs(settings: Settings) -> AsyncIterator[RemoteEnvs]:
    """Open a client of the run's `sandbox.manager` until the block ends; yields the provider that leases environments.

    settings: of the run. Raises BadInput where they name no manager, or its token is not in the environment variables;
    for `cluster` also where no cluster of a run is open here.
    """
    known, connector = _manager_address_and_token(settings), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, trust_env=False) as client:
        made = RemoteEnvs(settings, client, *known)
        beating = asyncio.create_task(made.send_user_heartbeats())
        try:
            yield made
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "nobody"
