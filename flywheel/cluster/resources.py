"""Compute the processors, GPUs and browsers that a stage takes, and lock this machine's GPUs."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence

from flywheel.config import ClusterSettings, Settings, TrainingSettings
from flywheel.pipeline import dag
from flywheel.pipeline.stage import BROWSERS, TRAINING, Stage, StageContext
from flywheel.utils.errors import ClusterError
from flywheel.utils.files import file_lock

# Resources that a worker takes of its nodes, by the names that Ray's scheduler counts.

CPU, GPU = "CPU", "GPU"
Resources = Mapping[str, float]


def compute_worker_resources(
    stage: Stage, ctx: StageContext, limits: ClusterSettings, nodes: Sequence[Resources]
) -> list[Resources]:
    """Compute the resources (name -> count) that one worker of the stage takes, a mapping for each of its nodes.

    The worker runs on the first; the processes that train with it run on the others, if any. limits: block `cluster`.
    nodes: the resources of each node of the cluster; with device `auto` GPUs are asked for where any node has one, and
    nodes without one then take no part.
    """
    nodes_each = 1
    if TRAINING in (stage.needs or ()):
        nodes_each = min(limits.training_nodes, _training_settings(ctx.stage, ctx.settings).processes)
    wanted: list[dict[str, float]] = [{CPU: limits.cpus} for _ in range(nodes_each)]
    if needs_local_environments(stage, ctx.settings):
        wanted[0][BROWSERS] = ctx.settings.sandbox.browsers
    count = count_gpus(stage, ctx, lambda: any(node.get(GPU) for node in nodes))
    for own, share in zip(wanted, split_evenly(count, len(wanted)), strict=True):
        if share:
            own[GPU] = share
    return wanted


def needs_local_environments(stage: Stage, settings: Settings) -> bool:
    """Tell whether a worker of the stage opens environments on its own node, not at a manager."""
    return BROWSERS in (stage.needs or ()) and settings.sandbox.backend == "local"


def split_evenly(count: int, nodes: int) -> list[int]:
    """Split `count` processes over `nodes` nodes; return the number of each, the larger ones first."""
    return [count // nodes + (number < count % nodes) for number in range(nodes)]


def count_gpus(stage: Stage, ctx: StageContext, there: Callable[[], bool]) -> int:
    """Count the GPUs that one worker of the stage takes, on all of its nodes together; 0: none.

    ctx: its stage name and settings decide. there: tells whether there are any; called where the device is `auto`.
    """
    needs, policy = stage.needs or (), ctx.settings.policy
    if TRAINING in needs:  # a stage that trains and plays does both on the same ones
        block = _training_settings(ctx.stage, ctx.settings)
        device, count = block.device, block.processes
    elif BROWSERS in needs and policy.backend == "transformers":
        device, count = policy.device, 1
    else:
        return 0
    return count if device == "cuda" or (device == "auto" and there()) else 0


def _training_settings(name: str, settings: Settings) -> TrainingSettings:
    """Return the block by which the stage called `name` trains: ct, sft or rl."""
    return getattr(settings, name.partition("-")[0])


def describe_missing_resources(wanted: Sequence[Resources], nodes: Sequence[Resources]) -> str:
    """Describe why no nodes can ever take a worker of the resources `wanted` (by node); "" where some can.

    nodes: the resources of each node of the cluster.
    """
    first, *others = wanted
    for at in nodes:
        left = [node for node in nodes if node is not at]
        # Each of the others asks for no more than the one before, so it fits wherever that fits: counting is enough.
        if _fits(first, at) and all(sum(_fits(one, node) for node in left) > i for i, one in enumerate(others)):
            return ""
    if not others:
        return f"no node has {describe_resources(wanted)}"
    return f"there are no {len(wanted)} nodes that have, one each, {describe_resources(wanted)}"


def describe_resources(wanted: Sequence[Resources]) -> str:
    """Describe resources in one line, `CPU 1, GPU 1; CPU 1`: commas within a node, semicolons between nodes."""
    return "; ".join(", ".join(f"{name} {count:g}" for name, count in one.items()) for one in wanted)


def _fits(wanted: Resources, node: Resources) -> bool:
    return all(node.get(name, 0) >= count for name, count in wanted.items())


@contextlib.contextmanager
def hold_gpu(ctx: StageContext, limits: ClusterSettings, seconds: float) -> Iterator[None]:
    """Hold this machine's GPUs, so that no other stage of the workspace uses them within the block.

    ctx: of the stage. limits: block `cluster`. seconds: how long to wait for the GPUs. The lock is a file in the
    workspace's `.flywheel/stages`, one a machine; it ends with the process. Does nothing where the stage needs no GPU,
    its device is `auto` and torch finds none, or Ray assigns them. Raises ClusterError where another stage still has
    them after `seconds`.
    """
    if limits.engine == "ray" or not count_gpus(dag.find_stage(ctx.stage), ctx, _has_gpu):
        yield
        return
    lock = ctx.ws.state / "stages" / f"gpu-{socket.gethostname()}.lock"
    with file_lock(lock, seconds, "at the GPU", ClusterError):
        yield


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
