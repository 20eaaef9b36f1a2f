"""What the publisher sends to vLLM, and the files of an adapter, before vLLM's own code, taken from its wheel.

Without the wheel (`pip download vllm --no-deps`, its path in FLYWHEEL_VLLM_WHEEL) there is nothing to hold it against.
vLLM itself wants a GPU and other versions of libraries, so all of it but the modules in question is a stand-in here.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.abc
import importlib.util
import json
import os
import re
import sys
import zipfile
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from checkpoints import make
from policy_servers import Misbehaving, checkpoints, make_adapter, says

from flywheel.config import PolicySettings
from flywheel.policy.adapter import iter_adapter_modules, read_adapter_tensors
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.policy.client import publishers
from flywheel.policy.client.endpoint import PolicyEndpoint
from flywheel.policy.client.publishers import VllmPublisher
from flywheel.utils.errors import PolicyError

WHEEL = Path(os.environ.get("FLYWHEEL_VLLM_WHEEL", "none"))
pytestmark = pytest.mark.skipif(not WHEEL.is_file(), reason="FLYWHEEL_VLLM_WHEEL is not the path of vLLM's wheel")
OWN = (  # modules of vLLM that are run
    *("vllm.lora.peft_helper", "vllm.lora.lora_model", "vllm.lora.lora_weights", "vllm.lora.utils"),
    *("vllm.lora.request", "vllm.model_executor.models.utils", "vllm.exceptions", "vllm.entrypoints.serve"),
    *("vllm.utils.counter", "vllm.lora.resolver"),
    *("vllm.entrypoints.openai.models.serving", "vllm.entrypoints.openai.models.protocol"),
    *("vllm.entrypoints.serve.engine.protocol", "vllm.entrypoints.serve.lora.protocol"),
    *("vllm.entrypoints.serve.exception_handling.error_response", "vllm.entrypoints.serve.exception_handling.utils"),
)
EVERYWHERE = ["language_model", "merger", "vision_tower"]


class _StandIn(ModuleType):
    """A module of which everything can be taken."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {}) if name[0].isupper() else MagicMock(name=name)


class FromWheel(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self) -> None:
        with zipfile.ZipFile(WHEEL) as wheel:
            names = {name for module in OWN for name in (f"{module.replace('.', '/')}.py", self._package(module))}
            self.source = {name: wheel.read(name) for name in names & set(wheel.namelist())}
            self.models = {
                name: wheel.read(f"vllm/model_executor/models/{name}.py") for name in ("qwen2_5_vl", "qwen3_vl")
            }

    @staticmethod
    def _package(module: str) -> str:
        return f"{module.replace('.', '/')}/__init__.py"

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if name.partition(".")[0] not in ("vllm", "msgspec"):
            return None
        return importlib.util.spec_from_loader(name, self, is_package=f"{name.replace('.', '/')}.py" not in self.source)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == "msgspec":
            module.Struct, module.field = _Struct, dataclasses.field
        module.PIN_MEMORY = False  # there is no GPU
        for name in (f"{module.__name__.replace('.', '/')}.py", self._package(module.__name__)):
            if name in self.source and module.__name__ in OWN:
                exec(compile(self.source[name], name, "exec"), vars(module))

    def prefixes(self, architecture: str) -> dict[str, str]:
        """How a model of vLLM renames the beginnings of a checkpoint's names."""
        for part in ast.walk(ast.parse(self.models[architecture])):
            if isinstance(part, ast.keyword) and part.arg == "orig_to_new_prefix":
                return ast.literal_eval(part.value)
        raise AssertionError(f"{architecture} renames nothing")


class _Struct:
    def __init_subclass__(cls, **options: object) -> None:
        dataclasses.dataclass(eq=False)(cls)


@pytest.fixture
def wheel():
    finder = FromWheel()
    sys.meta_path.insert(0, finder)
    yield finder
    sys.meta_path.remove(finder)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("vllm", "msgspec")]:
        del sys.modules[name]


