"""Publish a checkpoint's weights to a model server: `flywheel model serve`, or `vllm serve`.

A checkpoint travels as a folder that both sides can read under the same path (a shared file system where they are two
machines). It is named by its content (`checkpoint_digest`), so publishing twice is publishing once.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import httpx

from flywheel.config import PolicySettings
from flywheel.policy.adapter import read_adapter_tensors
from flywheel.policy.checkpoint import base_checkpoint, checkpoint_digest, is_adapter, name_adapter_base
from flywheel.policy.client.endpoint import PolicyEndpoint, RouteNotFound
from flywheel.utils.errors import BadInput, ModelError, PolicyError

PUBLISH_S = 600.0  # deadline of one swap: a server reads gigabytes


class CannotPublish(PolicyError):
    """A server that has no way to change its weights."""


class ServePublisher:
    """Make the `flywheel model serve` at `endpoint` answer with a checkpoint's weights, or with an adapter's.

    Each request ends on the weights that it began with. adapter: the name that requests must give to be answered with
    what was published last; "": the server's own name of its model.
    """

    def __init__(self, endpoint: PolicyEndpoint) -> None:
        self._endpoint = endpoint
        self.adapter = ""

    async def version(self) -> str:
        """Return the name of the weights that answer now; "" where the server does not report it.

        Raises as `PolicyEndpoint.call`, with a deadline of `PUBLISH_S`.
        """
        async with self._endpoint.client() as client:
            models = await self._endpoint.models(client, PUBLISH_S)
        return models[0].weight_version if models else ""

    async def publish(self, checkpoint: Path) -> str:
        """Swap the weights; returns their name once they answer. checkpoint: its folder, or an adapter's.

        Raises ModelError for a folder without weights, CannotPublish for a vLLM without the routes, PolicyTimeout after
        `PUBLISH_S`, PolicyBusy and PolicyError for a server that otherwise does not swap, with an adapter for one of
        another base, of too high a rank, or for which there is no room. The old weights then go on answering (with
        vLLM: unless it broke off half way; publish again).
        """
        url = f"{self._endpoint.url}/weights"
        path, version = await asyncio.to_thread(_identity, checkpoint)
        async with self._endpoint.client() as client:
            body = {"path": path, "version": version}
            try:
                answer = await self._endpoint.call(client, "POST", url, body, timeout_s=PUBLISH_S)
            except BadInput as error:  # the folder is a checkpoint as seen from here
                what = f"the server cannot take the weights: {error.what}"
                raise PolicyError(what, where=url, fix=_SAME_PATH.format(path)) from None
        if not isinstance(answer, dict) or answer.get("weight_version") != version:
            raise PolicyError(f"the server does not answer with the weights {version}", where=url)
        return version


_SAME_PATH = "it must be able to read {} under the same path"
_SLEEP = "start vllm with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1"
_DEV_MODE = "start vllm with VLLM_SERVER_DEV_MODE=1"
_LORA = "start vllm with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
_TOWER = "start vllm with --enable-tower-connector-lora and VLLM_SERVER_DEV_MODE=1, or set adapter.targets without it"
# What vLLM says of an adapter that it does not take, and how that is mended.
_REFUSALS = (
    ("LoRA is not enabled", _LORA),
    ("greater than max_lora_rank", "start vllm with a larger --max-lora-rank, or lower adapter.rank"),
    ("does not yet support DoRA", "set adapter.dora to false, or merge it: flywheel model merge-adapter"),
    ("No free", "start vllm with a larger --max-loras, or unload the adapters of others"),
    ("No adapter found", _SAME_PATH),
)
_FIRST_WEIGHTS = "default"  # vLLM's name of the weights that it was started with


class VllmPublisher(ServePublisher):
    """As `ServePublisher`, to `vllm serve`.

    Adapters go by its LoRA routes (vllm/entrypoints/serve/lora, 0.33), each under a name that carries its version, and
    whoever asks for that name is answered with it; the one that was loaded from here before is unloaded. Nothing may be
    under way meanwhile: vLLM reads an adapter whose place was taken from its folder again, which has others by then.

    Whole checkpoints want VLLM_SERVER_DEV_MODE=1. Its way of exchanging weights on disk (vllm/entrypoints/rl/online and
    serve/dev, 0.32): /pause?mode=wait lets what is under way end and holds what comes later; /collective_rpc runs the
    workers' `reload_weights` with a path; /reset_prefix_cache forgets keys and values of the old weights;
    /update_weight_version names the new ones, and /weight_info tells that name; /resume, in any case. Versions without
    the last two routes (before 0.32) work too, but then only the publisher knows the name.
    """

    async def version(self) -> str:
        async with self._endpoint.client() as client:
            return await self._version(client)

    async def _version(self, client: httpx.AsyncClient) -> str:
        with contextlib.suppress(CannotPublish):
            info = await self._route(client, "GET", "/weight_info")
            if isinstance(info, dict):
                return str(info.get("weight_version") or "")
        return ""

    async def publish(self, checkpoint: Path) -> str:
        path, version = await asyncio.to_thread(_identity, checkpoint)
        async with self._endpoint.client() as client:
            if is_adapter(checkpoint):
                await self._load_adapter(client, Path(checkpoint), path, version)
            else:
                named = await self._version(client)
                if not named or await self._other_weights(client, Path(checkpoint), version, named):
                    await self._load(client, path, version)
                await self._use_adapter(client, "")
        return version

    async def _load(self, client: httpx.AsyncClient, path: str, version: str) -> None:
        await self._route(client, "POST", "/pause?mode=wait")
        try:
            await self._swap(client, path, version)
        except BaseException:
            with contextlib.suppress(PolicyError):  # the first error is the one to report
                await self._route(client, "POST", "/resume")
            raise
        await self._route(client, "POST", "/resume")

    async def _swap(self, client: httpx.AsyncClient, path: str, version: str) -> None:
        call = {"method": "reload_weights", "kwargs": {"weights_path": path}}
        await self._route(client, "POST", "/collective_rpc", call)
        forgotten = await self._route(client, "POST", "/reset_prefix_cache")
        if isinstance(forgotten, dict) and forgotten.get("success") is False:
            raise PolicyError("the server keeps keys and values of the old weights", where=self._endpoint.root)
        with contextlib.suppress(CannotPublish):
            await self._route(client, "POST", "/update_weight_version", {"new_version": version})

    async def _other_weights(self, client: httpx.AsyncClient, folder: Path, version: str, named: str) -> str:
        """What the server has, where that is not the checkpoint in `folder`, else "". named: what it calls its weights;
        those that it was started with are known by what it was started with."""
        if named not in ("", _FIRST_WEIGHTS):
            return "" if named == version else f"the weights {named}"
        served = await self._endpoint.find(client, PUBLISH_S)
        if served.parent:
            models = await self._endpoint.models(client, PUBLISH_S)
            served = next((one for one in models if one.name == served.parent), served)
        same = await asyncio.to_thread(is_same_checkpoint, served.root, folder, version)
        return "" if same else served.root or served.name

    async def _load_adapter(self, client: httpx.AsyncClient, folder: Path, path: str, version: str) -> None:
        base = await asyncio.to_thread(base_checkpoint, folder)
        named = await self._version(client)
        if other := await self._other_weights(client, base, checkpoint_digest(base), named):
            what = f"the adapter {version} belongs to {base}, and the server has {other}"
            raise CannotPublish(what, where=self._endpoint.url, fix=f"start vllm with {base}")
        await self._check_tower(client, folder)
        name = f"flywheel-{version}"
        models = await self._endpoint.models(client, PUBLISH_S)
        if (name, path) not in [(one.name, one.root) for one in models]:
            body = {"lora_name": name, "lora_path": path, "load_inplace": True}  # so that a second try is no fault
            await self._route(client, "POST", "/v1/load_lora_adapter", body, _LORA)
        await self._use_adapter(client, name)

    async def _use_adapter(self, client: httpx.AsyncClient, name: str) -> None:
        """From now on ask for the adapter `name` ("": for none), and let the one before go."""
        before, self.adapter = self.adapter, name
        if before not in ("", name):
            with contextlib.suppress(CannotPublish):  # it is not there any more
                await self._route(client, "POST", "/v1/unload_lora_adapter", {"lora_name": before}, _LORA)

    async def _check_tower(self, client: httpx.AsyncClient, folder: Path) -> None:
        """vLLM leaves the vision tower's part of an adapter out, without a word, unless it is told to have it."""
        if not any(".visual." in name for name in await asyncio.to_thread(read_adapter_tensors, folder)):
            return
        lora = (await self._configuration(client, _TOWER)).get("lora_config") or {}
        if not lora.get("enable_tower_connector_lora"):
            what = "the adapter has parts for the vision tower or the merger, which the server would leave out"
            raise CannotPublish(what, where=self._endpoint.root, fix=_TOWER)

    async def _configuration(self, client: httpx.AsyncClient, fix: str) -> dict[str, Any]:
        """What the server was started with, by vLLM's blocks and names."""
        told = await self._route(client, "GET", "/server_info?config_format=json", fix=fix)
        found = told.get("vllm_config") if isinstance(told, dict) else None
        return found if isinstance(found, dict) else {}

    async def sleep(self) -> None:
        """Have the server end what is under way and leave the GPU's memory to others (vLLM's sleep mode, level 1: the
        weights go to the CPU's memory, keys and values are dropped). Raises CannotPublish for a server that was begun
        without sleep mode, PolicyTimeout after `PUBLISH_S`, PolicyError where it does not sleep."""
        async with self._endpoint.client() as client:
            model = (await self._configuration(client, _SLEEP)).get("model_config") or {}
            if not model.get("enable_sleep_mode"):  # it would say that it sleeps, and keep its memory
                raise CannotPublish("the server was begun without sleep mode", where=self._endpoint.root, fix=_SLEEP)
            await self._route(client, "POST", "/sleep?level=1&mode=wait", fix=_SLEEP)
            if not await self._sleeps(client):
                raise PolicyError("the server does not sleep", where=self._endpoint.root, fix="see its log")

    async def wake(self) -> None:
        """Wake the server where it sleeps, with the weights that it had. Raises as `sleep`."""
        async with self._endpoint.client() as client:
            if await self._sleeps(client):
                await self._route(client, "POST", "/wake_up", fix=_SLEEP)
                if await self._sleeps(client):
                    fix = "free the GPU's memory; see the server's log"
                    raise PolicyError("the server does not wake", where=self._endpoint.root, fix=fix)

    async def _sleeps(self, client: httpx.AsyncClient) -> bool:
        told = await self._route(client, "GET", "/is_sleeping", fix=_SLEEP)
        return isinstance(told, dict) and told.get("is_sleeping") is True

    async def _route(
        self, client: httpx.AsyncClient, method: str, path: str, body: Any = None, fix: str = _DEV_MODE
    ) -> Any:
        """Call a route of vLLM's own. fix: for a server that has not this route."""
        url, lora = self._endpoint.root + path, path.endswith("_lora_adapter")  # these answer with a sentence
        try:
            return await self._endpoint.call(client, method, url, body, timeout_s=PUBLISH_S, reads_json=not lora)
        except (PolicyError, BadInput) as error:
            if lora and (mended := next((how for said, how in _REFUSALS if said in error.what), "")):
                raise CannotPublish(error.what, where=url, fix=mended.format(body.get("lora_path"))) from None
            if isinstance(error, RouteNotFound):
                raise CannotPublish("the server has no such route", where=url, fix=fix) from None
            if isinstance(error, BadInput):
                raise PolicyError(error.what, where=url) from None
            raise


async def put_servers_to_sleep(policy: PolicySettings) -> None:
    """Have each server of `policy.endpoint` leave its GPU to training, where `policy.sleeps_while_training` says so.
    They wake when a policy is opened or given weights. policy: block `policy`. Raises as `VllmPublisher.sleep`."""
    if policy.sleeps_while_training:
        await asyncio.gather(*(VllmPublisher(PolicyEndpoint(server)).sleep() for server in policy.servers))


def is_same_checkpoint(root: str, folder: Path, version: str) -> bool:
    """Tell whether what a server was started with is the checkpoint in `folder`.

    root: a folder, or a Hugging Face name. version: of the weights in `folder`.
    """
    if not Path(root).is_dir():
        return root == name_adapter_base(folder, folder).model
    with contextlib.suppress(ModelError):
        return Path(root).resolve() == folder.resolve() or checkpoint_digest(root) == version
    return False


def _identity(checkpoint: Path) -> tuple[str, str]:
    """The folder as the server is told it, and the name of its weights."""
    return str(Path(checkpoint).resolve()), checkpoint_digest(checkpoint)
