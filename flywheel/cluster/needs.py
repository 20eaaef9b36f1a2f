"""What a worker takes of its nodes, by the names that Ray's scheduler counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flywheel.settings import Cluster, Settings, Training
from flywheel.stages.base import BROWSERS, TRAINING, Context, Stage

CPU, GPU = "CPU", "GPU"
Resources = Mapping[str, float]


def of_stage(stage: Stage, ctx: Context, limits: Cluster, nodes: Sequence[Resources]) -> list[Resources]:
    """What one worker of the stage takes of each of its nodes: it runs on the first, and processes that train with it
    run on the others, where there are any. nodes: what each node has; with device `auto` GPUs are asked for where there
    are any, and the machines without one then have no part in it."""
    wanted: list[dict[str, float]] = [{CPU: limits.cpus} for _ in range(_spread(stage, ctx, limits))]
    if plays(stage, ctx.settings):
        wanted[0][BROWSERS] = ctx.settings.sandbox.browsers
    count = gpus(stage, ctx, lambda: any(node.get(GPU) for node in nodes))
    for own, share in zip(wanted, shares(count, len(wanted)), strict=True):
        if share:
            own[GPU] = share
    return wanted


def plays(stage: Stage, settings: Settings) -> bool:
    """Whether a worker of the stage has environments on its own node; leased ones are elsewhere."""
    return BROWSERS in (stage.needs or ()) and settings.sandbox.backend == "local"


def shares(count: int, nodes: int) -> list[int]:
    """How many of so many processes each node has, the larger shares first."""
    return [count // nodes + (number < count % nodes) for number in range(nodes)]


def gpus(stage: Stage, ctx: Context, there: Callable[[], bool]) -> int:
    """How many GPUs the stage takes. there: whether there are any, asked where the device is `auto`."""
    device, count = _gpus(stage.needs or (), ctx.stage, ctx.settings) or ("cpu", 0)
    return count if device == "cuda" or (device == "auto" and there()) else 0


def _spread(stage: Stage, ctx: Context, limits: Cluster) -> int:
    """Nodes of one worker."""
    if TRAINING not in (stage.needs or ()):
        return 1
    return min(limits.training_nodes, _block(ctx.stage, ctx.settings).processes)


def _block(name: str, settings: Settings) -> Training:
    """Of the settings, that by which the stage trains."""
    return getattr(settings, name.partition("-")[0])


def _gpus(needs: Sequence[str], name: str, settings: Settings) -> tuple[str, int] | None:
    """The device that is asked for, and how many of it: where a stage trains and plays, both do it on the same ones."""
    if TRAINING in needs:
        block = _block(name, settings)
        return block.device, block.processes
    if BROWSERS in needs and settings.policy.backend == "transformers":
        return settings.policy.device, 1
    return None


def lacking(wanted: Sequence[Resources], nodes: Sequence[Resources]) -> str:
    """Why no nodes can ever take such a worker, in words; empty where some can."""
    first, *others = wanted
    for at in nodes:
        left = [node for node in nodes if node is not at]
        # Of the others each asks for as much as the next one, or more: it fits wherever one before it fits.
        if _fits(first, at) and all(sum(_fits(one, node) for node in left) > i for i, one in enumerate(others)):
            return ""
    if not others:
        return f"no node has {told(wanted)}"
    return f"there are no {len(wanted)} nodes that have, one each, {told(wanted)}"


def told(wanted: Sequence[Resources]) -> str:
    return "; ".join(", ".join(f"{name} {count:g}" for name, count in one.items()) for one in wanted)


def _fits(wanted: Resources, node: Resources) -> bool:
    return all(node.get(name, 0) >= count for name, count in wanted.items())