@pytest.mark.parametrize("architecture", ["qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("rslora", [False, True])
def test_vllms_reader_takes_our_files(wheel, tmp_path, architecture, rslora):
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.peft_helper import PEFTHelper
    from vllm.model_executor.models.utils import WeightsMapper

    base = make(tmp_path / "base", architecture)
    folder = make_adapter(base, tmp_path / "adapter", 1, rank=8, alpha=16, rslora=rslora, targets=EVERYWHERE)
    helper = PEFTHelper.from_local_dir(str(folder), 1024)
    helper.validate_legal(SimpleNamespace(max_lora_rank=8))
    with pytest.raises(ValueError, match="rank 8 is greater than max_lora_rank 4"):
        helper.validate_legal(SimpleNamespace(max_lora_rank=4))
    mine = dict(iter_adapter_modules(read_adapter_tensors(folder), folder))
    prefixes = wheel.prefixes(architecture)
    read = LoRAModel.from_local_checkpoint(
        str(folder),
        {name.rpartition(".")[2] for name in mine},
        helper,
        lora_model_id=1,
        device="cpu",
        dtype=torch.float32,
        weights_mapper=WeightsMapper(orig_to_new_prefix=prefixes),
    )
    assert len(read.loras) == len(mine)
    for name, parts in mine.items():
        old = next(old for old in prefixes if name.startswith(old))
        found = read.loras[prefixes[old] + name.removeprefix(old)]
        assert torch.equal(found.lora_a, parts["lora_A"])
        assert torch.equal(found.lora_b, parts["lora_B"])
        assert found.scaling == pytest.approx(16 / (8**0.5 if rslora else 8))


def test_the_routes_that_the_publisher_calls_are_there():
    """What else it calls: to exchange whole weights, and to let the server sleep."""
    with zipfile.ZipFile(WHEEL) as wheel:
        there = [wheel.read(name).decode() for name in wheel.namelist() if name.endswith("api_router.py")]
        worker = wheel.read("vllm/v1/worker/gpu_model_runner.py").decode()
    found = set(re.findall(r"@router\.(get|post)\(\s*\"(/\w+)\"", "\n".join(there)))
    called = Path(publishers.__file__).read_text()
    wanted = {(verb.lower(), path) for verb, path in re.findall(r"\"(GET|POST)\", \"(/\w+)[\"?]", called)}
    assert len(wanted) > 8
    assert wanted <= found
    assert "weights_path" in re.search(r"def reload_weights\(.*?\)", worker, re.DOTALL)[0]


class Server:
    """The handlers of vLLM's LoRA routes. enabled, rank: as it was begun."""

    def __init__(self, server: Misbehaving, base: Path, *, enabled: bool, rank: int) -> None:
        from vllm.entrypoints.openai.models.protocol import BaseModelPath
        from vllm.entrypoints.openai.models.serving import OpenAIServingModels
        from vllm.entrypoints.serve.lora.protocol import LoadLoRAAdapterRequest, UnloadLoRAAdapterRequest

        self.enabled, self.limits = enabled, SimpleNamespace(max_lora_rank=rank)
        engine = MagicMock(add_lora=self.add_lora, model_config=SimpleNamespace(max_model_len=1024))
        self.models = OpenAIServingModels(engine, [BaseModelPath("m", str(base))])
        self.models.lora_id_counter = SimpleNamespace(inc=lambda by: len(self.models.lora_requests) + 1)
        self.models.lora_resolvers = []
        for verb, kind in (("load", LoadLoRAAdapterRequest), ("unload", UnloadLoRAAdapterRequest)):
            handler = getattr(self.models, f"{verb}_lora_adapter")
            server.routes[f"POST /v1/{verb}_lora_adapter"] = self.route(handler, kind)
        server.routes["GET /v1/models"] = self.listing

    async def add_lora(self, request) -> None:
        """What its worker does (vllm/lora/worker_manager.py), as far as the files go."""
        from vllm.exceptions import LoRAAdapterNotFoundError
        from vllm.lora.peft_helper import PEFTHelper

        if not self.enabled:
            raise RuntimeError("LoRA is not enabled. Use --enable-lora to enable LoRA.")
        try:
            PEFTHelper.from_local_dir(request.lora_path, 1024).validate_legal(self.limits)
        except FileNotFoundError:
            raise LoRAAdapterNotFoundError(request.lora_name, request.lora_path) from None

    def route(self, handler, kind):
        async def behave(raw, write):
            said = await handler(kind.model_validate(json.loads(raw)))
            if isinstance(said, str):
                await says(200, said.encode())(raw, write)
            else:
                await says(said.error.code, said.model_dump())(raw, write)

        return behave

    async def listing(self, raw, write):
        await says(200, (await self.models.show_available_models()).model_dump())(raw, write)


async def test_vllms_handlers_take_what_the_publisher_sends(wheel, tmp_path):
    base = checkpoints(tmp_path, 1)[0]
    first, second = (make_adapter(base, tmp_path / f"a{n}", n, rank=8) for n in range(2))
    with Misbehaving(base).running() as server:
        publisher = VllmPublisher(PolicyEndpoint(PolicySettings(endpoint=server.url, retries=0)))
        for enabled, rank, words in ((False, 8, "vllm with --enable-lora"), (True, 4, "larger --max-lora-rank")):
            Server(server, base, enabled=enabled, rank=rank)
            with pytest.raises(PolicyError, match=words):
                await publisher.publish(first)
        vllm = Server(server, base, enabled=True, rank=8)
        for folder in (first, first, second):
            assert await publisher.publish(folder) == checkpoint_digest(folder)
            (card,) = (await vllm.models.show_available_models()).data[1:]
            assert (card.id, card.root, card.parent) == (publisher.adapter, str(folder), "m")
        (second / "adapter_config.json").rename(tmp_path / "away")
        body = {"lora_name": "x", "lora_path": str(second)}
        async with publisher._endpoint.client() as client:
            with pytest.raises(PolicyError, match="under the same path"):
                await publisher._route(client, "POST", "/v1/load_lora_adapter", body)


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("config/lora", ["max_lora_rank", "enable_tower_connector_lora"]),
        ("config/model", ["enable_sleep_mode"]),
        ("config/cache", ["gpu_memory_utilization"]),
        ("envs", ["VLLM_ALLOW_RUNTIME_LORA_UPDATING", "VLLM_SERVER_DEV_MODE"]),
    ],
)
def test_what_is_asked_of_a_servers_configuration_is_there(module, names):
    with zipfile.ZipFile(WHEEL) as wheel:
        tree = ast.parse(wheel.read(f"vllm/{module}.py"))
    declared = {one.target.id for one in ast.walk(tree) if isinstance(one, ast.AnnAssign) and hasattr(one.target, "id")}
    assert set(names) <= declared


def test_in_sleep_mode_weights_and_adapters_are_copied_and_the_cache_is_dropped():
    """What `flywheel plan` says of a server on the trainers' GPU."""
    with zipfile.ZipFile(WHEEL) as wheel:
        backend = wheel.read("vllm/device_allocator/sleep_mode_backend.py").decode()
        lora = wheel.read("vllm/v1/worker/lora_model_runner_mixin.py").decode()
    assert 'offload_tags: tuple[str, ...] = ("runtime", "cudagraph")' in backend
    assert 'offload_tags = ("weights", *offload_tags)' in backend
    assert 'use_memory_pool(tag="runtime")' in lora
