"""Plan the memory, disk and network that an iteration needs, and find settings with which it fits (`flywheel plan`).

No weights are loaded: sizes come from the checkpoint's config.json and the settings (`training/memory_plan.py`).
Training is planned with samples as long as the settings allow.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flywheel.agent.grammar import smart_resize
from flywheel.config import RlSettings, Settings
from flywheel.config.workspace import Workspace
from flywheel.policy import checkpoint
from flywheel.training.memory_plan import (
    HALF,
    MIB,
    PROCESS,
    SINGLE,
    SMALL,
    AnsweringMemory,
    Device,
    ModelShape,
    ServerMemory,
    TrainingMemory,
    count_trained,
    largest_workload,
    plan_answering,
    plan_server,
    plan_training,
)
from flywheel.utils.errors import BadInput, DiskFull, ModelError, errors_of_setting

_TURNS = 8  # steps of an RL episode, all of whose screens are in memory in training: about as in the shipped worlds
_PIXEL = 0.15  # bytes of a stored screen, a PNG: those of the shipped worlds have less
_THIS_MACHINE = ("127.0.0.1", "localhost", "::1")
GPU_DEVICES = ("/dev/nvidiactl", "/dev/dxg")  # of NVIDIA's driver, and of Windows' Linux: one is there with a GPU
_CLEAR = 1.1  # needed / available memory up to which a stage is only warned about: plans are exact to a tenth


@dataclass(frozen=True)
class DeviceMemory:
    """Hold the memory available on the device that the setting `auto` selects.

    kind: of that device. bytes: of its memory. host: bytes of the machine's memory; 0: not known.
    """

    kind: Device
    bytes: int
    host: int = 0


@dataclass(frozen=True)
class StagePlan:
    """Hold the memory that one stage needs on its device.

    parts: bytes by name, with `activations_padded` for padded batches and `host` for the machine's memory if the device
    is a GPU. needs: bytes at the peak. has, host_has: bytes of the device and the machine; 0: not known. fixes:
    settings, NAME=VALUE, with which the stage fits; empty if it fits already or none helps. note: remark on the stage.
    """

    stage: str
    device: str
    parts: Mapping[str, int]
    needs: int
    has: int
    host_has: int = 0
    fixes: tuple[str, ...] = ()
    note: str = ""

    @property
    def shortage(self) -> tuple[float, str]:
        """Return the ratio of needed to available memory, and both in words, of GPU or machine, where it is higher."""
        host = self.parts.get("host", 0)
        pairs = [(self.needs, self.has, "the GPU" if self.device == "cuda" else "this machine")]
        pairs += [(host, self.host_has, "this machine")] if host else []
        return max(
            (needs / has if has else 0.0, f"needs {format_size(needs)}, {name} has {format_size(has)}")
            for needs, has, name in pairs
        )

    @property
    def fits(self) -> bool:
        """Tell whether the memory is enough."""
        return self.shortage[0] <= 1


@dataclass(frozen=True)
class ServerPlan:
    """Hold what a vLLM server may have of the GPU that it shares with the trainers (policy.sleeps_while_training).

    memory: its own need. least: value of its `--gpu-memory-utilization` with which it can answer one request. most: the
    value that still leaves RL what it keeps while the policy plays. rows: number of requests at their longest whose
    keys and values the server holds with `most`.
    """

    memory: ServerMemory
    least: float
    most: float
    rows: int


@dataclass(frozen=True)
class DiskPlan:
    """Hold the bytes that an iteration writes to the workspace's disk, and those that are free.

    models: CT's, SFT's, the specialists and the merged one. data: trajectories with their screens. state: the largest
    training state, which is removed once its stage is done. fetched: the base, where it is not on this disk yet. DVC's
    cache has a copy of models and data.
    """

    models: int
    data: int
    state: int
    fetched: int
    free: int

    @property
    def needs(self) -> int:
        """Return the bytes that must be free as an iteration begins."""
        return 2 * (self.models + self.data) + self.state + self.fetched

    @property
    def fits(self) -> bool:
        """Tell whether the disk has room for an iteration."""
        return self.needs <= self.free


@dataclass(frozen=True)
class ResourcePlan:
    """Hold the memory, disk and network that an iteration needs.

    model: folder or Hugging Face name. parameters, trained: numbers of parameters. kv_token: bytes of keys and values
    per token. device: the memory that it was planned for. stages: in the order in which they run. disk_fix: NAME=VALUE
    with which the disk has room; "": no setting helps, or it has room already. network: bytes sent to
    versioning.remote. server: None where no server shares the GPU. uncounted: a server on this machine that does not
    sleep while a stage trains; no stage counts it, as it may have a GPU of its own.
    """

    model: str
    parameters: int
    trained: int
    kv_token: int
    device: DeviceMemory
    stages: tuple[StagePlan, ...]
    disk: DiskPlan
    disk_fix: str
    network: int
    server: ServerPlan | None
    uncounted: ServerMemory | None = None

    @property
    def fits(self) -> bool:
        """Tell whether memory and disk are enough."""
        return self.disk.fits and all(one.fits for one in self.stages)

    def row(self) -> dict[str, Any]:
        """Return the fields by name as JSON values, each stage with `fits`, the disk with `needs` and `fits`."""
        disk = asdict(self.disk) | {"needs": self.disk.needs, "fits": self.disk.fits}
        return asdict(self) | {"stages": [asdict(one) | {"fits": one.fits} for one in self.stages], "disk": disk}


def read_device_memory(typed: str | None = None) -> DeviceMemory:
    """Read the memory of the first GPU that torch can use; where there is none, the machine's own.

    The machine's is bounded by its control group (a container's limit). typed: the memory of a GPU that is not here,
    such as 80GiB or 24GB, which is taken instead, with the machine's as not known; None: read it. Raises BadInput where
    `typed` is no size.
    """
    if typed is not None:
        return DeviceMemory("cuda", _parse_size(typed))
    host = _machine_memory()
    if any(Path(name).exists() for name in GPU_DEVICES):
        import torch  # takes seconds: only where there may be a GPU

        if torch.cuda.is_available():
            return DeviceMemory("cuda", torch.cuda.get_device_properties(0).total_memory, host)
    return DeviceMemory("cpu", host, host)


def _machine_memory() -> int:
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = Path(name).read_text(encoding="utf-8").strip() if Path(name).is_file() else ""
        found += [int(text)] if text.isdigit() else []
    return min(found)


_UNITS = {"mb": 10**6, "gb": 10**9, "mib": MIB, "gib": MIB << 10, "m": MIB, "g": MIB << 10}


def _parse_size(text: str) -> int:
    number = text.strip().rstrip("aAbBgGiIkKmM ")
    unit = text.strip()[len(number) :].strip().lower()
    try:
        size = int(float(number) * _UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        size = 0
    if size <= 0:
        raise BadInput(f"{text!r} is no amount of memory", where="--device-memory", fix="type it like 80GiB or 24GB")
    return size


def plan_resources(ws: Workspace, settings: Settings, device: DeviceMemory) -> ResourcePlan:
    """Plan the memory of each stage, the disk and the network that an iteration with these settings needs.

    ws: relative paths start from its folder, and the free space is that of its disk. device: the memory of the device
    that the setting `auto` selects (`read_device_memory`). No weights are loaded; of a checkpoint, or an adapter's
    base, that is known by a Hugging Face name only the configuration is fetched. Raises ModelError as
    `resolve_checkpoint` and `check_checkpoint`, where config.json does not give the model's size, and for a damaged
    preprocessor_config.json; FileNotFoundError where the workspace's folder is missing.
    """
    with errors_of_setting("policy.base"):
        folder = checkpoint.resolve_checkpoint(settings.policy.base, ws.root, weights=False)
        model = ModelShape.read(checkpoint.check_checkpoint(folder, weights=False))
        base = checkpoint.find_base_checkpoint(folder, weights=False)
        on_disk = _disk_bytes(base)
        is_here = on_disk or (base == folder and ws.resolve(settings.policy.base).is_dir())
        to_fetch = 0 if is_here else HALF * model.parameters
        # Weights that are not there yet are in bfloat16, as most are.
        planner = _Planner(model, _patch_limits(base), on_disk or HALF * model.parameters, to_fetch, device)
    stages = tuple(planner.with_fixes(stage, settings) for stage in _stage_names(settings))
    disk, fix = planner.disk(ws, settings), ""
    lora = _apply_changes(settings, {"adapter.method": "lora"})
    if not disk.fits and settings.adapter.method == "none" and planner.disk(ws, lora).fits:
        fix = "adapter.method=lora"
    return ResourcePlan(
        str(settings.policy.base),
        model.parameters,
        max(planner.trained(settings)),
        planner.answering(settings).kv_token,
        device,
        stages,
        disk,
        fix,
        disk.models + disk.data if settings.versioning.remote else 0,
        planner.server_plan(settings),
        planner.uncounted_server(settings),
    )


def check_resources(ws: Workspace, settings: Settings, device: DeviceMemory, *, begun: bool = False) -> str:
    """Check that each stage fits into the available memory, and the iteration's files onto the disk.

    device: as for `plan_resources`. begun: whether the iteration has written a part of its files, so that the disk is
    not checked. Returns a warning, about the worst stage where it exceeds the memory by a tenth at most, or about a
    server that no stage counts; else "". Raises BadInput, with the figures and the settings to change, where a stage
    exceeds the memory by more, DiskFull where the disk has less room than an iteration writes, ModelError as
    `plan_resources`. A small model is never refused for its memory: its samples stay far below the longest that the
    settings allow.
    """
    plan = plan_resources(ws, settings, device)
    worst = max(plan.stages, key=lambda one: one.shortage)
    share, words = worst.shortage
    if share > _CLEAR and plan.parameters >= SMALL:
        no_gpu = ", or a machine with a GPU: torch finds none here (`flywheel doctor`)" if device.kind == "cpu" else ""
        fix = f"set {', '.join(worst.fixes)}" if worst.fixes else f"take a smaller model or more memory{no_gpu}"
        raise BadInput(f"stage {worst.stage} {words}", where="`flywheel plan`", fix=fix)
    if not begun and not plan.disk.fits:
        fix = f"set {plan.disk_fix}, or free some space" if plan.disk_fix else "free some space"
        raise DiskFull(describe_disk(plan.disk), where="`flywheel plan`", fix=fix)
    if share > 1 and plan.parameters >= SMALL:
        fix = f"; set {', '.join(worst.fixes)}" if worst.fixes else ""
        server, both = plan.server, ""
        if server and server.least > server.most:
            both = f" (vllm needs {server.least} of it at least, and RL leaves it {server.most})"
        return f"stage {worst.stage} {words}{both}: it may not fit{fix}"
    most = max(one.needs for one in plan.stages if one.device == "cuda") if plan.uncounted else 0
    if plan.uncounted and most + plan.uncounted.least > device.bytes:
        return describe_uncounted(plan.uncounted)
    return ""


def describe_uncounted(server: ServerMemory) -> str:
    """Build the one-line warning that a policy server here takes GPU memory that the plans of stages leave out.

    server: its memory, as in `ResourcePlan.uncounted`.
    """
    return (
        "the server of policy.endpoint is on this machine and does not sleep while a stage trains; no stage counts it. "
        f"On the same GPU it needs {format_size(server.least)} at least beside each of them: give it a GPU of its own, "
        "or set policy.sleeps_while_training=true"
    )


def describe_disk(disk: DiskPlan) -> str:
    """Describe in one line what an iteration writes, and how much of the disk is free."""
    parts = {"of models": disk.models, "of trajectories": disk.data, "of saved state": disk.state}
    told = ", ".join(f"{format_size(size)} {what}" for what, size in parts.items())
    base = f", {format_size(disk.fetched)} of the base to fetch" if disk.fetched else ""
    copies = f"{told}{base}, and DVC's copy of the first two"
    return f"an iteration writes {format_size(disk.needs)} ({copies}), {format_size(disk.free)} are free"


def format_size(size: int) -> str:
    """Format a number of bytes, `size`, as whole MiB, from 1 GiB on as GiB with one decimal."""
    return f"{size / MIB:.0f} MiB" if size < MIB << 10 else f"{size / (MIB << 10):.1f} GiB"


def _stage_names(settings: Settings) -> list[str]:
    return ["rollout", "ct", "sft", *(f"rl-{name}" for name in settings.synthesis.domains), "merge", "evaluate"]


def _disk_bytes(folder: Path) -> int:
    """Return the size of the weight files; 0: they are not fetched yet."""
    try:
        return sum(file.stat().st_size for file in checkpoint.list_weight_files(folder))
    except ModelError:
        return 0


def _patch_limits(folder: Path) -> tuple[int, int] | None:
    """Return the fewest and most pixels that a screen is resized to, by the checkpoint's image settings; None: not
    given."""
    raw = checkpoint.read_json_object(folder / "preprocessor_config.json")
    size = raw["size"] if isinstance(raw.get("size"), dict) else {}
    least = raw.get("min_pixels") or size.get("min_pixels") or size.get("shortest_edge")
    most = raw.get("max_pixels") or size.get("max_pixels") or size.get("longest_edge")
    return (least, most) if isinstance(least, int) and isinstance(most, int) else None


@dataclass(frozen=True)
class _Planner:
    """Plan the stages. limits: fewest and most pixels of a screen, or None. disk_bytes: size of the weight files.
    to_fetch: bytes of them that are fetched first. auto: the memory of the device that `auto` selects."""

    model: ModelShape
    limits: tuple[int, int] | None
    disk_bytes: int
    to_fetch: int
    auto: DeviceMemory

    def with_fixes(self, stage: str, settings: Settings) -> StagePlan:
        found = self.stage(stage, settings)
        if found.fits:
            return found
        for changes in _list_changes(stage, settings, found.device):
            if self.stage(stage, _apply_changes(settings, changes)).fits:
                new = {name: value for name, value in changes.items() if _value(settings, name) != value}
                for name in reversed(list(new)):  # drop a change that the others make needless
                    fewer = {other: value for other, value in new.items() if other != name}
                    if self.stage(stage, _apply_changes(settings, fewer)).fits:
                        new = fewer
                fixes = tuple(f"{name}={str(value).lower()}" for name, value in new.items())
                return StagePlan(**{**vars(found), "fixes": fixes})
        return found

    def stage(self, stage: str, settings: Settings) -> StagePlan:
        if stage in ("rollout", "evaluate"):
            return self._answers(stage, settings)
        if stage == "merge":
            domains = len(settings.synthesis.domains)
            size = self.model.parameters
            if settings.adapter.method != "none":
                size = count_trained(self.model, settings.sft, settings.adapter)[1] * domains
            # One checkpoint, and of one tensor the float64 sum, a float32 term, and that times its float64 weight.
            tensor = self.model.embedding if settings.adapter.method == "none" else 0
            parts = {"process": PROCESS["cpu"], "weights": SINGLE * size, "temporary": 20 * tensor}
            return StagePlan(stage, "cpu", parts, sum(parts.values()), self._memory("cpu"))
        return self._training(stage, settings)

    def trained(self, settings: Settings) -> list[int]:
        return [count_trained(self.model, getattr(settings, name), settings.adapter)[0] for name in ("ct", "sft", "rl")]

    def disk(self, ws: Workspace, settings: Settings) -> DiskPlan:
        own = settings.adapter.method != "none"
        size = SINGLE * (count_trained(self.model, settings.sft, settings.adapter)[1] if own else self.model.parameters)
        domains, rl = len(settings.synthesis.domains), settings.rl
        episodes = settings.synthesis.train_tasks * settings.rollout.n_rollouts
        episodes += settings.synthesis.eval_tasks * settings.evaluation.n_trials + 2 * settings.promotion.tasks
        episodes += domains * rl.steps * rl.tasks_per_step * rl.group_size
        return DiskPlan(
            models=size * (3 + domains),
            data=int(episodes * _TURNS * settings.sandbox.width * settings.sandbox.height * _PIXEL),
            state=size + 2 * SINGLE * max(self.trained(settings)),
            fetched=self.to_fetch,
            free=shutil.disk_usage(ws.root).free,
        )

    def server(self, settings: Settings) -> ServerMemory | None:
        """Plan the server that shares the trainers' GPU; None: there is none."""
        return self._server(settings) if settings.policy.sleeps_while_training else None

    def uncounted_server(self, settings: Settings) -> ServerMemory | None:
        """Plan a server on this machine that does not sleep; None: there is none."""
        policy = settings.policy
        endpoints = [policy.endpoint] if isinstance(policy.endpoint, str) else policy.endpoint
        if policy.sleeps_while_training or not any(urlsplit(one).hostname in _THIS_MACHINE for one in endpoints):
            return None
        return self._server(settings)

    def _server(self, settings: Settings) -> ServerMemory | None:
        policy = settings.policy
        if policy.backend != "openai" or self.auto.kind != "cuda":
            return None
        largest = self.limits[1] if self.limits else policy.max_pixels
        return plan_server(self.model, policy, settings.adapter, largest)

    def server_plan(self, settings: Settings) -> ServerPlan | None:
        found, has = self.server(settings), self.auto.bytes
        if found is None:
            return None
        keeps = max(self._train(name, settings).resident for name in _stage_names(settings) if name.startswith("rl-"))
        most = math.floor(100 * (has - keeps) / has) / 100
        rows = max(0, int(most * has - found.least + found.kv_row) // found.kv_row)
        return ServerPlan(found, math.ceil(100 * found.least / has) / 100, most, rows)

    def answering(self, settings: Settings, *, swaps: bool = False) -> AnsweringMemory:
        policy = settings.policy
        if self.server(settings):
            policy = policy.model_copy(update={"dtype": "bfloat16"})
        return plan_answering(self.model, policy, self._kind(policy.device), self.disk_bytes, swaps=swaps)

    def _kind(self, device: str) -> Device:
        return self.auto.kind if device == "auto" else device

    def _memory(self, kind: str) -> int:
        if kind == self.auto.kind:
            return self.auto.bytes
        return self.auto.host if kind == "cpu" else 0

    def _answers(self, stage: str, settings: Settings) -> StagePlan:
        found, kind = self.answering(settings), self._kind(settings.policy.device)
        if server := self.server(settings):
            parts = {"process": PROCESS["cuda"], "server": server.least}  # CUDA's context of a trainer that is at rest
            note = "the server with one request; the trainer's process keeps CUDA's context"
            return StagePlan(stage, "cuda", parts, sum(parts.values()), self.auto.bytes, note=note)
        parts = {name: size for name, size in found.row().items() if name not in ("peak", "kv_token")}
        note = "on the server of policy.endpoint" if settings.policy.backend == "openai" else ""
        return StagePlan(stage, kind, parts, 0 if note else found.peak, self._memory(kind), note=note)

    def _train(self, stage: str, settings: Settings, *, padded: bool = False) -> TrainingMemory:
        name, policy = stage.partition("-")[0], settings.policy
        chosen = getattr(settings, name)
        if padded:
            chosen = chosen.model_copy(update={"pack_tokens": 0})
        kind = self._kind(chosen.device)
        rl = chosen if isinstance(chosen, RlSettings) else None
        patch, merge = self.model.vision.patch, self.model.vision.merge
        limits = self.limits or (policy.min_pixels, policy.max_pixels)
        width, height = smart_resize(settings.sandbox.width, settings.sandbox.height, patch * merge, *limits)
        patches, screens = width * height // patch**2, policy.history_n_images
        batch = rl.minibatch if rl else chosen.batch
        episodes = rl.tasks_per_step * rl.group_size * _TURNS if rl else batch
        small = kind == "cpu" and self.model.parameters < SMALL
        sizes = dict(
            tokens=policy.max_context_tokens + policy.max_new_tokens - 1,
            responses=policy.max_new_tokens,
            screens=screens,
            patches=patches,
            batch=batch,
            samples=episodes,
            seen=screens * (episodes * rl.steps if rl else chosen.num_examples),
            beside=min(os.cpu_count() or 1, 8) if small else 1,
        )
        work = largest_workload(self.model, chosen, **sizes)
        return plan_training(
            self.model,
            work,
            chosen,
            settings.adapter,
            kind,
            value_model=rl is not None and rl.algorithm == "ppo",
            held_to_form=rl is not None and policy.holds_form,
            disk_bytes=self.disk_bytes,
        )

    def _training(self, stage: str, settings: Settings) -> StagePlan:
        chosen, policy = getattr(settings, stage.partition("-")[0]), settings.policy
        found, kind, in_rl = self._train(stage, settings), self._kind(chosen.device), stage.startswith("rl-")
        parts = {name: size for name, size in found.row().items() if name not in ("peak", "resident")}
        parts["activations_padded"] = self._train(stage, settings, padded=True).activations
        needs, note = found.peak, ""
        if kind == "cpu":
            needs *= -(-chosen.processes // settings.cluster.training_nodes)
        if in_rl and policy.backend == "transformers" and self._kind(policy.device) == kind:
            answers = self.answering(settings, swaps=True)
            parts["policy"] = answers.peak - answers.process
            needs, note = needs + parts["policy"], "with the policy that plays beside it"
        if kind == "cuda" and (server := self.server(settings)):
            trains, plays = needs + server.asleep, found.resident + server.least
            parts["host"] += server.host
            parts["server"], needs, note = server.asleep, trains, "with the server asleep"
            if in_rl and plays > trains:
                parts["server"], needs, note = server.least, plays, "while the server plays, with what RL keeps then"
        bits = settings.adapter.method != "none" and settings.adapter.base_dtype == "nf4"
        if kind == "cpu" and (bits or chosen.optimizer == "adamw_8bit"):
            note = "8 and 4 bits need a GPU: a run with these settings is refused"
        host = self.auto.host if kind == "cuda" else 0
        return StagePlan(stage, kind, parts, needs, self._memory(kind), host, note=note)


def _value(settings: Settings, name: str) -> Any:
    block, _, field = name.partition(".")
    return getattr(getattr(settings, block), field)


def _apply_changes(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    for name, value in changes.items():
        block, _, field = name.partition(".")
        settings = settings.model_copy(update={block: getattr(settings, block).model_copy(update={field: value})})
    return settings


def _list_changes(stage: str, settings: Settings, device: str) -> Iterator[dict[str, Any]]:
    """Yield the settings to try for a stage that does not fit, each on top of all earlier ones (order:
    docs/scaling.md): first those that change no result, then an adapter and a base in fewer bits; last, for full
    weights, an 8-bit optimizer, or ZeRO 3 with more and more processes."""
    made: dict[str, Any] = {}

    def add(**changes: Any) -> dict[str, Any]:
        made.update({name.replace("__", "."): value for name, value in changes.items()})
        return dict(made)

    if stage in ("rollout", "evaluate", "merge"):
        if stage != "merge":
            yield add(policy__dtype="bfloat16")
            rows = settings.policy.max_num_seqs
            while rows > 1:
                rows //= 2
                yield add(policy__max_num_seqs=rows)
        return
    name = stage.partition("-")[0]
    chosen, longest = getattr(settings, name), settings.policy.max_context_tokens + settings.policy.max_new_tokens
    yield add(**{f"{name}__gradient_checkpointing": True})
    if chosen.checkpoint_every_n_layers > 1:
        yield add(**{f"{name}__checkpoint_every_n_layers": 1})
    if chosen.pack_tokens > longest:
        yield add(**{f"{name}__pack_tokens": longest})
    elif not chosen.pack_tokens:
        yield add(**{f"{name}__micro_batch": 1})
    if stage.startswith("rl-") and settings.policy.backend == "transformers" and device == "cuda":
        yield add(policy__dtype="bfloat16")
    free = dict(made)
    yield add(adapter__method="lora")
    yield add(adapter__base_dtype="bfloat16")
    if device == "cuda" and not settings.adapter.dora:
        yield add(adapter__base_dtype="nf4")
    made = free
    if settings.adapter.method == "none" and device == "cuda":
        if chosen.engine == "torch":
            yield {**made, f"{name}.optimizer": "adamw_8bit"}
        add(**{f"{name}__optimizer": "adamw", f"{name}__engine": "deepspeed"})
        add(**{f"{name}__zero_stage": 3, f"{name}__zero_offload": True})
        for processes in (1, 2, 4, 8):
            yield add(**{f"{name}__processes": max(processes, chosen.processes)})
