"""What a worker takes of a node, by the names that Ray's scheduler counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flywheel.settings import Settings
from flywheel.stages.base import BROWSERS, TRAINING, Context, Stage

CPU, GPU = "CPU", "GPU"
Resources = Mapping[str, float]


def of_stage(stage: Stage, ctx: Context, cpus: int, nodes: Sequence[Resources]) -> dict[str, float]:
    """What one worker of the stage takes. nodes: what each node has; with device `auto` GPUs are asked for where there
    are any, and the machines without one then have no part in it."""
    settings, needs = ctx.settings, stage.needs or ()
    wanted: dict[str, float] = {CPU: cpus}
    if BROWSERS in needs:
        wanted[BROWSERS] = settings.sandbox.browsers
    if count := gpus(stage, ctx, lambda: any(node.get(GPU) for node in nodes)):
        wanted[GPU] = count
    return wanted


def gpus(stage: Stage, ctx: Context, there: Callable[[], bool]) -> int:
    """How many GPUs the stage takes. there: whether there are any, asked where the device is `auto`."""
    device, count = _gpus(stage.needs or (), ctx.stage, ctx.settings) or ("cpu", 0)
    return count if device == "cuda" or (device == "auto" and there()) else 0


def _gpus(needs: Sequence[str], name: str, settings: Settings) -> tuple[str, int] | None:
    """The device that is asked for, and how many of it: where a stage trains and plays, both do it on the same ones."""
    if TRAINING in needs:
        block = getattr(settings, name.partition("-")[0])
        return block.device, block.processes
    if BROWSERS in needs and settings.policy.backend == "transformers":
        return settings.policy.device, 1
    return None


def lacking(wanted: Resources, nodes: Sequence[Resources]) -> str:
    """Why no node can ever take such a worker, in words; empty where one can."""
    if any(all(node.get(name, 0) >= count for name, count in wanted.items()) for node in nodes):
        return ""
    return "no node has " + ", ".join(f"{name} {count:g}" for name, count in wanted.items())
