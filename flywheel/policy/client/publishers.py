"""Publish a checkpoint's weights to a model server: `flywheel model serve`, or `vllm serve`.

Client and server must be able to read the checkpoint's folder under the same path (on a shared file system if they are
two machines). Its name is the digest of its content (`checkpoint_digest`), so publishing it twice changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import httpx

from flywheel.config import AdapterSettings, PolicySettings
from flywheel.policy.adapter import read_adapter_tensors
from flywheel.policy.checkpoint import (
    checkpoint_digest,
    count_parameters,
    find_base_checkpoint,
    is_adapter,
    name_adapter_base,
)
from flywheel.policy.client.endpoint import PolicyEndpoint, RouteNotFound
from flywheel.utils.errors import BadInput, ModelError, PolicyError

PUBLISH_S = 600.0  # deadline of one swap: a server reads gigabytes


class CannotPublish(PolicyError):
    """Signal a server that cannot change its weights."""


class ServePublisher:
    """Make the `flywheel model serve` at `endpoint` answer with the weights of a checkpoint or an adapter.

    Requests that run end on the weights that they began with. The attribute `adapter` is the model name that requests
    must have to get what was published last; "": the name of the server's model.
    """

    def __init__(self, endpoint: PolicyEndpoint) -> None:
        self._endpoint = endpoint
        self.adapter = ""

    async def version(self) -> str:
        """Return the digest of the weights that answer at present; "" where the server does not report it.

        Raises as `PolicyEndpoint.models`, with a deadline of `PUBLISH_S`.
        """
        async with self._endpoint.client() as client:
            models = await self._endpoint.models(client, PUBLISH_S)
        return models[0].weight_version if models else ""

    async def publish(self, checkpoint: Path) -> str:
        """Swap the server's weights for those of `checkpoint`; return their digest once they answer.

        checkpoint: a checkpoint's folder, or an adapter's. Raises ModelError for a folder without weights,
        CannotPublish for a vLLM without the routes, or one that refuses an adapter for its base, its rank or lack of
        room, PolicyTimeout after `PUBLISH_S`, PolicyBusy and PolicyError for a server that fails to swap, or cannot be
        reached. The old weights then continue to answer, except where vLLM failed in the middle of the swap, or a
        server goes on after a timeout: then publish again.
        """
        url = f"{self._endpoint.url}/weights"
        path, version = await asyncio.to_thread(_identity, checkpoint)
        async with self._endpoint.client() as client:
            body = {"path": path, "version": version}
            try:
                answer = await self._endpoint.call(client, "POST", url, body, timeout_s=PUBLISH_S)
            except BadInput as error:  # the folder is valid on this side, so the server sees something else there
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
_TAKES_TOWER = "enable_tower_connector_lora"
_LEFT_OUT = "the adapter has parts for the vision tower or the merger, which the server would leave out"
_SLEEPLESS = "the server was begun without sleep mode"
# Parts of vLLM's messages where it refuses an adapter, and the remedy of each.
_REFUSALS = (
    ("LoRA is not enabled", _LORA),
    ("greater than max_lora_rank", "start vllm with a larger --max-lora-rank, or lower adapter.rank"),
    ("does not yet support DoRA", "set adapter.dora to false, or merge it: flywheel model merge-adapter"),
    ("No free", "start vllm with a larger --max-loras, or unload the adapters of others"),
    ("No adapter found", _SAME_PATH),
)
_FIRST_WEIGHTS = "default"  # vLLM's name for the weights that it was started with


class VllmPublisher(ServePublisher):
    """Make a `vllm serve` answer with the weights of a checkpoint or an adapter.

    Adapters use vLLM's LoRA routes (vllm/entrypoints/serve/lora, 0.33). Each is loaded under a model name that contains
    its digest, and requests with that name get it; the adapter that this publisher loaded before is unloaded. No
    request may run meanwhile: vLLM reads an evicted adapter from its folder again, which may have other weights then.

    Whole checkpoints need VLLM_SERVER_DEV_MODE=1, and vLLM's routes to exchange weights on disk
    (vllm/entrypoints/rl/online and serve/dev, 0.33): /pause?mode=wait waits for running requests and holds new ones, or
    answers them with 503 (from 0.33 on), so that our own wait here;
    /collective_rpc runs the workers' `reload_weights` with a path; /reset_prefix_cache drops keys and values of the old
    weights; /update_weight_version names the new ones, and /weight_info returns that name; /resume is called in any
    case. Versions without /update_weight_version and /weight_info (before 0.32) work too, but then only the publisher
    knows the name. Calls of `publish` follow one another: the end of one would else resume the server within another.
    """

    def __init__(self, endpoint: PolicyEndpoint) -> None:
        super().__init__(endpoint)
        self._publishing = asyncio.Lock()

    async def version(self) -> str:
        """Return the digest of the weights that answer at present, as `ServePublisher.version`."""
        async with self._endpoint.client() as client:
            return await self._version(client)

    async def _version(self, client: httpx.AsyncClient) -> str:
        with contextlib.suppress(CannotPublish):
            info = await self._route(client, "GET", "/weight_info")
            if isinstance(info, dict):
                return str(info.get("weight_version") or "")
        return ""

    async def publish(self, checkpoint: Path) -> str:
        """Load the adapter, or swap the weights, as `ServePublisher.publish`; return the digest."""
        path, version = await asyncio.to_thread(_identity, checkpoint)
        async with self._publishing, self._endpoint.client() as client:
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
        """Return "" if the server has the checkpoint in `folder`, else what it has, in words. version: the digest of
        `folder`. named: the server's name of its weights; for those that it was started with ("default", or "" where
        it does not tell), the folder or name that it was started with is compared."""
        if named not in ("", _FIRST_WEIGHTS):
            return "" if named == version else f"the weights {named}"
        served = await self._endpoint.find(client, PUBLISH_S)
        if served.parent:
            models = await self._endpoint.models(client, PUBLISH_S)
            served = next((one for one in models if one.name == served.parent), served)
        same = await asyncio.to_thread(is_same_checkpoint, served.root, folder, version)
        return "" if same else served.root or served.name

    async def _load_adapter(self, client: httpx.AsyncClient, folder: Path, path: str, version: str) -> None:
        base = await asyncio.to_thread(find_base_checkpoint, folder)
        named = await self._version(client)
        digest = await asyncio.to_thread(checkpoint_digest, base)
        if other := await self._other_weights(client, base, digest, named):
            what = f"the adapter {version} belongs to {base}, and the server has {other}"
            raise CannotPublish(what, where=self._endpoint.url, fix=f"start vllm with {base}")
        await self._check_tower(client, folder)
        name = f"flywheel-{version}"
        models = await self._endpoint.models(client, PUBLISH_S)
        if (name, path) not in [(one.name, one.root) for one in models]:
            body = {"lora_name": name, "lora_path": path, "load_inplace": True}  # a retry is no error
            await self._route(client, "POST", "/v1/load_lora_adapter", body, _LORA)
        await self._use_adapter(client, name)

    async def _use_adapter(self, client: httpx.AsyncClient, name: str) -> None:
        """Set the adapter that requests name to `name` ("": none), and unload the one before."""
        before, self.adapter = self.adapter, name
        if before not in ("", name):
            with contextlib.suppress(CannotPublish):  # the server no longer has it
                await self._route(client, "POST", "/v1/unload_lora_adapter", {"lora_name": before}, _LORA)

    async def _check_tower(self, client: httpx.AsyncClient, folder: Path) -> None:
        """Raise CannotPublish for an adapter of the vision tower or merger if the server was not started to load these
        parts: vLLM would leave them out silently."""
        if not any(".visual." in name for name in await asyncio.to_thread(read_adapter_tensors, folder)):
            return
        if not (await self._configuration(client, _TOWER))["lora_config"].get(_TAKES_TOWER):
            raise CannotPublish(_LEFT_OUT, where=self._endpoint.root, fix=_TOWER)

    async def check_start(self, adapter: AdapterSettings, largest_share: float | None) -> None:
        """Check that the server was started to take adapters, and to sleep, before anything is trained for it.

        adapter: block `adapter`. largest_share: of the memory of the GPU that it shares; None: it need not sleep. What
        a server without VLLM_SERVER_DEV_MODE has is seen only as it is given an adapter. Raises CannotPublish with the
        flag to start it with, PolicyTimeout after `PUBLISH_S`, PolicyError where it cannot be reached.
        """
        async with self._endpoint.client() as client:
            try:
                told = await self._configuration(client, _SLEEP)
            except CannotPublish:
                if largest_share is None:
                    return
                raise
        lora, whole = told["lora_config"], adapter.method == "none"
        most, share = lora.get("max_lora_rank"), told["cache_config"].get("gpu_memory_utilization")
        unlike = (
            (not whole and not lora, "the server was begun without LoRA", _LORA),
            (
                not whole and told["vllm_env"].get("VLLM_ALLOW_RUNTIME_LORA_UPDATING") is False,
                "the server takes no adapters while it runs",
                _LORA,
            ),
            (
                not whole and isinstance(most, int) and adapter.rank > most,
                f"the server takes adapters of rank {most} at most, adapter.rank is {adapter.rank}",
                f"start vllm with --max-lora-rank {adapter.rank} or more, or lower adapter.rank",
            ),
            (not whole and adapter.dora, "vllm takes no DoRA", "set adapter.dora to false"),
            (
                not whole and set(adapter.targets) != {"language_model"} and not lora.get(_TAKES_TOWER),
                _LEFT_OUT,
                _TOWER,
            ),
            (largest_share is not None and not told["model_config"].get("enable_sleep_mode"), _SLEEPLESS, _SLEEP),
            (
                largest_share is not None and isinstance(share, float) and share > largest_share,
                f"the server takes {share} of its GPU's memory, and training needs the rest of {largest_share}",
                f"start vllm with --gpu-memory-utilization {largest_share}",
            ),
        )
        for is_so, what, fix in unlike:
            if is_so:
                raise CannotPublish(what, where=self._endpoint.root, fix=fix)

    async def _configuration(self, client: httpx.AsyncClient, fix: str) -> dict[str, Any]:
        """Return the configuration that the server was started with, by vLLM's blocks and names, its environment as
        `vllm_env`; a block that it does not have is empty. fix: for the error."""
        told = await self._route(client, "GET", "/server_info?config_format=json", fix=fix)
        told = told if isinstance(told, dict) else {}
        found = {**(told.get("vllm_config") or {}), "vllm_env": told.get("vllm_env")}
        return {name: found.get(name) or {} for name in ("lora_config", "model_config", "cache_config", "vllm_env")}

    async def sleep(self) -> None:
        """Let the server finish its requests and free the GPU's memory.

        It is vLLM's sleep mode, level 1: the weights move to the CPU's memory, keys and values are dropped. Raises
        CannotPublish for a server that was started without sleep mode, PolicyTimeout after `PUBLISH_S`, PolicyError
        where it does not sleep, or cannot be reached.
        """
        async with self._endpoint.client() as client:
            told = await self._configuration(client, _SLEEP)
            if not told["model_config"].get("enable_sleep_mode"):  # it would report that it sleeps, and keep its memory
                raise CannotPublish(_SLEEPLESS, where=self._endpoint.root, fix=_SLEEP)
            await self._route(client, "POST", "/sleep?level=1&mode=wait", fix=_SLEEP)
            if not await self._sleeps(client):
                raise PolicyError("the server does not sleep", where=self._endpoint.root, fix="see its log")

    async def wake(self) -> None:
        """Wake the server if it sleeps, with the weights that it had before.

        Raises CannotPublish for a server without the routes, PolicyTimeout after `PUBLISH_S`, PolicyError where it does
        not wake, or cannot be reached.
        """
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
        """Call one of vLLM's own routes and return its JSON. fix: remedy for the error where the server lacks it."""
        url, lora = self._endpoint.root + path, path.endswith("_lora_adapter")  # these two answer with plain text
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
    """Put the policy's servers to sleep if `policy.sleeps_while_training` is set, so that training can use their GPU.

    Opening a policy or publishing weights wakes them. policy: block `policy`. All servers at once; each finishes its
    requests first. Raises CannotPublish for a server that was started without sleep mode, PolicyTimeout after 600
    seconds of one request, PolicyError where one does not sleep or cannot be reached, BadInput for an endpoint that is
    no address, or a request that a server refuses; the other servers may then sleep or not.
    """
    if policy.sleeps_while_training:
        await asyncio.gather(*(VllmPublisher(PolicyEndpoint(server)).sleep() for server in policy.servers))


