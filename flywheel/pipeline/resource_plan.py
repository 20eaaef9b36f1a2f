"""Plan the memory, disk and network that each stage of an iteration needs, and find settings with which it fits.

No weights are loaded: sizes come from the checkpoint's config.json and the settings (`training/memory_plan.py`).
Training is planned with samples as long as the settings allow.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

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
    count_trained,
    largest_workload,
    plan_answering,
    plan_training,
)
from flywheel.utils.errors import BadInput, ModelError, errors_of_setting

_TURNS = 8  # steps of an RL episode, all of whose screens are in memory in training: about as in the shipped worlds
_CLEAR = 1.1  # needed / available memory up to which a stage is only warned about: plans are exact to a tenth


@dataclass(frozen=True)
class DeviceMemory:
    """Hold the memory available. kind: device that the setting `auto` selects. bytes: memory of that device. host:
    bytes of the machine's memory; 0: not known."""

    kind: Device
    bytes: int
    host: int = 0


@dataclass(frozen=True)
class StagePlan:
    """Hold the memory that one stage needs on its device. parts: bytes by name, with `activations_padded` for padded
    batches and `host` for the machine's memory if the device is a GPU. needs: bytes at the peak. has, host_has: bytes
    of the device and the machine; 0: not known. fixes: settings, NAME=VALUE, with which the stage fits; empty if it
    fits already or none helps. note: remark on the stage."""

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
        """Return needed / available memory, and both in words, for the device or machine with the highest ratio."""
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
class ResourcePlan:
    """Hold what an iteration needs. model: folder or Hugging Face name. parameters, trained: numbers of parameters.
    kv_token: bytes of keys and values per token. disk: bytes of the models that an iteration adds; DVC's cache takes as
    much again. state: bytes of the largest training state saved. network: bytes of models sent to versioning.remote."""

    model: str
    parameters: int
    trained: int
    kv_token: int
    device: DeviceMemory
    stages: tuple[StagePlan, ...]
    disk: int
    state: int
    network: int

    def row(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return asdict(self) | {"stages": [asdict(one) | {"fits": one.fits} for one in self.stages]}


def read_device_memory(typed: str | None = None) -> DeviceMemory:
    """Read the memory of the GPU, if there is one that torch can use, else of this machine (or of its control group).

    typed: the memory of a GPU that is not here, such as 80GiB. Raises BadInput where it is no size.
    """
    if typed is not None:
        return DeviceMemory("cuda", _parse_size(typed))
    host = _machine_memory()
    if any(Path(name).exists() for name in ("/dev/nvidiactl", "/dev/dxg")):
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


_UNITS = {"": 1, "b": 1, "mb": 10**6, "gb": 10**9, "mib": MIB, "gib": MIB << 10, "m": MIB, "g": MIB << 10}


def _parse_size(text: str) -> int:
    number = text.strip().rstrip("aAbBgGiIkKmM ")
    unit = text.strip()[len(number) :].strip().lower()
    try:
        size = int(float(number) * _UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        size = 0
    if size <= 0:
        raise BadInput(f"{text} is no amount of memory", where="--device-memory", fix="type it like 80GiB or 24GB")
    return size


def plan_resources(ws: Workspace, settings: Settings, device: DeviceMemory) -> ResourcePlan:
    """Plan an iteration with these settings.

    device: the memory of the device that the setting `auto` selects. For a Hugging Face name only the configuration is
    fetched. Raises ModelError as `check_checkpoint` does, and if config.json does not give the model's size.
    """
    with errors_of_setting("policy.base"):
        folder = checkpoint.resolve_checkpoint(settings.policy.base, ws.root, weights=False)
        model = ModelShape.read(checkpoint.check_checkpoint(folder, weights=False))
        base = checkpoint.find_base_checkpoint(folder)
        planner = _Planner(model, _patch_limits(base), _disk_bytes(base, model), device)
    stages = tuple(planner.with_fixes(stage, settings) for stage in _stage_names(settings))
    trained = {name: count_trained(model, getattr(settings, name), settings.adapter) for name in ("ct", "sft", "rl")}
    size = SINGLE * (model.parameters if settings.adapter.method == "none" else trained["sft"][1])
    models = size * (3 + len(settings.synthesis.domains))  # CT's, SFT's, a specialist a domain, the merged one
    state = size + 2 * SINGLE * max(numbers for numbers, _ in trained.values())
    return ResourcePlan(
        str(settings.policy.base),
        model.parameters,
        max(numbers for numbers, _ in trained.values()),
        planner.answering(settings).kv_token,
        device,
        stages,
        models,
        state,
        models if settings.versioning.remote else 0,
    )


def check_resources(ws: Workspace, settings: Settings, device: DeviceMemory) -> str:
    """Check that each stage fits into the available memory.

    Returns a warning about the worst stage if it exceeds the memory by a tenth at most, else "". Raises BadInput, with
    the figures and the settings to change, if it exceeds it by more, ModelError as `plan_resources`. A small model is
    never refused: its samples stay far below the longest that the settings allow.
    """
    plan = plan_resources(ws, settings, device)
    short = [one for one in plan.stages if not one.fits]
    if not short or plan.parameters < SMALL:
        return ""
    worst = max(short, key=lambda one: one.shortage)
    share, words = worst.shortage
    if share <= _CLEAR:
        return f"stage {worst.stage} {words}: it may not fit"
    fix = f"set {', '.join(worst.fixes)}" if worst.fixes else "take a smaller model or more memory"
    raise BadInput(f"stage {worst.stage} {words}", where="`flywheel plan`", fix=fix)


def format_size(size: int) -> str:
    """Format a number of bytes as MiB or GiB."""
    return f"{size / MIB:.0f} MiB" if size < MIB << 10 else f"{size / (MIB << 10):.1f} GiB"


def _stage_names(settings: Settings) -> list[str]:
    return ["rollout", "ct", "sft", *(f"rl-{name}" for name in settings.synthesis.domains), "merge", "evaluate"]


def _disk_bytes(folder: Path, model: ModelShape) -> int:
    try:
        return sum(file.stat().st_size for file in checkpoint.list_weight_files(folder))
    except ModelError:
        return HALF * model.parameters  # weights that are not fetched yet, in bfloat16 as most are


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
    """Plan the stages. limits: fewest and most pixels of a screen, or None. disk_bytes: size of the weight files. auto:
    the memory of the device that `auto` selects."""

    model: ModelShape
    limits: tuple[int, int] | None
    disk_bytes: int
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

    def answering(self, settings: Settings, *, swaps: bool = False) -> AnsweringMemory:
        policy = settings.policy
        return plan_answering(self.model, policy, self._kind(policy.device), self.disk_bytes, swaps=swaps)

    def _kind(self, device: str) -> Device:
        return self.auto.kind if device == "auto" else device

    def _memory(self, kind: str) -> int:
        if kind == self.auto.kind:
            return self.auto.bytes
        return self.auto.host if kind == "cpu" else 0

    def _answers(self, stage: str, settings: Settings) -> StagePlan:
        found, kind = self.answering(settings), self._kind(settings.policy.device)
        parts = {name: size for name, size in found.row().items() if name not in ("peak", "kv_token")}
        note = "on the server of policy.endpoint" if settings.policy.backend == "openai" else ""
        return StagePlan(stage, kind, parts, 0 if note else found.peak, self._memory(kind), note=note)

    def _training(self, stage: str, settings: Settings) -> StagePlan:
        name = stage.partition("-")[0]
        chosen, policy = getattr(settings, name), settings.policy
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
        value = rl is not None and rl.algorithm == "ppo"
        held = rl is not None and policy.holds_form
        found = plan_training(
            self.model,
            work,
            chosen,
            settings.adapter,
            kind,
            value_model=value,
            held_to_form=held,
            disk_bytes=self.disk_bytes,
        )
        padded = plan_training(
            self.model,
            largest_workload(self.model, chosen.model_copy(update={"pack_tokens": 0}), **sizes),
            chosen.model_copy(update={"pack_tokens": 0}),
            settings.adapter,
            kind,
        )
        parts = {name: size for name, size in found.row().items() if name != "peak"}
        parts["activations_padded"] = padded.activations
        needs, note = found.peak, ""
        if kind == "cpu":
            needs *= -(-chosen.processes // settings.cluster.training_nodes)
        if rl and policy.backend == "transformers" and self._kind(policy.device) == kind:
            answers = self.answering(settings, swaps=True)
            parts["policy"] = answers.peak - answers.process
            needs, note = needs + parts["policy"], "with the policy that plays beside it"
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