def check_adapter_server(policy: PolicySettings, adapter: AdapterSettings, largest_share: float | None) -> None:
    """Check, before anything is trained, that the policy's vLLM server was started to take adapters and to sleep.

    It must take adapters, and sleep, only as the settings want; `flywheel model serve` passes where
    `policy.sleeps_while_training` is not set. policy: block `policy`, with one server. adapter: block `adapter`.
    largest_share: of the GPU's memory that the server may take, 0 to 1; None: it need not sleep, and a server without
    VLLM_SERVER_DEV_MODE, which does not tell, passes. Must not be called from a running event loop (RuntimeError).
    Raises CannotPublish with the flag to start it with, RouteNotFound where it lacks the model, PolicyTimeout after 600
    seconds of one request, PolicyError where it cannot be reached, BadInput for an endpoint that is no address, or a
    request that the server refuses.
    """
    endpoint = PolicyEndpoint(policy)

    async def ask() -> None:
        async with endpoint.client() as client:
            model = await endpoint.find(client, PUBLISH_S)
        if model.owner != "flywheel":
            await VllmPublisher(endpoint).check_start(adapter, largest_share)
        elif policy.sleeps_while_training:
            fix = "set policy.sleeps_while_training to false, or start vllm in its place"
            raise CannotPublish("`flywheel model serve` does not sleep", where=endpoint.root, fix=fix)

    asyncio.run(ask())


def is_same_checkpoint(root: str, folder: Path, version: str) -> bool:
    """Tell whether a server was started with the checkpoint in `folder`.

    root: what the server was started with, a folder or a Hugging Face name. version: digest of the weights in `folder`.
    Raises ModelError as `name_adapter_base`, where `root` is no folder here.
    """
    if not Path(root).is_dir():
        return root == name_adapter_base(folder, folder).model
    with contextlib.suppress(ModelError):
        return Path(root).resolve() == folder.resolve() or checkpoint_digest(root) == version
    return False


def _identity(checkpoint: Path) -> tuple[str, str]:
    """Return a checkpoint's absolute path, for the server, and the digest of its weights. Raises ModelError for a
    folder without weights, or with a file that is cut off, which no server could read."""
    count_parameters(checkpoint)
    return str(Path(checkpoint).resolve()), checkpoint_digest(checkpoint)
